"""The checks of lab 06, exact accumulation."""

from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.lab06_difference import first_difference
from tutorial_lib.checks.lab06_epoch import train_epoch
from tutorial_lib.checks.lab06_ranks import rank_step
from tutorial_lib.checks.lab06_scaled import scaled_step
from tutorial_lib.checks.lab06_tokens import token_step
from tutorial_lib.checks.lab06_whole import exact_step

__all__ = [
    "exact_step",
    "first_difference",
    "rank_step",
    "scaled_step",
    "token_step",
    "train_epoch",
]

case = calls_of(__name__)
