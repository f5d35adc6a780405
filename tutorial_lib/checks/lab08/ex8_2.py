"""The check of 8.2, accumulation: one update's gradient, a micro-batch at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks import expect, observe, read
from tutorial_lib.checks.accumulation import Window
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab08 import models

_SLACK = 1.05  # a copy of a micro-batch's images is no fault


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    size = draw.randint(3, 5)
    case = {"seed": draw.randrange(10**6), "dtype": "float64", "micro_batch": size}
    return [{**case, "num": 3 * size + draw.randint(1, size - 1)}]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    unet, drawn = models.make_unet(case), models.make_drawn(case, case["num"])
    observe.fill_gradients(unet)
    with observe.rows_seen(unet) as rows:
        loss = answer(unet, drawn, case["micro_batch"])
    seen = {"loss": loss, "gradient": observe.gradient_vector(unet), "rows": rows}
    peak, _ = observe.peak_above(lambda: answer(unet, drawn, case["micro_batch"]), unet)
    return {**seen, "peak": peak}


class _Update:
    """What an update gives: all images at once, and each micro-batch by itself."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def _made(self) -> tuple[nn.Module, models.Drawn]:
        return models.make_unet(self.case), models.make_drawn(self.case, self.case["num"])

    @cached_property
    def whole(self) -> tuple[float, Tensor]:
        """Loss and gradient of all images, without what was there before."""
        unet, drawn = self._made()
        loss = models.loss_of(unet, *drawn)
        return loss.item(), observe.gradient(loss, unet)

    @cached_property
    def window(self) -> Window:
        unet, drawn = self._made()
        cut = [torch.split(tensor, self.case["micro_batch"]) for tensor in drawn]
        counts = [len(times) for times in cut[1]]
        losses = [models.loss_of(unet, *part) for part in zip(*cut, strict=True)]
        pairs = zip(counts, losses, strict=True)
        return Window([n * observe.gradient(loss, unet) for n, loss in pairs], counts)

    @cached_property
    def peak_bytes(self) -> int:
        unet, drawn = self._made()
        observe.fill_gradients(unet)
        size = self.case["micro_batch"]
        return observe.peak_above(lambda: models.backward(unet, drawn, size), unet)[0]


def _judge(case: Case, result: Result, update: _Update) -> None:
    rows = read.integers(result.get("rows"), "rows")
    num, size, most = case["num"], case["micro_batch"], max(rows, default=0)
    wanted_loss, gradient = update.whole
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
        _faults(case, update),
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
    peak, enough = read.integer(result.get("peak"), "peak"), update.peak_bytes
    if peak > _SLACK * enough:
        raise CheckError(
            f"the peak is {peak:,} bytes for micro-batches of {size}, and {enough:,} are enough: "
            "whose graph lives on? Go backward before the next micro-batch begins, and keep the "
            "loss as a number."
        )


def _faults(case: Case, update: _Update) -> expect.Faults:
    num, size, window = case["num"], case["micro_batch"], update.window
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
    oracle=_Update,
)
