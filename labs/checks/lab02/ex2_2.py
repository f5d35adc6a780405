"""The check of 2.2: two steps compared, in pairs."""

import statistics
from collections.abc import Sequence
from typing import Any

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .timing import expect_time

_PASSED = "the right ratio on a machine that grows slow half-way"
PAIRS = 7
_COLD = 20.0, 12.0


def _cases(draw: Draw) -> Cases:
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


@check(given.slowdown, _PASSED, _cases)
def slowdown(case: Case, result: Result) -> None:
    ratio = read.positive(result["ratio"], "slowdown")
    order = read.items(result["order"], "the order of the steps")
    name = f"slowdown with repeats={case['repeats']}"
    expect_time(ratio, case["ratio"], name, _faults(case, ratio, order))
    if case["repeats"] == 1:
        words = f"{name}: {len(order)} steps ran, and 4 should: one untimed of each, then one pair."
        expect.fact(len(order) == 4, words)


def _faults(case: Case, seen: float, order: Sequence[Any]) -> Faults:
    wanted = case["ratio"]
    launches = "Two launches take the same time whatever was launched"
    yield f"{launches}: wait for each step before you read the clock.", 1.0
    if len(order) == 4 * case["repeats"] and order[::2] == order[1::2]:
        warm = "An untimed run comes before every timed one, and the machine changes meanwhile"
        yield f"{warm}: run each step once before the first pair, and no more.", seen
    if case["repeats"] == 1:
        cold = "The first run of each is cold, and yours is timed: run each once before."
        yield cold, wanted * _COLD[1] / _COLD[0]
        alone = "One of the two was cold when it was timed: run each once before, plain and other."
        yield from ((alone, wanted * ratio) for ratio in (1 / _COLD[1], _COLD[1]))
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    if not all(sorted(map(str, pair)) == ["other", "plain"] for pair in pairs):
        slowed = "The two did not run in turn, and the machine has slowed down in between"
        yield f"{slowed}: run a pair, then the next pair.", seen
    times = [case["seconds"] * factor for factor in case["slowness"][2:]]
    plain, other = times[::2], [wanted * seconds for seconds in times[1::2]]
    mean = statistics.mean(b / a for a, b in zip(plain, other, strict=True))
    medians = statistics.median(other) / statistics.median(plain)
    yield from {
        "It is the other way round: how many times as long as plain does other take?": 1 / wanted,
        "It is what comes on top: how many times as long is wanted.": wanted - 1,
        "It is the mean of the ratios: pairs that met a busy machine have moved it.": mean,
        "It is a ratio of two medians: each is taken over a machine that was fast and then slow, "
        "and the pairs are lost. Divide first.": medians,
        "It is a ratio of two sums: the slowest steps decide it.": sum(other) / sum(plain),
    }.items()
