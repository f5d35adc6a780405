"""The best plan in which every stage is recomputed at most once, for chains of any length.

Stages are kept or lie in one segment of many; a segment is recomputed as a whole. The state is a
position in the chain and the bytes that are left there, in slots.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.segments.tree import Tree


def best_single(costs: Costs, budget: int, num_slots: int) -> Tree | None:
    """Find the fastest plan without nested segments that fits; None when nothing of the kind does.

    The budget is in bytes besides the input of the first stage; they are rounded up to slots.
    """
    table = SingleTable(costs, budget, num_slots)
    slots = table.num_slots
    return table.tree(slots) if np.isfinite(table.extra[0, slots]) else None


class SingleTable:
    """`extra[start][slots]`: least extra seconds from a stage on, with so many slots left.

    With a segment from `start` to `stop` the extra time is that of `stop`, and the forwards
    between. So `after[stop]` holds the time from `stop` on plus all forwards before it: only a
    minimum is left to take, over those parts of the rows where the segment fits.

    Rounded `down`, its times are no more than those of any plan of the kind.
    """

    def __init__(self, costs: Costs, budget: int, num_slots: int, *, down: bool = False) -> None:
        self.costs, self.num_slots = costs, min(num_slots, budget)
        self.round = np.floor if down else np.ceil
        count, num_slots = len(costs), self.num_slots
        self.slot = max(1.0, budget / max(1, num_slots))
        again = np.where(np.isinf(costs.forward), 0.0, costs.forward)
        self.before = np.concatenate([[0.0], again.cumsum()])
        barred = np.flatnonzero(np.isinf(costs.forward))
        self.barrier = [int(min(barred[barred >= i], default=count)) for i in range(count)]
        self.extra = np.full((count + 1, num_slots + 1), np.inf, np.float32)
        self.extra[count] = 0.0
        self.after = np.full((count, num_slots + 1), np.inf, np.float32)
        for start in reversed(range(count)):
            self._add(start)

    def tree(self, slots: int) -> Tree:
        """Return the best plan for so many slots; there must be one."""
        return self.costs.tree(self._choice, len(self.costs) - 1, slots, self.slots_of)

    def _add(self, start: int) -> None:
        """Fill the row of a stage; those of all later stages are there."""
        row = self.extra[start]
        for _, first, times in self._kept(start):
            np.minimum(row[first:], times, out=row[first:])
        for stop, need in enumerate(self._shortest(start), start + 1):
            part = row[need:]
            np.minimum(part, self.after[stop, need:] - np.float32(self.before[start]), out=part)
        if start:
            cost = self.slots_of(int(self.costs.boundary[start]))
            if cost <= self.num_slots:
                held = row[: self.num_slots + 1 - cost]
                stop_there = self.before[start] - self.costs.early[start - 1]
                self.after[start, cost:] = held + np.float32(stop_there)

    def _choice(self, start: int, end: int, slots: int) -> Costs | int:
        """Return the best way to keep a stage, or the stage after the best segment."""
        if end + 1 < len(self.costs):
            return self.costs  # all of a segment is kept
        best = np.inf
        found: Costs | int | None = None
        for way, first, times in self._kept(start):
            if first <= slots and times[slots - first] < best:
                best, found = times[slots - first], way
        needs = np.array(self._shortest(start), np.int64)
        values = self.after[start + 1 : start + 1 + len(needs), slots]
        values = np.where(needs <= slots, values - np.float32(self.before[start]), np.inf)
        if values.min(initial=np.inf) < best:
            found = start + 1 + int(values.argmin())
        assert found is not None
        return found

    def _kept(self, start: int) -> Iterator[tuple[Costs, int, NDArray[np.float32]]]:
        """Yield each way to keep a stage, the fewest slots for it, and times from there."""
        count = len(self.costs)
        for way in self.costs.ways(count - 1):
            kept = self.slots_of(int(way.saved[start])) if start + 1 < count else 0
            first = max(kept, self.slots_of(way.kept(start, count - 1)))
            if first <= self.num_slots:
                slots = np.arange(first, self.num_slots + 1) - kept  # more than all are none more
                rest = self.extra[start + 1, np.minimum(slots, self.num_slots)]
                yield way, first, rest + np.float32(way.extra[start])

    def _shortest(self, start: int) -> list[int]:
        """Slots that a segment from `start` needs, for each place where it may end."""
        costs, stops = self.costs, self.barrier[start]
        last = min(stops, len(costs) - 1)
        if last <= start:
            return []
        within = slice(start, last)
        held = np.concatenate([[0], costs.saved[within].cumsum()[:-1]])
        first = np.maximum.accumulate(costs.dropped(start, last, len(costs) - 1))
        before = np.maximum.accumulate(held + costs.keep[within])  # the last one stops early
        before = np.concatenate([[0], before[:-1]])
        held += costs.released[start]  # the segment holds its input
        again = np.maximum(before + costs.released[start], held + costs.stop[within])
        again += costs.waiting[within]
        back = np.maximum.accumulate(held + costs.back[within])
        needs = np.maximum(np.maximum(first, again), back)
        slots = self.round(needs / self.slot).astype(np.int64)
        # later ends need about as much or more: nothing beyond the last that fits
        fits = np.flatnonzero(slots <= self.num_slots)
        return slots[: fits[-1] + 1].tolist() if len(fits) else []

    def slots_of(self, num_bytes: int) -> int:
        """Return the slots of so many bytes, rounded."""
        return int(self.round(num_bytes / self.slot))
