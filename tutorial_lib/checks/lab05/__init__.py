"""The checks of lab 05, policies."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab05.ex5_1 import checkpoint_only
from tutorial_lib.checks.lab05.ex5_2 import cost_of_keeping
from tutorial_lib.checks.lab05.ex5_3 import keep_products
from tutorial_lib.checks.lab05.ex5_4 import fewest_flops
from tutorial_lib.checks.lab05.ex5_5 import offloading
from tutorial_lib.checks.lab05.host import Host

__all__ = [
    "Host",
    "checkpoint_only",
    "cost_of_keeping",
    "fewest_flops",
    "keep_products",
    "offloading",
]

case = calls_of(__name__)
