"""What a judge reads out of a result: a value of the kind it wants, or a CheckError that says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.core import CheckError, Opaque, Result

_TOO_LARGE = 2**63


def whole_number(value: Any, name: str) -> int:
    """Read an int from 0 on out of a result, or say what stood there instead.

    Raises:
        CheckError: For anything but an int (a bool is none), a negative one, or one that no
            machine's memory could be.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        seen = value.type_name if isinstance(value, Opaque) else repr(value)[:100]
        hint = ": bytes are whole, so use // and int" if isinstance(value, float) else ""
        raise CheckError(f"{name} should be an int, and is {seen}{hint}.")
    if not 0 <= value < _TOO_LARGE:
        # A number of thousands of digits cannot even be written into the message.
        seen = "negative" if value < 0 else "2**63 or more"
        raise CheckError(f"{name} should be an int from 0 on, and is {seen}: which term grew it?")
    return value


def counts(seen: Any, number: int | None, name: str) -> list[int]:
    """Read a list of ints, of so many, or of any number (None), out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    if isinstance(seen, list) and all(type(n) is int for n in seen) and number in (None, len(seen)):
        return seen
    wanted = "a list of" if number is None else number
    raise CheckError(f"{name}: {wanted} whole numbers are wanted, and something else came.")


def items(seen: Any, name: str) -> list[Any]:
    """Read a list of anything out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    if isinstance(seen, list):
        return seen
    raise CheckError(f"{name}: a list is wanted, and {type(seen).__name__} came.")


def flag(result: Result, name: str) -> bool:
    """Read a bool out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    value = result.get(name)
    if isinstance(value, bool):
        return value
    raise CheckError(f"{name}: true or false is wanted, and {type(value).__name__} came.")


def tensors(seen: Any, number: int, name: str) -> list[Tensor | None]:
    """Read a list of tensors, or None, out of a result.

    Raises:
        CheckError: When it is anything else.
    """
    if not isinstance(seen, list) or len(seen) != number:
        raise CheckError(f"{name}: {number} tensors are wanted, and something else came.")
    for item in seen:
        if item is not None and not isinstance(item, Tensor):
            raise CheckError(
                f"{name}: tensors are wanted, and {type(item).__name__} is among them."
            )
    return seen


def same(one: Any, other: Any) -> bool:
    """Tell whether two are tensors of one dtype and shape, with the same bits, or both None."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is None and other is None
    return one.dtype == other.dtype and torch.equal(one, other)


def error_of(seen: Tensor | None, exact: Tensor) -> float:
    """Give the relative error of a gradient; 1 where there is none or its shape is another.

    It is inf where the gradient is nan: no comparison with a nan is true, so it would pass.
    """
    if seen is None or seen.shape != exact.shape:
        return 1.0
    error = float((seen - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def expect_bytes(seen: Any, wanted: int, name: str, mistakes: Mapping[str, int]) -> None:
    """Compare a number of bytes with an oracle's; a known mistake is named by its own number.

    Args:
        seen: What the answer gave, of any type.
        wanted: What the oracle counted. It stands in no message.
        name: Words for what was asked, which begin the message.
        mistakes: From what to tell the learner to the number that this mistake gives.

    Raises:
        CheckError: When the two differ.
    """
    value = whole_number(seen, name)
    if value == wanted:
        return
    for explanation, number in mistakes.items():
        if value == number:
            raise CheckError(f"{name}: {value:,} is not what the meter counts. {explanation}")
    side = "more" if value > wanted else "less"
    raise CheckError(
        f"{name}: {value:,} is {side} than the meter counts, and is none of the usual slips. "
        "Take the case apart by hand, one tensor at a time."
    )
