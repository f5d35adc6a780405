"""One function per figure; each returns a figure that says in words what it shows.

Counted or measured is solid, predicted is dashed.
"""

from tutorial_lib.plots.agreement import agreement
from tutorial_lib.plots.base import CARDS_GIB, COLORS, HATCHES, CourseFigure, as_html
from tutorial_lib.plots.choices import holders, plans
from tutorial_lib.plots.fits import fits
from tutorial_lib.plots.images import image_rows, opposite_bars
from tutorial_lib.plots.memory import growth, ledger_bars, step_timeline, tradeoff
from tutorial_lib.plots.pictures import batch_grid, decision_tree, models_and_cards
from tutorial_lib.plots.ranks import timetable, who_holds_what
from tutorial_lib.plots.schedule import schedule
from tutorial_lib.plots.tape import tape
from tutorial_lib.plots.training import influence, training_curves

__all__ = [
    "CARDS_GIB",
    "COLORS",
    "HATCHES",
    "CourseFigure",
    "agreement",
    "as_html",
    "batch_grid",
    "decision_tree",
    "fits",
    "growth",
    "holders",
    "image_rows",
    "influence",
    "ledger_bars",
    "models_and_cards",
    "opposite_bars",
    "plans",
    "schedule",
    "step_timeline",
    "tape",
    "timetable",
    "tradeoff",
    "training_curves",
    "who_holds_what",
]
