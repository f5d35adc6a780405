"""Finding, reading and matching submissions: files written by anybody, with anything in them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tutorial_lib.grading.cells import Cell, read_cells
from tutorial_lib.grading.errors import GradingError, NotGradable
from tutorial_lib.grading.lab import AnswerCell, Lab
from tutorial_lib.grading.needs import words
from tutorial_lib.units import MIB, human_bytes

MAX_BYTES = 20 * MIB
# Ways to the oracles, which stand in the library and can be called in a student's own process.
# No list is complete, and an honest answer may be on it: a person reads what uses one.
_UNUSUAL = {
    *("checks", "StorageLog", "TorchDispatchMode", "mock", "importlib", "__import__", "exec"),
    *("_getframe", "currentframe", "f_back", "f_locals", "f_globals", "__globals__"),
    *("__closure__", "__subclasses__", "get_objects", "get_referrers", "settrace", "setprofile"),
}


@dataclass(frozen=True)
class Answers:
    """What a submission says.

    Args:
        sources: The student's answer by exercise; absent where there is none.
        problems: Why there is none, by exercise.
        notes: What the student should know about the rest of the notebook.
        review: Exercises whose answer a person should read.
    """

    sources: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    review: list[str] = field(default_factory=list)


def find_submissions(folder: Path, only: Sequence[str] = ()) -> list[str]:
    """List the submissions of a class: notebooks in the folder and in its sub-folders.

    Links and folders that are called like a notebook are listed too, so that nobody is lost.

    Args:
        folder: The folder of the class.
        only: Names, or stems of names, of the few to grade; all when empty.

    Returns:
        Names relative to the folder, sorted.

    Raises:
        GradingError: When the folder is none, or holds no submission, or `only` matches none.
    """
    if not folder.is_dir():
        raise GradingError(f"{folder} is not a folder: give the folder that holds the notebooks.")
    names = []
    for entry in _entries(folder):
        if _is_notebook_name(entry.name) or entry.is_symlink():
            if _is_notebook_name(entry.name) or entry.is_dir():
                names.append(entry.name)
        elif entry.is_dir(follow_symlinks=False):
            inner = [file.name for file in _entries(Path(entry.path))]
            names += [f"{entry.name}/{name}" for name in inner if _is_notebook_name(name)]
    if not names:
        raise GradingError(f"{folder} holds no .ipynb file, neither itself nor one folder down.")
    for wanted in only:
        if not any(_is_called(name, wanted) for name in names):
            raise GradingError(f"no submission in {folder} is called {wanted!r}.")
    chosen = [name for name in names if not only or any(_is_called(name, one) for one in only)]
    return sorted(chosen)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            # a leading dot: checkpoints of Jupyter, resource forks of macOS
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []


def _is_notebook_name(name: str) -> bool:
    return name.lower().endswith(".ipynb")


def _is_called(name: str, wanted: str) -> bool:
    return wanted in (name, name[: -len(".ipynb")], Path(name).name, name.split("/")[0])


def read_submission(path: Path) -> list[Cell]:
    """Read the cells of a submitted file.

    Raises:
        NotGradable: When it is no regular file, too large, unreadable, or no notebook.
    """
    try:
        # Not blocking: a named pipe would wait for ever. Not following: a link may lead anywhere.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            what = "a link" if stat.S_ISLNK(status.st_mode) else "no regular file"
            raise NotGradable("not a notebook", f"This is {what}: hand in the notebook itself.")
        with os.fdopen(os.open(path, flags), "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotGradable("unreadable", f"The file cannot be read: {error.strerror}.") from error
    if len(content) > MAX_BYTES:
        raise NotGradable(
            "too large",
            f"The file has {human_bytes(status.st_size)}, and {human_bytes(MAX_BYTES)} are "
            "allowed: clear the outputs and save it again.",
        )
    try:
        # bytes, not text: json then accepts a byte order mark, and UTF-16 by its zeros
        notebook = json.loads(content)
    except (ValueError, RecursionError, MemoryError) as error:
        what = "is empty" if not content.strip() else "is not valid JSON"
        raise NotGradable(
            "unreadable", f"The file {what}: save the notebook again and hand that in."
        ) from error
    cells = read_cells(notebook)
    if cells is None:
        raise NotGradable("not a notebook", "The file is JSON, but it has no list of cells.")
    return cells


def match_answers(lab: Lab, cells: Sequence[Cell]) -> Answers:
    """Find the student's answers; every other cell of the submission is ignored.

    A cell belongs to an exercise by its cell id, else by nbgrader's grade_id, else by Colab's
    id, else by the mark in its first line. Where several cells belong to one exercise, the last
    one that differs from the blank counts, as it would when the notebook is run from the top.

    Raises:
        NotGradable: When no cell belongs to any exercise.
    """
    by_name = {answer.id: answer for answer in lab.answers.values()}
    candidates: dict[str, list[Cell]] = {number: [] for number in lab.answers}
    for cell in cells:
        named = next((by_name[name] for name in cell.names if name in by_name), None)
        number = named.exercise if named else cell.number
        if number in candidates:
            candidates[number].append(cell)
    if not any(candidates.values()):
        raise NotGradable("nothing to grade", f"No answer cell of {lab.name} is in this file.")
    answers = Answers(notes=_notes(lab, cells, candidates))
    for number, found in candidates.items():
        code = [cell for cell in found if cell.kind == "code"]
        filled = [cell for cell in code if not _is_blank(lab.answers[number], cell)]
        if code:
            answers.sources[number] = (filled or code)[-1].source
        elif found:
            answers.problems[number] = (
                f"the answer cell of exercise {number} is {found[-1].kind} and not code: "
                "change the type of the cell back."
            )
        else:
            answers.problems[number] = (
                f"no answer cell of exercise {number} is in this file: it is found by its cell "
                f"id, or by the first line `# exercise {number}`."
            )
    _review(lab, answers)
    return answers


def _review(lab: Lab, answers: Answers) -> None:
    for number, source in answers.sources.items():
        used = words(source)
        found = used & _UNUSUAL - words(lab.answers[number].reference)
        if {"sys", "modules"} <= used:
            found.add("sys.modules")
        if found:
            answers.review.append(number)
            answers.notes.append(
                f"The answer to exercise {number} uses {', '.join(sorted(found))}, which few "
                "answers need: the instructor is asked to read it."
            )


def _is_blank(answer: AnswerCell, cell: Cell) -> bool:
    return answer.blank is not None and cell.source.split() == answer.blank.split()


def _notes(lab: Lab, cells: Sequence[Cell], candidates: dict[str, list[Cell]]) -> list[str]:
    notes = [
        f"{len(found)} cells belong to exercise {number}: the last one that is filled in counts."
        for number, found in candidates.items()
        if len(found) > 1
    ]
    own = {id(cell) for found in candidates.values() for cell in found}
    known = {name for cell in lab.cells for name in cell.names}
    known_sources = {cell.source.strip() for cell in lab.cells}
    for cell in cells:
        if cell.kind != "code" or id(cell) in own or known.intersection(cell.names):
            continue
        lines = cell.source.strip().splitlines()
        defines = any(line.startswith(("def ", "class ", "import ", "from ")) for line in lines)
        if defines and cell.source.strip() not in known_sources:
            notes.append(
                f"A helper cell was not graded (it begins with {lines[0][:60]!r}): "
                "put helpers into the answer cell that uses them."
            )
    checks = {check.id for check in lab.checks}
    pristine = {cell.names[0]: cell.source.split() for cell in lab.cells if cell.names}
    if any(
        cell.names[:1]
        and cell.names[0] in checks
        and cell.source.split() != pristine[cell.names[0]]
        for cell in cells
    ):
        notes.append("Check cells of this file differ from the course's; the course's were used.")
    return notes[:20]
