"""Score sheets: the instructor's own, and those that Canvas and Moodle import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.class_list import Entry, several_rows
from tutorial_lib.school.grading.report.roster import Student
from tutorial_lib.school.grading.report.tables import as_csv, readable

# As Canvas exports its gradebook, and wants it back. A student is found by one of the first four.
_CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
# As Moodle exports grades; its import asks which column says who, and which holds the grade.
_MOODLE = ["First name", "Last name", "ID number", "Email address"]


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
    lines = []
    for one, points in _grades(lab, entries):
        who = (one.name, one.canvas_id, one.id, one.folder, one.section)
        lines.append(dict(zip(_CANVAS, who, strict=True)) | points)
    return as_csv([first, *lines])


def moodle_csv(lab: Lab, entries: Sequence[Entry]) -> str:
    """Write what Moodle's gradebook imports."""
    lines = []
    for one, points in _grades(lab, entries):
        first, _, last = one.name.partition(" ")
        who = (first, last, one.id, one.email)
        lines.append(dict(zip(_MOODLE, who, strict=True)) | points)
    return as_csv(lines)


def _grades(lab: Lab, entries: Sequence[Entry]) -> list[tuple[Student, dict[str, int | None]]]:
    """List the students with one row, and the points of each; None where nothing was graded."""
    several = several_rows(entries)
    return [
        (entry.student, {lab.name: entry.result.grade(lab)})
        for entry in entries
        if entry.student and entry.student not in several
    ]
