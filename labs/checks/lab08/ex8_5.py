"""The check of 8.5, the search: micro-batch and segments together, the fastest plan that fits."""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

from tutorial_lib.checks.given import outside
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from .given import room
from .given.room import Plan

_PASSED = "finds the fastest plan that fits, and measures no plan after it"
_BLOCKS = ("down", "mid", "up 0", "up 1")
# Images, images that fill the GPU, and of each block the price and the bytes that it saves and that
# come back while it is recomputed. Of random draws one in hundreds leads all shortcuts astray:
# these do, and most draws near them.
_ASTRAY = (
    (39, 7, (79447, 50542, 54279, 10130), (9977, 4483, 9612, 4255), (3679, 8157, 1588, 3236)),
    (38, 10, (90219, 83005, 45705, 36268), (10849, 9493, 7214, 1378), (2093, 5504, 5785, 2384)),
    (31, 10, (40161, 32328, 97606, 57178), (7061, 1175, 11076, 8113), (2385, 8501, 6605, 1036)),
)


def _cases(draw: Draw) -> Cases:
    while True:  # until every shortcut leads astray
        case = _near(draw, *draw.choice(_ASTRAY))
        plans = Plans({**case, "limit": 0})
        enough = plans.peak(draw.choice(plans.all))
        case["limit"] = next(peak for peak in map(plans.peak, plans.all) if peak <= enough)
        if Plans(case).is_tricky():
            break
    yield case
    yield {**case, "limit": plans.peak((plans.sizes[-1], ())) + 1}
    # all blocks have the lowest peak, or not all: one is larger than what the others save
    large = {**case["whole"], draw.choice(_BLOCKS): 4 * 10**4}
    for whole in (dict.fromkeys(_BLOCKS, 100), large):
        limit = Plans({**case, "whole": whole}).least - 1
        yield {**case, "whole": whole, "limit": limit, "refused": True}


def _near(draw: Draw, num: int, full: int, *of_blocks: Sequence[int]) -> dict[str, Any]:
    """Draw numbers within a tenth of those given, for blocks in another order."""
    order = draw.sample(range(len(_BLOCKS)), len(_BLOCKS))
    near = [
        {name: round(draw.uniform(0.9, 1.1) * values[k]) for name, k in zip(_BLOCKS, order)}  # noqa: B905
        for values in of_blocks
    ]
    return {"num": num, "full": full, "plain": 5 * 10**5} | dict(
        zip(("prices", "saved", "whole"), near, strict=True)
    )


class Plans(room.Peaks):
    """All plans of a case that are worth a measurement, the fastest first, and the lowest peak."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.blocks = tuple(case["prices"])
        lengths = range(len(self.blocks) + 1)
        choices = [choice for length in lengths for choice in combinations(self.blocks, length)]
        work = {size: self.time((size, ())) for size in range(1, case["num"] + 1)}
        # a larger micro-batch must take less time
        self.sizes = [n for n in work if all(work[m] > work[n] for m in range(1, n))]
        self.all: list[Plan] = sorted(product(self.sizes, choices), key=self.time)
        self.fitting = [plan for plan in self.all if self.peak(plan) <= case["limit"]]
        self.least = min(map(self.peak, self.all))

    def time(self, plan: Plan) -> int:
        """Return the time of an update, in FLOPs at full speed."""
        size, choice = plan
        per_image = self.case["plain"] + sum(self.case["prices"][name] for name in choice)
        return int(-(-self.case["num"] // size) * max(size, self.case["full"]) * per_image)

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

    def by_price(self) -> Plan | None:
        """Return the plan of who adds one block after the other, the cheapest first."""
        return self._greedy(lambda name: self.case["prices"][name])

    def _greedy(self, key: Callable[[str], float]) -> Plan | None:
        ranked = sorted(self.blocks, key=key)
        taken = [tuple(sorted(ranked[:length])) for length in range(len(ranked) + 1)]
        return next((plan for plan in self.fitting if plan[1] in taken), None)


def _plan(returned: Any, case: Case) -> Plan:
    size, names = room.as_plan(returned)
    size = read.integer(size, "the micro-batch")
    expect.fact(
        room.is_plan((size, names), case),
        f"{size} images of {case['num']}, with {names}: that isn't a plan.",
    )
    return size, names


@check(room.cheapest_fit, _PASSED, _cases, oracle=Plans)
def cheapest_fit(case: Case, result: Result, plans: Plans) -> None:
    asked = [_plan(plan, case) for plan in read.items(result["asked"], "asked")]
    limit, least = case["limit"], plans.least
    if case.get("refused"):
        reason = f"no plan fits a limit of {limit}, since the lowest peak is {least}"
        expect.refuses(result["said"], ValueError, reason, [limit, least])
        _judge_asked(result, asked, plans)
        return
    chosen, best = _plan(result["chosen"], case), plans.fitting[0]
    peak, time, least_time = plans.peak(chosen), plans.time(chosen), plans.time(best)
    expect.fact(
        peak <= limit,
        f"{chosen} has a peak of {peak:,}, and the limit is {limit:,}: savings do not add up, "
        "since backward holds one whole segment. Call peak_of.",
    )
    expect.fact(
        chosen == best,
        f"{chosen} fits and takes {time:,}, but another plan fits and takes {least_time:,}. "
        f"{_why_slower(chosen, plans)}",
    )
    expect.fact(best in asked, "you returned a plan that was never measured.")
    _judge_asked(result, asked, plans)


def _judge_asked(result: Result, asked: list[Plan], plans: Plans) -> None:
    last = max(map(plans.time, plans.fitting[:1] or plans.all))
    slower = sum(plans.time(plan) > last for plan in asked)
    idle = sum(size not in plans.sizes for size, _ in asked)
    again = len(asked) - len(set(asked))
    reported = result[outside.COUNTS] or {room.MEASURED: len(asked)}
    hidden = reported.get(room.MEASURED, 0) - len(asked)
    faults = {
        f"and {hidden} more without peak_of": hidden,
        f"{idle} of them although a smaller micro-batch takes no longer": idle,
        f"{slower} of them slower than the answer": slower,
        f"{again} of them again": again,
    }
    advice = "a measurement is a training step. Try the fastest first, each once, and stop."
    for words, number in faults.items():
        expect.fact(number == 0, f"{len(asked)} plans were measured, {words}: {advice}")


def _why_slower(chosen: Plan, plans: Plans) -> str:
    best, limit = plans.fitting[0], plans.case["limit"]
    below = next((plan for plan in plans.fitting if plans.peak(plan) < limit), None)
    is_least = plans.peak(chosen) == plans.least
    is_filled = chosen[0] <= plans.case["full"] < best[0]
    reasons = {
        "A peak equal to the limit fits.": chosen == below,
        "Yours has the lowest peak of all, but you need the fastest plan that fits.": is_least,
        "A micro-batch larger than `full` takes fewer rounds, so it may be faster.": is_filled,
        "The fastest plan needs no segment: try an empty choice of blocks too.": not best[1],
        "Micro-batches alone fit, but with a few segments the plan is faster.": not chosen[1],
        "A smaller micro-batch takes no longer.": chosen[0] not in plans.sizes,
        "Blocks were added in the order of their prices alone.": chosen == plans.by_price(),
        "A smaller micro-batch with fewer segments is faster.": chosen[0] > best[0],
    }
    found = (words for words, is_so in reasons.items() if is_so)
    return next(found, "Were all micro-batches and blocks tried together, the fastest first?")
