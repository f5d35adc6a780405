"""Grading: nbval drives the judge on the pristine lab; the student's code runs in a sandbox.

Two processes, and one idea: the kernel that decides never executes a line of a submission.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.school.grading.errors import GradingError

if TYPE_CHECKING:
    from tutorial_lib.school.grading.run import grade

__all__ = ["GradingError", "grade", "load_selftest"]


def load_selftest(root: Path) -> Any:
    """Import the self-test, which stands in the course's tests beside the known answers.

    Raises:
        GradingError: When the course folder has no tests.
    """
    tests = root / "tests"
    if not (tests / "grading_selftest").is_dir():
        raise GradingError(
            f"{root} has no tests/grading_selftest, and --selftest and --example need the known "
            "answers there: run this in a clone of the course's repository."
        )
    if str(tests) not in sys.path:
        sys.path.insert(0, str(tests))
    return import_module("grading_selftest")


def __getattr__(name: str) -> object:
    """Load `grade` when it is first used: the sandbox's processes do without."""
    if name == "grade":
        return import_module(f"{__name__}.run").grade
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
