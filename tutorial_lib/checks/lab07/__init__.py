"""The checks of lab 07, cached gradients."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab07.ex7_1 import contrastive_loss
from tutorial_lib.checks.lab07.ex7_2 import embed
from tutorial_lib.checks.lab07.ex7_3 import cache_gradients
from tutorial_lib.checks.lab07.ex7_4 import push
from tutorial_lib.checks.lab07.ex7_5 import remember
from tutorial_lib.checks.lab07.ex7_6 import cached_backward

__all__ = [
    "cache_gradients",
    "cached_backward",
    "contrastive_loss",
    "embed",
    "push",
    "remember",
]

case = calls_of(__name__)
