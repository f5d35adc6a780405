"""The checks of lab 05, policies."""

from tutorial_lib.checks.vocabulary.calls import exercises_of

from .given import Host as Host

globals().update(exercises_of(__name__))
