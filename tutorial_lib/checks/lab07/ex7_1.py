"""The check of 7.1: the contrastive loss, its gradients, and batches without pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import forbid, observe
from tutorial_lib.checks.lab07 import models
from tutorial_lib.checks.vocabulary import expect, read

# CLIP clips at 100. Not 100 itself, which float32 rounds up: an answer may clip as well.
_LARGEST_SCALE = 99.9


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "features": draw.randint(4, 8)}
    case |= {"rows": [draw.randint(6, 12)] * 2, "dtype": "float64", "scale": 1 / 0.07}
    few = draw.randint(2, 5)
    return [
        case,
        {**case, "dtype": "float32", "scale": _LARGEST_SCALE, "seed": case["seed"] + 1},
        {
            **case,
            "rows": [1, 1],
            "refused": "a batch of one pair has no other pair to tell it from, so its loss is 0 "
            "whatever the embeddings are",
        },
        {
            **case,
            "rows": [few + 1, few],
            "refused": f"{few + 1} images and {few} texts came, so some have no partner",
        },
    ]


def _inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Make embeddings of different lengths, and the scale's logarithm."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype, features = getattr(torch, case["dtype"]), case["features"]
    images, texts = (
        torch.randn(rows, features, generator=generator, dtype=dtype)
        * torch.linspace(0.5, 3, rows, dtype=dtype)[:, None]
        for rows in case["rows"]
    )
    if case["scale"] == _LARGEST_SCALE:  # a similarity of 1, whose exponential is no float32
        texts[0] = images[0]
    log_scale = torch.tensor(math.log(case["scale"]), dtype=dtype)
    return images.requires_grad_(), texts.requires_grad_(), log_scale.requires_grad_()


def _run(answer: Callable[..., Any], case: Case) -> Result:
    inputs = _inputs(case)
    if "refused" in case:
        return {"said": observe.error_said(lambda: answer(*inputs), "ValueError")}
    loss = answer(*inputs)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        raise CheckError(
            "the loss is to be a tensor without dimensions, with its graph: backward starts there."
        )
    loss.backward()  # type: ignore[no-untyped-call]
    return {"loss": loss.item(), "gradients": [leaf.grad for leaf in inputs]}


def _judge(case: Case, result: Result) -> None:
    if "refused" in case:
        expect.refuses(result.get("said"), ValueError, case["refused"], case["rows"])
        return
    images, texts, log_scale = inputs = _inputs(case)
    wanted = models.in_batch_loss(images, texts, log_scale.exp())
    wanted.backward()  # type: ignore[no-untyped-call]
    loss = torch.tensor(read.number(result.get("loss"), "the loss"), dtype=torch.float64)
    if not torch.isfinite(loss):
        raise CheckError(
            f"the loss is {loss} at a scale of {case['scale']:.0f}: the exponential of a "
            f"similarity of {case['scale']:.0f} is no float32 any more. Take log_softmax, "
            "logsumexp or cross_entropy, which subtract the largest first."
        )
    tolerance = 1e-9 if case["dtype"] == "float64" else 1e-4
    expect.close(
        loss,
        wanted.detach(),
        _faults(*[x.detach() for x in inputs]),
        otherwise="it is none of the usual faults, or two of them at once: is each row divided by "
        "its length, is its label its own number, are both directions there?",
        tolerance=tolerance,
        fault_tolerance=1e-4,
        where=f"the loss is {loss:.4f}, and ",
    )
    gradients = read.tensors(result.get("gradients"), 3, "gradients")
    for name, seen, leaf in zip(("images'", "texts'", "scale's"), gradients, inputs, strict=True):
        if seen is None or not seen.any():
            raise CheckError(
                f"the loss is right, and the {name} gradient is missing: no detach, no item(), and "
                "no with no_grad on the way."
            )
        otherwise = f"the loss is right, and the {name} gradient is not: what was detached?"
        expect.close(seen, leaf.grad, otherwise=otherwise, tolerance=100 * tolerance)


def _faults(images: Tensor, texts: Tensor, log_scale: Tensor) -> expect.Faults:
    scale, pairs = log_scale.exp(), len(images)
    logits = scale * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    raw, hits = scale * images @ texts.T, logits.diagonal()
    alone = logits - torch.diag_embed(torch.full_like(hits, math.inf))
    there, back = (torch.logsumexp(logits, d) - hits for d in (1, 0))
    both = (there + back).mean()

    def mean(logits: Tensor, hits: Tensor) -> Tensor:
        return (torch.logsumexp(logits, 1) + torch.logsumexp(logits, 0) - 2 * hits).mean() / 2

    yield from {
        "that is one direction, in which an image looks for its text. Add the other and halve.": (
            there.mean()
        ),
        "that is one direction, in which a text looks for its image. Add the other and halve.": (
            back.mean()
        ),
        "it is twice what is wanted: the mean of the two directions, not their sum.": both,
        "it is a sum over the pairs: a batch twice as large would count twice.": both * pairs / 2,
        "embeddings are compared by their cosine: give each row length 1 first.": (
            mean(raw, raw.diagonal())
        ),
        "log_scale is the logarithm of the scale: take its exponential.": (
            models.in_batch_loss(images, texts, log_scale)
        ),
        "the similarities are multiplied by the scale, not divided: it is one over a "
        "temperature.": models.in_batch_loss(images, texts, 1 / scale),
        "a pair's own similarity is missing below the line: it is one of the candidates.": (
            mean(alone, hits)
        ),
        f"that is a mean over {pairs}x{pairs} numbers and not over the pairs.": both / 2 / pairs,
    }.items()


contrastive_loss = Check(
    "lab07.contrastive_loss",
    "7.1",
    "the loss and its three gradients, at a scale of 100 too, and two refusals",
    _cases,
    _run,
    _judge,
    forbidden=[forbid.own_code(("tutorial_lib.checks.lab07.models:in_batch_loss",))],
)
