"""The check of 8.5, the search: micro-batch and segments together, the fastest plan that fits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import combinations, product
from typing import Any

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe
from tutorial_lib.checks.vocabulary import expect, read

_BLOCKS = ("down", "mid", "up 0", "up 1")
# Images, images that fill the GPU, and of each block the price and the bytes that it saves and that
# come back while it is recomputed. Of random draws one in hundreds leads all shortcuts astray:
# these do, and most draws near them.
_ASTRAY = (
    (39, 7, (79447, 50542, 54279, 10130), (9977, 4483, 9612, 4255), (3679, 8157, 1588, 3236)),
    (38, 10, (90219, 83005, 45705, 36268), (10849, 9493, 7214, 1378), (2093, 5504, 5785, 2384)),
    (31, 10, (40161, 32328, 97606, 57178), (7061, 1175, 11076, 8113), (2385, 8501, 6605, 1036)),
)
Plan = tuple[int, tuple[str, ...]]  # images at once, blocks that are segments


@cache
def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    while True:  # until every shortcut leads astray
        case = _near(draw, *draw.choice(_ASTRAY))
        plans = Plans({**case, "limit": 0})
        enough = plans.peak(draw.choice(plans.all))
        case["limit"] = next(peak for peak in map(plans.peak, plans.all) if peak <= enough)
        if Plans(case).is_tricky():
            break
    # all blocks have the lowest peak, or not all: one is larger than what the others save
    small = {**case, "whole": dict.fromkeys(_BLOCKS, 100)}
    large = {**case, "whole": {**case["whole"], draw.choice(_BLOCKS): 4 * 10**4}}
    return [
        case,
        {**case, "limit": plans.peak((plans.sizes[-1], ())) + 1},
        *({**each, "limit": Plans(each).least - 1, "refused": True} for each in (small, large)),
    ]


def _near(draw: random.Random, num: int, full: int, *of_blocks: Sequence[int]) -> dict[str, Any]:
    """Draw numbers within a tenth of those given, for blocks in another order."""
    order = draw.sample(range(len(_BLOCKS)), len(_BLOCKS))
    near = [
        {name: round(draw.uniform(0.9, 1.1) * values[k]) for name, k in zip(_BLOCKS, order)}  # noqa: B905
        for values in of_blocks
    ]
    return {"num": num, "full": full, "plain": 5 * 10**5} | dict(
        zip(("prices", "saved", "whole"), near, strict=True)
    )


class Plans:
    """All plans of a case that are worth a measurement, the fastest first, and the lowest peak."""

    def __init__(self, case: Case) -> None:
        self.case, self.blocks = case, tuple(case["prices"])
        lengths = range(len(self.blocks) + 1)
        choices = [choice for length in lengths for choice in combinations(self.blocks, length)]
        work = {size: self.time((size, ())) for size in range(1, case["num"] + 1)}
        # a larger micro-batch must take less time
        self.sizes = [n for n in work if all(work[m] > work[n] for m in range(1, n))]
        self.all: list[Plan] = sorted(product(self.sizes, choices), key=self.time)
        self.fitting = [plan for plan in self.all if self.peak(plan) <= case["limit"]]
        self.least = min(map(self.peak, self.all))

    def time(self, plan: Plan) -> int:
        """Give the time of an update, in FLOPs at full speed."""
        size, choice = plan
        per_image = self.case["plain"] + sum(self.case["prices"][name] for name in choice)
        return int(-(-self.case["num"] // size) * max(size, self.case["full"]) * per_image)

    def peak(self, plan: Plan) -> int:
        """Give a peak as a real one behaves: savings add up, and one whole segment comes back."""
        saved = sum(self.case["saved"][name] for name in plan[1])
        back = max((self.case["whole"][name] for name in plan[1]), default=0)
        return int(10**5 + plan[0] * (5 * 10**4 - saved + back))

    def by_price(self) -> Plan | None:
        """Give the plan of who adds one block after the other, the cheapest first."""
        return self._greedy(lambda name: self.case["prices"][name])

    def is_tricky(self) -> bool:
        """Tell whether no lever alone and no greedy order finds the fastest plan, or the next."""
        best, *others = self.fitting
        alone = {name: self.peak((1, ())) - self.peak((1, (name,))) for name in self.blocks}
        shortcuts = [
            next((plan for plan in self.fitting if not plan[1]), None),
            max(self.fitting, key=lambda plan: (plan[0], -self.time(plan))),
            min(self.fitting, key=self.peak),
            self.by_price(),
            self._greedy(lambda name: -self.case["saved"][name]),
            self._greedy(lambda name: self.case["prices"][name] / (alone[name] or 1)),
        ]
        one_time_each = len(set(map(self.time, self.all))) == len(self.all)
        is_led_astray = not {best, *others[:1]} & set(shortcuts) and len(set(shortcuts[:4])) == 4
        return bool(best[1] and others and is_led_astray and one_time_each)

    def _greedy(self, key: Callable[[str], float]) -> Plan | None:
        ranked = sorted(self.blocks, key=key)
        taken = [tuple(sorted(ranked[:length])) for length in range(len(ranked) + 1)]
        return next((plan for plan in self.fitting if plan[1] in taken), None)


def _plan(returned: Any, case: Case) -> Plan:
    size, names = answered.several(returned, 2, "a micro-batch and a tuple of blocks")
    if not isinstance(names, list | tuple | set | frozenset):
        raise CheckError(f"a tuple of blocks is wanted, and {type(names).__name__} came.")
    size, names = read.integer(size, "the micro-batch"), tuple(sorted(map(str, names)))
    if not 1 <= size <= case["num"] or set(names) - set(case["prices"]):
        raise CheckError(f"{size} images of {case['num']}, with {names}: that is no plan.")
    return size, names


def _run(answer: Callable[..., Any], case: Case) -> Result:
    asked: list[Plan] = []
    plans = Plans(case)

    def peak_of(micro_batch: int, choice: Any) -> int:
        asked.append(_plan((micro_batch, choice), case))
        return plans.peak(asked[-1])

    known = case["num"], case["full"], case["plain"], dict(case["prices"])
    call = partial(answer, *known, peak_of, case["limit"])
    if case.get("refused"):
        return {"said": observe.error_said(call, "ValueError"), "asked": asked}
    return {"chosen": _plan(call(), case), "asked": asked}


def _judge(case: Case, result: Result, plans: Plans) -> None:
    asked = [_plan(plan, case) for plan in read.items(result.get("asked"), "asked")]
    if case.get("refused"):
        least, limit = plans.least, case["limit"]
        reason = f"no plan fits a limit of {limit}, since the lowest peak is {least}"
        expect.refuses(result.get("said"), ValueError, reason, [limit, least])
        _judge_asked(asked, plans)
        return
    chosen, best = _plan(result.get("chosen"), case), plans.fitting[0]
    time, least_time = plans.time(chosen), plans.time(best)
    faults = {
        f"{chosen} has a peak of {plans.peak(chosen):,}, and the limit is {case['limit']:,}: "
        "savings do not add up, since a whole segment comes back in backward. Ask peak_of.": (
            plans.peak(chosen) > case["limit"]
        ),
        f"{chosen} fits and takes {time:,}, and another plan fits and takes {least_time:,}. "
        f"{_why_slower(chosen, plans)}": chosen != best,
    }
    expect.no_fault(faults)
    _judge_asked(asked, plans)
    if best not in asked:
        raise CheckError("the plan that was returned was never measured.")


def _judge_asked(asked: list[Plan], plans: Plans) -> None:
    last = max(map(plans.time, plans.fitting[:1] or plans.all))
    slower = [plan for plan in asked if plans.time(plan) > last]
    idle = [plan for plan in asked if plan[0] not in plans.sizes]
    again = len(asked) - len(set(asked))
    faults = {
        f"{len(idle)} of them although a smaller micro-batch takes no longer": idle,
        f"{len(slower)} of them slower than the answer": slower,
        f"{again} of them again": again,
    }
    advice = "a measurement is a training step. Go from the fastest on, each once, and stop."
    expect.no_fault(
        {
            f"{len(asked)} plans were measured, {words}: {advice}": bool(f)
            for words, f in faults.items()
        }
    )


def _why_slower(chosen: Plan, plans: Plans) -> str:
    best, limit = plans.fitting[0], plans.case["limit"]
    below = next((plan for plan in plans.fitting if plans.peak(plan) < limit), None)
    reasons = {
        "A peak equal to the limit fits.": chosen == below,
        "Yours has the lowest peak of all, and nobody asked for that.": (
            plans.peak(chosen) == plans.least
        ),
        "A micro-batch larger than `full` takes fewer rounds, so it may be faster.": (
            chosen[0] <= plans.case["full"] < best[0]
        ),
        "The fastest plan needs no segment: no block at all is a choice too.": not best[1],
        "Micro-batches alone fit: a few segments beside them cost less.": not chosen[1],
        "A smaller micro-batch takes no longer.": chosen[0] not in plans.sizes,
        "Blocks were added in the order of their prices alone.": chosen == plans.by_price(),
        "A smaller micro-batch with fewer segments is faster.": chosen[0] > best[0],
    }
    found = (words for words, is_so in reasons.items() if is_so)
    return next(found, "Were all micro-batches and blocks tried together, the fastest first?")


cheapest_fit = Check(
    "lab08.cheapest_fit",
    "8.5",
    "the fastest plan that fits, and no measurement beyond it",
    _cases,
    _run,
    _judge,
    oracle=Plans,
)
