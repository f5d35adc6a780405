"""Plans: the stages to keep, those to recompute, and their costs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tutorial_lib.instruments.planning.chain import plan_file
from tutorial_lib.instruments.planning.chain.moves import Move, Slots, Span
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.planning.chain.simulate import Simulation, simulate
from tutorial_lib.instruments.planning.chain.stages import Skip, Stage
from tutorial_lib.instruments.segments.tree import Selective, Tree, leaves
from tutorial_lib.units import human_bytes, human_seconds

_SHOWN = 40  # lines of a printed plan


@dataclass(frozen=True)
class Plan:
    """The stages of a chain to keep, and those to recompute.

    Any tree may be priced, not only one that `solve` found: `Plan(stages, ((0, 1), 2, 3))`.

    Args:
        stages: The chain.
        tree: The schedule. A number is a stage that is kept; a tuple is a segment: its input is
            kept, its stages are recomputed when their backward comes, and then its own items say
            what is kept. Each stage stands in it once, in order. `Selective(3)` in the outermost
            tuple keeps the results of stage 3's matmuls, and recomputes the rest.
        skips: What jumps over stages.
        names: Names of the stages, or none.
        budget_bytes: What it was made for, if it was.
        calls: The model's own stages, when it comes from a profile; for `apply`.
        moves: What waits on the host, if anything does.
        bytes_per_second: Speed of the link to the host, in each direction.
        least_seconds: What `solve_with_host` proved: no plan that it may find is faster.

    Raises:
        ValueError: When the tree does not have every stage once and in order.
    """

    stages: tuple[Stage, ...]
    tree: Tree
    skips: tuple[Skip, ...] = ()
    names: tuple[str, ...] = ()
    budget_bytes: int | None = None
    calls: tuple[Call, ...] = ()
    moves: tuple[Move, ...] = ()
    bytes_per_second: float = 0.0
    least_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.names and len(self.names) != len(self.stages):
            raise ValueError(f"There are {len(self.names)} names for {len(self.stages)} stages.")
        there = list(leaves(self.tree))
        if there != list(range(len(self.stages))) or Selective in map(type, there):
            simulate(self.stages, self.tree, self.skips)  # which says what is wrong

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, which is replaced, for `load` in another process.

        Raises:
            ValueError: When a stage's output has a form that no file holds; nothing is written.
        """
        plan_file.write(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` or the command `plan --save` wrote.

        Raises:
            ValueError: When the file holds no plan.
        """
        return cls(**plan_file.read(path))

    @functools.cached_property
    def simulation(self) -> Simulation:
        """The plan run on paper, event by event."""
        return simulate(self.stages, self.tree, self.skips)

    @functools.cached_property
    def slots(self) -> Slots:
        """The same, a forward and a backward for each item of the tree, with nothing moved."""
        return Slots.of(self.simulation, self.tree, self.skips, edges=not self.calls)

    @property
    def spans(self) -> list[Span]:
        """What a step does when: computing, copying out and copying in, side by side."""
        return self.slots.spans(self.moves, self.bytes_per_second)

    @property
    def seconds(self) -> float:
        """Time of forward, recomputation and backward, and of waiting for copies."""
        if not self.moves:
            return self.simulation.seconds
        return self.slots.seconds(self.moves, self.bytes_per_second)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that the chain holds on the device at once, to the byte."""
        return self.slots.peak_bytes(self.moves) if self.moves else self.simulation.peak_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes that wait on the host as backward begins."""
        return self.slots.host_bytes(self.moves) if self.moves else 0

    @property
    def forward_executions(self) -> tuple[int, ...]:
        """How often each stage's forward runs: 1 for one that is kept."""
        return self.simulation.counts

    @property
    def overhead(self) -> float:
        """Time that recomputing and waiting add, as a share of the time without any."""
        plain = sum(stage.forward_seconds + stage.backward_seconds for stage in self.stages)
        return max(0.0, self.seconds / plain - 1) if plain else 0.0

    def __str__(self) -> str:
        room = "" if self.budget_bytes is None else f" (budget {human_bytes(self.budget_bytes)})"
        runs = sum(self.forward_executions)
        host = f" and {human_bytes(self.host_bytes)} on the host" if self.moves else ""
        head = (
            f"{len(self.stages)} stages: peak {human_bytes(self.peak_bytes)}{room}{host}, "
            f"{human_seconds(self.seconds)} ({self.overhead:+.1%}), {runs} forwards"
        )
        lines = list(self._lines(self.tree, 1))
        more = [f"  and {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
        return "\n".join([head, *lines[:_SHOWN], *more])

    __repr__ = __str__

    def _lines(self, tree: Tree, depth: int) -> Iterator[str]:
        moved = {move.item for move in self.moves} if depth == 1 else set()
        marked = [(item in moved, type(one), one) for item, one in enumerate(tree)]
        for (is_moved, kind), group in itertools.groupby(marked, lambda mark: mark[:2]):
            items = tuple(one for _, _, one in group)
            waits = ", on the host" if is_moved else ""
            if kind is not tuple:
                what = "kept" if kind is int else "matmuls kept"
                yield self._line([int(leaf) for leaf in leaves(items)], depth, what + waits)
                continue
            for item in items:
                yield self._line([*leaves((item,))], depth, "segment, recomputed" + waits)
                if isinstance(item, tuple) and not all(isinstance(part, int) for part in item):
                    yield from self._lines(item, depth + 1)

    def _line(self, indices: list[int], depth: int, what: str) -> str:
        first, last = indices[0], indices[-1]
        where = f"{first}" if first == last else f"{first}-{last}"
        names = self.names[first : last + 1 : max(1, last - first)] if self.names else ()
        saved = sum(self.simulation.stages[index].saved_bytes for index in indices)
        words, does = f"{'  ' * depth}{where:<9} {what}", "holds" if "kept" in what else "drops"
        does = "moves" if "kept, on" in what else does
        return f"{words:<40} {does} {human_bytes(saved):>9}  {' to '.join(names)}".rstrip()


Evaluate = Callable[[Tree], Plan]
