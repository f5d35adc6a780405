"""Pictures of ideas: models and cards by year, what one update sees."""

from collections.abc import Sequence

from matplotlib.patches import Rectangle

from tutorial_lib.plots.base import CourseFigure, fill, new_figure
from tutorial_lib.units import GIB


def models_and_cards(
    models: Sequence[tuple[int, str, float]], cards: Sequence[tuple[int, str, float]]
) -> CourseFigure:
    """Draw the size of models and the memory of accelerators by year.

    Args:
        models: Year, name and parameters, drawn at the 16 bytes each that Adam in float32 keeps.
        cards: Year, name and memory in GiB.
    """
    figure, axes = new_figure("What a model needs to train, and what one card has", height=4.2)
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
    figure, axes = new_figure("One update", height=1.1 + 0.55 * num_gpus)
    width = micro_batch + 0.6
    for gpu in range(num_gpus):
        for turn in range(accumulation_steps):
            now = turn == 0
            for sample in range(micro_batch):
                corner = (turn * width + sample, gpu - 0.35)
                look = fill("activations") if now else {"facecolor": "white", "edgecolor": "#888"}
                axes.add_patch(Rectangle(corner, 0.9, 0.7, **look))
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
