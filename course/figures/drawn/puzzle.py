"""The puzzle of 12 blocks and 3 slots: a reader's list of boundaries, followed and drawn."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.patches import Patch, Rectangle

from tutorial_lib.plots.base import CourseFigure, new_figure
from tutorial_lib.plots import formulas, slider

_BLOCKS, _SLOTS, _ENTRIES = 12, 3, 5  # a best list has five entries
_KINDS = ("first forward", "forward again", "again, in the longest part without a boundary")
_COLORS = dict(zip(_KINDS, ("#56B4E9", "#CC79A7", "#D55E00"), strict=True))
_ACROSS = "backward of block (number on top: its forwards)"
_UP = "block (dots: slots in use)"
_GOALS = {45: "Get below 45.", 38: "Now get below 38.", 34: "The best list takes 33."}
_REACHED = "No list takes fewer."


class _Run(NamedTuple):
    """What one block's backward needs: forwards from `start` on, and who then is in a slot."""

    block: int
    start: int
    held: tuple[int, ...]

    @property
    def part(self) -> tuple[int, int, int]:
        """How far this block is from its boundary, with how many slots free, and this block."""
        return self.block - self.held[-1], _SLOTS - len(self.held), self.block


def _runs(boundaries: Sequence[int]) -> Iterator[_Run]:
    held = [0]
    for block in reversed(range(_BLOCKS)):
        start = held[-1]
        passed = [at for at in dict.fromkeys(boundaries) if start < at <= block]
        held += sorted(passed[: _SLOTS - len(held)])
        yield _Run(block, start, tuple(held))
        if held[-1] == block:
            held.pop()


def boundary_puzzle(boundaries: Sequence[int]) -> CourseFigure:
    """Draw what a list of boundaries costs, with a slider for each of five entries.

    A block's backward needs a run from the nearest boundary. Each run stores the first entries of
    the list that it passes, as many as there are free slots. A block's backward frees its slot.

    Args:
        boundaries: At most five of the blocks 1 to 11, where the sliders begin.

    Raises:
        ValueError: When there are more, or one isn't such a block.

    Example:
        >>> boundary_puzzle([6]).alt.partition(".")[0]
        'List 6: 48 forwards'
    """
    if len(boundaries) > _ENTRIES or not set(boundaries) <= set(range(1, _BLOCKS)):
        raise ValueError(
            f"boundaries (={[*boundaries]}) must be at most {_ENTRIES} of the blocks 1 to "
            f"{_BLOCKS - 1}. Block 0 has a slot anyway."
        )
    runs = [*_runs(boundaries)]
    longest = max(runs, key=lambda run: run.part)
    words = _in_words(boundaries, runs, longest)
    figure, axes = new_figure(words[0], height=4.2)
    for place, run in enumerate(runs):
        for block in range(run.start, run.block + 1):
            inside = longest.held[-1] <= min(block, run.block) and run.block <= longest.block
            color = _COLORS[_KINDS[0 if not place else 2 if inside else 1]]
            cell = Rectangle((place - 0.5, block - 0.5), 1, 1, facecolor=color, edgecolor="white")
            axes.add_patch(cell)
        axes.scatter([place] * len(run.held), run.held, s=25, c="black")
        axes.text(place, run.block + 0.6, f"{run.block - run.start + 1}", ha="center", size=8)
    axes.set(xlim=(-0.5, _BLOCKS - 0.5), ylim=(-0.5, _BLOCKS + 0.4), xlabel=_ACROSS, ylabel=_UP)
    axes.set_xticks(range(_BLOCKS), [str(run.block) for run in runs])
    axes.set_yticks(range(_BLOCKS))
    axes.text(_BLOCKS - 0.6, _BLOCKS, "\n".join(words[1:]), ha="right", va="top", size=8)
    handles = [Patch(label=kind, facecolor=color) for kind, color in _COLORS.items()]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    figure.alt = f"List {', '.join(map(str, boundaries)) or 'empty'}: {' '.join(words)}"
    figure.moving = _moving(boundaries)
    return figure


def _in_words(boundaries: Sequence[int], runs: Sequence[_Run], longest: _Run) -> list[str]:
    total = sum(run.block - run.start + 1 for run in runs)
    goal = next((words for least, words in _GOALS.items() if total >= least), _REACHED)
    stored = {at for run in runs for at in run.held}
    never = ", ".join(str(at) for at in boundaries if at not in stored)
    return [
        f"{total} forwards. {goal}",
        f"Longest part without a boundary: blocks {longest.held[-1]} to {longest.block}, with "
        f"{longest.part[1]} of your 2 slots free.",
        f"No run passed these with a slot free: {never}." if never else "Every entry was stored.",
    ]


# ---- the same in Vega-Lite, whose formulas know no loop: `datum.start11`, `datum.start10` ... ----


def _steps(entries: Sequence[str]) -> dict[str, str]:
    """Formulas of each run: its start, and the `high` and `low` of two slots, 0 when free."""
    steps = {f"high{_BLOCKS}": "0", f"low{_BLOCKS}": "0"}
    for block in reversed(range(_BLOCKS)):
        high, low = f"datum.high{block + 1}", f"datum.low{block + 1}"
        steps[f"start{block}"] = f"{high} == {block + 1} ? {low} : {high}"  # that slot is free now
        steps[f"kept{block}"] = f"{high} == {block + 1} ? 0 : {low}"
        start, kept, one, two = (f"datum.{name}{block}" for name in ("start", "kept", "one", "two"))
        passed = {at: f"{start} < {at} && {at} <= {block}" for at in entries}
        first = (f"{kept} == 0 && {condition} ? {at} : " for at, condition in passed.items())
        second = (
            f"{start} == 0 && {condition} && {at} != {one} ? {at} : "
            for at, condition in passed.items()
        )
        steps[f"one{block}"] = "".join(first) + "0"
        steps[f"two{block}"] = "".join(second) + "0"
        steps[f"high{block}"] = f"max({start}, {one}, {two})"
        steps[f"low{block}"] = f"{one} == 0 ? {kept} : {two} == 0 ? {start} : min({one}, {two})"
    return steps


def _words(entries: Sequence[str]) -> str:
    goal = "".join(f"datum.total >= {least} ? '{words}' : " for least, words in _GOALS.items())
    never = " + ".join(
        f"({at} && indexof(datum.highs, {at}) < 0 && indexof(datum.lows, {at}) < 0 ? ', ' + {at}"
        " : '')"
        for at in entries
    )
    return (
        f"[datum.total + ' forwards. ' + ({goal}'{_REACHED}'), "
        "'Longest part without a boundary: blocks ' + datum.high + ' to ' + datum.block + ', with '"
        " + datum.free + ' of your 2 slots free.', "
        f"({never}) ? 'No run passed these with a slot free: ' + slice({never}, 2) + '.' : "
        "'Every entry was stored.']"
    )


def _rows(entries: Sequence[str]) -> list[dict[str, Any]]:
    """Transforms that make a row for each run, with its part and the totals beside."""
    order = [*reversed(range(_BLOCKS))]
    start, high, low = (
        "[" + ", ".join(f"datum.{name}{block}" for block in order) + "]"
        for name in ("start", "high", "low")
    )
    names = ["block", "start", "high", "low"]
    return [
        *formulas(**_steps(entries), starts=start, highs=high, lows=low, blocks=f"{order}"),
        {"flatten": [f"{name}s" for name in names], "as": names},
        *formulas(
            runs="datum.block - datum.start + 1",
            free="datum.high == 0 ? 2 : datum.low == 0 ? 1 : 0",
            part=f"((datum.block - datum.high) * {_SLOTS} + datum.free) * {_BLOCKS} + datum.block",
        ),
        {
            "joinaggregate": [
                {"op": "sum", "field": "runs", "as": "total"},
                {"op": "max", "field": "part", "as": "longest"},
            ]
        },
        *formulas(
            end=f"datum.longest % {_BLOCKS}",
            begin=f"datum.end - floor(datum.longest / {_SLOTS * _BLOCKS})",
        ),
    ]


def _layers(entries: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield cells, dots, numbers on top, and the sentences."""
    inside = "datum.begin <= min(datum.at, datum.block) && datum.block <= datum.end"
    kind = "datum.block == {} ? '{}' : {} ? '{}' : '{}'"
    kind = kind.format(_BLOCKS - 1, _KINDS[0], inside, _KINDS[2], _KINDS[1])
    forwards = formulas(at="sequence(datum.start, datum.block + 1)")
    colors = {"domain": _KINDS, "range": [*_COLORS.values()]}
    color = {"field": "kind", "type": "nominal", "scale": colors, "title": None}
    yield {
        "transform": [*forwards, {"flatten": ["at"]}, *formulas(kind=kind)],
        "mark": {"type": "rect", "stroke": "white"},
        "encoding": {"color": {**color, "legend": {"labelLimit": 0}}},
    }
    yield {
        "transform": [*formulas(at="[0, datum.high, datum.low]"), {"flatten": ["at"]}],
        "mark": {"type": "circle", "color": "black", "opacity": 1, "size": 50},
    }
    yield {
        "transform": formulas(at="datum.block + 1"),
        "mark": {"type": "text", "dy": 4},
        "encoding": {"text": {"field": "runs"}},
    }
    longest = {"filter": "datum.part == datum.longest"}
    place = {"x": {"value": 556}, "y": {"value": 10}}
    yield {
        "transform": [longest, *formulas(words=_words(entries))],
        "mark": {"type": "text", "align": "right", "lineHeight": 17},
        "encoding": {"text": {"field": "words"}, **place},
    }


def _moving(boundaries: Sequence[int]) -> dict[str, Any]:
    entries = [f"entry{number}" for number in range(1, _ENTRIES + 1)]
    given = [*boundaries, *[0] * (_ENTRIES - len(boundaries))]
    labels = ("1st boundary", "2nd", "3rd", "4th", "5th")
    order = [*reversed(range(_BLOCKS))]
    across = {"field": "block", "type": "ordinal", "sort": order, "title": _ACROSS}
    up = {"field": "at", "type": "ordinal", "scale": {"domain": [_BLOCKS, *order]}, "title": _UP}
    return {
        "title": "Twelve blocks and three slots: place the boundaries (0: none)",
        "height": 290,
        "params": [
            slider(name, label, at, range(_BLOCKS))
            for name, label, at in zip(entries, labels, given, strict=True)
        ],
        "data": {"values": [{}]},
        "transform": _rows(entries),
        "encoding": {
            "x": {**across, "axis": {"labelAngle": 0}},
            "y": {**up, "axis": {"values": order}},
        },
        "layer": [*_layers(entries)],
    }
