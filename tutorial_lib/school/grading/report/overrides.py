"""Points that the instructor gives by hand; they stand in place of the checks' own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.roster import student_key
from tutorial_lib.school.grading.report.tables import read_table, unguarded
from tutorial_lib.school.grading.submissions.class_folder import is_called

OVERRIDES = "overrides.csv"
_COLUMNS = ("name", "exercise", "points", "comment")


@dataclass(frozen=True)
class Override:
    """The instructor's points for one exercise of one submission, and why."""

    points: float
    comment: str


def read_overrides(path: Path, lab: Lab, names: Sequence[str]) -> dict[str, dict[str, Override]]:
    """Read `overrides.csv`: name, exercise, points, comment.

    Args:
        path: The file.
        lab: Has the exercises and their points.
        names: Of all submissions.

    Returns:
        By name and exercise.

    Raises:
        GradingError: When a line cannot be applied; says what is wrong with every such line.
    """
    found: dict[str, dict[str, Override]] = {}
    wrong = []
    for number, cells in read_table(path, [[column] for column in _COLUMNS]):
        try:
            name = _name(unguarded(cells["name"]), names)
            exercise = cells["exercise"]
            points = _points(cells["points"], exercise, lab)
            if exercise in found.setdefault(name, {}):
                raise ValueError(f"exercise {exercise} of {name} stands there twice")
            found[name][exercise] = Override(points, cells["comment"])
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
    if wrong:
        raise GradingError(f"{path} cannot be applied. {'; '.join(wrong)}.")
    return found


def _name(wanted: str, names: Sequence[str]) -> str:
    called = [name for name in names if name == wanted]
    called = called or [name for name in names if is_called(name, wanted)]
    if len(called) == 1:
        return called[0]
    if called:
        raise ValueError(f"{wanted!r} may be {' or '.join(called)}")
    near = difflib.get_close_matches(wanted, [*names, *map(student_key, names)], 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"no submission is called {wanted!r}{hint}")


def _points(text: str, exercise: str, lab: Lab) -> float:
    if exercise not in lab.exercises:
        there = ", ".join(lab.exercises)
        raise ValueError(f"{lab.name} has no exercise {exercise!r}; there are {there}")
    maximum = lab.maximum_of(exercise)
    try:
        points = float(text.replace(",", "."))
    except ValueError:
        points = -1.0
    if not 0 <= points <= maximum:
        raise ValueError(
            f"{text!r} points for exercise {exercise}: a number from 0 to {maximum} is needed"
        )
    return int(points) if points == int(points) else points
