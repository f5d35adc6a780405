"""A model as a planner sees it: a chain of stages, and skips that jump over some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

from tutorial_lib.units import human_bytes


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a chain: what it costs to run, and what it holds meanwhile.

    While the stage runs, its input is held as well; in its backward, the input without
    `released_bytes`. Besides, its forward holds `output + forward_temporary_bytes`, and when it
    keeps, `saved_bytes + kept_temporary_bytes` if that is more. Its backward holds
    `saved_bytes - handed_on_bytes`, the gradient of its output (as many bytes as the output) and
    `backward_temporary_bytes`.

    Args:
        forward_seconds: Time of its forward.
        backward_seconds: Time of its backward, without any recomputation.
        input_bytes: What comes in from the stage before: the boundary that a checkpoint keeps.
        released_bytes: The part of `input_bytes` that no backward needs: free after its forward,
            where that keeps. A stage that begins a segment is recomputed from all of its input.
        saved_bytes: All that it keeps for the backward pass, its output included, its input not.
        forward_temporary_bytes: Most that a forward that keeps nothing holds besides input and
            output.
        backward_temporary_bytes: Most that its backward holds besides input, saved bytes and the
            gradient of its output. The gradient of its input belongs here.
        output_bytes: `None` takes the next stage's `input_bytes`; for the last stage, its own.
        handed_on_bytes: The part of `saved_bytes` that only the next stage's backward needs, and
            that is free when its own begins: most often the output, or nothing.
        gradient_bytes: Gradients of parameters that its backward makes and leaves behind; 0 where
            they are there already, as in every micro-batch but the first.
        waiting_bytes: What waits while its backward runs and belongs to no skip: gradients of
            parameters that an earlier stage uses too, or of an earlier model call's outputs.
        kept_temporary_bytes: Most that a forward that keeps holds besides input and saved bytes.
        stopped_temporary_bytes: The same up to the last tensor that its backward needs, where a
            recomputation that ends with this stage stops; `None` where it does not stop early.
        early_stop_seconds: The part of `forward_seconds` after the last tensor that its backward
            needs. PyTorch stops there when it recomputes a segment that ends with this stage.
        recomputable: Whether a plan may run its forward twice.
        selective: The same stage when it keeps the results of matmuls only, and its backward
            recomputes the rest; `None` where no plan may do so. Its `gradient_bytes` are not read.

    Raises:
        ValueError: When a number is negative, or a part is more than the whole.
    """

    forward_seconds: float
    backward_seconds: float
    input_bytes: int
    saved_bytes: int
    forward_temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    output_bytes: int | None = None
    handed_on_bytes: int = 0
    gradient_bytes: int = 0
    released_bytes: int = 0
    waiting_bytes: int = 0
    kept_temporary_bytes: int = 0
    stopped_temporary_bytes: int | None = None
    early_stop_seconds: float = 0.0
    recomputable: bool = True
    selective: Stage | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "selective"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} (={value}) of a stage must not be negative.")
        for part, whole in (
            ("early_stop_seconds", "forward_seconds"),
            ("released_bytes", "input_bytes"),
            ("handed_on_bytes", "saved_bytes"),
        ):
            if (some := getattr(self, part)) > (of := getattr(self, whole)):
                raise ValueError(
                    f"{part} (={some}) is a part of {whole} (={of}) and cannot be larger."
                )


@dataclass(frozen=True)
class Skip:
    """A tensor that a stage makes and a later one takes, over the heads of those between.

    A plan pins it: it is never dropped and recomputed on its own. Its value is priced as held from
    its source on, in backward as far down as it is needed there; its gradient from the backward of
    its target to that of its source. Both are upper bounds.

    Args:
        source: Index of the stage that makes it.
        target: Index of the stage that takes it, later than the source.
        num_bytes: Its size.
        is_boundary: Whether it is also what the next stage gets, and so costs nothing twice.
        gradient_bytes: What its gradient holds while it waits; `None` is as much as the value. It
            is more where it waits as a part of a larger gradient, as that of `torch.cat` does.
        is_saved: Whether the value must still be there in backward; if not, it is priced in the
            first forward alone.
        takers: Stages that take it: it is there until the backward of those that are recomputed.
        needed_by: The first stage whose backward needs it, if it is saved; `None` is its source.
        held_to: The last stage in whose first forward it is there, if it is not saved; `None` is
            its target.
    """

    source: int
    target: int
    num_bytes: int
    is_boundary: bool = True
    gradient_bytes: int | None = None
    is_saved: bool = True
    takers: tuple[int, ...] = ()
    needed_by: int | None = None
    held_to: int | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of its gradient while it waits."""
        return self.num_bytes if self.gradient_bytes is None else self.gradient_bytes

    @property
    def last(self) -> int:
        """The last stage in whose first forward it is there."""
        return self.target if self.held_to is None else self.held_to

    @cached_property
    def first(self) -> int:
        """The first stage whose backward may need its value, whatever is recomputed."""
        return min([self.source if self.needed_by is None else self.needed_by, *self.takers])


def check_chain(stages: Sequence[Stage], skips: Iterable[Skip]) -> None:
    """Refuse a chain without a stage, and a skip to nowhere or larger than its source."""
    if not stages:
        raise ValueError("There is no stage: a plan needs at least one.")
    for skip in skips:
        if not 0 <= skip.source < skip.target < len(stages):
            raise ValueError(
                f"A skip leads from stage {skip.source} to stage {skip.target}; both must be "
                f"between 0 and {len(stages) - 1}, the second one later."
            )
    handed, made = [*(after.released_bytes for after in stages[1:]), 0], outputs(stages)
    for index, stage in enumerate(stages):
        pinned = sum(skip.num_bytes for skip in skips if skip.source == index)
        shared = sum(s.num_bytes for s in skips if s.source == index and s.is_boundary)
        if pinned > stage.saved_bytes or shared + handed[index] > made[index]:
            raise ValueError(
                f"The skips of stage {index} have {human_bytes(pinned)}, more than it saves "
                f"({human_bytes(stage.saved_bytes)}) or hands on."
            )


def outputs(stages: Sequence[Stage]) -> list[int]:
    """Bytes of each stage's output, as `Stage.output_bytes` says."""
    handed = [after.input_bytes for _, after in pairwise(stages)]
    last = stages[-1].output_bytes
    return [*handed, stages[-1].input_bytes if last is None else last]
