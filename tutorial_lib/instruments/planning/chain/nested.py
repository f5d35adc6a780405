"""Plans with segments inside segments, for budgets that no single recomputation reaches.

Stages that are alike make parts of the chain that are alike, and each is solved once: a chain of a
thousand equal layers takes seconds. Bytes are rounded to the nearest slot, so what the table says
is checked by whoever reads it.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from tutorial_lib.instruments.planning.chain.costs import Costs
from tutorial_lib.instruments.planning.chain.plan import Evaluate, Plan
from tutorial_lib.instruments.segments.tree import Tree

# A chain that would take longer than so many splits is cut into so many groups first.
MOST_SPLITS, GROUPS = 5_000_000, 300
NUM_SLOTS = 500

Row = NDArray[np.float32]
Part = tuple[int, int]


def best_nested(costs: Costs, budget: int, evaluate: Evaluate) -> Plan | None:
    """Read nested plans off one table, the fastest first, until one really fits.

    The budget is in bytes; `None` when nothing of the kind fits.
    """
    # differences of sums are equal but for last digits, which would tell equal stages apart
    costs = replace(costs, forward=costs.forward.round(13), early=costs.early.round(13))
    groups = [[index] for index in range(len(costs))]
    way = costs.selective
    alike = [True] * len(costs) if way is None else (way.saved >= costs.saved).tolist()
    if parts_to_solve(costs) > MOST_SPLITS:
        groups = [part.tolist() for part in np.array_split(np.arange(len(costs)), GROUPS)]
        costs = costs.grouped(groups)
    table = NestedTable(costs, budget - int(costs.boundary[0]), NUM_SLOTS)
    levels, best = table.levels(), None
    low, high = 0, len(levels) - 1
    while low <= high:
        middle = (low + high + 1) // 2
        plan = evaluate(_ungrouped(table.read(levels[middle]), groups, alike))
        if plan.peak_bytes <= budget:
            best, low = plan, middle + 1
        else:
            high = middle - 1
    return best


def _ungrouped(tree: Tree, groups: Sequence[Sequence[int]], alike: Sequence[bool]) -> Tree:
    """Put the stages of each group in its place; `alike` are those with no selective form."""
    items: list[int | Tree] = []
    for item in tree:
        if isinstance(item, int):
            kind = type(item)
            items += (stage if alike[stage] else kind(stage) for stage in groups[item])
        else:
            items.append(_ungrouped(item, groups, alike))
    return tuple(items)


class NestedTable:
    """Least extra seconds of every part of the chain, for every number of slots.

    The last slot stands for the budget: bytes besides the input of the first stage.

    Source:
        Beaumont et al. (2019), Optimal checkpointing for heterogeneous chains; no table of choices
        is kept, since they can be found again from the times.
    """

    def __init__(self, costs: Costs, budget: int, num_slots: int) -> None:
        self.costs = costs
        self.num_slots = min(num_slots, max(1, budget))
        self.slot = max(1, budget) / self.num_slots
        self.run_end = _run_ends(costs)
        may_repeat = np.isfinite(costs.forward)
        self.before = np.concatenate([[0.0], np.cumsum(np.where(may_repeat, costs.forward, 0.0))])
        # parts that are alike have one number, and one row of each table; the shortest come first
        count, parts = len(costs), dict[Part, int]()
        self.number = np.zeros((count, count), np.int32)
        for length in range(count):
            for start in range(count - length):
                part = self.canonical(start, start + length)
                self.number[start, start + length] = parts.setdefault(part, len(parts))
        self.rows = np.full((len(parts), self.num_slots + 1), np.inf, np.float32)
        self.after = self.rows.copy()  # the same times, by the slots with the input held too
        for (start, end), number in parts.items():
            row = self.rows[number] = self._row(start, end)
            held = min(self._slots_of(costs.boundary[start]), len(row))
            self.after[number, held:] = row[: len(row) - held]

    def canonical(self, start: int, end: int) -> Part:
        """Part that stands for all that are alike: the last one in a run of equals."""
        shift = self.run_end[end] - end if self.run_end[start] == self.run_end[end] else 0
        return start + shift, end + shift

    def levels(self) -> list[int]:
        """List the numbers of slots at which the whole chain gets faster, fewest first."""
        times = self.rows[self.number[0, -1]]
        falls = np.flatnonzero(times[1:] < times[:-1]) + 1
        return ([0] if np.isfinite(times[0]) else []) + [int(slots) for slots in falls]

    def read(self, slots: int) -> Tree:
        """Write down the best plan for the whole chain and so many slots."""
        return self.costs.tree(self._choice, len(self.costs) - 1, slots, self._slots_of)

    def _choice(self, start: int, end: int, slots: int) -> Costs | int:
        target = self.rows[self.number[start, end], slots]
        for way in self.costs.ways(end):
            if self._kept(way, start, end)[slots] <= target:
                return way
        return start + 1 + int(np.argmin(self._splits(start, end)[:, slots]))

    def _row(self, start: int, end: int) -> Row:
        rows = [self._kept(way, start, end) for way in self.costs.ways(end)]
        row = np.minimum(rows[0], rows[-1])
        splits = self._splits(start, end)
        return np.minimum(row, splits.min(0)) if len(splits) else row

    def _kept(self, way: Costs, start: int, end: int) -> Row:
        first = self._slots_of(way.kept(start, end))
        row = np.full(self.num_slots + 1, np.inf, np.float32)
        extra = np.float32(way.extra[start])
        if start == end:
            row[first:] = extra
            return row
        kept = self._slots_of(way.saved[start])
        first = max(first, kept)
        if first <= self.num_slots:
            slots = np.arange(first, self.num_slots + 1) - kept  # more than all are none more
            rest = self.rows[self.number[start + 1, end], np.minimum(slots, self.num_slots)]
            row[first:] = rest + extra
        return row

    def _splits(self, start: int, end: int) -> Row:
        """Row of times, by slots, for each place to split at."""
        costs = self.costs
        dropped = np.maximum.accumulate(costs.dropped(start, end, end))
        peaks = np.rint(dropped / self.slot).astype(np.int64)
        barred = np.flatnonzero((peaks > self.num_slots) | np.isinf(costs.forward[start:end]))
        last = start + int(barred[0]) if len(barred) else end
        stops = slice(start + 1, last + 1)
        inside = self.rows[self.number[start, start:last]]
        # a segment holds its input, and a kept stage does not
        input_too = min(self._slots_of(costs.released[start]), self.num_slots + 1)
        times: Row = np.full_like(inside, np.inf)
        times[:, input_too:] = inside[:, : self.num_slots + 1 - input_too]
        times += self.after[self.number[stops, end]]
        again = self.before[stops] - self.before[start] - costs.early[start:last]
        times += again.astype(np.float32)[:, None]
        for row, peak in zip(times, peaks.tolist(), strict=False):
            row[:peak] = np.inf
        return times

    def _slots_of(self, num_bytes: int) -> int:
        return round(num_bytes / self.slot)


def parts_to_solve(costs: Costs) -> int:
    """Count the splits that a table has to look at: its work."""
    ends = _run_ends(costs)
    work = 0
    for end in range(len(costs)):
        first = min((s for s in range(end + 1) if ends[s] == ends[end]), default=end)
        alike = 0 if end == ends[end] else end + 1 - first  # solved with the end of the run
        lengths = np.arange(end + 1, 0, -1)
        work += int(lengths[: end + 1 - alike].sum())
    return work


def _run_ends(costs: Costs) -> list[int]:
    """Say for each stage where its run of equal stages ends."""
    kept_apart = ("extra", "selective")  # of the last part alone, which is like no other
    names = [field.name for field in fields(costs) if field.name not in kept_apart]
    kinds = list(zip(*(getattr(costs, name) for name in names), strict=True))
    ends = list(range(len(kinds)))
    for index in reversed(range(len(kinds) - 2)):  # the last stage ends the first forward
        if kinds[index] == kinds[index + 1]:
            ends[index] = ends[index + 1]
    return ends
