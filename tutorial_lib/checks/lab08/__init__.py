"""The checks of lab 08, fit the U-Net."""

from tutorial_lib.checks.core import calls_of
from tutorial_lib.checks.lab08.ex8_1 import draw_update
from tutorial_lib.checks.lab08.ex8_2 import backward_in_pieces
from tutorial_lib.checks.lab08.ex8_3 import room_for_activations
from tutorial_lib.checks.lab08.ex8_4 import recomputing
from tutorial_lib.checks.lab08.ex8_5 import cheapest_fit
from tutorial_lib.checks.lab08.ex8_6 import update_that_fits

__all__ = [
    "backward_in_pieces",
    "cheapest_fit",
    "draw_update",
    "recomputing",
    "room_for_activations",
    "update_that_fits",
]

case = calls_of(__name__)
