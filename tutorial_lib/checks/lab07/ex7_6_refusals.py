"""What the answer to 7.6 must refuse, and that nothing is changed by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tutorial_lib.checks import expect, observe, read, surroundings
from tutorial_lib.checks.core import Case, Result
from tutorial_lib.checks.lab07 import models

# What is wrong, and what the learner is told.
_REASONS = {
    "uneven": "the towers get different numbers of rows, so some have no partner",
    "alone": "a batch of one row has no negatives",
    "empty": "a batch of no rows has no pairs",
    "nothing": "a micro_batch of 0 rows is none",
    "negative": "a micro_batch of -1 rows is none",
    "norm": "a BatchNorm in training takes its statistics from a micro-batch, and no second pass "
    "makes that the whole batch",
    "spoiled": "the loss is not finite",
    "infinite": "finite embeddings gave an infinite loss",
}


def refusal_cases(micro_batch: int) -> list[dict[str, Any]]:
    """List what is wrong, one case each, and the words that an error must hold."""
    rows = 4 * micro_batch + 3
    wrong: dict[str, dict[str, Any]] = {
        "uneven": {"words": [str(rows), str(rows - 1)], "rows": rows, "towers": 3},
        "alone": {"words": ["1"], "rows": 1},
        "empty": {"words": ["0"], "rows": 0},
        "nothing": {"words": ["0"], "micro_batch": 0},
        "negative": {"words": ["-1"], "micro_batch": -1},
        "norm": {"words": ["norm.1"], "rows": rows},
        "spoiled": {"words": ["nan"]},
        "infinite": {"words": ["inf"]},
    }
    case = {"kind": "refusal", "dropout": 0.3, "moves": True}
    return [{**case, "wrong": name, **more} for name, more in wrong.items()]


def run_refusal(
    answer: Callable[..., Any],
    case: Case,
    towers: list[models.CountingTower],
    inputs: list[Tensor],
    loss_of: models.InBatch,
) -> Result:
    """Hand the answer what is wrong; tell what it said and what is changed."""
    if case["wrong"] == "uneven":
        inputs[-1] = inputs[-1][:-1]
    if case["wrong"] == "norm":  # of images, and not the tower's own child
        norm = nn.BatchNorm2d(case["hidden"]).to(inputs[0].dtype)
        towers[1].norm = nn.Sequential(nn.Unflatten(1, (case["hidden"], 1, 1)), norm, nn.Flatten())
    if case["wrong"] == "spoiled":
        inputs[0][2, 1] = float("nan")
    if case["wrong"] == "infinite":
        loss_of.factor = float("inf")
    with surroundings.watched([*towers, loss_of], inputs) as changed:
        said = observe.error_said(lambda: answer(towers, inputs, loss_of, case["micro_batch"]))
    return {"said": said, "changed": changed, "ran": any(tower.rows_seen for tower in towers)}


def judge_refusal(case: Case, result: Result) -> None:
    """Expect the wanted error, the words in it, and that nothing was changed.

    Raises:
        CheckError: When one of these is missing.
    """
    reason, said = _REASONS[case["wrong"]], str(result.get("said"))
    wanted = "FloatingPointError" if case["wrong"] in ("spoiled", "infinite") else "ValueError"
    missing = [word for word in case["words"] if word not in said.lower()]
    changed = surroundings.names_in(result)
    faults = {
        f"{reason}, and it went through: raise a {wanted}.": not said,
        f"{reason}: a {wanted} is wanted, and this came: {said[:200]!r}": (
            not said.startswith(wanted)
        ),
        f"{reason}, and the error {said[:200]!r} does not name {' and '.join(missing)}.": bool(
            missing
        ),
        f"{reason}, the right error came, and by then this was changed: {changed}. Look before "
        "anything runs, and inside undone_on_error where you cannot.": bool(changed),
        f"{reason}, and that could be seen before a tower ran: look at the arguments first.": (
            wanted == "ValueError" and read.flag(result, "ran")
        ),
    }
    expect.no_fault(faults)
