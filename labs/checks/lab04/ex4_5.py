"""The check of 4.5: the smallest budget of a chain."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.costs import Bytes, Costs
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.simulate import simulate
from tutorial_lib.instruments.planning.chain.solve import floor_bytes
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree

from . import chains, given

_PASSED = "the smallest budgets of six unequal chains, to the byte"


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


def _cases(draw: Draw) -> Cases:
    def values(case: Case) -> Iterator[int]:
        stages = given.stages_of(case)
        yield (floor := floor_bytes(stages))
        yield from (value for _, value in _faults(stages, floor))

    def values_of_keeping(case: Case) -> Iterator[int]:
        stages = given.stages_of(case)
        return iter([floor_bytes(stages), *(value for _, value in _keeping_faults(stages))])

    for told in (values, values_of_keeping):
        yield chains.telling(lambda: {"stages": chains.draw_with_workspace(draw, 6)}, told)
    yield from ({"stages": chains.draw_stages(draw, count)} for count in (2, 4, 7, 10))


def _where(case: Case) -> str:
    return f"a chain of {len(case['stages'])} stages: "


@check(given.smallest_budget, _PASSED, _cases, where=_where)
def smallest_budget(case: Case, result: Result) -> None:
    stages = given.stages_of(case)
    floor = floor_bytes(stages)
    seen = read.integer(result["floor"], "the smallest budget")
    expect.close(
        seen,
        floor,
        itertools.chain(_faults(stages, floor), _keeping_faults(stages)),
        otherwise=f"{seen} bytes are {'more' if seen > floor else 'less'} than is right: try the "
        "recursion by hand with two stages, then with three.",
        where="the smallest budget: ",
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


def _keeping_faults(stages: list[Stage]) -> Faults:
    yield (
        "Keeping is never the best way in your sum where a rest follows: the stage and the rest "
        "come one after the other, so it needs the larger of the two and not both, with "
        "`saved_bytes` beside the rest.",
        stages[0].input_bytes + _KeptAdded(Costs.of(stages, ())).num_bytes,
    )
