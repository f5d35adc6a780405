"""Messages beside a command's answer: an error in words, and that the work goes on."""

import contextlib
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_FOLDERS = (
    *("tutorial_lib", "labs/checks", "solutions/grader"),
    *("course/claims", "course/figures/drawn", "course/frameworks", "course/ranks"),
    *("course/levers", "course/recorded/rows"),
)
_OURS = [_ROOT / name for name in _FOLDERS]
_NO_GPU = (
    "Without a GPU, leave this out, or give your function a parameter `device` and place things\n"
    'there: the command fills it in. (`predict` and `plan` ignore .cuda() and .to("cuda").)\n'
)
_NO_GROUP = (
    "One process runs here. Predict one rank of 8 in a script, without init_process_group:\n"
    "  with ranks.pretend(8): print(memory.predict(make_step))  # tutorial_lib.instruments.ranks\n"
)


def foreseen(error: Exception) -> str | None:
    """Put a foreseen error in words; None for one that is a fault of ours."""
    text = str(error)
    if isinstance(error, RuntimeError) and re.search("(can't|tried to) allocate", text, re.I):
        return (
            f"Memory ran out ({text.splitlines()[0]}): lower --batch or --seq, try "
            "--checkpointing per-block, or ask `predict`, which allocates nothing."
        )
    if isinstance(error, ModuleNotFoundError):
        cure = ": run `python -m tutorial_lib lab` once, or pip as in the README."
        return f"{text}{cure}" if error.name else text  # ours names no package
    if is_own(error):
        return None
    if isinstance(error, OSError):
        return f"{error.filename or 'The system'} cannot be used: {error.strerror or text}."
    return text if isinstance(error, ValueError) and text else None


def is_own(error: Exception) -> bool:
    """Tell whether the user's code raised it, or code that it called, and not the course."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(_own_frames(error)) and not _is_in(_OURS, frames[-1])


def _own_frames(error: Exception) -> list[traceback.FrameSummary]:
    libraries = [*_OURS, *(Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib"))]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file() and not _is_in(libraries, frame)
    ]


def _is_in(folders: list[Path], frame: traceback.FrameSummary) -> bool:
    return not {*folders}.isdisjoint(Path(frame.filename).resolve().parents)


def of_own_code(error: Exception) -> str | None:
    """Show an error with the user's own lines alone; None when none of them took part."""
    frames = _own_frames(error)
    if not frames:
        return None
    cure = _NO_GPU if re.search("cuda|nvidia|accelerator", str(error), re.IGNORECASE) else ""
    cure = _NO_GROUP if re.search("env:// rendezvous|process group has not", str(error)) else cure
    said = [f"Your code raised {type(error).__name__}: {error}\n", *traceback.format_list(frames)]
    return f"{''.join(said)}{cure}--debug shows all lines."


@contextlib.contextmanager
def sign_of_life(what: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr that work goes on: a running clock on a terminal, a line elsewhere.

    Yields:
        A function that says which part of the work comes now, as in "part 2 of 3: ...".
    """
    for name in list(logging.root.manager.loggerDict):
        if name.endswith(".fake_tensor"):  # 20 lines of PyTorch's own where a step raises
            logging.getLogger(name).disabled = True
    with _each_warning_once():
        if not sys.stderr.isatty():
            print(f"{what} ...", file=sys.stderr, flush=True)
            yield lambda part: print(f"  {part}", file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda part: progress.update(task, description=f"{what}, {part}")


@contextlib.contextmanager
def _each_warning_once() -> Iterator[None]:
    """Print the meter's warnings once each, without the line of ours that passed them on."""
    with warnings.catch_warnings():
        usual, said = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if category.__name__ != "MeterWarning":
                usual(message, category, *where, **more)
            elif str(message) not in said:
                said.add(str(message))
                print(f"Warning: {message}", file=sys.stderr, flush=True)

        warnings.showwarning = show
        yield
