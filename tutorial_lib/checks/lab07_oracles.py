"""The oracles of lab 07: towers that count their rows, a contrastive loss, the graph of it all.

An oracle keeps the graph of every micro-batch and goes backward once through the whole: what
cached gradients must equal without keeping it.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, CheckError
from tutorial_lib.checks.running import without_checkpoint

BUFFERS = ("drift", "inner.hidden", "inner.turned", "inner.steps")
Runs = list[tuple[int, bool, bool]]


class Inner(nn.Module):
    """The buffers of a module inside a tower, moved by each call with a number."""

    hidden: Tensor
    turned: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.ones(()), persistent=False)
        self.register_buffer("turned", torch.ones(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, number: Tensor) -> None:
        """Move `hidden` and `steps` in place, `turned` by a new tensor in its place."""
        self.hidden.mul_(0.8).add_(number)
        self.turned = 0.7 * self.turned + number
        self.steps += 1


class CountingTower(nn.Module):
    """Maps rows to embeddings; writes down how many rows came, whether gradients were on, and mode.

    Wide layers make its activations large beside its embeddings. Its buffers move with every
    forward in training where the case says so, as a power iteration's vector or a moving average
    does, and the result depends on them, but for `steps`, which only counts: `drift` is its own,
    the others are its `inner` module's, and `hidden` is in no `state_dict`.
    """

    drift: Tensor

    def __init__(self, case: Case, *, norm: nn.Module | None = None) -> None:
        super().__init__()
        width, hidden = case["width"], case["hidden"]
        self.wide, self.middle = nn.Linear(width, hidden), nn.Linear(hidden, hidden // 16)
        self.narrow = nn.Linear(hidden // 16, case["features"])
        self.dropout, self.norm = nn.Dropout(case["dropout"]), norm or nn.Identity()
        self.moves = bool(case.get("moves"))
        self.register_buffer("drift", torch.ones(()))
        self.inner = Inner()
        self.runs: Runs = []

    def forward(self, rows: Tensor) -> Tensor:
        """Map `(rows, width)` to `(rows, features)`."""
        self.runs.append((len(rows), torch.is_grad_enabled(), self.training))
        if self.moves and self.training:
            with torch.no_grad():
                self.drift.mul_(0.9).add_(rows.mean())
                self.inner(rows.mean())
        hidden = self.norm(self.dropout(F.gelu(self.wide(rows))))
        moved = self.drift.clone() + self.inner.hidden.clone() + self.inner.turned
        scale = 1 + moved if self.moves else 1.0
        out: Tensor = self.narrow(self.dropout(F.gelu(self.middle(hidden)))) * scale
        return out


class InBatch(nn.Module):
    """The symmetric contrastive loss of two or more towers, each with each; learns its scale.

    A `factor` that is infinite makes the loss infinite, whatever the embeddings are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.factor = 1.0

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Map embeddings `(rows, features)`, one tensor a tower, to a scalar."""
        pairs = [(a, b) for i, a in enumerate(embeddings) for b in embeddings[:i]]
        with torch.autocast("cpu", enabled=False):
            losses = [in_batch_loss(a.to(b.dtype), b, self.log_scale) for a, b in pairs]
        return torch.stack(losses).mean() * self.factor


def in_batch_loss(some: Tensor, others: Tensor, log_scale: Tensor, *, scaled: Any = None) -> Tensor:
    """Give the symmetric contrastive loss of pairs `(rows, features)`, from its definition.

    Source:
        Radford et al. (2021), figure 3, with logsumexp written out.
    """
    some, others = (x.float() if x.dtype == torch.bfloat16 else x for x in (some, others))
    some, others = (x / x.norm(dim=1, keepdim=True) for x in (some, others))
    logits = (some @ others.T) * (log_scale.exp() if scaled is None else scaled)
    hits = logits.diagonal()
    both = torch.logsumexp(logits, 1) - hits + torch.logsumexp(logits, 0) - hits
    return both.mean() / 2


class Moments:
    """What stands for `remember` where a check hands moments to an answer: numbers in order."""

    def __init__(self, tower: CountingTower) -> None:
        self.tower = tower
        self.asked_after: list[int] = []

    def __call__(self, tower: nn.Module) -> int:
        """Write down how many runs came before, and give the moment's number."""
        if tower is not self.tower:
            raise CheckError("remember is called with the tower, and something else came.")
        self.asked_after.append(len(self.tower.runs))
        return len(self.asked_after) - 1


def without_torchs() -> contextlib.AbstractContextManager[None]:
    """Refuse PyTorch's checkpoint while an answer runs."""
    return without_checkpoint(
        "torch.utils.checkpoint does this lab's work by itself, as its end shows: here your answer "
        "may not call it."
    )


def dtype_of(case: Case) -> torch.dtype:
    """Give the dtype that a case names."""
    dtype: torch.dtype = getattr(torch, case["dtype"])
    return dtype


def tower_of(case: Case, *, norm: nn.Module | None = None) -> CountingTower:
    """Build a case's tower, with gradients that are there already: backward adds to them."""
    tower = CountingTower(case, norm=norm).to(dtype_of(case))
    add_gradients(tower)
    return tower


def add_gradients(module: nn.Module) -> None:
    """Give each parameter a gradient of ones, as an earlier backward may have left it."""
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)


def gradients_of(modules: Sequence[nn.Module]) -> list[Tensor | None]:
    """List the gradients of all parameters, a module that comes twice only once."""
    return [p.grad for p in nn.ModuleList(modules).parameters()]


def peak_of(run: Callable[[], Any], modules: Sequence[nn.Module]) -> int:
    """Give the most bytes that a call held above what was there before."""
    return peak_and_rest_of(run, modules)[0]


def peak_and_rest_of(run: Callable[[], Any], modules: Sequence[nn.Module]) -> tuple[int, int]:
    """Give the most bytes that a call held above what was there before, and those that it left."""
    with memory.watch(model=nn.ModuleList(modules)) as report:
        returned = run()
    del returned
    return report.peak_bytes - report.baseline_bytes, report.leaked_bytes


def case_of_parts(seed: int) -> dict[str, Any]:
    """Draw a tower and the sizes of its micro-batches, of which chunks of one size are none."""
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "width": 12, "hidden": 512, "features": 16}
    sizes = [5, 3, draw.randint(2, 4), 5, draw.randint(1, 2)]  # chunks of one size do not fit
    return {**case, "sizes": sizes, "dtype": "float64", "dropout": 0.0}


def parts_of(case: Case, times: int = 1) -> list[Tensor]:
    """Make the micro-batches of a case, `(rows, width)` each, as often as is said."""
    generator = torch.Generator().manual_seed(case["seed"])
    sizes, dtype = case["sizes"] * times, dtype_of(case)
    rows = torch.randn(sum(sizes), case["width"], generator=generator, dtype=dtype)
    return list(torch.split(rows, sizes))


def seeded_tower(case: Case) -> CountingTower:
    """Build the tower of a case from its seed, which is where random numbers then go on."""
    torch.manual_seed(case["seed"])
    return tower_of(case)
