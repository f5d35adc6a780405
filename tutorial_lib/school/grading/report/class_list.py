"""Rows of a class: each result with its student, and the students who handed in nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tutorial_lib.school.grading.report.roster import Roster, Student
from tutorial_lib.school.grading.results import Graded

NOTHING = "nothing handed in"
_NAMED = 10  # names that a sentence lists


@dataclass(frozen=True)
class Entry:
    """One row of the class."""

    result: Graded
    student: Student | None = None  # None when the roster does not say


def class_entries(
    results: Sequence[Graded], roster: Roster, names: Sequence[str] = ()
) -> list[Entry]:
    """List the rows of a class; behind them the students of whom no file is among `names`."""
    found = [Entry(result, roster.find(result.name)) for result in results]
    there = [roster.find(name) for name in names]
    nothing = [
        Entry(Graded(one.folder or one.name, NOTHING, reason="No file was found."), one)
        for one in roster.students
        if one not in there
    ]
    return [*found, *nothing]


def roster_warnings(entries: Sequence[Entry]) -> list[str]:
    """Tell the instructor which rows the roster and the files for an LMS do not fit."""
    rows = [(entry.result.name, entry.result.status) for entry in entries]
    sentences = {
        "Submissions of nobody on the roster": [
            entry.result.name for entry in entries if entry.student is None
        ],
        "Students who handed in nothing": [name for name, status in rows if status == NOTHING],
        "Submissions not graded, with an empty cell in the Canvas and Moodle files": [
            name for name, status in rows if status not in ("graded", NOTHING)
        ],
        "Students with several rows, left out of the Canvas and Moodle files (leave one notebook "
        "of each in the folder, and grade again)": [one.name for one in several_rows(entries)],
    }
    return [
        f"{what}: {len(names)} ({', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)})."
        for what, names in sentences.items()
        if names
    ]


def several_rows(entries: Sequence[Entry]) -> list[Student]:
    """List the students who have more than one row, each once."""
    rows = Counter(entry.student for entry in entries if entry.student)
    return [student for student, count in rows.items() if count > 1]
