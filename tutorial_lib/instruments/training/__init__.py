"""Training steps made from choices: one recipe, run for real or predicted.

Importing this room loads no torch, so that a command can name the choices at once.
"""

from tutorial_lib.instruments.training.fields import Attention, OptimizerName, Precision, Shard
from tutorial_lib.instruments.training.recipe import Recipe

__all__ = ["Attention", "OptimizerName", "Precision", "Recipe", "Shard"]
