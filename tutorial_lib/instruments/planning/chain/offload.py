"""Find the fastest plan that may keep, recompute, or move to the host."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from tutorial_lib.instruments.planning.chain.costs import Costs, Seconds
from tutorial_lib.instruments.planning.chain.floor import Floor
from tutorial_lib.instruments.planning.chain.host import Host
from tutorial_lib.instruments.planning.chain.plan import Evaluate, Plan
from tutorial_lib.instruments.planning.chain.profiled import Profile
from tutorial_lib.instruments.planning.chain.single import SingleTable
from tutorial_lib.instruments.planning.chain.solve import MIDDLE, SHORT, solve, taken
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.segments.tree import Selective, Tree, leaves
from tutorial_lib.units import human_bytes

_SLOTS = 16_000  # of the table for long chains
_TRIES = 6  # budgets that are tried at L = 1000, twice; of shorter chains more
_PASSES = 4  # over the stages of a chain that isn't longer than `MIDDLE`
_SPREAD = 1e-3  # of a stage's time
_FLOAT32 = 1 - 1e-4  # the table's times are sums of so many


def solve_with_host(
    stages: Sequence[Stage] | Profile,
    *,
    budget_bytes: int,
    host: Host,
    skips: Sequence[Skip] = (),
    stay: Collection[int | str] = (),
) -> Plan:
    """Find the fastest plan whose peak fits a budget, where some of it may wait on a host.

    Up to ten stages it's the optimum of two kinds of plan: those that move nothing, however their
    segments are nested, and those that move what they like, with no segment in another one. For
    longer chains `least_seconds` of the plan says what no plan of the second kind gets below.

    Args:
        stages: The chain, first to last; or a profile, which knows skips and names too.
        budget_bytes: As for `solve`, on the device.
        host: Where tensors may wait.
        skips: What jumps over stages. It stays on the device.
        stay: Stages that leave nothing on the host, by index or name. Nothing moves where the loss
            of a profile calls its model several times.

    Raises:
        ValueError: When no plan fits, or a stage that is named isn't there.
    """
    search = _Search.of(stages, skips, int(budget_bytes), host, stay)
    if host.takes_all:
        plan = search.squeezed(tuple(range(len(search.costs))))
        if plan.peak_bytes <= budget_bytes:
            return search.moved(plan, [move.item for move in plan.moves])
    else:
        with contextlib.suppress(ValueError):
            search.best = solve(stages, budget_bytes=budget_bytes, skips=skips)
        if len(search.costs) <= SHORT:
            search.all()
        elif search.best is None or search.best.overhead > 0:
            search.long()
    if search.best is None and (least := search.smallest()).peak_bytes <= budget_bytes:
        search.best = least
    if search.best is None:
        raise ValueError(
            f"budget_bytes (={budget_bytes}, {human_bytes(budget_bytes)}) is too small for these "
            f"{len(search.costs)} stages, with a host too. They need {least.peak_bytes} bytes "
            f"({human_bytes(least.peak_bytes, up=True)}). Try that, a larger host, or a smaller "
            "micro-batch."
        )
    return search.best


def smallest_with_host(stages: Sequence[Stage] | Profile, host: Host) -> Plan:
    """Return a plan for a budget that is enough, however much it recomputes and waits."""
    return _Search.of(stages, (), 0, host, ()).smallest()


@dataclass
class _Search:
    """The best plan so far, and what may be better."""

    costs: Costs
    evaluate: Evaluate
    budget: int
    host: Host
    staying: AbstractSet[int | str]
    best: Plan | None = None

    @classmethod
    def of(
        cls,
        stages: Sequence[Stage] | Profile,
        skips: Sequence[Skip],
        budget: int,
        host: Host,
        stay: Collection[int | str],
    ) -> _Search:
        """Look at a chain or a profile; refuse a stage to stay that isn't there."""
        chain, skips, evaluate = taken(stages, skips, budget)
        names = stages.names if isinstance(stages, Profile) else ()
        if unknown := set(stay) - {*range(len(chain)), *names}:
            raise ValueError(f"stay names {sorted(map(str, unknown))}, but no stage has that name.")
        staying = {n for n, name in enumerate(names) if name in stay} | {*stay}
        if isinstance(stages, Profile) and any(call.is_between for call in stages.calls):
            staying = {*range(len(chain))}
        return cls(Costs.of(chain, skips), evaluate, budget, host, staying)

    def smallest(self) -> Plan:
        """Return the plan with the smallest peak of three: two move all that may to the host."""
        found = [self.squeezed(tuple(range(len(self.costs))))]
        if not self.host.takes_all:
            found += [self.squeezed(self._each()), self.evaluate(Floor(self.costs).tree())]
        return min(found, key=lambda plan: plan.peak_bytes)

    def squeezed(self, tree: Tree) -> Plan:
        """Move all of a tree that may move and has room, within the smallest budget."""
        plan = self.evaluate(tree)
        room = float("inf") if self.host.num_bytes is None else self.host.num_bytes
        items = []
        for item in self._movable(plan):
            if plan.slots.movable[item] <= room:
                items.append(item)
                room -= plan.slots.movable[item]
        enough = bisect.bisect_left(
            range(plan.peak_bytes), True, key=lambda n: plan.slots.schedule(items, n) is not None
        )
        return self.moved(plan, items, enough)

    def moved(self, plan: Plan, items: Sequence[int], budget: int | None = None) -> Plan:
        """Return a plan with these items on the host; the budget, or another one, is enough."""
        moves = plan.slots.schedule(items, self.budget if budget is None else budget) or ()
        return replace(plan, moves=tuple(moves), bytes_per_second=self.host.bytes_per_second)

    def _each(self) -> Tree:
        """Recompute each stage by itself, where it can run again."""
        again = np.isfinite(self.costs.forward)
        again[-1] = False
        return tuple((n,) if may else n for n, may in enumerate(again.tolist()))

    def all(self) -> None:
        """Try every tree without nested segments, the fastest first, and all that it may move."""
        for extra, tree in sorted(_trees(self.costs, 0), key=lambda pair: pair[0]):
            if best := self.best:
                kept = sum(s.forward_seconds + s.backward_seconds for s in best.stages)
                if extra >= best.seconds - kept:
                    return
            plan = self.evaluate(tree)
            movable = self._movable(plan)
            if plan.slots.schedule(movable, self.budget) is None:
                continue  # what is on the host never makes another step larger
            for count in range(1, len(movable) + 1):
                for items in itertools.combinations(movable, count):
                    self._offer(plan, items)

    def long(self) -> None:
        """Try the trees that a larger device would take, with the excess on the host."""
        spare, costs = self.budget - int(self.costs.boundary[0]), self.costs  # the chain's input
        if spare < 1:
            return
        # Of equal stages, take those to recompute from all over the chain: copies then keep up.
        spread = 1 - _SPREAD * (np.arange(1, len(costs) + 1) * (5**0.5 - 1) / 2 % 1)
        table = SingleTable(
            replace(costs, forward=costs.forward * spread), spare + self._most(), _SLOTS, down=True
        )
        least = self._least_seconds(table, spare)
        first, last = int(spare / table.slot), table.num_slots
        tries = max(_TRIES, 2_000 // len(costs))
        tried, step = dict[int, float](), max(1, (last - first) // (4 * tries))
        levels = [*range(first, last + 1, step)]
        for _ in range(2):  # from far apart, then around the best
            for slots in sorted(levels, key=lambda slots: least[slots])[:tries]:
                if self.best is not None and least[slots] >= self.best.seconds:
                    break
                if slots not in tried and np.isfinite(least[slots]):
                    tried[slots] = self._offer_first(self.evaluate(table.tree(slots)))
            if not tried:
                break
            best = min(tried, key=lambda slots: (tried[slots], slots))
            near = range(best - step, best + step + 1, max(1, 2 * step // tries))
            levels = [slots for slots in near if first <= slots <= last]
        if len(costs) <= MIDDLE:
            self._near()
        if self.best is not None:
            self.best = replace(self.best, least_seconds=min(least.min(), self.best.seconds))

    def _near(self) -> None:
        """Recompute each stage by itself, or let one change at a time make the best one better."""
        each = self._each()
        self._offer_first(self.evaluate(each))
        for _ in range(_PASSES if self.best else 0):
            assert self.best is not None
            before = self.best.seconds
            for place, item in enumerate(self.best.tree):
                tree = self.best.tree
                single = [*leaves((item,))]
                if tree[place] == item and len(single) == 1 and each[single[0]] != single[0]:
                    other = int(single[0]) if isinstance(item, tuple) else (int(item),)
                    self._offer_first(self.evaluate((*tree[:place], other, *tree[place + 1 :])))
            if self.best.seconds >= before:
                break

    def _movable(self, plan: Plan) -> list[int]:
        """List the items of a tree that may move."""
        return [
            item
            for item, size in enumerate(plan.slots.movable)
            if size and self.staying.isdisjoint(leaves((plan.tree[item],)))
        ]

    def _most(self) -> int:
        """Return the most bytes that are worth moving: each goes out and back."""
        most = float(self.costs.saved.clip(0).sum())
        if self.host.num_bytes is not None:
            most = min(most, self.host.num_bytes)
        if self.best is not None:
            most = min(most, self.host.bytes_per_second * self.best.seconds / 2)
        return int(most)

    def _offer_first(self, plan: Plan) -> float:
        """Move the fewest of a tree's items, from the first one on, that make it fit."""
        slots = plan.slots
        movable = self._movable(plan)
        counts = range(len(movable) + 1)
        fewest = bisect.bisect_left(
            counts, True, key=lambda n: slots.schedule(movable[:n], self.budget) is not None
        )
        return self._offer(plan, movable[:fewest]) if fewest in counts else np.inf

    def _offer(self, plan: Plan, items: Sequence[int]) -> float:
        """Take a tree with these items moved, where that fits and is the fastest so far."""
        moves, room = plan.slots.schedule(items, self.budget), self.host.num_bytes
        if moves is None or (room is not None and plan.slots.host_bytes(moves) > room):
            return np.inf
        seconds = plan.slots.seconds(moves, self.host.bytes_per_second)
        if self.best is None or seconds < self.best.seconds:
            self.best = replace(
                plan, moves=tuple(moves), bytes_per_second=self.host.bytes_per_second
            )
        return seconds

    def _least_seconds(self, table: SingleTable, spare: int) -> Seconds:
        """Return for each number of slots a time that no plan of that kind gets below.

        Without a host, a tree that moves M bytes fits into M bytes more, and the table says how
        fast that may be. All M go out before the last stage's forward, and back after its backward.
        """
        stages = self.evaluate(tuple(range(len(self.costs)))).stages
        before = sum(stage.forward_seconds for stage in stages[:-1])
        both = stages[-1].forward_seconds + stages[-1].backward_seconds
        plain = before + both + sum(stage.backward_seconds for stage in stages[:-1])
        busy = plain + table.extra[0].astype(np.float64) * _FLOAT32
        moved = np.maximum(0, np.arange(len(busy)) * table.slot - spare)
        copying = moved / self.host.bytes_per_second
        out, back = np.maximum(before, copying), np.maximum(busy - before - both, copying)
        least: Seconds = out + both + back
        least[: int(spare / table.slot)] = np.inf
        return least


def _trees(costs: Costs, start: int) -> Iterator[tuple[float, Tree]]:
    """Yield the trees of the stages from one on that nest no segment, and their extra seconds."""
    count = len(costs)
    if start == count:
        yield 0.0, ()
        return
    for extra, rest in _trees(costs, start + 1):
        yield extra, (start, *rest)
        way = costs.selective
        if way is not None and way.saved[start] < costs.saved[start]:
            yield extra + float(way.extra[start]), (Selective(start), *rest)
    for stop in range(start + 1, count):  # the last stage is kept: its backward comes at once
        again = costs.recomputed(start, stop)
        if np.isfinite(again):
            for extra, rest in _trees(costs, stop):
                yield extra + again, (tuple(range(start, stop)), *rest)
