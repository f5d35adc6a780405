"""The checks of lab 06, exact accumulation."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

globals().update(exercises_of(__name__))
