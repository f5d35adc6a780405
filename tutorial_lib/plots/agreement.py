"""The figure of our numbers against published ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.ticker import LogLocator

from tutorial_lib.plots.base import MARKED_LINES, CourseFigure, new_figure


def agreement(
    figures: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    unit: str = "GiB",
    log: bool = False,
) -> CourseFigure:
    """Draw how far figures are from published ones, against the published size.

    Args:
        figures: Name of each kind of figure; to its points: published size, and ours by theirs.
        title: Words above.
        unit: Of the published sizes.
        log: For figures that are many times off: a logarithmic axis of ours by theirs.
    """
    figure, axes = new_figure(title, height=3.6)
    for (name, points), look in zip(figures.items(), MARKED_LINES, strict=False):
        sizes, ratios = zip(*points, strict=True)
        heights = ratios if log else [100 * (ratio - 1) for ratio in ratios]
        words = f"{name} ({len(points)})"
        axes.plot(sizes, heights, linestyle="none", fillstyle="none", label=words, **look)
    axes.axhline(1 if log else 0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    ylabel = "ours by theirs (logarithmic)" if log else "ours less theirs, %"
    axes.set(xlabel=f"published, {unit} (logarithmic)", ylabel=ylabel)
    if log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    medians = ", ".join(
        f"{name}: median off by {statistics.median(abs(ratio - 1) for _, ratio in points):.1%}"
        for name, points in figures.items()
    )
    figure.alt = f"{title}, against the published size. {medians}."
    return figure
