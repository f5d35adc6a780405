"""The check of 4.1: peak and time of segments of one length."""

from collections.abc import Callable, Iterable

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.instruments.planning.chain.simulate import Event, Simulation, simulate

from . import chains, given

_PASSED = "peak to the byte and time of six chains in segments, the last one kept"
# Number of stages, and length of a segment: the last one is shorter, or all, or one stage.
_SHAPES = ((6, 2), (5, 1), (9, 4), (8, 3), (4, 4))


def _cases(draw: Draw) -> Cases:
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


def _where(case: Case) -> str:
    return f"{len(case['stages'])} stages in segments of {case['length']}: "


@check(given.segments_cost, _PASSED, _cases, oracle=_simulated, where=_where)
def segments_cost(case: Case, result: Result, right: Simulation) -> None:
    seconds, length = read.number(result["seconds"], "the time"), case["length"]
    expect.close(
        seconds,
        right.seconds,
        _time_faults(right, length),
        otherwise=f"the time is {seconds:g}, and is none of the usual faults: forward and backward "
        "of every stage, and the forward of each stage that runs again.",
    )
    peak = read.integer(result["peak"], "the peak")
    expect.close(
        peak,
        right.peak_bytes,
        _peak_faults(right, length),
        otherwise=f"the time is right, and the peak ({peak}) is "
        f"{'too small' if peak < right.peak_bytes else 'too large'}. "
        "figures.schedule(planning.simulate(unequal, segments(6, 2)).events, unit=1) draws what is "
        "held at every run: go through it with your sum for `unequal`.",
    )


def _time_faults(right: Simulation, length: int) -> Faults:
    forwards = [stage.forward_seconds for stage in right.stages]
    plain = sum(forwards) + sum(stage.backward_seconds for stage in right.stages)
    again = right.seconds - plain
    yield from {
        "the time is that of a step without any recomputation.": plain,
        "the last segment is recomputed too in your time: its backward comes first, so it is "
        "kept.": plain + sum(forwards),
        "the backward is missing in the time.": sum(forwards) + again,
        "the time is what recomputing adds, and that of the whole step is wanted.": again,
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
        "boundaries and the largest inside are in it, and what a stage holds while it runs is not: "
        "that is what kept_needs gives.": sum(inputs[::length]) + max(insides),
        "the chain's own input is missing in the peak.": right.peak_bytes - inputs[0],
        "all boundaries are held at the peak in your sum: those of segments that have gone "
        "backward already are free.": peak(lambda e, start: sum(inputs[start + length :: length])),
        "only one boundary is held at a time in your sum: those of all earlier segments wait "
        "too.": max(event.held_bytes - sum(inputs[:start:length]) for event, start in events),
        "a stage's neighbours in its segment are missing: what they save waits beside it.": peak(
            lambda e, start: -sum(saved[start : e.stage])
        ),
        "a stage's own input is in the peak twice: it is the segment's boundary, or the stage "
        "before has saved it.": peak(lambda e, start: inputs[e.stage]),
        "while a forward runs again, the gradient of its segment's output waits, which is missing "
        "in your peak: the segment's last stage is the end of the part that runs.": peak(
            lambda e, start: -inputs[start + length] if e.kind == "recompute" else 0
        ),
    }.items()
