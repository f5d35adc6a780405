"""The check of 7.3, the middle stage: the loss, backward to the embeddings and no further."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe, surroundings
from tutorial_lib.checks.lab07 import expectations, models
from tutorial_lib.checks.vocabulary import expect, read

# What the loss is, and how it came to be.
_SPOILED = {
    "nan": "an embedding was nan, so the loss is not finite",
    "inf": "every embedding was finite, and the loss inf",
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "rows": draw.randint(150, 200),
        "features": 8,
    }
    case |= {"towers": 3, "dtype": "float64", "spoiled": ""}
    return [{**case, "spoiled": spoiled} for spoiled in ("", *_SPOILED)]


def _embedded(case: Case) -> tuple[models.InBatch, list[Tensor]]:
    torch.manual_seed(case["seed"])
    shape = (case["towers"], case["rows"], case["features"])
    loss_of, embeddings = models.InBatch(case), list(torch.randn(shape, dtype=torch.float64))
    if case["spoiled"] == "nan":
        embeddings[-1][0, 0] = float("nan")
    if case["spoiled"] == "inf":
        loss_of.factor = float("inf")
    return loss_of, embeddings


def _run(answer: Callable[..., Any], case: Case) -> Result:
    loss_of, embeddings = _embedded(case)
    if case["spoiled"]:
        said = observe.error_said(lambda: answer(loss_of, embeddings), "FloatingPointError")
        return {"said": said, "gradients": observe.gradients_of(loss_of)}
    with (
        surroundings.watched(loss_of, embeddings, but=["gradients"]) as changed,
        memory.watch(model=loss_of) as report,
    ):
        loss, gradients = answered.several(
            answer(loss_of, embeddings), 2, "the loss and a list of gradients"
        )
    return {
        "loss": loss,
        "gradients": [*observe.gradients_of(loss_of), *gradients],
        "have_graph": any(getattr(g, "requires_grad", False) for g in gradients),
        "changed": changed,
        "left": report.leaked_bytes,
    }


def _judge(case: Case, result: Result) -> None:
    if case["spoiled"]:
        _judge_spoiled(case["spoiled"], result)
        return
    expect.unchanged(result)
    loss_of, leaves = _embedded(case)
    loss = loss_of(*[leaf.requires_grad_() for leaf in leaves])
    loss.backward()
    wanted = [leaf.grad for leaf in leaves if leaf.grad is not None]
    scale, *seen = read.tensors(result.get("gradients"), 1 + len(leaves), "gradients")

    def otherwise() -> str:
        if times := expectations.times_in(seen, [wanted]):
            return f"they are {times[0]:.3g} times the loss's: take them as they come, no factor."
        return (
            "every embedding is a leaf of its own that needs a gradient, and the loss's gradient "
            "for it is wanted as it comes."
        )

    faults = [("they come in another order than their embeddings.", wanted[::-1])]
    expectations.expect_gradients(seen, wanted, case, faults, otherwise)
    expectations.expect_scale(scale, loss_of.log_scale.grad)
    expectations.expect_loss(result, loss.item(), 1e-9)
    square, left = case["rows"] ** 2 * 8, read.integer(result.get("left"), "bytes left behind")
    graph_faults = {
        "the gradients have a graph of their own: no create_graph is needed.": (
            read.flag(result, "have_graph")
        ),
        f"{left} bytes stayed behind, and a matrix of all pairs has {square}: what holds on to the "
        "graph of the loss?": left >= square,
    }
    expect.no_fault(graph_faults)


def _judge_spoiled(spoiled: str, result: Result) -> None:
    expect.refuses(result.get("said"), FloatingPointError, _SPOILED[spoiled], [spoiled])
    (gradient,) = read.tensors(result.get("gradients"), 1, "gradients")
    if gradient is None or bool((gradient != 1).any()):
        raise CheckError(
            "the loss was not finite, and its parameter's gradient was touched before the error "
            "came: look at the loss before you go backward."
        )


cache_gradients = Check(
    "lab07.cache_gradients",
    "7.3",
    "gradients of three towers, the scale's too, and no graph left",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_CHECKPOINT],
)
