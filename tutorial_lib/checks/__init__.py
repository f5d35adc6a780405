"""The checks that labs call: `checks.lab01.parameter_bytes(my_function)`, one module a lab."""

from tutorial_lib.checks import lab01, lab02, lab03, lab06, lab07, lab08
from tutorial_lib.checks.core import Case, Check, CheckError, Result, answered
from tutorial_lib.checks.same_training import assert_same_training
from tutorial_lib.checks.training_record import summation_tolerance

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
