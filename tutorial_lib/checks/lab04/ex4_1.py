"""The check of 4.1: peak and time of segments of one length."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Any

from tutorial_lib import plan
from tutorial_lib.checks import expect, read
from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.lab04 import models

# Number of stages, and length of a segment: the last one is shorter, or all, or one stage.
_SHAPES = ((6, 2), (7, 3), (5, 1), (9, 4), (4, 4))


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    chains = [(models.draw_stages(draw, count), length) for count, length in _SHAPES]
    # the peak of the first chain comes at its end, where all boundaries are held
    chains[0][0].sort(key=lambda stage: (stage.get("output_bytes", 0), stage["saved_bytes"]))
    return [{"stages": stages, "length": length} for stages, length in chains]


class OnPaper:
    """The segments of a case, run on paper."""

    def __init__(self, case: Case) -> None:
        self.stages, self.length = models.stages_of(case), case["length"]

    @cached_property
    def planned(self) -> plan.Plan:
        """The right one."""
        tree = models.in_segments(len(self.stages), self.length)
        return plan.Plan(tuple(self.stages), tree)

    def other(self, tree: Any) -> plan.Plan:
        """Give another plan for the same chain."""
        return plan.Plan(tuple(self.stages), tree)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    returned = answer(models.stages_of(case), case["length"])
    peak, seconds = read.several(returned, 2, "the peak and the seconds")
    return {"peak": peak, "seconds": seconds}


def _judge(case: Case, result: Result, right: OnPaper) -> None:
    count, length = len(right.stages), right.length
    where = f"{count} stages in segments of {length}: "
    seconds = read.number(result.get("seconds"), f"{where}the time")
    expect.close(
        seconds,
        right.planned.seconds,
        _time_faults(right),
        otherwise=f"the time is {seconds:g}, and is none of the usual faults: forward and backward "
        "of every stage, and the forward of each stage that runs again.",
        where=where,
    )
    peak = read.integer(result.get("peak"), f"{where}the peak")
    side = "too small" if peak < right.planned.peak_bytes else "too large"
    expect.close(
        peak,
        right.planned.peak_bytes,
        _peak_faults(right),
        otherwise=f"the time is right, and the peak ({peak}) is {side}. Draw it: "
        "plots.schedule(plan.simulate(stages, tree).events) shows what is held at every run.",
        tolerance=0,
        where=where,
    )


def _time_faults(right: OnPaper) -> expect.Faults:
    stages, length = right.stages, right.length
    plain = sum(s.forward_seconds + s.backward_seconds for s in stages)
    forward = sum(s.forward_seconds for s in stages)
    again = right.planned.seconds - plain
    yield "the time is that of a step without any recomputation.", plain
    yield (
        "the last segment is recomputed too in your time: its backward comes first, so it is kept.",
        plain + forward,
    )
    yield "the backward is missing in the time.", forward + again
    yield "the time is what recomputing adds, and that of the whole step is wanted.", again
    last = sum(s.forward_seconds for s in stages[-length:])
    yield (
        "the last segment may be shorter than the others: your time keeps the last stages, as many "
        "as a full segment has.",
        plain + forward - last,
    )


def _peak_faults(right: OnPaper) -> expect.Faults:
    stages, length = right.stages, right.length
    count, inputs = len(stages), [s.input_bytes for s in stages]
    boundaries = inputs[::length]
    peak = right.planned.peak_bytes
    kept = right.other(tuple(range(count)))
    yield "that is the peak of a step that keeps everything.", kept.peak_bytes
    insides = [
        sum(s.saved_bytes for s in stages[at : at + length]) for at in range(0, count, length)
    ]
    yield (
        "boundaries and the largest inside are in it, and what a stage holds while it runs is not: "
        "that is what kept_needs gives.",
        sum(boundaries) + max(insides),
    )
    last_too = right.other(models.in_segments(count, length, last_kept=False))
    yield (
        "the last segment is dropped and run again in your peak: it is kept.",
        last_too.peak_bytes,
    )
    yield "the chain's own input is missing in the peak.", peak - boundaries[0]
    yield from _walks(right)


def _walks(right: OnPaper) -> expect.Faults:
    """Go through the backwards with one thing wrong each."""
    stages, length = right.stages, right.length
    count, peaks = len(stages), {"all": 0, "none": 0, "alone": 0}
    total = sum(s.input_bytes for s in stages[::length])
    held = 0
    for start in range(0, count, length):
        stop = min(start + length, count)
        held += stages[start].input_bytes
        inside = 0
        for index in range(start, stop):
            needs = _kept_needs(stages, index, stop - 1)
            peaks["all"] = max(peaks["all"], total + inside + needs)
            peaks["none"] = max(peaks["none"], stages[start].input_bytes + inside + needs)
            peaks["alone"] = max(peaks["alone"], held + needs)
            inside += stages[index].saved_bytes
    yield (
        "all boundaries are held at the peak in your sum: those of segments that have gone "
        "backward already are free.",
        peaks["all"],
    )
    yield (
        "only one boundary is held at a time in your sum: those of all earlier segments wait too.",
        peaks["none"],
    )
    yield (
        "a stage's neighbours in its segment are missing: what they save waits beside it.",
        peaks["alone"],
    )


def _kept_needs(stages: list[plan.Stage], index: int, end: int) -> int:
    outputs = [s.input_bytes for s in stages[1:]] + [stages[-1].output_bytes or 0]
    stage, waiting = stages[index], outputs[end] if end + 1 < len(stages) else 0
    forward = max(stage.saved_bytes, outputs[index] + stage.forward_temporary_bytes) + waiting
    return max(forward, stage.saved_bytes + outputs[index] + stage.backward_temporary_bytes)


segments_cost = Check(
    "lab04.segments_cost",
    "4.1",
    "peak to the byte and time of five chains in segments, the last one kept",
    _cases,
    _run,
    _judge,
    oracle=OnPaper,
    forbidden=[models.NO_SIMULATION, models.NO_SOLVER],
)
