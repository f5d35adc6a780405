"""A chain's bytes as arrays, in the form that the solvers add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutorial_lib.instruments.planning.chain.stages import Skip, Stage, outputs
from tutorial_lib.instruments.segments.tree import Selective, Tree

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]
Choose = Callable[[int, int, int], "Costs | int"]
Slots = Callable[[Any], int]


@dataclass(frozen=True, eq=False)
class Costs:
    """The needs of each stage besides all that stages to its left hold.

    Stages to the left of stage i hold its input, and what they keep or have as boundaries. These
    arrays say how much more is needed, so that a solver adds and compares only.
    """

    forward: Seconds  # of a forward; infinite for one that must not run twice
    boundary: Bytes  # of each stage's input as a boundary; nothing for a skip that is held anyway
    saved: Bytes  # that a kept stage adds for those to its right, less what it releases
    keep: Bytes  # needed while a forward runs that keeps
    stop: Bytes  # the same for the last forward of a recomputed segment
    drop: Bytes  # needed while a forward runs that keeps nothing, its input included
    back: Bytes  # needed while a backward runs
    waiting: Bytes  # gradients that wait while a segment that ends with this stage is recomputed
    first: Bytes  # held while a stage runs for the first time, and not in backward
    early: Seconds  # saved where a recomputed segment ends with this stage
    released: Bytes  # of each stage's input, once a forward that keeps is done
    extra: Seconds  # that keeping the stage in this way adds
    selective: Costs | None = None  # the same chain when stages are kept selectively, if any may be

    def __len__(self) -> int:
        return len(self.forward)

    @classmethod
    def of(
        cls, stages: Sequence[Stage], skips: Sequence[Skip], handed: Sequence[int] | None = None
    ) -> Costs:
        """Write a chain as arrays; `handed` is the part of each output that nothing saves."""
        if handed is None:
            handed = [*(after.released_bytes for after in stages[1:]), 0]
        count = len(stages)
        made = np.array(outputs(stages), np.int64)
        pinned, shared, later, first = (np.zeros(count, np.int64) for _ in range(4))
        between, done = (np.zeros(count, np.int64) for _ in range(2))
        for skip in skips:
            pinned[skip.source] += skip.num_bytes
            shared[skip.source] += skip.num_bytes * skip.is_boundary
            if skip.is_saved or skip.takers:  # one of them may be recomputed
                later[skip.source + 1 :] += skip.num_bytes
                done[skip.source + 1 : skip.first] += skip.num_bytes
            else:
                first[skip.source + 1 : skip.last + 1] += skip.num_bytes
            between[skip.source : skip.target] += skip.waiting_bytes

        def column(name: str, kind: Any = np.int64) -> NDArray[Any]:
            return np.array([getattr(stage, name) for stage in stages], kind)

        inputs, saved = column("input_bytes"), column("saved_bytes")
        boundary = inputs - np.concatenate([[0], shared[:-1]])
        gradients = column("gradient_bytes")
        waiting = made + between + column("waiting_bytes")
        waiting += gradients[::-1].cumsum()[::-1] - gradients
        output = made + pinned - shared + column("forward_temporary_bytes")
        temporary = column("backward_temporary_bytes") - column("handed_on_bytes")
        keep = later + np.maximum(saved + column("kept_temporary_bytes"), output)
        stopped = column("stopped_temporary_bytes", np.float64)  # None is not a number here
        stop = np.where(np.isnan(stopped), keep, later + saved + np.nan_to_num(stopped))
        may_repeat = column("recomputable", bool)
        released = column("released_bytes")
        back = later - done + saved + temporary + waiting - released - np.array(handed, np.int64)
        waiting[-1] = 0  # the first forward ends before there is any gradient
        selective = None
        if any(stage.selective for stage in stages):
            forms = [
                replace(s.selective or s, gradient_bytes=s.gradient_bytes, selective=None)
                for s in stages
            ]
            more = [_kept_seconds(a) - _kept_seconds(b) for a, b in zip(forms, stages, strict=True)]
            selective = replace(cls.of(forms, skips, handed), extra=np.array(more))
        return cls(
            forward=np.where(may_repeat, column("forward_seconds", np.float64), np.inf),
            boundary=boundary,
            saved=saved - pinned - released,
            keep=keep,
            stop=stop.astype(np.int64),
            drop=later + boundary + output,
            back=back,
            waiting=waiting,
            first=first,
            early=column("early_stop_seconds", np.float64),
            released=released,
            extra=np.zeros(count),
            selective=selective,
        )

    def ways(self, end: int) -> tuple[Costs, ...]:
        """List the ways to keep a stage of a part that ends with `end`.

        A segment, which never ends with the last stage, keeps its stages whole: PyTorch's nested
        checkpoints would hold what a selective one stores.
        """
        both = self.selective is not None and end == len(self) - 1
        return (self, self.selective) if both and self.selective else (self,)

    def tree(self, choose: Choose, end: int, slots: int, size: Slots = int, start: int = 0) -> Tree:
        """Return the best tree of the part from `start` to `end`, as a solver's table tells.

        From start, end and the slots that are left, `choose` returns the way to keep the part's
        first stage, or the stage after the segment that begins it. `size` is the slots of bytes.
        """
        items: list[int | Tree] = []
        while start <= end:
            chosen = choose(start, end, slots)
            if isinstance(chosen, Costs):  # a selective stage has a leaf of its own
                items.append(start if chosen is self else Selective(start))
                slots -= size(chosen.saved[start])
                start += 1
            else:
                inside = slots - size(self.released[start])  # a segment holds its input
                items.append(self.tree(choose, chosen - 1, inside, size, start))
                slots -= size(self.boundary[chosen])
                start = chosen
        return tuple(items)

    def recomputed(self, start: int, stop: int) -> float:
        """Seconds of recomputing a segment, up to where PyTorch stops."""
        return float(self.forward[start:stop].sum() - self.early[stop - 1])

    def kept(self, index: int, end: int) -> int:
        """Needs of a stage that is kept, forward and backward."""
        needs = self.stop if index == end < len(self) - 1 else self.keep  # stop: it is recomputed
        # a part ends with the last stage of all in the first forward alone
        more = self.first[index] if end == len(self) - 1 else self.waiting[end]
        return int(max(needs[index] + more, self.back[index]))

    def dropped(self, start: int, stop: int, end: int) -> Bytes:
        """Needs of a segment while it is dropped, stage by stage, without its input."""
        more = self.first[start:stop] if end == len(self) - 1 else self.waiting[end]
        needs: Bytes = self.drop[start:stop] + more
        needs[:1] -= self.boundary[start]
        return needs

    def grouped(self, groups: Sequence[Sequence[int]]) -> Costs:
        """Make one stage of each group of neighbours, which are then kept or dropped together.

        What a group needs while it is dropped is a little too much where its first stage's input
        is free by then.
        """
        starts, ends = np.array([(group[0], group[-1]) for group in groups]).T
        sizes = ends - starts + 1
        before = self.saved.cumsum() - self.saved
        held = before - np.repeat(before[starts], sizes)  # by a group's stages to the left
        stop, drop = self.keep.copy(), self.drop + np.repeat(self.boundary[starts], sizes)
        stop[ends], drop[starts] = self.stop[ends], self.drop[starts]

        def largest(values: Bytes) -> Bytes:
            most: Bytes = np.maximum.reduceat(values, starts)
            return most

        return Costs(
            forward=np.add.reduceat(self.forward, starts),
            boundary=self.boundary[starts],
            saved=np.add.reduceat(self.saved, starts),
            keep=largest(self.keep + held),
            stop=largest(stop + held),
            drop=largest(drop),
            back=largest(self.back + held),
            waiting=self.waiting[ends],
            first=largest(self.first),
            early=self.early[ends],
            released=self.released[starts],
            extra=np.add.reduceat(self.extra, starts),
            selective=None if self.selective is None else self.selective.grouped(groups),
        )


def _kept_seconds(stage: Stage) -> float:
    return stage.forward_seconds + stage.backward_seconds
