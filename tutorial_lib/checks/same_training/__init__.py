"""Two training steps compared, for notebooks to find the silent bugs of a loop."""

from tutorial_lib.checks.same_training.compare import assert_same_training
from tutorial_lib.checks.same_training.record import summation_tolerance
from tutorial_lib.checks.same_training.verdict import verdict

__all__ = ["assert_same_training", "summation_tolerance", "verdict"]
