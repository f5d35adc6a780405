"""Grading: nbval drives the judge on the pristine lab; the student's code runs in a sandbox.

Two processes, and one idea: the kernel that decides never executes a line of a submission.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tutorial_lib.school.grading.errors import GradingError

if TYPE_CHECKING:
    from tutorial_lib.school.grading.known_answers import write_example
    from tutorial_lib.school.grading.report.class_list import Rules
    from tutorial_lib.school.grading.report.merging import merge
    from tutorial_lib.school.grading.run import grade
    from tutorial_lib.school.grading.self_test import selftest

__all__ = ["GradingError", "Rules", "grade", "merge", "selftest", "write_example"]
_PLACES = {
    "Rules": "report.class_list",
    "grade": "run",
    "merge": "report.merging",
    "selftest": "self_test",
    "write_example": "known_answers",
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used: the sandbox's processes do without."""
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
