"""The check of lab 07's middle stage (7.3): the loss, backward to the embeddings and no further."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tutorial_lib import memory
from tutorial_lib.checks import lab07_demands as demands
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import error_of, flag, tensors, whole_number
from tutorial_lib.checks.running import error_said


def _cache_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "rows": draw.randint(150, 200),
        "features": 8,
    }
    case |= {"towers": 2, "dtype": "float64", "spoiled": ""}
    return [case, {**case, "towers": 3}, {**case, "spoiled": draw.choice(["nan", "inf"])}]


def _embedded(case: Case) -> tuple[oracles.InBatch, list[Tensor]]:
    torch.manual_seed(case["seed"])
    loss_of = oracles.InBatch().double()
    oracles.add_gradients(loss_of)
    shape = (case["towers"], case["rows"], case["features"])
    embeddings = list(torch.randn(shape, dtype=torch.float64).unbind())
    if case["spoiled"]:
        embeddings[-1][0, 0] = float(case["spoiled"])
    return loss_of, embeddings


def _run_cache(answer: Callable[..., Any], case: Case) -> Result:
    loss_of, embeddings = _embedded(case)
    if case["spoiled"]:
        said = error_said(lambda: answer(loss_of, embeddings))
        return {"said": said, "gradients": oracles.gradients_of([loss_of])}
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
        "marked": any(e.requires_grad or e.grad is not None for e in embeddings),
        "left": report.leaked_bytes,
    }


def _judge_cache(case: Case, result: Result) -> None:
    loss_of, embeddings = _embedded(case)
    if case["spoiled"]:
        _judge_spoiled(case, result)
        return
    leaves = [embedding.requires_grad_() for embedding in embeddings]
    exact = loss_of(*leaves)
    exact.backward()
    wanted = oracles.gradients_of([loss_of]) + [leaf.grad for leaf in leaves]
    seen = tensors(result.get("gradients"), len(wanted), "gradients")
    _judge_scale(seen[0], wanted[0])
    one_by_one = "every embedding is a leaf of its own that needs a gradient, and all are there at "
    demands.demand_close({"gradients": seen}, wanted, case, {}, one_by_one + "the same backward.")
    demands.demand_loss(result, exact.item(), 1e-9)
    if flag(result, "have_graph"):
        raise CheckError("the gradients have a graph of their own: no create_graph is needed.")
    if flag(result, "marked"):
        raise CheckError(
            "the embeddings that were handed in need a gradient now, or hold one: work on detached "
            "aliases, which share the memory."
        )
    square = case["rows"] ** 2 * 8
    if whole_number(result.get("left"), "bytes left behind") >= square:
        raise CheckError(
            f"{result.get('left')} bytes stayed behind, and a matrix of all pairs has {square}: "
            "what holds on to the graph of the loss?"
        )


def _judge_scale(seen: Tensor | None, exact: Tensor | None) -> None:
    assert exact is not None
    if seen is not None and error_of(seen, torch.ones_like(exact)) < 1e-9:
        raise CheckError(
            "the loss's own parameter got no gradient: torch.autograd.grad leaves .grad alone, and "
            "no later stage sees the scale again. loss.backward() gives it its due."
        )
    if seen is not None and error_of(seen + 1, exact) < 1e-9:
        raise CheckError(
            "the gradient that the loss's parameter had before is gone: backward adds, and so does "
            "this stage."
        )


def _judge_spoiled(case: Case, result: Result) -> None:
    said = str(result.get("said"))
    if not said.startswith("FloatingPointError"):
        raise CheckError(
            f"an embedding was {case['spoiled']}, so the loss is not finite, and "
            f"{said[:200]!r} came of it: a FloatingPointError is wanted."
        )
    if "nan" not in said.lower() and "inf" not in said.lower():
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
