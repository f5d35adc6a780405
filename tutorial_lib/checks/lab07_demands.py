"""What the checks of lab 07 demand alike: rows a run, mode, gradients within rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.results import error_of, tensors

# Relative, for sums of the same terms in another order.
TOLERANCES = {"float64": 1e-12, "float32": 1e-6}


def rows_at_once(runs: Any) -> list[int]:
    """Read from a result how many rows each run of a tower had.

    Raises:
        CheckError: When it is anything else than a list of runs.
    """
    if not isinstance(runs, list) or not all(isinstance(r, list) and len(r) == 3 for r in runs):
        raise CheckError("runs: a list of what the tower saw is wanted, and something else came.")
    if not all(type(rows) is int for rows, _, _ in runs):
        raise CheckError("runs: whole numbers of rows are wanted, and something else came.")
    return [rows for rows, _, _ in runs]


def demand_training_mode(runs: list[Any]) -> None:
    """Demand that the tower was never put into eval mode.

    Raises:
        CheckError: When a run was in eval mode.
    """
    if not all(training for _, _, training in runs):
        raise CheckError(
            "the tower was in eval mode in one of its runs: its dropout was off then. Turn "
            "gradients off, and leave the tower's mode alone."
        )


def demand_close(
    result: Result,
    exact: Sequence[Tensor | None],
    case: Case,
    mistakes: dict[str, Callable[[], Sequence[Tensor | None]]],
    otherwise: str,
) -> None:
    """Demand gradients equal to the oracle's within the tolerance of their dtype.

    Args:
        result: What the answer gave, under `gradients`.
        exact: The oracle's gradients.
        case: Names the dtype, or the tolerance itself.
        mistakes: From what to tell the learner to the gradients that this mistake gives; looked
            at only where the gradients are wrong.
        otherwise: What to tell where it is none of these.

    Raises:
        CheckError: With the share by which the gradients are off.
    """
    seen = tensors(result.get("gradients"), len(exact), "gradients")
    tolerance = case.get("tolerance", TOLERANCES[case["dtype"]])
    off = distance(seen, exact)
    if off <= tolerance:
        return
    for said, make in mistakes.items():
        if distance(seen, make()) <= max(100 * tolerance, 1e-4):
            raise CheckError(f"the gradients are off by {off:.1%}: {said}")
    raise CheckError(
        f"the gradients are off by {off:.1e} of their size, and {tolerance:.0e} is wanted: "
        f"{otherwise}"
    )


def distance(seen: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> float:
    """Give the largest relative error of a list of gradients, 1 where one is missing."""
    pairs = list(zip(seen, exact, strict=True))
    if any(e is None and s is not None for s, e in pairs):
        return 1.0
    errors = [error_of(s, e) for s, e in pairs if e is not None]
    # a comparison with nan is never true
    return max((1.0 if math.isnan(e) else e for e in errors), default=0.0)


def demand_sizes(runs: list[Any], sizes: list[int], *, in_order: bool = True) -> None:
    """Demand that the tower ran once on each micro-batch.

    Raises:
        CheckError: With the numbers of rows of all runs.
    """
    seen = rows_at_once(runs)
    if any(rows > max(sizes) for rows in seen):
        raise CheckError(
            f"{max(seen)} rows went through the tower at once, and the largest micro-batch has "
            f"{max(sizes)}: give it one micro-batch at a time."
        )
    if seen == sizes[: len(seen)] and len(seen) < len(sizes):
        raise CheckError(
            f"{sum(seen)} of {sum(sizes)} rows went through the tower: the last micro-batch, "
            "smaller or not, belongs to the batch."
        )
    if seen != sizes and (in_order or sorted(seen) != sorted(sizes)):
        raise CheckError(f"the tower ran on {seen} rows, and {sizes} are wanted, once each.")


def demand_loss(result: Result, exact: float, tolerance: float) -> None:
    """Demand the oracle's loss, as a float.

    Raises:
        CheckError: When it is another, or none.
    """
    loss = result.get("loss")
    if not isinstance(loss, float):
        raise CheckError(f"the loss comes as {type(loss).__name__}: a float is wanted.")
    if not abs(loss - exact) <= tolerance * abs(exact):  # nan is not
        raise CheckError(
            f"the gradients are right, and the loss is given as {loss:.4f} where that of the whole "
            f"batch is {exact:.4f}."
        )


def two_of(answer: Any, names: str) -> tuple[Any, Any]:
    """Read a pair from what an answer returned.

    Raises:
        CheckError: When it is no tuple of two.
    """
    if isinstance(answer, tuple) and len(answer) == 2:
        return answer
    raise CheckError(
        f"two things are wanted, {names}, and {type(answer).__name__} came: return both."
    )
