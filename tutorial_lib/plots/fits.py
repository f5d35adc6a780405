"""The figure of what fits a budget: time of an update against peak."""

from __future__ import annotations

import itertools
from typing import Any

from tutorial_lib.plots.base import MARKED_LINES, CourseFigure, line_legend, new_figure
from tutorial_lib.units import GIB, human_bytes, human_seconds


def fits(found: Any) -> CourseFigure:
    """Draw every choice that fits: its predicted peak, and its predicted time of an update.

    Args:
        found: What `plan.fit` gave.

    Raises:
        ValueError: When nothing fits: there is nothing to draw.
    """
    fitting = [choice for choice in found.choices if choice.fits]
    if found.best is None:
        raise ValueError(
            f"Nothing fits {human_bytes(found.budget_bytes)}, so that there is nothing to draw: "
            f"try a budget of {human_bytes(found.smallest_bytes)}."
        )
    title = f"{found.model}, {found.effective_batch} samples an update (predicted)"
    figure, axes = new_figure(title, height=3.6)
    kinds = dict.fromkeys((choice.precision, choice.optimizer) for choice in fitting)
    for kind, look in zip(kinds, itertools.cycle(MARKED_LINES)):
        mine = [choice for choice in fitting if (choice.precision, choice.optimizer) == kind]
        axes.plot(
            [choice.peak_bytes / GIB for choice in mine],
            [choice.seconds for choice in mine],
            linestyle="--",
            label=", ".join(kind),
            **look,
        )
    axes.axvline(found.budget_bytes / GIB, color="black", linewidth=1)
    axes.plot(found.best.peak_bytes / GIB, found.best.seconds, "*", color="black", markersize=12)
    axes.set_xlabel("peak, GiB (line: the budget)")
    axes.set_ylabel("seconds an update (star: the fastest)")
    axes.set_ylim(bottom=0)
    line_legend(axes)
    best = found.best
    figure.alt = (
        f"{title}: {len(fitting)} of {len(found.choices)} choices fit "
        f"{human_bytes(found.budget_bytes)}. Fastest: {best.precision}, {best.optimizer}, "
        f"{best.micro_batch} x {best.accumulation}, peak {human_bytes(best.peak_bytes)}, "
        f"{human_seconds(best.seconds)} an update."
    )
    return figure
