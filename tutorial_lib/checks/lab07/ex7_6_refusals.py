"""What the answer to 7.6 must refuse, and that nothing is changed by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tutorial_lib.checks.core import Case, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab07 import models
from tutorial_lib.checks.vocabulary import expect, read

Made = tuple[list[models.CountingTower], list[Tensor], models.InBatch]


def _refusals(case: Case) -> dict[str, tuple[list[int | str], dict[str, Any]]]:
    """From the reason to what an error must name, and to what is another in the case."""
    rows = case["rows"]
    return {
        "the towers get different numbers of rows, so some have no partner": (
            [rows, rows - 1],
            {"spoiled": "uneven", "towers": 3},
        ),
        "a batch of one row has no negatives": ([1], {"rows": 1}),
        "a batch of no rows has no pairs": ([0], {"rows": 0}),
        "a micro_batch of 0 rows is none": ([0], {"micro_batch": 0}),
        "a micro_batch of -1 rows is none": (["-1"], {"micro_batch": -1}),
        "a BatchNorm in training takes its statistics from a micro-batch, and no second pass makes "
        "that the whole batch": (["norm.1"], {"spoiled": "norm"}),
        "the loss is not finite": (["nan"], {"spoiled": "nan"}),
        "finite embeddings gave an infinite loss": (["inf"], {"spoiled": "inf"}),
    }


def run_refusals(
    answer: Callable[..., Any], case: Case, make: Callable[[Case], Made]
) -> list[Result]:
    """Hand the answer all that is wrong; tell what it said and what is changed."""
    seen: list[Result] = []
    for _, changes in _refusals(case).values():
        wrong = {**case, **changes}
        towers, inputs, loss_of = make(wrong)
        _spoil(changes.get("spoiled", ""), wrong, towers, inputs, loss_of)
        with surroundings.watched([*towers, loss_of], inputs) as changed:
            call = lambda: answer(towers, inputs, loss_of, wrong["micro_batch"])  # noqa: B023, E731
            said = observe.error_said(call, "ValueError", "FloatingPointError")
        ran = any(tower.rows_seen for tower in towers)
        seen.append({"said": said, "changed": changed, "ran": ran})
    return seen


def _spoil(
    what: str,
    case: Case,
    towers: list[models.CountingTower],
    inputs: list[Tensor],
    loss_of: models.InBatch,
) -> None:
    if what == "uneven":
        inputs[-1] = inputs[-1][:-1]
    if what == "norm":  # of images, and not the tower's own child
        norm = nn.BatchNorm2d(case["hidden"]).to(inputs[0].dtype)
        towers[1].norm = nn.Sequential(nn.Unflatten(1, (case["hidden"], 1, 1)), norm, nn.Flatten())
    if what == "nan":
        inputs[0][2, 1] = float("nan")
    if what == "inf":
        loss_of.factor = float("inf")


def judge_refusals(case: Case, result: Result) -> None:
    """Expect each wanted error, the words in it, and that nothing was changed.

    Raises:
        CheckError: When one of these is missing.
    """
    refusals = _refusals(case)
    refused = read.records(result.get("refused"), "what was refused", len(refusals))
    for (reason, (words, changes)), seen in zip(refusals.items(), refused, strict=True):
        late = changes.get("spoiled") in ("nan", "inf")
        expect.refuses(seen.get("said"), FloatingPointError if late else ValueError, reason, words)
        changed = expect.changes(seen)
        faults = {
            f"{reason}, the right error came, and by then this was changed: {changed}. Look before "
            "anything runs, and inside undone_on_error where you cannot.": bool(changed),
            f"{reason}, and that could be seen before a tower ran: look at the arguments first.": (
                not late and read.flag(seen, "ran")
            ),
        }
        expect.no_fault(faults)
