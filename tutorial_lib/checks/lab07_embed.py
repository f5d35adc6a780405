"""The check of lab 07's first pass (7.2): embeddings without a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks import lab07_demands as demands
from tutorial_lib.checks import lab07_kept as kept
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.results import error_of, flag, same, tensors, whole_number


def _embed_cases(seed: int) -> list[Case]:
    case = oracles.case_of_parts(seed)
    return [{**case, "kind": "values", "dropout": 0.3}, {**case, "kind": "peak"}]


def _run_embed(answer: Callable[..., Any], case: Case) -> Result:
    tower = oracles.seeded_tower(case)
    asked = oracles.Moments(tower)
    with oracles.without_torchs():
        if case["kind"] == "peak":
            few, many = oracles.parts_of(case), oracles.parts_of(case, times=4)
            return {
                "few": oracles.peak_of(lambda: answer(tower, few, asked), [tower]),
                "many": oracles.peak_of(lambda: answer(tower, many, asked), [tower]),
            }
        parts = oracles.parts_of(case)
        before = kept.note([tower], parts)
        embeddings, moments = demands.two_of(answer(tower, parts, asked), "embeddings and moments")
    if not isinstance(embeddings, Tensor):
        raise CheckError(
            f"the embeddings come as {type(embeddings).__name__}, and one tensor of all rows is "
            "wanted: torch.cat."
        )
    return {
        "embeddings": embeddings,
        "needs_grad": embeddings.requires_grad,
        "inference": embeddings.is_inference(),
        "moments": list(moments),
        "asked_after": asked.asked_after,
        "runs": tower.runs,
        "changed": kept.changed(before, kept.note([tower], parts), but=["random state"]),
        "random_state": torch.get_rng_state(),
    }


def _judge_embed(case: Case, result: Result) -> None:
    if case["kind"] == "peak":
        few, many = (whole_number(result.get(name), f"peak of {name}") for name in ("few", "many"))
        rows = sum(case["sizes"])
        embeddings = 3 * rows * case["features"] * 8  # torch.cat holds them twice
        if many - few > 2 * embeddings:
            raise CheckError(
                f"the peak grew by {many - few} bytes with {3 * rows} rows more, whose embeddings "
                f"have {embeddings}: turn gradients off while the tower runs, or the graph of a "
                "micro-batch lives as long as its embeddings."
            )
        return
    kept.demand_kept(result)
    runs = result.get("runs", [])
    demands.demand_sizes(runs, case["sizes"])
    demands.demand_training_mode(runs)
    if flag(result, "inference"):
        raise CheckError(
            "the embeddings are inference tensors: autograd refuses them for ever, and the loss "
            "needs their gradient. torch.no_grad it is."
        )
    if flag(result, "needs_grad"):
        raise CheckError("the embeddings still have a graph: they are to be plain numbers.")
    tower = oracles.seeded_tower(case)
    with torch.no_grad():
        exact = torch.cat([tower(part) for part in oracles.parts_of(case)])
    random_state = torch.get_rng_state()
    (seen,) = tensors([result.get("embeddings")], 1, "embeddings")
    if error_of(seen, exact) > demands.TOLERANCES["float64"]:
        raise CheckError(
            "the embeddings are not those of the rows in their order: one torch.cat, and nothing "
            "that draws random numbers or changes them in between."
        )
    if not same(result.get("random_state"), random_state):
        raise CheckError(
            "the embeddings are right, and the random state afterwards is not that of one run of "
            "each micro-batch: seed nothing, and put nothing back."
        )
    number = len(case["sizes"])
    if result.get("asked_after") != list(range(number)):
        raise CheckError(
            f"remember was called after {result.get('asked_after')} runs of the tower, and is "
            f"wanted before each, after {list(range(number))}: a moment is what a run begins with."
        )
    if result.get("moments") != list(range(number)):
        raise CheckError(
            "the moments come otherwise than remember gave them: a list, one a micro-batch, in "
            "their order."
        )


embed = Check(
    name="lab07.embed",
    exercise="7.2",
    passed="all rows, one micro-batch at a time, with their moments, and no graph",
    cases=_embed_cases,
    run=_run_embed,
    judge=_judge_embed,
)
