"""The checks of 4.1 and 4.2: segments on paper, and a tree run on real layers."""

import itertools
from collections.abc import Callable, Iterable

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.simulate import Event, Simulation, simulate
from tutorial_lib.instruments.segments.tree import leaves

from . import chains, given

_PASSED_4_1 = "exact peaks and times of six chains in segments, with the last segment kept"
# Number of stages, and length of a segment: the last one is shorter, or all, or one stage.
_SHAPES = ((6, 2), (5, 1), (9, 4), (8, 3), (4, 4))
_PASSED_4_2 = "four trees run as planned, with exact gradients and peaks within 3 % of the plan"
_TOLERANCE = 0.03
_TREES = (
    [0, 1, 2, 3, 4, 5, 6, 7],
    [[0, 1, 2], [3, 4], 5, 6, 7],
    [[[0], 1, 2], 3, [[4, 5], 6], 7],
    [[[[0], 1], 2], [3], [4, 5, 6], 7],
)


def _cases_4_1(draw: Draw) -> Cases:
    def wide() -> Case:  # a forward that runs again needs more than its backward
        stages = chains.draw_stages(draw, 7)
        for stage in stages:
            stage["forward_temporary_bytes"] += 20
        return {"stages": stages, "length": 2}

    yield chains.telling(wide, _peaks)
    for count, length in _SHAPES:
        yield {"stages": chains.draw_stages(draw, count), "length": length}


def _simulated(case: Case) -> Simulation:
    stages = given.stages_of(case)
    return simulate(stages, chains.in_segments(len(stages), case["length"]))


def _where_4_1(case: Case) -> str:
    return f"{len(case['stages'])} stages in segments of {case['length']}: "


@check(given.segments_cost, _PASSED_4_1, _cases_4_1, oracle=_simulated, where=_where_4_1)
def segments_cost(case: Case, result: Result, right: Simulation) -> None:
    seconds, length = read.number(result["seconds"], "the time"), case["length"]
    expect.close(
        seconds,
        right.seconds,
        _time_faults(right, length),
        otherwise=f"the time is {seconds:g}, which is none of the usual faults: add up forward and "
        "backward of every stage, and the forward of each stage that runs again.",
    )
    peak = read.integer(result["peak"], "the peak")
    expect.close(
        peak,
        right.peak_bytes,
        _peak_faults(right, length),
        otherwise=f"the time is right, but the peak ({peak}) is "
        f"{'too small' if peak < right.peak_bytes else 'too large'}. "
        "figures.schedule(planning.simulate(unequal, segments(6, 2)).events, unit=1) draws what is "
        "held at every run: compare it with your sum for `unequal`.",
    )


def _time_faults(right: Simulation, length: int) -> Faults:
    forwards = [stage.forward_seconds for stage in right.stages]
    plain = sum(forwards) + sum(stage.backward_seconds for stage in right.stages)
    again = right.seconds - plain
    yield from {
        "the time is that of a step without any recomputation.": plain,
        "your time recomputes the last segment too: its backward comes first, so it is kept.": plain
        + sum(forwards),
        "the backward is missing in the time.": sum(forwards) + again,
        "the time is what recomputing adds: return the time of the whole step.": again,
        "the last segment may be shorter than the others: your time keeps the last stages, as many "
        "as a full segment has.": plain + sum(forwards[:-length]),
    }.items()


def _peaks(case: Case) -> Iterable[int]:
    """Return the right peak, and those of all faults."""
    right = _simulated(case)
    return right.peak_bytes, *dict(_peak_faults(right, case["length"])).values()


def _peak_faults(right: Simulation, length: int) -> Faults:
    stages, count = right.stages, len(right.stages)
    inputs, saved = [s.input_bytes for s in stages], [s.saved_bytes for s in stages]
    # each with the first stage of its segment
    events = [(event, event.stage // length * length) for event in right.events]
    backward = [pair for pair in events if pair[0].keeps or pair[0].kind == "backward"]
    first = max((e.held_bytes for e, _ in events if not e.keeps and e.kind == "forward"), default=0)
    insides = [sum(saved[at : at + length]) for at in range(0, count, length)]

    def peak(change: Callable[[Event, int], int]) -> int:
        return max(first, *(event.held_bytes + change(event, start) for event, start in backward))

    plain = simulate(stages, tuple(range(count)))
    yield from {
        "that is the peak of a step that keeps everything.": plain.peak_bytes,
        "you added boundaries and the largest inside, but not what a stage holds while it runs: "
        "kept_needs returns that.": sum(inputs[::length]) + max(insides),
        "the chain's own input is missing in the peak.": right.peak_bytes - inputs[0],
        "your sum holds all boundaries at the peak: those of segments that have finished their "
        "backward are free.": peak(lambda e, start: sum(inputs[start + length :: length])),
        "your sum holds only one boundary at a time: those of all earlier segments are there "
        "too.": max(event.held_bytes - sum(inputs[:start:length]) for event, start in events),
        "your sum leaves out the other stages of the segment: what they saved is there too.": peak(
            lambda e, start: -sum(saved[start : e.stage])
        ),
        "you counted a stage's own input twice: it is the segment's boundary, or the stage before "
        "has saved it.": peak(lambda e, start: inputs[e.stage]),
        "your peak lacks the gradient of the segment's output, which waits while a forward runs "
        "again: the segment's last stage is the end of the part that runs.": peak(
            lambda e, start: -inputs[start + length] if e.kind == "recompute" else 0
        ),
    }.items()


def _cases_4_2(draw: Draw) -> Cases:
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


def _where_4_2(case: Case) -> str:
    return f"tree {chains.shown(given.tree_of(case['tree']))}: "


@check(given.run_tree, _PASSED_4_2, _cases_4_2, oracle=Planned, where=_where_4_2)
def run_tree(case: Case, result: Result, planned: Planned) -> None:
    said, wanted = str(result.get("said", "")), planned.gradients
    loss = read.number(result["loss"], "the result")
    gradients = read.tensors(result["gradients"], len(wanted), "gradients")
    is_missing = [gradient is None for gradient in gradients]
    faults = {
        f"backward raised {said[:160]!r}. A segment must run again what it ran first: does a "
        "lambda in the loop look up a variable that has changed by then?": bool(said),
        "the result is not what the layers give one after the other.": loss != planned.loss,
        "no gradient came: does the result have a graph?": all(is_missing),
        "some layers got no gradient. A batch needs none itself, and a reentrant checkpoint then "
        "cuts the graph: use_reentrant=False.": any(is_missing),
    }
    expect.no_fault(faults)
    _expect_counts(result, planned)
    expect.fact(
        all(map(expect.same_bits, gradients, wanted)),
        "the runs are right, but gradients differ from those without checkpoints. The layers have "
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
        otherwise=f"gradients and runs are right, but the peak is off by {seen / peak - 1:+.0%} of "
        f"the planned one, where {_TOLERANCE:.0%} is allowed: {advice}",
        tolerance=_TOLERANCE,
    )


def _expect_counts(result: Result, planned: Planned) -> None:
    wanted = list(planned.simulation.counts)
    runs = read.integers(result["runs"], "runs of each layer", len(wanted))
    once_more = [min(number, 2) for number in wanted]
    faults = {
        "no layer ran twice: a tuple should be a checkpoint.": [1] * len(wanted),
        "a segment inside a segment was kept: call your function for it too.": once_more,
        "a number is a stage that is kept, but you checkpoint it too.": [n + 1 for n in wanted],
    }
    otherwise = f"the layers ran {runs} times, but the plan says {wanted}."
    expect.close(runs, wanted, faults.items(), otherwise=otherwise)
