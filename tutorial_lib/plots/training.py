"""Figures of training: curves of a run, and whose loss depends on which sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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


def influence(grids: Mapping[str, Any]) -> CourseFigure:
    """Draw whose loss depends on which sample, one square for each pair.

    Args:
        grids: Name of each picture; a matrix `(losses, samples)` of sizes, as a tensor or as rows.
            Zero is white; the darker, the larger, on a logarithmic scale over four decades.

    Raises:
        ValueError: When there is no grid, or one is not a matrix.
    """
    if not grids:
        raise ValueError("grids is empty: give at least one matrix (losses, samples).")
    matrices = {name: np.asarray(grid, dtype=float) for name, grid in grids.items()}
    for name, matrix in matrices.items():
        if matrix.ndim != 2:
            raise ValueError(
                f"grid {name!r} has shape {matrix.shape}; (losses, samples) is needed."
            )
    figure = CourseFigure(figsize=(8, 2.6), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(matrices), squeeze=False)[0]
    sentences = []
    for place, (panel, (name, matrix)) in enumerate(zip(panels, matrices.items(), strict=True)):
        decades = np.log10(np.maximum(matrix / max(matrix.max(), 1e-300), 1e-4)) / 4 + 1
        shade = np.where(matrix > 0, 0.25 + 0.75 * decades, 0.0)
        panel.imshow(shade, cmap="Blues", vmin=0, vmax=1.2)
        panel.set_title(name, fontsize=10, loc="left")
        panel.set(xlabel="sample", ylabel="" if place else "loss of sample", xticks=[], yticks=[])
        sentences.append(f"{name}: {np.count_nonzero(matrix)} of {matrix.size}")
    figure.alt = f"Pairs of a loss and a sample that it depends on. {'; '.join(sentences)}."
    return figure
