"""The checks of lab 04, schedules."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab04.ex4_1 import segments_cost
from tutorial_lib.checks.lab04.ex4_2 import run_tree
from tutorial_lib.checks.lab04.ex4_3 import fewest_forwards
from tutorial_lib.checks.lab04.ex4_4 import revolve_tree
from tutorial_lib.checks.lab04.ex4_5 import smallest_budget
from tutorial_lib.checks.lab04.ex4_6 import fastest_tree

__all__ = [
    "fastest_tree",
    "fewest_forwards",
    "revolve_tree",
    "run_tree",
    "segments_cost",
    "smallest_budget",
]

case = calls_of(__name__)
