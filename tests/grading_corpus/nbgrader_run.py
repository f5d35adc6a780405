"""A lab graded by nbgrader 0.9, to compare points and seconds; nbgrader stands in its own venv."""

import csv
import json
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
c = get_config()
c.ExecutePreprocessor.timeout = 300
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}
"""


def nbgrader_python():
    """Find the Python of a venv with nbgrader and the course: named by NBGRADER_PYTHON."""
    path = os.environ.get("NBGRADER_PYTHON", "")
    return path if path and Path(path).exists() else None


LAB = "lab01"


def make_course(folder, solution, submissions):
    """Write a course as nbgrader lays it out, with one lab: its solution, and what was handed in.

    Args:
        folder: A new folder.
        solution: The lab's solution notebook, a path.
        submissions: Notebooks by student.
    """
    (folder / "source" / LAB).mkdir(parents=True)
    (folder / "nbgrader_config.py").write_text(CONFIG)
    (folder / "source" / LAB / solution.name).write_bytes(solution.read_bytes())
    for student, notebook in submissions.items():
        place = folder / "submitted" / student / LAB
        place.mkdir(parents=True)
        (place / solution.name).write_text(json.dumps(notebook), encoding="utf-8")


def run(python, folder, *words):
    """Run nbgrader, or another module, with the Python of its venv, in the course's folder."""
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])  # it calls alembic
    done = subprocess.run(
        [python, "-m", *words],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def exported(python, folder):
    """Return points by student, as `nbgrader export` writes them from the gradebook."""
    run(python, folder, "nbgrader", "export")
    with (folder / "grades.csv").open(newline="") as table:
        return {row["student_id"]: float(row["score"]) for row in csv.DictReader(table)}


def autograde(python, folder, solution, submissions):
    """Grade notebooks with nbgrader; gives points by student, and the seconds of it alone."""
    make_course(folder, solution, submissions)
    run(python, folder, "nbgrader", "generate_assignment", LAB, "--create")
    began = time.monotonic()
    run(python, folder, "nbgrader", "autograde", LAB, "--create")
    seconds = time.monotonic() - began
    return exported(python, folder), seconds
