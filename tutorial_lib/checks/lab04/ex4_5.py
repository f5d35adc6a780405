"""The check of 4.5: the smallest budget of a chain."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tutorial_lib import plan
from tutorial_lib.checks import expect, read, surroundings
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab04 import models
from tutorial_lib.plan.costs import Bytes, Costs
from tutorial_lib.plan.floor import Floor
from tutorial_lib.plan.simulate import Tree


class _NoLastSplit(Floor):
    """A segment never ends just before the last stage of a part."""

    def _dropped(self, start: int, end: int) -> Bytes:
        return super()._dropped(start, end)[:-1]


class _KeptAdded(Floor):
    """A kept stage's own need and that of the rest are added."""

    def _kept_as(self, way: Costs, start: int, end: int) -> int:
        rest = int(self.by_end[end, start + 1]) if start < end else 0
        return way.kept(start, end) + rest


class _NoBoundary(Floor):
    """The input of a later stage takes nothing while the rest of a part runs."""

    def _dropped(self, start: int, end: int) -> Bytes:
        running = np.maximum.accumulate(self.costs.dropped(start, end, end))
        rest = self.by_end[end, start + 1 : end + 1]
        return np.maximum(np.maximum(running, rest), self.by_start[start, start:end])


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)

    def chain(count: int) -> Case:
        return {"stages": models.draw_stages(draw, count)}

    def with_workspace() -> Case:
        return {"stages": models.draw_with_workspace(draw, 6)}

    def values(case: Case) -> Iterator[int]:
        stages = models.stages_of(case)
        yield (floor := plan.floor_bytes(stages))
        yield from (value for _, value in _faults(stages, floor))

    def values_of_keeping(case: Case) -> Iterator[int]:
        stages = models.stages_of(case)
        return iter([plan.floor_bytes(stages), *(value for _, value in _keeping_faults(stages))])

    telling = [models.telling(with_workspace, told) for told in (values, values_of_keeping)]
    return [*telling, *map(chain, (2, 4, 7, 10))]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    stages = models.stages_of(case)
    floor = answer(stages)
    surroundings.expect_unchanged(stages, models.stages_of(case))
    return {"floor": floor}


def _judge(case: Case, result: Result) -> None:
    stages = models.stages_of(case)
    floor = plan.floor_bytes(stages)
    name = f"a chain of {len(stages)} stages: the smallest budget"
    seen = read.integer(result.get("floor"), name)
    expect.close(
        seen,
        floor,
        itertools.chain(_faults(stages, floor), _keeping_faults(stages)),
        otherwise=f"{seen} bytes are {'more' if seen > floor else 'less'} than is right: try the "
        "recursion by hand with two stages, then with three.",
        tolerance=0,
        where=f"{name}: ",
    )


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
    for words, slip in models.AT_THE_END.items():
        yield words, first + Floor(slip.of(stages, ())).num_bytes
    costs = Costs.of(stages, ())
    floors = {
        "What a kept stage saved is held while the rest runs, and is missing.": (
            Floor(replace(costs, saved=0 * costs.saved))
        ),
        "The input of stage `split` is held while the rest runs, and is missing.": (
            _NoBoundary(costs)
        ),
        "A segment that ends just before a part's last stage is never tried: `split` may be "
        "`end`.": _NoLastSplit(costs),
    }
    yield from ((words, first + floor.num_bytes) for words, floor in floors.items())
    if count <= 7:
        yield (
            "That is the best without a segment inside a segment: what is in a segment is a chain "
            "as well.",
            min(map(peak, models.single_trees(count))),
        )


def _keeping_faults(stages: list[plan.Stage]) -> expect.Faults:
    costs, first = Costs.of(stages, ()), stages[0].input_bytes
    yield (
        "Keeping is never the best way in your sum where a rest follows: the stage and the rest "
        "come one after the other, so it needs the larger of the two and not both, with "
        "`saved_bytes` beside the rest.",
        first + _KeptAdded(costs).num_bytes,
    )


smallest_budget = Check(
    "lab04.smallest_budget",
    "4.5",
    "the smallest budgets of six unequal chains, to the byte",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_SOLVER],
)
