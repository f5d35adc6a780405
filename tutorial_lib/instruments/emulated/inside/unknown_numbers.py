"""Numbers that a program reads off an emulated card: what it decides by them is noted.

A loss is read to be printed, mostly, and then its value does not matter. `if loss.item() < best`
matters. So `Tensor.item()` gives a float that knows that its value is not known, and that passes
this on in arithmetic. Blind to numbers that NumPy or `math` compute on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_DECIDE = ("__bool__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_COMPUTE = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__pow__", "__rpow__", "__neg__", "__abs__", "__round__"),
)


class UnknownNumber(float):
    """A float, given as 0, whose value no kernel has made."""

    note_read: Callable[[], None]

    def __reduce__(self) -> Any:  # what is saved holds a plain float
        return float, (float(self),)


def _deciding(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def decide(self: UnknownNumber, *others: Any) -> Any:
        if "/torch/" not in sys._getframe(1).f_code.co_filename:  # its own look for infinity
            UnknownNumber.note_read()
        return plain(self, *others)

    return decide


def _computing(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def compute(self: UnknownNumber, *others: Any) -> Any:
        result = plain(self, *others)
        return UnknownNumber(result) if isinstance(result, float) else result

    return compute


for _names, _make in ((_DECIDE, _deciding), (_COMPUTE, _computing)):
    for _name in _names:
        setattr(UnknownNumber, _name, _make(_name))
