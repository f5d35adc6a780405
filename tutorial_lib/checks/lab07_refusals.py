"""What lab 07's last answer (7.6) must refuse, and that nothing is changed by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tutorial_lib.checks import lab07_kept as kept
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.results import flag
from tutorial_lib.checks.running import error_said

Made = tuple[list[nn.Module], list[Tensor], oracles.InBatch]

# What is wrong, the error that is wanted, what the learner is told.
_REFUSALS = {
    "uneven": (
        "ValueError",
        "the towers get different numbers of rows, so some have no partner",
    ),
    "alone": ("ValueError", "a batch of one row has no negatives"),
    "empty": ("ValueError", "a batch of no rows has no pairs"),
    "nothing": ("ValueError", "a micro_batch of 0 rows is none"),
    "negative": ("ValueError", "a micro_batch of -1 rows is none"),
    "norm": (
        "ValueError",
        "a BatchNorm in training takes its statistics from a micro-batch, and no second pass makes "
        "that the whole batch",
    ),
    "spoiled": ("FloatingPointError", "the loss is not finite"),
    "infinite": ("FloatingPointError", "finite embeddings gave an infinite loss"),
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


def run_refusal(answer: Callable[..., Any], case: Case, made: Made) -> Result:
    """Hand the answer what is wrong; tell what it said and what is changed."""
    towers, inputs, loss_of = made
    if case["wrong"] == "uneven":
        inputs[-1] = inputs[-1][:-1]
    if case["wrong"] == "norm":  # of images, and not the tower's own child
        as_image = nn.Unflatten(1, (case["hidden"], 1, 1))
        norm = nn.BatchNorm2d(case["hidden"]).to(oracles.dtype_of(case))
        towers[1].norm = nn.Sequential(as_image, norm, nn.Flatten())
    if case["wrong"] == "spoiled":
        inputs[0][2, 1] = float("nan")
    if case["wrong"] == "infinite":
        loss_of.factor = float("inf")
    before = kept.note([*towers, loss_of], inputs)
    said = error_said(lambda: answer(towers, inputs, loss_of, case["micro_batch"]))
    return {
        "said": said,
        "changed": kept.changed(before, kept.note([*towers, loss_of], inputs)),
        "ran": any(getattr(tower, "runs", []) for tower in towers),
    }


def judge_refusal(case: Case, result: Result) -> None:
    """Demand the wanted error, the words in it, and that nothing was changed.

    Raises:
        CheckError: When one of these is missing.
    """
    wanted, reason = _REFUSALS[case["wrong"]]
    said = str(result.get("said"))
    if not said:
        raise CheckError(f"{reason}, and it went through: raise a {wanted}.")
    if not said.startswith(wanted):
        raise CheckError(f"{reason}: a {wanted} is wanted, and this came: {said[:200]!r}")
    missing = [word for word in case["words"] if word not in said.lower()]
    if missing:
        raise CheckError(f"{reason}, and the error {said[:200]!r} does not name {missing[0]!r}.")
    changed = kept.names_of(result)
    if changed:
        raise CheckError(
            f"{reason}, the right error came, and by then this was changed: {changed}. Look before "
            "anything runs, and inside undone_on_error where you cannot."
        )
    if wanted == "ValueError" and flag(result, "ran"):
        raise CheckError(
            f"{reason}, and that could be seen before a tower ran: look at the arguments first."
        )
