"""The figure of our numbers against published ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tutorial_lib.plots.base import LINES, CourseFigure, new_figure


def agreement(figures: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> CourseFigure:
    """Draw how far figures are from published ones, against the published size.

    Args:
        figures: Name of each kind of figure; to its points: published GiB, and ours by theirs.
        title: Words above.
    """
    figure, axes = new_figure(title, height=3.6)
    styles = zip(LINES, "sov^", strict=False)
    for (name, points), (color, marker) in zip(figures.items(), styles, strict=False):
        sizes, ratios = zip(*points, strict=True)
        off = [100 * (ratio - 1) for ratio in ratios]
        axes.plot(
            sizes, off, marker, color=color, fillstyle="none", label=f"{name} ({len(points)})"
        )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set(xlabel="published, GiB", ylabel="ours less theirs, %")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    medians = ", ".join(
        f"{name}: median off by {statistics.median(abs(ratio - 1) for _, ratio in points):.1%}"
        for name, points in figures.items()
    )
    figure.alt = f"{title}, against the published size. {medians}."
    return figure
