"""Expectations of all judges of lab 07: rows of each run, mode, gradients within rounding."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Draw, Faults, Result, accumulation, expect, read

from .given.towers import NOT_FINITE


def draw_parts(draw: Draw) -> dict[str, Any]:
    """Draw a tower and the sizes of its micro-batches, of which chunks of one size are none."""
    case = {"seed": draw.randrange(10**6), "width": 12, "hidden": 512, "features": 16}
    sizes = [5, 3, draw.randint(2, 4), 5, draw.randint(1, 2)]  # chunks of one size do not fit
    return {**case, "sizes": sizes, "dtype": "float64", "dropout": 0.0}


def read_peaks(result: Result) -> tuple[int, int]:
    """Read the peak of few micro-batches, and that of many."""
    few, many = (read.integer(result[name], f"peak of {name}") for name in ("few", "many"))
    return few, many


def expect_training_mode(result: Result) -> None:
    """Expect that no tower was ever in eval mode."""
    expect.fact(
        not read.flag(result, "was_evaluated"),
        "the tower was in eval mode in one of its runs, so its dropout was off. Turn gradients "
        "off, but leave the tower's mode alone.",
    )


def expect_runs(result: Result, sizes: list[int]) -> None:
    """Expect that the tower ran once on each micro-batch, in training mode."""
    accumulation.expect_rows_at_most(result, sizes)
    rows = read.integers(result["rows"], "rows")
    expect.fact(
        rows != sizes[: len(rows)] or len(rows) == len(sizes),
        f"{sum(rows)} of {sum(sizes)} rows went through the tower: the last micro-batch, smaller "
        "or not, is part of the batch.",
    )
    accumulation.expect_each_once(result, sizes)
    expect_training_mode(result)


def expect_gradients(
    seen: Sequence[Tensor | None],
    wanted: Sequence[Tensor | None],
    faults: Faults,
    otherwise: str | Callable[[], str],
    tolerance: float = expect.EXACT,
) -> None:
    """Expect gradients equal to the oracle's; else say how far they are off (see `close`)."""
    expect.close(
        seen,
        wanted,
        faults,
        otherwise=otherwise,
        tolerance=tolerance,
        fault_tolerance=max(100 * tolerance, 1e-4),
        where=f"the gradients are off by {expect.relative_error(seen, wanted):.2g} times their "
        f"norm, and {tolerance:.0e} is allowed: ",
    )


def times_in(seen: Sequence[Tensor | None], parts: Sequence[Sequence[Tensor]]) -> list[float]:
    """Tell how many times each part is in a sum of gradients; empty where it is no sum of them."""
    found = [gradient for gradient in seen if gradient is not None]
    if [g.shape for g in found] != [g.shape for g in parts[0]]:
        return []
    columns, total = torch.stack(list(map(observe.vector, parts)), dim=1), observe.vector(found)
    if not torch.isfinite(total).all():
        return []
    times = torch.linalg.lstsq(columns, total[:, None]).solution.flatten()
    return times.tolist() if expect.is_close(columns @ times, total, 1e-4) else []


def expect_scale(seen: Tensor | None, wanted: Any, tolerance: float = expect.EXACT) -> None:
    """Expect the gradient of the loss's own parameter, which was 1 before."""
    faults = {
        "the gradient of the loss's parameter is gone after your call: clear nothing after "
        "backward.": 0 * wanted,
        "the loss's own parameter got no gradient: torch.autograd.grad leaves .grad alone, and no "
        "later stage sees the scale again. Use loss.backward().": 0 * wanted + 1,
        "the gradient that the loss's parameter had before is gone: add to it, as backward "
        "does.": wanted - 1,
    }
    for times in range(2, 10):
        several = f"the loss's own parameter got its gradient {times} times: every embedding is a "
        several += "leaf of its own, all are there at the same backward, and there is only one."
        faults[several] = 1 + times * (wanted - 1)
    expect.close(
        torch.zeros_like(wanted) if seen is None else seen,
        wanted,
        faults.items(),
        otherwise="the other gradients are right, but the loss's own parameter's is not: "
        "backward adds to it, and nothing else touches it.",
        tolerance=tolerance,
    )


def expect_told_apart(result: Result, spoiled: str) -> None:
    """Expect that the error of this loss, nan or inf, is another than that of the other."""
    expect.fact(
        result["said"] != result["of_the_other"],
        f"the loss is {spoiled}, and the error is the same where it is {NOT_FINITE[spoiled]}: "
        f"{str(result['said'])[:150]!r}. Put the loss itself into the text.",
    )


def expect_loss(result: Result, wanted: float, tolerance: float) -> None:
    """Expect the oracle's loss, as a float."""
    loss = read.number(result["loss"], "the loss")
    expect.fact(
        expect.is_close(loss, wanted, tolerance),
        f"the gradients are right, but you returned {loss:.4f} as the loss: return the whole "
        "batch's loss as it is, as a float, not a sum or mean of it.",
    )
