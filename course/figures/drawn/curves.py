"""Curves: how bytes grow, what memory costs in work, how a training run goes."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from tutorial_lib.plots.base import BESIDE, LINES, CourseFigure, new_figure
from tutorial_lib.units import binary_unit, human_bytes

# Each line has its colour and its mark, so that lines are told apart in grey too.
MARKED_LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "marker": marker} for color, marker in zip(LINES, "os^Dv<>ph", strict=True)
)


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
    figure, axes = new_figure(title, height=3.6)
    figure.bytes_along = ("y", size)
    for (name, curve), look in zip(curves.items(), MARKED_LINES, strict=False):
        dashes = "--" if name in predicted else "-"
        heights = [value / size for value in curve.values()]
        axes.plot(list(curve), heights, dashes, label=name, **look)
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        every = sorted({x for curve in curves.values() for x in curve})
        axes.set_xticks(every, [f"{x:g}" for x in every])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=xlabel, ylabel=unit)
    _line_legend(axes)
    each = "; ".join(
        f"{name}: {human_bytes(curve[min(curve)])} at {min(curve):g} to "
        f"{human_bytes(curve[max(curve)])} at {max(curve):g}"
        for name, curve in curves.items()
    )
    figure.alt = f"{title or 'Growth'}, against {xlabel}. {each}."
    return figure


def tradeoff(curves: Mapping[str, Mapping[float, float]], *, title: str = "") -> CourseFigure:
    """Draw what memory costs: bytes against the work that they save.

    Args:
        curves: Name of each series; from bytes to the extra work, as a share of the step. A series
            of one point is drawn as a point, others as a line.
        title: Words above it.
    """
    unit, size = binary_unit(max(max(curve) for curve in curves.values()))
    figure, axes = new_figure(title, height=3.6)
    for (name, curve), look in zip(curves.items(), MARKED_LINES, strict=False):
        places = sorted(curve)
        at, extra = [place / size for place in places], [100 * curve[place] for place in places]
        dashes = "-" if len(places) > 1 else "none"
        axes.plot(at, extra, linestyle=dashes, label=name, **look)
    axes.set(xlabel=unit, ylabel="extra work, %", xlim=(0, None), ylim=(0, None))
    _line_legend(axes)
    each = "; ".join(
        f"{name}: "
        + ", ".join(f"{human_bytes(place)} {curve[place]:+.0%}" for place in sorted(curve))
        for name, curve in curves.items()
    )
    figure.alt = f"{title or 'Memory against extra work'}. {each}."
    return figure


def training_curves(
    curves: Mapping[str, Mapping[float, float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    dashed: Sequence[str] = (),
    log: str = "",
) -> CourseFigure:
    """Draw how a quantity goes over a training run, one line a run.

    Args:
        curves: Name of each line; from the place on the axis to the value there.
        xlabel: Words for the axis, as in `samples seen`.
        ylabel: Words for the quantity, with its unit.
        title: Words above it.
        dashed: Names of lines that are dashed, so that one on top of another shows both.
        log: Axes that are logarithmic: `x`, `y` or `xy`.

    Raises:
        ValueError: When a curve has no point.
    """
    for name, curve in curves.items():
        if not curve:
            raise ValueError(f"curve {name!r} has no point: give it at least one.")
    figure, axes = new_figure(title, height=3.2)
    for (name, curve), look in zip(curves.items(), MARKED_LINES, strict=False):
        style = "--" if name in dashed else "-"
        # Every point, or of many one in each eighth, at another place for each line.
        every = (0.02 * (1 + len(axes.lines)), 0.125) if len(curve) > 16 else 1
        axes.plot(list(curve), list(curve.values()), style, label=name, **look, markevery=every)
    if "x" in log:
        axes.set_xscale("log", base=2)
    if "y" in log:
        axes.set_yscale("log")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _line_legend(axes)
    ends = "; ".join(
        f"{name}: from {curve[min(curve)]:.2g} to {curve[max(curve)]:.2g}"
        for name, curve in curves.items()
    )
    figure.alt = f"{title or ylabel}, {ylabel} against {xlabel}. {ends}."
    return figure


def _line_legend(axes: Axes) -> None:
    """Name the lines: inside, or to the right where more than four would hide the lines."""
    many = len(axes.get_legend_handles_labels()[1]) > 4
    axes.legend(frameon=False, fontsize=8 if many else 9, **(BESIDE if many else {}))
