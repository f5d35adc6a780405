"""The folder of a class: submissions by name, and their bytes, whatever they are."""

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from solutions.grader import GradingError, NotGradable, words
from tutorial_lib.units import MIB, human_bytes

MAX_BYTES = 20 * MIB
# What an operating system leaves behind; hidden files are left out by their leading dot.
_LEFT_BEHIND = {"__macosx", "thumbs.db", "desktop.ini", "__pycache__"}
READ = (".ipynb", ".zip", ".py")  # what is read; of a student's folder the first that is there
_NAMED = 5  # entries that a reason lists


def find_submissions(folder: Path, only: Sequence[str] = (), lab: str = "") -> list[str]:
    """List the submissions of a class: notebooks in the folder and, at any depth, in its folders.

    Where a student's folder has none, an archive counts, else a script; where it has a folder
    `lab01`, as nbgrader makes one for each lab, the others do not. So that nobody is lost, all else
    is listed too, and so is every sub-folder that holds none of them. `only` are names, or stems of
    names, of the few to grade. It's a GradingError when nothing is there.
    """
    if not folder.is_dir():
        raise GradingError(words("no folder", folder=folder))
    names = []
    for entry in _entries(folder):
        inner: list[str] = []
        if _is_folder(entry) and not entry.name.lower().endswith(READ):
            files = _files(entry)
            own = f"{entry.name}/{lab.partition('_')[0]}/"
            files = [name for name in files if name.startswith(own)] or files
            for kind in READ:  # the outermost ones: what lies below them is older
                of_kind = [name for name in files if name.lower().endswith(kind)]
                inner = inner or [n for n in of_kind if n.count("/") == of_kind[0].count("/")]
        names += inner or [entry.name]
    if not any(name.lower().endswith(READ) for name in names):
        raise GradingError(words("no submission", folder=folder))
    for wanted in only:
        if not any(_is_called(name, wanted) for name in names):
            raise GradingError(words("nobody", folder=folder, wanted=wanted))
    chosen = [name for name in names if not only or any(_is_called(name, one) for one in only)]
    return sorted(chosen)


def _files(folder: Path) -> list[str]:
    """List the files of a folder and of those in it, by name, the outermost first."""
    paths = [path.relative_to(folder.parent) for path in folder.rglob("*") if not path.is_dir()]
    names = [path.as_posix() for path in paths if all(map(_counts, path.parts[1:]))]
    return sorted(names, key=lambda name: (name.count("/"), name))


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [entry for entry in folder.iterdir() if _counts(entry.name)]
    return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _counts(name: str) -> bool:
    """Tell what a student handed in from what Jupyter or a system has left, by its own name."""
    return not name.startswith(".") and name.lower() not in _LEFT_BEHIND


def stem(name: str) -> str:
    """Take the ending off the name of what is read."""
    return next((name[: -len(kind)] for kind in READ if name.lower().endswith(kind)), name)


def _is_called(name: str, wanted: str) -> bool:
    """Tell whether a submission may be meant: by name, by stem, by file or by folder."""
    return wanted in (name, stem(name), Path(name).name, name.split("/")[0])


def check_is_notebook(path: Path) -> None:
    """Refuse a file not named like a notebook; the `NotGradable` says what it is."""
    if path.name.lower().endswith(READ):
        return
    said = words("other name", name=path.name)
    if _is_folder(path):
        inside = sorted(f"{one.name}/" if one.is_dir() else one.name for one in _entries(path))
        there = ", ".join([*inside[:_NAMED], *["..."] * (len(inside) > _NAMED)])
        said = words("other folder", there=there or "nothing")
    raise NotGradable("no notebook found", said)


def read_content(path: Path) -> bytes:
    """Read a submitted file; NotGradable when it is no notebook by its name, or too large."""
    check_is_notebook(path)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise NotGradable("not a notebook", words("no file"))
        # Not blocking: a named pipe would wait for ever. Not following: a link may lead anywhere.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_BYTES + 1) if regular else b""
    except OSError as error:
        raise NotGradable("unreadable", words("refused", error=error.strerror)) from error
    if len(content) > MAX_BYTES:
        size, most = human_bytes(status.st_size), human_bytes(MAX_BYTES)
        raise NotGradable("too large", words("large", size=size, most=most))
    return content
