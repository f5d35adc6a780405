"""The check of 8.4, the price of a segment: FLOPs that each block alone adds to a step."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import memory
from tutorial_lib.checks.given import answered
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from . import given
from .given.room import flops_of_step, make_priced

_PASSED = "the exact price of each block of four U-Nets, and the model is left as it was"
_LEVELS = ["down_blocks.0", "down_blocks.1", "mid_block", "up_blocks.0", "up_blocks.1"]
_IN_THE_MIDDLE = ["up_blocks.0", "mid_block.resnets.0", "mid_block"]
_PLAIN_COUNTER = partial(FlopCounterMode, display=False)
_IS_BLIND = torch.__version__ < "2.15"  # to the fused attention of a CPU
_MESSAGES = {
    "gradients": (
        ".grad has changed: your steps add to it, or clear it, but the caller still needs it. Put "
        "back what was there, or step on a copy."
    ),
    "buffers": (
        "a buffer has changed: your steps move BatchNorm's averages. Put back what was there, or "
        "step on a copy."
    ),
    "random state": (
        "the random state has moved: dropout draws. torch.random.fork_rng(devices=[]) puts it back."
    ),
}


def _cases(draw: Draw) -> Cases:
    def case(blocks: list[str], **more: bool) -> Case:
        sizes = {"num": draw.randrange(2, 6), "layers": draw.randrange(1, 3), "dropout": 0.1}
        kind = dict.fromkeys(("attention", "twice", "frozen", "fails"), False) | more
        return {"seed": draw.randrange(10**6), **sizes, **kind, "blocks": blocks}

    yield case(_LEVELS)
    yield case(_IN_THE_MIDDLE, attention=True)
    yield case(_IN_THE_MIDDLE, twice=True)
    yield case(_LEVELS, frozen=True)
    yield case(_LEVELS, fails=True)


class _Right:
    """The right prices, of a new U-Net for each step."""

    def __init__(self, case: Case) -> None:
        self.case, self._counted = case, dict[Any, int]()

    def flops(
        self,
        *names: str,
        early_stop: bool = True,
        counter: Callable[[], Any] = memory.flop_counter,
        **other: bool,
    ) -> int:
        """Count a step's FLOPs, an image, with blocks as segments, and the case in part another."""
        key = (names, early_stop, counter, *other.items())
        if key not in self._counted:
            case = {**self.case, **other}
            self._counted[key] = self._count(case, names, early_stop, counter)
        return self._counted[key]

    @staticmethod
    def _count(
        case: Case, names: tuple[str, ...], early_stop: bool, counter: Callable[[], Any]
    ) -> int:
        unet = make_priced(case)
        for block in map(unet.get_submodule, names):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        with set_checkpoint_early_stop(early_stop):
            return flops_of_step(unet, case, counter) // int(case["num"])

    @cached_property
    def plain(self) -> int:
        """FLOPs of the plain step, an image."""
        return self.flops()

    @cached_property
    def prices(self) -> dict[str, int]:
        """Additional FLOPs of each block."""
        return {name: self.flops(name) - self.plain for name in self.case["blocks"]}


@check(given.prices_of, _PASSED, _cases, oracle=_Right)
def prices_of(case: Case, result: Result, right: _Right) -> None:
    after = "an error in a step" if case["fails"] else "your call"
    if not case["fails"] or not read.flag(result, "failed"):
        _judge_prices(case, answered.fields(result["prices"], case["blocks"]), right)
        came_out = True
    else:
        came_out = read.flag(result, "came_out")
    later = read.integer(result["later"], "the FLOPs of a later step")
    faults = {
        "an error that was raised in a step did not come out of your function: put things back, "
        "and let the error pass.": not came_out,
        f"after {after} a plain step no longer has the same FLOPs: is a block still a segment? A "
        "with statement undoes it, even after an error.": later != right.plain * case["num"],
    }
    expect.no_fault(faults)
    expect.unchanged(result, {name: f"after {after} {said}" for name, said in _MESSAGES.items()})


def _judge_prices(case: Case, prices: Result, right: _Right) -> None:
    for name, wanted in right.prices.items():
        expect.close(
            read.integer(prices[name], f"the price of {name}"),
            wanted,
            _faults(case, name, right),
            otherwise="wrong, but none of the usual mistakes explains it: take the FLOPs per image "
            "of a step with this block alone as a segment, minus the FLOPs of a plain step.",
            where=f"the price of {name}: ",
        )


def _faults(case: Case, name: str, right: _Right) -> Faults:
    plain, price, num = right.plain, right.prices[name], case["num"]
    if case["frozen"] and not price:
        yield (
            "nothing in this block or before it is trained, so backward never gets there, and it "
            "doesn't run again. Yours is the price with all trained: count in this U-Net.",
            right.flops(name, frozen=False) - right.flops(frozen=False),
        )
    if case["twice"] and name == "mid_block.resnets.0":
        yield (
            "it runs twice in a forward, but yours is the price of one run: both are segments.",
            right.flops(name, twice=False) - right.flops(twice=False),
        )
    if case["attention"] and _IS_BLIND:
        yield (
            "the block has fused attention, but yours is the price without: up to 2.14, PyTorch's "
            "own counter doesn't count it on a CPU. Use memory.flop_counter().",
            right.flops(name, counter=_PLAIN_COUNTER) - right.flops(counter=_PLAIN_COUNTER),
        )
    yield from {
        "that is a whole step with the segment: subtract the plain step.": plain + price,
        "that is the price for all images together: divide by their number.": num * price,
        "one more forward of the block costs more than its segment: the recomputation stops once "
        "the last tensor that backward asks for is there, so measure a step.": (
            right.flops(name, early_stop=False) - plain
        ),
        "nothing ran again in your count: run backward while the FLOPs are counted and the block "
        "is a segment. If you stepped on a copy: is the block one of the copy's?": 0,
    }.items()
    before = case["blocks"][: case["blocks"].index(name) + 1]
    together = right.flops(*before) - plain
    yield "the blocks before it were segments as well: undo each before the next.", together
    share = (right.flops(*case["blocks"]) - plain) // len(right.prices)
    yield "that is an equal share of what all blocks cost: each has its own price.", share
