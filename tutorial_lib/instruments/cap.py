"""A cap on memory: beyond it an operation fails with an out-of-memory error, on a CPU too.

A GPU that is too small ends a training step in the middle, with half the gradients accumulated and
the graph still there. What a program does then can be tried out on a laptop: storages are counted
as they are made, and the operation that would exceed the cap raises what a GPU would raise.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import device as devices
from tutorial_lib.memory.private_torch import TorchDispatchMode, is_fake, storage_key
from tutorial_lib.memory.storages import list_tensors
from tutorial_lib.units import human_bytes


@dataclass
class Cap:
    """What is held under a cap."""

    limit_bytes: int  # the most that may be held at once
    held_bytes: int = 0  # what is held now; on a GPU, when the cap was last entered
    peak_bytes: int = 0  # the most that was held and fitted, since the cap was entered
    _alive: dict[int, weakref.ref[torch.UntypedStorage]] = field(default_factory=dict, repr=False)

    def _take(self, tensors: Iterable[Any]) -> int:
        """Count storages that were not seen before; gives their bytes."""
        before = self.held_bytes
        for tensor in list_tensors(tensors):
            if not tensor.is_cpu or is_fake(tensor):  # a fake one has a shape and no memory
                continue
            storage = tensor.untyped_storage()
            key = storage_key(storage)
            if key not in self._alive:
                size = storage.nbytes()
                self._alive[key] = weakref.ref(storage, self._free(key, size))
                self.held_bytes += size
        return self.held_bytes - before

    def _free(self, key: int, size: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            if self._alive.pop(key, None) is not None:
                self.held_bytes -= size

        return freed


class _Capped(TorchDispatchMode):
    def __init__(self, cap: Cap) -> None:
        super().__init__()
        self.cap = cap

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation, and fail where what it made is too much."""
        out = func(*args, **kwargs)
        self.cap._take((*args, *kwargs.values()))
        made = self.cap._take((out,))
        held = self.cap.held_bytes
        if made and held > self.cap.limit_bytes:  # what makes nothing fits, as on a GPU
            del out
            raise torch.OutOfMemoryError(
                f"out of memory: {func.overloadpacket.__name__} needed {human_bytes(made)} more "
                f"where {human_bytes(held - made)} are held, but the cap is "
                f"{human_bytes(self.cap.limit_bytes)}."
            )
        self.cap.peak_bytes = max(self.cap.peak_bytes, held)
        return out


@contextlib.contextmanager
def capped(
    limit_bytes: int, *, model: nn.Module | None = None, optimizer: Optimizer | None = None
) -> Iterator[Cap]:
    """Limit the bytes that tensors take until the end of the `with` block.

    On a CPU, the bytes of tensors are counted: those of the model, its gradients and the
    optimizer's state, what the block uses, and what it makes. On a GPU, it is PyTorch's own limit
    for this process, which holds for what the allocator reserves of the device. The cache is
    emptied first, but a segment that holds one live tensor stays, with room beyond the limit.

    Args:
        limit_bytes: The most that may be held at once.
        model: What counts from the beginning, with its gradients.
        optimizer: Its state counts from the beginning.

    Yields:
        The bytes held, updated as the block runs.

    Raises:
        torch.OutOfMemoryError: Inside the block, from the operation that does not fit.
        ValueError: When the limit is below 1, or more than the GPU has.

    Source:
        On a GPU `memory_limit`. Blind on a CPU to memory that a kernel takes and gives back inside
        one operation, as the meter is.
    """
    if limit_bytes < 1:
        raise ValueError(f"limit_bytes (={limit_bytes}) must be at least 1.")
    cap = Cap(limit_bytes)
    known: list[Any] = []
    if model is not None:
        known += [*model.parameters(), *(p.grad for p in model.parameters()), *model.buffers()]
    if optimizer is not None:
        known += [value for state in optimizer.state.values() for value in state.values()]
    gpu = next((t.device for t in known if isinstance(t, Tensor) and t.is_cuda), None)
    if gpu is not None:
        known.clear()
        with _capped_gpu(cap, gpu):
            yield cap
        return
    cap._take(known)
    known.clear()  # else the gradients among it could not be freed inside the block
    cap.peak_bytes = cap.held_bytes
    with _Capped(cap):
        yield cap


@contextlib.contextmanager
def memory_limit(device: torch.device | str, limit_bytes: int) -> Iterator[None]:
    """Limit this process to so many bytes of a GPU's memory, until the block ends.

    Args:
        device: A CUDA device; without an index the current one.
        limit_bytes: The most that PyTorch's allocator may reserve there. What it has reserved
            already it gives out beyond that too, unless `torch.cuda.empty_cache` frees it first.

    Raises:
        torch.OutOfMemoryError: Inside the block, from the operation that does not fit.
        ValueError: When the limit is below 1 byte, or more than the GPU has.

    Source:
        `torch.cuda.set_per_process_memory_fraction`. It takes no device without an index.
    """
    device = torch.device(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    total = devices.total_bytes(torch.device("cuda", index)) or 0
    if not 1 <= limit_bytes <= total:
        raise ValueError(
            f"limit_bytes (={limit_bytes}) must be from 1 to {total}, all of "
            f"{devices.describe(device)}."
        )
    before = torch.cuda.get_per_process_memory_fraction(index)
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)


@contextlib.contextmanager
def _capped_gpu(cap: Cap, gpu: torch.device) -> Iterator[None]:
    with memory_limit(gpu, cap.limit_bytes):
        torch.cuda.empty_cache()  # blocks that lie ready would be given out beyond the limit
        devices.reset_peak(gpu)
        cap.held_bytes = torch.cuda.memory_allocated(gpu)
        try:
            yield
        finally:
            cap.peak_bytes = torch.cuda.max_memory_allocated(gpu)
