"""Figures of comparisons: with published numbers, and of all that fits a budget."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import LogLocator

from tutorial_lib.plots.base import MARKED_LINES, CourseFigure, fill, line_legend, new_figure
from tutorial_lib.units import GIB, human_bytes, human_seconds


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


def fits(found: Any) -> CourseFigure:
    """Draw every choice that fits: its predicted peak, and its predicted time of an update.

    Args:
        found: What `planning.fit` gave.

    Raises:
        ValueError: When nothing fits: there is nothing to draw.
    """
    fitting = [choice for choice in found.candidates if choice.fits]
    if found.best is None:
        raise ValueError(
            f"Nothing fits {human_bytes(found.budget_bytes)}, so that there is nothing to draw: "
            f"try budget_bytes={found.smallest_bytes:_}."
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
    axes.set_ylabel("seconds an update (star: the best)")
    axes.set_ylim(bottom=0)
    line_legend(axes)
    best = found.best
    figure.alt = (
        f"{title}: {len(fitting)} of {len(found.candidates)} choices fit "
        f"{human_bytes(found.budget_bytes)}. Best: {best.precision}, {best.optimizer}, "
        f"{best.micro_batch} x {best.accumulation}, peak {human_bytes(best.peak_bytes)}, "
        f"{human_seconds(best.seconds)} an update."
    )
    return figure
