"""The check of lab 08's accumulation (8.2): one update's gradient, a micro-batch at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks import lab08_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import counts, whole_number
from tutorial_lib.checks.running import remembered

_EXACT = 1e-9  # relative, in float64
_SLACK = 1.05  # a copy of a micro-batch's images is no fault


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    size = draw.randint(3, 5)
    case = {"seed": draw.randrange(10**6), "kind": "gradients", "dtype": "float64"}
    case |= {"micro_batch": size}
    return [
        {**case, "num": 3 * size},
        {**case, "num": 3 * size + draw.randint(1, size - 1)},
        {**case, "num": size - 1},
        {**case, "kind": "peak", "dtype": "float32", "micro_batch": 4, "num": 32},
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    unet, drawn = oracles.make_unet(case), oracles.make_drawn(case, case["num"])
    oracles.fill_gradients(unet)
    if case["kind"] == "peak":
        return {"peak": oracles.peak_above(lambda: answer(unet, drawn, case["micro_batch"]), unet)}
    with oracles.rows_seen(unet) as rows:
        loss = answer(unet, drawn, case["micro_batch"])
    return {"loss": loss, "gradients": oracles.gradients_of(unet), "rows": rows}


@remembered
def _exact(case: Case) -> tuple[float, list[Tensor]]:
    """Give loss and gradients of all images at once, without what was there before."""
    unet, drawn = oracles.make_unet(case), oracles.make_drawn(case, case["num"])
    loss = oracles.backward(unet, drawn, case["num"])
    return loss, [g for g in oracles.gradients_of(unet) if g is not None]


def _judge(case: Case, result: Result) -> None:
    if case["kind"] == "peak":
        _judge_peak(case, result)
        return
    rows = counts(result.get("rows"), None, "rows")
    num, size = case["num"], case["micro_batch"]
    if max(rows, default=0) > size:
        raise CheckError(f"{max(rows)} images were in the U-Net at once, and {size} are allowed.")
    if sum(rows) != num:
        raise CheckError(
            f"{sum(rows)} images went through the U-Net, and each of the {num} goes through it "
            "once: is the last micro-batch, a smaller one, there?"
        )
    loss, exact = _exact(case)
    error = oracles.worst_error(result, [1 + g for g in exact])
    if math.isinf(error):
        raise CheckError("a gradient is not finite, and the mean over all images has one that is.")
    if error > _EXACT:
        _explain(case, result)
    seen = result.get("loss")
    if not isinstance(seen, float):
        raise CheckError(f"the loss comes as {type(seen).__name__}: a float is wanted.")
    if not abs(seen - loss) <= _EXACT * loss:  # nan is not
        raise CheckError(
            f"the gradients are right, and the loss is given as {seen:.6f} where that of all "
            f"{num} images is {loss:.6f}: add up what each micro-batch contributes."
        )


def _explain(case: Case, result: Result) -> None:
    means = _means(case)
    for words, (left, weights) in _slips(case, len(means)).items():
        made = [
            left + sum(w * g for w, g in zip(weights, of_one, strict=True))
            for of_one in zip(*means, strict=True)
        ]
        if oracles.worst_error(result, made) < _EXACT:
            raise CheckError(f"{words}.")
    raise CheckError(
        "the gradient is not that of the mean over all images, and is none of the usual slips: "
        "are noisy images, times and noise cut alike, and nothing drawn anew?"
    )


def _slips(case: Case, pieces: int) -> dict[str, tuple[int, list[float]]]:
    """From words to what is left of the old gradients, and to each micro-batch's weight."""
    num, size, whole = case["num"], case["micro_batch"], max(1, case["num"] // case["micro_batch"])
    shares = [min(size, num - start) / num for start in range(0, num, size)]
    last = [*[0.0] * (pieces - 1), shares[-1]]
    slips = {
        "what .grad held before is gone: like backward, add to it. Whoever calls you clears it": (
            0,
            shares,
        ),
        "no gradient arrived in .grad: call backward for each micro-batch": (1, [0.0] * pieces),
        "in .grad is what the last micro-batch brought, and nothing else: clear it nowhere": (
            0,
            last,
        ),
        "of all micro-batches the last one alone brought a gradient: go backward in the loop": (
            1,
            last,
        ),
    }
    size_share, a_part = size / num, 1 / whole
    weights = {
        f"the gradient is a sum of {pieces} means: each micro-batch must count": 1.0,
        f"each micro-batch counts as one in {pieces}, and the last has fewer images than the "
        "others: weight each": 1 / pieces,
        f"each micro-batch counts as {size} in {num}, the last one too: weight each": size_share,
        f"there are {pieces} micro-batches, and each counts as one in {whole}: weight each": a_part,
    }
    return slips | {
        f"{words} by its share of the images": (1, [weight] * pieces)
        for words, weight in weights.items()
    }


@remembered
def _means(case: Case) -> list[list[Tensor]]:
    """Give the gradients of each micro-batch's own mean."""
    unet, drawn = oracles.make_unet(case), oracles.make_drawn(case, case["num"])
    cut = (torch.split(tensor, case["micro_batch"]) for tensor in drawn)
    losses = (oracles.loss_of(unet, *part) for part in zip(*cut, strict=True))
    return [list(torch.autograd.grad(loss, list(unet.parameters()))) for loss in losses]


@remembered
def _enough(case: Case) -> int:
    unet, drawn = oracles.make_unet(case), oracles.make_drawn(case, case["num"])
    oracles.fill_gradients(unet)
    return oracles.peak_above(lambda: oracles.backward(unet, drawn, case["micro_batch"]), unet)


def _judge_peak(case: Case, result: Result) -> None:
    enough = _enough(case)
    peak = whole_number(result.get("peak"), "peak")
    if peak > _SLACK * enough:
        raise CheckError(
            f"the peak is {peak:,} bytes for micro-batches of {case['micro_batch']}, and "
            f"{enough:,} are enough: whose graph lives on? Go backward before the next micro-batch "
            "begins, and keep the loss as a number."
        )


backward_in_pieces = Check(
    name="lab08.backward_in_pieces",
    exercise="8.2",
    passed="the gradient of all images, in the memory of a micro-batch",
    cases=_cases,
    run=_run,
    judge=_judge,
)
