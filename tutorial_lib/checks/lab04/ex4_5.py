"""The check of 4.5: the smallest budget of a chain."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from tutorial_lib import plan
from tutorial_lib.checks import expect
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab04 import models
from tutorial_lib.plan.simulate import Tree


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)

    def chain(count: int) -> Case:
        return {"stages": models.draw_stages(draw, count)}

    def values(case: Case) -> Iterator[int]:
        floor = plan.floor_bytes(models.stages_of(case))
        return iter([floor, *(value for _, value in _faults(models.stages_of(case), floor))])

    return [models.telling(lambda: chain(6), values), *map(chain, (2, 4, 7, 10))]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    return {"floor": answer(models.stages_of(case))}


def _judge(case: Case, result: Result) -> None:
    stages = models.stages_of(case)
    floor = plan.floor_bytes(stages)
    name = f"a chain of {len(stages)} stages: the smallest budget"
    expect.number_of_bytes(result.get("floor"), floor, name, _faults(stages, floor))


def _faults(stages: list[plan.Stage], floor: int) -> expect.Faults:
    count, first = len(stages), stages[0].input_bytes

    def peak(tree: Tree) -> int:
        return plan.simulate(stages, tree).peak_bytes

    yield "The chain's own input is missing: it is there all the time.", floor - first
    yield "The chain's own input is in it twice.", floor + first
    yield "That is the peak of a step that keeps everything.", peak(tuple(range(count)))
    yield (
        "That is a checkpoint around each stage: a boundary may be dropped too, inside a longer "
        "segment.",
        peak(models.in_segments(count, 1)),
    )
    halves: Tree = (tuple(range(count // 2)), *range(count // 2, count))
    yield (
        "That is one segment, the first half: try every way to split, in every part.",
        peak(halves),
    )
    if count <= 7:
        yield (
            "That is the best without a segment inside a segment: what is in a segment is a chain "
            "as well.",
            min(map(peak, models.single_trees(count))),
        )


smallest_budget = Check(
    "lab04.smallest_budget",
    "4.5",
    "the smallest budgets of five unequal chains, to the byte",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_SOLVER],
)
