"""Rows of a class, and its score sheets: the instructor's own, and those for Canvas and Moodle."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
class Mark:
    """What an instructor writes about an answer."""

    points: float | None  # None leaves the points of the checks
    comment: str


@dataclass(frozen=True)
class Entry:
    """One row of the class."""

    result: Graded
    student: Student | None = None  # None when the roster does not say
    marks: Mapping[str, Mark] = field(default_factory=dict)  # by exercise; "" is the whole lab

    @property
    def name(self) -> str:
        """Return the student's name, or the name of the file where the student is not known."""
        return self.student.name if self.student else self.result.name

    def by_hand(self, exercise: str) -> float | None:
        """Return the points that an instructor gave; None where the checks' count."""
        return self.marks[exercise].points if exercise in self.marks else None

    def grade(self, lab: Lab, exercise: str | None = None) -> float | None:
        """Return the points of one exercise or of all; None where nobody graded anything."""
        if exercise:
            points = self.by_hand(exercise)
            return self.result.grade(lab, exercise) if points is None else points
        grades = [self.grade(lab, one) for one in lab.exercises]
        return sum(one or 0 for one in grades) if any(one is not None for one in grades) else None


def class_entries(
    results: Sequence[Graded],
    roster: Roster,
    names: Sequence[str] = (),
    marks: Mapping[str, Mapping[str, Mark]] | None = None,
) -> list[Entry]:
    """List the rows of a class; behind them the students of whom no file is among `names`.

    Args:
        results: Of what was handed in.
        roster: The students.
        names: Of all submissions.
        marks: By the name of a row, as `read_marks` returns them.
    """
    marks = marks or {}
    found = [Entry(one, roster.find(one.name), marks.get(one.name, {})) for one in results]
    there = [roster.find(name) for name in names]
    missing = {one.folder or one.name: one for one in roster.students if one not in there}
    nothing = [
        Entry(Graded(name, NOTHING, reason="No file was found."), one, marks.get(name, {}))
        for name, one in missing.items()
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
            "points": entry.grade(lab),
            "maximum": lab.maximum,
            **{exercise: entry.grade(lab, exercise) for exercise in lab.exercises},
            "by checks": entry.result.grade(lab),
            "by hand": " ".join(one for one in entry.marks if entry.by_hand(one) is not None),
            "comment": readable(
                " ".join(
                    f"{exercise}: {mark.comment}".removeprefix(": ")
                    for exercise, mark in entry.marks.items()
                    if mark.comment
                )
            ),
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


def _grades(lab: Lab, entries: Sequence[Entry]) -> list[tuple[Student, float | None]]:
    """List the students with one row, and the points of each; None where nothing was graded."""
    several = several_rows(entries)
    found = [(one.student, one.grade(lab)) for one in entries if one.student]
    return [(student, points) for student, points in found if student not in several]
