"""The checks of lab 04, schedules of recomputation."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

globals().update(exercises_of(__name__))
