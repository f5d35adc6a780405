"""The half that runs 8.4: the cost of each of some blocks as a segment."""

from collections.abc import Callable
from itertools import count
from typing import Any

from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, Result, observe, run_half
from tutorial_lib.checks.given.surroundings import watched

from . import models

FROZEN = ("conv_in", "time_embedding", "down_blocks.0")


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
