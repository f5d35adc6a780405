"""Find the fastest plan that fits a budget."""

from collections.abc import Sequence

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.planning.chain.exact import best_ways
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.nested import best_nested
from tutorial_lib.instruments.planning.chain.plan import Evaluate, Plan
from tutorial_lib.instruments.planning.chain.profiled import Call, Profile
from tutorial_lib.instruments.planning.chain.single import best_single
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage, check_chain
from tutorial_lib.units import human_bytes

# Up to so many stages all plans are compared, to the byte.
SHORT = 10
# Up to so many, nested segments are tried too where a single recomputation fits already.
MIDDLE = 64
# Rounding up takes half a slot a stage: a hundredth of the budget, whatever the length.
SINGLE_SLOTS, SLOTS_A_STAGE = 20_000, 25


def solve(
    stages: Sequence[Stage] | Profile, *, budget_bytes: int, skips: Sequence[Skip] = ()
) -> Plan:
    """Find the fastest plan whose peak fits a budget.

    Up to ten stages the plan is the optimum, to the byte, among all nestings of segments. For
    longer chains bytes are rounded: to some ten thousandths of the budget where every stage is
    recomputed at most once, and to 500ths with nested segments, which are tried where the former
    does not fit, and up to 64 stages everywhere. The plan's own peak is always exact and within
    the budget. Unchecked is how far from the optimum a plan for a longer chain is; its peak is
    near the budget where more bytes would buy time.

    Args:
        stages: The chain, first to last; or a profile, which knows skips and names too.
        budget_bytes: For all that the chain holds: inputs, saved bytes, gradients of activations
            and temporaries. Parameters, their gradients and optimizer states come on top.
        skips: What jumps over stages.

    Raises:
        ValueError: When no plan fits; the message names the smallest budget.

    Source:
        The recursion of Beaumont et al. (2019), Optimal checkpointing for heterogeneous chains.
    """
    budget = int(budget_bytes)
    stages, skips, evaluate = taken(stages, skips, budget)
    costs = Costs.of(stages, skips)
    whole = evaluate(tuple(range(len(stages))))
    found = [whole] if whole.peak_bytes <= budget else []
    if len(stages) <= SHORT:
        fitting = [w for w in best_ways(costs) if w.needs <= budget - stages[0].input_bytes]
        found += [evaluate(fitting[-1].tree)] if fitting else []
    elif not found:
        found = _long(costs, budget, evaluate)
    if not found:
        found = [_frugal(costs, budget, evaluate)]
    return min(found, key=lambda plan: (plan.seconds, plan.peak_bytes))


def floor_bytes(stages: Sequence[Stage] | Profile) -> int:
    """Smallest budget that any plan of a chain, or of a profile, fits into."""
    return smallest(stages).peak_bytes


def smallest(stages: Sequence[Stage] | Profile) -> Plan:
    """Return a plan for that budget, however much it recomputes; it ignores the stages' times."""
    stages, skips, evaluate = taken(stages, (), None)
    return _least(Costs.of(stages, skips), evaluate)


def taken(
    stages: Sequence[Stage] | Profile, skips: Sequence[Skip], budget: int | None
) -> tuple[Sequence[Stage], Sequence[Skip], Evaluate]:
    """Return a chain or a profile as stages and skips, and what makes a plan of a tree."""
    names: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    if isinstance(stages, Profile):
        profile = stages
        stages, skips, names, calls = profile.stages, profile.skips, profile.names, profile.calls
    check_chain(stages, skips)
    chain = tuple(stages)
    return chain, skips, lambda tree: Plan(chain, tree, tuple(skips), names, budget, calls)


def _long(costs: Costs, budget: int, evaluate: Evaluate) -> list[Plan]:
    """Try a single recomputation, and nested ones where they can be needed."""
    spare = budget - int(costs.boundary[0])  # the chain's input
    if spare < 1:
        return []
    slots = max(SINGLE_SLOTS, SLOTS_A_STAGE * len(costs))
    single = best_single(costs, spare, slots)
    found = [evaluate(single)] if single is not None else []
    found = [plan for plan in found if plan.peak_bytes <= budget]
    if not found or len(costs) <= MIDDLE:
        nested = best_nested(costs, budget, evaluate)
        found += [nested] if nested else []
    return found


def _least(costs: Costs, evaluate: Evaluate) -> Plan:
    """Plan with the smallest peak."""
    frugal = evaluate(Floor(costs).tree())
    whole = evaluate(tuple(range(len(costs))))  # with no taker recomputed, less than costs say
    return whole if whole.peak_bytes < frugal.peak_bytes else frugal


def _frugal(costs: Costs, budget: int, evaluate: Evaluate) -> Plan:
    """Plan with the smallest peak; refused where even that does not fit."""
    frugal = _least(costs, evaluate)
    if frugal.peak_bytes > budget:
        raise ValueError(
            f"budget_bytes (={budget}, {human_bytes(budget)}) is below the floor: no plan for "
            f"these {len(costs)} stages needs less than {frugal.peak_bytes} bytes "
            f"({human_bytes(frugal.peak_bytes, up=True)}). Try that, a smaller micro-batch, or "
            "finer stages."
        )
    return frugal
