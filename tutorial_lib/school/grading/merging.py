"""Several labs in one table: a row a student, a column a lab."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.class_list import NOTHING
from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.report import check_place
from tutorial_lib.school.grading.report.place import replacing, write, write_exports
from tutorial_lib.school.grading.roster import Student, student_key
from tutorial_lib.school.grading.tables import as_csv


def merge(reports: Sequence[Path], out: Path) -> int:
    """Write the scores of several reports into one: for a person, for Canvas and for Moodle.

    A student is found again by id, or by name where there is none.

    Args:
        reports: Folders of reports, each of another lab.
        out: The folder of the new one.

    Returns:
        How many students it has.

    Raises:
        GradingError: When a folder holds no report, a lab comes twice, or a student has two rows.
    """
    maxima: dict[str, int] = {}
    students: dict[str, Student] = {}
    points: dict[str, dict[str, float]] = {}
    for folder in reports:
        check_place(out, folder)
        facts = _facts(folder)
        lab = facts["lab"]
        if lab in maxima:
            raise GradingError(f"{folder} is of {lab}, as an earlier report is: give one a lab.")
        maxima[lab] = facts["maximum"]
        for row in facts["rows"]:
            student = Student(**(row["student"] or {"name": student_key(row["name"])}))
            key = student.id or student.name
            students.setdefault(key, student)
            of_student = points.setdefault(key, {})
            if lab in of_student:
                raise GradingError(
                    f"{student.name} has several rows in {folder}: grade it again with --take best "
                    "or --take last."
                )
            if row["status"] != NOTHING:
                of_student[lab] = row["points"]
    order = sorted(students, key=lambda key: students[key].name)
    with replacing(out) as new:
        write(new / "scores.csv", _scores([(students[key], points[key]) for key in order], maxima))
        write_exports(new, maxima, [(students[key], points[key]) for key in order])
        write(new / "run.json", json.dumps({"merged": maxima}) + "\n")
    return len(order)


def _scores(
    grades: Sequence[tuple[Student, Mapping[str, float]]], maxima: Mapping[str, int]
) -> str:
    columns = ["student", "id", "email", *maxima, "points", "maximum"]
    totals = {"maximum": sum(maxima.values())}
    return as_csv(
        columns,
        [
            {"student": student.name, "id": student.id, "email": student.email, **points}
            | {"points": sum(points.values()), **totals}
            for student, points in grades
        ],
    )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("lab", "maximum", "rows")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GradingError(f"{folder} holds no report of a lab: give a run's --out.") from error
