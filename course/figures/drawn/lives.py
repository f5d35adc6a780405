"""A figure of lives: what forward saves, backward reads, and how long each tensor is there."""

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from tutorial_lib.memory.timeline import Life, StepMemory
from tutorial_lib.plots.base import COLORS, CourseFigure, fill, new_panels
from tutorial_lib.units import human_bytes

_THIN = COLORS | {"temporary": "#8A6D00"}  # a bar that is all edge: yellow would not be seen
Row = tuple[float, float]  # where it begins and how high it is, in bytes
_LABELS = {
    "activations": "kept by forward for backward",
    "temporary": "dropped in forward",
    "recomputed": "recomputed in backward",
}


def lifetimes(reports: Mapping[str, StepMemory]) -> CourseFigure:
    """Draw every tensor that forward computes, over forward and backward.

    A row is one tensor of the forward, as high as its bytes, the first one below. A bar is a life,
    from the operation that makes the tensor to the one that lets it go; what is recomputed stands
    in the row of the tensor that it replaces. Parameters, gradients and what backward alone makes
    are left out, and so is what is smaller than 1/2000 of all.

    Args:
        reports: Name of each picture, and the counted step to draw; four at most.

    Raises:
        ValueError: When a report has no timeline, no backward, or there are too many of them.
    """
    if not 1 <= len(reports) <= 4:
        raise ValueError(f"there are {len(reports)} reports, and 1 to 4 fit: draw fewer at a time.")
    drawn = {name: list(_bars(report)) for name, report in reports.items()}
    columns = min(2, len(reports))
    lines = -(-len(reports) // columns)
    figure, grid = new_panels(lines, columns, height=0.7 + 2.6 * lines, sharex=True, sharey=True)
    for axes, (name, report) in zip(grid.flat, reports.items(), strict=False):
        _draw(axes, drawn[name], report)
        axes.set_title(f"{name}: peak {human_bytes(report.peak_bytes)}", fontsize=10, loc="left")
    for axes in grid.flat[len(reports) :]:
        axes.set_visible(False)
    handles = [Patch(label=label, **fill(name)) for name, label in _LABELS.items()]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    figure.alt = "Life of every tensor that forward computes. " + " ".join(
        _sentence(name, drawn[name], report) for name, report in reports.items()
    )
    return figure


def _draw(axes: Axes, bars: list[tuple[Life, Row]], report: StepMemory) -> None:
    start = _backward(report)
    end = max(life.died or life.born for life, _ in bars)
    total = max(bottom + height for _, (bottom, height) in bars)
    for life, (bottom, height) in bars:
        if height < total / 2000:
            continue
        right = end if life.died is None else life.died
        box = Rectangle((life.born, bottom), max(right - life.born, 1), height)
        axes.add_patch(box)
        box.set(**fill(life.category) | {"linewidth": 0.2}, hatch_linewidth=0.3)
        if height < total / 100:  # a thin line of its own colour: the dark edge would cover it
            box.set(edgecolor=_THIN[life.category], linewidth=0.6)
    axes.autoscale_view()
    axes.set(xticks=[], yticks=[])
    axes.set_ylabel("input  \N{RIGHTWARDS ARROW}  loss", fontsize=8)
    axes.axvline(start, color="black", linewidth=0.6, alpha=0.6)
    below: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "size": 8,
    }
    axes.annotate("forward", (start, 0), (-3, -10), ha="right", **below)
    axes.annotate("backward", (start, 0), (3, -10), ha="left", **below)


def _bars(report: StepMemory) -> Iterator[tuple[Life, Row]]:
    """Lives to draw, in order of birth, each with its row."""
    rows: list[Row] = []
    written: dict[tuple[str, int], list[tuple[int, str]]] = {}  # its places and their modules
    head = 0  # the last row that was recomputed
    for life in sorted(report.timeline, key=lambda life: life.born):
        places = written.setdefault((life.op, life.num_bytes), [])
        if life.phase == "forward" and life.category in _LABELS:
            places.append((len(rows), life.module))
            rows.append((sum(rows[-1]) if rows else 0.0, life.num_bytes))
            yield life, rows[-1]
        elif life.category == "recomputed":
            # A checkpoint may call a forward directly, so that its module goes by no name.
            fitting = [place for place, module in places if life.module in ("", module)]
            if fitting:
                # The next one in forward's order, or the first when another part begins.
                head = next((place for place in fitting if place > head), fitting[0])
                yield life, rows[head]


def _backward(report: StepMemory) -> int:
    begins = [tick for tick, phase in report.phase_starts if phase == "backward"]
    if not begins or not report.timeline:
        raise ValueError(
            f"the report {report.label!r} has no timeline or no backward: measure a whole step, "
            "and save it with to_json(timeline=True)."
        )
    return begins[0]


def _sentence(name: str, bars: list[tuple[Life, Row]], report: StepMemory) -> str:
    waiting = sum(life.num_bytes for life, _ in bars if life.category == "activations")
    again = sum(life.num_bytes for life, _ in bars if life.category == "recomputed")
    return (
        f"{name}: {human_bytes(waiting)} wait for backward, {human_bytes(again)} are "
        f"recomputed, peak {human_bytes(report.peak_bytes)}."
    )
