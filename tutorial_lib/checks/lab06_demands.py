"""What the checks of lab 06 demand alike: rows at once, gradients, losses, modes as they were."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.core import CheckError, Opaque, Result
from tutorial_lib.checks.lab06_oracles import is_close, off

_LOGGED = 1e-6  # relative, for a loss: it is read by people, and may be added up in float32


def vectors(value: Any, size: int, name: str) -> list[Tensor]:
    """Read a list of vectors of one size out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    if not isinstance(value, list) or not all(_is_vector(item, size) for item in value):
        raise CheckError(f"{name} cannot be read: was the model changed, or replaced?")
    return [item.double() for item in value]


def one_vector(value: Any, size: int, name: str) -> Tensor:
    """Read one vector out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    return vectors([value], size, name)[0]


def _is_vector(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (size,) and value.is_floating_point()


def number(value: Any, name: str) -> float:
    """Read a float that was returned.

    Raises:
        CheckError: When it is anything else; a loss that is a tensor would keep the graph alive.
    """
    if isinstance(value, Tensor):
        why = ": a loss that is kept as a tensor keeps its whole graph" if "loss" in name else ""
        raise CheckError(f"{name} is a tensor, and should be a float{why}. Use .item().")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        seen = value.type_name if isinstance(value, Opaque) else repr(value)[:60]
        raise CheckError(f"{name} is {seen}, and should be a float.")
    return float(value)


def rows_of(result: Result) -> list[int]:
    """Read how many rows each forward had.

    Raises:
        CheckError: When it is anything else than whole numbers.
    """
    rows = result.get("rows")
    if not isinstance(rows, list) or not all(type(row) is int for row in rows):
        raise CheckError("the micro-batches that the model saw cannot be read.")
    return rows


def few_rows(result: Result, sizes: Sequence[int]) -> None:
    """Demand that no forward saw more rows than the largest micro-batch has.

    Raises:
        CheckError: When one did.
    """
    rows = rows_of(result)
    if rows and max(rows) > max(sizes):
        raise CheckError(
            f"the model saw {max(rows)} rows at once, and the largest micro-batch has "
            f"{max(sizes)}: one micro-batch is all that fits into memory here."
        )


def same_rows(result: Result, sizes: Sequence[int], optional: Sequence[int] = ()) -> None:
    """Demand that the model saw every micro-batch by itself, once.

    Args:
        result: What was observed.
        sizes: Rows of each micro-batch, in any order.
        optional: Rows of those that add nothing, which may be left out.

    Raises:
        CheckError: When it saw others.
    """
    rows = rows_of(result)
    missing, added = Counter(sizes) - Counter(rows), Counter(rows) - Counter(sizes)
    if missing and not rows:
        raise CheckError(
            "the model was never called: write model(x), and not model.forward(x), which leaves "
            "out a model's hooks."
        )
    if added or missing - Counter(optional):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and was given {list(sizes)}: run each "
            "once."
        )


def same_switches(result: Result) -> None:
    """Demand the modes, `requires_grad` and grad mode that were there before.

    Raises:
        CheckError: When one of them is another.
    """
    if result.get("switches_kept") is not True:
        raise CheckError(
            "after your call the model is in another mode, a parameter needs a gradient that "
            "needed none (or the other way round), or gradients are off: leave these as they came."
        )


def demand_gradient(
    seen: Tensor, wanted: Tensor, slips: Mapping[str, Tensor], where: str = ""
) -> None:
    """Demand a gradient; a known slip is told by the gradient that it gives.

    Args:
        seen: What the optimizer got.
        wanted: The gradient of the whole window at once.
        slips: From what to tell the learner to the gradient of that slip.
        where: Words for which update it was.

    Raises:
        CheckError: When they differ by more than rounding.
    """
    if is_close(seen, wanted):
        return
    if not bool(torch.isfinite(seen).all()):
        raise CheckError(f"{where}a gradient is nan or infinite: was there a division by nothing?")
    for words, slip in slips.items():
        if is_close(seen, slip):
            raise CheckError(f"{where}{words}")
    ratio = float(seen.norm() / wanted.norm())
    along = float(seen @ wanted) / max(float(seen.norm() * wanted.norm()), 1e-300)
    raise CheckError(
        f"{where}the gradient is off by {off(seen, wanted):.2g} times the norm of the whole "
        f"window's ({ratio:.4g} times as long, with cosine {along:.4f}), and it is none of the "
        "usual slips. Write the sum down for two micro-batches."
    )


def clipped(plain: Tensor, limit: float, seen: Tensor) -> Tensor:
    """Clip a gradient as PyTorch does, which adds 1e-6 to its norm, or without that: as was seen.

    Args:
        plain: The whole gradient.
        limit: Largest norm.
        seen: What the optimizer got.

    Returns:
        Of the two the nearer one.
    """
    norm = float(plain.norm())
    both = [plain * min(1.0, limit / divisor) for divisor in (norm + 1e-6, norm)]
    return min(both, key=lambda wanted: off(seen, wanted))


def demand_clipped(
    seen: Tensor,
    plain: Tensor,
    limit: float,
    slips: Mapping[str, Tensor],
    where: str = "",
    limits: Sequence[float] = (),
) -> Tensor:
    """Demand the gradient of a window, clipped as a whole.

    Args:
        seen: What the optimizer got.
        plain: The gradient of the whole window at once.
        limit: Largest norm.
        slips: As for `demand_gradient`.
        where: Words for which update it was.
        limits: Other norms that clipping may have left, by a slip.

    Returns:
        What was wanted.

    Raises:
        CheckError: When it is another.
    """
    wanted = clipped(plain, limit, seen)
    along = float(seen @ wanted) / max(float(seen.norm() * wanted.norm()), 1e-300)
    at_limit = any(math.isclose(float(seen.norm()), n, rel_tol=1e-3) for n in (limit, *limits))
    if at_limit and along < 1 - 1e-9 and not any(is_close(seen, s) for s in slips.values()):
        raise CheckError(
            f"{where}the gradient has the norm of the limit, and another direction than the "
            f"window's (cosine {along:.4f}): clip once, after the last backward, not each "
            "micro-batch."
        )
    demand_gradient(seen, wanted, slips, where)
    return wanted


def demand_loss(seen: Any, wanted: float, where: str, slips: Mapping[str, float]) -> None:
    """Demand the loss of the whole window.

    Raises:
        CheckError: When another was returned; a known slip is named.
    """
    value = number(seen, f"{where}the loss")
    if abs(value - wanted) <= _LOGGED * abs(wanted):
        return
    if math.isnan(value):
        raise CheckError(
            f"{where}the gradient is right, and the loss returned is nan: is there a mean over "
            "nothing? A sum of nothing is 0."
        )
    for words, slip in slips.items():
        if abs(value - slip) <= _LOGGED * abs(slip):
            raise CheckError(f"{where}the loss returned is wrong: {words}")
    raise CheckError(
        f"{where}the gradient is right, and the loss returned is {value / wanted:.7g} times that "
        "of the whole window: return what the update minimised."
    )
