"""Instruments that measure, predict and plan: for the course, and for your own models and steps."""

from tutorial_lib import load_submodules

__dir__, __getattr__ = load_submodules(__name__, __path__)
