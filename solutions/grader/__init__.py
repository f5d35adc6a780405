"""Grading: nbval drives the judge on the pristine lab; the student's code runs in a sandbox.

Two processes, and one idea: the kernel that decides never executes a line of a submission.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from solutions.grader.errors import GradingError

if TYPE_CHECKING:
    from solutions.grader.run import grade

__all__ = ["GradingError", "grade"]


def __getattr__(name: str) -> object:
    """Load `grade` when it is first used: the sandbox's processes do without."""
    if name == "grade":
        return import_module(f"{__name__}.run").grade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
