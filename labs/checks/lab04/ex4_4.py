"""The check of 4.4: the tree with the fewest forwards."""

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect
from tutorial_lib.instruments.planning.chain.simulate import simulate
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.segments.tree import Tree, leaves

from . import chains, given

_PASSED = "five trees with the fewest forwards, one stage kept at a time, no place too many"
_INSIDE = 10**6  # units; a boundary is one


def _cases(draw: Draw) -> Cases:
    pairs = [(4, 1), (10, 3), (1, 2), (draw.randint(12, 20), draw.randint(2, 4)), (6, 9)]
    yield from ({"stages": stages, "places": places} for stages, places in pairs)


def held(tree: Tree, num_stages: int) -> tuple[int, int, int]:
    """Count the stages kept at once in a tree, the places that it takes beside, and forwards."""
    stage = Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=_INSIDE)
    simulated = simulate([stage] * num_stages, tree)
    peak = simulated.peak_bytes
    # the gradient, and the input of the stage that goes backward, are in hand
    return peak // _INSIDE, max(1, peak % _INSIDE - 2), sum(simulated.counts)


@check(given.revolve_tree, _PASSED, _cases, where=chains.where)
def revolve_tree(case: Case, result: Result) -> None:
    stages, places = case["stages"], case["places"]
    tree = chains.read_tree(result["tree"], stages)
    kept, taken, runs = held(tree, stages)
    fewest, shown = chains.binomial(stages, places), chains.shown(tree)
    faults = {
        f"no stage runs twice in {shown}: the insides of all stages are held at once, and one at a "
        "time is allowed.": runs == stages > 1,
        f"{kept} stages are kept side by side in {shown}: a tuple holds one number, its last item, "
        "and everything before it is a segment.": kept > 1,
        f"in {shown} a tuple ends with a tuple, whose stages run once more than they need: "
        "(segment, *later) puts the later part's items beside the segment.": (
            _ends_with_segment(tree)
        ),
        f"{taken} places are taken at once. What lies after a boundary has one place fewer than "
        "what lies before it.": taken > places,
        f"{runs} forwards, and {fewest} are enough. {_advice(tree, places)}": runs > fewest,
    }
    expect.no_fault(faults)


def _ends_with_segment(tree: Tree) -> bool:
    segments = [item for item in tree if isinstance(item, tuple)]
    return isinstance(tree[-1], tuple) or any(map(_ends_with_segment, segments))


def _advice(tree: Tree, places: int) -> str:
    first = tree[0]
    size = 0 if isinstance(first, int) else len(list(leaves(first)))
    if not isinstance(first, int) and held(first, size)[1] < min(places, size - 1):
        return "The first segment leaves places empty, and all are free again when its turn comes."
    return "A boundary stands in another place than 4.3's minimum would put it."
