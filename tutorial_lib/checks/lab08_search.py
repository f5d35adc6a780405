"""The check of lab 08's search (8.5): the cheapest choice of segments that fits."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

from tutorial_lib.checks import lab08_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import items
from tutorial_lib.checks.running import error_said

_BLOCKS = ("down 0", "down 1", "mid", "up 0", "up 1")
Choice = tuple[str, ...]


@functools.cache  # a second or so: hardly any draw leads all shortcuts astray
def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    while True:  # until every shortcut leads astray
        case: dict[str, Any] = {
            "prices": {name: draw.randrange(10**4, 10**5) for name in _BLOCKS},
            "saved": {name: draw.randrange(10**5, 10**6) for name in _BLOCKS},
            "whole": {name: draw.randrange(10**4, 10**6) for name in _BLOCKS},
        }
        case["limit"] = _peak(case, draw.choice(_records(case)))
        if _is_tricky(case):
            break
    # all blocks have the lowest peak, or not all: one is larger than what the others save
    small = {**case, "whole": dict.fromkeys(_BLOCKS, 10**4)}
    large = {**case, "whole": {**case["whole"], draw.choice(_BLOCKS): 4 * 10**6}}
    return [
        case,
        {**case, "limit": _peak(case, ()) + 1},
        {**case, "limit": case["limit"] + 1},
        *({**each, "limit": _least(each) - 1, "refused": True} for each in (small, large)),
    ]


def _peak(case: Case, choice: Choice) -> int:
    """Give a peak as a real one behaves: savings add up, and one whole segment comes back."""
    saved = sum(case["saved"][name] for name in choice)
    back = max((case["whole"][name] for name in choice), default=0)
    return int(6 * 10**6 - saved + back)


def _price(case: Case, choice: Iterable[str]) -> int:
    return sum(case["prices"][name] for name in choice)


def _choices(case: Case) -> list[Choice]:
    number = range(len(case["prices"]) + 1)
    return [choice for size in number for choice in combinations(case["prices"], size)]


def _least(case: Case) -> int:
    return min(_peak(case, choice) for choice in _choices(case))


def _records(case: Case) -> list[Choice]:
    """List the choices whose peak is below that of all cheaper ones: limits that are just met."""
    found: list[Choice] = []
    for choice in sorted(_choices(case), key=lambda choice: _price(case, choice)):
        if not found or _peak(case, choice) < _peak(case, found[-1]):
            found.append(choice)
    return found


def _best(case: Case) -> Choice:
    fitting = [c for c in _choices(case) if _peak(case, c) <= case["limit"]]
    return min(fitting, key=lambda choice: _price(case, choice))


def _is_tricky(case: Case) -> bool:
    best, choices = _best(case), _choices(case)
    if len(best) < 2:
        return False
    fitting = [c for c in choices if _peak(case, c) <= case["limit"]]
    fewest = min(fitting, key=lambda c: (len(c), _price(case, c)))
    additive = [c for c in choices if _by_sums(case, c) <= case["limit"]]
    by_sums = min(additive, key=lambda c: _price(case, c), default=())
    shortcuts = [
        _greedy(case, lambda n: case["prices"][n]),
        _greedy(case, lambda n: -case["saved"][n]),
        _greedy(case, lambda n: case["prices"][n] / (_peak(case, ()) - _peak(case, (n,)) or 1)),
        min(fitting, key=lambda c: _peak(case, c)),
        fewest,
        by_sums,
    ]
    below = [c for c in fitting if c != best]
    if not below or min(below, key=lambda c: _price(case, c)) in shortcuts:
        return False
    return best not in shortcuts and len({_price(case, c) for c in choices}) == len(choices)


def _by_sums(case: Case, choice: Choice) -> int:
    without = _peak(case, ())
    return without - sum(without - _peak(case, (name,)) for name in choice)


def _greedy(case: Case, key: Callable[[str], float]) -> Choice:
    chosen: list[str] = []
    for name in sorted(case["prices"], key=key):
        if _peak(case, tuple(chosen)) <= case["limit"]:
            break
        chosen.append(name)
    return tuple(sorted(chosen, key=list(case["prices"]).index))


def _run(answer: Callable[..., Any], case: Case) -> Result:
    asked: list[list[str]] = []

    def peak_of(choice: Iterable[str]) -> int:
        names = list(choice)
        unknown = [name for name in names if name not in case["prices"]]
        if unknown:
            raise CheckError(f"peak_of was asked about {unknown[0]!r}, which is no block.")
        asked.append(names)
        return _peak(case, tuple(names))

    if case.get("refused"):
        call = lambda: answer(dict(case["prices"]), peak_of, case["limit"])  # noqa: E731
        return {"said": error_said(call, ValueError), "asked": asked, "chosen": []}
    chosen = answer(dict(case["prices"]), peak_of, case["limit"])
    if not isinstance(chosen, list | tuple | set | frozenset):
        raise CheckError(f"a tuple of blocks is wanted, and {type(chosen).__name__} came.")
    return {"chosen": list(chosen), "asked": asked, "said": ""}


def _judge(case: Case, result: Result) -> None:
    asked = [
        frozenset(map(str, items(names, "a question to peak_of")))
        for names in items(result.get("asked"), "asked")
    ]
    if case.get("refused"):
        least = _least(case)
        where = f"where no choice fits a limit of {case['limit']} and the lowest peak is {least}"
        oracles.demand_words(str(result.get("said")), "ValueError", [case["limit"], least], where)
        _judge_asked(asked, 0)
        return
    chosen, best = (
        frozenset(map(str, items(result.get("chosen"), "chosen"))),
        frozenset(_best(case)),
    )
    if chosen - case["prices"].keys():
        raise CheckError(f"{sorted(chosen)} are not all blocks: give names of prices.")
    peak, price = _peak(case, tuple(chosen)), _price(case, chosen)
    if peak > case["limit"]:
        raise CheckError(
            f"{sorted(chosen)} has a peak of {peak:,}, and the limit is {case['limit']:,}: savings "
            "do not add up, since a whole segment comes back in backward. Ask peak_of."
        )
    if chosen != best:
        raise CheckError(
            f"{sorted(chosen)} fits for {price:,} recomputed FLOPs, and another choice fits for "
            f"{_price(case, best):,}. {_slip(case, chosen, peak)}"
        )
    _judge_asked(asked, sum(_price(case, names) > _price(case, best) for names in asked))
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


def _slip(case: Case, chosen: frozenset[str], peak: int) -> str:
    fitting = [c for c in _choices(case) if _peak(case, c) <= case["limit"]]
    if () in fitting:
        return "The limit is above the peak without segments: no block at all is a choice too."
    if peak == min(_peak(case, choice) for choice in fitting):
        return "Yours has the lowest peak of all, and nobody asked for that."
    if len(chosen) == min(map(len, fitting)):
        return "Yours has the fewest blocks, which do not all cost the same."
    if all(
        _peak(case, c) == case["limit"] for c in fitting if _price(case, c) < _price(case, chosen)
    ):
        return "A peak equal to the limit fits."
    return "Were all choices looked at, the cheapest first?"


cheapest_fit = Check(
    name="lab08.cheapest_fit",
    exercise="8.5",
    passed="the cheapest choice that fits, and no measurement beyond it",
    cases=_cases,
    run=_run,
    judge=_judge,
)
