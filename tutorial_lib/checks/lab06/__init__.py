"""The checks of lab 06, exact accumulation."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab06.ex6_1 import first_difference
from tutorial_lib.checks.lab06.ex6_2 import train_epoch
from tutorial_lib.checks.lab06.ex6_3 import token_step
from tutorial_lib.checks.lab06.ex6_4 import scaled_step
from tutorial_lib.checks.lab06.ex6_5 import exact_step
from tutorial_lib.checks.lab06.ex6_6 import rank_step

__all__ = [
    "exact_step",
    "first_difference",
    "rank_step",
    "scaled_step",
    "token_step",
    "train_epoch",
]

case = calls_of(__name__)
