"""Figures of what the instruments find, in the look of `plots`."""

from tutorial_lib import load_when_used

__all__, __getattr__ = load_when_used(
    __name__,
    {
        "comparisons": "agreement two_peaks",
        "lives": "lifetimes",
        "pictures": "batch_grid models_and_cards",
        "planning": "holders plans schedule",
        "ranks": "timetable who_holds_what",
    },
)
