"""A learner's guess, shown beside what was measured; `keep` and `kept` load when first used."""

from math import isfinite
from numbers import Real
from typing import Any

from tutorial_lib import load_when_used

_, __getattr__ = load_when_used(__name__, {".claims.asked": "keep kept questions"})


def beside(guess: Any, seen: float) -> str:
    """Say how far a guess is from what was seen.

    Args:
        guess: A number, or None where none was made.
        seen: What came out, in the same unit.

    Returns:
        Empty for None, so that the output of a cell without a guess does not change.

    Example:
        >>> beside(2.0, seen=4.0)
        '   (you guessed 2, 0.5 times the result)'
    """
    if guess is None:
        return ""
    if isinstance(guess, bool) or not isinstance(guess, Real) or not isfinite(guess):
        return f"   (your guess, {guess!r}, isn't a number: write one, as in guess = 2.5)"
    if guess == seen:
        return f"   (you guessed {guess:g}, exactly)"
    ratio = f"{guess / seen:.2g} times the result" if seen else "and the result is 0"
    almost = ratio.startswith("1 ")
    return f"   (you guessed {guess:g}, {'almost exactly' if almost else ratio})"
