"""The copy of the course that a graded answer's process sees: no judge, no oracle, no grader.

Of the checks it holds the files named `given` and the folder `same_training`. The fork server
begins here, and writes it once a run, before it imports any check. So what it leaves out is neither
on disk for an answer to read nor anywhere in its process's memory. Nothing of this library but the
grader's own files may be imported above `serve`.
"""

import os
import shutil
import sys
from pathlib import Path

import tutorial_lib
from solutions.grader.launch import take_order

_COURSE = Path(__file__).resolve().parents[3]
SHOWN = {"given", "same_training"}
_CHECKS = "tutorial_lib.checks"
# The library's modules in `course`, which a cell of a lab may import.
_CONTENT = ("course/recorded/rows", "course/figures/drawn", "course/claims", "course/ranks")
# A student may have left in a cell what a page of feedback says to call: `checks.lab04.case(...)`.
_LAB = "from {}.given import *\ncase = lambda *_, **__: lambda *_, **__: None\n"


def serve() -> None:
    """Enter the view, then serve; see `forks.serve` for what the order holds."""
    channel, order = take_order()
    hidden = enter(Path(order["view"]), order["package"])

    from solutions.grader.inside import forks

    forks.serve(order, hidden, channel)


def enter(folder: Path, package: str) -> list[Path]:
    """Write the copy, have this process import it from now on, and list the hidden originals."""
    hidden = shutil.ignore_patterns("school", "checks")
    shutil.copytree(_COURSE / "tutorial_lib", folder / "tutorial_lib", ignore=hidden)
    for name in _CONTENT:
        shutil.copytree(_COURSE / name, folder / name)
    originals = [(_COURSE / name / "checks", _CHECKS) for name in ("tutorial_lib", "labs")]
    places = (Path(entry, *package.split(".")) for entry in sys.path)
    if package != _CHECKS and (found := next(filter(Path.is_dir, places), None)):
        originals.append((found, package))
    for original, name in originals:
        copy_shown(original, folder.joinpath(*name.split(".")), name)
    tutorial_lib.__path__[:] = [str(folder / "tutorial_lib")]
    sys.path[:] = [str(folder), *(p for p in sys.path if Path(p).resolve() != _COURSE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    for name in list(sys.modules):
        if name.startswith("tutorial_lib."):
            del sys.modules[name]
    hidden_here = [_COURSE / "tutorial_lib", _COURSE / "solutions"]
    return [*hidden_here, *(original for original, _ in originals)]


def copy_shown(original: Path, copy: Path, package: str) -> None:
    """Copy what an answer may see of a folder of checks; a lab is what its `given` defines."""
    for path in original.rglob("*.py"):
        parts = path.relative_to(original).parts
        if parts == ("__init__.py",) or SHOWN & {part.removesuffix(".py") for part in parts}:
            place = copy.joinpath(*parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    for lab in {path.parent for path in copy.glob("*/given*")}:
        (lab / "__init__.py").write_text(_LAB.format(f"{package}.{lab.name}"))
