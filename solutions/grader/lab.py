"""The pristine lab: the only source of checks, points, set-up and stored outputs."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from solutions.grader import GradingError
from solutions.grader.submissions.cells import Cell, read_cells
from solutions.grader.submissions.slice_cells import bound_names, statements

_TITLE = re.compile(r"^\| (\d+\.\d+) \| (.+?) \|", re.MULTILINE)  # a row of its table


@dataclass(frozen=True)
class CheckCell:
    """A check cell: one line of the score sheet."""

    id: str
    exercise: str
    points: int


@dataclass(frozen=True)
class AnswerCell:
    """An answer cell of the solution."""

    id: str  # the same in the lab
    exercise: str  # as in `1.2`
    reference: str  # the solution's source
    blank: str | None  # the lab's source; None when there is no lab beside the solution
    names: tuple[str, ...]  # what the cell defines at its top level


@dataclass(frozen=True)
class Lab:
    """A solution notebook as grading sees it."""

    name: str  # its stem, as in `lab01_ledger`
    path: Path
    cells: Sequence[Cell]
    answers: Mapping[str, AnswerCell]  # by exercise
    checks: Sequence[CheckCell]  # their points make up the maximum
    setup_names: frozenset[str]  # defined by the cells that answer and check nothing
    given: Sequence[Cell] = ()  # the cells of the lab as students get it, where there is one

    @property
    def heading(self) -> str:
        """Return the heading at the lab's top, as in `Lab 01: the memory ledger`."""
        texts = (cell.source for cell in self.cells if cell.kind == "markdown")
        return next(texts, "").partition("\n")[0].removeprefix("# ") or self.name

    @property
    def titles(self) -> Mapping[str, str]:
        """Return what the table at the lab's top says of each exercise."""
        texts = (cell.source for cell in self.cells if cell.kind == "markdown")
        return dict(_TITLE.findall(next(texts, "")))

    @property
    def maximum(self) -> int:
        """Sum the points of the lab."""
        return sum(check.points for check in self.checks)

    @property
    def exercises(self) -> list[str]:
        """List the exercises that award points, in order."""
        return list(dict.fromkeys(check.exercise for check in self.checks))

    def maximum_of(self, exercise: str) -> int:
        """Sum the points of one exercise."""
        return sum(check.points for check in self.checks if check.exercise == exercise)


def load_lab(root: Path, name: str) -> Lab:
    """Find and read the pristine notebook of a lab.

    Raises:
        GradingError: When there is no such lab, or it cannot be graded against as it stands.
    """
    path = _find(root, name)
    cells = _read(path)
    twin = root / "labs" / path.name
    given = _read(twin) if twin.is_file() else []
    blanks = {cell.names[:1]: cell.source for cell in given}
    answers: dict[str, AnswerCell] = {}
    checks = []
    setup_names: set[str] = set()
    for cell in cells:
        if cell.kind != "code":
            continue
        defined = _defined(path, cell)
        if cell.mark is None:
            setup_names |= set(defined)
            continue
        if not cell.names:
            raise GradingError(f"{path.name} has a marked cell without an id: build it again.")
        cell_id, number = cell.names[0], cell.mark.number
        if cell.mark.kind != "exercise":
            _check_output(path, cell)
            checks.append(CheckCell(cell_id, number, cell.mark.points))
            continue
        if number in answers:
            raise GradingError(f"{path.name} has two answer cells for exercise {number}.")
        blank = blanks.get(cell.names[:1])
        answers[number] = AnswerCell(cell_id, number, cell.source, blank, defined)
    if not checks:
        raise GradingError(f"{path.name} has no check cell, so there is nothing to grade.")
    return Lab(path.stem, path, cells, answers, checks, frozenset(setup_names), given)


def _find(root: Path, name: str) -> Path:
    labs = sorted((root / "solutions").glob("*.ipynb"))
    wanted = name.removesuffix(".ipynb")
    found = [path for path in labs if wanted in (path.stem, path.stem.split("_")[0])]
    if len(found) == 1:
        return found[0]
    if not labs:
        raise GradingError(
            f"there is no notebook in {root / 'solutions'}: build the course first, "
            "or run this in the course folder."
        )
    known = [path.stem for path in (found or labs)]
    near = difflib.get_close_matches(wanted, [*known, *(stem.split("_")[0] for stem in known)], 1)
    hint = f" Did you mean {near[0]}?" if near and not found else ""
    problem = "is ambiguous" if found else "is not a lab of this course"
    raise GradingError(f"{name!r} {problem}; there are: {', '.join(known)}.{hint}")


def _read(path: Path) -> list[Cell]:
    try:
        cells = read_cells(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise GradingError(f"{path} cannot be read ({error}): build it again.") from error
    if cells is None:
        raise GradingError(f"{path} is no notebook: build it again.")
    return cells


def _defined(path: Path, cell: Cell) -> tuple[str, ...]:
    try:
        names: set[str] = set().union(*map(bound_names, statements(cell.source)))
    except SyntaxError as error:
        raise GradingError(f"a cell of {path.name} is not Python: {error}.") from error
    return tuple(sorted(names))


def _check_output(path: Path, cell: Cell) -> None:
    # nbval compares nothing at all for a cell that was never run: any answer would pass
    if cell.raw.get("execution_count") is None or not cell.raw.get("outputs"):
        raise GradingError(
            f"the check cell {cell.names[0]} of {path.name} has no stored output to compare "
            "with: build the solution, so that it is executed."
        )
