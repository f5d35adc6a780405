"""Rows of a class, and its score sheets: the instructor's own, and those for Canvas and Moodle."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solutions.grader.lab import Lab
from solutions.grader.report.roster import Roster, Student
from solutions.grader.report.tables import as_csv, readable
from solutions.grader.results import Graded

NOTHING = "nothing handed in"
_NAMED = 10  # names that a sentence lists
# As Canvas exports its gradebook, and wants it back. A student is found by one of the first four.
_CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
# As Moodle exports grades; its import asks which column says who, and which holds the grade.
_MOODLE = ["First name", "Last name", "ID number", "Email address"]


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


def rows(lab: Lab, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Make the lines of `scores.csv`."""
    return [
        {
            "name": readable(entry.result.name),
            "student": readable(entry.student.name if entry.student else ""),
            "id": readable(entry.student.id if entry.student else ""),
            "status": entry.result.status,
            "points": entry.result.grade(lab),
            "maximum": lab.maximum,
            **{exercise: entry.result.grade(lab, exercise) for exercise in lab.exercises},
            "review": " ".join(sorted(entry.result.findings)),
            "reason": readable(entry.result.reason),
        }
        for entry in entries
    ]


def canvas_csv(lab: Lab, entries: Sequence[Entry]) -> str:
    """Write what Canvas' gradebook imports: a line of maxima, then a line a student."""
    first = dict.fromkeys(_CANVAS, "") | {"Student": "    Points Possible", lab.name: lab.maximum}
    lines = [
        dict(zip(_CANVAS, (one.name, one.canvas_id, one.id, one.folder, one.section), strict=True))
        | {lab.name: points}
        for one, points in _grades(lab, entries)
    ]
    return as_csv([first, *lines])


def moodle_csv(lab: Lab, entries: Sequence[Entry]) -> str:
    """Write what Moodle's gradebook imports."""
    lines = [
        dict(zip(_MOODLE, (*one.name.partition(" ")[::2], one.id, one.email), strict=True))
        | {lab.name: points}
        for one, points in _grades(lab, entries)
    ]
    return as_csv(lines)


def _grades(lab: Lab, entries: Sequence[Entry]) -> list[tuple[Student, int | None]]:
    """List the students with one row, and the points of each; None where nothing was graded."""
    several = several_rows(entries)
    found = [(one.student, one.result.grade(lab)) for one in entries if one.student]
    return [(student, points) for student, points in found if student not in several]
