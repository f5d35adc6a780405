"""Answers that learners might give, and what each must be told.

A folder for each lab (`lab01`), a file for each exercise (`ex1_3.py` for 1.3). An answer's name
says what it does. Most are the solution with a slip, which is one change of its text, or more:

    counts_elements = wrong("It is the number of elements", "parameter.nbytes", "parameter.numel()")

What is replaced stands in the solution's cell once. Any other answer is a function, or a class,
that could stand in the exercise's cell:

    @wrong("You counted the tied matrix twice")
    def adds_up_module_by_module(model):
        ...

    @right
    def from_the_storages(model):
        ...

The words are a distinctive part of the message: they stand in no other answer's message. Answers
to earlier exercises come from `solved("lab01")`. The blank and the solution are not written here;
`test_wrong_answers` takes them from the lab and its twin, and gives all of them to the check
cells of the built solution. At least four wrong and two right answers an exercise are needed.
`known.py` reads them as answer cells, and `selftest.py` has the grader grade them.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from tutorial_lib.school import authoring

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Change:
    """An answer that is the solution with some parts replaced: old, new, old, new."""

    parts: tuple[str, ...]
    refused_with: str | None


def wrong(message, *parts):
    """Mark, or make by a change, an answer that must be refused with these words."""

    def mark(answer):
        answer.refused_with = message
        return answer

    return Change(parts, message) if parts else mark


def right(answer, *parts):
    """Mark, or make by a change, an answer that must pass."""
    if parts:
        return Change((answer, *parts), None)
    answer.refused_with = None
    return answer


@functools.cache
def solved(lab):
    """Everything that the solution of a lab defines."""
    (path,) = ROOT.glob(f"solutions/{lab}_*.ipynb")
    return authoring.load_definitions(path)
