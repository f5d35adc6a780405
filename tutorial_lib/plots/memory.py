"""Figures of memory: one step over time, ledgers side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from tutorial_lib.memory.timeline import StepMemory
from tutorial_lib.plots.base import (
    COLORS,
    CourseFigure,
    category_legend,
    fill,
    how_measured,
    in_words,
    new_figure,
)
from tutorial_lib.units import GIB, binary_unit, human_bytes


def step_timeline(report: StepMemory, *, beside: StepMemory | None = None) -> CourseFigure:
    """Draw one training step: bytes by category after each allocation, phases named above.

    Args:
        report: The step.
        beside: Another step, to compare by eye: its peak, too, has room on the axis.

    Raises:
        ValueError: When the report has no timeline (a report read from short JSON).
    """
    if not report.timeline:
        raise ValueError("this report has no timeline: save it whole, with to_json(timeline=True).")
    curve = report.curve()
    # What never reaches half a percent cannot be seen: it has no place in the legend either.
    shown = [name for name in COLORS if max(p[name] for p in curve) > report.peak_bytes / 200]
    figure, axes = new_figure(
        f"{report.label or 'One training step'}, {how_measured(report)}", height=3.6
    )
    top = max(report.peak_bytes, beside.peak_bytes if beside else 0)
    unit, size = binary_unit(top)
    figure.bytes_along = ("y", size)
    places = _stretched(report, len(curve))
    heights = [[point[name] / size for point in curve] for name in shown]
    stacks = axes.stackplot(places, heights, step="post")
    for stack, name in zip(stacks, shown, strict=True):
        stack.set(**fill(name))
    axes.axhline(report.peak_bytes / size, color="black", linewidth=0.8, linestyle=":")
    axes.margins(x=0)
    axes.set(ylabel=unit, ylim=(0, top / size * 1.15), xticks=[])
    axes.set_xlabel("allocations of the step, in order (a short phase is stretched)")
    for begin, phase in report.phase_starts:
        if phase == "zero" and places[begin] in (places[0], *places[-3:]):
            continue
        axes.axvline(places[begin], color="black", linewidth=0.6, alpha=0.5)
        place = (places[begin], axes.get_ylim()[1])
        axes.annotate(f" {phase}", place, (0, -11), textcoords="offset points", size=9)
    category_legend(axes, shown)
    parts = in_words(report.at_peak)
    figure.alt = (
        f"Memory over one training step ({report.label or 'unnamed'}): the peak, "
        f"{human_bytes(report.peak_bytes)}, comes in {report.peak_phase} and holds {parts}."
    )
    return figure


def _stretched(report: StepMemory, length: int) -> list[float]:
    """Place operations on the axis; every phase gets at least an eighth of the whole."""
    ends = [begin for begin, _ in report.phase_starts[1:]] + [length]
    places: list[float] = []
    left = 0.0
    for (begin, phase), end in zip(report.phase_starts, ends, strict=True):
        size = end - begin
        # The log opens, and often closes, in a "zero" of one tick: nothing to be seen there.
        width = size if phase == "zero" and size < 3 else max(size, length / 8)
        places += [left + width * index / size for index in range(size)]
        left += width
    return places


def ledger_bars(
    ledgers: Mapping[str, Mapping[str, int]],
    *,
    title: str = "",
    cards_gib: Sequence[float] = (),
    predicted: Sequence[str] = (),
) -> CourseFigure:
    """Draw one stacked bar per ledger: bytes by category, beside the memory of cards.

    Args:
        ledgers: Name of each bar, and its bytes by category.
        title: Words above it.
        cards_gib: Memory of graphics cards in GiB, each a vertical line.
        predicted: Names of bars that are predictions; their outline is dashed.

    Example:
        >>> ledger_bars({"forward": {"parameters": 2**20, "activations": 2**22}}).alt
        'Bytes by category. forward: 5.00 MiB (parameters 1.00 MiB, activations 4.00 MiB).'
    """
    total = {name: sum(ledger.values()) for name, ledger in ledgers.items()}
    unit, size = binary_unit(max([*total.values(), *(gib * GIB for gib in cards_gib)], default=1))
    figure, axes = new_figure("", height=1.2 + 0.5 * len(ledgers))
    figure.bytes_along = ("x", size)
    shown = [
        name
        for name in COLORS
        if any(ledger.get(name, 0) > total[bar] / 200 for bar, ledger in ledgers.items())
    ]
    for row, (name, ledger) in enumerate(ledgers.items()):
        left = 0.0
        for category in shown:
            width = ledger.get(category, 0) / size
            axes.barh(row, width, left=left, height=0.62, **fill(category))
            left += width
        if name in predicted:
            outline: dict[str, Any] = {"fill": False, "linestyle": "--", "edgecolor": "black"}
            axes.add_patch(Rectangle((0, row - 0.31), left, 0.62, **outline))
        text = axes.text(left, row, f" {human_bytes(total[name])}", va="center", fontsize=9)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # over a card's line
    axes.set_title(title, fontsize=10, loc="left", pad=16 if cards_gib else None)
    for gib in cards_gib:
        axes.axvline(gib * GIB / size, color="black", linewidth=1, linestyle=":")
        words = f"{gib} GiB" if gib == cards_gib[-1] else f"{gib}"
        axes.text(gib * GIB / size, -0.68, words, ha="center", va="bottom", fontsize=8)
    axes.set_yticks(range(len(ledgers)), list(ledgers))
    axes.set(ylim=(len(ledgers) - 0.5, -0.65), xlabel=unit)
    axes.set_xlim(0, max([*total.values(), *(gib * GIB for gib in cards_gib)]) / size * 1.17)
    category_legend(axes, shown)
    each = "; ".join(f"{n}: {human_bytes(total[n])} ({in_words(ledgers[n])})" for n in ledgers)
    beside = f" Cards of {', '.join(map(str, cards_gib))} GiB are marked." if cards_gib else ""
    figure.alt = f"{title or 'Bytes by category'}. {each}.{beside}"
    return figure
