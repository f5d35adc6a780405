"""The checks of lab 07, cached gradients: here the loss (7.1), and where the others are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab07_cache import cache_gradients
from tutorial_lib.checks.lab07_embed import embed
from tutorial_lib.checks.lab07_moments import remember
from tutorial_lib.checks.lab07_push import push
from tutorial_lib.checks.lab07_step import cached_backward
from tutorial_lib.checks.results import error_of, tensors
from tutorial_lib.checks.running import error_said

__all__ = [
    "cache_gradients",
    "cached_backward",
    "contrastive_loss",
    "embed",
    "push",
    "remember",
]

case = calls_of(__name__)

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
        {**case, "rows": [1, 1]},
        {**case, "rows": [few + 1, few]},
        {**case, "rows": [few, few + 1]},
    ]


def _inputs(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Make embeddings of different lengths, and the scale's logarithm."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype, features = oracles.dtype_of(case), case["features"]
    images, texts = (
        torch.randn(rows, features, generator=generator, dtype=dtype)
        * torch.linspace(0.5, 3, rows, dtype=dtype)[:, None]
        for rows in case["rows"]
    )
    if case["scale"] == _LARGEST_SCALE:  # a similarity of 1, whose exponential is no float32
        texts[0] = images[0]
    log_scale = torch.tensor(math.log(case["scale"]), dtype=dtype)
    return images.requires_grad_(), texts.requires_grad_(), log_scale.requires_grad_()


def _to_be_refused(case: Case) -> bool:
    some, others = case["rows"]
    return bool(some != others or some < 2)


def _run(answer: Callable[..., Any], case: Case) -> Result:
    inputs = _inputs(case)
    if _to_be_refused(case):
        return {"said": error_said(lambda: answer(*inputs))}
    loss = answer(*inputs)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        raise CheckError(
            "the loss is to be a tensor without dimensions, with its graph: backward starts there."
        )
    loss.backward()  # type: ignore[no-untyped-call]
    return {"loss": loss, "gradients": [leaf.grad for leaf in inputs]}


def _slips(images: Tensor, texts: Tensor, log_scale: Tensor) -> dict[str, Tensor]:
    """Give the loss that each of the usual slips leads to, by what to tell the learner."""
    logits = log_scale.exp() * F.normalize(images, dim=1) @ F.normalize(texts, dim=1).T
    there, back = (torch.logsumexp(logits, d) - logits.diagonal() for d in (1, 0))
    alone = logits - torch.diag_embed(torch.full_like(logits.diagonal(), math.inf))
    without_own = (torch.logsumexp(alone, 1) + torch.logsumexp(alone, 0)) / 2 - logits.diagonal()
    raw = log_scale.exp() * images @ texts.T
    of_raw = torch.logsumexp(raw, 1) + torch.logsumexp(raw, 0) - 2 * raw.diagonal()
    plainly = oracles.in_batch_loss(images, texts, log_scale, scaled=log_scale)
    divided = oracles.in_batch_loss(images, texts, log_scale, scaled=1 / log_scale.exp())
    pairs = len(images)
    return {
        "that is one direction, in which an image looks for its text. Add the other and halve.": (
            there.mean()
        ),
        "that is one direction, in which a text looks for its image. Add the other and halve.": (
            back.mean()
        ),
        "it is twice what is wanted: the mean of the two directions, not their sum.": (
            there.mean() + back.mean()
        ),
        "it is a sum over the pairs: a batch twice as large would count twice.": (
            (there + back).sum() / 2
        ),
        "embeddings are compared by their cosine: give each row length 1 first.": of_raw.mean() / 2,
        "log_scale is the logarithm of the scale: take its exponential.": plainly,
        "the similarities are multiplied by the scale, not divided: it is one over a "
        "temperature.": divided,
        "a pair's own similarity is missing below the line: it is one of the candidates.": (
            without_own.mean()
        ),
        f"that is a mean over {pairs}x{pairs} numbers and not over the pairs.": (
            (there + back).mean() / 2 / pairs
        ),
    }


def _judge(case: Case, result: Result) -> None:
    if _to_be_refused(case):
        said = result.get("said")
        _judge_refusal(case, said if isinstance(said, str) else "")
        return
    inputs = _inputs(case)
    exact = oracles.in_batch_loss(*inputs)
    exact.backward()  # type: ignore[no-untyped-call]
    (loss,) = tensors([result.get("loss")], 1, "loss")
    tolerance = 1e-9 if case["dtype"] == "float64" else 1e-4
    if loss is None or not torch.isfinite(loss).all():
        raise CheckError(
            f"the loss is {float('nan') if loss is None else float(loss)} at a scale of "
            f"{case['scale']:.0f}: the exponential of a similarity of {case['scale']:.0f} is no "
            "float32 any more. Take log_softmax, logsumexp or cross_entropy, which subtract the "
            "largest first."
        )
    if loss.dim() or error_of(loss, exact.detach()) > tolerance:
        _explain(loss, inputs)
    seen = tensors(result.get("gradients"), 3, "gradients")
    names = ("the images'", "the texts'", "the scale's")
    for name, gradient, leaf in zip(names, seen, inputs, strict=True):
        if gradient is None or not gradient.any():
            raise CheckError(
                f"the loss is right, and {name} gradient is missing: no detach, no item(), and "
                "no with no_grad on the way."
            )
        if leaf.grad is None or error_of(gradient, leaf.grad) > 100 * tolerance:
            raise CheckError(f"the loss is right, and {name} gradient is not: what was detached?")


def _explain(loss: Tensor, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        slips = _slips(*inputs) if loss.dim() == 0 else {}
    for said, value in slips.items():
        if error_of(loss, value) < 1e-4:
            raise CheckError(f"the loss is {float(loss):.4f}, and {said}")
    raise CheckError(
        f"the loss is {loss.flatten()[0]:.4f} and is none of the usual slips: each row's label is "
        "its own number, since pair i stands in row i and in column i."
    )


def _judge_refusal(case: Case, said: str) -> None:
    some, others = case["rows"]
    if some == others and not said:
        raise CheckError(
            "a batch of one pair went through: with no other pair to tell it from, its loss is 0 "
            "whatever the embeddings are. Raise a ValueError."
        )
    if not said:
        raise CheckError(
            f"{some} images and {others} texts went through: some of them have no partner. Raise a "
            "ValueError that names both numbers."
        )
    missing = [number for number in {some, others} if str(number) not in said]
    if not said.startswith("ValueError") or missing:
        raise CheckError(
            f"for {some} images and {others} texts a ValueError that names the numbers is wanted, "
            f"and this came: {said[:200]!r}"
        )


contrastive_loss = Check(
    name="lab07.contrastive_loss",
    exercise="7.1",
    passed="the loss and its three gradients, at a scale of 100 too, and two refusals",
    cases=_cases,
    run=_run,
    judge=_judge,
)
