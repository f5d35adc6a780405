"""A learner's guess, shown beside what was measured."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any


def beside(guess: Any, seen: float) -> str:
    """Say how far a guess is from what was seen.

    Args:
        guess: A number, or None where none was made.
        seen: What came out, in the same unit.

    Returns:
        Empty for None, so that the output of a cell without a guess does not change.
    """
    if guess is None:
        return ""
    if isinstance(guess, bool) or not isinstance(guess, Real) or not isfinite(guess):
        return f"   (your guess, {guess!r}, is no number: write one, as in guess = 2.5)"
    ratio = f", {guess / seen:.2g} times that" if seen else ""
    return f"   (you guessed {guess:g}{ratio})"
