"""Figures of what the instruments find, in the look of `plots`."""

from tutorial_lib.instruments import load_when_used

_HOMES = {
    "agreement": "comparisons",
    "batch_grid": "pictures",
    "fits": "comparisons",
    "holders": "planning",
    "lifetimes": "lives",
    "models_and_cards": "pictures",
    "plans": "planning",
    "schedule": "planning",
    "timetable": "ranks",
    "two_peaks": "comparisons",
    "who_holds_what": "ranks",
}
__all__ = list(_HOMES)
__getattr__ = load_when_used(__name__, _HOMES)
