"""Figures of training: curves of a run."""

from collections.abc import Mapping, Sequence

from tutorial_lib.plots.base import MARKED_LINES, CourseFigure, line_legend, new_figure


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
    line_legend(axes)
    ends = "; ".join(
        f"{name}: from {curve[min(curve)]:.2g} to {curve[max(curve)]:.2g}"
        for name, curve in curves.items()
    )
    figure.alt = f"{title or ylabel}, {ylabel} against {xlabel}. {ends}."
    return figure
