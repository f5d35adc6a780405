"""Warnings about readings that mislead: no training step was run, or the steps differ."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from tutorial_lib.memory import private_torch
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.timeline import StepMemory
from tutorial_lib.units import Bytes


def warnings_before(model: nn.Module | None) -> Iterator[str]:
    """Warn, before the step, of what would make its reading misleading."""
    for mode in private_torch.active_modes():
        if (
            not isinstance(mode, private_torch.FakeTensorMode)
            and "tutorial_lib" not in type(mode).__module__
        ):
            yield (
                f"{type(mode).__name__} is active too: it may keep tensors alive, and its own are "
                "counted. Measure outside it."
            )
    if model is not None and not model.training:
        yield (
            "the model is in eval(): dropout is off, and a library's checkpointing switch does "
            "nothing. Call model.train() before you measure a training step."
        )


def warnings_after(
    report: MemoryReport, compiled: Collection[str], *, is_steady: bool
) -> list[str]:
    """Warn if the measured step shows that it isn't a steady training step.

    Args:
        report: Of the step.
        compiled: The lines that called compiled code in it.
        is_steady: Whether it was one step, after a warm-up.
    """
    if "backward" not in report.phases:
        return ["the step ran no backward: this isn't a whole training step."]
    states = [life for life in report.timeline if life.category == "optimizer_state"]
    grown = sum(life.num_bytes for life in states if life.died is None)
    grown -= sum(life.num_bytes for life in states if not life.born)
    if is_steady and grown > 0:
        return [
            f"the optimizer's state grew by {Bytes(grown)} in this step, as a history does, so "
            "later steps need more: measure ten with steps=10 for their lowest and highest peak."
        ]
    if report.counted_bytes is not None and report.counted_bytes > report.peak_bytes:
        return [
            f"the tensors add up to {report.counted_bytes}, more than CUDA's "
            "allocator gave out: some of them are not in its memory. The peak is the "
            "allocator's; don't trust the categories."
        ]
    if compiled:
        return [
            f"{min(compiled)} calls compiled code, which runs uncompiled under the meter, so the "
            "bytes are the uncompiled step's. For the compiled step's own peak use torch.profiler "
            "on a CPU, or torch.cuda.max_memory_allocated on a GPU."
        ]
    return []


class StepsSeen:
    """Steps that were run, with how many modules ran in each and how many numbers they gave.

    Blind to steps that differ in something else, and to compiled models, whose modules are not
    asked.
    """

    def __init__(self, step: Callable[[], Any], model: nn.Module | None) -> None:
        self._step = step
        self._compiled = model is not None and private_torch.is_compiled(model)
        self._seen: list[tuple[int, int]] = []
        self._ends: list[int] = []

    def run(self, clock: Callable[[], int] | None = None) -> None:
        """Run the step, and note at which tick of the timeline it ended."""
        modules = numbers = 0

        def ran(module: Any, args: Any, out: Any) -> None:
            nonlocal modules, numbers
            modules += 1
            numbers += _count_numbers(out)

        if self._compiled:
            self._step()
        else:
            with module_hooks.register_module_forward_hook(ran):
                self._step()
        self._seen.append((modules, numbers))
        self._ends += [clock()] if clock else []

    def warnings(self) -> Iterator[str]:
        """Say how a single measured step differed from the one before it."""
        if len(self._ends) > 1 or len(self._seen) < 2 or self._seen[-1] == self._seen[-2]:
            return
        before, last = (
            f"{modules:,} modules, which returned {numbers:,} numbers"
            for modules, numbers in self._seen[-2:]
        )
        yield (
            f"steps differ: the one before ran {before}, the measured one {last}. Other steps may "
            "need more memory: measure ten with steps=10, and the report has their lowest and "
            "highest peak."
        )

    def peaks(self, report: StepMemory) -> list[int]:
        """Most bytes held in each of the measured steps, from the timeline of all."""
        totals = [sum(point.values()) for point in report.curve()]
        begins = [0, *(end + 1 for end in self._ends)]
        return [
            Bytes(max(totals[begin : end + 1], default=0))
            for begin, end in zip(begins, self._ends, strict=False)
        ]


def _count_numbers(out: Any) -> int:
    """Count the numbers in a module's output: a tensor, or any nest of them."""
    if isinstance(out, Tensor):
        return out.numel()
    if isinstance(out, Mapping):
        out = list(out.values())
    elif dataclasses.is_dataclass(out):
        out = [getattr(out, field.name) for field in dataclasses.fields(out)]
    return sum(map(_count_numbers, out)) if isinstance(out, list | tuple) else 0
