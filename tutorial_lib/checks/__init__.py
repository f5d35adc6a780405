"""The checks that labs call: `checks.lab01.parameter_bytes(my_function)`, one module a lab."""

from tutorial_lib.checks import lab01
from tutorial_lib.checks.core import Case, Check, CheckError, Result, answered

__all__ = ["Case", "Check", "CheckError", "Result", "answered", "lab01"]
