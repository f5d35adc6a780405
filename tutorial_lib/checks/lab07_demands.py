"""What the checks of lab 07 demand alike: rows a run, mode, gradients within rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
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
    mistakes: Mapping[str, Callable[[], Sequence[Tensor | None]]],
    otherwise: Callable[[Sequence[Tensor | None]], str],
) -> None:
    """Demand gradients equal to the oracle's within the tolerance of their dtype.

    Args:
        result: What the answer gave, under `gradients`.
        exact: The oracle's gradients.
        case: Names the dtype, or the tolerance itself.
        mistakes: From what to tell the learner to the gradients that this mistake gives; looked
            at only where the gradients are wrong.
        otherwise: From the gradients to what to tell where it is none of these.

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
        f"{otherwise(seen)}"
    )


def distance(seen: Sequence[Tensor | None], exact: Sequence[Tensor | None]) -> float:
    """Give the largest relative error of a list of gradients, 1 where one is missing or nan."""
    pairs = list(zip(seen, exact, strict=True))
    if any(e is None and s is not None for s, e in pairs):
        return 1.0
    errors = [error_of(s, e) for s, e in pairs if e is not None]
    return max((1.0 if math.isinf(e) else e for e in errors), default=0.0)


def times_in(
    seen: Sequence[Tensor | None], parts: Sequence[Sequence[Tensor | None]]
) -> list[float] | None:
    """Tell how many times each part is in a sum of gradients; None where it is no sum of them."""
    pairs = zip(seen, parts[0], strict=True)
    if any(s is None or e is None or s.shape != e.shape for s, e in pairs):
        return None
    columns, total = torch.stack([_flat(part) for part in parts], dim=1), _flat(seen)[:, None]
    if not torch.isfinite(total).all():
        return None
    times = torch.linalg.lstsq(columns, total).solution
    return times.flatten().tolist() if error_of(columns @ times, total) < 1e-4 else None


def _flat(gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([g.flatten().double() for g in gradients if g is not None])


def demand_scale(seen: Tensor | None, exact: Tensor | None, tolerance: float) -> None:
    """Demand the gradient of the loss's own parameter, which was 1 before.

    Raises:
        CheckError: With what became of it.
    """
    assert exact is not None
    if error_of(seen, exact) <= tolerance:
        return
    if seen is None or seen.shape != exact.shape or not seen.any():
        raise CheckError(
            "the gradient of the loss's parameter is gone after your call: clear nothing once "
            "backward has run."
        )
    if bool((seen == 1).all()):
        raise CheckError(
            "the loss's own parameter got no gradient: torch.autograd.grad leaves .grad alone, and "
            "no later stage sees the scale again. loss.backward() gives it its due."
        )
    if error_of(seen + 1, exact) < 1e-4:
        raise CheckError(
            "the gradient that the loss's parameter had before is gone: backward adds, and so does "
            "this stage."
        )
    times = float((seen - 1) / (exact - 1))
    if times > 1.5 and abs(times - round(times)) < 1e-4:
        raise CheckError(
            f"the loss's own parameter got its gradient {times:.0f} times: every embedding is a "
            "leaf of its own, all are there at the same backward, and there is only one."
        )
    raise CheckError(
        "the other gradients are right, and that of the loss's own parameter is not: backward adds "
        "to it, and nothing else touches it."
    )


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
            "batch is another: what the loss gave, as a float, and no sum or mean of it."
        )


def two_of(answer: Any, names: str) -> tuple[Any, Any]:
    """Read a pair from what an answer returned.

    Raises:
        CheckError: When it is no tuple or list of two.
    """
    if isinstance(answer, tuple | list) and len(answer) == 2:
        return answer[0], answer[1]
    raise CheckError(
        f"two things are wanted, {names}, and {type(answer).__name__} came: return both."
    )
