"""Answers that learners might give, and what each must be told.

A folder for each lab (`lab01`), a file for each exercise (`ex1_3.py` for 1.3). An answer is a
function, or a class, that could stand in the exercise's cell; its name says what it does:

    @wrong("The tied matrix is in it twice")
    def adds_up_module_by_module(model):
        ...

    @right
    def from_the_storages(model):
        ...

The words are a distinctive part of the message: they stand in no other answer's message. Answers
to earlier exercises come from `solved("lab01")`. The blank and the solution are not written here;
`test_wrong_answers` takes them from the lab and its twin, and gives all of them to the check
cells of the built solution. At least four wrong and two right answers an exercise are needed.
"""

import functools
from pathlib import Path

from tutorial_lib.school import authoring

ROOT = Path(__file__).resolve().parents[2]


def wrong(message):
    """Mark an answer that must be refused with a message that holds these words."""

    def mark(answer):
        answer.refused_with = message
        return answer

    return mark


def right(answer):
    """Mark an answer that must pass."""
    answer.refused_with = None
    return answer


@functools.cache
def solved(lab):
    """Everything that the solution of a lab defines."""
    (path,) = ROOT.glob(f"solutions/{lab}_*.ipynb")
    return authoring.load_definitions(path)
