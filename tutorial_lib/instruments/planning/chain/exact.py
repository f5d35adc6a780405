"""The best time of a short chain for every budget, to the byte.

For each part of the chain the solver keeps every pair of bytes and extra seconds that no other
pair beats in both, with its tree. Their number grows with the chain, so this is for short ones.
"""

import math
from typing import NamedTuple

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.segments.tree import Selective, Tree


class Way(NamedTuple):
    """A way through a part of the chain: its needs besides its input, and its extra time."""

    needs: int
    extra: float
    tree: Tree


def best_ways(costs: Costs) -> list[Way]:
    """Best ways through a whole chain, the most frugal first.

    Every other plan needs at least as many bytes and at least as much time as one of these.

    Source:
        Beaumont et al. (2019), Optimal checkpointing for heterogeneous chains, with a list of
        pairs in place of memory slots.
    """
    count = len(costs)
    best: dict[tuple[int, int], list[Way]] = {}
    for start in reversed(range(count)):
        for end in range(start, count):
            found = _kept(costs, best, start, end)
            for split in range(start + 1, end + 1):
                found += _dropped(costs, best, start, split, end)
            kept = best[start, end] = list[Way]()
            for way in sorted(found, key=lambda way: way[:2]):
                if not kept or way.extra < kept[-1].extra:
                    kept.append(way)
    return best[0, count - 1]


def _kept(costs: Costs, best: dict[tuple[int, int], list[Way]], start: int, end: int) -> list[Way]:
    found = []
    for way in costs.ways(end):
        needs, extra = way.kept(start, end), float(way.extra[start])
        leaf = start if way is costs else Selective(start)
        kept = int(way.saved[start])
        if start == end:
            found.append(Way(needs, extra, (leaf,)))
            continue
        for rest in best[start + 1, end]:
            tree = (leaf, *rest.tree)
            found.append(Way(max(needs, kept + rest.needs), extra + rest.extra, tree))
    return found


def _dropped(
    costs: Costs, best: dict[tuple[int, int], list[Way]], start: int, split: int, end: int
) -> list[Way]:
    """Drop a segment up to `split`, do the rest, then recompute the segment."""
    again, early = costs.recomputed(start, split), float(costs.early[split - 1])
    input_too = int(costs.released[start])  # a segment holds it
    if math.isinf(again):
        return []
    least, found = int(costs.dropped(start, split, end).max()), []
    for rest in best[split, end]:
        # rising needs: of the segment's own ways take the fastest that needs no more
        for inside in best[start, split - 1]:
            needs = max(least, int(costs.boundary[split]) + rest.needs, inside.needs + input_too)
            tree = (inside.tree, *rest.tree)
            # where the segment ends with one of its own, that one has its stop
            late = 0.0 if isinstance(inside.tree[-1], int) else early
            found.append(Way(needs, again + late + rest.extra + inside.extra, tree))
    return found
