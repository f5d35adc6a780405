"""Figures of comparisons: with published numbers, and of two peaks."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.ticker import LogLocator

from tutorial_lib.plots.base import CourseFigure, fill, new_figure
from tutorial_lib.units import GIB, human_bytes

from .curves import MARKED_LINES


def agreement(figures: Mapping[str, Sequence[tuple[float, float]]], *, title: str) -> CourseFigure:
    """Draw how far figures are from published ones, against the published size.

    Args:
        figures: Name of each kind of figure; to its points: published size in GiB, and ours by
            theirs.
        title: Words above.
    """
    figure, axes = new_figure(title, height=3.6)
    for (name, points), look in zip(figures.items(), MARKED_LINES, strict=False):
        sizes, ratios = zip(*points, strict=True)
        heights = [100 * (ratio - 1) for ratio in ratios]
        words = f"{name} ({len(points)})"
        axes.plot(sizes, heights, linestyle="none", fillstyle="none", label=words, **look)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel="published, GiB (logarithmic)", ylabel="ours less theirs, %")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    medians = ", ".join(
        f"{name}: median off by {statistics.median(abs(ratio - 1) for _, ratio in points):.1%}"
        for name, points in figures.items()
    )
    figure.alt = f"{title}, against the published size. {medians}."
    return figure


def two_peaks(
    steps: Mapping[str, tuple[int, int]], *, title: str, cards_gib: Sequence[float] = ()
) -> CourseFigure:
    """Draw both peaks of training steps: of forward and backward, and of the update.

    Args:
        steps: Name of each step; its two peaks in bytes, the update's last.
        title: Words above.
        cards_gib: Memory of cards in GiB, each a vertical line.
    """
    figure, axes = new_figure(title, height=1.4 + 0.42 * len(steps))
    kinds = {"forward and backward": "activations", "update": "optimizer_state"}
    for place, (words, look) in enumerate(kinds.items()):
        heights = [row - 0.18 + 0.36 * place for row in range(len(steps))]
        widths = [peaks[place] / GIB for peaks in steps.values()]
        axes.barh(heights, widths, height=0.34, label=words, **fill(look))
    for gib in cards_gib:
        axes.axvline(gib, color="black", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(steps)), list(steps))
    lines = f" (lines: {', '.join(map(str, cards_gib))} GiB)" if cards_gib else ""
    axes.set(ylim=(len(steps) - 0.5, -0.5), xlabel=f"peak, GiB{lines}")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    marks = {name: " (higher)" for name, (passes, update) in steps.items() if update > passes}
    each = "; ".join(
        f"{name}: {human_bytes(passes)}{'' if name in marks else ' (higher)'}, and "
        f"{human_bytes(update)} in the update{marks.get(name, '')}"
        for name, (passes, update) in steps.items()
    )
    figure.alt = f"{title}. {each}."
    return figure
