"""Notebooks as grading reads them: the cells of any file, and the pristine lab.

The cells are read leniently: from any editor, with any damage to one cell. The lab is the only
source of checks, points, set-up and stored outputs.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from solutions.grader import GradingError, NotGradable, words
from solutions.grader.submissions.slice_cells import bound_names, statements
from tutorial_lib.school.marks import Mark, cell_mark

# Far more than an answer needs. Splitting or tokenizing a text takes hundreds of times its bytes.
MOST_CHARACTERS = 50_000
_NEW_CELL = re.compile(r"^# ?(?:In ?\[.*\]:|%%.*)$", re.MULTILINE)
_TITLE = re.compile(r"^\| (\d+\.\d+) \| (.+?) \|", re.MULTILINE)  # a row of its table


@dataclass(frozen=True)
class Cell:
    """One cell, reduced to what grading reads."""

    kind: str  # `code`, `markdown` or `raw`
    source: str
    names: tuple[str, ...]  # cell id, nbgrader's grade_id, Colab's metadata id; no blanks
    mark: Mark | None  # what its first line says
    raw: Mapping[str, Any] = field(repr=False, compare=False)  # as it stands in the file

    @property
    def number(self) -> str | None:
        """Name the exercise that this cell answers by its mark; None for any other cell."""
        return self.mark.number if self.mark and self.mark.kind == "exercise" else None

    @property
    def is_too_long(self) -> bool:
        """Tell whether its source is longer than grading reads."""
        return len(self.source) > MOST_CHARACTERS


def read_cells(notebook: Any) -> list[Cell]:
    """List the cells of a notebook that are dictionaries; NotGradable when it isn't a notebook."""
    raw = _dict(notebook).get("cells")
    if not isinstance(raw, list):
        raise NotGradable("not a notebook", words("no cells"))
    return [_read(cell) for cell in raw if isinstance(cell, dict)]


def read_script(content: bytes) -> list[Cell]:
    """List the cells of a notebook that was saved as a script, by Jupyter or as percent format."""
    parts = _NEW_CELL.split(content.decode("utf-8", "replace").replace("\r\n", "\n"))
    # what was a text between two cells stands below the first of them, as comments
    code = (re.sub(r"\n+(#[^\n]*\n+)*\Z", "", f"{part}\n").strip("\n") for part in parts)
    return [_make("code", source, (), {}) for source in code]


def _read(raw: dict[str, Any]) -> Cell:
    source = raw.get("source", "")
    if isinstance(source, list):
        source = "".join(part for part in source if isinstance(part, str))
    metadata = _dict(raw.get("metadata"))
    names = (raw.get("id"), _dict(metadata.get("nbgrader")).get("grade_id"), metadata.get("id"))
    some = [name for name in names if isinstance(name, str) and name]
    kind = raw.get("cell_type")
    return _make(kind if isinstance(kind, str) else "", source, some, raw)


def _make(kind: str, source: Any, names: Iterable[str], raw: Mapping[str, Any]) -> Cell:
    text = source.replace("\r\n", "\n").replace("\r", "\n") if isinstance(source, str) else ""
    return Cell(kind, text, tuple(names), cell_mark(text), raw)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def split_at_marks(cell: Cell) -> list[Cell]:
    """Take apart a code cell into which cells with marks of their own were merged."""
    if cell.kind != "code" or cell.is_too_long:
        return [cell]
    parts: list[list[str]] = [[]]
    lines = cell.source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _ends_a_check(parts[-1]) or _begins_a_cell(line, parts[-1], lines[number + 1 :]):
            parts.append([])
        parts[-1].append(line)
    if len(parts) == 1:
        return [cell]
    texts = map("".join, parts)
    return [_make(cell.kind, text, () if i else cell.names, {}) for i, text in enumerate(texts)]


def _ends_a_check(above: Sequence[str]) -> bool:
    """Tell whether the last line calls the check whose mark stands above: Colab's scripts go on."""
    if not (above and re.match(r"(checks\.)?lab\d.*\)$", above[-1])):
        return False
    mark = cell_mark("".join(above))
    return mark is not None and mark.kind != "exercise"


def _begins_a_cell(line: str, above: Sequence[str], below: Sequence[str]) -> bool:
    """Tell whether a line is the mark of another cell, and stands in no function and no text."""
    text = "".join(above)
    if not line.startswith("# ") or cell_mark(line) in (None, cell_mark(text)):
        return False
    next_line = next(filter(str.strip, below), "")
    in_text = text.count('"""') % 2 or text.count("'''") % 2
    has_code = any(one.strip() and not one.startswith("#") for one in above)
    return has_code and not in_text and not next_line.startswith((" ", "\t"))


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
    """Find and read a lab's pristine notebook; GradingError where it can't be graded against."""
    path = _find(root, name)
    cells, twin = _read_file(path), root / "labs" / path.name
    given = _read_file(twin) if twin.is_file() else []
    blanks = {cell.names[:1]: cell.source for cell in given}
    answers: dict[str, AnswerCell] = {}
    checks: list[CheckCell] = []
    setup_names: set[str] = set()
    for cell in (cell for cell in cells if cell.kind == "code"):
        try:
            defined = set[str]().union(*map(bound_names, statements(cell.source)))
        except SyntaxError as error:
            raise GradingError(words("cell not Python", lab=path.name, error=error)) from error
        if cell.mark is None:
            setup_names |= defined
            continue
        if not cell.names:
            raise GradingError(words("no id", lab=path.name))
        cell_id, number = cell.names[0], cell.mark.number
        if cell.number in answers:
            raise GradingError(words("two answer cells", lab=path.name, number=number))
        if cell.number:
            blank, names = blanks.get(cell.names[:1]), tuple(sorted(defined))
            answers[number] = AnswerCell(cell_id, number, cell.source, blank, names)
        # nbval compares nothing at all for a cell that was never run: any answer would pass
        elif cell.raw.get("execution_count") is None or not cell.raw.get("outputs"):
            raise GradingError(words("no output", cell=cell_id, lab=path.name))
        else:
            checks.append(CheckCell(cell_id, number, cell.mark.points))
    if not checks:
        raise GradingError(words("no check", lab=path.name))
    return Lab(path.stem, path, cells, answers, checks, frozenset(setup_names), given)


def _find(root: Path, name: str) -> Path:
    labs = {path.stem: path for path in sorted((root / "solutions").glob("*.ipynb"))}
    if not labs:
        raise GradingError(words("no notebooks", folder=root / "solutions"))
    wanted = name.removesuffix(".ipynb")
    found = [stem for stem in labs if wanted in (stem, stem.split("_")[0])]
    if len(found) == 1:
        return labs[found[0]]
    near = difflib.get_close_matches(wanted, [*labs, *(stem.split("_")[0] for stem in labs)], 1)
    hint = f" Did you mean {near[0]}?" if near and not found else ""
    problem = "is ambiguous" if found else "is not a lab of this course"
    known = ", ".join(found or labs)
    raise GradingError(words("no such lab", name=name, problem=problem, labs=known, hint=hint))


def _read_file(path: Path) -> list[Cell]:
    try:
        return read_cells(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, NotGradable) as error:
        raise GradingError(words("damaged", path=path, error=error)) from error
