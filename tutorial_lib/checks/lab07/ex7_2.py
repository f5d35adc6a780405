"""The check of 7.2, the first pass: embeddings without a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered, observe, surroundings
from tutorial_lib.checks.lab07 import models
from tutorial_lib.checks.lab07.expectations import expect_runs
from tutorial_lib.checks.vocabulary import expect, read


def _cases(seed: int) -> list[Case]:
    return [{**models.case_of_parts(seed), "dropout": 0.3}]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    tower = models.seeded_tower(case, models.CountingTower)
    asked_after: list[int] = []

    def note_moment(asked: nn.Module) -> int:
        """Give moments that are numbers, and write down how many runs came before each."""
        if asked is not tower:
            raise CheckError("remember is called with the tower, and something else came.")
        asked_after.append(len(tower.rows_seen))
        return len(asked_after) - 1

    parts = models.parts_of(case)
    with surroundings.watched(tower, parts, but=["random state"]) as changed:
        returned = answer(tower, parts, note_moment)
    embeddings, moments = answered.several(returned, 2, "embeddings and moments")
    if not isinstance(embeddings, Tensor):
        raise CheckError(
            f"the embeddings come as {type(embeddings).__name__}, and one tensor of all rows is "
            "wanted: torch.cat."
        )
    if not isinstance(moments, list | tuple):
        raise CheckError(
            "the second value should be a list, with what remember returned before each run, and "
            f"{type(moments).__name__} came."
        )
    seen: dict[str, Any] = {
        "embeddings": embeddings,
        "needs_grad": embeddings.requires_grad,
        "inference": embeddings.is_inference(),
        "moments": list(moments),
        "asked_after": list(asked_after),
        "rows": list(tower.rows_seen),
        "was_evaluated": tower.was_evaluated,
        "changed": changed,
        "random_state": torch.get_rng_state(),
    }
    for name, times in models.TIMES.items():
        call = partial(answer, tower, models.parts_of(case, times), note_moment)
        seen[name] = observe.peak_above(call, tower)[0]
    return seen


def _judge(case: Case, result: Result) -> None:
    expect.unchanged(result)
    expect_runs(result, case["sizes"])
    faults = {
        "the embeddings are inference tensors: autograd refuses them for ever, and the loss needs "
        "their gradient. torch.no_grad it is.": read.flag(result, "inference"),
        "the embeddings still have a graph: they are to be plain numbers.": (
            read.flag(result, "needs_grad")
        ),
    }
    expect.no_fault(faults)
    tower = models.seeded_tower(case, models.CountingTower)
    with torch.no_grad():
        wanted = torch.cat([tower(part) for part in models.parts_of(case)])
    random_state = torch.get_rng_state()
    expect.close(
        read.tensors([result.get("embeddings")], 1, "embeddings"),
        [wanted],
        otherwise="the embeddings are not those of the rows in their order: one torch.cat, and "
        "nothing that draws random numbers or changes them in between.",
    )
    numbers, asked_after = list(range(len(case["sizes"]))), result.get("asked_after")
    faults = {
        "the embeddings are right, and the random state afterwards is not that of one run of each "
        "micro-batch: seed nothing, and put nothing back.": (
            not expect.same_bits(result.get("random_state"), random_state)
        ),
        f"remember was called after {asked_after} runs of the tower, and is wanted before each, "
        f"after {numbers}: a moment is what a run begins with.": asked_after != numbers,
        "the moments come otherwise than remember gave them: a list, one a micro-batch, in their "
        "order.": result.get("moments") != numbers,
    }
    expect.no_fault(faults)
    few, many = (read.integer(result.get(name), f"peak of {name}") for name in models.TIMES)
    more = 3 * sum(case["sizes"])
    embeddings = more * case["features"] * 8
    if many - few > 2 * embeddings:  # torch.cat holds them twice
        raise CheckError(
            f"the peak grew by {many - few} bytes with {more} rows more, whose embeddings have "
            f"{embeddings}: turn gradients off while the tower runs, or the graph of a micro-batch "
            "lives as long as its embeddings."
        )


embed = Check(
    "lab07.embed",
    "7.2",
    "all rows, one micro-batch at a time, with their moments, and no graph",
    _cases,
    _run,
    _judge,
    forbidden=[models.NO_CHECKPOINT],
)
