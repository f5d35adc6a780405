"""A new lab's first files: they build, their check passes and refuses, nothing is overwritten."""

import importlib

import pytest

from tutorial_lib import checks
from tutorial_lib.checks import CheckError
from tutorial_lib.school.authoring import AuthoringError, new_lab
from tutorial_lib.school.authoring.frame import Settings
from tutorial_lib.school.authoring.twins import notebooks_of


@pytest.fixture
def written(tmp_path):
    return tmp_path, new_lab(tmp_path, "lab94_plans", ["first", "second"])


def test_the_source_gives_a_lab_and_a_solution(written):
    root, paths = written
    assert paths[0] == root / "solutions/source/lab94_plans.py"
    (root / "course/figures").mkdir(parents=True)
    (root / "course/figures/colab-badge.png").write_text("<svg/>")
    notebooks = notebooks_of(paths[0], root, Settings("owner/name", "v1"))
    lab, solution = (
        "".join(cell.source for cell in notebooks[root / folder / "lab94_plans.ipynb"].cells)
        for folder in ("labs", "solutions")
    )
    assert lab.count("raise NotImplementedError") == 2 == solution.count("return sum(numbers)")


def test_the_check_passes_and_refuses(written, monkeypatch, capsys):
    root, _ = written
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(root / "labs/checks")])
    lab = importlib.import_module("tutorial_lib.checks.lab94")
    lab.second(sum)
    assert capsys.readouterr().out == "94.2 passed: TODO what was shown\n"
    with pytest.raises(CheckError, match="The last number is missing"):
        lab.first(lambda numbers: sum(numbers[:-1]))
    assert lab.case("94.1", 1).args


@pytest.mark.parametrize(
    ("stem", "names", "sentence"),
    [
        ("plans", ["first"], "'plans' is no lab"),
        ("lab95_plans", [], "must be different names of functions"),
        ("lab95_plans", ["first", "first"], "must be different names of functions"),
        ("lab95_plans", ["def"], "must be different names of functions"),
        ("lab94_other", ["first"], "labs/checks/lab94 is there already"),
    ],
)
def test_what_cannot_be_written_is_refused(written, stem, names, sentence):
    root, _ = written
    before = sorted(root.rglob("*"))
    with pytest.raises(AuthoringError, match=sentence):
        new_lab(root, stem, names)
    assert sorted(root.rglob("*")) == before
