"""A chain of small blocks, run and metered through an answer's checkpoint or PyTorch's own."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.given import Case, CheckError, Result, forbid, observe, outside

Call = Callable[..., Any]
NO_TORCH_CHECKPOINT = forbid.checkpointing(
    "torch.utils.checkpoint is what you are writing, so your answer may not call it."
)


class CountingBlock(nn.Module):
    """A block that counts how often it was begun and how often it came to its end.

    Each softmax saves its own result: kept with its graph, the two hold each other. The last
    operation that saves anything is the last linear layer. The first half is wider than the second:
    if what the second saved is still there when the first goes backward, the peak tells. Its
    reports end with its name.
    """

    def __init__(self, width: int, dropout: float, name: str) -> None:
        super().__init__()
        self.wide, self.wide_2 = nn.Linear(width, 5 * width), nn.Linear(width, 4 * width)
        self.narrow, self.narrow_2 = nn.Linear(5 * width, width), nn.Linear(4 * width, width)
        self.dropout, self.name = nn.Dropout(dropout), name
        self.begun = self.ended = 0
        self.in_forward: int | None = None  # runs until backward began
        self.runs: list[tuple[bool, bool]] = []  # gradients on? does the input need one?

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map `(rows, width)` and a gate `(width,)` of zeros and ones to `(rows, width)`."""
        self.begun += 1
        outside.report(f"begun{self.name}")
        if self.in_forward is not None:
            outside.report(f"again{self.name}")
        self.runs.append((torch.is_grad_enabled(), x.requires_grad))
        x = x + self.narrow(self.dropout(self.wide(x * gate).softmax(-1)))
        y: Tensor = x + self.narrow_2(self.wide_2(x).softmax(-1))
        self.ended += 1
        outside.report(f"ended{self.name}")
        return y

    @property
    def again(self) -> int:
        """Number of its beginnings in backward."""
        return self.begun - (self.in_forward or 0)


def make_chain(case: Case, run_name: str = "") -> tuple[list[CountingBlock], Tensor, Tensor]:
    """Build a case's blocks, its input, and the gate, which is of integers.

    `run_name` stands in the reports of the blocks, where a check runs the chain twice.
    """
    torch.manual_seed(case["seed"])
    names = [f"{run_name} {number}" for number in range(case["num_blocks"])]
    blocks = [CountingBlock(case["width"], case["dropout"], name) for name in names]
    for block in blocks:
        block.train(case.get("training", True))
    x = torch.randn(case["rows"], case["width"], requires_grad=case["input_needs_grad"])
    return blocks, x, torch.arange(case["width"]) % 2


def run(call: Call, case: Case, run_name: str = "") -> Result:
    """Run the blocks forward and backward, each by `call(block, h, gate)`.

    Where the case has a `group`, so many blocks are called one by one inside a call of their own.

    Returns:
        `gradients` (of all parameters, then of the input), `peak` in bytes above what was there
        before, `begun`, `again` (in backward) and `ended` by block, `stayed` (see `stayed_bytes`),
        and `made`: the bytes of all tensors that came and went.
    """
    blocks, x, gate = make_chain(case, run_name)
    model, size = nn.ModuleList(blocks), case.get("group", 1)
    observe.fill_gradients(model, 0)  # steady state: else their arrival would hide the rest
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
        "again": [block.again for block in blocks],
        "ended": [block.ended for block in blocks],
        "stayed": stayed_bytes(report),
        "made": sum(life.num_bytes for life in report.timeline),
    }


def run_with_and_without_early_stop(call: Call, case: Case) -> Result:
    """Return the result of `run`, and as `ended_without_stop` how often the blocks ended then."""
    ended = run(partial(call, early_stop=False), case, "_without_stop")["ended"]
    return {**run(call, case), "ended_without_stop": ended}


def _returned(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise CheckError(
        f"a block called through yours gave {type(result).__name__}, not its own result, a "
        "tensor: return that."
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
        again = [block.runs for block in blocks if block.again > 0]
        reasons = {
            f"backward failed {why} before any block ran again: what did yours do before it called "
            "the function? In 3.6, save the arguments outside the hooks.": not again,
            f"the recomputation failed {why}: it ran with gradients off, as all of backward "
            "does, and autograd saves nothing then. Turn them on.": any(
                runs[0][1] and runs[-1] == (False, True) for runs in again
            ),
            f"the recomputation failed {why}: its input needed a gradient in forward and no "
            "longer needs one, so it saves other tensors. Do not detach the arguments.": any(
                runs[0][1] and not runs[-1][1] for runs in again
            ),
        }
        for words in (words for words, is_so in reasons.items() if is_so):
            raise CheckError(words) from error
        raise


def stayed_bytes(report: memory.MemoryReport) -> int:
    """Count recomputed bytes that outlived a block, at least until garbage was collected."""
    end = max((life.born for life in report.timeline), default=0)
    lives = [life for life in report.timeline if life.category == "recomputed"]
    return sum(life.num_bytes for life in lives if life.died is None or life.died > end)
