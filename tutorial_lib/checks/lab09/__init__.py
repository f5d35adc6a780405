"""The checks of lab 09, the clinic: ten broken runs to diagnose and to mend."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab09.ex9_1_to_3 import (
    changed_in_between,
    repeated_work,
    untrained_parts,
)
from tutorial_lib.checks.lab09.ex9_4 import memory_and_windows
from tutorial_lib.checks.lab09.ex9_5 import died_in_backward
from tutorial_lib.checks.lab09.ex9_6 import died_in_update
from tutorial_lib.checks.lab09.scripts import CAUSES, run_of

__all__ = [
    "CAUSES",
    "changed_in_between",
    "died_in_backward",
    "died_in_update",
    "memory_and_windows",
    "repeated_work",
    "untrained_parts",
]

case = calls_of(__name__, run_of)
