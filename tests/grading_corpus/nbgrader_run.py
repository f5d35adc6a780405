"""A lab graded by nbgrader 0.9, to compare points and seconds; nbgrader stands in its own venv."""

import csv
import json
import os
import subprocess
import time
from pathlib import Path

CONFIG = """
c = get_config()
c.ExecutePreprocessor.timeout = 300
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}
"""


def nbgrader_python():
    """Find the Python of a venv with nbgrader and the course: named by NBGRADER_PYTHON."""
    path = os.environ.get("NBGRADER_PYTHON", "")
    return path if path and Path(path).exists() else None


def autograde(python, folder, solution, submissions):
    """Grade notebooks with nbgrader.

    Args:
        python: As `nbgrader_python` gives it.
        folder: A new folder.
        solution: The lab's solution notebook, a path.
        submissions: Notebooks by student.

    Returns:
        Points by student, and the seconds of `nbgrader autograde` alone.
    """
    lab = "lab"
    (folder / "source" / lab).mkdir(parents=True)
    (folder / "nbgrader_config.py").write_text(CONFIG)
    (folder / "source" / lab / solution.name).write_bytes(solution.read_bytes())
    for student, notebook in submissions.items():
        place = folder / "submitted" / student / lab
        place.mkdir(parents=True)
        (place / solution.name).write_text(json.dumps(notebook), encoding="utf-8")

    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])  # it calls alembic

    def nbgrader(*words):
        command = [python, "-m", "nbgrader", *words]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    nbgrader("generate_assignment", lab, "--create")
    began = time.monotonic()
    nbgrader("autograde", lab, "--create")
    seconds = time.monotonic() - began
    nbgrader("export")
    with (folder / "grades.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    return {row["student_id"]: float(row["score"]) for row in rows}, seconds
