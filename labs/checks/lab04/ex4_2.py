"""The check of 4.2: a tree run on real layers with PyTorch's checkpoint."""

import itertools

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.simulate import simulate
from tutorial_lib.instruments.segments.tree import leaves

from . import chains, given

_PASSED = "four trees: gradients to the bit, runs as planned, peaks within 3 % of the plan"
_TOLERANCE = 0.03
_TREES = (
    [0, 1, 2, 3, 4, 5, 6, 7],
    [[0, 1, 2], [3, 4], 5, 6, 7],
    [[[0], 1, 2], 3, [[4, 5], 6], 7],
    [[[[0], 1], 2], [3], [4, 5, 6], 7],
)


def _cases(draw: Draw) -> Cases:
    middles = sorted((draw.choice([128, 160, 192, 224]) for _ in range(8)), reverse=True)
    case = {"seed": draw.randrange(10**6), "width": 16, "middles": middles}
    case["rows"] = draw.choice([448, 512])
    yield from ({**case, "tree": tree} for tree in _TREES)


class Planned:
    """The outcome of a case's tree: gradients of the plain layers, counts and peak on paper."""

    def __init__(self, case: Case) -> None:
        layers, rows = given.make_layers(case), given.make_rows(case)
        self.tree = given.tree_of(case["tree"])
        loss = layers(rows)
        loss.backward()
        self.loss, self.gradients = loss.item(), observe.gradients_of(layers)
        stages = chains.chain_of(given.make_layers(case), rows)
        self.simulation = simulate(stages, self.tree)
        parts = ([(n,) for n in leaves((i,))] if isinstance(i, tuple) else [i] for i in self.tree)
        self.each_alone = simulate(stages, tuple(itertools.chain(*parts)))


def _where(case: Case) -> str:
    return f"tree {chains.shown(given.tree_of(case['tree']))}: "


@check(given.run_tree, _PASSED, _cases, oracle=Planned, where=_where)
def run_tree(case: Case, result: Result, planned: Planned) -> None:
    said, wanted = str(result.get("said", "")), planned.gradients
    loss = read.number(result["loss"], "the result")
    gradients = read.tensors(result["gradients"], len(wanted), "gradients")
    is_missing = [gradient is None for gradient in gradients]
    faults = {
        f"backward raised {said[:160]!r}. A segment must run again what it ran first: does a "
        "lambda in the loop look up a name that has moved on by then?": bool(said),
        "the result is not what the layers give one after the other.": loss != planned.loss,
        "no gradient came: does the result have a graph?": all(is_missing),
        "some layers got no gradient. A batch needs none itself, and a reentrant checkpoint then "
        "cuts the graph: use_reentrant=False.": any(is_missing),
    }
    expect.no_fault(faults)
    _expect_counts(result, planned)
    expect.fact(
        all(map(expect.same_bits, gradients, wanted)),
        "the runs are right, and gradients differ from those without checkpoints. The layers have "
        "dropout: does a segment draw the same random numbers again?",
    )
    seen, peak = read.integer(result["peak"], "the peak"), planned.simulation.peak_bytes
    advice = "what still holds tensors?" if seen > peak else "what is kept outside of tensors?"
    each_alone = (
        "that is the peak of a checkpoint around each layer of a tuple: one checkpoint goes around "
        "the whole tuple."
    )
    expect.close(
        seen,
        peak,
        [(each_alone, planned.each_alone.peak_bytes)],
        otherwise=f"gradients and runs are right, and the peak is off by {seen / peak - 1:+.0%} of "
        f"the planned one, where {_TOLERANCE:.0%} is allowed: {advice}",
        tolerance=_TOLERANCE,
    )


def _expect_counts(result: Result, planned: Planned) -> None:
    wanted = list(planned.simulation.counts)
    runs = read.integers(result["runs"], "runs of each layer", len(wanted))
    once_more = [min(number, 2) for number in wanted]
    faults = {
        "no layer ran twice: a tuple is to be a checkpoint.": [1] * len(wanted),
        "a segment inside a segment was run as if it were kept: go down again.": once_more,
        "a number is a stage that is kept, and you checkpoint it too.": [n + 1 for n in wanted],
    }
    otherwise = f"the layers ran {runs} times, and the plan says {wanted}."
    expect.close(runs, wanted, faults.items(), otherwise=otherwise)
