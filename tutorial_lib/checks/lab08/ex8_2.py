"""The check of 8.2, accumulation: one update's gradient, a micro-batch at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import forbid, observe
from tutorial_lib.checks.lab08 import models
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window

_SLACK = 1.05  # a copy of a micro-batch's images is no fault


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    size = draw.randint(3, 5)
    case = {"seed": draw.randrange(10**6), "dtype": "float64", "micro_batch": size}
    return [{**case, "num": 3 * size + draw.randint(1, size - 1)}]


def _made(case: Case) -> tuple[nn.Module, models.Drawn]:
    return models.make_unet(case), models.make_drawn(case, case["num"])


def _run(answer: Callable[..., Any], case: Case) -> Result:
    unet, drawn = _made(case)
    observe.fill_gradients(unet)
    with observe.rows_seen(unet) as rows:
        loss = answer(unet, drawn, case["micro_batch"])
    seen = {"loss": loss, "gradient": observe.gradient_vector(unet), "rows": rows}
    peak, _ = observe.peak_above(lambda: answer(unet, drawn, case["micro_batch"]), unet)
    return {**seen, "peak": peak}


def _right(case: Case) -> tuple[float, Tensor, int]:
    """Give loss and gradient of all images at once, and the peak of a loop that takes its turn."""
    (unet, drawn), looped = _made(case), models.make_unet(case)
    loss = models.loss_of(unet, *drawn)
    gradient = observe.gradient(loss, unet)
    observe.fill_gradients(looped)
    call = partial(models.backward, looped, drawn, case["micro_batch"])
    return loss.item(), gradient, observe.peak_above(call, looped)[0]


def _window(case: Case) -> Window:
    """Give the gradient of each micro-batch by itself."""
    unet, drawn = _made(case)
    cut = [torch.split(tensor, case["micro_batch"]) for tensor in drawn]
    parts = list(zip(*cut, strict=True))
    counts = [len(times) for times in cut[1]]
    means = [observe.gradient(models.loss_of(unet, *part), unet) for part in parts]
    return Window([n * mean for n, mean in zip(counts, means, strict=True)], counts)


def _judge(case: Case, result: Result, right: tuple[float, Tensor, int]) -> None:
    rows = read.integers(result.get("rows"), "rows")
    num, size, most = case["num"], case["micro_batch"], max(rows, default=0)
    wanted_loss, gradient, enough = right
    seen = read.vector(result.get("gradient"), len(gradient), "the gradient")
    faults = {
        f"{most} images were in the U-Net at once, and {size} are allowed.": most > size,
        f"{sum(rows)} images went through the U-Net, and each of the {num} goes through it once: "
        "is the last micro-batch, a smaller one, there?": sum(rows) != num,
        "a gradient is not finite, and the mean over all images has one that is.": (
            not bool(seen.isfinite().all())
        ),
    }
    expect.no_fault(faults)
    expect.close(
        seen,
        1 + gradient,
        _faults(case),
        otherwise="the gradient is not that of the mean over all images, and is none of the usual "
        "faults: are noisy images, times and noise cut alike, and nothing drawn anew?",
    )
    loss = read.number(result.get("loss"), "the loss")
    expect.close(
        loss,
        wanted_loss,
        otherwise=f"the gradients are right, and the loss is given as {loss:.6f} where that of all "
        f"{num} images is {wanted_loss:.6f}: add up what each micro-batch contributes.",
        tolerance=1e-9,
    )
    peak = read.integer(result.get("peak"), "peak")
    if peak > _SLACK * enough:
        raise CheckError(
            f"the peak is {peak:,} bytes for micro-batches of {size}, and {enough:,} are enough: "
            "whose graph lives on? Go backward before the next micro-batch begins, and keep the "
            "loss as a number."
        )


def _faults(case: Case) -> expect.Faults:
    num, size, window = case["num"], case["micro_batch"], _window(case)
    pieces, whole, share = len(window.counts), max(1, num // size), "by its share of the images."
    yield from {
        "what .grad held before is gone: like backward, add to it. Whoever calls you clears it.": (
            window.mean
        ),
        "no gradient arrived in .grad: call backward for each micro-batch.": (
            torch.ones_like(window.mean)
        ),
        "in .grad is what the last micro-batch brought, and nothing else: clear it nowhere.": (
            window.last_alone
        ),
        "of all micro-batches the last one alone brought a gradient: go backward in the loop.": (
            1 + window.last_alone
        ),
        f"the gradient is a sum of {pieces} means: each micro-batch must count {share}": (
            1 + window.sum_of_means
        ),
        f"each micro-batch counts as one in {pieces}, and the last has fewer images than the "
        f"others: weight each {share}": 1 + window.mean_of_means,
        f"each micro-batch counts as {size} in {num}, the last one too: weight each {share}": (
            1 + window.sum_of_means * size / num
        ),
        f"there are {pieces} micro-batches, and each counts as one in {whole}: weight each "
        f"{share}": 1 + window.sum_of_means / whole,
    }.items()


backward_in_pieces = Check(
    "lab08.backward_in_pieces",
    "8.2",
    "the gradient of all images, in the memory of a micro-batch",
    _cases,
    _run,
    _judge,
    oracle=_right,
    forbidden=[forbid.own_code(("tutorial_lib.checks.lab08.models:backward",))],
)
