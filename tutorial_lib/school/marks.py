"""The marks that say what a lab cell is: an exercise, its check, or a hidden check.

A mark is the first line of a code cell: `# exercise 3.2`, `# check 3.2 (2 points)`,
`# hidden check 3.2 (1 point)`. Builder and grader both read it here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

BEGIN_SOLUTION = "### BEGIN SOLUTION"
END_SOLUTION = "### END SOLUTION"

Kind = Literal["exercise", "check", "hidden check"]

_MARK = re.compile(
    r"# (?:(?P<exercise>exercise) (?P<answer_number>\d+(?:\.\d+)*)"
    r"|(?P<check>(?:hidden )?check) (?P<number>\d+(?:\.\d+)*) \((?P<points>[1-9]\d*) points?\))\s*"
)
_NEARLY = re.compile(r"#+\s*(?:exercise|hidden\s+check|check)\s*\d", re.IGNORECASE)


@dataclass(frozen=True)
class Mark:
    """What the first line of a cell says about it.

    Args:
        kind: An answer cell is an `exercise`; the other two award points.
        number: The exercise it belongs to, as in `3.2`.
        points: What a passed check is worth; 0 for an exercise.
    """

    kind: Kind
    number: str
    points: int = 0


def cell_mark(source: str) -> Mark | None:
    """Read the mark of a code cell, or None where it has none.

    Blank lines above the mark and blanks after it do not matter; anything else does.
    """
    match = _MARK.fullmatch(_first_line(source))
    if match is None:
        return None
    if match["exercise"]:
        return Mark("exercise", match["answer_number"])
    kind: Kind = "check" if match["check"] == "check" else "hidden check"
    return Mark(kind, match["number"], int(match["points"]))


def is_misspelt(source: str) -> bool:
    """Tell whether a cell begins with something that wants to be a mark and is none."""
    return cell_mark(source) is None and _NEARLY.match(_first_line(source)) is not None


def _first_line(source: str) -> str:
    return source.lstrip().split("\n", 1)[0]
