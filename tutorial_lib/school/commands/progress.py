"""Show what you have done: cells run, blanks filled, points of the labs.

It is read from the working copy as it was last saved. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.school import bootstrap, workbook

_BLANK = "raise NotImplementedError"
_POINTS = re.compile(r"# check [\d.]+ \((\d+) points?\)")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes: nothing."""


def run(options: argparse.Namespace) -> int:
    """Show the page."""
    print(text(bootstrap.ROOT))
    return 0


@dataclass(frozen=True)
class Row:
    """One notebook: how many of its cells were run, blanks filled, and points earned.

    Args:
        name: Stem of the notebook.
        cells: Run without an error, and all; each with code.
        blanks: Filled, and all.
        points: Of checks that passed where they were last run, and all.
    """

    name: str
    cells: tuple[int, int]
    blanks: tuple[int, int]
    points: tuple[int, int]

    @property
    def is_begun(self) -> bool:
        """Whether a cell was run, or a blank filled."""
        return bool(self.cells[0] or self.blanks[0])

    @property
    def is_done(self) -> bool:
        """Whether every cell was run without an error, and every blank filled."""
        return self.cells[0] == self.cells[1] and self.blanks[0] == self.blanks[1]


def rows(root: Path) -> dict[str, list[Row]]:
    """Read the notebooks of the working copy, by folder: `course` and `labs`."""
    found: dict[str, list[Row]] = {"course": [], "labs": []}
    for given, target in workbook.FROM.items():
        for path in sorted((root / given).glob("*.ipynb")) if target in found else ():
            mine = root / workbook.FOLDER / target / workbook.named(path.name)
            found[target].append(_row(path, mine))
    return found


def _row(given: Path, mine: Path) -> Row:
    cells, wanted = _code(mine), _code(given)
    run = [cell for cell in wanted if _passed(cells.get(cell, {}))]
    blank = [cell for cell in wanted if _BLANK in workbook.text_of(wanted[cell])]
    filled = [c for c in blank if c in cells and _BLANK not in workbook.text_of(cells[c])]
    points = {cell: _points(workbook.text_of(wanted[cell])) for cell in wanted}
    return Row(
        given.stem,
        (len(run), len(wanted)),
        (len(filled), len(blank)),
        (sum(points[cell] for cell in run), sum(points.values())),
    )


def _code(path: Path) -> dict[str, dict[str, Any]]:
    """Read the cells with code by their ids; none where there is no notebook that can be read."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return {cell["id"]: cell for cell in cells if cell["cell_type"] == "code"}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _passed(cell: dict[str, Any]) -> bool:
    errors = [out for out in cell.get("outputs", ()) if out.get("output_type") == "error"]
    return cell.get("execution_count") is not None and not errors


def _points(text: str) -> int:
    mark = _POINTS.match(text)
    return int(mark[1]) if mark else 0


def text(root: Path) -> str:
    """Return the page: what was begun, what was not, and the sums."""
    if not (root / workbook.FOLDER).is_dir():
        return "There is no working copy here yet: `python -m tutorial_lib lab` makes it."
    return "\n".join(_lines(rows(root)))


def _lines(found: dict[str, list[Row]]) -> Iterator[str]:
    for folder, heads in (("course", ("chapter", "")), ("labs", ("lab", "points"))):
        begun = [row for row in found[folder] if row.is_begun]
        if begun:
            yield f"{heads[0]:<34}{'cells run':>12}{'blanks filled':>16}{heads[1]:>12}".rstrip()
        for row in begun:
            numbers = [*map(_of, (row.cells, row.blanks)), _of(row.points) if heads[1] else ""]
            done = "  done" if row.is_done else ""
            yield f"{row.name:<34}{numbers[0]:>12}{numbers[1]:>16}{numbers[2]:>12}".rstrip() + done
    everything = [row for part in found.values() for row in part]
    if others := [row.name for row in everything if not row.is_begun]:
        yield f"not begun: {len(others)}, from {others[0]} on"
    blanks, points = (
        tuple(map(sum, zip(*(getattr(row, name) for row in everything), strict=True)))
        for name in ("blanks", "points")
    )
    ended = [sum(row.is_done for row in found[folder]) for folder in found]
    yield (
        f"In all: {ended[0]} of {len(found['course'])} chapters and {ended[1]} of "
        f"{len(found['labs'])} labs done, {_of(blanks)} blanks filled, {_of(points)} points."
    )
    yield "Read from workbook/, as last saved. A cell counts when it ran without an error."


def _of(pair: tuple[int, ...]) -> str:
    return f"{pair[0]} of {pair[1]}"
