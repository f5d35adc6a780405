"""`%%memory`: the report of a notebook cell, after `%load_ext tutorial_lib`."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from tutorial_lib.memory.meter import watch
from tutorial_lib.memory.report import MemoryReport


def load_ipython_extension(ipython: Any) -> None:
    """Register `%%memory LABEL` in this IPython; the report is also kept as `memory_report`."""

    def memory(line: str, cell: str) -> MemoryReport | None:
        report = run_watched(ipython, line.strip(), cell)
        ipython.user_ns["memory_report"] = report
        return report

    ipython.register_magic_function(memory, magic_kind="cell", magic_name="memory")


def run_watched(ipython: Any, label: str, cell: str) -> MemoryReport:
    """Run a cell's source in the user's namespace and measure it.

    Every model and optimizer that has a name in the namespace is named in the report.

    Raises:
        Exception: What the cell raises; nothing is reported then.
    """
    names = ipython.user_ns
    # Names with an underscore are IPython's own copies of earlier outputs.
    values = [value for name, value in names.items() if not name.startswith("_")]
    models = nn.ModuleList(value for value in values if isinstance(value, nn.Module))
    optimizers = [value for value in values if isinstance(value, Optimizer)]
    optimizer = optimizers[0] if len(optimizers) == 1 else None
    source = ipython.transform_cell(cell)
    with watch(label, model=models, optimizer=optimizer) as report:
        exec(compile(source, ipython.compile.cache(source), "exec"), names)
    return report
