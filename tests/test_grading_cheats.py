"""The memory exam against answers that keep what they should recompute, and against honest ones."""

import importlib

import answers
import pytest
from test_grading_session import ROOT, start, start_lab, using
from toychecks import lab91

from tutorial_lib.checks.vocabulary import Exercise

CHEATS, HONEST = (answers.by_title("../cheats", kind) for kind in ("cheat", "honest"))
# Of real labs: the oracle of an exercise by a detour.
ORACLES = [one for one in answers.read("../cheats") if one[1] == "oracle"]
IN_CI = ("patched meters", "an alias", "its source, run again", "files", "a child holds it")
PASSES_IN_CI = ("hooks",)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with start(tmp_path_factory, 20.0, "toychecks.lab91") as everything:
        if "memory exam" not in everything[3]:
            pytest.skip(f"this machine holds no memory exam: {everything[3]}")
        yield everything


@pytest.fixture
def sits(running, monkeypatch):
    """Has an answer sit the exam; gives what is said about it, nothing where it passes."""

    def sit(answer):
        with using(running, monkeypatch) as course:
            course.session(**{"2.1": answer})
            return course.says(lab91.frugal, "2.1", "checkpoint")

    return sit


def some(names, in_ci):
    return [n if n in in_ci else pytest.param(n, marks=pytest.mark.weekly) for n in names]


@pytest.mark.parametrize("name", some(CHEATS, IN_CI))
def test_a_cheat_fails_the_memory_exam(sits, name):
    assert sits(CHEATS[name])


@pytest.mark.parametrize("name", some(HONEST, PASSES_IN_CI))
def test_an_honest_checkpoint_passes_the_memory_exam(sits, name):
    assert sits(HONEST[name]) == ""


@pytest.mark.weekly
def test_twenty_exams_end_alike(sits):
    for _ in range(20):
        assert sits(HONEST["hooks"]) == ""
        assert "384 MiB" in sits(CHEATS["patched meters"])
        assert "384 MiB" in sits(CHEATS["bytes"])


@pytest.mark.weekly
@pytest.mark.parametrize("lab", sorted({f"lab{number[0]:0>2}" for number, *_ in ORACLES}))
def test_the_oracles_of_a_lab_are_out_of_reach(lab, monkeypatch):
    package = f"tutorial_lib.checks.{lab}"
    checks = vars(importlib.import_module(package)).values()
    by_exercise = {check.exercise: check for check in checks if isinstance(check, Exercise)}
    with (
        start_lab(ROOT, lab, "tutorial_lib.checks", [], 20.0, [package]) as running,
        using(running, monkeypatch) as course,
    ):
        known = {number: one.reference for number, one in running[2].answers.items()}
        for exercise, _, name, _, (answer,) in ORACLES:
            if exercise in known:
                asked = by_exercise[exercise].name.split(".")[1]
                course.open(known | {exercise: answer})
                assert course.says(by_exercise[exercise], exercise, asked), name
