"""Findings: what a person is asked to read in an answer."""

import ast
import json

import answers
import pytest
import toy

from solutions.grader.lab import load_lab, read_cells
from solutions.grader.results import Graded
from solutions.grader.submissions.answers import match_answers
from solutions.grader.submissions.inspect_submission import Course, inspect_submission
from solutions.grader.submissions.reader import read_submission
from solutions.grader.submissions.review import findings, imported

# What the set-up of a lab imports.
COURSE = """import os, sys, torch, gc
from torch import nn, Tensor
from tutorial_lib import checks, memory"""
# A line that is found, and how what is said of it begins.
LINES = list(answers.read("../lines"))
TRICKS = [(cells[0], words) for _, kind, words, _, cells in LINES if kind == "trick"]
TRICKS += [
    (f"TABLE = '{' '.join(map(str, range(70)))}'", "a constant of"),
    (f"TABLE = {[*range(70)]}", "a table of 70 values"),
]
HONEST = [cells[0] for _, kind, _, _, cells in LINES if kind == "honest"]
HONEST.append(f"log = {'step 1: loss 3.200, 12 MiB; ' * 12!r}; print(log)")


def seen(source, allowed=()):
    tree, course = ast.parse(source), imported(ast.parse(COURSE))
    allowed = {"torch", "torch.nn", "torch.Tensor", "tutorial_lib.memory.measure", *allowed}
    return [one.what for one in findings(tree, {**course, **imported(tree)}, allowed)]


@pytest.mark.parametrize(("source", "words"), TRICKS)
def test_a_trick_is_found(source, words):
    assert any(what.startswith(words) for what in seen(source)), seen(source)


@pytest.mark.parametrize("source", HONEST)
def test_an_everyday_line_is_none(source):
    assert seen(source) == []


@pytest.mark.parametrize(
    "line",
    [
        "def f():\n    def g(): torch = 1\n    return h(torch)",
        "def f():\n    [torch for torch in x]\n    return h(torch)",
        "def f():\n    torch = 1\n    def g():\n        global torch\n        return h(torch)",
        "alias = torch\ndef f():\n    torch = alias\n    return h(torch)",
        "def g():\n    torch = 1\ndef f(): return h(torch)",
    ],
)
def test_a_module_is_seen_where_another_scope_has_its_name(line):
    assert "hands on torch" in seen(line)


def looked(lab, notebook):
    answers = inspect_submission(Course(lab), match_answers(lab, read_cells(notebook)))
    return Graded("", "graded", notes=answers.notes).with_findings(lab, answers)


def test_the_student_is_not_told_what_was_noticed(lab):
    result = looked(lab, toy.submission(a11=f"import ctypes\nctypes.CDLL\n{toy.AREA}"))
    assert list(result.findings) == ["1.1"]
    (line,) = result.findings["1.1"]
    assert line == "line 3: ctypes.CDLL is outside what the lab and its solution use."
    assert result.notes == []


def test_cells_of_the_students_own_are_looked_at_too(lab):
    notebook = toy.submission(a21=f"helper()\n{toy.CUBE}")
    own = "def helper(): return eval('1')\nexec('print(1)')"
    notebook["cells"].insert(7, toy.code("mine", own))
    said = " ".join(looked(lab, notebook).findings["2.1"])
    assert "eval runs text" in said
    assert "exec runs text" in said
    files = toy.submission(a11=f"import helpers\nhelpers.f()\n{toy.AREA}")
    files["cells"].insert(2, toy.code("mine", "%%writefile helpers.py\nimport ctypes\nctypes.x"))
    assert "ctypes.x is outside" in looked(lab, files).findings["1.1"][0]
    files["cells"][2] = toy.code("mine", "%run helpers.py\nhelpers = 1")
    assert "%run runs a file that no cell shows" in looked(lab, files).findings["1.1"][1]


def test_a_changed_constant_of_the_course_is_noted_where_an_answer_uses_it(lab):
    notebook = toy.full()
    for change, said in (("FACTOR = 3", True), ("FACTOR  =  2 # same", False), ("seen = 1", False)):
        notebook["cells"][1]["source"] = f"import sys\nimport torch, math\n{change}"
        notes = looked(lab, notebook).notes
        assert ["FACTOR was changed in a cell of the course" in note for note in notes] == [
            True
        ] * said


@pytest.mark.parametrize("text", ["(" * 40_000, "-" * 40_000 + "1", "a" + ".a" * 20_000, "f(" * 90])
def test_what_cannot_be_parsed_is_a_finding_where_it_earns_points(lab, text):
    answers = read_submission(lab, json.dumps(toy.submission(a11=f"x = {text}")).encode())
    assert Graded("", "graded").with_findings(lab, answers).findings == {}
    earned = {check.id: PASSED for check in lab.checks}
    result = Graded("", "graded", earned).with_findings(lab, answers)
    assert list(result.findings) in (["1.1"], ["1.1", "1.2", "2.1"])
    assert "not Python" in result.findings["1.1"][0]


class PASSED:
    passed = True


@pytest.mark.parametrize("name", answers.LABS)
def test_neither_a_solution_nor_a_blank_is_named(root, name):
    lab = load_lab(root, name)
    for folder in ("labs", "solutions"):
        text = (root / folder / lab.path.name).read_text(encoding="utf-8")
        result = looked(lab, json.loads(text))
        assert result.findings == {}
        assert result.notes == []


@pytest.mark.weekly
def test_tricks_are_named_and_honest_answers_are_not(root):
    """Of `review.txt`, and of all right answers: four tricks of five, and one answer of fifty."""
    named = {"trick": [], "right": []}
    labs = {name: load_lab(root, name) for name in answers.LABS}
    for name in ("../review", *answers.LABS):
        for number, kind, title, _, cells in answers.read(name):
            if kind in named:
                lab = labs[f"lab{int(number.partition('.')[0]):02}"]
                handed_in = json.loads(answers.submission(lab, number, cells))
                found = looked(lab, handed_in).findings.get(number)
                named[kind].append("" if found is None else f"{number} {title}: {found}")
    shares = {kind: sum(map(bool, some)) / len(some) for kind, some in named.items()}
    assert shares["trick"] >= 0.8
    assert shares["right"] <= 0.02, [one for one in named["right"] if one]
