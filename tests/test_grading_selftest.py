"""Known answers as answer cells, the example class, and the self-test of a lab."""

import json

import pytest
import toy

from solutions.answers.known import known_answers, write_example
from solutions.answers.selftest import Case, only, selftest
from solutions.grader import GradingError
from solutions.grader.lab import load_lab
from solutions.grader.results import Graded, Verdict
from solutions.grader.submissions.answers import Answers

KNOWN = (toy.HERE / "known.txt").read_text(encoding="utf-8")


@pytest.fixture
def course(tmp_path):
    root = toy.make_course(tmp_path / "course")
    folder = root / "solutions" / "answers" / "lab90"
    folder.mkdir(parents=True)
    (folder / "ex1_1.py").write_text(KNOWN)
    return root


def test_a_known_answer_brings_what_it_needs_and_no_mark(course):
    found = {one.name: one for one in known_answers(course, load_lab(course, "lab90"))}
    assert {name: one.refused_with for name, one in found.items()} == {
        "adds": "which is off by",
        "turned_round": None,
        "product": None,
    }
    for one in found.values():
        assert one.cell.startswith("# exercise 1.1\n")
        names = {}
        exec(one.cell, names)
        assert names["area"](3, 4) == (7 if one.name == "adds" else 12)
        assert "wrong" not in one.cell
        assert ("plus" in one.cell) == (one.name == "adds")


def test_the_example_is_a_class_of_every_kind_and_the_same_each_time(course, tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        assert write_example("lab90", folder, root=course, num_students=12) == 12
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.ipynb")}
        for folder in folders
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 12
    broken = [text for text in contents[0].values() if not text.endswith(b"}")]
    assert len(broken) == 1
    with pytest.raises(GradingError, match="is not empty"):
        write_example("lab90", folders[0], root=course)


@pytest.mark.parametrize(
    ("kind", "passed", "said", "fault"),
    [
        ("solution", True, "", ""),
        ("solution", False, "is 3", "0 of 2 points, and 2 are right. is 3"),
        ("blank", True, "", "2 of 2 points, and 0 are right."),
        ("right", False, "no", "0 of 2 points"),
        ("wrong", True, "", "2 of 2 points"),
        ("wrong", False, "off by one", ""),
        ("wrong", False, "another thing", "the message lacks 'off by'"),
        ("wrong", False, "off by one, or twice", "that of another answer ('twice')"),
    ],
)
def test_a_fault_is_what_a_known_answer_should_not_get(course, kind, passed, said, fault):
    lab = only(load_lab(course, "lab90"), "1.1")
    words = ["off by", "twice"] if kind == "wrong" else []
    graded = Graded("", "graded", {"check-1-1": Verdict(passed, said)})
    found = Case("1.1", kind, "", Answers(), words).fault(lab, graded)
    assert found.startswith(fault) if fault.startswith("0") else fault in found
    assert bool(found) == bool(fault)


@pytest.mark.weekly
def test_a_lab_is_graded_with_all_that_is_known(course):
    options = {"checks_package": "toychecks", "import_path": [toy.HERE], "workers": 2}
    table, faults = selftest("lab90", root=course, **options)
    assert faults == []
    assert dict(table.loc["1.1"]) == {
        "solution": "1 of 1",
        "blank": "1 of 1",
        "wrong": "1 of 1",
        "right": "2 of 2",
    }
    file = course / "solutions" / "answers" / "lab90" / "ex1_1.py"
    file.write_text(KNOWN.replace("off by", "of another kind"))
    assert json.dumps(selftest("lab90", root=course, **options)[1]).count("lacks") == 1
