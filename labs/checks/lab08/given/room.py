"""The halves that run 8.3, 8.4 and 8.5: the floor, prices of segments, and a search for a plan."""

import contextlib
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, CheckError, Result, answered, observe, run_half
from tutorial_lib.checks.given.outside import report
from tutorial_lib.checks.given.surroundings import watched

from . import models

FROZEN = ("conv_in", "time_embedding", "down_blocks.0")
STATE_BYTES: dict[str, Callable[[Tensor], int]] = {
    "momentum": lambda parameter: parameter.nbytes,
    "adamw": lambda parameter: 2 * parameter.nbytes + 4,
}
MEASURED = "measured"  # is reported for each plan
Plan = tuple[int, tuple[str, ...]]  # images at once, blocks that are segments


def make_priced(case: Case) -> nn.Module:
    """Build a case's U-Net, with a BatchNorm for its buffers."""
    unet = models.make_unet(case)
    resnets: Any = unet.get_submodule("mid_block.resnets")
    resnets[0].norm2 = nn.BatchNorm2d(16)
    if case["twice"]:
        resnets[1] = resnets[0]
    for name in FROZEN if case["frozen"] else ():
        unet.get_submodule(name).requires_grad_(False)
    return unet


def flops_of_step(
    unet: nn.Module, case: Case, counter: Callable[[], Any] = memory.flop_counter
) -> int:
    """Count the FLOPs of a step, for all its images."""
    with counter() as counted:
        models.backward(unet, models.make_drawn(case, case["num"]), case["num"])
    return int(counted.get_total_flops())


class _InterruptedError(Exception):
    pass


@run_half("8.4")
def prices_of(answer: Answer, case: Case) -> Result:
    unet, forwards = make_priced(case), count(1)
    blocks = {name: unet.get_submodule(name) for name in case["blocks"]}
    drawn = models.make_drawn(case, case["num"])
    observe.fill_gradients(unet)
    unet.get_submodule("up_blocks.0").eval()
    seen: dict[str, Any] = {"came_out": False}

    def fail_in_second_forward(*_: Any) -> None:  # a copy of the U-Net has it too, and its count
        if next(forwards) == 2:
            raise _InterruptedError("an operation got sizes that do not match")

    hook = unet.register_forward_pre_hook(fail_in_second_forward) if case["fails"] else None
    with watched(unet, drawn) as changed:
        try:
            seen["prices"] = answer(unet, drawn, blocks)
        except _InterruptedError:
            seen["came_out"] = True
    seen |= {"changed": changed, "failed": next(forwards) > 2}
    if hook is not None:
        hook.remove()
    return {**seen, "later": flops_of_step(unet, case)}


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
        raise CheckError(f"a tuple of blocks is needed, but {type(names).__name__} came.")
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
