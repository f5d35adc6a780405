"""GPU tests and GPU cells on emulated cards: `python -m tutorial_lib test --emulated`.

The tests marked `gpu` run. Of each notebook the cells that speak of a GPU are run, and the earlier
cells that they need. On an emulated card all values are zeros and nothing is timed, so that a cell
that looks at either may fail rightly: such cells are named apart, with their error.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from solutions.grader.submissions import slice_cells
from tutorial_lib import device
from tutorial_lib.school import marks

ROOT = Path(__file__).resolve().parent.parent
_ON_A_GPU = re.compile(r"cuda\b|has_gpu|device\.pick\(|\bTrainer\(|\bAccelerator\(|import ")
# An error's name or its words: of zeros, and of a report that has no times.
_EXPECTED = re.compile(
    r"[\w-]+: (CheckError|AssertionError|ZeroDivisionError|FloatingPointError)"
    r"|.*(another output|no median for empty data|/: 'NoneType')"
)
CELL_SECONDS = 300


def main(words: Sequence[str]) -> int:
    """Run the cells of notebooks in this process's environment; gives 1 when something failed.

    Stems of notebooks, or beginnings of stems, choose some; none means all, and the tests.
    """
    print(device.describe("cuda"), flush=True)
    paths = [*sorted(ROOT.glob("course/*.ipynb")), *sorted(ROOT.glob("solutions/*.ipynb"))]
    chosen = [path for path in paths if not words or path.stem.startswith(tuple(words))]
    return max([*([] if words else [_tests()]), *map(_run, chosen)], default=0)


def _tests() -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/test_gpu.py"]
    return subprocess.call(command, cwd=ROOT)


def _run(path: Path) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    cells = [cell for cell in code if not marks.missing_packages([cell.source])]
    notebook.cells = [cells[number] for number in needed([cell.source for cell in cells])]
    try:
        with tempfile.TemporaryDirectory() as folder:  # one of the notebooks writes a file
            NotebookClient(
                notebook,
                timeout=CELL_SECONDS,
                allow_errors=True,
                extra_arguments=["--log-level=ERROR"],
                resources={"metadata": {"path": folder}},
            ).execute()
        faults = [fault for cell in notebook.cells for fault in _errors(cell)]
    except (DeadKernelError, TimeoutError) as error:
        faults = [f"{type(error).__name__}: {error}"]
    failed = [fault for fault in faults if not _EXPECTED.match(fault)]
    words = f"{path.stem}: {len(notebook.cells)} of {len(cells)} cells"
    words += f", {len(failed)} FAILED" if failed else ""
    lines = [fault if fault in failed else f"(needs values or times) {fault}" for fault in faults]
    print(words, *lines, sep="\n    ", flush=True)
    return int(bool(failed))


def _errors(cell: Any) -> list[str]:
    outputs = [output for output in cell.outputs if output.output_type == "error"]
    return [f"{cell.id}: {output.ename}: {output.evalue[:300]}" for output in outputs]


def needed(sources: Sequence[str]) -> list[int]:
    """Choose the code cells that speak of a GPU, and those that make what the chosen ones use."""
    chosen: list[int] = []
    names: set[str] = set()
    for number in reversed(range(len(sources))):
        source = sources[number]
        made: set[str] = set().union(*map(slice_cells.bound_names, slice_cells.statements(source)))
        if _ON_A_GPU.search(source) or made & names:
            chosen.append(number)
            names |= slice_cells.used_names(slice_cells.plain_python(source))
    return chosen[::-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
