"""Cells of a notebook file, read leniently: any nbformat, any editor, any damage to one cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tutorial_lib.school.grading.submissions import reader
from tutorial_lib.school.marks import Mark, cell_mark

MOST_CHARACTERS = reader.MOST_CHARACTERS


@dataclass(frozen=True)
class Cell:
    """One cell, reduced to what grading reads.

    Args:
        kind: `code`, `markdown` or `raw`.
        source: Its text.
        names: Its cell id, nbgrader's grade_id and Colab's metadata id, in this order; no blanks.
        mark: What its first line says.
        raw: The cell as it stands in the file; empty for a submission's.
    """

    kind: str
    source: str
    names: tuple[str, ...]
    mark: Mark | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def number(self) -> str | None:
        """Name the exercise that this cell answers by its mark; None for any other cell."""
        return self.mark.number if self.mark and self.mark.kind == "exercise" else None

    @property
    def is_too_long(self) -> bool:
        """Tell whether its source is longer than grading reads."""
        return len(self.source) > MOST_CHARACTERS


def read_cells(notebook: Any) -> list[Cell] | None:
    """List the cells of a parsed notebook of the course, or None when it is no notebook."""
    raw = reader.raw_cells(notebook)
    return None if raw is None else [make_cell(*reader.essentials(cell), raw=cell) for cell in raw]


def make_cell(kind: str, source: str, names: Iterable[str], *, raw: Mapping[str, Any]) -> Cell:
    """Make a cell out of what `reader.essentials` gives."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return Cell(kind, source, tuple(names), cell_mark(source), raw)


def split_at_marks(cell: Cell) -> list[Cell]:
    """Take apart a code cell into which cells with marks of their own were merged."""
    lines = cell.source.splitlines(keepends=True)
    starts = [0]
    for number in range(1, 0 if cell.kind != "code" or cell.is_too_long else len(lines)):
        if lines[number].startswith("# ") and _begins_a_cell(
            lines[starts[-1] :], number - starts[-1]
        ):
            starts.append(number)
    if len(starts) == 1:
        return [cell]
    parts = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], None], strict=True)]
    return [
        make_cell(cell.kind, part, () if i else cell.names, raw={}) for i, part in enumerate(parts)
    ]


def _begins_a_cell(lines: Sequence[str], number: int) -> bool:
    """Tell whether a line is the mark of another cell, and stands in no function and no text."""
    above = "".join(lines[:number])
    if cell_mark(lines[number]) in (None, cell_mark(above)):
        return False
    below = next((line for line in lines[number + 1 :] if line.strip()), "")
    in_text = above.count('"""') % 2 or above.count("'''") % 2
    has_code = any(line.strip() and not line.startswith("#") for line in lines[:number])
    return has_code and not in_text and not below.startswith((" ", "\t"))
