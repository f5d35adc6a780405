"""Cells of a notebook file, read leniently: any editor, any damage to one cell."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from solutions.grader import NotGradable
from tutorial_lib.school.marks import Mark, cell_mark

# Far more than an answer needs. Splitting or tokenizing a text takes hundreds of times its bytes.
MOST_CHARACTERS = 50_000
_NEW_CELL = re.compile(r"^# ?(?:In ?\[.*\]:|%%.*)$", re.MULTILINE)


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
    """List the cells of a notebook that are dictionaries; NotGradable when it is no notebook."""
    raw = _dict(notebook).get("cells")
    if not isinstance(raw, list):
        raise NotGradable("not a notebook", "The file is JSON, but it has no list of cells.")
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
