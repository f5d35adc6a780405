"""The checks of 4.3 and 4.4: the fewest forwards with so many places, and their tree."""

import math
from functools import cache

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.simulate import simulate
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree, leaves

from . import chains, given

_PASSED_4_3 = "the fewest forwards for eight chains, equal to the closed form"
_WHERE = "num_stages={stages}, num_places={places}: ".format_map
_PASSED_4_4 = "five trees with the fewest forwards; each keeps one stage at a time in its places"
_INSIDE = 10**6  # units; a boundary is one


def _cases_4_3(draw: Draw) -> Cases:
    # the second differs from the first: an answer that remembers is run with both
    pairs = [(2, 3), (1, 2), (2, 1), (9, 1), (10, 3), (draw.randint(20, 30), draw.randint(3, 5))]
    pairs += [(draw.randint(100, 160), draw.randint(6, 30)), (6, 12)]  # beyond any table
    yield from ({"stages": stages, "places": places} for stages, places in pairs)


@check(given.fewest_forwards, _PASSED_4_3, _cases_4_3, where=_WHERE)
def fewest_forwards(case: Case, result: Result) -> None:
    stages, places, seen = case["stages"], case["places"], result["forwards"]
    advice = {
        (2, 3): "is every k tried, up to n - 1? With two stages, k is 1.",
        (2, 1): "a single stage needs one forward, even with no place, so test the number of "
        "stages first.",
    }.get(
        (stages, places),
        "try every k from 1 to n - 1, and give the first part all c places: the later part's "
        "places are free by then.",
    )
    is_endless = isinstance(seen, float) and seen == math.inf
    expect.fact(not is_endless, f"your function returned inf: {advice}")
    seen, wanted = read.integer(seen, "the number of forwards"), chains.binomial(stages, places)
    side = "more than are needed" if seen > wanted else "fewer than are possible"
    expect.close(
        seen,
        wanted,
        _faults(stages, places, wanted),
        otherwise=f"{seen} forwards are {side}: try the recursion by hand with 3 stages, where 1 "
        "place needs 6 forwards and 2 places need 5.",
    )


def _faults(stages: int, places: int, wanted: int) -> Faults:
    alone = _by_hand(stages)
    yield from {
        "that is with the input as the only boundary: a boundary in the right place saves runs.": (
            alone
        ),
        "the first runs are missing: every stage runs forward once to begin with.": wanted - stages,
    }.items()
    if places < stages - 1:
        more = chains.binomial(stages, places + 1)
        yield "your way needs one place more: the input always takes one of the places.", more
    if places > 1:
        yield (
            "your way uses one place fewer: the stage that runs needs no place for its own input, "
            "so all places are left for other boundaries.",
            chains.binomial(stages, places - 1),
        )
    yield from {
        "the segment's own part uses only the places that the later part leaves over. When its "
        "turn comes, the later part is done, and its places are free again.": (
            _no_place_comes_back(stages, places)
        ),
        "boundaries are set in the middle each time, but that is not the best place.": (
            _halves(stages, places)
        ),
    }.items()


def _by_hand(stages: int) -> int:
    """Count the forwards where each stage is reached from the input again."""
    return stages * (stages + 1) // 2


@cache
def _no_place_comes_back(n: int, c: int) -> int:
    parts = range(1, n) if c > 1 else ()
    ways = (k + _no_place_comes_back(n - k, c - 1) + _no_place_comes_back(k, c - 1) for k in parts)
    return min(ways, default=_by_hand(n))


def _halves(stages: int, places: int) -> int:
    if stages == 1 or places == 1:
        return _by_hand(stages)
    first = stages // 2
    return first + _halves(stages - first, places - 1) + _halves(first, places)


def _cases_4_4(draw: Draw) -> Cases:
    pairs = [(4, 1), (10, 3), (1, 2), (draw.randint(12, 20), draw.randint(2, 4)), (6, 9)]
    yield from ({"stages": stages, "places": places} for stages, places in pairs)


def held(tree: Tree, num_stages: int) -> tuple[int, int, int]:
    """Count the stages kept at once in a tree, the places that it takes beside, and forwards."""
    stage = Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=_INSIDE)
    simulated = simulate([stage] * num_stages, tree)
    peak = simulated.peak_bytes
    # the gradient, and the input of the stage that goes backward, are in hand
    return peak // _INSIDE, max(1, peak % _INSIDE - 2), sum(simulated.counts)


@check(given.revolve_tree, _PASSED_4_4, _cases_4_4, where=_WHERE)
def revolve_tree(case: Case, result: Result) -> None:
    stages, places = case["stages"], case["places"]
    tree = chains.read_tree(result["tree"], stages)
    kept, taken, runs = held(tree, stages)
    fewest, shown = chains.binomial(stages, places), chains.shown(tree)
    faults = {
        f"no stage runs twice in {shown}: it keeps the insides of all stages at once, but only one "
        "at a time is allowed.": runs == stages > 1,
        f"{kept} stages are kept at the same time in {shown}: a tuple holds one number, its last "
        "item, and everything before it is a segment.": kept > 1,
        f"in {shown} a tuple ends with a tuple, whose stages run once more than necessary: "
        "(segment, *later) puts the later part's items beside it.": _ends_with_segment(tree),
        f"{taken} places are taken at once. The part after a boundary has one place fewer than "
        "the part before it.": taken > places,
        f"{runs} forwards, but {fewest} are enough. {_advice(tree, places)}": runs > fewest,
    }
    expect.no_fault(faults)


def _ends_with_segment(tree: Tree) -> bool:
    segments = [item for item in tree if isinstance(item, tuple)]
    return isinstance(tree[-1], tuple) or any(map(_ends_with_segment, segments))


def _advice(tree: Tree, places: int) -> str:
    first = tree[0]
    size = 0 if isinstance(first, int) else len(list(leaves(first)))
    if not isinstance(first, int) and held(first, size)[1] < min(places, size - 1):
        return "The first segment leaves places empty, but all are free again when its turn comes."
    return "A boundary isn't where 4.3's minimum would put it."
