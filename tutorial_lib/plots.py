"""One function per figure; each returns a figure that says in words what it shows.

One colour and one hatch per memory category (Okabe and Ito, 2008); counted or measured is solid,
predicted is dashed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator

from tutorial_lib.units import GIB, binary_unit, human_bytes

if TYPE_CHECKING:
    from tutorial_lib.memory.report import MemoryReport

COLORS = {
    "parameters": "#0072B2",
    "buffers": "#56B4E9",
    "gradients": "#E69F00",
    "optimizer_state": "#009E73",
    "activations": "#D55E00",
    "recomputed": "#CC79A7",
    "temporary": "#F0E442",
    "inputs": "#999999",
    "other": "#DDDDDD",
}
HATCHES = {
    "parameters": "",
    "buffers": "oo",
    "gradients": "//",
    "optimizer_state": "..",
    "activations": "",
    "recomputed": "xx",
    "temporary": "--",
    "inputs": "\\\\",
    "other": "++",
}
CARDS_GIB = (16, 24, 80)


class CourseFigure(Figure):
    """A figure with its sentence: shown as an image with alt text, compared as the sentence."""

    alt = ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": as_html(self), "text/plain": self.alt}


def as_html(figure: CourseFigure) -> str:
    """Write a figure as one HTML image with its alt text."""
    buffer = io.BytesIO()
    # No software name or date in the file: the same figure is the same bytes.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return (
        f'<img alt="{escape(figure.alt)}" style="max-width:100%" '
        f'src="data:image/png;base64,{data}">'
    )


def step_timeline(report: MemoryReport) -> CourseFigure:
    """Draw one training step: bytes by category after each allocation, phases named above.

    Raises:
        ValueError: When the report has no timeline (a report read from short JSON).
    """
    if not report.timeline:
        raise ValueError("this report has no timeline: save it whole, with to_json(timeline=True).")
    curve = report.curve()
    # What never reaches half a per cent cannot be seen: it has no place in the legend either.
    shown = [name for name in COLORS if max(p[name] for p in curve) > report.peak_bytes / 200]
    figure, axes = _figure(f"{report.label or 'One training step'}, {_how(report)}", height=3.6)
    unit, size = binary_unit(report.peak_bytes)
    places = _stretched(report, len(curve))
    heights = [[point[name] / size for point in curve] for name in shown]
    stacks = axes.stackplot(places, heights, step="post")
    for stack, name in zip(stacks, shown, strict=True):
        stack.set(**_fill(name))
    axes.axhline(report.peak_bytes / size, color="black", linewidth=0.8, linestyle=":")
    axes.margins(x=0)
    axes.set(ylabel=unit, ylim=(0, report.peak_bytes / size * 1.15), xticks=[])
    axes.set_xlabel("allocations of the step, in order (a short phase is stretched)")
    for begin, phase in report.phase_starts:
        if phase == "zero" and places[begin] in (places[0], *places[-3:]):
            continue
        axes.axvline(places[begin], color="black", linewidth=0.6, alpha=0.5)
        place = (places[begin], axes.get_ylim()[1])
        axes.annotate(f" {phase}", place, (0, -11), textcoords="offset points", size=9)
    _category_legend(axes, shown)
    parts = _parts(report.at_peak)
    figure.alt = (
        f"Memory over one training step ({report.label or 'unnamed'}): the peak, "
        f"{human_bytes(report.peak_bytes)}, comes in {report.peak_phase} and holds {parts}."
    )
    return figure


def ledger_bars(
    ledgers: Mapping[str, Mapping[str, int]],
    *,
    title: str = "",
    cards_gib: Sequence[int] = (),
    predicted: Sequence[str] = (),
) -> CourseFigure:
    """Draw one stacked bar per ledger: bytes by category, beside the memory of cards.

    Args:
        ledgers: Name of each bar, and its bytes by category.
        title: Words above it.
        cards_gib: Memory of graphics cards in GiB, each a vertical line.
        predicted: Names of bars that are predictions; their outline is dashed.
    """
    total = {name: sum(ledger.values()) for name, ledger in ledgers.items()}
    unit, size = binary_unit(max([*total.values(), *(gib * GIB for gib in cards_gib)], default=1))
    figure, axes = _figure("", height=1.2 + 0.5 * len(ledgers))
    shown = [
        name
        for name in COLORS
        if any(ledger.get(name, 0) > total[bar] / 200 for bar, ledger in ledgers.items())
    ]
    for row, (name, ledger) in enumerate(ledgers.items()):
        left = 0.0
        for category in shown:
            width = ledger.get(category, 0) / size
            axes.barh(row, width, left=left, height=0.62, **_fill(category))
            left += width
        if name in predicted:
            outline: dict[str, Any] = {"fill": False, "linestyle": "--", "edgecolor": "black"}
            axes.add_patch(Rectangle((0, row - 0.31), left, 0.62, **outline))
        axes.text(left, row, f" {human_bytes(total[name])}", va="center", fontsize=9)
    axes.set_title(title, fontsize=10, loc="left", pad=16 if cards_gib else None)
    for gib in cards_gib:
        axes.axvline(gib * GIB / size, color="black", linewidth=1, linestyle=":")
        words = f"{gib} GiB" if gib == cards_gib[-1] else f"{gib}"
        axes.text(gib * GIB / size, -0.68, words, ha="center", va="bottom", fontsize=8)
    axes.set_yticks(range(len(ledgers)), list(ledgers))
    axes.set(ylim=(len(ledgers) - 0.5, -0.65), xlabel=unit)
    axes.set_xlim(0, max([*total.values(), *(gib * GIB for gib in cards_gib)]) / size * 1.17)
    _category_legend(axes, shown)
    each = "; ".join(f"{n}: {human_bytes(total[n])} ({_parts(ledgers[n])})" for n in ledgers)
    beside = f" Cards of {', '.join(map(str, cards_gib))} GiB are marked." if cards_gib else ""
    figure.alt = f"{title or 'Bytes by category'}. {each}.{beside}"
    return figure


def growth(
    curves: Mapping[str, Mapping[float, float]],
    *,
    xlabel: str,
    title: str = "",
    predicted: Sequence[str] = (),
    log: bool = True,
) -> CourseFigure:
    """Draw how bytes grow with one quantity, one line a curve.

    Args:
        curves: Name of each line; from the quantity to the bytes.
        xlabel: Words for the quantity.
        title: Words above it.
        predicted: Names of lines that are predictions; they are dashed.
        log: Whether both axes are logarithmic: a straight line is then a power law.
    """
    unit, size = binary_unit(max(max(curve.values()) for curve in curves.values()))
    figure, axes = _figure(title, height=3.6)
    styles = zip(list(COLORS.values()), "os^Dv<>ph", strict=True)
    for (name, curve), (color, marker) in zip(curves.items(), styles, strict=False):
        dashes = "--" if name in predicted else "-"
        heights = [value / size for value in curve.values()]
        axes.plot(list(curve), heights, dashes, color=color, marker=marker, label=name)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        every = sorted({x for curve in curves.values() for x in curve})
        axes.set_xticks(every, [f"{x:g}" for x in every])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.set(xlabel=xlabel, ylabel=unit)
    axes.legend(frameon=False, fontsize=9)
    each = "; ".join(
        f"{name}: {human_bytes(curve[min(curve)])} at {min(curve):g} to "
        f"{human_bytes(curve[max(curve)])} at {max(curve):g}"
        for name, curve in curves.items()
    )
    figure.alt = f"{title or 'Growth'}, against {xlabel}. {each}."
    return figure


def models_and_cards(
    models: Sequence[tuple[int, str, float]], cards: Sequence[tuple[int, str, float]]
) -> CourseFigure:
    """Draw the size of models and the memory of accelerators by year.

    Args:
        models: Year, name and parameters, drawn at the 16 bytes each that Adam in float32 keeps.
        cards: Year, name and memory in GiB.
    """
    figure, axes = _figure("What a model needs to train, and what one card has", height=4.2)
    points = {
        "16 bytes a parameter": ([(y, n, 16 * p / GIB) for y, n, p in models], "#D55E00", "o"),
        "memory of one accelerator": (cards, "#0072B2", "s"),
    }
    for label, (rows, color, marker) in points.items():
        years, sizes = [row[0] for row in rows], [row[2] for row in rows]
        axes.plot(years, sizes, marker, color=color, label=label)
        for year, name, height in rows:
            axes.annotate(name, (year, height), (4, 4), textcoords="offset points", fontsize=7)
    axes.set_yscale("log")
    axes.set(xlabel="year", ylabel="GiB")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    (first, last), (old, new) = (models[0], models[-1]), (cards[0], cards[-1])
    figure.alt = (
        f"From {first[1]} ({first[0]}) to {last[1]} ({last[0]}) models grew "
        f"{last[2] / first[2]:,.0f}-fold; from {old[1]} to {new[1]} the memory of one "
        f"accelerator grew {new[2] / old[2]:.0f}-fold."
    )
    return figure


def batch_grid(micro_batch: int, accumulation_steps: int, num_gpus: int) -> CourseFigure:
    """Draw one update: a square a sample, filled for what one GPU holds at once.

    Args:
        micro_batch: Samples in memory at once.
        accumulation_steps: Micro-batches per update, one after the other.
        num_gpus: GPUs side by side, each with its own micro-batches.
    """
    figure, axes = _figure("One update", height=1.1 + 0.55 * num_gpus)
    width = micro_batch + 0.6
    for gpu in range(num_gpus):
        for turn in range(accumulation_steps):
            now = turn == 0
            for sample in range(micro_batch):
                corner = (turn * width + sample, gpu - 0.35)
                fill = _fill("activations") if now else {"facecolor": "white", "edgecolor": "#888"}
                axes.add_patch(Rectangle(corner, 0.9, 0.7, **fill))
    axes.set(xlim=(-0.4, accumulation_steps * width), ylim=(num_gpus - 0.4, -0.7))
    axes.set_yticks(range(num_gpus), [f"GPU {gpu}" for gpu in range(num_gpus)])
    turns = range(accumulation_steps)
    middles = [turn * width + micro_batch / 2 for turn in turns]
    axes.set_xticks(middles, [f"micro-batch {turn + 1}" for turn in turns])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    effective = micro_batch * accumulation_steps * num_gpus
    figure.alt = (
        f"One update sees {micro_batch} x {accumulation_steps} x {num_gpus} = {effective} samples; "
        f"each GPU holds the activations of {micro_batch} at a time (filled squares)."
    )
    axes.set_title(figure.alt.partition(";")[0], fontsize=10, loc="left")
    return figure


def _figure(title: str, *, height: float) -> tuple[CourseFigure, Axes]:
    with matplotlib.rc_context({"hatch.linewidth": 0.6}):
        figure = CourseFigure(figsize=(8, height), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _fill(category: str) -> dict[str, Any]:
    color, hatch = COLORS[category], HATCHES[category]
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def _category_legend(axes: Axes, categories: Sequence[str]) -> None:
    handles = [Patch(label=name.replace("_", " "), **_fill(name)) for name in categories]
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(handles=handles, frameon=False, fontsize=8, **beside)


def _stretched(report: MemoryReport, length: int) -> list[float]:
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


def _how(report: MemoryReport) -> str:
    return f"{'measured' if report.method == 'allocator' else report.method}, {report.device}"


def _parts(ledger: Mapping[str, int]) -> str:
    """Name the categories in words; what is under half a per cent cannot be seen either."""
    visible = {k: v for k, v in ledger.items() if v > sum(ledger.values()) / 200}
    return ", ".join(f"{k.replace('_', ' ')} {human_bytes(v)}" for k, v in visible.items())
