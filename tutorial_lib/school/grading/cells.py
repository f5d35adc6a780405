"""Cells of a notebook file, read leniently: any nbformat, any editor, any damage to one cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tutorial_lib.school.marks import Mark, cell_mark

# Far more than an answer needs. Splitting or tokenizing a text takes hundreds of times its bytes.
MOST_CHARACTERS = 50_000


@dataclass(frozen=True)
class Cell:
    """One cell, reduced to what grading reads.

    Args:
        kind: `code`, `markdown` or `raw`.
        source: Its text.
        names: Its cell id, nbgrader's grade_id and Colab's metadata id, in this order; no blanks.
        mark: What its first line says.
        raw: The cell as it stands in the file.
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
    """List the cells of a parsed notebook, or None when it is no notebook.

    Cells that are not even a dictionary are left out; nbformat 3 keeps its cells in worksheets.
    """
    if not isinstance(notebook, dict):
        return None
    raw = notebook.get("cells")
    if raw is None and isinstance(notebook.get("worksheets"), list):
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        raw = [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    if not isinstance(raw, list):
        return None
    return [_cell(cell) for cell in raw if isinstance(cell, dict)]


def _cell(raw: dict[str, Any]) -> Cell:
    source = _text(raw.get("source", raw.get("input", "")))
    metadata = _dict(raw.get("metadata"))
    names = (raw.get("id"), _dict(metadata.get("nbgrader")).get("grade_id"), metadata.get("id"))
    return Cell(
        kind=str(raw.get("cell_type")),
        source=source,
        names=tuple(name for name in names if isinstance(name, str) and name),
        mark=cell_mark(source),
        raw=raw,
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
