"""Pictures of several ranks: who holds which part, and a pipeline's timetable."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Rectangle

from tutorial_lib.plots.base import CourseFigure, fill, new_figure

_COLORS = {"F": "#56B4E9", "B": "#D55E00"}
_KEY = "time; blue (light): forward, orange (dark): backward, low: the rank's second stage"
Run = tuple[int, float, float, str, int, int]
"""Rank, start, duration, `F` or `B`, micro-batch, and which of the rank's stages: 0, 1, ..."""


def who_holds_what(
    title: str, parts: Mapping[str, Sequence[Sequence[int]]], num_parts: int
) -> CourseFigure:
    """Draw for each rank which parts of each category it holds: filled, or an empty frame.

    Args:
        title: Stands above.
        parts: For each memory category, for each rank, the parts that it holds, counted from 0.
        num_parts: Into how many parts each category is cut.
    """
    figure, axes = new_figure(title, height=0.8 + 0.36 * len(parts))
    num_ranks = max(map(len, parts.values()))
    for row, (category, by_rank) in enumerate(parts.items()):
        for rank, held in enumerate(by_rank):
            for part in range(num_parts):
                corner = (rank * (num_parts + 1.5) + part, row - 0.35)
                empty = {"facecolor": "white", "edgecolor": "#777"}
                look = fill(category) if part in held else empty
                axes.add_patch(Rectangle(corner, 0.88, 0.7, **look))
    middles = [rank * (num_parts + 1.5) + num_parts / 2 for rank in range(num_ranks)]
    axes.set(xlim=(-0.3, num_ranks * (num_parts + 1.5)), ylim=(len(parts) - 0.4, -0.6))
    axes.set_xticks(middles, [f"rank {rank}" for rank in range(num_ranks)])
    axes.set_yticks(range(len(parts)), [name.replace("_", " ") for name in parts])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    words = (
        f"{name.replace('_', ' ')} {'/'.join(str(len(held)) for held in by_rank)}"
        for name, by_rank in parts.items()
    )
    figure.alt = f"{title}: of {num_parts} parts the ranks hold {', '.join(words)}."
    return figure


def timetable(runs: Sequence[Run], *, title: str) -> CourseFigure:
    """Draw when each rank of a pipeline runs which micro-batch forward and backward.

    Args:
        runs: In any order.
        title: Stands above.
    """
    num_ranks = 1 + max(rank for rank, *_ in runs)
    end = max(start + duration for _, start, duration, *_ in runs)
    figure, axes = new_figure(title, height=0.8 + 0.34 * num_ranks)
    for rank, start, duration, kind, micro_batch, stage in runs:
        height = 0.44 if stage else 0.8
        box = Rectangle((start, rank - height / 2), duration, height, facecolor=_COLORS[kind],
                        edgecolor="#222222", linewidth=0.5)  # fmt: skip
        axes.add_patch(box)
        axes.text(start + duration / 2, rank, str(micro_batch), ha="center", va="center", size=6,
                  color="white" if kind == "B" else "black")  # fmt: skip
    axes.set(xlim=(0, end), ylim=(num_ranks - 0.5, -0.5))
    axes.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
    axes.set_xlabel(_KEY, size=8)
    axes.tick_params(labelsize=8)
    busy = sum(duration for _, _, duration, *_ in runs) / (num_ranks * end)
    figure.alt = f"{title}: {num_ranks} ranks, {end:g} units of time, busy {busy:.0%} of it."
    return figure
