"""The check of 8.5, the search: the cheapest choice of segments that fits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import combinations
from typing import Any

from tutorial_lib.checks import expect, observe, read
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab08 import models

_BLOCKS = ("down 0", "down 1", "mid", "up 0", "up 1")
Choice = tuple[str, ...]


@cache  # a second or so: hardly any draw leads all shortcuts astray
def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    while True:  # until every shortcut leads astray
        case: dict[str, Any] = {
            "prices": {name: draw.randrange(10**4, 10**5) for name in _BLOCKS},
            "saved": {name: draw.randrange(10**5, 10**6) for name in _BLOCKS},
            "whole": {name: draw.randrange(10**4, 10**6) for name in _BLOCKS},
        }
        choices = Choices(case)
        case["limit"] = choices.peak(draw.choice(choices.just_met()))
        if Choices(case).is_tricky():
            break
    # all blocks have the lowest peak, or not all: one is larger than what the others save
    small = {**case, "whole": dict.fromkeys(_BLOCKS, 10**4)}
    large = {**case, "whole": {**case["whole"], draw.choice(_BLOCKS): 4 * 10**6}}
    return [
        case,
        {**case, "limit": choices.peak(()) + 1},
        {**case, "limit": case["limit"] + 1},
        *({**each, "limit": Choices(each).least - 1, "refused": True} for each in (small, large)),
    ]


class Choices:
    """All choices of segments in a case, the cheapest first; those that fit; the lowest peak."""

    def __init__(self, case: Case) -> None:
        self.case, self.prices = case, case["prices"]
        sizes = range(len(self.prices) + 1)
        drawn = (choice for size in sizes for choice in combinations(self.prices, size))
        self.all: list[Choice] = sorted(drawn, key=self.price)
        self.fitting = [choice for choice in self.all if self.fits(choice)]
        self.least = min(map(self.peak, self.all))

    def price(self, choice: Iterable[str]) -> int:
        """Add up the recomputed FLOPs."""
        return sum(self.prices[name] for name in choice)

    def peak(self, choice: Iterable[str]) -> int:
        """Give a peak as a real one behaves: savings add up, and one whole segment comes back."""
        saved = sum(self.case["saved"][name] for name in choice)
        back = max((self.case["whole"][name] for name in choice), default=0)
        return int(6 * 10**6 - saved + back)

    def fits(self, choice: Iterable[str]) -> bool:
        """Tell whether a peak is within the limit of the case, where that is known."""
        return bool(self.peak(choice) <= self.case.get("limit", 0))

    def just_met(self) -> list[Choice]:
        """List the choices whose peak is below that of all cheaper ones: limits just met."""
        found: list[Choice] = []
        for choice in self.all:
            if not found or self.peak(choice) < self.peak(found[-1]):
                found.append(choice)
        return found

    def is_tricky(self) -> bool:
        """Tell whether no shortcut finds the cheapest choice, or the next one."""
        best, below = self.fitting[0], self.fitting[1:2]
        alone = {name: self.peak(()) - self.peak((name,)) for name in self.prices}
        additive = [
            choice
            for choice in self.all
            if self.peak(()) - sum(alone[name] for name in choice) <= self.case["limit"]
        ]
        shortcuts = [
            self._greedy(lambda name: self.prices[name]),
            self._greedy(lambda name: -self.case["saved"][name]),
            self._greedy(lambda name: self.prices[name] / (alone[name] or 1)),
            min(self.fitting, key=self.peak),
            min(self.fitting, key=len),
            additive[0] if additive else (),
        ]
        is_led_astray = below and not {best, *below} & set(shortcuts)
        one_price_each = len(set(map(self.price, self.all))) == len(self.all)
        return bool(len(best) >= 2 and is_led_astray and one_price_each)

    def _greedy(self, key: Callable[[str], float]) -> Choice:
        chosen: set[str] = set()
        for name in sorted(self.prices, key=key):
            if self.fits(chosen):
                break
            chosen.add(name)
        return tuple(name for name in self.prices if name in chosen)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    asked: list[list[str]] = []
    choices = Choices(case)

    def peak_of(choice: Iterable[str]) -> int:
        names = list(choice)
        unknown = [name for name in names if name not in case["prices"]]
        if unknown:
            raise CheckError(f"peak_of was asked about {unknown[0]!r}, which is no block.")
        asked.append(names)
        return choices.peak(names)

    call = partial(answer, dict(case["prices"]), peak_of, case["limit"])
    if case.get("refused"):
        return {"said": observe.error_said(call, ValueError), "asked": asked, "chosen": []}
    chosen = call()
    if not isinstance(chosen, list | tuple | set | frozenset):
        raise CheckError(f"a tuple of blocks is wanted, and {type(chosen).__name__} came.")
    return {"chosen": list(chosen), "asked": asked, "said": ""}


def _judge(case: Case, result: Result, choices: Choices) -> None:
    asked = [
        frozenset(map(str, read.items(names, "a question to peak_of")))
        for names in read.items(result.get("asked"), "asked")
    ]
    if case.get("refused"):
        least, limit = choices.least, case["limit"]
        where = f"where no choice fits a limit of {limit} and the lowest peak is {least}"
        models.expect_error(str(result.get("said")), "ValueError", [limit, least], where)
        _judge_asked(asked, 0)
        return
    chosen = frozenset(map(str, read.items(result.get("chosen"), "chosen")))
    names, best = sorted(chosen), frozenset(choices.fitting[0])
    if chosen - case["prices"].keys():
        raise CheckError(f"{names} are not all blocks: give names of prices.")
    price, least_price = choices.price(chosen), choices.price(best)
    faults = {
        f"{names} has a peak of {choices.peak(chosen):,}, and the limit is {case['limit']:,}: "
        "savings do not add up, since a whole segment comes back in backward. Ask peak_of.": (
            not choices.fits(chosen)
        ),
        f"{names} fits for {price:,} recomputed FLOPs, and another choice fits for "
        f"{least_price:,}. {_why_dearer(chosen, choices)}": chosen != best,
    }
    expect.no_fault(faults)
    _judge_asked(asked, sum(choices.price(names) > least_price for names in asked))
    if best not in asked:
        raise CheckError("the choice that was returned was never measured.")


def _judge_asked(asked: list[frozenset[str]], dearer: int) -> None:
    again = len(asked) - len(set(asked))
    if dearer or again:
        faults = f"{dearer} of them dearer than the answer" if dearer else f"{again} of them again"
        raise CheckError(
            f"{len(asked)} choices were measured, {faults}: a measurement is a training step. Go "
            "from the cheapest on, each once, and stop."
        )


def _why_dearer(chosen: frozenset[str], choices: Choices) -> str:
    fitting, limit = choices.fitting, choices.case["limit"]
    cheaper = [choice for choice in fitting if choices.price(choice) < choices.price(chosen)]
    reasons = {
        "The limit is above the peak without segments: no block at all is a choice too.": (
            () in fitting
        ),
        "Yours has the lowest peak of all, and nobody asked for that.": (
            choices.peak(chosen) == choices.least
        ),
        "Yours has the fewest blocks, which do not all cost the same.": (
            len(chosen) == min(map(len, fitting))
        ),
        "A peak equal to the limit fits.": all(choices.peak(c) == limit for c in cheaper),
    }
    found = (words for words, is_so in reasons.items() if is_so)
    return next(found, "Were all choices looked at, the cheapest first?")


cheapest_fit = Check(
    "lab08.cheapest_fit",
    "8.5",
    "the cheapest choice that fits, and no measurement beyond it",
    _cases,
    _run,
    _judge,
    oracle=Choices,
)
