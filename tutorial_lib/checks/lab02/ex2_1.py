"""The check of 2.1: the median seconds of a step, read off a clock."""

from __future__ import annotations

import random
import statistics

from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.lab02 import machine
from tutorial_lib.checks.vocabulary import expect, read


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [_case(draw, warmup, repeats) for warmup, repeats in [(3, 5), (2, 6)]]


def _case(draw: random.Random, warmup: int, repeats: int) -> Case:
    # The first timed step is the fastest: where the warm-up spills into it, the median moves.
    fastest, *steady = sorted(draw.sample(range(100, 120), repeats - 1))
    rest = [factor / 100 for factor in steady] + [draw.randint(5, 9)]
    draw.shuffle(rest)
    cold = [float(draw.randint(20, 40)), *(draw.randint(3, 4) for _ in range(warmup - 1))]
    slowness = [*cold, fastest / 100, *rest]
    seconds = draw.randint(20, 40) / 100
    return {"seconds": seconds, "slowness": slowness, "warmup": warmup, "repeats": repeats}


def _run(answer: Answer, case: Case) -> Result:
    gpu = machine.PretendGPU(slowness=case["slowness"])
    readings: list[float] = []

    def clock() -> float:
        readings.append(gpu.now())
        return readings[-1]

    def step() -> None:
        machine.PretendGPU.launch(gpu, case["seconds"])  # whatever an answer makes of gpu.launch

    with machine.without_instruments():
        seconds = answer(step, gpu, clock, warmup=case["warmup"], repeats=case["repeats"])
    return {"seconds": seconds, "runs": gpu.num_launches, "readings": len(readings)}


def _judge(case: Case, result: Result) -> None:
    warmup, repeats = case["warmup"], case["repeats"]
    name = f"step_seconds with warmup={warmup}, repeats={repeats}"
    value = read.positive(result.get("seconds"), name)
    runs = read.integer(result.get("runs"), "steps that ran")
    if runs != warmup + repeats:
        why = (
            "steps were not warmed up: the first ones compile, try out kernels and fill caches"
            if runs == repeats
            else "warmup and repeats say how many to run, and both are arguments"
        )
        raise CheckError(f"{name}: {runs} steps ran, and {warmup + repeats} should. Maybe {why}.")
    if result.get("readings") == 0:
        raise CheckError(
            f"{name}: the clock that was handed over was never read, so these are the seconds of "
            "another one: call clock()."
        )
    times = [case["seconds"] * factor for factor in case["slowness"]]
    cold, steady = times[:warmup], times[warmup:]
    machine.expect_time(value, statistics.median(steady), name, _faults(cold, steady))


def _faults(cold: list[float], steady: list[float]) -> expect.Faults:
    spilled = [sum(cold) + steady[0], *steady[1:]]
    yield from {
        "That is how long a launch takes: when the clock was read the second time, the step was "
        "still in the queue.": machine.LAUNCH_SECONDS,
        "Work of the warm-up was still in the queue when the clock started: wait for it "
        "first.": statistics.median(spilled),
        "It is a mean, with work of the warm-up in it: wait before the clock starts, then time "
        "step by step.": statistics.mean(spilled),
        "It is the mean, which one slow step has moved: take the median.": statistics.mean(steady),
        "It is the sum of all timed steps: one of them is wanted.": sum(steady),
        "It is the fastest step: a time that happens seldom is no typical one.": min(steady),
        "It is the slowest step: who else was at work then?": max(steady),
        "The warm-up steps are among the timed ones.": statistics.median(cold + steady),
        "It is the mean of the warm-up steps and the others: time the others, and take their "
        "median.": statistics.mean(cold + steady),
        "It is the lower of the two steps in the middle: the median of an even number is their "
        "mean.": statistics.median_low(steady),
        "It is the upper of the two steps in the middle: the median of an even number is their "
        "mean.": statistics.median_high(steady),
        "It is in milliseconds: seconds are wanted.": 1000 * statistics.median(steady),
    }.items()


step_seconds = Check(
    "lab02.step_seconds",
    "2.1",
    "the pretended seconds, with a cold start, a queue and a slow step among them",
    _cases,
    _run,
    _judge,
    forbidden=machine.NO_INSTRUMENTS,
)
