"""The checks of 4.5 and 4.6: the smallest budget, and the fastest tree within one."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tutorial_lib.checks.given import CheckError
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.costs import Bytes, Costs
from tutorial_lib.instruments.planning.chain.exact import best_ways
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.simulate import Simulation, simulate
from tutorial_lib.instruments.planning.chain.solve import floor_bytes, solve
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree

from . import chains, given

_PASSED_4_5 = "the exact smallest budgets of six unequal chains"
_PASSED_4_6 = "ten trees as fast as the library's, none over budget; refuses an impossible budget"
# Number of stages, and budget: a share of the way from the floor to a step that keeps everything.
_FEW = 6
_BUDGETS = ((3, 0.0), (5, 0.05), (6, 0.3), (9, 0.0), (9, 0.15), (9, 0.5), (8, 1.0))


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


def _cases_4_5(draw: Draw) -> Cases:
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


def _where_4_5(case: Case) -> str:
    return f"a chain of {len(case['stages'])} stages: "


@check(given.smallest_budget, _PASSED_4_5, _cases_4_5, where=_where_4_5)
def smallest_budget(case: Case, result: Result) -> None:
    stages = given.stages_of(case)
    floor = floor_bytes(stages)
    seen = read.integer(result["floor"], "the smallest budget")
    expect.close(
        seen,
        floor,
        itertools.chain(_faults(stages, floor), _keeping_faults(stages)),
        otherwise=f"{seen} bytes are too {'many' if seen > floor else 'few'}: try the "
        "recursion by hand with two stages, then with three.",
    )


def _faults(stages: list[Stage], floor: int) -> Faults:
    count, first = len(stages), stages[0].input_bytes

    def peak(tree: Tree) -> int:
        return simulate(stages, tree).peak_bytes

    costs, halves = Costs.of(stages, ()), (tuple(range(count // 2)), *range(count // 2, count))
    yield from {
        "the chain's own input is missing: it is there all the time.": floor - first,
        "you counted the chain's own input twice.": floor + first,
        "that is the peak of a step that keeps everything.": peak(tuple(range(count))),
        "that is a checkpoint around each stage: a longer segment may drop boundaries too.": peak(
            chains.in_segments(count, 1)
        ),
        "that is one segment, the first half: try every way to split, in every part.": peak(halves),
    }.items()
    floors = {words: Floor(slip.of(stages, ())) for words, slip in chains.AT_THE_END.items()}
    floors |= {
        "what a kept stage saved is missing: it's held while the rest runs.": (
            Floor(replace(costs, saved=0 * costs.saved))
        ),
        "the input of stage `split` is missing: it's held while the rest runs.": (
            _NoBoundary(costs)
        ),
        "a segment that ends just before a part's last stage is never tried: `split` may be "
        "`end`.": _NoLastSplit(costs),
    }
    yield from ((words, first + floor.num_bytes) for words, floor in floors.items())
    if count <= 7:
        yield (
            "that is the best without a segment inside a segment: a segment is a chain as well.",
            min(map(peak, chains.single_trees(count))),
        )


def _keeping_faults(stages: list[Stage]) -> Faults:
    yield (
        "your sum makes keeping too expensive where a rest follows: the stage and the rest run in "
        "turn, so take the larger of their needs, after adding `saved_bytes` to the rest's.",
        stages[0].input_bytes + _KeptAdded(Costs.of(stages, ())).num_bytes,
    )


def _cases_4_6(draw: Draw) -> Cases:
    yield _nested(draw)
    cases = []
    for count, share in _BUDGETS:
        case = {"stages": chains.draw_stages(draw, count), "budget": 0}
        best = Best(case)
        most = simulate(best.stages, tuple(range(count))).peak_bytes
        cases.append({**case, "budget": best.floor + int(share * (most - best.floor))})
    yield from cases
    yield from (_slippery(draw, slip) for slip in chains.AT_THE_END.values())
    yield _in_kilobytes(cases[0])


def _in_kilobytes(case: Case) -> Case:
    """Scale up a case at its floor, so that a floor rounded to kilobytes isn't its floor."""
    by = 4099
    stages = [
        {name: value * by if name.endswith("_bytes") else value for name, value in stage.items()}
        for stage in case["stages"]
    ]
    return {"stages": stages, "budget": case["budget"] * by - 1}


def _slippery(draw: Draw, slip: type[Costs]) -> Case:
    """Draw a chain and a budget that a search with this slip goes over."""
    while True:
        case = {"stages": chains.draw_with_workspace(draw, _FEW), "budget": 0}
        best = Best(case)
        for needs, *_ in best_ways(slip.of(best.stages, ())):
            budget = best.stages[0].input_bytes + int(needs)
            if budget >= best.floor and best.slipped(slip, budget).peak_bytes > budget:
                return {**case, "budget": budget}


def _nested(draw: Draw) -> Case:
    """Draw a chain and a budget that is best used by a segment inside a segment."""
    while True:
        case = {"stages": chains.draw_stages(draw, _FEW), "budget": 0}
        best = Best(case)
        for budget in sorted({peak for peak, _ in best.single}):
            fastest = solve(best.stages, budget_bytes=budget)
            if fastest.seconds < best.single_seconds(budget):
                return {**case, "budget": budget}


class Best:
    """The best plan of a case."""

    def __init__(self, case: Case) -> None:
        self.stages, self.budget = given.stages_of(case), case["budget"]

    @cached_property
    def floor(self) -> int:
        """The smallest budget."""
        return floor_bytes(self.stages)

    @cached_property
    def planned(self) -> Plan:
        """The fastest one within the budget."""
        return solve(self.stages, budget_bytes=self.budget)

    def slipped(self, slip: type[Costs], budget: int) -> Simulation:
        """Simulate the tree of a search with a slip."""
        room = budget - self.stages[0].input_bytes
        trees = [found for found in best_ways(slip.of(self.stages, ())) if found[0] <= room]
        return simulate(self.stages, min(trees, key=lambda found: found[1])[2])

    @cached_property
    def single(self) -> list[tuple[int, float]]:
        """Peak and seconds of all trees without a segment in a segment."""
        trees = chains.single_trees(len(self.stages))
        runs = [simulate(self.stages, tree) for tree in trees]
        return [(run.peak_bytes, run.seconds) for run in runs]

    def single_seconds(self, budget: int) -> float:
        """Return the least seconds of those trees within a budget."""
        fitting = [seconds for peak, seconds in self.single if peak <= budget]
        return min(fitting, default=math.inf)


def _where_4_6(case: Case) -> str:
    return f"{len(case['stages'])} stages, {case['budget']} bytes: "


@check(given.fastest_tree, _PASSED_4_6, _cases_4_6, oracle=Best, where=_where_4_6)
def fastest_tree(case: Case, result: Result, best: Best) -> None:
    said = str(result["said"])
    if best.budget < best.floor:
        _judge_refusal(said, best.floor)
        return
    is_smallest = best.budget == best.floor
    enough = ": the budget is exactly the smallest one, which is enough" if is_smallest else ""
    words = f"your function raised {said[:150].strip(': ')}, but there is a tree that fits{enough}."
    expect.fact(not said, words)
    tree = chains.read_tree(result["tree"], len(best.stages))
    simulated = simulate(best.stages, tree)
    if simulated.peak_bytes > best.budget:
        raise CheckError(_over(best, tree, simulated))
    expect.close(
        simulated.seconds,
        best.planned.seconds,
        _slow(best, simulated),
        otherwise=f"{chains.shown(tree)} fits and takes {simulated.seconds:g} seconds, but there "
        "is a faster tree that fits: is every way tried, and does its extra time include what a "
        "segment runs again?",
    )


def _judge_refusal(said: str, floor: int) -> None:
    faults = {
        "a tree came back for a budget that no tree fits into: raise a ValueError. If you compare "
        "the budget with `smallest_budget`, your answer to 4.5 is too small here.": not said,
        "raise a ValueError that names the smallest budget in bytes, exactly as 4.5 returns it, "
        f"but this came: {said[:160]!r}": not said.startswith("ValueError")
        or floor not in expect.numbers_named(said),
    }
    expect.no_fault(faults)


def _over(best: Best, tree: Any, simulated: Simulation) -> str:
    over = simulated.peak_bytes - best.budget
    needs = f"{chains.shown(tree)} needs {over} bytes more than the budget"
    for words, slip in chains.AT_THE_END.items():
        if len(best.stages) == _FEW and best.slipped(slip, best.budget) == simulated:
            return f"{needs}: {words}"
    if simulated.counts == (1,) * len(best.stages):
        return f"{needs}. It keeps everything."
    return (
        f"{needs}. The chain's own input is held all the time. While the rest runs, a kept stage "
        "holds its saved bytes, and a segment the boundary after it. And while a stage runs, its "
        "own needs must fit."
    )


def _slow(best: Best, simulated: Simulation) -> Faults:
    if simulated.peak_bytes <= best.floor:
        yield (
            "it is the tree with the smallest peak. Use the rest of the budget to save time.",
            solve(best.stages, budget_bytes=best.floor).seconds,
        )
    if len(best.stages) <= _FEW:
        yield (
            "it is the best tree without a segment inside a segment, but one with such a segment "
            "is faster: the inside of a segment is a part too, with what is left of the budget.",
            best.single_seconds(best.budget),
        )
