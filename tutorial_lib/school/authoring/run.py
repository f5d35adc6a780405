"""The execution of a notebook in a fresh kernel; its outputs do not change from run to run."""

import os
import re
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from tutorial_lib.school import marks
from tutorial_lib.school.authoring import outputs
from tutorial_lib.school.authoring.files import AuthoringError, read_notebook

CELL_SECONDS = 900
TRACEBACK_LINES = 15
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
}

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def fill(notebook: NotebookNode, path: Path, *, force: bool) -> bool:
    """Fill in a notebook's outputs: those of its earlier build, or of a run.

    Args:
        notebook: Changed in place.
        path: Where it is built to; an earlier build may be there.
        force: Run it whatever was there.

    Returns:
        False, with a note printed, where a package that it needs is missing.

    Raises:
        AuthoringError: When a cell fails, or an output may not be stored.
    """
    name = f"{path.parent.name}/{path.name}"
    missing = marks.missing_packages(c.source for c in notebook.cells if c.cell_type == "code")
    kept = False
    if path.is_file() and (missing or not force):
        try:
            kept = keep_outputs(notebook, read_notebook(path))
        except AuthoringError:
            kept = False  # a broken file gives no outputs; the build replaces it
    if missing and not kept:
        print(f"left out {name}: it needs {', '.join(missing)} to be executed.")
        return False
    if not kept:
        execute(notebook, path.parent, name)
    found = outputs.problems(notebook, name)
    if found:
        hint = "\nThese outputs are of an earlier run: --force runs the cells again."
        raise AuthoringError("\n".join(found) + (hint if kept else ""))
    return True


def execute(notebook: NotebookNode, folder: Path, name: str) -> None:
    """Run every cell in a fresh kernel and store the outputs in the notebook.

    Args:
        notebook: Changed in place: outputs and execution counts only.
        folder: Working folder of the kernel: the one the notebook stands in, below the course's.
        name: The notebook's name in error messages.

    Raises:
        AuthoringError: When a cell fails, hangs, or kills its kernel.
    """
    metadata = dict(notebook.metadata)
    running: list[str] = ["(none)"]
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: running.append(cell.id),
    )
    try:
        client.execute(env=_environment(folder.resolve().parent))
    except CellExecutionError as error:
        trace = _ANSI.sub("", error.traceback).strip().split("\n")[-TRACEBACK_LINES:]
        raise AuthoringError(
            f"{name}, cell {running[-1]!r} failed: nothing was written.\n" + "\n".join(trace)
        ) from None
    except CellTimeoutError:
        raise AuthoringError(
            f"{name}, cell {running[-1]!r} ran for {CELL_SECONDS} s: nothing was written."
        ) from None
    except DeadKernelError:
        raise AuthoringError(
            f"{name}, cell {running[-1]!r} killed its kernel: nothing was written; "
            "was memory short?"
        ) from None
    notebook.metadata.clear()  # nbclient writes the versions of this machine there
    notebook.metadata.update(metadata)
    _tidy(notebook)


def keep_outputs(notebook: NotebookNode, before: NotebookNode) -> bool:
    """Take over the outputs of an earlier build when no code cell or recording has changed since.

    The set-up cell may differ: it prints nothing, and a new tag is no reason to run all again.
    Outputs are filled in place; tells whether they could be kept.
    """
    if notebook.metadata.get("recorded") != before.metadata.get("recorded"):
        return False
    new, old = _code_cells(notebook), _code_cells(before)
    if _sources(new) != _sources(old) or any(cell.execution_count is None for cell in old):
        return False
    for cell, earlier in zip(new, old, strict=True):
        cell.outputs = earlier.outputs
        cell.execution_count = earlier.execution_count
    _tidy(notebook)
    return True


def _environment(root: Path) -> dict[str, str]:
    # the library beside the notebook, and not another clone that happens to be installed
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **QUIET, "PYTHONPATH": path}


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _sources(cells: list[NotebookNode]) -> list[tuple[str, str]]:
    return [(cell.id, "" if cell.id == "setup" else cell.source) for cell in cells]


def _tidy(notebook: NotebookNode) -> None:
    for cell in _code_cells(notebook):
        cell.metadata.pop("execution", None)
        tidied: list[dict[str, Any]] = []
        for output in cell.outputs:
            data = output.get("data", {})
            if _WIDGET_VIEW in data and len(data) > 1:
                del data[_WIDGET_VIEW]
            last = tidied[-1] if tidied else {}
            if output.output_type == "stream" and last.get("name") == output.name:
                last["text"] += output.text
            else:
                tidied.append(output)
        cell.outputs = tidied
