"""Stages of a chain, measured from the storages of a step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tutorial_lib.instruments.planning.chain.stages import Skip, Stage, outputs
from tutorial_lib.instruments.planning.run.clocked_step import ClockedStep
from tutorial_lib.memory.timeline import Life

LABEL = "value "


@dataclass(frozen=True)
class Flow:
    """The values that go from stage to stage, and their bytes."""

    boundaries: tuple[int, ...]  # for each stage, bytes that come from the stage right before it
    skips: tuple[Skip, ...]  # what goes further
    # the number of the value that a skip is
    values: dict[int, int] = field(default_factory=dict)
    # values that go from a stage to the next alone: that one, bytes and number
    handed: tuple[tuple[int, int, int], ...] = ()
    # work before, between and after the calls of the model: never recomputed
    outside: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, clocked: ClockedStep, num_bytes: dict[int, int]) -> Flow:
        """Read it off a step, with the bytes of each value that has a gradient or a stage."""
        count = len(clocked.forward)
        made_by, uses = dict[int, int](), dict[int, set[int]]()
        for run, execution in enumerate(clocked.executions):
            for number, pieces in execution.uses().items():
                key = clocked.keys.get((run, number), -1)
                made_by.setdefault(key, execution.first + execution.made_by[number] + 1)
                uses.setdefault(key, set()).update(execution.first + p + 1 for p in pieces)
        # what each call of the model hands to the loss, and the next call gets from there
        ends = [execution.first + len(execution.pieces) + 1 for execution in clocked.executions]
        boundaries, skips, values = [0] * count, list[Skip](), dict[int, int]()
        handed = list[tuple[int, int, int]]()
        for key in sorted(made_by, key=lambda key: made_by[key]):
            source, size = made_by[key], num_bytes.get(key, 0)
            targets = {stage for stage in uses[key] if stage > source}
            if source + 1 in targets:
                boundaries[source + 1] += size
                if targets == {source + 1}:
                    handed.append((source + 1, size, key))
            last = max(targets, default=0)
            if size and source and not targets:  # it dies with the model's forward
                end = min(end for end in ends if end > source)
                values[len(skips)] = key
                skips.append(Skip(source, end, size, is_boundary=False, gradient_bytes=0))
            if size and last > source + 1:
                values[len(skips)] = key
                takers = tuple(sorted(targets.difference(ends)))
                skips.append(Skip(source, last, size, source + 1 in targets, takers=takers))
        return cls(tuple(boundaries), tuple(skips), values, tuple(handed), (0, *ends))

    def priced(self, clocked: ClockedStep, curve: Curve) -> Flow:
        """Return the flow with each skip's gradient bytes, and how long its value is there."""
        forwards, backwards = clocked.forward_spans(0), clocked.backward_spans()
        skips = []
        for index, skip in enumerate(self.skips):
            # what its target's backward made and the one before it did not use up
            made = curve.born_in(backwards[skip.target])
            made = [life for life in made if life.category != "gradients"]
            used_up = backwards[skip.source][1]  # what outlives that is none of its gradient
            its = [life for life in made if life.died is not None and life.died <= used_up]
            waiting = alive(its, backwards[skip.target - 1][1])
            alike = sum(other.num_bytes for other in self.skips if other.target == skip.target)
            share = -(-waiting * skip.num_bytes // max(1, alike))
            held = dict[str, Any]()
            life = curve.of_value(self.values[index], skip.num_bytes)
            if life is not None and not alive([life], clocked.forward[-1]):
                ends = [n for n, (_, end) in enumerate(forwards) if end < (life.died or 0)]
                held = {"is_saved": False, "held_to": max(skip.target, len(ends))}
            elif life is not None and life.died is not None:
                needing = [n for n, (start, _) in enumerate(backwards) if start < life.died]
                held = {"needed_by": max([skip.source, *needing[:1]])}
            size = max(skip.num_bytes, share)
            if skip.source >= skip.target - 2:  # of a sum both parts have one gradient
                shared = alive(made, backwards[skip.target][1]) - self.boundaries[skip.target]
                size = min(size, max(0, shared))
            size = 0 if skip.gradient_bytes == 0 else size
            skips.append(replace(skip, gradient_bytes=size, **held))
        return replace(self, skips=tuple(skips))

    def released(self, clocked: ClockedStep, curve: Curve) -> list[int]:
        """Count the bytes of each stage's input that are not there in backward."""
        found = [0] * len(self.boundaries)
        for stage, size, key in self.handed:
            life = curve.of_value(key, size)
            is_gone = life is not None and not alive([life], clocked.forward[-1])
            found[stage] += size * is_gone
        return found


class Curve:
    """Bytes of a step's storages over time, without those that were there before."""

    def __init__(self, lives: Sequence[Life]) -> None:
        born = [life for life in lives if life.born > 0]
        self._of_values = {life.category: life for life in born}
        self.lives = sorted(born, key=lambda life: life.born)
        self._born = [life.born for life in self.lives]
        self.last = max((max(life.born, life.died or 0) for life in born), default=0)

    def of_value(self, key: int, num_bytes: int) -> Life | None:
        """Return the life of a value's storage; `None` where that holds others too, or is older."""
        life = self._of_values.get(f"{LABEL}{key}")
        return life if life is not None and life.num_bytes == num_bytes else None

    def held(self, lives: Sequence[Life]) -> NDArray[np.int64]:
        """Bytes of some storages at each tick."""
        change = np.zeros(self.last + 2, np.int64)
        for life in lives:
            change[life.born] += life.num_bytes
            if life.died is not None:
                change[life.died + 1] -= life.num_bytes
        return change.cumsum()[:-1]

    def born_in(self, span: tuple[float, float]) -> list[Life]:
        """List the storages that were made after the beginning of a span, up to its end."""
        return self.lives[bisect_right(self._born, span[0]) : bisect_right(self._born, span[1])]


def alive(lives: Sequence[Life], tick: float) -> int:
    """Count the bytes of those storages that outlive a tick."""
    return sum(x.num_bytes for x in lives if x.born <= tick and (x.died is None or x.died > tick))


def measure_stages(
    clocked: ClockedStep,
    flow: Flow,
    kept: Sequence[Life],
    dropped: Sequence[Life],
    ends: Sequence[int],
) -> tuple[list[Stage], tuple[Skip, ...]]:
    """Measure the stages of a chain in two runs, in ticks: one that kept everything, one nothing.

    `kept` and `dropped` are their storages, and `ends` says where each forward of the second ended.
    """
    # weights that FSDP gathers and keeps are no stage's to drop: they count as there from the start
    curve = Curve(
        [
            replace(life, born=min(life.born, 1))
            if life.category == "parameters" and alive([life], clocked.forward[-1])
            else life
            for life in kept
        ]
    )
    flow = flow.priced(clocked, curve)
    released = flow.released(clocked, curve)
    forwards, backwards = clocked.forward_spans(0), clocked.backward_spans()
    free = _needs_of_forwards(Curve(dropped), [0, *ends])
    stages = []
    for index, (span, back) in enumerate(zip(forwards, backwards, strict=True)):
        mine = curve.born_in(span)
        for_backward = [life for life in mine if alive([life], clocked.forward[-1])]
        output = flow.boundaries[index + 1] if index + 1 < len(flow.boundaries) else 4
        saved = sum(life.num_bytes for life in for_backward)
        values = [life for life in mine if life.category.startswith(LABEL)]
        saved += sum(life.num_bytes for life in values if life not in for_backward)
        pinned = sum(skip.num_bytes for skip in flow.skips if skip.source == index)
        beside = sum(s.num_bytes for s in flow.skips if s.source == index and not s.is_boundary)
        saved = max(saved, pinned, output + beside if index + 1 < len(flow.boundaries) else 0)
        gradients = [life for life in curve.born_in(back) if life.category == "gradients"]
        handed = [*released, 0][index + 1]
        stages.append(
            Stage(
                forward_seconds=0.0,
                backward_seconds=0.0,
                input_bytes=flow.boundaries[index],
                saved_bytes=saved,
                forward_temporary_bytes=max(0, free[index] - output - beside),
                output_bytes=4 if index + 1 == len(flow.boundaries) else None,
                released_bytes=released[index],
                handed_on_bytes=max(0, saved - handed - alive(mine, back[0])),
                gradient_bytes=sum(life.num_bytes for life in gradients),
                recomputable=index not in flow.outside,
            )
        )
    return _with_backward(stages, flow.skips, curve, clocked), flow.skips


def _needs_of_forwards(curve: Curve, ends: Sequence[int]) -> list[int]:
    """Most bytes that each forward added to what was there when it began."""
    held = curve.held(curve.lives)
    needs = []
    for start, end in pairwise(ends):
        needs.append(int(held[start + 1 : end + 1].max(initial=0)) - alive(curve.lives, start))
    return needs


def _with_backward(
    stages: list[Stage], skips: Sequence[Skip], curve: Curve, clocked: ClockedStep
) -> list[Stage]:
    """Set the temporaries: what each stage held besides what the chain already says."""
    others = Curve([life for life in curve.lives if life.category != "gradients"])
    held, filled = curve.held(others.lives), []
    forwards, backwards = clocked.forward_spans(0), clocked.backward_spans()
    handed = [*(stage.released_bytes for stage in stages[1:]), 0]
    spans = zip(stages, outputs(stages), forwards, backwards, strict=True)
    for index, (stage, output, ahead, back) in enumerate(spans):
        before = others.born_in((0, ahead[0]))
        own = curve.held([x for x in curve.born_in(back) if x.category == "gradients"])
        # the gradients of skips that wait for earlier stages are priced as such; those of
        # parameters that earlier stages use too wait by themselves
        waiting = others.born_in((clocked.forward[-1], back[0]))
        priced = sum(s.waiting_bytes for s in skips if s.source <= index < s.target)
        known = max(0, min(priced, alive(waiting, back[0]) - output))
        beyond = sum(s.waiting_bytes for s in skips if s.source < index < s.target)
        more = max(
            0, min(alive(waiting, back[1]) - beyond, alive(waiting, back[0]) - output - known)
        )
        peak = (held + own)[int(back[0]) + 1 : int(back[1]) + 1].max(initial=0)
        local = int(peak) - alive(before, back[0]) - known - more
        during = held[int(ahead[0]) + 1 : int(ahead[1]) + 1].max(initial=0)
        stop = held[int(ahead[0]) + 1 : int(clocked.saved[index]) + 1].max(initial=0)
        forward, stopped = (
            max(0, int(most) - alive(before, ahead[0]) - stage.saved_bytes)
            for most in (during, stop)
        )
        kept = stage.saved_bytes - stage.handed_on_bytes - handed[index]
        # of a concatenation the gradients of all parts are one tensor, also the output's
        backward = local - kept - output - (priced - known)
        filled.append(
            replace(
                stage,
                waiting_bytes=more,
                kept_temporary_bytes=forward,
                stopped_temporary_bytes=stopped,
                backward_temporary_bytes=max(0, backward),
            )
        )
    return filled
