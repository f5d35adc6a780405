"""A chain of small blocks, run through any checkpoint and metered, beside PyTorch's own.

Both halves of lab 03's checks run the same chain and read the same meter; what differs is how a
block is called. Gradients are compared bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import forbid, outside
from tutorial_lib.checks.vocabulary import expect, read

Call = Callable[..., Any]

_FLOOR = 3 / 4  # of PyTorch's peak: without what one block recomputes, less would be left


def without_checkpoint(function: Call, *args: Any, **kwargs: Any) -> Any:
    """Call a function as it is."""
    return function(*args, **kwargs)


torch_checkpoint: Call = functools.partial(checkpoints.checkpoint, use_reentrant=False)
torch_without_early_stop: Call = functools.partial(torch_checkpoint, early_stop=False)


NO_TORCH_CHECKPOINT = forbid.checkpointing(
    "torch.utils.checkpoint is what you are writing, so your answer may not call it."
)


class CountingBlock(nn.Module):
    """A block that counts how often it was begun and how often it came to its end.

    Each softmax saves its own result: kept with its graph, the two hold each other. The last
    operation that saves anything is the last linear layer. The first half is wider than the second:
    if what the second saved is still there when the first goes backward, the peak tells.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.wide, self.wide_2 = nn.Linear(width, 5 * width), nn.Linear(width, 4 * width)
        self.narrow, self.narrow_2 = nn.Linear(5 * width, width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.begun = self.ended = 0
        self.number, self.run_name = 0, ""  # what its reports begin and end with
        self.in_forward: int | None = None  # runs until backward began
        self.runs: list[tuple[bool, bool]] = []  # gradients on? does the input need one?

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map `(rows, width)` and a gate `(width,)` of zeros and ones to `(rows, width)`."""
        self.begun += 1
        self._report("begun")
        if self.in_forward is not None:
            self._report("again")
        self.runs.append((torch.is_grad_enabled(), x.requires_grad))
        x = x + self.narrow(self.dropout(self.wide(x * gate).softmax(-1)))
        y: Tensor = x + self.narrow_2(self.wide_2(x).softmax(-1))
        self.ended += 1
        self._report("ended")
        return y

    def _report(self, event: str) -> None:
        outside.report(f"{event}{self.run_name} {self.number}")


def draw_case(draw: random.Random, dropout: float = 0.0) -> dict[str, Any]:
    """Draw the sizes of a chain."""
    seed, width = draw.randrange(10**6), draw.choice([24, 32])
    return {"seed": seed, "width": width, "dropout": dropout, "rows": draw.randint(40, 60)}


def make_chain(case: Case) -> tuple[list[CountingBlock], Tensor, Tensor]:
    """Build a case's blocks, its input, and the gate, which is of integers."""
    torch.manual_seed(case["seed"])
    blocks = [CountingBlock(case["width"], case["dropout"]) for _ in range(case["num_blocks"])]
    for number, block in enumerate(blocks):
        block.train(case.get("training", True))
        block.number = number
    x = torch.randn(case["rows"], case["width"], requires_grad=case["input_needs_grad"])
    return blocks, x, torch.arange(case["width"]) % 2


def run(call: Call, case: Case, run_name: str = "") -> Result:
    """Run the blocks forward and backward, each by `call(block, h, gate)`.

    Where the case has a `group`, so many blocks are called one by one inside a call of their own.
    `run_name` stands in the reports of the blocks, where a check runs the chain twice.

    Returns:
        `gradients` (of all parameters, then of the input), `peak` in bytes above what was there
        before, `begun` and `ended` by block, `again`: how often each was begun in backward,
        `stayed` (see `stayed_bytes`), and `made`: the bytes of all tensors that came and went.
    """
    blocks, x, gate = make_chain(case)
    model, size = nn.ModuleList(blocks), case.get("group", 1)
    for block in blocks:
        block.run_name = run_name
    for parameter in model.parameters():  # steady state: else their arrival would hide the rest
        parameter.grad = torch.zeros_like(parameter)
    with memory.watch(model=model) as report, _explained_failures(blocks):
        h = x
        for start in range(0, len(blocks), size):
            h = _returned(call(_in_turn(call, blocks[start : start + size]), h, gate))
        for block in blocks:
            block.in_forward = block.begun
        h.square().mean().backward()  # type: ignore[no-untyped-call]
        del h
    return {
        "gradients": [p.grad for p in model.parameters()] + [x.grad],
        "peak": report.peak_bytes - report.baseline_bytes,
        "begun": [block.begun for block in blocks],
        "again": [block.begun - (block.in_forward or 0) for block in blocks],
        "ended": [block.ended for block in blocks],
        "stayed": stayed_bytes(report),
        "made": sum(life.num_bytes for life in report.timeline),
    }


def run_with_and_without_early_stop(stopping: Call, to_the_end: Call, case: Case) -> Result:
    """Give what `run` gives, and under `ended_without_stop` how often the blocks ended then."""
    ended = run(to_the_end, case, "_without_stop")["ended"]
    return {**run(stopping, case), "ended_without_stop": ended}


def _returned(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise CheckError(
        f"a block called through yours gave {type(result).__name__}, and its own result, a "
        "tensor, is wanted: return it."
    )


def _in_turn(call: Call, blocks: list[CountingBlock]) -> Call:
    if len(blocks) == 1:
        return blocks[0]

    def run_all(h: Tensor, gate: Tensor) -> Tensor:
        for block in blocks:
            h = _returned(call(block, h, gate))
        return h

    return run_all


@contextlib.contextmanager
def _explained_failures(blocks: list[CountingBlock]) -> Iterator[None]:
    """Say why a recomputation failed where its circumstances tell."""
    try:
        yield
    except (CheckError, NotImplementedError):
        raise
    except Exception as error:
        if blocks[0].in_forward is None:
            raise
        why = f"({type(error).__name__}: {error})"
        again = [block.runs for block in blocks if block.begun > (block.in_forward or 0)]
        if not again:
            raise CheckError(
                f"backward failed {why} before any block ran again: look at what comes before the "
                "recomputation, or stands in its place."
            ) from error
        if any(runs[0][1] and runs[-1] == (False, True) for runs in again):
            raise CheckError(
                f"the recomputation failed {why}: it ran with gradients off, as all of backward "
                "does, and autograd saves nothing then. Turn them on."
            ) from error
        if any(runs[0][1] and not runs[-1][1] for runs in again):
            raise CheckError(
                f"the recomputation failed {why}: its input needed a gradient in forward and needs "
                "none any more, so it saves other tensors. Do not detach the arguments."
            ) from error
        raise


def stayed_bytes(report: memory.MemoryReport) -> int:
    """Count recomputed bytes that outlived a block, at least until garbage was collected."""
    end = max((life.born for life in report.timeline), default=0)
    lives = [life for life in report.timeline if life.category == "recomputed"]
    return sum(life.num_bytes for life in lives if life.died is None or life.died > end)


def expect_gradients(result: Result, exact: list[Tensor | None]) -> None:
    """Expect these gradients, bit for bit.

    Raises:
        CheckError: With the number of gradients that differ and the largest error.
    """
    seen = read.tensors(result.get("gradients"), len(exact), "gradients")
    wrong = [p for p in zip(seen, exact, strict=True) if not expect.same_bits(*p)]
    if wrong:
        largest = max(expect.relative_error(*pair) for pair in wrong)
        number = sum(gradient is not None for gradient in exact)
        raise CheckError(
            f"{len(wrong)} of {number} gradients differ from those of the plain run, by up to "
            f"{largest:.0%}, and the same bits are wanted: does the recomputation compute what "
            "forward did, from the same inputs, and is the gradient that arrives passed on?"
        )


def expect_peak(result: Result, peak: int, advice: str) -> None:
    """Expect a peak no higher than PyTorch's, and not so low that the meter missed something.

    Raises:
        CheckError: With both numbers and the advice.
    """
    seen = read.integer(result.get("peak"), "the peak")
    if seen > peak:
        raise CheckError(
            f"the peak is {seen:,} bytes, and {peak:,} are enough, with right gradients: {advice}"
        )
    if seen < _FLOOR * peak:
        raise CheckError(
            f"the peak is said to be {seen:,} bytes, and PyTorch's own checkpoint takes {peak:,}: "
            "what a block recomputes does not fit into so few. Recompute where the meter looks on, "
            "in the thread that goes backward."
        )
