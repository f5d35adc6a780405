"""All that a short chain can do, to the byte: the best time for every budget.

For each part of the chain the solver keeps every pair of bytes and extra seconds that no other
pair beats in both, with its tree. Their number grows with the chain, so this is for short ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.segments.tree import Tree


class Choice(NamedTuple):
    """A way through a part of the chain: what it needs besides its input, and its extra time."""

    needs: int
    extra: float
    tree: Tree


def choices(costs: Costs) -> list[Choice]:
    """Give the best ways through a whole chain, the most frugal first.

    Every other plan needs at least as many bytes and at least as much time as one of these.

    Source:
        Beaumont et al. (2019), Optimal checkpointing for heterogeneous chains, with a list of
        pairs in place of memory slots.
    """
    count = len(costs)
    best: dict[tuple[int, int], list[Choice]] = {}
    for start in reversed(range(count)):
        for end in range(start, count):
            found = _kept(costs, best, start, end)
            for split in range(start + 1, end + 1):
                found += _dropped(costs, best, start, split, end)
            best[start, end] = _frontier(found)
    return best[0, count - 1]


def _kept(
    costs: Costs, best: dict[tuple[int, int], list[Choice]], start: int, end: int
) -> list[Choice]:
    found = []
    for way in costs.ways(end):
        needs, extra, leaf = way.kept(start, end), float(way.extra[start]), costs.leaf(way, start)
        kept = int(way.saved[start])
        if start == end:
            found.append(Choice(needs, extra, (leaf,)))
            continue
        for rest in best[start + 1, end]:
            tree = (leaf, *rest.tree)
            found.append(Choice(max(needs, kept + rest.needs), extra + rest.extra, tree))
    return found


def _dropped(
    costs: Costs, best: dict[tuple[int, int], list[Choice]], start: int, split: int, end: int
) -> list[Choice]:
    """Drop a segment up to `split`, do the rest, then the segment again."""
    again, early = costs.again(start, split), float(costs.early[split - 1])
    if math.isinf(again):
        return []
    least, found = int(costs.dropped(start, split, end).max()), []
    for rest in best[split, end]:
        # rising needs: of the segment's own ways take the fastest that needs no more
        for inside in best[start, split - 1]:
            needs = max(least, int(costs.boundary[split]) + rest.needs, inside.needs)
            tree = (inside.tree, *rest.tree)
            # where the segment ends with one of its own, that one has its stop
            late = 0.0 if isinstance(inside.tree[-1], int) else early
            found.append(Choice(needs, again + late + rest.extra + inside.extra, tree))
    return found


def _frontier(found: list[Choice]) -> list[Choice]:
    kept: list[Choice] = []
    for choice in sorted(found, key=lambda choice: choice[:2]):
        if not kept or choice.extra < kept[-1].extra:
            kept.append(choice)
    return kept
