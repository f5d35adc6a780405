"""A figure of whose loss depends on which sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tutorial_lib.plots.base import CourseFigure


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
