"""The checks of lab 02 that read a clock: one step, and two steps compared."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tutorial_lib.checks import lab02_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab02_machine import LAUNCH_SECONDS, PretendGPU

# 2.1


def _timing_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    counts = [(3, 5), (2, 7), (2, 6)]
    return [_timing(draw, warmup=warmup, repeats=repeats) for warmup, repeats in counts]


def _timing(draw: random.Random, *, warmup: int, repeats: int) -> Case:
    # The first timed step is the fastest: where the warm-up spills into it, the median moves.
    fastest, *steady = sorted(draw.sample(range(100, 120), repeats - 1))
    rest = [factor / 100 for factor in steady] + [draw.randint(5, 9)]
    draw.shuffle(rest)
    cold = [float(draw.randint(20, 40)), *(draw.randint(3, 4) for _ in range(warmup - 1))]
    slowness = [*cold, fastest / 100, *rest]
    seconds = draw.randint(20, 40) / 100
    return {"seconds": seconds, "slowness": slowness, "warmup": warmup, "repeats": repeats}


def _run_timing(answer: Callable[..., Any], case: Case) -> Result:
    gpu = PretendGPU(slowness=case["slowness"])
    options = {"warmup": case["warmup"], "repeats": case["repeats"]}
    readings: list[float] = []

    def clock() -> float:
        readings.append(gpu.now())
        return readings[-1]

    with oracles.by_hand():
        seconds = answer(lambda: gpu.launch(case["seconds"]), gpu, clock, **options)
    return {"seconds": seconds, "runs": gpu.num_launches, "readings": len(readings)}


def _judge_timing(case: Case, result: Result) -> None:
    warmup, repeats, runs = case["warmup"], case["repeats"], result.get("runs")
    times = [case["seconds"] * factor for factor in case["slowness"]]
    cold, steady = times[:warmup], times[warmup:]
    name = f"step_seconds with warmup={warmup}, repeats={repeats}"
    value = oracles.positive(result.get("seconds"), name)
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
    spilled = [sum(cold) + steady[0], *steady[1:]]
    expect = {
        "That is how long a launch takes: when the clock was read the second time, the step was "
        "still in the queue.": LAUNCH_SECONDS,
        "Work of the warm-up was still in the queue when the clock started: wait for it "
        "first.": statistics.median(spilled),
        "It is a mean, with work of the warm-up in it: wait before the clock starts, then time "
        "step by step.": statistics.mean(spilled),
        "It is the mean, which one slow step has moved: take the median.": statistics.mean(steady),
        "It is the sum of all timed steps: one of them is wanted.": sum(steady),
        "It is the fastest step: a time that happens seldom is no typical one.": min(steady),
        "It is the slowest step: who else was at work then?": max(steady),
        "The warm-up steps are among the timed ones.": statistics.median(times),
        "It is the mean of the warm-up steps and the others: time the others, and take their "
        "median.": statistics.mean(times),
        "It is the lower of the two steps in the middle: the median of an even number is their "
        "mean.": statistics.median_low(steady),
        "It is the upper of the two steps in the middle: the median of an even number is their "
        "mean.": statistics.median_high(steady),
        "It is in milliseconds: seconds are wanted.": 1000 * statistics.median(steady),
    }
    oracles.expect_close(value, statistics.median(steady), name, expect)


step_seconds = Check(
    name="lab02.step_seconds",
    exercise="2.1",
    passed="the pretended seconds, with a cold start, a queue and a slow step among them",
    cases=_timing_cases,
    run=_run_timing,
    judge=_judge_timing,
)

# 2.2

PAIRS = 7
_COLD = 20.0, 12.0


def _ratio_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    several = [_ratio(draw, above=True), _ratio(draw, above=False)]
    # the first run of each is cold: a median of several ratios would hide it
    return [*several, {**several[0], "slowness": [*_COLD, 1.0, 1.0], "repeats": 1}]


def _ratio(draw: random.Random, *, above: bool) -> Case:
    # The machine grows hot in the middle pair: up to there the plain step ran once more than the
    # other. Two steps after that meet a busy machine, one of each kind.
    hot = draw.randint(20, 26) / 10
    slowness = [*_COLD] + [1.0] * PAIRS + [hot] * PAIRS
    first, second = draw.sample(range(PAIRS // 2 + 1, PAIRS), 2)
    slowness[2 + 2 * first] *= 5
    slowness[2 + 2 * second + 1] *= 4
    seconds = draw.randint(20, 40) / 100
    ratio = draw.randint(120, 145) / 100 if above else draw.randint(60, 85) / 100
    return {"seconds": seconds, "ratio": ratio, "slowness": slowness, "repeats": PAIRS}


def _run_ratio(answer: Callable[..., Any], case: Case) -> Result:
    gpu = PretendGPU(slowness=case["slowness"])
    order: list[str] = []

    def make_step(name: str, seconds: float) -> Callable[[], None]:
        def step() -> None:
            order.append(name)
            gpu.launch(seconds)

        return step

    plain = make_step("plain", case["seconds"])
    other = make_step("other", case["seconds"] * case["ratio"])
    with oracles.by_hand():
        ratio = answer(plain, other, gpu, gpu.now, repeats=case["repeats"])
    return {"ratio": ratio, "order": order}


def _judge_ratio(case: Case, result: Result) -> None:
    wanted, order = case["ratio"], result.get("order")
    value = oracles.positive(result.get("ratio"), "slowdown")
    if oracles.close(value, wanted):
        return
    if oracles.close(value, 1.0):
        raise CheckError(
            "slowdown: 1 came. Two launches take the same time whatever was launched: wait for "
            "each step before you read the clock."
        )
    if not isinstance(order, list) or not _in_turn(order):
        raise CheckError(
            f"slowdown: off by {value / wanted - 1:+.0%}. The two did not run in turn, and the "
            "machine has slowed down in between: run a pair, then the next pair."
        )
    if case["repeats"] == 1 and oracles.close(value, wanted * _COLD[1] / _COLD[0]):
        raise CheckError(
            f"slowdown: off by {value / wanted - 1:+.0%} with repeats=1. The first run of each is "
            "cold, and yours is timed: run each once before."
        )
    times = [case["seconds"] * factor for factor in case["slowness"][2:]]
    plain, other = times[::2], [wanted * seconds for seconds in times[1::2]]
    ratios = [b / a for a, b in zip(plain, other, strict=True)]
    expect = {
        "It is the other way round: how many times as long as plain does other take?": 1 / wanted,
        "It is what comes on top: how many times as long is wanted.": wanted - 1,
        "It is the mean of the ratios: pairs that met a busy machine have moved it.": (
            statistics.mean(ratios)
        ),
        "It is a ratio of two medians: each is taken over a machine that was fast and then slow, "
        "and the pairs are lost. Divide first.": statistics.median(other)
        / statistics.median(plain),
        "It is a ratio of two sums: the slowest steps decide it.": sum(other) / sum(plain),
    }
    oracles.expect_close(value, wanted, "slowdown", expect)


def _in_turn(order: Sequence[Any]) -> bool:
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    return all(sorted(map(str, pair)) == ["other", "plain"] for pair in pairs)


slowdown = Check(
    name="lab02.slowdown",
    exercise="2.2",
    passed="the right ratio on a machine that grows slow half-way",
    cases=_ratio_cases,
    run=_run_ratio,
    judge=_judge_ratio,
)
