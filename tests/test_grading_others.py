"""Submissions of ours in the hands of other graders: plain nbval, and nbgrader."""

import json

import nbgrader_run
import pytest
from grading_selftest.known_answers import handed_in

from tutorial_lib.school.grading.lab import load_lab

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


def test_nbgrader_gives_the_same_points(lab, solved, tmp_path):
    python = nbgrader_run.nbgrader_python()
    if python is None:
        pytest.skip("NBGRADER_PYTHON names no Python with nbgrader")
    some = {number: solved[number] for number in ("1.1", "1.3")}
    handed = {"full": solved, "blank": {}, "some": some}
    handed = {name: handed_in(lab, answers) for name, answers in handed.items()}
    points, _ = nbgrader_run.autograde(python, tmp_path / "class", lab.path, handed)
    wanted = lab.maximum_of("1.1") + lab.maximum_of("1.3")
    assert points == {"full": lab.maximum, "blank": 0, "some": wanted}
