"""Memory exams, held here without their limit: right answers in every style, and what they get."""

import inspect
import re

import answers
import pytest
import torch
from test_lab_checks import CHECKS, run_in_place
from test_wrong_answers import DAILY_RIGHT, EXERCISES

from solutions.answers import solved
from tutorial_lib.checks.vocabulary import exam

SHAPE = re.compile(r"^ +(?P<name>\w+): [^\n]*?`\((?P<sizes>\w+(?:, *\w+)*),?\)`", re.MULTILINE)
HELD = {check.exercise: check for check in CHECKS.values() if check.half.exam}
OF = {exercise.number: exercise for exercise in EXERCISES}
FEWEST = 3  # right answers of other students, for each exam


def written(number):
    """List the right answers in the class of other students, as their cells."""
    blocks = answers.read(OF[number].lab)
    return {
        title: cells for one, kind, title, _, cells in blocks if (one, kind) == (number, "right")
    }


def made(exercise, cells):
    """Make an answer from the cells of a student."""
    namespace = dict(vars(solved(exercise.lab)))
    for cell in cells:
        exec(cell, namespace)
    return namespace[exercise.asked]


def sit(number, answer):
    """Hold the exam of an exercise."""
    check, case = HELD[number], exam.draw_case(0)
    check.judge(case, run_in_place(check.half, answer, case))


EACH = [
    pytest.param(number, name, id=f"{number}-{name}", marks=marks)
    for number in HELD
    for place, name in enumerate([*OF[number].right(), *written(number)])
    for marks in [[] if place < DAILY_RIGHT else [pytest.mark.weekly]]
]


@pytest.mark.parametrize(("number", "name"), EACH)
def test_a_right_answer_passes_the_exam(number, name):
    known, students = OF[number].answers, written(number)
    sit(number, known[name] if name in known else made(OF[number], students[name]))


@pytest.mark.parametrize("number", HELD)
def test_an_exam_is_tried_with_answers_in_several_styles(number):
    assert len([*OF[number].right(), *written(number)]) >= FEWEST


def promised(number):
    """Read from a docstring how many sizes each tensor has that is an argument."""
    asked = getattr(solved(OF[number].lab), OF[number].asked)
    arguments = inspect.signature(asked).parameters
    found = {one["name"]: one["sizes"].count(",") + 1 for one in SHAPE.finditer(asked.__doc__)}
    tensors = [name for name, one in arguments.items() if one.annotation is torch.Tensor]
    return {name: found[name] for name in tensors if name in found}


PROMISED = {number: sizes for number in HELD if (sizes := promised(number))}


@pytest.mark.parametrize("number", PROMISED)
def test_an_exam_hands_over_the_shapes_of_the_docstring(number):
    answer = getattr(solved(OF[number].lab), OF[number].asked)
    signature, seen = inspect.signature(answer), []

    def noting(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        seen.append({name: given[name].dim() for name in PROMISED[number]})
        for layer in filter(lambda value: isinstance(value, torch.nn.Linear), given.values()):
            assert layer.weight.shape == (layer.out_features, layer.in_features)
        return answer(*args, **kwargs)

    sit(number, noting)
    assert seen
    assert all(sizes == PROMISED[number] for sizes in seen)
