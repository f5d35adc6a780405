"""A check that is a memory exam and nothing else."""

from toychecks.lab91 import given
from tutorial_lib.checks.vocabulary import Exercise

frugal = Exercise(
    run=given.frugal, passed="it fits", cases=lambda draw: [], judge=lambda case, result: None
)
