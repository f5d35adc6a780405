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
    from tutorial_lib.school.grading.report.class_list import Rules
    from tutorial_lib.school.grading.report.merging import merge
    from tutorial_lib.school.grading.run import grade

__all__ = ["GradingError", "Rules", "grade", "load_selftest", "merge"]
_PLACES = {"Rules": "report.class_list", "grade": "run", "merge": "report.merging"}


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
    """Load a name when it is first used: the sandbox's processes do without."""
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
