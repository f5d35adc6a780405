"""What waits on the host: when it leaves the device, when it comes back, and what that costs.

A step by a tree has two slots an item: its forward, and its backward with all that is recomputed in
it. What an item leaves for backward (a kept stage its saved tensors, a segment its output) can wait
on the host, as one. The next item reads it too, so it's away from the forward after that one at the
earliest, and back with the backward of the next item at the latest. Which slots it's away for is
part of the plan. So bytes don't depend on how fast the link is; the seconds do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tutorial_lib.instruments.planning.chain.simulate import Simulation
from tutorial_lib.instruments.planning.chain.stages import Skip, outputs
from tutorial_lib.instruments.segments.tree import Selective, Tree, leaves


@dataclass(frozen=True)
class Move:
    """One item's leavings on the host for a while."""

    item: int  # its place in the tree
    leaves: int  # the item before whose forward the copy out has ended, and its memory is free
    returns: int  # the item as whose backward begins the copy back begins, in memory of its own


@dataclass(frozen=True)
class Span:
    """Something that a lane of a step does for a time."""

    kind: Literal["forward", "backward", "out", "in"]
    item: int
    start: float  # seconds since the step began
    end: float


@dataclass(frozen=True)
class Slots:
    """A step by a tree, in two slots an item: what each holds when nothing moves, and takes."""

    forward_held: Sequence[int]  # most bytes held in each item's forward
    backward_held: Sequence[int]  # and in its backward
    forward_seconds: Sequence[float]
    backward_seconds: Sequence[float]  # recomputation included
    movable: Sequence[int]  # bytes that each item leaves and that may move; 0 where none may

    @classmethod
    def of(
        cls, ran: Simulation, tree: Tree, skips: Sequence[Skip] = (), *, edges: bool = False
    ) -> Slots:
        """Add up the events of a plan that was simulated with nothing moved; skips don't move.

        With `edges` the first item's leavings may move too. In a profile that's what the model does
        before its first stage, where no plan reaches.
        """
        item_of = {stage: n for n, item in enumerate(tree) for stage in leaves((item,))}
        held = [[0] * len(tree), [0] * len(tree)]
        seconds = [[0.0] * len(tree), [0.0] * len(tree)]
        for event, lasts in zip(ran.events, ran.durations, strict=True):
            way, item = int(event.kind != "forward"), item_of[event.stage]
            held[way][item] = max(held[way][item], event.held_bytes)
            seconds[way][item] += lasts
        last = len(tree) - 3  # what later items leave is needed at once
        movable = [
            size if n <= last and (n or edges) else 0
            for n, size in enumerate(_left(ran, tree, skips))
        ]
        (forward, backward), (forward_seconds, backward_seconds) = held, seconds
        return cls(forward, backward, forward_seconds, backward_seconds, movable)

    def peak_bytes(self, moves: Sequence[Move]) -> int:
        """Return the most bytes that the device holds at once."""
        last = len(self.movable) - 1
        held = [*self.forward_held, *self.backward_held[::-1]]
        for move in moves:
            for slot in range(move.leaves, 2 * last + 1 - move.returns):
                held[slot] -= self.movable[move.item]
        return max(held)

    def host_bytes(self, moves: Sequence[Move]) -> int:
        """Return the bytes on the host, all of which are there as backward begins."""
        return sum(self.movable[move.item] for move in moves)

    def schedule(self, items: Collection[int], budget: int) -> list[Move] | None:
        """Say when each of these items leaves and returns, so that the device's peak fits.

        Each copy is waited for as late as the budget allows, and comes back as early. Copies go in
        the order of the forward, and come back in that of the backward.

        Returns:
            The moves, by item; `None` where the peak is above the budget all the same.
        """
        count, size = len(self.movable), self.movable
        chosen = sorted(item for item in items if size[item])
        left = dict.fromkeys(chosen, count - 1)  # all are away as the last item begins
        gone, away = 0, 0
        for slot in range(count):
            while self.forward_held[slot] - away > budget:
                if gone == len(chosen) or chosen[gone] > slot - 2:
                    return None
                left[chosen[gone]] = slot
                away, gone = away + size[chosen[gone]], gone + 1
        # what each backward leaves free while all that it holds of the chosen ones is away
        before = np.array([size[n] if n in left else 0 for n in range(count)]).cumsum()
        free = budget - np.array(self.backward_held) + before
        back, first = dict[int, int](), count - 2
        for item in reversed(chosen):
            full = np.flatnonzero(free[item + 2 : first + 1] < size[item])
            begins = item + 1 + int(full[0]) if len(full) else max(first, item + 1)
            first = back[item] = begins  # the next one comes back no earlier than this one
            free[item : begins + 1] -= size[item]
        moves = [Move(item, left[item], back[item]) for item in chosen]
        return moves if free.min() >= 0 else None

    def spans(self, moves: Sequence[Move], bytes_per_second: float) -> list[Span]:
        """Run a step on paper: one engine copies out, one in, both beside the computation.

        Returns:
            What is done, in the order in which it begins in each lane; the last one that computes
            ends the step.
        """
        count, now, free = len(self.movable), 0.0, 0.0
        by_item = {move.item: move for move in moves}
        ends, spans = dict[int, float](), list[Span]()

        def copy(kind: Literal["out", "in"], item: int, start: float) -> float:
            end = start + self.movable[item] / bytes_per_second
            spans.append(Span(kind, item, start, end))
            return end

        for item in range(count):
            waits = [ends[move.item] for move in moves if move.leaves == item]
            start = max([now, *waits])
            now = start + self.forward_seconds[item]
            spans.append(Span("forward", item, start, now))
            if item in by_item:
                ends[item] = free = copy("out", item, max(now, free))
        free = 0.0
        order = sorted(moves, key=lambda move: -move.item)
        for item in reversed(range(count)):
            for move in order:
                if move.returns == item:
                    ends[move.item] = free = copy("in", move.item, max(now, free))
            start = max(now, ends[item - 1]) if item - 1 in by_item else now
            now = start + self.backward_seconds[item]
            spans.append(Span("backward", item, start, now))
        return spans

    def seconds(self, moves: Sequence[Move], bytes_per_second: float) -> float:
        """Return the time of a step."""
        if not moves:  # a step that waits for no copy
            return sum(self.forward_seconds) + sum(self.backward_seconds)
        return self.spans(moves, bytes_per_second)[-1].end


def _left(ran: Simulation, tree: Tree, skips: Sequence[Skip]) -> list[int]:
    """Return the bytes that each item leaves for backward once the next one has run."""
    made, found = outputs(ran.stages), []
    lasts = [list(leaves((item,)))[-1] for item in tree]
    for item, last, after in zip(tree, lasts, [*tree[1:], ()], strict=True):
        mine = [skip for skip in skips if skip.source == last]
        handed = ran.stages[last + 1].released_bytes if isinstance(after, int) else 0
        if isinstance(item, Selective):
            found.append(0)  # what a selective checkpoint stores passes hooks by
        elif isinstance(item, int):
            pinned = sum(skip.num_bytes for skip in mine)
            found.append(ran.stages[last].saved_bytes - pinned - handed)
        else:
            shared = sum(skip.num_bytes for skip in mine if skip.is_boundary)
            found.append(made[last] - shared - handed)
    return [max(0, size) for size in found]
