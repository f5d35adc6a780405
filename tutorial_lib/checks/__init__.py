"""The checks that labs call: `checks.lab01.parameter_bytes(my_function)`, one module a lab."""

import importlib
from typing import TYPE_CHECKING, Any

from tutorial_lib.checks.core import Case, Check, CheckError, Result, answered
from tutorial_lib.checks.same_training import assert_same_training
from tutorial_lib.checks.training_record import summation_tolerance

if TYPE_CHECKING:
    from tutorial_lib.checks import lab01, lab02, lab03, lab06, lab07, lab08

__all__ = [
    "Case",
    "Check",
    "CheckError",
    "Result",
    "answered",
    "assert_same_training",
    "lab01",
    "lab02",
    "lab03",
    "lab06",
    "lab07",
    "lab08",
    "summation_tolerance",
]


def __getattr__(name: str) -> Any:
    """Load a lab's checks when they are first used: lab 08's import diffusers."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
