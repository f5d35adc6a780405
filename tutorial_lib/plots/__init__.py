"""One function per figure; each returns a figure that says in words what it shows.

Counted or measured is solid, predicted is dashed. What chapters alone draw is found beside
`instruments.figures`.
"""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "base": "CARDS_GIB COLORS HATCHES CourseFigure as_html",
        "memory": "ledger_bars step_timeline",
        ".instruments.figures.curves": "growth tradeoff training_curves",
        ".instruments.figures.images": "image_rows opposite_bars",
        ".instruments.figures.influence_of_samples": "influence",
        ".instruments.figures.moving": "formulas slider",
    },
)
