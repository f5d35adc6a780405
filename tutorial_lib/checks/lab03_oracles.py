"""The oracles of lab 03: small blocks, run as they are or by PyTorch's own checkpoint, and metered.

Both halves of the checks run the same chain of blocks and read the same meter; what differs is
how a block is called. Gradients are compared bit for bit, so one thread does the sums.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.results import error_of, same, tensors, whole_number
from tutorial_lib.checks.running import remembered, without_checkpoint

Call = Callable[..., Any]

_FLOOR = 3 / 4  # of PyTorch's peak: without what one block recomputes, less would be left


class Counting(nn.Module):
    """A block that counts how often it was begun and how often it came to its end.

    Each softmax saves its own result: kept with its graph, it ties a knot. The last operation that
    saves anything is the last linear layer. The first half is wider than the second: if what the
    second saved is still there when the first goes backward, the peak tells.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.wide, self.wide_2 = nn.Linear(width, 5 * width), nn.Linear(width, 4 * width)
        self.narrow, self.narrow_2 = nn.Linear(5 * width, width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.begun = self.ended = 0
        self.in_forward: int | None = None  # runs until backward began
        self.runs: list[tuple[bool, bool]] = []  # gradients on? does the input need one?

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map `(rows, width)` and a gate `(width,)` of zeros and ones to `(rows, width)`."""
        self.begun += 1
        self.runs.append((torch.is_grad_enabled(), x.requires_grad))
        x = x + self.narrow(self.dropout(self.wide(x * gate).softmax(-1)))
        y: Tensor = x + self.narrow_2(self.wide_2(x).softmax(-1))
        self.ended += 1
        return y


def plainly(function: Call, *args: Any, **kwargs: Any) -> Any:
    """Call without any checkpoint."""
    return function(*args, **kwargs)


torch_checkpoint: Call = functools.partial(torchs.checkpoint, use_reentrant=False)
torch_to_the_end: Call = functools.partial(torchs.checkpoint, use_reentrant=False, early_stop=False)


def without_torchs() -> contextlib.AbstractContextManager[None]:
    """Refuse PyTorch's checkpoint while an answer runs."""
    return without_checkpoint(
        "torch.utils.checkpoint is what you are writing, so your answer may not call it."
    )


def chain_of(case: Case) -> tuple[list[Counting], Tensor, Tensor]:
    """Build a case's blocks, its input, and the gate, which is of integers."""
    torch.manual_seed(case["seed"])
    blocks = [Counting(case["width"], case["dropout"]) for _ in range(case["num_blocks"])]
    for block in blocks:
        block.train(case.get("training", True))
    x = torch.randn(case["rows"], case["width"], requires_grad=case["input_needs_grad"])
    return blocks, x, torch.arange(case["width"]) % 2


def observe(call: Call, case: Case) -> Result:
    """Run the blocks forward and backward, each by `call(block, h, gate)`.

    Where the case has a `group`, so many blocks are called one by one inside a call of their own.

    Returns:
        `gradients` (of all parameters, then of the input), `peak` in bytes above what was there
        before, `begun` and `ended` by block, `again`: how often each was begun in backward,
        `tangled`: recomputed bytes that nothing but the garbage collector will free, and `made`:
        the bytes of all tensors that came and went.
    """
    blocks, x, gate = chain_of(case)
    model, size = nn.ModuleList(blocks), case.get("group", 1)
    for parameter in model.parameters():  # steady state: else their arrival would hide the rest
        parameter.grad = torch.zeros_like(parameter)
    with memory.watch(model=model) as report, _explained(blocks):
        h = x
        for start in range(0, len(blocks), size):
            h = call(_in_turn(call, blocks[start : start + size]), h, gate)
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
        "tangled": stayed(report),
        "made": sum(life.num_bytes for life in report.timeline),
    }


def _in_turn(call: Call, blocks: list[Counting]) -> Call:
    if len(blocks) == 1:
        return blocks[0]

    def run(h: Tensor, gate: Tensor) -> Tensor:
        for block in blocks:
            h = call(block, h, gate)
        return h

    return run


@contextlib.contextmanager
def _explained(blocks: list[Counting]) -> Iterator[None]:
    """Say why a recomputation failed where its circumstances tell."""
    try:
        yield
    except (CheckError, NotImplementedError):
        raise
    except Exception as error:
        if blocks[0].in_forward is None:
            raise
        told = [block for block in blocks if block.begun > (block.in_forward or 0)]
        if not told:
            raise CheckError(
                f"backward failed ({type(error).__name__}: {error}) before any block ran again: "
                "look at what comes before the recomputation, or stands in its place."
            ) from error
        runs = [(block.runs[0], block.runs[-1]) for block in told]
        said = f"the recomputation failed ({type(error).__name__}: {error})"
        if any(first[1] and again == (False, True) for first, again in runs):
            raise CheckError(
                f"{said}: it ran with gradients off, as all of backward does, and autograd saves "
                "nothing then. Turn them on."
            ) from error
        if any(first[1] and not again[1] for first, again in runs):
            raise CheckError(
                f"{said}: its input needed a gradient in forward and needs none any more, so it "
                "saves other tensors. Do not detach the arguments."
            ) from error
        raise


def stayed(report: memory.MemoryReport) -> int:
    """Count recomputed bytes that outlived a block, at least until garbage was collected."""
    end = max((life.born for life in report.timeline), default=0)
    lives = [life for life in report.timeline if life.category == "recomputed"]
    return sum(life.num_bytes for life in lives if life.died is None or life.died > end)


def saved_multiples(call: Call, case: Case) -> float:
    """Tell how many times its input autograd saves for a block."""
    (block, *_), x, gate = chain_of(case)
    h = x.clone()
    saved = memory.saved(lambda: call(block, h, gate), params_of=block)
    return sum(row.num_bytes for row in saved.rows if row.shape != tuple(gate.shape)) / h.nbytes


@remembered
def wanted(call: Call, case: Case) -> Result:
    """Observe an oracle."""
    return observe(call, case)


def demand_gradients(result: Result, oracle: Result) -> None:
    """Demand the oracle's gradients, bit for bit.

    Raises:
        CheckError: With the number of gradients that differ and the largest error.
    """
    exact = oracle["gradients"]
    seen = tensors(result.get("gradients"), len(exact), "gradients")
    if not all(map(same, seen, exact)):
        pairs = [(s, e) for s, e in zip(seen, exact, strict=True) if e is not None]
        off = [error_of(s, e) for s, e in pairs]
        count = sum(not same(s, e) for s, e in pairs)
        raise CheckError(
            f"{count} of {len(pairs)} gradients differ from those of the plain run, by up to "
            f"{max(off):.0%}, and the same bits are wanted: does the recomputation compute what "
            "forward did, from the same inputs, and is the gradient that arrives passed on?"
        )


def demand_peak(result: Result, oracle: Result, advice: str) -> None:
    """Demand a peak no higher than the oracle's, and not so low that the meter missed something.

    Raises:
        CheckError: With both numbers and the advice.
    """
    peak = whole_number(result.get("peak"), "the peak")
    if peak > oracle["peak"]:
        raise CheckError(
            f"the peak is {peak} bytes, and {oracle['peak']} are enough, with right gradients: "
            f"{advice}"
        )
    if peak < _FLOOR * oracle["peak"]:
        raise CheckError(
            f"the peak is said to be {peak} bytes, and PyTorch's own checkpoint takes "
            f"{oracle['peak']}: what a block recomputes does not fit into so few. Recompute where "
            "the meter looks on, in the thread that goes backward."
        )
