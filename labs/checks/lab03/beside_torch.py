"""PyTorch's own checkpoint, and comparisons with it or with the plain run, bit for bit."""

import operator
import random
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils import checkpoint as checkpoints

from tutorial_lib.checks.vocabulary import Result, expect, read

from .given.chain import Call, run

_FLOOR = 3 / 4  # of PyTorch's peak: without what one block recomputes, less would be left
torch_checkpoint: Call = partial(checkpoints.checkpoint, use_reentrant=False)


# the oracles: the plain run, and PyTorch's own checkpoint in the place of an answer
run_plain = partial(run, operator.call)
run_torch = partial(run, torch_checkpoint)


def draw_case(draw: random.Random, dropout: float = 0.0) -> dict[str, Any]:
    """Draw the sizes of a chain."""
    seed, width = draw.randrange(10**6), draw.choice([24, 32])
    return {"seed": seed, "width": width, "dropout": dropout, "rows": draw.randint(40, 60)}


def expect_gradients(result: Result, exact: list[Tensor | None]) -> None:
    """Expect these gradients, bit for bit."""
    seen = read.tensors(result["gradients"], len(exact), "gradients")
    wrong = [p for p in zip(seen, exact, strict=True) if not expect.same_bits(*p)]
    largest = max((expect.relative_error(*pair) for pair in wrong), default=0.0)
    number = sum(gradient is not None for gradient in exact)
    expect.fact(
        not wrong,
        f"{len(wrong)} of {number} gradients differ from those of the plain run, by up to "
        f"{largest:.0%}, and must have the same bits: does the recomputation compute what forward "
        "did, from the same inputs, and do you pass on the gradient that arrives?",
    )


def expect_peak(result: Result, peak: int, advice: str) -> None:
    """Expect a peak no higher than PyTorch's, and not so low that the meter missed something."""
    seen = read.integer(result["peak"], "the peak")
    faults = {
        f"with right gradients, the peak is {seen:,} bytes; {peak:,} are enough: {advice}": seen
        > peak,
        f"the meter saw a peak of {seen:,} bytes, and PyTorch's own checkpoint takes {peak:,}: "
        "what a block recomputes does not fit into so few. Recompute where the meter sees it, in "
        "the thread that runs backward.": seen < _FLOOR * peak,
    }
    expect.no_fault(faults)
