"""The checks of lab 03, my checkpoint."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab03.ex3_1 import discard
from tutorial_lib.checks.lab03.ex3_2 import hooked
from tutorial_lib.checks.lab03.ex3_3 import remember_surroundings
from tutorial_lib.checks.lab03.ex3_4 import save_arguments
from tutorial_lib.checks.lab03.ex3_5 import region
from tutorial_lib.checks.lab03.ex3_6 import checkpoint

__all__ = [
    "checkpoint",
    "discard",
    "hooked",
    "region",
    "remember_surroundings",
    "save_arguments",
]

case = calls_of(__name__)
