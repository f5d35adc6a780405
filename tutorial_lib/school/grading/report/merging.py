"""Several labs in one table: a row a student, a column a lab."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.report import check_place
from tutorial_lib.school.grading.report.place import replacing, write, write_exports
from tutorial_lib.school.grading.report.roster import Student, student_key
from tutorial_lib.school.grading.report.scores import Grades
from tutorial_lib.school.grading.report.tables import as_csv


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
    grades_by_key: dict[str, tuple[Student, dict[str, float | None]]] = {}
    for folder in reports:
        check_place(out, folder)
        facts = _facts(folder)
        lab = facts["lab"]
        if lab in maxima:
            raise GradingError(f"{folder} is of {lab}, as an earlier report is: give one a lab.")
        maxima[lab] = facts["rows"][0]["maximum"]
        for row in facts["rows"]:
            student = Student(**(row["student"] or {"name": student_key(row["name"])}))
            _, points = grades_by_key.setdefault(student.id or student.name, (student, {}))
            if lab in points:
                raise GradingError(
                    f"{student.name} has several rows in {folder}: grade it again with --take best "
                    "or --take last."
                )
            graded = row["status"] == "graded" or row["overridden"]
            points[lab] = row["points"] if graded else None
    grades = sorted(grades_by_key.values(), key=lambda grade: grade[0].name)
    with replacing(out) as new:
        write(new / "scores.csv", _scores(grades, maxima))
        write_exports(new, maxima, grades)
        write(new / "run.json", json.dumps({"merged": maxima}) + "\n")
    return len(grades)


def _scores(grades: Grades, maxima: Mapping[str, int]) -> str:
    totals = {"maximum": sum(maxima.values())}
    return as_csv(
        [
            {"student": student.name, "id": student.id, "email": student.email}
            | dict.fromkeys(maxima, "")
            | points
            | {"points": sum(filter(None, points.values())), **totals}
            for student, points in grades
        ]
    )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("lab", "rows")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GradingError(f"{folder} holds no report of a lab: give a run's --out.") from error
