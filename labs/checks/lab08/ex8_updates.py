"""The checks of 8.2 and 8.6: an update in micro-batches, and one made again, smaller."""

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read
from tutorial_lib.checks.vocabulary.accumulation import Window

from .given import models, updates

_PASSED_8_2 = "the gradient of all images, in the memory of one micro-batch"
_SLACK = 1.05  # a copy of a micro-batch's images is no fault
_PASSED_8_6 = "finds the largest micro-batch that fits, and failed attempts leave no trace"
_MOVED = "nothing fits, but parameters or optimizer state were changed."
_NOTHING_FITS = {
    "weights": _MOVED,
    "optimizer": _MOVED,
    "gradients": "nothing fits, but gradients of half a batch stay in .grad: clear them.",
    "random state": "nothing fits, but the random state was left as the last attempt had changed "
    "it.",
}


def _cases_8_2(draw: Draw) -> Cases:
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


@check(updates.backward_in_pieces, _PASSED_8_2, _cases_8_2, oracle=_right, sits=models.backward)
def backward_in_pieces(case: Case, result: Result, right: tuple[Window, float, int]) -> None:
    rows = read.integers(result["rows"], "rows")
    num, size, most = case["num"], case["micro_batch"], max(rows, default=0)
    window, wanted_loss, enough = right
    seen = read.vector(result["gradient"], len(window.mean), "the gradient")
    is_finite = bool(seen.isfinite().all())
    faults = {
        f"{most} images were in the U-Net at once, but only {size} are allowed.": most > size,
        f"{sum(rows)} images went through the U-Net, but each of the {num} goes through it once: "
        "is the last micro-batch, a smaller one, there?": sum(rows) != num,
        "a gradient is not finite, but that of the mean over all images is.": not is_finite,
    }
    expect.no_fault(faults)
    expect.close(
        seen,
        1 + window.mean,
        _faults(case, window),
        otherwise="the gradient is not that of the mean over all images, and is none of the usual "
        "faults: do you split noisy images, times and noise alike, and draw nothing again?",
    )
    loss, peak = read.number(result["loss"], "the loss"), read.integer(result["peak"], "the peak")
    faults = {
        f"the gradients are right, but you returned {loss:.6f} as the loss, and all {num} images "
        f"have {wanted_loss:.6f}: add up what each micro-batch contributes.": (
            not expect.is_close(loss, wanted_loss, 1e-9)
        ),
        f"the peak is {peak:,} bytes for micro-batches of {size}, and {enough:,} are enough: whose "
        "graph is still held? Go backward before the next micro-batch begins, and keep the loss as "
        "a number.": peak > _SLACK * enough,
    }
    expect.no_fault(faults)


def _faults(case: Case, window: Window) -> Faults:
    num, size = case["num"], case["micro_batch"]
    pieces, whole, share = len(window.counts), max(1, num // size), "by its share of the images."
    mean, last, means = window.mean, window.last_alone, window.sum_of_means
    yield from {
        "the old .grad is gone: add to it, as backward does. The caller clears it.": mean,
        "no gradient arrived in .grad: call backward for each micro-batch.": 0 * mean + 1,
        ".grad holds only what the last micro-batch added: don't clear it.": last,
        "only the last micro-batch added a gradient: go backward in the loop.": 1 + last,
        f"the gradient is a sum of {pieces} means: each micro-batch must count {share}": 1 + means,
        f"each micro-batch counts as one in {pieces}, and the last has fewer images than the "
        f"others: weight each {share}": 1 + window.mean_of_means,
        f"each micro-batch counts as {size} in {num}, the last one too: weight each {share}": 1
        + means * size / num,
        f"there are {pieces} micro-batches, and each counts as one in {whole}: weight each "
        f"{share}": 1 + means / whole,
    }.items()


def _cases_8_6(draw: Draw) -> Cases:
    case = {"seed": draw.randrange(10**6), "kind": "fits", "dropout": 0.2}
    yield from ({**case, "begin": 16, "fits": fits, "left": True} for fits in (16, 4))
    yield {**case, "begin": 7, "fits": 3}
    for kind, fits in {"nothing fits": 0, "other error": 8, "torn": 8}.items():
        yield {**case, "begin": 8, "fits": fits, "kind": kind}


def _right_update(case: Case) -> tuple[float, list[Tensor], Tensor] | None:
    """Update with the micro-batch that fits; give the loss, the state and the random state."""
    if case["kind"] != "fits":
        return None
    unet, optimizer, drawn = updates.make_training(case)
    optimizer.zero_grad()
    loss = models.backward(unet, drawn, case["fits"])
    optimizer.step()
    return loss, updates.state_of(unet, optimizer), torch.get_rng_state()


@check(updates.update_that_fits, _PASSED_8_6, _cases_8_6, oracle=_right_update)
def update_that_fits(case: Case, result: Result, right: Any) -> None:
    said, rows = str(result["said"]), read.integers(result["rows"], "rows")
    if case["kind"] == "other error":
        expect.fact(
            said.startswith("_OtherError"),
            "the U-Net raised an error that has nothing to do with memory (a RuntimeError, sizes "
            "that do not match), but you tried again: catch only torch.OutOfMemoryError.",
        )
    elif case["kind"] == "torn":
        _judge_failed_step(said, read.integer(result["steps"], "steps of the optimizer"))
    elif case["kind"] == "nothing fits":
        _judge_refusal(result, said, rows)
    else:
        expect.fact(
            not said,
            f"nothing fitted in the end, though micro-batches of {case['fits']} do under this cap; "
            f"forwards had {rows} images. What a failed attempt held must be gone before the next: "
            "its gradients, and its graph, which the error itself holds inside the except block.",
        )
        _judge_size(case, read.integer(result["micro_batch"], "the micro-batch"), rows)
        _judge_update(case, result, *right)


def _judge_failed_step(said: str, steps: int) -> None:
    is_out = said.startswith("OutOfMemoryError")
    faults = {
        f"the optimizer's step ran out of memory and was called {steps} times: it had changed some "
        "parameters by then. Let the error pass, or a retry changes them twice.": steps > 1,
        "the optimizer's step ran out of memory when it had changed some parameters, but you "
        "returned as after a full update: put the attempt inside try, not the step.": not is_out,
    }
    expect.no_fault(faults)


def _judge_refusal(result: Result, said: str, rows: list[int]) -> None:
    faults = {
        "not even one image fits under this cap, but no torch.OutOfMemoryError was raised.": (
            not said.startswith("OutOfMemoryError")
        ),
        f"it gave up after forwards of {rows} images: the last size to try is 1.": 1 not in rows,
        f"the error says {said[:150]!r}: say that a micro-batch of 1 does not fit, and what to "
        "try.": not re.search("micro|batch|image", said) or not re.search(r"\b(1|one)\b", said),
    }
    expect.no_fault(faults)
    expect.unchanged(result, _NOTHING_FITS)


def _judge_size(case: Case, size: int, rows: list[int]) -> None:
    tried, fits = updates.sizes_tried(case), case["fits"]
    is_halved = list(dict.fromkeys(count for count in rows if count in tried)) == tried
    faults = {
        f"the update was made with micro-batches of {size}, but those of {fits} were tried and "
        f"failed, which do fit; forwards had {rows} images. What is still held then? An error that "
        "is kept in a variable keeps the graph of its attempt.": size < fits and fits in rows,
        f"you return a micro-batch of {size}, but {fits} is the first of {tried} that fits; "
        f"forwards had {rows} images.": size != fits,
        f"forwards had {rows} images: start with {tried[0]}, and halve.": not is_halved,
    }
    expect.no_fault(faults)


def _judge_update(
    case: Case, result: Result, wanted_loss: float, wanted: list[Tensor], random_state: Tensor
) -> None:
    state = read.tensors(result["state"], len(wanted), "state")
    loss = read.number(result["loss"], "the loss")
    error = expect.relative_error(state, wanted)
    who = "a failed attempt" if len(updates.sizes_tried(case)) > 1 else "somebody before you"
    is_made = bool({"weights", "optimizer"} & set(expect.changes(result)))
    is_moved = not expect.same_bits(result["random_state"], random_state)
    is_close, is_left = (
        expect.is_close(loss, wanted_loss, 1e-4),
        read.flag(result, "gradients_left"),
    )
    faults = {
        "no update was made: call optimizer.step() when the gradient is complete.": not is_made,
        "the random state is not that of an update without failed attempts: they drew dropout "
        "masks, so the update drew other numbers. Put it back after each attempt.": is_moved,
        f"the update is not that of micro-batches of {case['fits']} from the start, off by "
        f"{error:.0e}: clear the gradients that {who} left in .grad.": error > 1e-5,
        f"the loss is {loss} instead of {wanted_loss:.5f}.": not is_close,
        "after the update, gradients are still there: call zero_grad().": is_left,
    }
    expect.no_fault(faults)
