"""One function per figure; each returns a figure that says in words what it shows.

Counted or measured is solid, predicted is dashed.
"""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "base": "CARDS_GIB COLORS HATCHES CourseFigure as_html",
        "images": "image_rows opposite_bars",
        "memory": "growth ledger_bars step_timeline tradeoff",
        "moving": "formulas slider",
        "training": "influence training_curves",
    },
)
