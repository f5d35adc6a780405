"""The check of 4.5: the smallest budget of a chain."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Any

from tutorial_lib import plan
from tutorial_lib.checks import expect
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab04 import models
from tutorial_lib.plan.simulate import Tree


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    chains = [models.draw_stages(draw, count) for count in (2, 4, 7, 10)]
    return [{"stages": stages} for stages in (_telling(draw), *chains)]


def _telling(draw: random.Random) -> list[dict[str, Any]]:
    """Draw a chain of six stages in which each of the usual faults gives another number."""
    while True:
        stages = models.draw_stages(draw, 6)
        floor = Floor({"stages": stages})
        values = [floor.num_bytes, *(value for _, value in _faults(floor))]
        if len(set(values)) == len(values):
            return stages


class Floor:
    """The smallest budget of a case's chain."""

    def __init__(self, case: Case) -> None:
        self.stages = models.stages_of(case)

    @cached_property
    def num_bytes(self) -> int:
        """The smallest peak of all trees."""
        return plan.floor_bytes(self.stages)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    return {"floor": answer(models.stages_of(case))}


def _judge(case: Case, result: Result, floor: Floor) -> None:
    stages = floor.stages
    where = f"a chain of {len(stages)} stages: "
    expect.number_of_bytes(
        result.get("floor"), floor.num_bytes, f"{where}the smallest budget", _faults(floor)
    )


def _faults(floor: Floor) -> expect.Faults:
    stages = floor.stages
    count, first = len(stages), stages[0].input_bytes

    def peak(tree: Tree) -> int:
        return plan.simulate(stages, tree).peak_bytes

    yield "The chain's own input is missing: it is there all the time.", floor.num_bytes - first
    yield "The chain's own input is in it twice.", floor.num_bytes + first
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
    oracle=Floor,
    forbidden=[models.NO_SOLVER],
)
