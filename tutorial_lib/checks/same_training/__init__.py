"""Two training steps compared, for notebooks to find the silent bugs of a loop."""

from tutorial_lib.checks.same_training.compare import assert_same_training, verdict
from tutorial_lib.checks.same_training.record import summation_tolerance

__all__ = ["assert_same_training", "summation_tolerance", "verdict"]
