"""The halves that run 8.3 and 8.5: the floor, and a search for a plan."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.given import Answer, Case, CheckError, Result, answered, observe, run_half
from tutorial_lib.checks.given.outside import report

from . import models

STATE_BYTES: dict[str, Callable[[Tensor], int]] = {
    "momentum": lambda parameter: parameter.nbytes,
    "adamw": lambda parameter: 2 * parameter.nbytes + 4,
}
MEASURED = "measured"  # is reported for each plan
Plan = tuple[int, tuple[str, ...]]  # images at once, blocks that are segments


def with_buffers(case: Case) -> nn.Module:
    """Build a U-Net with buffers, one of them not persistent, frozen in part or not."""
    unet = models.make_unet(case)
    unet.register_buffer("average", torch.zeros(100))
    unet.register_buffer("counts", torch.zeros(30, dtype=torch.int64), persistent=False)
    if case["frozen"]:
        unet.down_blocks.requires_grad_(False)
    return unet


def multiple_of(case: Case) -> int:
    """Return the number that the side of an image must be a multiple of."""
    return int(2 ** (case["levels"] - 1))


@run_half("8.3")
def room_for_activations(answer: Answer, case: Case) -> Result:
    unet = with_buffers(case).to("meta" if case.get("on_meta") else "cpu")
    state_bytes = STATE_BYTES[case["optimizer"]]
    ask = partial(answer, unet, case["side"], state_bytes, case["cap_bytes"])
    if case["more"] < 0 or case["side"] % multiple_of(case):
        return {"said": observe.error_said(ask, "ValueError")}
    try:
        return {"said": "", "room": ask()}
    except ValueError as error:
        return {"said": str(error)}


class _NoPlanError(Exception):
    pass


class Peaks:
    """The peaks of a case's plans."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def peak(self, plan: Plan) -> int:
        """Return a peak as a real one behaves: savings add up, and one whole segment comes back."""
        report(MEASURED)
        saved = sum(self.case["saved"][name] for name in plan[1])
        back = max((self.case["whole"][name] for name in plan[1]), default=0)
        return int(10**5 + plan[0] * (5 * 10**4 - saved + back))


def as_plan(returned: Any) -> Plan:
    """Take a would-be plan apart; its micro-batch may be anything as yet."""
    size, names = answered.several(returned, 2, "a micro-batch and a tuple of blocks")
    if not isinstance(names, list | tuple | set | frozenset):
        raise CheckError(f"a tuple of blocks is wanted, and {type(names).__name__} came.")
    return size, tuple(sorted(map(str, names)))


def is_plan(plan: Plan, case: Case) -> bool:
    """Tell whether there are as many images, and such blocks."""
    return plan[0] in range(1, case["num"] + 1) and set(plan[1]) <= set(case["prices"])


@run_half("8.5")
def cheapest_fit(answer: Answer, case: Case) -> Result:
    asked: list[Plan] = []
    plans, seen = Peaks(case), dict[str, Any](asked=asked)

    def peak_of(micro_batch: int, choice: Any) -> int:
        asked.append(as_plan((micro_batch, choice)))
        if not is_plan(asked[-1], case):
            raise _NoPlanError
        return plans.peak(asked[-1])

    known = case["num"], case["full"], case["plain"], dict(case["prices"])
    call = partial(answer, *known, peak_of, case["limit"])
    with contextlib.suppress(_NoPlanError):  # the judge reads what was asked, and says what it is
        if case.get("refused"):
            seen["said"] = observe.error_said(call, "ValueError")
        else:
            seen["chosen"] = as_plan(call())
    return seen
