"""One function per figure; each returns a figure that says in words what it shows.

Counted or measured is solid, predicted is dashed. Figures of single chapters are found beside
`instruments.figures`.
"""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "base": "CARDS_GIB COLORS HATCHES CourseFigure as_html",
        ".instruments.figures.images": "image_rows opposite_bars",
        ".instruments.figures.influence_of_samples": "influence",
        "memory": "growth ledger_bars step_timeline tradeoff",
        "moving": "formulas slider",
        "training": "training_curves",
    },
)
