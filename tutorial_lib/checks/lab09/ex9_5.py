"""The check of 9.5: case I, a contrastive loss in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tutorial_lib.checks import accumulation, expect, observe, read, surroundings
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.lab06 import models
from tutorial_lib.checks.lab09.scripts import BrokenScript, check_scripts, only_update


def _loss_of(one: Tensor, other: Tensor) -> Tensor:
    logits = F.normalize(one) @ F.normalize(other).T / 0.2
    return F.cross_entropy(logits, torch.arange(len(one)))


def _batch(case: Case) -> tuple[nn.Module, Tensor, int]:
    num, size = 2 + case["seed"] % 3, 2 + case["seed"] % 2
    generator = torch.Generator().manual_seed(case["seed"])
    ((images, _),) = models.image_window([num * size], generator)
    return models.tiny_vit(case["seed"]), images, num


def _run(answer: Callable[..., Any], case: Case) -> Result:
    model, images, num = _batch(case)
    optimizer = SGD(model.parameters(), lr=0.1)
    observe.fill_gradients(model)
    call = lambda: answer(model, optimizer, images, _loss_of, num)  # noqa: E731
    return models.train(call, model, optimizer)


def _views(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    return model(images), model(images.flip(-1))


def _oracle(case: Case) -> tuple[list[Tensor], list[float]]:
    """Give gradients and losses: of the whole batch, and of three faults."""
    model, images, num = _batch(case)
    whole = _loss_of(*_views(model, images))
    pieces = sum(_loss_of(*_views(model, part)) / num for part in images.chunk(num))
    assert isinstance(pieces, Tensor)
    one, other = _views(model, images)
    losses = [whole, pieces, _loss_of(one, other.detach()), _loss_of(one.detach(), other)]
    return [observe.gradient(loss, model) for loss in losses], [loss.item() for loss in losses]


def _judge(case: Case, result: Result, right: tuple[list[Tensor], list[float]]) -> None:
    gradients, losses = right
    _, images, num = _batch(case)
    rows = read.integers(result.get("rows"), "case I: rows")
    if max(rows, default=0) > len(images) // num:
        raise CheckError(
            f"case I: the model saw {max(rows)} rows at once, and {len(images) // num} fit: embed "
            "in micro-batches, both times."
        )
    gradient = only_update(result, len(gradients[0]), "case I: ")
    faults = [
        ("each image is still compared with those of its own micro-batch.", gradients[1]),
        ("the gradient goes through the first view alone.", gradients[2]),
        ("the gradient goes through the second view alone.", gradients[3]),
        ("what was in .grad before was added.", gradients[0] + 1),
        ("it is divided by the number of micro-batches.", gradients[0] / num),
    ]
    accumulation.expect_gradient(gradient, gradients[0], faults, "case I: ", "the whole batch")
    pieces = [("it is the mean of the micro-batches' losses.", losses[1])]
    expect.loss(result.get("returned"), losses[0], pieces, where="case I: ")
    surroundings.expect_kept(result)


contrastive_batch = check_scripts(
    "lab09.contrastive_batch",
    "9.5",
    "case I compares each image with the whole batch, a micro-batch at a time in the model",
    {
        "I": BrokenScript(
            "no sum",
            3,
            "with how many other images broken_i compares an image, of 16 with num=4",
            _run,
            _oracle,
            _judge,
        )
    },
)
