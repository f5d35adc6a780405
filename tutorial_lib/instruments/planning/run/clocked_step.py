"""Steps of a model under a clock: the order of its stages, their spans, whether they repeat."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakIdKeyDictionary

from tutorial_lib import device as devices
from tutorial_lib.device import without_garbage_collection
from tutorial_lib.instruments import segments
from tutorial_lib.instruments.planning.chain.profiled import Call
from tutorial_lib.instruments.planning.run.apply import install, undo
from tutorial_lib.instruments.planning.run.recording import Loss
from tutorial_lib.instruments.private_torch import without_modes
from tutorial_lib.instruments.random_states import keeping_python_random_states
from tutorial_lib.instruments.segments.execution import Execution
from tutorial_lib.memory.private_torch import is_fake, storage_keys
from tutorial_lib.memory.storages import list_tensors

Reading = Any  # a number, or several of them in a tuple


@dataclass
class ClockedStep:
    """Readings of a clock during a step without recomputation.

    Stage 0 is what the model does before the first call, the last one what it does after them.
    """

    forward: list[Reading] = field(default_factory=list)  # where each stage's forward ends
    # where the backward of each stage begins: the gradient of its first output is complete
    backward: dict[int, Reading] = field(default_factory=dict)
    end: Reading = 0  # where the step ends
    # where a tensor was last saved for backward when each stage's forward ended
    saved: list[Reading] = field(default_factory=list)
    # a number for each value of an execution: a tensor that several get has one in all of them,
    # and so have views of what a stage made
    keys: dict[tuple[int, int], int] = field(default_factory=dict)
    # what was run, in order: one for each call of the model
    executions: list[Execution] = field(default_factory=list)

    def take(self, index: int) -> ClockedStep:
        """Take one number of each reading."""
        return ClockedStep(
            [reading[index] for reading in self.forward],
            {stage: reading[index] for stage, reading in self.backward.items()},
            self.end[index],
            [reading[index] for reading in self.saved],
            self.keys,
            self.executions,
        )

    def forward_spans(self, start: Reading) -> list[tuple[Reading, Reading]]:
        """Return where each stage's forward begins and ends."""
        return list(zip([start, *self.forward[:-1]], self.forward, strict=True))

    def early_stops(self) -> list[float]:
        """Share of each stage's forward that comes after the last tensor it saves."""
        spans = self.forward_spans(0.0)
        times = zip(spans, self.saved, strict=True)
        return [
            (end - min(end, max(begin, last))) / (end - begin) if end > begin else 0.0
            for (begin, end), last in times
        ]

    def backward_spans(self) -> list[tuple[Reading, Reading]]:
        """Return where each stage's backward begins and ends."""
        starts, last = [], self.end
        for stage in range(len(self.forward)):
            # no gradient comes by where nothing before needs one: the next stage's is the last
            last = min(last, self.backward.get(stage, last))
            starts.append(last)
        return list(zip(starts, [self.end, *starts[:-1]], strict=True))

    def durations(self, start: float) -> tuple[list[float], list[float]]:
        """Seconds of each stage's forward and backward, where readings are seconds."""
        spans = self.forward_spans(start), self.backward_spans()
        forward, backward = ([max(0.0, end - begin) for begin, end in kind] for kind in spans)
        return forward, backward


def _whole(tensor: Tensor, seen: Container[Any], is_made: bool) -> Tensor | torch.UntypedStorage:
    """Return the storage of what a stage made, and of its views; what is given may be a part."""
    if not any(storage_keys([tensor])):
        return tensor
    storage = tensor.untyped_storage()
    return storage if is_made or storage in seen else tensor


def run_clocked(
    model: nn.Module,
    calls: Sequence[Call],
    loss: Loss,
    read: Callable[[], Reading],
    look: Callable[[int, Tensor, bool], None] = lambda number, tensor, is_given: None,
    kept: type[int] = int,
) -> ClockedStep:
    """Run forward and backward, nothing recomputed as a whole, and read a clock at every boundary.

    `look` gets number and tensor of what a stage leaves for later ones, and whether it is given;
    `kept` is how stages are kept, `int` or `Selective`.
    """
    clocked, count, last_saved = ClockedStep(), itertools.count(), [read()]
    keys, hooked = WeakIdKeyDictionary(), WeakIdKeyDictionary()  # as long as these live

    def save(tensor: Tensor) -> Tensor:
        last_saved[0] = read()
        return tensor if tensor.grad_fn is None else tensor.detach()  # a result would be a cycle

    def mark(stage: int) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            clocked.backward.setdefault(stage, read())

        return arrived

    def observe(execution: Execution, piece: int, values: dict[int, Tensor]) -> None:
        clocked.forward.append(read())
        clocked.saved.append(last_saved[0])
        if piece < 0:
            clocked.executions.append(execution)
        for number in [n for n in values if execution.made_by[n] == piece]:
            tensor: Any = values[number]
            whole = _whole(tensor, keys, is_made=piece >= 0)
            if whole not in keys:
                keys[whole] = next(count)
                look(keys[whole], tensor, piece < 0)
            clocked.keys[len(clocked.executions) - 1, number] = keys[whole]
            if tensor.requires_grad and tensor not in hooked:
                hooked[tensor] = True
                tensor.register_hook(mark(execution.first + piece + 1))

    if calls:
        install(model, calls, tuple(map(kept, range(len(calls)))), observe)
    try:
        with saved_tensors_hooks(save, lambda kept: kept) if calls else contextlib.nullcontext():
            result = loss()
        clocked.forward.append(read())
        clocked.saved.append(last_saved[0])
        clocked.backward[len(clocked.forward) - 1] = clocked.forward[-1]
        result.backward()  # type: ignore[no-untyped-call]
    finally:
        undo(model)
    clocked.end = read()
    return clocked


def measure_times(
    model: nn.Module,
    calls: Sequence[Call],
    loss: Loss,
    device: torch.device,
    repeats: int,
    kept: type[int],
) -> tuple[list[float], list[float]]:
    """Time each stage's forward and backward on the device: the medians of some runs."""

    def read() -> float:
        devices.synchronize(device)
        return time.perf_counter()

    runs = []
    for _ in range(max(1, repeats)):
        start = read()
        runs.append(run_clocked(model, calls, loss, read, kept=kept).durations(start))
    forward, backward = (torch.tensor(one).median(dim=0).values for one in zip(*runs, strict=True))
    return forward.tolist(), backward.tolist()


@contextlib.contextmanager
def model_untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put buffers, gradients and random states back at the end; collect no garbage meanwhile.

    Nor does the model keep keys and values for generation: a second run would find the first one's.
    """
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = [device] if device.type == "cuda" else []
    with without_modes():  # its first import leaves frames behind, which hold what they were given
        torch.empty((), device="meta").add(torch.empty((), device="meta"))
    if not any(map(is_fake, list_tensors(model.parameters()))):  # garbage holds a device's memory
        gc.collect()
    try:
        with (
            without_garbage_collection(),
            torch.random.fork_rng(devices=devices),
            keeping_python_random_states(),
            contextlib.ExitStack() as back,
        ):
            segments.stop_caching(model, back)
            yield
    finally:
        undo(model)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, grad in gradients:
            parameter.grad = grad
