"""The smallest peak that any plan has, and a plan that has it."""

import numpy as np
from numpy.typing import NDArray

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.segments.tree import Tree

_NEVER = np.iinfo(np.int64).max // 4


class Floor:
    """The fewest bytes that each part of the chain can do with, to the byte."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        count = len(costs)
        # twice, so that a row and a column both lie together in memory
        self.by_start = np.zeros((count, count), np.int64)
        self.by_end = np.zeros((count, count), np.int64)
        for end in range(count):
            for start in range(end, -1, -1):
                needs = min(self._kept(start, end), self._dropped(start, end).min(initial=_NEVER))
                self.by_start[start, end] = self.by_end[end, start] = needs

    @property
    def num_bytes(self) -> int:
        """The smallest peak, without the input of the first stage."""
        return int(self.by_start[0, -1])

    def tree(self) -> Tree:
        """Plan with that peak."""
        return self.costs.tree(self._choice, len(self.costs) - 1, self.num_bytes)

    def _choice(self, start: int, end: int, allowed: int) -> Costs | int:
        way = min(self.costs.ways(end), key=lambda way: self._kept_as(way, start, end))
        if self._kept_as(way, start, end) <= allowed:
            return way
        return start + 1 + int(np.flatnonzero(self._dropped(start, end) <= allowed)[0])

    def _kept(self, start: int, end: int) -> int:
        return min(self._kept_as(way, start, end) for way in self.costs.ways(end))

    def _kept_as(self, way: Costs, start: int, end: int) -> int:
        needs = way.kept(start, end)
        if start == end:
            return needs
        return max(needs, int(way.saved[start] + self.by_end[end, start + 1]))

    def _dropped(self, start: int, end: int) -> NDArray[np.int64]:
        """Bytes for each place to split a part at."""
        costs, stops = self.costs, slice(start + 1, end + 1)
        running = costs.dropped(start, end, end)
        running[np.isinf(costs.forward[start:end])] = _NEVER
        rest = costs.boundary[stops] + self.by_end[end, stops]
        inside = self.by_start[start, start:end] + int(costs.released[start])
        needs: NDArray[np.int64] = np.maximum(np.maximum.accumulate(running), rest)
        return np.maximum(needs, inside)
