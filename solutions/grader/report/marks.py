"""Marks by hand: points and comments that an instructor writes beside those of the checks."""

import contextlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from solutions.grader import GradingError
from solutions.grader.lab import Lab
from solutions.grader.report.class_list import Entry, Mark, class_entries
from solutions.grader.report.roster import Roster, student_key
from solutions.grader.report.tables import read_table
from solutions.grader.results import Graded

_STUDENT = ("student", "name", "folder", "id", "email")


def read_marks(
    path: Path | None, lab: Lab, names: Sequence[str], roster: Roster
) -> dict[str, dict[str, Mark]]:
    """Return the marks in a CSV file, by the name of a row of the class, then by exercise.

    Raises:
        GradingError: With a sentence for each line that fits no student or exercise, or whose
            points are no number of its range.
    """
    marks: dict[str, dict[str, Mark]] = {}
    if path is None:
        return marks
    keys = _keys(class_entries([Graded(name, "") for name in names], roster, names))
    faults = []
    for number, cells in read_table(path, _STUDENT):
        who = next((cells[name] for name in _STUDENT if cells.get(name)), "")
        rows = keys.get(who.casefold(), [])
        near = [f" (did you mean {one!r}?)" for one in get_close_matches(who.casefold(), keys, 1)]
        fault = "" if rows else f"has {who!r}, who is no student here{''.join(near)}"
        try:
            exercise, mark = _mark(lab, cells)
        except ValueError as error:
            fault = fault or str(error)
        for name in () if fault else rows:
            if exercise in marks.setdefault(name, {}):
                fault = f"has {exercise or 'the whole lab'} of {who!r} for a second time"
            marks[name].setdefault(exercise, mark)
        if fault:
            faults.append(f"Line {number} of {path} {fault}.")
    if faults:
        raise GradingError("\n".join([*faults, "Nothing was graded or changed: correct the file."]))
    return marks


def _keys(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """List the row of each name, folder, id or e-mail; none where two students do."""
    keys: dict[str, dict[str, object]] = {}  # by row, whose it is
    for entry in entries:
        name, one = entry.result.name, entry.student
        more = (one.name, one.folder, one.id, one.email) if one else ()
        for word in {word.casefold() for word in (name, student_key(name), *more) if word}:
            keys.setdefault(word, {})[name] = one or name
    return {word: [*rows] for word, rows in keys.items() if len({*rows.values()}) == 1}


def _mark(lab: Lab, cells: dict[str, str]) -> tuple[str, Mark]:
    exercise, points = cells.get("exercise", ""), cells.get("points", "").replace(",", ".")
    if exercise and exercise not in lab.exercises:
        raise ValueError(
            f"has exercise {exercise!r}, and {lab.name} has {', '.join(lab.exercises)}"
        )
    comment, most, value = cells.get("comment", ""), lab.maximum_of(exercise), -1.0
    if not points:
        if not comment:
            raise ValueError("has neither points nor a comment")
        return exercise, Mark(None, comment)
    if not exercise:
        raise ValueError("has points for no exercise: name one in the column exercise")
    with contextlib.suppress(ValueError):
        value = float(points)
    if not 0 <= value <= most:  # nor a nan
        raise ValueError(f"has {cells['points']!r} points: give a number from 0 to {most}")
    return exercise, Mark(int(value) if value == int(value) else value, comment)
