"""Bytes, seconds and FLOPs as text: the one spelling used in the whole course."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
GB = 10**9

_BINARY = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECONDS = ((60.0, "min", 1 / 60), (1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))


def human_bytes(num_bytes: float, *, up: bool = False) -> str:
    """Write a number of bytes with a binary unit, as in ``1.50 GiB``.

    Args:
        num_bytes: Any number of bytes; a difference may be negative.
        up: Whether to round up, for a size that is enough only if `parse_bytes` reads no less.

    Returns:
        Text with three significant digits; whole bytes below 1 KiB.

    Example:
        >>> human_bytes(1_577_000), human_bytes(1_577_000, up=True)
        ('1.50 MiB', '1.51 MiB')
    """
    size = abs(num_bytes)
    for factor, unit in _BINARY:
        if size >= factor * 0.9995:
            if up:
                tenths = 10 ** _decimals(num_bytes / factor)
                num_bytes = math.ceil(Fraction(num_bytes) * tenths / factor) * factor / tenths
                return human_bytes(num_bytes)  # in the next unit where it became 1024 of this one
            return f"{_three_digits(num_bytes / factor)} {unit}"
    return f"{math.ceil(num_bytes) if up else num_bytes:.0f} B"


class Bytes(int):
    """A number of bytes that prints itself as `human_bytes` writes it, as in ``1.50 GiB``.

    Otherwise it is an int: it counts, compares and divides as one, and saves its digits. Sums,
    differences and multiples of Bytes are Bytes. A format with a comma or a type gives digits, as
    in ``f"{size:,}"``; one of width and alignment alone, as in ``f"{size:>10}"``, the text.

    Example:
        >>> 3 * Bytes(1_577_000), Bytes(1_577_000) / 1000
        (4.51 MiB, 1577.0)
    """

    def __str__(self) -> str:
        return human_bytes(self)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        if not _TEXT_FORMAT.fullmatch(spec):
            return int.__format__(self, spec)
        return format(str(self), f">{spec}" if spec.isdigit() else spec)

    def __add__(self, other: int) -> Bytes:
        return _in_bytes(int.__add__(self, other))

    def __sub__(self, other: int) -> Bytes:
        return _in_bytes(int.__sub__(self, other))

    def __rsub__(self, other: int) -> Bytes:
        return _in_bytes(int.__rsub__(self, other))

    def __mul__(self, other: int) -> Bytes:
        return _in_bytes(int.__mul__(self, other))

    __radd__, __rmul__ = __add__, __mul__

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Copy and pickle as the plain number, which programs read."""
        return int, (int(self),)


_TEXT_FORMAT = re.compile(r"(?:.?[<>^])?(?:[1-9]\d*)?")


def _in_bytes(value: Any) -> Bytes:
    result: Bytes = value if value is NotImplemented else Bytes(value)
    return result


def parse_bytes(text: str) -> int:
    """Read a number of bytes, as in ``16GiB``, ``1.5 GB``, ``512 MiB`` or ``12622168064``.

    Without a unit it must be a whole number of at least 2**20: ``16`` would hardly mean bytes.

    Raises:
        ValueError: When it is not a size, or not above 0.
    """
    if text.isdecimal() and int(text) >= MIB:
        return int(text)
    sizes = {unit: size for size, unit in _BINARY}
    sizes |= {unit[0] + "B": 1000 ** (power + 1) for power, unit in enumerate(("K", "M", "G", "T"))}
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]i?B|B)\s*", text)
    if found is None or found[1].count(".") > 1 or not float(found[1]) > 0:
        raise ValueError(
            f"{text!r} isn't a memory size: a number above 0 and a unit are needed, as in 16GiB."
        )
    return round(float(found[1]) * {**sizes, "B": 1}[found[2]])


def binary_unit(largest: float) -> tuple[str, int]:
    """Choose one unit for an axis whose largest value is this many bytes.

    Returns:
        Its name and its size in bytes.
    """
    return next(((unit, size) for size, unit in _BINARY if largest >= size), ("bytes", 1))


def human_seconds(seconds: float) -> str:
    """Write a duration, as in ``12.3 ms`` or ``2.00 min``."""
    unit, factor = next((unit, by) for least, unit, by in _SECONDS if abs(seconds) >= least)
    return f"{_three_digits(seconds * factor)} {unit}"


def human_flops(flops: float) -> str:
    """Write floating-point operations, as in ``3.10 TFLOP``."""
    for factor, prefix in _DECIMAL:
        if abs(flops) >= factor * 0.9995:
            return f"{_three_digits(flops / factor)} {prefix}FLOP"
    return f"{flops:.0f} FLOP"


def _three_digits(value: float) -> str:
    return f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
