"""Functions that a chapter leaves to its reader, and the course's own while they are blank."""

import inspect
import types
from collections.abc import Callable
from typing import Any


def unless_written(yours: Any) -> Callable[[Any], Any]:
    """Decorate the course's lines: they take the place of a reader's that are still blank.

    Args:
        yours: A function, or a class, of whose methods one that is blank is enough.

    Returns:
        A decorator that gives `yours` if it is written, else what it decorates, and says so.
    """

    def choose(ours: Any) -> Any:
        parts = vars(yours).values() if isinstance(yours, type) else [yours]
        codes = (getattr(inspect.unwrap(part), "__code__", None) for part in parts)
        if not any(map(raises_blank, filter(None, codes))):
            return yours
        print(f"{ours.__name__} is blank above: ours runs instead.")
        return ours

    return choose


def raises_blank(code: types.CodeType) -> bool:
    """Tell whether code, or that of a function within it, names `NotImplementedError`."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return "NotImplementedError" in code.co_names or any(map(raises_blank, inner))
