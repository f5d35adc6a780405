"""Show what you have done: cells run, blanks filled, points of the labs.

It is read from the working copy as it was last saved. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
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


def text(root: Path) -> str:
    """Return the page: what was begun, what was not, and the sums."""
    if not (root / workbook.FOLDER).is_dir():
        return "There is no working copy here yet: `python -m tutorial_lib lab` makes it."
    return "\n".join(_lines(root))


def _lines(root: Path) -> Iterator[str]:
    everything, ended = {}, []
    for folder, heads in (("course", ("chapter", "")), ("labs", ("lab", "points"))):
        given = next(place for place, copy in workbook.FROM.items() if copy == folder)
        mine = root / workbook.FOLDER / folder
        counts = {
            path.stem: _count(path, mine / workbook.named(path.name))
            for path in sorted((root / given).glob("*.ipynb"))
        }
        done = [name for name, row in counts.items() if all(some == n for some, n in row[:2])]
        begun = {name: row for name, row in counts.items() if row[0][0] or row[1][0]}
        if begun:
            yield f"{heads[0]:<34}{'cells run':>12}{'blanks filled':>16}{heads[1]:>12}".rstrip()
        for name, (cells, blanks, points) in begun.items():
            last = _of(points) if heads[1] else ""
            line = f"{name:<34}{_of(cells):>12}{_of(blanks):>16}{last:>12}".rstrip()
            yield f"{line}  done" if name in done else line
        everything.update(counts)
        ended.append(f"{len(done)} of {len(counts)}")
    if others := [name for name, row in everything.items() if not (row[0][0] or row[1][0])]:
        yield f"not begun: {len(others)}, from {others[0]} on"
    sums = [[sum(row[i][j] for row in everything.values()) for j in (0, 1)] for i in (1, 2)]
    said = "In all: {} chapters and {} labs done, {} blanks filled, {} points."
    yield said.format(*ended, *map(_of, sums))
    yield "Read from workbook/, as last saved. A cell counts when it ran without an error."


def _count(given: Path, mine: Path) -> list[tuple[int, int]]:
    """Count cells that were run, blanks filled and points earned, each with all there are."""
    wanted, cells = _code(given), _code(mine)
    run = [one for one in wanted if _passed(cells.get(one, {}))]
    blank = [one for one in wanted if _BLANK in workbook.text_of(wanted[one])]
    filled = [one for one in blank if one in cells and _BLANK not in workbook.text_of(cells[one])]
    marks = {one: _POINTS.match(workbook.text_of(wanted[one])) for one in wanted}
    points = {one: int(mark[1]) for one, mark in marks.items() if mark}
    earned = sum(points.get(one, 0) for one in run)
    return [(len(run), len(wanted)), (len(filled), len(blank)), (earned, sum(points.values()))]


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


def _of(pair: Sequence[int]) -> str:
    return f"{pair[0]} of {pair[1]}"
