"""Typed values out of a result; a CheckError describes any other value."""

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given.outside import COUNTS
from tutorial_lib.checks.given.values import CheckError, Opaque, Result

_TOO_LARGE = 2**63


def integer(value: Any, name: str) -> int:
    """Read an int from 0 on, which may come as a tensor of one whole number."""
    value = _whole(value)
    if isinstance(value, bool) or not isinstance(value, int):
        advice = ": whole numbers come from // and int." if isinstance(value, float) else "."
        advice = ": what does it return?" if value is None else advice
        raise CheckError(f"{name} should be an int, but is {_told(value)}{advice}")
    if not 0 <= value < _TOO_LARGE:
        # A number of thousands of digits cannot even be written into the message.
        seen = "negative" if value < 0 else "2**63 or more"
        raise CheckError(f"{name} should be an int from 0 on, but is {seen}: which term is wrong?")
    return value


def integers(value: Any, name: str, number: int | None = None) -> list[int]:
    """Read a list of `number` ints, or of any length (None); a vector of ints will do as well."""
    if isinstance(value, Tensor) and value.shape == (number,):
        value = value.tolist()
    numbers = [_whole(n) for n in value] if isinstance(value, list) else []
    others = [n for n in numbers if type(n) is not int]
    if isinstance(value, list) and not others and number in (None, len(numbers)):
        return numbers
    wanted = "a list of" if number is None else number
    seen = f"a list of {len(numbers)}" if isinstance(value, list) else _told(value)
    among = f", {_told(others[0])} among them" if others else ""
    raise CheckError(f"{name}: {wanted} whole numbers are wanted, but {seen} came{among}.")


def number(value: Any, name: str) -> float:
    """Read a float or an int, which may come as a tensor of one; nan and infinity are floats."""
    if isinstance(value, Tensor) and value.dim() == 0 and "loss" not in name:
        value = value.item()
    if isinstance(value, Tensor):
        why = ": a tensor with a grad_fn keeps its whole graph" if "loss" in name else ""
        raise CheckError(f"{name} is a tensor, but should be a float{why}. Use .item().")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckError(f"{name} should be a number, but is {_told(value)}: what does it return?")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise CheckError(f"{name} should be a number, but is an int of 2**63 or more.")
    return float(value)


def positive(value: Any, name: str) -> float:
    """Read a positive finite number."""
    seen = number(value, name)
    if not 0 < seen < math.inf:  # nan is not
        raise CheckError(
            f"{name} should be positive and finite, but is {seen}: what was subtracted from what, "
            "or divided by what?"
        )
    return seen


def flag(result: Result, name: str) -> bool:
    """Read a bool by its name."""
    value = result.get(name)
    if isinstance(value, bool):
        return value
    raise CheckError(f"{name}: true or false is wanted, but {type(value).__name__} came.")


def items(value: Any, name: str) -> list[Any]:
    """Read a list of anything."""
    if isinstance(value, list):
        return value
    raise CheckError(f"{name}: a list is wanted, but {type(value).__name__} came.")


def records(value: Any, name: str, number: int) -> list[Mapping[str, Any]]:
    """Read a list of so many dicts."""
    are_dicts = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    if are_dicts and len(value) == number:
        return value  # type: ignore[no-any-return]
    raise CheckError(f"{name}: {number} records are wanted, but something else came.")


def tensors(value: Any, number: int, name: str) -> list[Tensor | None]:
    """Read a list of so many tensors, or None in the place of one."""
    if not isinstance(value, list) or len(value) != number:
        raise CheckError(f"{name}: {number} tensors are wanted, but something else came.")
    for item in value:
        if item is not None and not isinstance(item, Tensor):
            raise CheckError(
                f"{name}: tensors are wanted, but {type(item).__name__} is among them."
            )
    return value


def vectors(value: Any, size: int, name: str) -> list[Tensor]:
    """Read a list of vectors `(size,)`, and return them in float64."""
    if not isinstance(value, list) or not all(_is_vector(item, size) for item in value):
        raise CheckError(f"{name} cannot be read: was the model changed, or replaced?")
    return [item.double() for item in value]


def vector(value: Any, size: int, name: str) -> Tensor:
    """Read one vector `(size,)`, and return it in float64."""
    return vectors([value], size, name)[0]


def counts(result: Result, key: str, number: int, words: str) -> list[int]:
    """Read how often each of some numbered things was reported (see `given.outside`).

    A grader's counts win over those that the result itself has under `key`.
    """
    seen = result.get(key)
    if isinstance(counted := result.get(COUNTS), dict):
        seen = [counted.get(f"{key} {i}", 0) for i in range(number)]
    return integers(seen, words, number)


def total(result: Result, key: str) -> Any:
    """Read the sum of the numbers that were reported, as in `copied 512`; else the result's own."""
    if not isinstance(counted := result.get(COUNTS), dict):
        return result.get(key)
    named = ((name.partition(" "), times) for name, times in counted.items())
    return sum(int(number) * times for (name, _, number), times in named if name == key)


def _is_vector(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.shape == (size,) and value.is_floating_point()


def _whole(value: Any) -> Any:
    if isinstance(value, Tensor):
        is_float = value.is_floating_point() or value.is_complex()
        is_whole = value.dim() == 0 and not is_float and value.dtype != torch.bool
        return int(value) if is_whole else value
    is_index = hasattr(type(value), "__index__") and not isinstance(value, bool)
    return int(operator.index(value)) if is_index else value


def _told(value: Any) -> str:
    if isinstance(value, Opaque):
        return value.type_name
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return repr(value)[:100] if not isinstance(value, int) or isinstance(value, bool) else "an int"
