"""The checks of lab 09, the clinic: ten broken runs to diagnose and to mend."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

from .given import CAUSES as CAUSES

globals().update(exercises_of(__name__))
