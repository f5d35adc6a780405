"""The check of 8.6: an update that is made again, smaller, when it runs out of memory."""

import re
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from .given import models, updates

_PASSED = "the largest micro-batch that fits, and failed attempts leave no trace"
_MOVED = "nothing fits, and parameters or optimizer state were changed."
_NOTHING_FITS = {
    "weights": _MOVED,
    "optimizer": _MOVED,
    "gradients": "nothing fits, and gradients of half a batch stay in .grad: clear them.",
    "random state": "nothing fits, and the random state was left where the last attempt brought "
    "it.",
}


def _cases(draw: Draw) -> Cases:
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


@check(updates.update_that_fits, _PASSED, _cases, oracle=_right_update)
def update_that_fits(case: Case, result: Result, right: Any) -> None:
    said, rows = str(result["said"]), read.integers(result["rows"], "rows")
    if case["kind"] == "other error":
        expect.fact(
            said.startswith("_OtherError"),
            "the U-Net raised an error that has nothing to do with memory (a RuntimeError, sizes "
            "that do not match), and it was tried again: catch torch.OutOfMemoryError alone.",
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
            "its gradients, and its graph, which the error itself holds as long as it is handled.",
        )
        _judge_size(case, read.integer(result["micro_batch"], "the micro-batch"), rows)
        _judge_update(case, result, *right)


def _judge_failed_step(said: str, steps: int) -> None:
    is_out = said.startswith("OutOfMemoryError")
    faults = {
        f"the optimizer's step ran out of memory and was called {steps} times: it had moved some "
        "parameters by then, and another attempt moves them twice. Let that error out.": steps > 1,
        "the optimizer's step ran out of memory when it had moved some parameters, and you "
        "returned as after a whole update: only the attempt belongs under try, not the "
        "step.": not is_out,
    }
    expect.no_fault(faults)


def _judge_refusal(result: Result, said: str, rows: list[int]) -> None:
    faults = {
        "not even one image fits under this cap, and no torch.OutOfMemoryError came of it.": (
            not said.startswith("OutOfMemoryError")
        ),
        f"it gave up after forwards of {rows} images: the last to try is 1.": 1 not in rows,
        f"the error says {said[:150]!r}: say that a micro-batch of 1 does not fit, and what to "
        "try.": not re.search("micro|batch|image", said) or not re.search(r"\b(1|one)\b", said),
    }
    expect.no_fault(faults)
    expect.unchanged(result, _NOTHING_FITS)


def _judge_size(case: Case, size: int, rows: list[int]) -> None:
    tried, fits = updates.sizes_tried(case), case["fits"]
    is_halved = list(dict.fromkeys(count for count in rows if count in tried)) == tried
    faults = {
        f"the update was made with micro-batches of {size}, and those of {fits} were tried and "
        f"failed, which do fit; forwards had {rows} images. What is still held then? An error that "
        "is kept in a variable keeps the graph of its attempt.": size < fits and fits in rows,
        f"the micro-batch is given as {size}, and {fits} is the first of {tried} that fits; "
        f"forwards had {rows} images.": size != fits,
        f"forwards had {rows} images: begin with {tried[0]}, and halve.": not is_halved,
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
        "no update was made: call optimizer.step() once the gradient is there.": not is_made,
        "the random state is not that of an update without failed attempts: they drew, for "
        "dropout, and so the update drew other numbers. Put back what was before each.": is_moved,
        f"the update is not that of micro-batches of {case['fits']} from the start, off by "
        f"{error:.0e}: clear the gradients that {who} left in .grad.": error > 1e-5,
        f"the loss is {loss}, and {wanted_loss:.5f} is wanted.": not is_close,
        "after the update gradients are still there: zero_grad() frees them.": is_left,
    }
    expect.no_fault(faults)
