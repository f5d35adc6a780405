"""The roofline of a card: a transformer's operations on it, and what each costs once more."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.lines import Line2D
from matplotlib.ticker import StrMethodFormatter

from tutorial_lib.plots.base import LINES, CourseFigure, new_panels

from .moving import formulas, slider

_WORDS = 128_256  # of the vocabulary
_COLORS = {"memory": LINES[1], "arithmetic": LINES[0]}  # what an operation waits for
_ACROSS, _REACH = "FLOPs per byte read or written", (0.1, 20_000)
_UP, _HEIGHTS = "TFLOP/s", (0.02, 1000)
_BELOW, _NOTHING = "µs to recompute a MiB", "nothing is kept"
_WAIT = "operations wait for memory."
_LAST = 1e9  # the price where nothing is kept
Speed = tuple[float, float]  # FLOP/s and bytes/s
Sizes = dict[tuple[int, int], int]  # {(1, 2): 6} is 6 x tokens x width^2


class _Operation(NamedTuple):
    name: str
    flops: Sizes
    moved: Sizes  # bytes
    kept: Sizes | None = None  # bytes that autograd keeps of its result
    needs: tuple["_Operation", ...] = ()  # its input isn't kept: what runs again before it


_OUT = _Operation("out", {(1, 2): 2}, {(1, 1): 4, (0, 2): 2})
_LOGITS: Sizes = {(1, 1): 2, (0, 1): 2 * _WORDS, (1, 0): 2 * _WORDS}
_HEAD = _Operation("head", {(1, 1): 2 * _WORDS}, _LOGITS)
_ROWS = (
    _Operation("norm", {(1, 1): 8}, {(1, 1): 4}, {(1, 1): 2}),
    _Operation("qkv", {(1, 2): 6}, {(1, 1): 8, (0, 2): 6}, {(1, 1): 6}),
    _Operation("attention", {(2, 1): 4}, {(1, 1): 8}, {(1, 1): 2}),
    _OUT,
    _Operation("add", {(1, 1): 1}, {(1, 1): 6}, {(1, 1): 2}, (_OUT,)),
    _Operation("up", {(1, 2): 8}, {(1, 1): 10, (0, 2): 8}, {(1, 1): 8}),
    _Operation("GELU", {(1, 1): 36}, {(1, 1): 16}, {(1, 1): 8}),
    _Operation("down", {(1, 2): 8}, {(1, 1): 10, (0, 2): 8}),
    _HEAD,
    _Operation("loss", {(1, 0): 5 * _WORDS}, {(1, 0): 14 * _WORDS}, {(1, 0): 4 * _WORDS}, (_HEAD,)),
)


def roofline(
    speeds: Mapping[str, Speed], card: str = "A100", tokens: int = 2048, width: int = 4096
) -> CourseFigure:
    """Draw operations under a card's roofline; below, how long it takes to recompute a MiB of each.

    An operation takes the longer of two times, of its arithmetic and of reading its inputs and
    writing its output once. Numbers have 16 bits, in the loss 32 after a cast. FLOPs of matmuls
    and attention are those of PyTorch's counter; it counts all scores, of which a causal kernel
    skips half. For the others it has 0. Here an element takes 8 in a norm (mean 1, variance 3,
    normalising 2, weight and bias 2), 9 in a GELU by `tanh`, 1 in a sum and 5 in a `log_softmax`;
    `exp` and `tanh` count as one. Biases, statistics of norms and attention, and launches are
    left out.

    Args:
        speeds: FLOP/s in 16 bits and bytes/s of the cards to pick from.
        card: One of them, to begin with.
        tokens: All in one sequence.
        width: Of a block, whose MLP is four times as wide; the vocabulary has 128,256 tokens.

    Raises:
        ValueError: For another card, or a number below 1.

    Example:
        >>> roofline({"T4": (31e12, 2e11)}, "T4", tokens=64).alt.partition(". ")[0]
        'T4, 64 tokens, width 4096'
    """
    if card not in speeds or min(tokens, width) < 1:
        raise ValueError(
            f"card, tokens, width (={card!r}, {tokens}, {width}) must be one of "
            f"{', '.join(speeds)}, and two numbers of at least 1."
        )
    points = sorted(_points(speeds[card], tokens, width), key=lambda point: point.price)
    waiting = sum(point.bound == "memory" for point in points)
    said = [
        f"The ridge is at {_ridge(speeds[card]):.0f} FLOPs per byte.",
        f"{waiting} of {len(points)} {_WAIT}",
    ]
    title = f"{card}, {tokens} tokens, width {width}"
    figure = _still(speeds[card], points, title, said)
    prices = "; ".join(f"{point.name} {point.words}" for point in points)
    figure.alt = f"{title}. {' '.join(said)} {_BELOW}: {prices}."
    figure.moving = _moving(speeds, card, tokens, width)
    return figure


class _Point(NamedTuple):
    name: str
    dense: float  # FLOPs per byte
    bound: str
    price: float  # microseconds per MiB
    words: str


def _still(speed: Speed, points: Sequence[_Point], title: str, said: list[str]) -> CourseFigure:
    figure, ((above,), (below,)) = new_panels(2, height=5.4, sharex=True)
    ends = (_REACH[0], _ridge(speed), _REACH[1])
    above.plot(ends, [_reached(speed, end) for end in ends], color="black")
    for axes in (above, below):
        axes.axvline(ends[1], color="black", linewidth=0.8, linestyle=":")
    for place, point in enumerate(points):
        for axes, height in ((above, _reached(speed, point.dense)), (below, place)):
            axes.scatter(point.dense, height, color=_COLORS[point.bound], zorder=3)
        side, by = ("left", 7) if point.bound == "memory" else ("right", -7)
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 8}
        below.annotate(point.words, (point.dense, place), (by, 0), ha=side, **look)
    above.set_title(title, fontsize=10, loc="left")
    above.text(0.02, 0.9, "\n".join(said), transform=above.transAxes, va="top", size=8)
    above.set(xscale="log", yscale="log", ylim=_HEIGHTS, ylabel=_UP)
    for axis in (above.yaxis, below.xaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    below.set(xlabel=_ACROSS, ylabel=_BELOW)
    below.set_yticks(range(len(points)), [point.name for point in points])
    below.invert_yaxis()
    handles = [
        Line2D([], [], color=color, marker="o", linestyle="", label=f"waits for {name}")
        for name, color in _COLORS.items()
    ]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside lower center", ncols=2)
    return figure


def _points(speed: Speed, tokens: int, width: int) -> Iterator[_Point]:
    def value(sizes: Sizes) -> float:
        return sum(by * float(tokens) ** i * float(width) ** j for (i, j), by in sizes.items())

    def seconds(one: _Operation) -> float:
        return max(value(one.flops) / speed[0], value(one.moved) / speed[1])

    for one in _ROWS:
        dense = value(one.flops) / value(one.moved)
        price, words = _LAST, _NOTHING
        if one.kept:
            price = 1e6 * sum(map(seconds, (one, *one.needs))) / (value(one.kept) / 2**20)
            words = f"{float(f'{price:.2g}'):g}{_with(one)}"
        yield _Point(
            one.name, dense, "memory" if dense < _ridge(speed) else "arithmetic", price, words
        )


def _with(one: _Operation) -> str:
    return "".join(f", with {other.name}" for other in one.needs)


def _reached(speed: Speed, dense: float) -> float:
    return min(speed[0], dense * speed[1]) / 1e12


def _ridge(speed: Speed) -> float:
    return speed[0] / speed[1]


# ---- the same in Vega-Lite ----


def _by_row(sizes: Iterable[Sizes | None]) -> str:
    terms = (
        " + ".join(f"{by} * pow(tokens, {i}) * pow(columns, {j})" for (i, j), by in one.items())
        for one in (each or {(0, 0): 0} for each in sizes)
    )
    return f"[{', '.join(terms)}][datum.row]"


def _computed(speeds: Mapping[str, Speed]) -> list[dict[str, str]]:
    """Transforms that give each operation its place and its price."""
    before = [one.needs[0] if one.needs else None for one in _ROWS]
    longer = "max(datum.{} / datum.peak, datum.{} / datum.stream)"
    words = f"format(datum.price, '.2~r') + {[*map(_with, _ROWS)]}[datum.row]"
    return formulas(
        peak=f"({ {card: flops for card, (flops, _) in speeds.items()} })[card]",
        stream=f"({ {card: moved for card, (_, moved) in speeds.items()} })[card]",
        ridge="datum.peak / datum.stream",
        flops=_by_row(one.flops for one in _ROWS),
        moved=_by_row(one.moved for one in _ROWS),
        kept=_by_row(one.kept for one in _ROWS),
        more=_by_row(one and one.flops for one in before),
        also=_by_row(one and one.moved for one in before),
        dense="datum.flops / datum.moved",
        slow="datum.dense < datum.ridge",
        bound="datum.slow ? 'memory' : 'arithmetic'",
        seconds=f"{longer.format('flops', 'moved')} + {longer.format('more', 'also')}",
        price=f"datum.kept ? 1e6 * datum.seconds / (datum.kept / 1048576) : {_LAST}",
        words=f"datum.kept ? {words} : '{_NOTHING}'",
        teraflops="min(datum.peak, datum.dense * datum.stream) / 1e12",
    )


def _log(field: str, title: str, ends: tuple[float, float]) -> dict[str, Any]:
    powers = [power for n in range(-2, 5) if ends[0] <= (power := 10**n) <= ends[1]]
    scale = {"scale": {"type": "log", "domain": ends}, "axis": {"values": powers, "format": "~r"}}
    return {"field": field, "type": "quantitative", "title": title, **scale}


def _moving(speeds: Mapping[str, Speed], card: str, tokens: int, width: int) -> dict[str, Any]:
    across, up = _log("dense", _ACROSS, _REACH), _log("teraflops", _UP, _HEIGHTS)
    names = {"field": "name", "type": "nominal", "title": _BELOW, "sort": {"field": "price"}}
    colors = {"domain": [*_COLORS], "range": [*_COLORS.values()]}
    color = {"field": "bound", "type": "nominal", "title": "waits for", "scale": colors}
    once = {"filter": "datum.row == 0"}
    dots = {"mark": {"type": "circle", "size": 60, "opacity": 1}, "encoding": {"color": color}}
    ridge = {
        "transform": [once],
        "mark": {"type": "rule", "strokeDash": [2, 2]},
        "encoding": {"x": {**across, "field": "ridge"}, "y": None},
    }
    ends = formulas(dense=f"[{_REACH[0]}, datum.ridge, {_REACH[1]}]")
    roof = {
        "transform": [once, *ends, {"flatten": ["dense"]}, _computed(speeds)[-1]],
        "mark": {"type": "line", "color": "black"},
    }
    count = {"joinaggregate": [{"op": "sum", "field": "slow", "as": "waiting"}]}
    said = (
        "['The ridge is at ' + format(datum.ridge, '.0f') + ' FLOPs per byte.', "
        f"datum.waiting + ' of {len(_ROWS)} {_WAIT}']"
    )
    words = {
        "transform": [count, once, *formulas(said=said)],
        "mark": {"type": "text", "align": "left", "lineHeight": 16},
        "encoding": {"text": {"field": "said"}, "x": {"value": 8}, "y": {"value": 14}},
    }
    sides = {"align": "datum.slow ? 'left' : 'right'", "dx": "datum.slow ? 8 : -8"}
    prices = {
        "mark": {"type": "text", **{name: {"expr": formula} for name, formula in sides.items()}},
        "encoding": {"text": {"field": "words"}},
    }
    pick = {"input": "select", "name": "card ", "options": [*speeds]}
    cards = {"name": "card", "value": card, "bind": pick}
    sliders = [
        slider("tokens", "tokens", tokens, range(64, 16_385, 64)),
        slider("columns", "width", width, range(1024, 8193, 512)),
    ]
    panels = [
        {"height": 170, "encoding": {"x": across, "y": up}, "layer": [ridge, roof, dots, words]},
        {
            "height": {"step": 20},
            "encoding": {"x": across, "y": names},
            "layer": [ridge, dots, prices],
        },
    ]
    return {
        "title": {"text": {"expr": "card + ', ' + tokens + ' tokens, width ' + columns"}},
        "params": [*sliders, cards],
        "data": {"values": [{"row": row, "name": one.name} for row, one in enumerate(_ROWS)]},
        "transform": _computed(speeds),
        "vconcat": [{"width": 520, **panel} for panel in panels],
    }
