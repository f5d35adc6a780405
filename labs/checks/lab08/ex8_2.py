"""The check of 8.2, accumulation: one update's gradient, a micro-batch at a time."""

from functools import partial

import torch

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window

from .given import models, updates

_PASSED = "the gradient of all images, in the memory of a micro-batch"
_SLACK = 1.05  # a copy of a micro-batch's images is no fault


def _cases(draw: Draw) -> Cases:
    size = draw.randint(3, 5)
    case = {"seed": draw.randrange(10**6), "dtype": "float64", "micro_batch": size}
    yield {**case, "num": 3 * size + draw.randint(1, size - 1)}


def _right(case: Case) -> tuple[Window, float, int]:
    """Return each micro-batch's gradient, the loss of all images, and a loop's peak."""
    unet, looped = models.make_unet(case), models.make_unet(case)
    drawn, size = models.make_drawn(case, case["num"]), case["micro_batch"]
    parts = list(zip(*(torch.split(tensor, size) for tensor in drawn), strict=True))
    counts = [len(times) for _, times, _ in parts]
    means = [observe.gradient(models.loss_of(unet, *part), unet) for part in parts]
    window = Window([n * mean for n, mean in zip(counts, means, strict=True)], counts)
    observe.fill_gradients(looped)
    peak, _ = observe.peak_above(partial(models.backward, looped, drawn, size), looped)
    return window, models.loss_of(unet, *drawn).item(), peak


@check(updates.backward_in_pieces, _PASSED, _cases, oracle=_right, sits=models.backward)
def backward_in_pieces(case: Case, result: Result, right: tuple[Window, float, int]) -> None:
    rows = read.integers(result["rows"], "rows")
    num, size, most = case["num"], case["micro_batch"], max(rows, default=0)
    window, wanted_loss, enough = right
    seen = read.vector(result["gradient"], len(window.mean), "the gradient")
    is_finite = bool(seen.isfinite().all())
    faults = {
        f"{most} images were in the U-Net at once, and {size} are allowed.": most > size,
        f"{sum(rows)} images went through the U-Net, and each of the {num} goes through it once: "
        "is the last micro-batch, a smaller one, there?": sum(rows) != num,
        "a gradient is not finite, and the mean over all images has one that is.": not is_finite,
    }
    expect.no_fault(faults)
    expect.close(
        seen,
        1 + window.mean,
        _faults(case, window),
        otherwise="the gradient is not that of the mean over all images, and is none of the usual "
        "faults: are noisy images, times and noise cut alike, and nothing drawn anew?",
    )
    loss, peak = read.number(result["loss"], "the loss"), read.integer(result["peak"], "the peak")
    faults = {
        f"the gradients are right, and the loss is given as {loss:.6f} where that of all {num} "
        f"images is {wanted_loss:.6f}: add up what each micro-batch contributes.": (
            not expect.is_close(loss, wanted_loss, 1e-9)
        ),
        f"the peak is {peak:,} bytes for micro-batches of {size}, and {enough:,} are enough: whose "
        "graph lives on? Go backward before the next micro-batch begins, and keep the loss as a "
        "number.": peak > _SLACK * enough,
    }
    expect.no_fault(faults)


def _faults(case: Case, window: Window) -> Faults:
    num, size = case["num"], case["micro_batch"]
    pieces, whole, share = len(window.counts), max(1, num // size), "by its share of the images."
    mean, last, means = window.mean, window.last_alone, window.sum_of_means
    yield from {
        "what .grad held before is gone: like backward, add to it. Whoever calls you clears "
        "it.": mean,
        "no gradient arrived in .grad: call backward for each micro-batch.": 0 * mean + 1,
        "in .grad is what the last micro-batch brought, and nothing else: clear it nowhere.": last,
        "of all micro-batches the last one alone brought a gradient: go backward in the loop.": 1
        + last,
        f"the gradient is a sum of {pieces} means: each micro-batch must count {share}": 1 + means,
        f"each micro-batch counts as one in {pieces}, and the last has fewer images than the "
        f"others: weight each {share}": 1 + window.mean_of_means,
        f"each micro-batch counts as {size} in {num}, the last one too: weight each {share}": 1
        + means * size / num,
        f"there are {pieces} micro-batches, and each counts as one in {whole}: weight each "
        f"{share}": 1 + means / whole,
    }.items()
