"""The commands that need the library: `python -m tutorial_lib COMMAND`, without `lab` and `test`.

An error that the library foresees is one sentence on stderr and exit status 2; `--debug` shows
where it came from.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutorial_lib.school import teach
from tutorial_lib.school.emulate import on_cards
from tutorial_lib.school.plan import plan
from tutorial_lib.training import Attention, OptimizerName, Precision, Recipe

if TYPE_CHECKING:
    from tutorial_lib.memory import MemoryReport

ROOT = Path(__file__).resolve().parent.parent.parent
DOCTOR_PACKAGES = (
    "torch", "numpy", "matplotlib", "transformers", "diffusers", "scikit-learn",
    "jupyterlab", "ipykernel", "ipywidgets", "nbval",
)  # fmt: skip

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Model = Annotated[str, typer.Argument(help="A published model, as in gpt2 or sd15-unet.")]
Batch = Annotated[int, typer.Option(help="Micro-batch: samples in memory at once.")]
Seq = Annotated[int | None, typer.Option(help="Tokens in a sequence; the model's own if left out.")]
Size = Annotated[int | None, typer.Option(help="Image height and width; of latents for a U-Net.")]
Strategy = Annotated[str, typer.Option(help="What to checkpoint, as in per-block or every-2.")]
Accumulate = Annotated[int, typer.Option(help="Micro-batches for each update.")]
Chosen = Annotated[Precision, typer.Option(help="Types of the numbers; amp is autocast.")]
Kernel = Annotated[Attention, typer.Option(help="Fused kernels, or scores written out.")]
Update = Annotated[OptimizerName, typer.Option(help="What updates the parameters.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]


class Kernels(enum.StrEnum):
    """Whose kernels a predicted step takes."""

    CUDA = "cuda"
    CPU = "cpu"


def run(words: Sequence[str]) -> int:
    """Run one command.

    Args:
        words: The command and its options; `--debug` may stand anywhere.

    Returns:
        0 when all went well, 1 when something was found wanting, 2 after an error.

    Raises:
        Exception: What the library did not foresee; with `--debug`, every error.
    """
    debug = "--debug" in words
    try:
        if words[:1] == ["measure"] and (status := on_cards(words)) is not None:
            return status
        app([word for word in words if word != "--debug"], prog_name="python -m tutorial_lib")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        sentence = _sentence(error)
        if debug or sentence is None:
            raise
        print(sentence, file=sys.stderr)
        return 2
    return 0


def _sentence(error: Exception) -> str | None:
    """Put a foreseen error in words; None for one that is a fault of ours."""
    text = str(error)
    if isinstance(error, RuntimeError) and "allocate" in text:
        return (
            f"Memory ran out ({text.splitlines()[0]}): lower --batch or --seq, try "
            "--checkpointing per-block, or ask `predict`, which allocates nothing."
        )
    if isinstance(error, ModuleNotFoundError):
        return f"{text}: run `python -m tutorial_lib lab` once, or pip as in the README."
    if isinstance(error, OSError):
        return f"{error.filename or 'The system'} cannot be used: {error.strerror or text}."
    return text if isinstance(error, ValueError) and text else None


@app.callback()
def _commands() -> None:
    """Training that fits: measure, predict, grade and build."""


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Show what this machine has: Python, GPU, versions, free disk."""
    facts = machine()
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    Console(highlight=False).print(table)


def machine() -> dict[str, str]:
    """Collect what a bug report needs to say about this machine.

    Returns:
        Words by name; no names of users or folders other than the Python in use.
    """
    from importlib import metadata

    from tutorial_lib import device
    from tutorial_lib.school import bootstrap

    best = device.pick()
    facts = {
        **bootstrap.facts(ROOT),
        "device": device.describe(best),
        "tier": device.tier(best).value,
        "bfloat16 in hardware": "yes" if device.supports_bfloat16(best) else "no",
    }
    for name in DOCTOR_PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["torch"] = device.versions()["torch"]  # with the CUDA that it was built for
    return facts


def _show(report: MemoryReport, recipe: Recipe, as_json: bool) -> None:
    """Print a report as a table, or as JSON together with what was asked."""
    if as_json:
        from tutorial_lib.memory.report import as_data

        peaks = {"forward_backward_bytes": report.forward_backward_bytes}
        print(json.dumps(recipe.as_data() | as_data(report) | peaks, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tutorial_lib.memory.report import HOW, NOT_EMULATED
    from tutorial_lib.units import human_bytes, human_seconds

    print(f"{recipe.label()}: {HOW[report.method]}, {report.device}")
    table = Table("held at the peak", box=box.SIMPLE, pad_edge=False)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for name, size in report.at_peak.items():
        if size:
            share = f"{size / report.peak_bytes:.0%}"
            table.add_row(name.replace("_", " "), human_bytes(size), share)
    table.add_section()
    table.add_row(f"peak of the whole step, in {report.peak_phase}", human_bytes(report.peak_bytes))
    forward_backward = human_bytes(report.forward_backward_bytes)
    table.add_row("peak of forward and backward alone", forward_backward)
    for phase, size in report.phases.items():
        table.add_row(f"  of {phase}", human_bytes(size))
    if report.reserved_bytes is not None:
        table.add_row("reserved by the allocator", human_bytes(report.reserved_bytes))
    if report.method == "emulated":
        print(NOT_EMULATED)
    if report.seconds is not None:
        table.add_row("time of a step, median", human_seconds(report.seconds))
    Console(highlight=False).print(table)
    if report.peak_phase == "optimizer":
        print("The update is the peak: no checkpointing lowers it, another --optimizer may.")


@app.command()
def measure(
    model: Model,
    batch: Batch = 1,
    seq: Seq = None,
    size: Size = None,
    precision: Chosen = Precision.FP32,
    attention: Kernel = Attention.SDPA,
    optimizer: Update = OptimizerName.ADAMW,
    checkpointing: Strategy = "none",
    accumulate: Accumulate = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; the best if left out")] = None,
    emulated: Annotated[str | None, typer.Option(help="Cards not there, as in t4,a100.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a real training step (random weights) and show its memory."""
    from tutorial_lib import device as devices
    from tutorial_lib import memory

    recipe = Recipe(
        model, batch, seq, size, precision, attention, optimizer, checkpointing, accumulate
    )
    devices.seed_everything(0)
    step, network, update = recipe.make_step(devices.pick(device))
    label = recipe.label()
    report = memory.measure(step, model=network, optimizer=update, label=label, repeats=3)
    _show(report, recipe, as_json)


@app.command()
def predict(
    model: Model,
    batch: Batch = 1,
    seq: Seq = None,
    size: Size = None,
    precision: Chosen = Precision.FP32,
    attention: Kernel = Attention.SDPA,
    optimizer: Update = OptimizerName.ADAMW,
    checkpointing: Strategy = "none",
    accumulate: Accumulate = 1,
    kernels: Annotated[Kernels, typer.Option(help="Whose kernels the step is to take.")] = (
        Kernels.CUDA
    ),
    as_json: AsJson = False,
) -> None:
    """Show a training step's memory (random weights) without allocating it."""
    from tutorial_lib import memory

    recipe = Recipe(
        model, batch, seq, size, precision, attention, optimizer, checkpointing, accumulate
    )
    report = memory.predict(recipe.make_step, kernels=kernels.value, label=recipe.label())
    _show(report, recipe, as_json)


for command in (plan, teach.grade, teach.build, teach.new):
    app.command()(command)
