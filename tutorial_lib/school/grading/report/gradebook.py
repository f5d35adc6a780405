"""Points of a class in nbgrader's gradebook, for who keeps a course there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.report.class_list import Entry, several_rows
from tutorial_lib.school.grading.report.roster import student_key


def open_gradebook(path: Path) -> Any:
    """Open nbgrader's gradebook, a new one where there is none.

    Raises:
        GradingError: When nbgrader is not installed, or the file cannot be opened.
    """
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


def write_gradebook(path: Path, lab: Lab, entries: Sequence[Entry]) -> None:
    """Write the points of each check cell, for students with one graded row; others stay as is.

    The assignment is the one with a notebook called as the lab, else a new one, as in `lab01`.
    Points that somebody gave in nbgrader by hand stay, and count there.
    """
    several, short = several_rows(entries), lab.name.split("_")[0]
    with open_gradebook(path) as book:
        known = {
            one.name: {notebook.name for notebook in one.notebooks} for one in book.assignments
        }
        assignment = next((name for name in known if lab.name in known[name]), short)
        book.update_or_create_assignment(assignment)
        book.update_or_create_notebook(lab.name, assignment)
        place = lab.name, assignment
        for check in lab.checks:
            kind = {"max_score": check.points, "cell_type": "code"}
            book.update_or_create_grade_cell(check.id, *place, **kind)
        students = {one.id for one in book.students}
        for entry in entries:
            who, result = entry.student, entry.result
            if result.status != "graded" or who is None or who in several:
                continue
            names = [student_key(result.name), who.folder, who.id, who.email, who.name]
            student = next((one for one in names if one in students), who.id or names[0])
            book.update_or_create_student(student)
            book.update_or_create_submission(assignment, student)
            for check in lab.checks:
                grade = book.find_grade(check.id, *place, student)
                verdict = result.verdicts.get(check.id)
                grade.auto_score = check.points if verdict and verdict.passed else 0
                grade.needs_manual_grade = False
        book.db.commit()
