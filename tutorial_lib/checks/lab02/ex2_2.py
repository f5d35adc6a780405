"""The check of 2.2: two steps compared, in pairs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tutorial_lib.checks.core import Answer, Case, Check, Result
from tutorial_lib.checks.lab02 import machine
from tutorial_lib.checks.vocabulary import expect, read

PAIRS = 7
_COLD = 20.0, 12.0


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    # The machine grows hot in the middle pair: up to there the plain step ran once more than the
    # other. Two steps after that meet a busy machine, one of each kind.
    hot = draw.randint(20, 26) / 10
    slowness = [*_COLD] + [1.0] * PAIRS + [hot] * PAIRS
    first, second = draw.sample(range(PAIRS // 2 + 1, PAIRS), 2)
    slowness[2 + 2 * first] *= 5
    slowness[2 + 2 * second + 1] *= 4
    seconds = draw.randint(20, 40) / 100
    ratio = draw.randint(120, 145) / 100
    case = {"seconds": seconds, "ratio": ratio, "slowness": slowness, "repeats": PAIRS}
    # the first run of each is cold: a median of several ratios would hide it
    return [case, {**case, "slowness": [*_COLD, 1.0, 1.0], "repeats": 1}]


def _run(answer: Answer, case: Case) -> Result:
    gpu = machine.PretendGPU(slowness=case["slowness"])
    order: list[str] = []

    def make_step(name: str, seconds: float) -> Callable[[], None]:
        def step() -> None:
            order.append(name)
            machine.PretendGPU.launch(gpu, seconds)  # whatever an answer makes of gpu.launch

        return step

    plain = make_step("plain", case["seconds"])
    other = make_step("other", case["seconds"] * case["ratio"])
    with machine.without_instruments():
        ratio = answer(plain, other, gpu, gpu.now, repeats=case["repeats"])
    return {"ratio": ratio, "order": order}


def _judge(case: Case, result: Result) -> None:
    value = read.positive(result.get("ratio"), "slowdown")
    order = read.items(result.get("order"), "the order of the steps")
    name = f"slowdown with repeats={case['repeats']}"
    machine.expect_time(value, case["ratio"], name, _faults(case, value, order))


def _faults(case: Case, value: float, order: Sequence[Any]) -> expect.Faults:
    wanted = case["ratio"]
    launches = "Two launches take the same time whatever was launched"
    yield f"{launches}: wait for each step before you read the clock.", 1.0
    if len(order) == 4 * case["repeats"] and order[::2] == order[1::2]:
        warm = "An untimed run comes before every timed one, and the machine changes meanwhile"
        yield f"{warm}: run each step once before the first pair, and no more.", value
    if not _in_turn(order):
        slowed = "The two did not run in turn, and the machine has slowed down in between"
        yield f"{slowed}: run a pair, then the next pair.", value
    if case["repeats"] == 1:
        cold = "The first run of each is cold, and yours is timed: run each once before."
        yield cold, wanted * _COLD[1] / _COLD[0]
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


def _in_turn(order: Sequence[Any]) -> bool:
    pairs = [order[i : i + 2] for i in range(0, len(order), 2)]
    return all(sorted(map(str, pair)) == ["other", "plain"] for pair in pairs)


slowdown = Check(
    "lab02.slowdown",
    "2.2",
    "the right ratio on a machine that grows slow half-way",
    _cases,
    _run,
    _judge,
    forbidden=machine.NO_INSTRUMENTS,
)
