"""The words of a judge: an exercise, readings of a result, and expectations."""

from tutorial_lib.checks.given.values import Case, CheckError, Result
from tutorial_lib.checks.vocabulary.exercise import Cases, Draw, Exercise, check
from tutorial_lib.checks.vocabulary.expect import Faults

__all__ = ["Case", "Cases", "CheckError", "Draw", "Exercise", "Faults", "Result", "check"]
