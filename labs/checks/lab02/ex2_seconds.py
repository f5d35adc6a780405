"""The checks of 2.1 and 2.2: the seconds of a step, read off a clock, and two steps compared."""

import statistics
from collections.abc import Sequence
from typing import Any

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given.machine import LAUNCH_SECONDS

_TOLERANCE = 1e-3  # a step takes at least a thousand launches
_PASSED_2_1 = "the right seconds, despite a cold start, a queue and a slow step"
_PASSED_2_2 = "the right ratio, even on a machine that slows down halfway"
PAIRS = 7
_COLD = 20.0, 12.0


def expect_time(seen: float, wanted: float, name: str, faults: Faults) -> None:
    """Expect pretended seconds, or a ratio of some, but for a launch or two."""
    expect.close(
        seen,
        wanted,
        faults,
        otherwise="It is none of the usual faults. Run it on a PretendGPU in a cell of your own, "
        "and print each time that it measures.",
        tolerance=_TOLERANCE,
        where=f"{name}: {seen:.4g} is off by {seen / wanted - 1:+,.1%}. ",
    )


def _cases_2_1(draw: Draw) -> Cases:
    for warmup, repeats in [(3, 5), (2, 6)]:
        # The first timed step is the fastest: where the warm-up spills into it, the median moves.
        fastest, *steady = sorted(draw.sample(range(100, 120), repeats - 1))
        rest = [factor / 100 for factor in steady] + [draw.randint(5, 9)]
        draw.shuffle(rest)
        cold = [float(draw.randint(20, 40)), *(draw.randint(3, 4) for _ in range(warmup - 1))]
        slowness = [*cold, fastest / 100, *rest]
        seconds = draw.randint(20, 40) / 100
        yield {"seconds": seconds, "slowness": slowness, "warmup": warmup, "repeats": repeats}


@check(given.step_seconds, _PASSED_2_1, _cases_2_1)
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
        f"{name}: {runs} steps ran, but {wanted} should. Maybe {why}.": runs != wanted,
        f"{name}: the argument clock was never read, so these seconds come from a different clock: "
        "call clock().": result["readings"] == 0,
    }
    expect.no_fault(faults)
    times = [case["seconds"] * factor for factor in case["slowness"]]
    cold, steady = times[:warmup], times[warmup:]
    expect_time(seconds, statistics.median(steady), name, _faults_2_1(cold, steady))


def _faults_2_1(cold: list[float], steady: list[float]) -> Faults:
    spilled = [sum(cold) + steady[0], *steady[1:]]
    middle = "of the two steps in the middle: the median of an even number is their mean."
    yield from {
        "That is how long a launch takes: at the second reading of the clock, the step was still "
        "in the queue.": LAUNCH_SECONDS,
        "Work of the warm-up was still in the queue when the clock started: wait for it "
        "first.": statistics.median(spilled),
        "It is a mean that includes work of the warm-up: wait before the clock starts, then time "
        "each step.": statistics.mean(spilled),
        "It is the mean, which one slow step changes: take the median.": statistics.mean(steady),
        "It is the sum of all timed steps: take the median.": sum(steady),
        "It is the fastest step: take the median.": min(steady),
        "The warm-up steps are among the timed ones.": statistics.median(cold + steady),
        f"It is the lower {middle}": statistics.median_low(steady),
        f"It is the upper {middle}": statistics.median_high(steady),
        "It is in milliseconds: return seconds.": 1000 * statistics.median(steady),
    }.items()


def _cases_2_2(draw: Draw) -> Cases:
    # The machine grows hot in the middle pair: up to there the plain step ran once more than the
    # other. Two steps after that meet a busy machine, one of each kind.
    hot = draw.randint(20, 26) / 10
    slowness = [*_COLD] + [1.0] * PAIRS + [hot] * PAIRS
    first, second = draw.sample(range(PAIRS // 2 + 1, PAIRS), 2)
    slowness[2 + 2 * first] *= 5
    slowness[2 + 2 * second + 1] *= 4
    case = {"seconds": draw.randint(20, 40) / 100, "ratio": draw.randint(120, 145) / 100}
    yield {**case, "slowness": slowness, "repeats": PAIRS}
    # the first run of each is cold: a median of several ratios would hide it
    yield {**case, "slowness": [*_COLD, 1.0, 1.0], "repeats": 1}


@check(given.slowdown, _PASSED_2_2, _cases_2_2)
def slowdown(case: Case, result: Result) -> None:
    ratio = read.positive(result["ratio"], "slowdown")
    order = read.items(result["order"], "the order of the steps")
    name = f"slowdown with repeats={case['repeats']}"
    expect_time(ratio, case["ratio"], name, _faults_2_2(case, ratio, order))
    if case["repeats"] == 1:
        words = f"{name}: {len(order)} steps ran, but 4 should: one untimed of each, then one pair."
        expect.fact(len(order) == 4, words)


def _faults_2_2(case: Case, seen: float, order: Sequence[Any]) -> Faults:
    wanted = case["ratio"]
    launches = "Two launches take the same time whatever was launched"
    yield f"{launches}: wait for each step before you read the clock.", 1.0
    if len(order) == 4 * case["repeats"] and order[::2] == order[1::2]:
        warm = "You run an untimed step before every timed one, and the machine changes meanwhile"
        yield f"{warm}: run each step once before the first pair, and no more.", seen
    if case["repeats"] == 1:
        cold = "The first run of each is cold, but you time it: run each once before."
        yield cold, wanted * _COLD[1] / _COLD[0]
        alone = "One of the two was cold when it was timed: run each once before, plain and other."
        yield from ((alone, wanted * ratio) for ratio in (1 / _COLD[1], _COLD[1]))
        queued = "The untimed runs were still in the queue when the clock started: wait for them."
        yield queued, wanted / (1 + _COLD[0] + _COLD[1] * wanted)
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    if not all(sorted(map(str, pair)) == ["other", "plain"] for pair in pairs):
        slowed = "The two did not run in turn, and the machine slowed down in between"
        yield f"{slowed}: run a pair, then the next pair.", seen
    times = [case["seconds"] * factor for factor in case["slowness"][2:]]
    plain, other = times[::2], [wanted * seconds for seconds in times[1::2]]
    mean = statistics.mean(b / a for a, b in zip(plain, other, strict=True))
    medians = statistics.median(other) / statistics.median(plain)
    yield from {
        "It is upside down: how many times as long as plain does other take?": 1 / wanted,
        "It is just the added share: return how many times as long it takes.": wanted - 1,
        "It is the mean of the ratios, which a busy moment changes a lot: take the median.": mean,
        "It is a ratio of two medians: the machine was fast, then slow, and a median ignores which "
        "steps were a pair. Divide first.": medians,
        "It is a ratio of two sums: the slowest steps decide it.": sum(other) / sum(plain),
    }.items()
