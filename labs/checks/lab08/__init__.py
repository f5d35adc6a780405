"""The checks of lab 08, fit the U-Net."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

globals().update(exercises_of(__name__))
