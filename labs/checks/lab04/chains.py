"""The chains of lab 04, drawn and judged: costs, trees as data, slips of a search."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from tutorial_lib.checks.vocabulary import Case, CheckError, Draw
from tutorial_lib.instruments.planning.chain.costs import Bytes, Costs
from tutorial_lib.instruments.planning.chain.stages import Stage
from tutorial_lib.instruments.planning.run.profile import profile
from tutorial_lib.instruments.planning.run.roofline import Speed
from tutorial_lib.instruments.segments.tree import Tree, leaves

_DEEPEST = 200  # of a tree; no case has as many stages


def draw_stages(draw: Draw, count: int) -> list[dict[str, Any]]:
    """Draw a chain in which no two stages are alike, as data.

    A stage saves little more than its input in some chains and much more in others: then other
    trees are best.
    """
    most = draw.choice([20, 60])
    stages = [
        {
            "forward_seconds": draw.randint(1, 9),
            "backward_seconds": draw.randint(2, 18),
            "input_bytes": draw.randint(2, 9),
            "saved_bytes": draw.randint(12, most),
            "forward_temporary_bytes": draw.randint(0, 6),
            "backward_temporary_bytes": draw.randint(0, 6),
        }
        for _ in range(count)
    ]
    return [*stages[:-1], {**stages[-1], "output_bytes": draw.randint(2, 9)}]


def telling(draw: Callable[[], Case], values: Callable[[Case], Iterable[Any]]) -> Case:
    """Draw until the right value of a case and those of the usual faults all differ."""
    while True:
        case = draw()
        seen: set[Any] = set()
        for value in values(case):  # asked one by one: those that take long come last
            if value in seen:
                break
            seen.add(value)
        else:
            return case


def draw_with_workspace(draw: Draw, count: int) -> list[dict[str, Any]]:
    """Draw a chain in which values that wait while a part runs again matter."""
    stages = draw_stages(draw, count)
    return [{**stage, "forward_temporary_bytes": draw.choice([0, 40])} for stage in stages]


class KeptAtTheEnd(Costs):
    """A kept stage whose part always ends with the chain: no gradient waits for it."""

    def kept(self, index: int, end: int) -> int:
        """Return the bytes that the stage needs at the chain's end."""
        return super().kept(index, len(self) - 1)


class DroppedAtTheEnd(Costs):
    """The same for dropped stages."""

    def dropped(self, start: int, stop: int, end: int) -> Bytes:
        """Return the bytes that the stages need at the chain's end."""
        return super().dropped(start, stop, len(self) - 1)


_ASKED = (
    "`{}` was asked for the end of the chain: in a part that runs again, the gradient of the "
    "part's own `end` waits."
)
AT_THE_END: dict[str, type[Costs]] = {
    _ASKED.format("kept_needs"): KeptAtTheEnd,
    _ASKED.format("dropped_needs"): DroppedAtTheEnd,
}


def in_segments(count: int, length: int) -> Tree:
    """Return the tree of segments of one length; the last, which may be shorter, is kept."""
    parts = [tuple(range(at, min(at + length, count))) for at in range(0, count, length)]
    return (*parts[:-1], *parts[-1])


def read_tree(value: Any, count: int) -> Tree:
    """Read a tree of so many stages: a nesting of tuples with each of them once, in order."""
    if not isinstance(value, list):
        raise CheckError(f"the tree should be a tuple, but is {type(value).__name__}.")
    tree = _tuples(value, _DEEPEST)
    seen = list(leaves(tree))
    if seen != list(range(count)):
        shown = f"{seen[:12]}"[:-1] + (", ...]" if len(seen) > 12 else "]")
        raise CheckError(
            f"the tree has the stages {shown}, but it needs those from 0 to {count - 1}, each once "
            "and in order: where does a part begin and end?"
        )
    return tree


def _tuples(value: list[Any], depth: int) -> Tree:
    if not depth:
        raise CheckError(
            f"the tree is nested more than {_DEEPEST} deep: each part must be shorter."
        )
    strange = [item for item in value if type(item) not in (int, list)]
    if strange:
        raise CheckError(
            f"the tree holds {type(strange[0]).__name__}: a number is a stage that is kept, a "
            "tuple is a segment, and nothing else belongs there."
        )
    return tuple(_tuples(i, depth - 1) if isinstance(i, list) else i for i in value)


def shown(tree: Tree) -> str:
    """Write a tree, or its beginning."""
    text = str(tree)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def single_trees(count: int, start: int = 0) -> Iterator[Tree]:
    """Yield each tree of the stages from `start` on without a segment inside a segment."""
    if start == count:
        yield ()
        return
    for later in single_trees(count, start + 1):
        yield (start, *later)
    for stop in range(start + 1, count):
        for later in single_trees(count, stop):
            yield (tuple(range(start, stop)), *later)


def chain_of(layers: nn.Sequential, rows: Tensor) -> list[Stage]:
    """Profile layers as a chain; seconds are predicted, so they are the same everywhere."""
    found = profile(layers, lambda: layers(rows), stages=list(layers), speed=Speed())
    *first, last = found.stages[1:-1]
    return [*first, replace(last, output_bytes=found.stages[-1].input_bytes)]


def binomial(num_stages: int, num_places: int) -> int:
    """Return the fewest forwards that a chain can be done with.

    Source:
        Griewank and Walther (2000), Algorithm 799: revolve, with each stage's own forward added.
    """
    if num_stages == 1:
        return 1
    times = next(t for t in range(num_stages) if math.comb(num_places + t, t) >= num_stages)
    return (1 + times) * num_stages - math.comb(num_places + times, times - 1)
