"""The check of 2.1: the median seconds of a step, read off a clock."""

import statistics

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given.machine import LAUNCH_SECONDS
from .timing import expect_time

_PASSED = "the pretended seconds, with a cold start, a queue and a slow step among them"


def _cases(draw: Draw) -> Cases:
    for warmup, repeats in [(3, 5), (2, 6)]:
        # The first timed step is the fastest: where the warm-up spills into it, the median moves.
        fastest, *steady = sorted(draw.sample(range(100, 120), repeats - 1))
        rest = [factor / 100 for factor in steady] + [draw.randint(5, 9)]
        draw.shuffle(rest)
        cold = [float(draw.randint(20, 40)), *(draw.randint(3, 4) for _ in range(warmup - 1))]
        slowness = [*cold, fastest / 100, *rest]
        seconds = draw.randint(20, 40) / 100
        yield {"seconds": seconds, "slowness": slowness, "warmup": warmup, "repeats": repeats}


@check(given.step_seconds, _PASSED, _cases)
def step_seconds(case: Case, result: Result) -> None:
    warmup, repeats = case["warmup"], case["repeats"]
    name = f"step_seconds with warmup={warmup}, repeats={repeats}"
    seconds = read.positive(result["seconds"], name)
    runs, wanted = read.integer(result["runs"], "steps that ran"), warmup + repeats
    why = (
        "steps were not warmed up: the first ones compile, try out kernels and fill caches"
        if runs == repeats
        else "warmup and repeats say how many to run, and both are arguments"
    )
    faults = {
        f"{name}: {runs} steps ran, and {wanted} should. Maybe {why}.": runs != wanted,
        f"{name}: the clock that was handed over was never read, so these are the seconds of "
        "another one: call clock().": result["readings"] == 0,
    }
    expect.no_fault(faults)
    times = [case["seconds"] * factor for factor in case["slowness"]]
    cold, steady = times[:warmup], times[warmup:]
    expect_time(seconds, statistics.median(steady), name, _faults(cold, steady))


def _faults(cold: list[float], steady: list[float]) -> Faults:
    spilled = [sum(cold) + steady[0], *steady[1:]]
    middle = "of the two steps in the middle: the median of an even number is their mean."
    yield from {
        "That is how long a launch takes: when the clock was read the second time, the step was "
        "still in the queue.": LAUNCH_SECONDS,
        "Work of the warm-up was still in the queue when the clock started: wait for it "
        "first.": statistics.median(spilled),
        "It is a mean, with work of the warm-up in it: wait before the clock starts, then time "
        "step by step.": statistics.mean(spilled),
        "It is the mean, which one slow step has moved: take the median.": statistics.mean(steady),
        "It is the sum of all timed steps: one of them is wanted.": sum(steady),
        "It is the fastest step: take the median.": min(steady),
        "The warm-up steps are among the timed ones.": statistics.median(cold + steady),
        f"It is the lower {middle}": statistics.median_low(steady),
        f"It is the upper {middle}": statistics.median_high(steady),
        "It is in milliseconds: seconds are wanted.": 1000 * statistics.median(steady),
    }.items()
