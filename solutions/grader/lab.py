"""The pristine lab: the only source of checks, points, set-up and stored outputs."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from solutions.grader import GradingError, NotGradable
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
    def _top(self) -> str:
        return next((cell.source for cell in self.cells if cell.kind == "markdown"), "")

    @property
    def heading(self) -> str:
        """Return the heading at the lab's top, as in `Lab 01: the memory ledger`."""
        return self._top.partition("\n")[0].removeprefix("# ") or self.name

    @property
    def titles(self) -> Mapping[str, str]:
        """Return what the table at the lab's top says of each exercise."""
        return dict(_TITLE.findall(self._top))

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
    cells, twin = _read(path), root / "labs" / path.name
    given = _read(twin) if twin.is_file() else []
    blanks = {cell.names[:1]: cell.source for cell in given}
    answers: dict[str, AnswerCell] = {}
    checks: list[CheckCell] = []
    setup_names: set[str] = set()
    for cell in (cell for cell in cells if cell.kind == "code"):
        try:
            defined = set[str]().union(*map(bound_names, statements(cell.source)))
        except SyntaxError as error:
            raise GradingError(f"a cell of {path.name} is not Python: {error}.") from error
        if cell.mark is None:
            setup_names |= defined
            continue
        if not cell.names:
            raise GradingError(f"{path.name} has a marked cell without an id: build it again.")
        cell_id, number = cell.names[0], cell.mark.number
        if cell.number in answers:
            raise GradingError(f"{path.name} has two answer cells for exercise {number}.")
        if cell.number:
            blank, names = blanks.get(cell.names[:1]), tuple(sorted(defined))
            answers[number] = AnswerCell(cell_id, number, cell.source, blank, names)
            continue
        # nbval compares nothing at all for a cell that was never run: any answer would pass
        if cell.raw.get("execution_count") is None or not cell.raw.get("outputs"):
            raise GradingError(
                f"the check cell {cell_id} of {path.name} has no stored output to compare "
                "with: build the solution, so that it is executed."
            )
        checks.append(CheckCell(cell_id, number, cell.mark.points))
    if not checks:
        raise GradingError(f"{path.name} has no check cell, so there is nothing to grade.")
    return Lab(path.stem, path, cells, answers, checks, frozenset(setup_names), given)


def _find(root: Path, name: str) -> Path:
    labs = {path.stem: path for path in sorted((root / "solutions").glob("*.ipynb"))}
    if not labs:
        raise GradingError(
            f"there is no notebook in {root / 'solutions'}: build the course first, "
            "or run this in the course folder."
        )
    wanted = name.removesuffix(".ipynb")
    found = [stem for stem in labs if wanted in (stem, stem.split("_")[0])]
    if len(found) == 1:
        return labs[found[0]]
    near = difflib.get_close_matches(wanted, [*labs, *(stem.split("_")[0] for stem in labs)], 1)
    hint = f" Did you mean {near[0]}?" if near and not found else ""
    problem = "is ambiguous" if found else "is not a lab of this course"
    raise GradingError(f"{name!r} {problem}; there are: {', '.join(found or labs)}.{hint}")


def _read(path: Path) -> list[Cell]:
    try:
        return read_cells(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, NotGradable) as error:
        raise GradingError(f"{path} cannot be read ({error}): build it again.") from error
