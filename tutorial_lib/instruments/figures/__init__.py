"""Figures and explorers that chapters draw, found in `course/figures/drawn`."""

from tutorial_lib import content, load_when_used

__path__.append(str(content("figures/drawn", __name__)))
__all__, __getattr__ = load_when_used(
    __name__,
    {
        "comparisons": "agreement two_peaks",
        "lives": "lifetimes",
        "pictures": "batch_grid models_and_cards",
        "planning": "holders plans schedule",
        "puzzle": "boundary_puzzle",
        "ranks": "timetable who_holds_what",
        "rooflines": "roofline",
    },
)
