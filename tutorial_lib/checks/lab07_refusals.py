"""What lab 07's last answer (7.6) must refuse, and that nothing is changed by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.results import flag
from tutorial_lib.checks.running import error_said

Made = tuple[list[nn.Module], list[Tensor], oracles.InBatch]

# What is wrong, the error that is wanted, words that it must hold, what the learner is told.
_REFUSALS = {
    "uneven": (
        "ValueError",
        "the towers get different numbers of rows, so some have no partner",
    ),
    "alone": ("ValueError", "a batch of one row has no negatives"),
    "nothing": ("ValueError", "a micro_batch of 0 rows is none"),
    "norm": (
        "ValueError",
        "a BatchNorm in training takes its statistics from a micro-batch, and no second pass makes "
        "that the whole batch",
    ),
    "spoiled": ("FloatingPointError", "the loss is not finite"),
}


def refusal_cases(micro_batch: int) -> list[dict[str, Any]]:
    """List what is wrong, one case each, and the words that an error must hold."""
    words: dict[str, list[str]] = {
        "uneven": [str(4 * micro_batch + 3), str(4 * micro_batch + 2)],
        "alone": ["1"],
        "nothing": ["0"],
        "norm": ["norm"],
        "spoiled": ["nan"],
    }
    rows = {"uneven": 4 * micro_batch + 3, "alone": 1}
    return [
        {
            "kind": "refusal",
            "wrong": wrong,
            "words": said,
            "dropout": 0.3,
            "moves": True,
            **({"rows": rows[wrong]} if wrong in rows else {}),
            **({"micro_batch": 0} if wrong == "nothing" else {}),
        }
        for wrong, said in words.items()
    ]


def run_refusal(answer: Callable[..., Any], case: Case, made: Made) -> Result:
    """Hand the answer what is wrong; tell what it said and what is changed."""
    towers, inputs, loss_of = made
    if case["wrong"] == "uneven":
        inputs[1] = inputs[1][:-1]
    if case["wrong"] == "norm":
        towers[1].norm = nn.BatchNorm1d(case["hidden"]).to(oracles.dtype_of(case))
    if case["wrong"] == "spoiled":
        inputs[0][2, 1] = float("nan")
    before = _state(towers, loss_of)
    said = error_said(lambda: answer(towers, inputs, loss_of, case["micro_batch"]))
    after = _state(towers, loss_of)
    names = ("random state", "buffers", "gradients", "weights", "modes")
    pairs = zip(names, before, after, strict=True)
    return {
        "said": said,
        "changed": [name for name, one, other in pairs if not _same(one, other)],
        "ran": any(getattr(tower, "runs", []) for tower in towers),
    }


def _state(towers: Sequence[nn.Module], loss_of: nn.Module) -> list[list[Any]]:
    modules = nn.ModuleList([*towers, loss_of])
    return [
        [torch.get_rng_state()],
        [buffer.clone() for buffer in modules.buffers()],
        [None if p.grad is None else p.grad.clone() for p in modules.parameters()],
        [p.detach().clone() for p in modules.parameters()],
        [module.training for module in towers],
    ]


def _same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a is b for a, b in pairs)


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
    changed = result.get("changed")
    if changed != []:
        raise CheckError(
            f"{reason}, the right error came, and by then this was changed: {changed}. Look before "
            "anything runs, and inside undone_on_error where you cannot."
        )
    if case["wrong"] != "spoiled" and flag(result, "ran"):
        raise CheckError(
            f"{reason}, and that could be seen before a tower ran: look at the arguments first."
        )
