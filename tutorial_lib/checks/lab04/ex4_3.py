"""The check of 4.3: the fewest forwards with so many places."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from tutorial_lib.checks import expect, read
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab04 import models

_SECONDS = 20


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    pairs = [(2, 3), (2, 1), (9, 1), (10, 3), (1, 2), (draw.randint(20, 30), draw.randint(3, 5))]
    pairs += [(draw.randint(40, 60), draw.randint(6, 9)), (6, 12)]
    return [{"stages": stages, "places": places} for stages, places in pairs]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    return {"forwards": _in_time(lambda: answer(case["stages"], case["places"]))}


def _in_time(call: Callable[[], Any]) -> Any:
    """Call what makes many calls of its own, and give up when it takes too long."""
    end, before = time.monotonic() + _SECONDS, sys.getprofile()

    def look(*_: Any) -> None:
        if time.monotonic() > end:
            raise CheckError(
                f"no answer after {_SECONDS} seconds: the same parts are solved over and over. "
                "Keep each answer, as functools.cache does."
            )

    sys.setprofile(look)
    try:
        return call()
    finally:
        sys.setprofile(before)


def _judge(case: Case, result: Result) -> None:
    stages, places = case["stages"], case["places"]
    where = f"{stages} stages, {places} places: "
    forwards = result.get("forwards")
    if isinstance(forwards, float) and forwards == math.inf:
        advice = {
            (2, 3): "is every k tried, up to n - 1? With two stages it is 1.",
            (2, 1): "a single stage needs one forward, without a place too, so look at the stages "
            "first.",
        }.get(
            (stages, places),
            "try every k from 1 to n - 1, and give the first part all c places: those of the later "
            "part are free when its turn comes.",
        )
        raise CheckError(f"{where}the number of forwards is inf: {advice}")
    seen = read.integer(forwards, f"{where}the number of forwards")
    wanted = models.binomial(stages, places)
    side = "more than are needed" if seen > wanted else "fewer than are possible"
    expect.close(
        seen,
        wanted,
        _faults(stages, places, wanted),
        otherwise=f"{seen} forwards are {side}: try the recursion by hand with 3 stages, where 1 "
        "place needs 6 forwards and 2 places need 5.",
        tolerance=0,
        where=where,
    )


def _faults(stages: int, places: int, wanted: int) -> expect.Faults:
    yield (
        "that is without any boundary but the input: a boundary in the right place saves runs.",
        _by_hand(stages),
    )
    yield (
        "the first runs are missing: every stage runs forward once to begin with.",
        wanted - stages,
    )
    if places < stages - 1:
        yield (
            "that needs one place more: the input has one of the places, for good.",
            models.binomial(stages, places + 1),
        )
    if places > 1:
        yield (
            "that does with one place fewer: the stage that runs has its input in hand, which "
            "takes no place.",
            models.binomial(stages, places - 1),
        )
    yield (
        "the segment's own part is done with the places that are left over by the later part. When "
        "its turn comes, the later part has gone backward, and its places are free again.",
        _no_place_comes_back(stages, places),
    )
    yield (
        "boundaries are set in the middle each time, and that is not the best place.",
        _halves(stages, places),
    )


def _by_hand(stages: int) -> int:
    """Count the forwards where each stage is reached from the input again."""
    return stages * (stages + 1) // 2


@cache
def _no_place_comes_back(n: int, c: int) -> int:
    parts = range(1, n) if c > 1 else ()
    ways = (k + _no_place_comes_back(n - k, c - 1) + _no_place_comes_back(k, c - 1) for k in parts)
    return min(ways, default=_by_hand(n))


def _halves(stages: int, places: int) -> int:
    if stages == 1 or places == 1:
        return _by_hand(stages)
    first = stages // 2
    return first + _halves(stages - first, places - 1) + _halves(first, places)


fewest_forwards = Check(
    "lab04.fewest_forwards",
    "4.3",
    "the fewest forwards of eight chains, as the closed form has them",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_SOLVER],
)
