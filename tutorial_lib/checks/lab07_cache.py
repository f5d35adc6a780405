"""The check of lab 07's middle stage (7.3): the loss, backward to the embeddings and no further."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks import lab07_demands as demands
from tutorial_lib.checks import lab07_kept as kept
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import flag, tensors, whole_number
from tutorial_lib.checks.running import error_said

# What the loss is, and how it came to be.
_SPOILED = {
    "nan": "an embedding was nan, so the loss is not finite",
    "inf": "every embedding was finite, and the loss inf",
}


def _cache_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "rows": draw.randint(150, 200),
        "features": 8,
    }
    case |= {"towers": 2, "dtype": "float64", "spoiled": ""}
    return [case, {**case, "towers": 3}, *({**case, "spoiled": spoiled} for spoiled in _SPOILED)]


def _embedded(case: Case) -> tuple[oracles.InBatch, list[Tensor]]:
    torch.manual_seed(case["seed"])
    loss_of = oracles.InBatch().double()
    oracles.add_gradients(loss_of)
    shape = (case["towers"], case["rows"], case["features"])
    embeddings = list(torch.randn(shape, dtype=torch.float64).unbind())
    if case["spoiled"] == "nan":
        embeddings[-1][0, 0] = float("nan")
    if case["spoiled"] == "inf":
        loss_of.factor = float("inf")
    return loss_of, embeddings


def _run_cache(answer: Callable[..., Any], case: Case) -> Result:
    loss_of, embeddings = _embedded(case)
    if case["spoiled"]:
        said = error_said(lambda: answer(loss_of, embeddings))
        return {"said": said, "gradients": oracles.gradients_of([loss_of])}
    before = kept.note([loss_of], embeddings)
    with oracles.without_torchs(), memory.watch(model=loss_of) as report:
        loss, gradients = demands.two_of(
            answer(loss_of, embeddings), "the loss and a list of gradients"
        )
    if not isinstance(loss, float):
        raise CheckError(
            f"the loss comes as {type(loss).__name__}, and a float is wanted: a tensor would keep "
            "the graph of all pairs."
        )
    gradients = list(gradients)
    return {
        "loss": loss,
        "gradients": oracles.gradients_of([loss_of]) + gradients,
        "have_graph": any(getattr(g, "requires_grad", False) for g in gradients),
        "changed": kept.changed(before, kept.note([loss_of], embeddings), but=["gradients"]),
        "left": report.leaked_bytes,
    }


def _judge_cache(case: Case, result: Result) -> None:
    loss_of, embeddings = _embedded(case)
    if case["spoiled"]:
        _judge_spoiled(case, result)
        return
    kept.demand_kept(result)
    leaves = [embedding.requires_grad_() for embedding in embeddings]
    exact = loss_of(*leaves)
    exact.backward()
    wanted = [leaf.grad for leaf in leaves]
    scale, *seen = tensors(result.get("gradients"), 1 + len(wanted), "gradients")
    turned = {"they come in another order than their embeddings.": lambda: wanted[::-1]}

    def otherwise(seen: Sequence[Tensor | None]) -> str:
        if times := demands.times_in(seen, [wanted]):
            return f"they are {times[0]:.3g} times the loss's: take them as they come, no factor."
        return (
            "every embedding is a leaf of its own that needs a gradient, and the loss's gradient "
            "for it is wanted as it comes."
        )

    demands.demand_close({"gradients": seen}, wanted, case, turned, otherwise)
    demands.demand_scale(scale, oracles.gradients_of([loss_of])[0], 1e-12)
    demands.demand_loss(result, exact.item(), 1e-9)
    if flag(result, "have_graph"):
        raise CheckError("the gradients have a graph of their own: no create_graph is needed.")
    square = case["rows"] ** 2 * 8
    if whole_number(result.get("left"), "bytes left behind") >= square:
        raise CheckError(
            f"{result.get('left')} bytes stayed behind, and a matrix of all pairs has {square}: "
            "what holds on to the graph of the loss?"
        )


def _judge_spoiled(case: Case, result: Result) -> None:
    said = str(result.get("said"))
    if not said.startswith("FloatingPointError"):
        raise CheckError(
            f"{_SPOILED[case['spoiled']]}, and {said[:200]!r} came of it: a FloatingPointError is "
            "wanted."
        )
    if case["spoiled"] not in said.lower():
        raise CheckError(f"the error {said[:200]!r} does not name the loss that came.")
    (gradient,) = tensors(result.get("gradients"), 1, "gradients")
    if gradient is None or float(gradient) != 1:
        raise CheckError(
            "the loss was not finite, and its parameter's gradient was touched before the error "
            "came: look at the loss before you go backward."
        )


cache_gradients = Check(
    name="lab07.cache_gradients",
    exercise="7.3",
    passed="gradients of two and of three towers, the scale's too, and no graph left",
    cases=_cache_cases,
    run=_run_cache,
    judge=_judge_cache,
)
