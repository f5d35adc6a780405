"""Figures to choose from: plans for several budgets, and who holds memory at a moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch

from tutorial_lib.plots.base import CourseFigure, fill
from tutorial_lib.units import binary_unit, human_bytes

_SHOWN = 6  # lines of Python
_COLUMNS = 500  # of a curve; each shows the most that its events held
_KINDS = {"activations": "kept", "recomputed": "run again in backward"}


def plans(found: Sequence[Any], chosen: Any, budget: str) -> CourseFigure:
    """Draw what each plan costs, and of one of them which stages it keeps.

    Args:
        found: Plans of one chain for several budgets, as `plan.solve` makes them.
        chosen: The one to look at; it stands out.
        budget: Words for its budget.
    """
    figure = CourseFigure(figsize=(8, 4.6), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, height_ratios=[1.3, 1])
    unit, size = binary_unit(max(plan.peak_bytes for plan in found))
    line = sorted((plan.peak_bytes / size, 100 * plan.overhead) for plan in found)
    above.plot(*zip(*line, strict=True), "o-", color="#0072B2", linewidth=1)
    above.plot(chosen.peak_bytes / size, 100 * chosen.overhead, "*", color="black", markersize=14)
    above.set(xlabel=f"peak, {unit} (star: this plan)", ylabel="more time, %", ylim=(-2, None))
    above.set_title(f"budget {budget}", fontsize=10, loc="left")
    names = chosen.names or [str(number) for number in range(len(chosen.stages))]
    again = [count > 1 for count in chosen.forward_executions]
    for place, (stage, twice) in enumerate(zip(chosen.stages, again, strict=True)):
        look = fill("recomputed" if twice else "activations")
        below.bar(place, stage.saved_bytes / size, width=0.8, **look)
    below.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    below.set_ylabel(f"saves, {unit}")
    handles = [Patch(label=words, **fill(kind)) for kind, words in _KINDS.items()]
    below.legend(handles=handles, frameon=False, fontsize=8)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    repeated = [name for name, twice in zip(names, again, strict=True) if twice]
    figure.alt = (
        f"Budget {budget}: peak {human_bytes(chosen.peak_bytes)}, {chosen.overhead:+.1%} time. "
        f"Run again in backward: {', '.join(repeated) or 'nothing'}."
    )
    return figure


def holders(
    curve: Sequence[int],
    num_events: int,
    by_line: Mapping[str, tuple[int, int]],
    *,
    title: str = "",
) -> CourseFigure:
    """Draw memory over a snapshot's events, and who holds it after some of them.

    Args:
        curve: Bytes held after each event.
        num_events: The moment: after so many events, counted from 1.
        by_line: What is held then, the largest first: line of Python, its bytes and tensors.
        title: Words above.
    """
    figure = CourseFigure(figsize=(8, 4.6), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1)
    unit, size = binary_unit(max(curve))
    span = -(-len(curve) // _COLUMNS)
    tops = [max(curve[place : place + span]) / size for place in range(0, len(curve), span)]
    edges = [*range(1, len(curve) + 1, span), len(curve) + 1]
    above.stairs(tops, edges, fill=True, facecolor="#56B4E9", edgecolor="#0072B2")
    above.axvline(num_events, color="black", linewidth=1.5)
    above.set(xlabel="events of the allocator", ylabel=unit, xlim=(1, len(curve)), ylim=(0, None))
    above.set_title(title, fontsize=10, loc="left")
    largest = dict(list(by_line.items())[:_SHOWN])
    for row, (num_bytes, count) in enumerate(largest.values()):
        below.barh(row, num_bytes / size, height=0.7, facecolor="#56B4E9", edgecolor="#222222")
        words = f" {human_bytes(num_bytes)}, {count} tensor{'s' * (count > 1)}"
        below.text(num_bytes / size, row, words, va="center", fontsize=8)
    below.set_yticks(range(len(largest)), list(largest), fontsize=8)
    below.set(xlabel=unit, ylim=(_SHOWN - 0.5, -0.5), xlim=(0, max(curve) / size))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    each = "; ".join(
        f"{line} {human_bytes(num_bytes)} in {count} tensors"
        for line, (num_bytes, count) in largest.items()
    )
    held = human_bytes(curve[num_events - 1])
    figure.alt = f"{title}, event {num_events} of {len(curve)}: {held} held. {each or 'Nothing'}."
    return figure
