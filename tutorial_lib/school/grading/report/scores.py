"""The score sheets: the instructor's own, and those that Canvas and Moodle import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.class_list import Entry, several_rows
from tutorial_lib.school.grading.report.roster import Student
from tutorial_lib.school.grading.report.tables import as_csv, readable

# As Canvas exports its gradebook, and wants it back. A student is found by one of the first four.
_CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
# As Moodle exports grades; its import asks which column says who, and which holds the grade.
_MOODLE = ["First name", "Last name", "ID number", "Email address"]

Grades = Sequence[tuple[Student, dict[str, float | None]]]


def rows(lab: Lab, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Make the lines of `scores.csv`."""
    return [
        {
            "name": readable(entry.result.name),
            "student": readable(entry.student.name if entry.student else ""),
            "id": readable(entry.student.id if entry.student else ""),
            "status": entry.result.status,
            "points": entry.points(lab),
            "maximum": lab.maximum,
            **{exercise: entry.points(lab, exercise) for exercise in lab.exercises},
            "handed_in": entry.result.handed_in,
            "dated_by": entry.result.dated_by,
            "late_days": entry.late_days,
            "overridden": " ".join(entry.overrides),
            "review": " ".join(entry.review),
        }
        for entry in entries
    ]


def scores_csv(lab: Lab, entries: Sequence[Entry]) -> str:
    """Write the score sheet."""
    return as_csv(rows(lab, entries))


def canvas_csv(maxima: Mapping[str, int], grades: Grades) -> str:
    """Write what Canvas' gradebook imports: a line of maxima, then a line a student.

    Args:
        maxima: The points of each lab.
        grades: Each student with the points by lab; None where nothing was graded.
    """
    first = dict.fromkeys(_CANVAS, "") | {"Student": "    Points Possible", **maxima}
    lines = []
    for one, points in grades:
        who = (one.name, one.canvas_id, one.id, one.folder, one.section)
        lines.append(dict(zip(_CANVAS, who, strict=True)) | points)
    return as_csv([first, *lines])


def moodle_csv(maxima: Mapping[str, int], grades: Grades) -> str:
    """Write what Moodle's gradebook imports; arguments as for Canvas."""
    lines = []
    for one, points in grades:
        first, _, last = one.name.partition(" ")
        who = dict(zip(_MOODLE, (first, last, one.id, one.email), strict=True))
        lines.append(who | dict.fromkeys(maxima, "") | points)
    return as_csv(lines)


def grades_of(lab: Lab, entries: Sequence[Entry]) -> Grades:
    """List each student who has one row, with the points of this lab."""
    several = several_rows(entries)
    return [
        (entry.student, {lab.name: entry.points(lab) if entry.is_graded else None})
        for entry in entries
        if entry.student and entry.student not in several
    ]
