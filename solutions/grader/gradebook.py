"""Points of a class in nbgrader's gradebook, for who keeps a course there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.grader import GradingError
from solutions.grader.lab import Lab
from solutions.grader.report.roster import student_key

if TYPE_CHECKING:
    import pandas as pd


def open_gradebook(path: Path) -> Any:
    """Open nbgrader's gradebook, a new one where there is none; refused without nbgrader."""
    try:
        from nbgrader.api import Gradebook

        return Gradebook(f"sqlite:///{path.resolve()}")
    except ImportError as error:
        raise GradingError(
            "--gradebook needs nbgrader: pip install nbgrader puts it beside this course."
        ) from error
    except Exception as error:  # of SQLAlchemy, whichever it is
        raise GradingError(
            f"{path} cannot be opened ({type(error).__name__}): give the gradebook.db of an "
            "nbgrader course, or a new file in a folder that is there."
        ) from error


def write_gradebook(path: Path, lab: Lab, scores: pd.DataFrame) -> None:
    """Write the points of each check cell, for students with one graded row; others stay as is.

    The assignment is the one with a notebook called as the lab, else a new one, as in `lab01`.
    Points that somebody gave in nbgrader by hand stay, and count there.
    """
    graded = scores[scores["status"] == "graded"]
    graded = graded.assign(folder=graded["name"].map(student_key))
    graded["who"] = graded["student"].where(graded["student"] != "", graded["folder"])
    graded = graded.drop_duplicates("who", keep=False)
    with open_gradebook(path) as book:
        known = {
            one.name: {notebook.name for notebook in one.notebooks} for one in book.assignments
        }
        first, _, _ = lab.name.partition("_")
        assignment = next((name for name in known if lab.name in known[name]), first)
        book.update_or_create_assignment(assignment)
        book.update_or_create_notebook(lab.name, assignment)
        place = lab.name, assignment
        for check in lab.checks:
            kind = {"max_score": check.points, "cell_type": "code"}
            book.update_or_create_grade_cell(check.id, *place, **kind)
        students = {one.id for one in book.students}
        for row in graded.to_dict("records"):
            names = (row["folder"], row["id"], row["who"])
            student = next((one for one in names if one in students), row["id"] or row["folder"])
            book.update_or_create_student(student)
            book.update_or_create_submission(assignment, student)
            for check in lab.checks:
                grade = book.find_grade(check.id, *place, student)
                grade.auto_score, grade.needs_manual_grade = row[check.exercise], False
        book.db.commit()
