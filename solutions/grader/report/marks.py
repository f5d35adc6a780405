"""Marks by hand: points and comments that an instructor writes beside those of the checks."""

import difflib
from collections.abc import Sequence
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
        fault = "" if rows else f"has {who!r}, who is no student here{_near(who, keys)}"
        try:
            exercise, mark = _mark(lab, cells)
        except ValueError as error:
            fault = fault or str(error)
        if not fault and any(exercise in marks.get(name, {}) for name in rows):
            fault = f"has {exercise or 'the whole lab'} of {who!r} for a second time"
        if fault:
            faults.append(f"Line {number} of {path} {fault}.")
        else:
            for name in rows:
                marks.setdefault(name, {})[exercise] = mark
    if faults:
        raise GradingError("\n".join([*faults, "Nothing was graded or changed: correct the file."]))
    return marks


def _keys(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """List the row of each name, folder, id or e-mail; none where two students do."""
    keys: dict[str, list[str]] = {}
    people: dict[str, set[object]] = {}
    for entry in entries:
        name, one = entry.result.name, entry.student
        words = {name, student_key(name)} | (
            {one.name, one.folder, one.id, one.email} if one else set()
        )
        for word in {word.casefold() for word in words if word}:
            keys.setdefault(word, []).append(name)
            people.setdefault(word, set()).add(one or name)
    return {word: rows for word, rows in keys.items() if len(people[word]) == 1}


def _mark(lab: Lab, cells: dict[str, str]) -> tuple[str, Mark]:
    exercise, points = cells.get("exercise", ""), cells.get("points", "").replace(",", ".")
    if exercise and exercise not in lab.exercises:
        raise ValueError(
            f"has exercise {exercise!r}, and {lab.name} has {', '.join(lab.exercises)}"
        )
    if not points:
        if not cells.get("comment"):
            raise ValueError("has neither points nor a comment")
        return exercise, Mark(None, cells["comment"])
    if not exercise:
        raise ValueError("has points for no exercise: name one in the column exercise")
    most = lab.maximum_of(exercise)
    try:
        value = float(points)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # nor a nan
        raise ValueError(f"has {cells['points']!r} points: give a number from 0 to {most}")
    return exercise, Mark(int(value) if value == int(value) else value, cells.get("comment", ""))


def _near(who: str, keys: dict[str, list[str]]) -> str:
    near = difflib.get_close_matches(who.casefold(), keys, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
