"""Submissions of ours in the hands of other graders: plain nbval, and nbgrader."""

import json

import nbgrader_run
import pytest

from solutions.answers.known import handed_in
from solutions.grader.lab import load_lab

pytestmark = pytest.mark.weekly


@pytest.fixture(scope="module")
def lab(root):
    return load_lab(root, "lab01")


@pytest.fixture(scope="module")
def solved(lab):
    return {number: answer.reference for number, answer in lab.answers.items()}


@pytest.mark.parametrize("exercise", [None, "1.4"])
def test_plain_nbval_runs_a_submission(lab, solved, tmp_path, run_python, exercise):
    answers = {number: source for number, source in solved.items() if number != exercise}
    path = tmp_path / "submission.ipynb"
    path.write_text(json.dumps(handed_in(lab, answers)), encoding="utf-8")
    words = ("-m", "pytest", "-q", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider")
    done = run_python(*words, path, cwd=tmp_path)
    assert done.returncode == bool(exercise), done.stdout[-3000:]
    # what fails is the check, and a cell below it that calls the blank
    assert ("2 failed" in done.stdout) == bool(exercise)


@pytest.fixture
def nbgrader():
    python = nbgrader_run.nbgrader_python()
    if python is None:
        pytest.skip("NBGRADER_PYTHON names no Python with nbgrader")
    return python


@pytest.fixture
def handed(lab, solved):
    some = {number: solved[number] for number in ("1.1", "1.3")}
    answers = {"full": solved, "blank": {}, "some": some}
    return {name: handed_in(lab, answers) for name, answers in answers.items()}


@pytest.fixture
def wanted(lab):
    some = lab.maximum_of("1.1") + lab.maximum_of("1.3")
    return {"full": lab.maximum, "blank": 0, "some": some}


def test_nbgrader_gives_the_same_points(nbgrader, lab, handed, wanted, tmp_path):
    points, _ = nbgrader_run.autograde(nbgrader, tmp_path / "class", lab.path, handed)
    assert points == wanted
