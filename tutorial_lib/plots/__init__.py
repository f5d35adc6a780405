"""One function per figure; each returns a figure that says in words what it shows.

Counted or measured is solid, predicted is dashed.
"""

from tutorial_lib.plots.base import CARDS_GIB, COLORS, HATCHES, CourseFigure, as_html
from tutorial_lib.plots.images import image_rows, opposite_bars
from tutorial_lib.plots.memory import growth, ledger_bars, step_timeline, tradeoff
from tutorial_lib.plots.training import influence, training_curves

__all__ = [
    "CARDS_GIB",
    "COLORS",
    "HATCHES",
    "CourseFigure",
    "as_html",
    "growth",
    "image_rows",
    "influence",
    "ledger_bars",
    "opposite_bars",
    "step_timeline",
    "tradeoff",
    "training_curves",
]
