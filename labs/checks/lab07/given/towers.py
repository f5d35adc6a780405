"""Towers that count their rows, their micro-batches, and a contrastive loss, for lab 07."""

import math
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import Case, forbid, observe

TIMES = {"few": 1, "many": 4}  # how often a case's micro-batches come, where peaks are compared
NOT_FINITE = {"nan": "inf", "inf": "nan"}  # what a loss may be, and what else it may be
NO_CHECKPOINT = forbid.checkpointing(
    "torch.utils.checkpoint does this lab's work by itself, as the lab's end shows: don't call it."
)
NO_IN_BATCH_LOSS = forbid.own_code((f"{__name__}:in_batch_loss",))


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
    """Maps rows to embeddings; lists how many came each time, whether it ever was in eval mode,
    and whether it ever made a graph.

    Wide layers make its activations large beside its embeddings. Its buffers move with every
    forward in training where the case says so, as a power iteration's vector or a moving average
    does, and the result depends on them, but for `steps`, which only counts: `drift` is its own,
    the others are its `inner` module's, and `hidden` is in no `state_dict`. Where the case says so
    it saves `drift` for backward. Its gradients are there already, since backward adds to them.
    """

    drift: Tensor

    def __init__(self, case: Case) -> None:
        super().__init__()
        width, hidden, frozen = case["width"], case["hidden"], case.get("frozen")
        self.wide, self.middle = nn.Linear(width, hidden), nn.Linear(hidden, hidden // 16)
        self.narrow = nn.Linear(hidden // 16, case["features"])
        self.dropout = nn.Dropout(case["dropout"])
        self.norm: nn.Module = nn.BatchNorm1d(hidden).eval() if frozen else nn.Identity()
        self.moves, self.saves = bool(case.get("moves")), bool(case.get("saves_drift"))
        self.register_buffer("drift", torch.ones(()))
        self.inner = Inner()
        self.rows_seen: list[int] = []
        self.was_evaluated = self.had_graph = False
        observe.fill_gradients(self.to(getattr(torch, case["dtype"])))

    def forward(self, rows: Tensor) -> Tensor:
        """Map `(rows, width)` to `(rows, features)`."""
        self.rows_seen.append(len(rows))
        self.was_evaluated |= not self.training
        if self.moves and self.training:
            with torch.no_grad():
                self.drift.mul_(0.9).add_(rows.mean())
                self.inner(rows.mean())
        hidden = self.norm(self.dropout(F.gelu(self.wide(rows))))
        moved = self.drift.clone() + self.inner.hidden.clone() + self.inner.turned
        scale = 1 + moved if self.moves else 1.0
        out: Tensor = self.narrow(self.dropout(F.gelu(self.middle(hidden)))) * scale
        self.had_graph |= out.requires_grad
        return out * self.drift if self.saves else out


class InBatch(nn.Module):
    """The symmetric contrastive loss of two or more towers, each with each; learns its scale.

    A case that is spoiled with `inf` makes the loss infinite, whatever the embeddings are.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.factor = math.inf if case.get("spoiled") == "inf" else 1.0
        observe.fill_gradients(self.to(getattr(torch, case["dtype"])))

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Map embeddings `(rows, features)`, one tensor a tower, to a scalar."""
        widened = [e.float() if e.dtype == torch.bfloat16 else e for e in embeddings]
        with torch.autocast("cpu", enabled=False):
            scale = self.log_scale.exp()
            losses = [in_batch_loss(a, b, scale) for a, b in combinations(widened, 2)]
        return torch.stack(losses).mean() * self.factor


def in_batch_loss(some: Tensor, others: Tensor, scale: Tensor) -> Tensor:
    """Return the symmetric contrastive loss of pairs `(rows, features)`, from its definition.

    Source:
        Radford et al. (2021), figure 3, with logsumexp written out.
    """
    some, others = (x / x.norm(dim=1, keepdim=True) for x in (some, others))
    logits = (some @ others.T) * scale
    hits = logits.diagonal()
    both = torch.logsumexp(logits, 1) - hits + torch.logsumexp(logits, 0) - hits
    return both.mean() / 2


def parts_of(case: Case, times: int = 1) -> list[Tensor]:
    """Make the micro-batches of a case, `(rows, width)` each, as often as is said."""
    generator = torch.Generator().manual_seed(case["seed"])
    sizes, dtype = case["sizes"] * times, getattr(torch, case["dtype"])
    rows = torch.randn(sum(sizes), case["width"], generator=generator, dtype=dtype)
    return list(torch.split(rows, sizes))


def seeded_tower(case: Case) -> CountingTower:
    """Build the tower of a case from its seed, which is where random numbers then go on."""
    torch.manual_seed(case["seed"])
    return CountingTower(case)
