"""The marks that say what a cell is: an exercise, its check, a hidden check, or what it needs.

A mark is the first line of a code cell: `# exercise 3.2`, `# check 3.2 (2 points)`,
`# hidden check 3.2 (1 point)`, `# needs jax, flax`. Builder, grader and nbval's runs read it here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

BEGIN_SOLUTION = "### BEGIN SOLUTION"
END_SOLUTION = "### END SOLUTION"

Kind = Literal["exercise", "check", "hidden check"]

_MARK = re.compile(
    r"# (?:(?P<exercise>exercise) (?P<answer_number>\d+(?:\.\d+)*)"
    r"|(?P<check>(?:hidden )?check) (?P<number>\d+(?:\.\d+)*) \((?P<points>[1-9]\d*) points?\))\s*"
)
_NEEDS = re.compile(r"# needs (\w+(?:, \w+)*)\s*")
_NEARLY = re.compile(r"#+\s*(?:exercise|hidden\s+check|check)\s*\d", re.IGNORECASE)


@dataclass(frozen=True)
class Mark:
    """What the first line of a cell says about it."""

    kind: Kind  # an answer cell is an `exercise`; the other two award points
    number: str  # the exercise it belongs to, as in `3.2`
    points: int = 0  # what a passed check is worth


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


def missing_packages(sources: Iterable[str]) -> list[str]:
    """List what cells need, as in `# needs jax, flax`, and this Python does not have, sorted."""
    needs = (_NEEDS.fullmatch(_first_line(source)) for source in sources)
    names = {name for match in needs if match for name in match[1].split(", ")}
    return sorted(name for name in names if find_spec(name) is None)


def _first_line(source: str) -> str:
    return source.lstrip().split("\n", 1)[0]
