"""Figures of plans: what is kept and recomputed, at what price; and who holds memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from tutorial_lib.plots.base import CourseFigure, fill, new_panels
from tutorial_lib.units import binary_unit, human_bytes

_SHOWN = 6  # lines of Python
_COLUMNS = 500  # of a curve; each shows the most that its events held
_KINDS = {"activations": "kept", "recomputed": "run again in backward"}


def plans(found: Sequence[Any], chosen: Any, budget: str) -> CourseFigure:
    """Draw what each plan costs, and of one of them which stages it keeps.

    Args:
        found: Plans of one chain for several budgets, as `planning.solve` makes them.
        chosen: The one to look at; it stands out.
        budget: Words for its budget.
    """
    figure, ((above,), (below,)) = new_panels(2, height=4.6, height_ratios=[1.3, 1])
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
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=2)
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
    figure, ((above,), (below,)) = new_panels(2, height=4.6)
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
        words = f" {human_bytes(num_bytes)}, {count} tensor{'s' if count > 1 else ''}"
        below.text(num_bytes / size, row, words, va="center", fontsize=8)
    below.set_yticks(range(len(largest)), list(largest), fontsize=8)
    below.set(xlabel=unit, ylim=(_SHOWN - 0.5, -0.5), xlim=(0, max(curve) / size))
    each = "; ".join(
        f"{line} {human_bytes(num_bytes)} in {count} tensors"
        for line, (num_bytes, count) in largest.items()
    )
    held = human_bytes(curve[num_events - 1])
    figure.alt = f"{title}, event {num_events} of {len(curve)}: {held} held. {each or 'Nothing'}."
    return figure


_LABELS = {
    "inputs": "input kept: a boundary",
    "activations": "all kept for backward",
    "recomputed": "kept after recomputing",
}
_MOVES = {"forward": "runs forward", "recompute": "runs forward again", "backward": "goes backward"}
_MARKS = {"forward": "^", "recompute": "^", "backward": "v"}


class Event(Protocol):
    """A stage's run: see `plan.Event`."""

    kind: Any
    stage: int
    keeps: bool
    held_bytes: int


Bar = tuple[str, int, int, int]  # what is kept, of which stage, from which event, to which


def schedule(
    events: Sequence[Event], *, step: int | None = None, title: str = "", unit: int = 0
) -> CourseFigure:
    """Draw a schedule: a row for each stage, a column for each run of one, bytes below.

    Args:
        events: In order, as `planning.simulate(...).events` gives them.
        step: Show what happened up to this event, counted from 1; None shows all.
        title: Stands above.
        unit: Show bytes as multiples of this many; 0 for bytes.

    Raises:
        ValueError: When there are no events, or `step` is none of them.
    """
    last = len(events) if step is None else step
    if not 1 <= last <= len(events):
        raise ValueError(f"step (={step}) must be between 1 and the {len(events)} events.")
    figure, ((above,), (below,)) = new_panels(2, height=4.4, sharex=True, height_ratios=[2.2, 1])
    _draw_stages(above, events, last)
    _draw_bytes(below, events, last, unit)
    above.set_title(title, fontsize=10, loc="left")
    handles: list[Any] = [Patch(label=label, **fill(name)) for name, label in _LABELS.items()]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    figure.alt = _in_words(events, last, title, unit)
    return figure


def _draw_stages(axes: Axes, events: Sequence[Event], last: int) -> None:
    for what, stage, born, died in _bars(events):
        width = min(died, last) - born
        if width > 0:
            low, height = (stage - 0.42, 0.22) if what == "inputs" else (stage - 0.2, 0.62)
            axes.add_patch(Rectangle((born, low), width, height, **fill(what)))
    size = min(36.0, 3600 / len(events))
    for kind, mark in _MARKS.items():
        places = [(t + 0.5, e.stage + 0.1) for t, e in enumerate(events[:last]) if e.kind == kind]
        color = "white" if kind == "recompute" else "black"
        x, y = [at for at, _ in places], [stage for _, stage in places]
        axes.scatter(x, y, s=size, c=color, marker=mark, edgecolors="black", linewidths=0.6)
    axes.set_ylabel("stage", fontsize=8)
    axes.set(xlim=(0, len(events)), ylim=(-0.6, max(e.stage for e in events) + 0.7))
    axes.tick_params(labelsize=8)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_bytes(axes: Axes, events: Sequence[Event], last: int, unit: int) -> None:
    heights = [event.held_bytes / (unit or 1) for event in events]
    axes.stairs(heights[:last], range(last + 1), fill=True, color="#56B4E9", edgecolor="#0072B2")
    peak = max(heights[:last])
    axes.axhline(peak, color="black", linewidth=0.8, linestyle="--")
    axes.annotate(f"peak so far: {_amount(peak, unit)}", (0, peak), (2, 2), size=8,
                  textcoords="offset points")  # fmt: skip
    axes.set_ylim(0, 1.25 * max(heights))
    axes.set_xlabel("runs of a stage, one after the other", fontsize=8)
    axes.set_ylabel("held", fontsize=8)
    axes.tick_params(labelsize=8, labelleft=bool(unit))


def _bars(events: Sequence[Event]) -> Iterator[Bar]:
    """Yield what is held, from the event that makes it to the last one that needs it."""
    for stage in range(max(event.stage for event in events) + 1):
        uses = [t for t, event in enumerate(events) if event.stage == stage]
        makes = [t for t, e in enumerate(events) if e.stage == stage - 1 and e.kind != "backward"]
        for place, made in enumerate(makes or [-1]):
            until = makes[place + 1] if place + 1 < len(makes) else len(events)
            using = [t for t in uses if made < t < until]
            # what is taken at once is no boundary, and what a stage keeps has a bar already
            kept = made >= 0 and events[made].keeps
            if using and using[-1] > made + 1 and not kept:
                yield "inputs", stage, max(made, 0), using[-1] + 1
        for t in uses:
            if events[t].keeps:
                backward = (u for u in uses if events[u].kind == "backward")
                back = next(backward, len(events) - 1)  # a part of a schedule may have none
                what = "activations" if events[t].kind == "forward" else "recomputed"
                yield what, stage, t, back + 1


def _amount(held: float, unit: int) -> str:
    return f"{held:.4g} units" if unit else human_bytes(int(held))


def _in_words(events: Sequence[Event], last: int, title: str, unit: int) -> str:
    counts = {k: sum(e.kind == k for e in events[:last]) for k in ("forward", "recompute")}
    peak = _amount(max(event.held_bytes for event in events[:last]) / (unit or 1), unit)
    now = events[last - 1]
    words = "" if last == len(events) else f" Now stage {now.stage} {_MOVES[now.kind]}."
    head = f"{title}: " if title else ""
    return (
        f"{head}{last} of {len(events)} runs, {counts['forward']} forwards and "
        f"{counts['recompute']} recomputed ones; peak so far {peak}.{words}"
    )
