"""The check of 9.6: case J, which dies in its first update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab06.given.models import MicroBatch, image_window
from tutorial_lib.checks.lab09.scripts import BrokenScript, check_scripts
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.models.vit import ViT, ViTConfig

_TOLERANCE = 1e-9  # AdamW's kernels divide in another order than its loop
_ALLOWED = 2.5  # times the bytes of the weights, above them; gradients and states of all take 3


def _made(case: Case) -> tuple[ViT, list[MicroBatch]]:
    torch.manual_seed(case["seed"])
    vit = ViT(ViTConfig(num_layers=2 + case["seed"] % 2, num_heads=2, d_model=64)).double()
    return vit, image_window([2] * 3, torch.Generator().manual_seed(case["seed"]))


def _run(answer: Callable[..., Any], case: Case) -> Result:
    vit, batches = _made(case)
    returned: list[Any] = []
    with surroundings.watched(vit, only=("grad mode", "modes")) as changed:
        peak, _ = observe.peak_above(lambda: returned.append(answer(vit, batches)), vit)
    parameters = observe.parameter_vector(vit)
    return {"returned": returned[0], "parameters": parameters, "peak": peak, "changed": changed}


def _oracle(case: Case) -> tuple[list[float], Tensor, int]:
    """Train the head alone; give the losses, all weights after it, and how many are not its."""
    vit, batches = _made(case)
    body = len(observe.parameter_vector(vit)) - len(observe.parameter_vector(vit.head))
    optimizer, losses = AdamW(vit.head.parameters(), lr=0.01), []
    for batch in batches:
        optimizer.zero_grad()
        loss = vit.loss(*batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses, observe.parameter_vector(vit), body


def _judge(case: Case, result: Result, right: tuple[list[float], Tensor, int]) -> None:
    losses, wanted, body = right
    after = read.vector(result.get("parameters"), len(wanted), "case J: the weights")
    if not torch.equal(after[:body], wanted[:body]):
        raise CheckError("case J: weights other than the head's have moved: they stay frozen.")
    if not expect.is_close(after[body:], wanted[body:], _TOLERANCE):
        raise CheckError(
            "case J: the head's weights are not those that broken_j gives. Is it still one AdamW "
            "with a rate of 0.01 for all updates, each of a whole batch?"
        )
    seen = read.items(result.get("returned"), "case J: the losses")
    if len(seen) != len(losses):
        raise CheckError(f"case J: {len(losses)} losses are wanted, one for each update.")
    for loss, expected in zip(seen, losses, strict=True):
        expect.loss(loss, expected, where="case J: ")
    expect.unchanged(result)
    peak = read.integer(result.get("peak"), "case J: the peak")
    if peak > (allowed := int(_ALLOWED * wanted.nbytes)):
        raise CheckError(
            f"case J: the weights are right. At the peak {peak:,} bytes are held above them, and "
            f"{allowed:,} fit: for which weights does the first update make states?"
        )


died_in_update = check_scripts(
    "lab09.died_in_update",
    "9.6",
    "case J trains its head as before, and its first update fits",
    {
        "J": BrokenScript(
            "optimizer states",
            157,
            "how many times as many bytes of optimizer states broken_j makes as the head alone "
            "needs, without a cap, rounded",
            _run,
            _oracle,
            _judge,
        )
    },
)
