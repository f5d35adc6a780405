"""The checks of lab 05, policies."""

from tutorial_lib.checks.lab05.given import Host as Host
from tutorial_lib.checks.vocabulary.calls import exercises_of

globals().update(exercises_of(__name__))
