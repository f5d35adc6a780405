"""Run a plan on paper: every forward, every backward, and the bytes held meanwhile.

It knows nothing of the solver: it walks the tree as PyTorch's nested checkpoints do, and adds up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tutorial_lib.instruments.planning.chain.stages import Skip, Stage, check_chain, outputs
from tutorial_lib.instruments.segments.tree import Selective, Tree, leaves


@dataclass(frozen=True)
class Event:
    """One stage's forward or backward, in the order of a step."""

    # `forward` is the first time that a stage runs, `recompute` every further one
    kind: Literal["forward", "recompute", "backward"]
    stage: int  # its index
    keeps: bool  # whether a forward keeps what the backward needs
    held_bytes: int  # most bytes held while it runs


@dataclass(frozen=True)
class Simulation:
    """What a plan costs: its events, in order, and what follows from them."""

    stages: tuple[Stage, ...]
    events: tuple[Event, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once."""
        return max(event.held_bytes for event in self.events)

    @property
    def durations(self) -> list[float]:
        """Time of each event, less what PyTorch's early stop leaves out."""
        found = []
        for now, then in zip(self.events, [*self.events[1:], None], strict=True):
            stage = self.stages[now.stage]
            ends = now.kind == "recompute" and now.keeps and then and then.kind == "backward"
            early = stage.early_stop_seconds if ends else 0.0  # the last one of its segment
            is_back = now.kind == "backward"
            found.append(stage.backward_seconds if is_back else stage.forward_seconds - early)
        return found

    @property
    def seconds(self) -> float:
        """Time of all forwards and backwards."""
        return math.fsum(self.durations)

    @property
    def counts(self) -> tuple[int, ...]:
        """How often each stage's forward runs."""
        runs = [event.stage for event in self.events if event.kind != "backward"]
        return tuple(runs.count(index) for index in range(len(self.stages)))


def simulate(stages: Sequence[Stage], tree: Tree, skips: Sequence[Skip] = ()) -> Simulation:
    """Walk through a plan and count its bytes and seconds.

    Args:
        stages: The chain.
        tree: As in `Plan.tree`: each stage once, in order.
        skips: What jumps over stages.

    Returns:
        The events, with peak, time and number of executions.

    Raises:
        ValueError: When the tree does not have every stage once and in order, or keeps one
            selectively that lies in a segment or was not profiled so.
    """
    check_chain(stages, skips)
    if list(leaves(tree)) != list(range(len(stages))):
        raise ValueError(
            f"The tree has the stages {list(leaves(tree))}; each from 0 to {len(stages) - 1} is "
            "needed, once and in order."
        )
    as_run = list(stages)
    for index in (leaf for leaf in leaves(tree) if isinstance(leaf, Selective)):
        form = stages[index].selective
        if form is None or not any(item is index for item in tree):
            raise ValueError(
                f"Stage {int(index)} cannot be kept selectively: it is in a segment, or has no "
                "selective form. Profile with selective=True."
            )
        as_run[index] = replace(form, gradient_bytes=stages[index].gradient_bytes)
    released = [*(stage.released_bytes for stage in stages), 0]
    held = _as_held(skips, tree)
    machine = _Machine(tuple(as_run), held, outputs(stages), released)
    machine.hold("input", 0, stages[0].input_bytes)
    machine.run(tree, first=True)
    return Simulation(tuple(as_run), tuple(machine.events))


def _as_held(skips: Sequence[Skip], tree: Tree) -> tuple[Skip, ...]:
    """Return skips as saved until the backward of those that take them and are recomputed."""
    again = [[*leaves((item,))] for item in tree if isinstance(item, tuple | Selective)]
    begins = {index: segment[0] for segment in again for index in segment}
    held = []
    for skip in skips:
        own = [skip.source if skip.needed_by is None else skip.needed_by] * skip.is_saved
        needed_by = min([*own, *(begins[t] for t in skip.takers if t in begins)], default=None)
        is_saved = needed_by is not None
        held.append(replace(skip, is_saved=is_saved, needed_by=needed_by, takers=()))
    return tuple(held)


@dataclass
class _Machine:
    """The tensors that are held, by name and stage."""

    stages: tuple[Stage, ...]
    skips: tuple[Skip, ...]
    outputs: list[int]
    released: list[int]
    depth: int = 0
    held: dict[tuple[str, int], int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    is_back: bool = False

    def hold(self, name: str, index: int, num_bytes: int) -> None:
        self.held[name, index] = num_bytes

    def free(self, name: str, index: int) -> None:
        self.held.pop((name, index), None)

    def run(self, tree: Tree, first: bool) -> None:
        """Run the forwards of a sequence, then its backwards from the last to the first."""
        for item in tree:
            if isinstance(item, int):
                self.forward(item, keeps=True, stops=not first and item is tree[-1])
            else:
                self.drop(list(leaves(item)))
        if first:
            self.hold("gradient", len(self.stages), self.outputs[-1])
        for item in reversed(tree):
            if isinstance(item, int):
                self.backward(item)
            else:
                # what came after the segment is done with the segment's output
                segment = list(leaves(item))
                start, last = segment[0], segment[-1]
                self.free("input", last + 1)
                self.hold("waiting", 0, self.stages[last].waiting_bytes)
                self.depth += 1
                self.hold("input of a segment", self.depth, self.stages[start].released_bytes)
                self.run(item, first=False)
                self.free("input of a segment", self.depth)
                self.depth -= 1

    def drop(self, segment: list[int]) -> None:
        """Run a segment's forwards, and keep only the last output."""
        for index in segment:
            self.forward(index, keeps=False)
            if index != segment[0]:
                self.free("input", index)
            self.hold("input", index + 1, self.outputs[index] - self._pinned(index, shared=True))

    def forward(self, index: int, keeps: bool, stops: bool = False) -> None:
        stage = self.stages[index]
        # a skip that is the boundary itself is part of the output
        beside = self._pinned(index) - self._pinned(index, shared=True)
        made = self.outputs[index] + beside + stage.forward_temporary_bytes
        if keeps:
            made = max(made, stage.saved_bytes + stage.kept_temporary_bytes)
        is_last = index + 1 == len(self.stages)  # no plan needs to recompute it
        if stops and not is_last and stage.stopped_temporary_bytes is not None:
            made = stage.saved_bytes + stage.stopped_temporary_bytes
        self._note("recompute" if index in self.seen else "forward", index, keeps, made)
        self.seen.add(index)
        if keeps:
            handed = self.released[index + 1]
            self.hold("saved", index, stage.saved_bytes - self._pinned(index) - handed)
            if not stops:  # else what takes it has had its backward
                self.hold("input", index + 1, handed)
            if ("input", index) in self.held and index:
                self.held["input", index] -= stage.released_bytes

    def backward(self, index: int) -> None:
        self.is_back = True
        stage = self.stages[index]
        self.hold("waiting", 0, stage.waiting_bytes)
        more = self._pinned(index) - stage.handed_on_bytes + stage.backward_temporary_bytes
        self._note("backward", index, False, more)
        self.free("saved", index)
        if index:
            self.free("input", index)
        self.free("gradient", index + 1)
        if index:
            self.hold("gradient", index, self.outputs[index - 1])
        self.hold("parameter gradients", index, stage.gradient_bytes)
        for number, skip in enumerate(self.skips):
            if skip.target == index:
                self.hold("skip gradient", number, skip.waiting_bytes)
            if skip.source == index:
                self.free("skip gradient", number)

    def _pinned(self, index: int, shared: bool = False) -> int:
        mine = [skip for skip in self.skips if skip.source == index]
        return sum(skip.num_bytes for skip in mine if skip.is_boundary or not shared)

    def _note(
        self, kind: Literal["forward", "recompute", "backward"], index: int, keeps: bool, more: int
    ) -> None:
        values = sum(
            skip.num_bytes
            for skip in self.skips
            if skip.source < index
            and (skip.is_saved if self.is_back else skip.is_saved or index <= skip.last)
            and (not self.is_back or index >= skip.first)
        )
        held = sum(self.held.values()) + values + more
        self.events.append(Event(kind, index, keeps, held))
