"""The check of 9.6: case J, which dies in its first update."""

import torch
from torch import Tensor
from torch.optim import AdamW

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Result, expect, read
from tutorial_lib.models.vit import ViT

from ..lab06.given.models import MicroBatch
from . import given
from .scripts import diagnosis

_TOLERANCE = 1e-9  # AdamW's kernels divide in another order than its loop
_ALLOWED = 2.5  # times the bytes of the weights, above them; gradients and states of all take 3


def _oracle(case: Case) -> tuple[list[float], Tensor, int]:
    """Train the head alone; give the losses, all weights after it, and how many are not its."""
    vit, batches = given.make_head_training(case)
    body = len(observe.parameter_vector(vit)) - len(observe.parameter_vector(vit.head))
    return _right_losses(vit, batches), observe.parameter_vector(vit), body


def _right_losses(vit: ViT, batches: list[MicroBatch]) -> list[float]:
    optimizer, losses = AdamW(vit.head.parameters(), lr=0.01), []
    for batch in batches:
        optimizer.zero_grad()
        loss = vit.loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def _judge(case: Case, result: Result, right: tuple[list[float], Tensor, int]) -> None:
    losses, wanted, body = right
    after = read.vector(result["parameters"], len(wanted), "the weights")
    seen = read.items(result["returned"], "the losses")
    faults = {
        "weights other than the head's have moved: they stay frozen.": (
            not torch.equal(after[:body], wanted[:body])
        ),
        "the head's weights are not those that broken_j gives. Is it still one AdamW with a rate "
        "of 0.01 for all updates, each of a whole batch?": (
            not expect.is_close(after[body:], wanted[body:], _TOLERANCE)
        ),
        f"{len(losses)} losses are wanted, one for each update.": len(seen) != len(losses),
    }
    expect.no_fault(faults)
    for loss, expected in zip(seen, losses, strict=True):
        expect.loss(loss, expected)
    expect.unchanged(result)
    peak, allowed = read.integer(result["peak"], "the peak"), int(_ALLOWED * wanted.nbytes)
    expect.fact(
        peak <= allowed,
        f"the weights are right. At the peak {peak:,} bytes are held above them, and {allowed:,} "
        "fit: for which weights does the first update make states?",
    )


died_in_update = diagnosis(
    given.died_in_update,
    "case J trains its head as before, and its first update fits",
    {"J": (_oracle, _judge)},
    lambda: {"J": ("", 0, _right_losses)},
)
