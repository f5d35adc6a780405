"""The checks that labs call: `checks.lab01.parameter_bytes(my_function)`, one folder a lab."""

import importlib
import pkgutil
import re
from typing import Any

from tutorial_lib.checks.given import CheckError
from tutorial_lib.checks.same_training import assert_same_training, summation_tolerance, verdict

LABS = sorted(
    found.name for found in pkgutil.iter_modules(__path__) if re.fullmatch(r"lab\d\d", found.name)
)
__all__ = ["CheckError", "assert_same_training", "summation_tolerance", "verdict"]


def __getattr__(name: str) -> Any:
    """Load a lab's checks when they are first used: lab 08's import diffusers."""
    if name in LABS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the labs as well, for tab completion."""
    return [*__all__, *LABS]
