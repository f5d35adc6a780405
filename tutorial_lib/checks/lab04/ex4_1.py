"""The check of 4.1: peak and time of segments of one length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tutorial_lib.checks import expect, read, surroundings
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab04 import models
from tutorial_lib.instruments.planning.chain.simulate import Event, Simulation, simulate
from tutorial_lib.instruments.segments.tree import Tree

# Number of stages, and length of a segment: the last one is shorter, or all, or one stage.
_SHAPES = ((6, 2), (5, 1), (9, 4), (8, 3), (4, 4))


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)

    def case(count: int, length: int) -> Case:
        return {"stages": models.draw_stages(draw, count), "length": length}

    def wide() -> Case:  # a forward that runs again needs more than its backward
        drawn = case(7, 2)
        for stage in drawn["stages"]:
            stage["forward_temporary_bytes"] += 20
        return drawn

    return [
        models.telling(wide, _peaks),
        *(case(count, length) for count, length in _SHAPES),
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    stages = models.stages_of(case)
    returned = answer(stages, case["length"])
    surroundings.expect_unchanged(stages, models.stages_of(case))
    peak, seconds = read.several(returned, 2, "the peak and the seconds")
    return {"peak": peak, "seconds": seconds}


def _simulated(case: Case) -> Simulation:
    stages = models.stages_of(case)
    return simulate(stages, models.in_segments(len(stages), case["length"]))


def _judge(case: Case, result: Result) -> None:
    right = _simulated(case)
    where = f"{len(right.stages)} stages in segments of {case['length']}: "
    seconds = read.number(result.get("seconds"), f"{where}the time")
    expect.close(
        seconds,
        right.seconds,
        _time_faults(right, case["length"]),
        otherwise=f"the time is {seconds:g}, and is none of the usual faults: forward and backward "
        "of every stage, and the forward of each stage that runs again.",
        where=where,
    )
    peak = read.integer(result.get("peak"), f"{where}the peak")
    side = "too small" if peak < right.peak_bytes else "too large"
    expect.close(
        peak,
        right.peak_bytes,
        _peak_faults(right, case["length"]),
        otherwise=f"the time is right, and the peak ({peak}) is {side}. "
        "figures.schedule(planning.simulate(unequal, segments(6, 2)).events, unit=1) draws what is "
        "held at every run: go through it with your sum for `unequal`.",
        tolerance=0,
        where=where,
    )


def _time_faults(right: Simulation, length: int) -> expect.Faults:
    forwards = [stage.forward_seconds for stage in right.stages]
    plain = sum(forwards) + sum(stage.backward_seconds for stage in right.stages)
    again = right.seconds - plain
    yield "the time is that of a step without any recomputation.", plain
    yield (
        "the last segment is recomputed too in your time: its backward comes first, so it is kept.",
        plain + sum(forwards),
    )
    yield "the backward is missing in the time.", sum(forwards) + again
    yield "the time is what recomputing adds, and that of the whole step is wanted.", again
    yield (
        "the last segment may be shorter than the others: your time keeps the last stages, as many "
        "as a full segment has.",
        plain + sum(forwards[:-length]),
    )


_WAITS = (
    "while a forward runs again, the gradient of its segment's output waits, which is missing in "
    "your peak: the segment's last stage is the end of the part that runs."
)
_ALL = (
    "all boundaries are held at the peak in your sum: those of segments that have gone backward "
    "already are free."
)


_ONE = "only one boundary is held at a time in your sum: those of all earlier segments wait too."
_OWN = "the chain's own input is missing in the peak."
_TWICE = (
    "a stage's own input is in the peak twice: it is the segment's boundary, or the stage before "
    "has saved it."
)


def _peaks(case: Case) -> Iterable[int]:
    """Give the right peak, and those of all faults."""
    right = _simulated(case)
    return right.peak_bytes, *dict(_peak_faults(right, case["length"])).values()


def _peak_faults(right: Simulation, length: int) -> expect.Faults:
    stages, count = right.stages, len(right.stages)
    inputs, saved = [s.input_bytes for s in stages], [s.saved_bytes for s in stages]
    # each with the first stage of its segment
    events = [(event, event.stage // length * length) for event in right.events]
    backward = [pair for pair in events if pair[0].keeps or pair[0].kind == "backward"]
    first = max((e.held_bytes for e, _ in events if not e.keeps and e.kind == "forward"), default=0)

    def peak(change: Callable[[Event, int], int]) -> int:
        return max(first, *(event.held_bytes + change(event, start) for event, start in backward))

    def peak_of(tree: Tree) -> int:
        return simulate(stages, tree).peak_bytes

    yield "that is the peak of a step that keeps everything.", peak_of(tuple(range(count)))
    yield (
        "boundaries and the largest inside are in it, and what a stage holds while it runs is not: "
        "that is what kept_needs gives.",
        sum(inputs[::length]) + max(sum(saved[at : at + length]) for at in range(0, count, length)),
    )
    yield _OWN, right.peak_bytes - inputs[0]
    yield _ALL, peak(lambda event, start: sum(inputs[start + length :: length]))
    yield (
        _ONE,
        max(event.held_bytes - sum(inputs[:start:length]) for event, start in events),
    )
    yield (
        "a stage's neighbours in its segment are missing: what they save waits beside it.",
        peak(lambda event, start: -sum(saved[start : event.stage])),
    )
    yield _TWICE, peak(lambda event, start: inputs[event.stage])
    yield (
        _WAITS,
        peak(lambda e, start: -inputs[start + length] if e.kind == "recompute" else 0),
    )


segments_cost = Check(
    "lab04.segments_cost",
    "4.1",
    "peak to the byte and time of six chains in segments, the last one kept",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_SIMULATION, models.NO_SOLVER],
)
