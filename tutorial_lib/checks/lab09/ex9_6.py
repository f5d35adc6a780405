"""The check of 9.6: case J, ranks that talk in each micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tutorial_lib import ranks
from tutorial_lib.checks import accumulation, expect, observe, read
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.lab06 import models
from tutorial_lib.checks.lab09.scripts import BrokenScript, check_scripts, only_update

_RANKS = 2
_SMALL = 64  # bytes: a count or a loss, and no gradient


def _windows(case: Case) -> list[list[models.MicroBatch]]:
    sizes = [2 + case["seed"] % 2] * (3 + case["seed"] % 3)
    generator = torch.Generator().manual_seed(case["seed"])
    return [models.image_window(sizes, generator) for _ in range(_RANKS)]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    windows = _windows(case)
    replicas = [models.tiny_vit(case["seed"]) for _ in windows]
    for replica in replicas:
        observe.fill_gradients(replica)

    def work(rank: int) -> dict[str, Any]:
        model = DistributedDataParallel(replicas[rank])
        optimizer = SGD(model.parameters(), lr=0.1)
        with observe.updates_seen(replicas[rank], optimizer) as gradients:
            returned = answer(model, optimizer, windows[rank])
        return {"gradients": gradients, "returned": returned}

    seen, traffic = ranks.in_threads(work, _RANKS)
    sent = [sum(n for n in of_rank.sizes("all_reduce") if n > _SMALL) for of_rank in traffic]
    return {"ranks": seen, "sent": sent}


def _oracle(case: Case) -> tuple[list[Tensor], list[float]]:
    """Give the gradient and the loss of each rank's whole window."""
    gradients, losses = [], []
    for window in _windows(case):
        model, (images, labels) = models.tiny_vit(case["seed"]), models.whole(window)
        loss = F.cross_entropy(model(images), labels)
        gradients.append(observe.gradient(loss, model))
        losses.append(loss.item())
    return gradients, losses


def _judge(case: Case, result: Result, right: tuple[list[Tensor], list[float]]) -> None:
    own, losses = right
    wanted, num = torch.stack(own).mean(0), len(_windows(case)[0])
    size = wanted.numel() * wanted.element_size()
    sent = read.integers(result.get("sent"), "case J: bytes sent", _RANKS)
    for rank, seen in enumerate(read.records(result.get("ranks"), "case J: ranks", _RANKS)):
        where = f"case J, rank {rank}: "
        gradient = only_update(seen, len(wanted), where)
        faults = [
            ("the gradient is that of this rank alone: nothing was exchanged.", own[rank]),
            (
                f"the gradient is {num} times too long: the loss is divided by nothing.",
                num * wanted,
            ),
            ("what was in .grad before was added.", wanted + 1),
        ]
        accumulation.expect_gradient(gradient, wanted, faults, where, "both windows")
        if sent[rank] - size > _SMALL:
            raise CheckError(
                f"{where}the gradient is right, and in this window of {num} micro-batches it is "
                f"exchanged {sent[rank] / size:.0f} times. Whether a backward exchanges is decided "
                "in forward: what is no_sync around?"
            )
        expect.loss(seen.get("returned"), losses[rank], where=where)


rank_traffic = check_scripts(
    "lab09.rank_traffic",
    "9.6",
    "case J exchanges its gradients once an update, and both ranks have the same",
    {
        "J": BrokenScript(
            "more traffic",
            4,
            "how many all-reduces an update of broken_j makes on a rank",
            _run,
            _oracle,
            _judge,
        )
    },
)
