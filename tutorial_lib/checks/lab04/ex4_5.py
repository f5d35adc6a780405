"""The check of 4.5: the smallest budget of a chain."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tutorial_lib.checks.lab04 import chains, given
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Faults, Result, value
from tutorial_lib.instruments.planning.chain.costs import Bytes, Costs
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.simulate import simulate
from tutorial_lib.instruments.planning.chain.solve import floor_bytes
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree


class _NoLastSplit(Floor):
    """A segment never ends just before the last stage of a part."""

    def _dropped(self, start: int, end: int) -> Bytes:
        return super()._dropped(start, end)[:-1]


class _NoBoundary(Floor):
    """The input of a later stage takes nothing while the rest of a part runs."""

    def _dropped(self, start: int, end: int) -> Bytes:
        running = np.maximum.accumulate(self.costs.dropped(start, end, end))
        rest = self.by_end[end, start + 1 : end + 1]
        return np.maximum(np.maximum(running, rest), self.by_start[start, start:end])


def _cases(draw: Draw) -> Cases:
    def values(case: Case) -> Iterator[int]:
        stages = given.stages_of(case)
        yield (floor := floor_bytes(stages))
        yield from (value for _, value in _faults(stages, floor))

    yield chains.telling(lambda: {"stages": chains.draw_with_workspace(draw, 6)}, values)
    yield from ({"stages": chains.draw_stages(draw, count)} for count in (2, 4, 6, 7, 10))


def _judge(case: Case, result: Result) -> None:
    stages = given.stages_of(case)
    floor = floor_bytes(stages)
    value(
        result["floor"],
        floor,
        _faults(stages, floor),
        name=f"a chain of {len(stages)} stages: the smallest budget",
        otherwise=lambda seen: (
            f"{seen} bytes are {'more' if seen > floor else 'less'} than is right: try the "
            "recursion by hand with two stages, then with three."
        ),
    )


def _faults(stages: list[Stage], floor: int) -> Faults:
    count, first = len(stages), stages[0].input_bytes

    def peak(tree: Tree) -> int:
        return simulate(stages, tree).peak_bytes

    costs, halves = Costs.of(stages, ()), (tuple(range(count // 2)), *range(count // 2, count))
    yield from {
        "The chain's own input is missing: it is there all the time.": floor - first,
        "The chain's own input is in it twice.": floor + first,
        "That is the peak of a step that keeps everything.": peak(tuple(range(count))),
        "That is a checkpoint around each stage: a boundary may be dropped too, inside a longer "
        "segment.": peak(chains.in_segments(count, 1)),
        "That is one segment, the first half: try every way to split, in every part.": peak(halves),
    }.items()
    floors = {words: Floor(slip.of(stages, ())) for words, slip in chains.AT_THE_END.items()}
    floors |= {
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
            min(map(peak, chains.single_trees(count))),
        )


smallest_budget = Exercise(
    run=given.smallest_budget,
    passed="the smallest budgets of six unequal chains, to the byte",
    cases=_cases,
    judge=_judge,
)
