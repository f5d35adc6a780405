"""The check of 4.6: the fastest tree within a budget."""

import math
from functools import cached_property
from typing import Any

from tutorial_lib.checks.given import CheckError
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect
from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.planning.chain.exact import best_ways
from tutorial_lib.instruments.planning.chain.plan import Plan
from tutorial_lib.instruments.planning.chain.simulate import Simulation, simulate
from tutorial_lib.instruments.planning.chain.solve import floor_bytes, solve

from . import chains, given

_PASSED = "ten trees as fast as the library's solver has them, none over its budget, one refusal"
# Number of stages, and budget: a share of the way from the floor to a step that keeps everything.
_FEW = 6
_BUDGETS = ((3, 0.0), (5, 0.05), (6, 0.3), (9, 0.0), (9, 0.15), (9, 0.5), (8, 1.0))


def _cases(draw: Draw) -> Cases:
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


def _where(case: Case) -> str:
    return f"{len(case['stages'])} stages, {case['budget']} bytes: "


@check(given.fastest_tree, _PASSED, _cases, oracle=Best, where=_where)
def fastest_tree(case: Case, result: Result, best: Best) -> None:
    said = str(result["said"])
    if best.budget < best.floor:
        _judge_refusal(said, best.floor)
        return
    is_smallest = best.budget == best.floor
    enough = ": the budget is the smallest one, and that is enough" if is_smallest else ""
    words = f"your function raised {said[:160]!r}, and there is a tree that fits{enough}."
    expect.fact(not said, words)
    tree = chains.read_tree(result["tree"], len(best.stages))
    simulated = simulate(best.stages, tree)
    if simulated.peak_bytes > best.budget:
        raise CheckError(_over(best, tree, simulated))
    expect.close(
        simulated.seconds,
        best.planned.seconds,
        _slow(best, simulated),
        otherwise=f"{chains.shown(tree)} fits and takes {simulated.seconds:g} seconds, and there "
        "is a faster tree that fits: is every way tried, and is in its extra time what a segment "
        "runs again?",
    )


def _judge_refusal(said: str, floor: int) -> None:
    faults = {
        "a tree came back for a budget that no tree fits into: raise a ValueError. If you do where "
        "`smallest_budget` says so, that answer to 4.5 is too small here.": not said,
        "a ValueError that names the smallest budget in bytes is wanted, to the byte, as 4.5 gives "
        f"it, and this came: {said[:160]!r}": not said.startswith("ValueError")
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
        f"{needs}. The chain's own input is held all the time. After a kept stage there are its "
        "saved bytes less, after a segment the boundary that follows it, and while a stage runs "
        "its own needs must fit."
    )


def _slow(best: Best, simulated: Simulation) -> Faults:
    if simulated.peak_bytes <= best.floor:
        yield (
            "it is the tree with the smallest peak. What the budget leaves is to buy time.",
            solve(best.stages, budget_bytes=best.floor).seconds,
        )
    if len(best.stages) <= _FEW:
        yield (
            "it is the best tree without a segment inside a segment, and one with such a segment "
            "is faster: a segment's inside is a part as well, with the room that is left to it.",
            best.single_seconds(best.budget),
        )
