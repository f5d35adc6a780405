"""What an answer returned, taken apart; a CheckError says what came instead of what was wanted."""

from collections.abc import Mapping, Sequence
from typing import Any

from tutorial_lib.checks.given.values import CheckError


def function(value: Any, name: str) -> Any:
    """Read a function that an answer returned."""
    if callable(value):
        return value
    kind = type(value).__name__
    raise CheckError(f"{name} should return a function, but {kind} came: what does it return?")


def several(returned: Any, number: int, names: str) -> list[Any]:
    """Read so many values, in a tuple or list; `names` are words for them."""
    if isinstance(returned, tuple | list) and len(returned) == number:
        return list(returned)
    kind = "None" if returned is None else type(returned).__name__
    if isinstance(returned, tuple | list):
        kind = f"a {kind} of {len(returned)}"
    raise CheckError(f"{number} values are wanted, {names}, but {kind} came: return all of them.")


def fields(value: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """Read a dict with these keys and no others."""
    if isinstance(value, Mapping) and set(value) == set(keys):
        return value
    shown = sorted(value) if isinstance(value, Mapping) else type(value).__name__
    raise CheckError(f"a dict with the keys {', '.join(keys)} is needed, but {shown} came.")
