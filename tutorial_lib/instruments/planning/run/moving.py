"""Run a plan's moves: what its items leave goes to the host and comes back, beside the computation.

On a GPU a stream copies out and another one in, from and to pinned memory. Without one, copies are
made in the same order, into NumPy's arrays: a host that no meter counts.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook, saved_tensors_hooks

from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.private_torch import times_written
from tutorial_lib.instruments.segments.execution import Execution, Values
from tutorial_lib.instruments.segments.tree import Tree, leaves
from tutorial_lib.memory.private_torch import is_fake, storage_key
from tutorial_lib.units import MIB

_BLOCK = 32 * MIB


@dataclass(eq=False)
class _Memory:
    """A storage that moves: on the device, on the host, or both."""

    there: Tensor | None  # a tensor on it, as long as it's on the device
    version: int  # of that tensor when it was copied: in-place operations count it up
    num_bytes: int
    like: Tensor  # of bytes, on its device, and empty
    host: Any = None
    copied: Any = None  # an event of the stream that copies


@dataclass(frozen=True)
class _Waiting:
    """A saved tensor whose memory moves."""

    memory: _Memory
    dtype: torch.dtype
    form: tuple[Sequence[int], Sequence[int], int]  # sizes, strides, offset


@dataclass(eq=False)
class Moving:
    """The moves of one forward and its backward; parameters and buffers stay where they are."""

    moves: Sequence[Move]
    tree: Tree
    model: nn.Module
    names: Sequence[str]
    item: int = 0  # that runs now
    owners: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = field(default_factory=dict)
    left: dict[int, dict[int, _Memory]] = field(default_factory=dict)  # by item and storage

    def __post_init__(self) -> None:
        self.lasts = {[*leaves((item,))][-1]: n for n, item in enumerate(self.tree)}
        self.left = {move.item: {} for move in self.moves}
        self.pinned = _Pinned()
        stages = [self.model.get_submodule(name) for name in self.names]
        weights = [id(weight) for stage in stages for weight in stage.parameters()]
        self.shares_weights = len({*weights}) < len(weights)
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            self._own(tensor, -1)

    def hooks(self) -> saved_tensors_hooks:
        """Return what to run the items in."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def observe(self, execution: Execution, last: int, values: Values) -> None:
        """Do what is due after an item, or before the first one: see `Execution.all`."""
        item = self.lasts.get(last, -1)
        made = [value for value in values.values() if isinstance(value, Tensor)]
        for tensor in made:
            self._own(tensor, item)
        if item + 1 < len(self.tree):
            after = [*leaves((self.tree[item + 1],))][-1]
            for number, value in values.items():
                if isinstance(value, Tensor) and execution.needed_after(number, after):
                    self._pin(value)
        if item < 0:
            for stream in {s for t in made if t.is_cuda for s in _streams(t.device)}:
                torch.cuda.current_stream(stream.device).wait_stream(stream)
            return
        if not self.shares_weights:
            torch.clear_autocast_cache()  # it would hold casts of weights, which move, too
        mine = [tensor for tensor in made if tensor.grad_fn and self._owner(tensor) == item]
        if mine:
            back = lambda _: self._begin_backward(item)  # noqa: E731
            register_multi_grad_hook(mine, back, mode="any")
        self._check(item)
        self.item = item + 1
        is_last = self.item == len(self.tree)
        for move in self.moves:
            if move.leaves == self.item or (is_last and move.leaves > item):
                for memory in self.left[move.item].values():
                    _wait_for(memory)
                    memory.there = None

    def _own(self, tensor: Tensor, item: int) -> None:
        if (storage := _storage(tensor)) is not None and self._owner(tensor) is None:
            self.owners[storage_key(storage)] = weakref.ref(storage), item

    def _owner(self, tensor: Tensor) -> int | None:
        """Return the item that made a tensor's storage; -1 was there before, `None` is unknown."""
        storage = _storage(tensor)
        if storage is None:
            return -1
        there, item = self.owners.get(storage_key(storage), (lambda: None, None))
        return None if there() is None else item

    def _pin(self, tensor: Tensor) -> None:
        """Leave a skip on the device, which a plan doesn't move."""
        if (storage := _storage(tensor)) is not None:
            key = storage_key(storage)
            self.owners[key] = weakref.ref(storage), -1
            for memories in self.left.values():
                memories.pop(key, None)

    def _pack(self, tensor: Tensor) -> Tensor | _Waiting:
        owner = self._owner(tensor)
        if owner is None:
            self._own(tensor, owner := self.item)
        # what is older stays on the device
        if owner not in self.left or self.item > owner + 1 or not tensor.numel():
            return tensor
        storage = tensor.untyped_storage()
        found = self.left[owner].get(storage_key(storage))
        if found is None:
            like = tensor.new_empty(0, dtype=torch.uint8)
            found = _Memory(tensor.detach(), times_written(tensor), storage.nbytes(), like)
            self.left[owner][storage_key(storage)] = found
            _copy_out(found, self.pinned)
        elif found.version != times_written(tensor):
            self._refuse(owner)
        form = tensor.shape, tensor.stride(), int(tensor.storage_offset())
        return _Waiting(found, tensor.dtype, form)

    def _unpack(self, packed: Tensor | _Waiting) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if packed.memory.there is None:
            _copy_in(packed.memory)
        _wait_for(packed.memory)
        there = packed.memory.there
        assert there is not None
        if there.dtype != torch.uint8 or there.shape != (packed.memory.num_bytes,):
            there = _bytes_of(there)  # it never left
        with torch.no_grad():
            whole = there.numel() // packed.dtype.itemsize * packed.dtype.itemsize
            return there[:whole].view(packed.dtype).as_strided(*packed.form)

    def _begin_backward(self, item: int) -> None:
        for move in sorted(self.moves, key=lambda move: -move.item):
            if move.returns >= item:  # from now on the graph alone holds it, until it's used
                for memory in self.left.pop(move.item, {}).values():
                    if memory.there is None:
                        _copy_in(memory)

    def _check(self, item: int) -> None:
        for owner in (item - 1, item):
            for memory in self.left.get(owner, {}).values():
                if memory.there is not None and times_written(memory.there) != memory.version:
                    self._refuse(owner)

    def _refuse(self, owner: int) -> None:
        stages = [self.names[stage] for stage in leaves((self.tree[owner],))]
        raise RuntimeError(
            f"What {', '.join(stages)} saved for backward was changed in place afterwards, but the "
            "plan had already begun to move it to the host. Solve again with "
            f"`stay={stages}` to keep it on the device."
        )


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a plain tensor; `None` where something else is there."""
    is_plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) or is_fake(tensor)
    if not is_plain or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.untyped_storage()


def _bytes_of(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a card that copy out and in."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Pinned:
    """Pinned memory in blocks. PyTorch rounds each piece of it up to a power of two."""

    def __init__(self) -> None:
        self.left = torch.empty(0)  # of the newest block

    def take(self, num_bytes: int) -> list[Tensor]:
        """Return that many bytes, in as many parts as there are blocks that they lie in."""
        parts = list[Tensor]()
        while num_bytes:
            if not self.left.numel():
                self.left = torch.empty(_BLOCK, dtype=torch.uint8, pin_memory=True)
            parts.append(self.left[:num_bytes])
            self.left = self.left[num_bytes:]
            num_bytes -= parts[-1].numel()
        return parts


def _parts(memory: _Memory) -> Sequence[Tensor]:
    """Divide a storage's bytes on the device as they are divided on the host."""
    assert memory.there is not None
    sizes = [part.numel() for part in memory.host]
    parts: tuple[Tensor, ...] = torch.split(_bytes_of(memory.there), sizes)
    return parts


@torch.no_grad()
def _copy_out(memory: _Memory, pinned: _Pinned) -> None:
    assert memory.there is not None
    if is_fake(memory.there):
        return
    if not memory.there.is_cuda:
        memory.host = _bytes_of(memory.there).cpu().numpy().copy()
        return
    memory.host = pinned.take(memory.num_bytes)
    out, _ = _streams(memory.there.device)
    out.wait_stream(torch.cuda.current_stream(out.device))
    with torch.cuda.stream(out):
        for host, there in zip(memory.host, _parts(memory), strict=True):
            host.copy_(there, non_blocking=True)
        memory.copied = out.record_event()


@torch.no_grad()
def _copy_in(memory: _Memory) -> None:
    """Take memory on the device for a storage again, and begin to fill it."""
    memory.there = memory.like.new_empty(memory.num_bytes)
    if is_fake(memory.there):
        return
    if memory.there.is_cuda:
        _, back = _streams(memory.there.device)
        back.wait_stream(torch.cuda.current_stream(back.device))  # its memory was free before
        with torch.cuda.stream(back):
            for host, there in zip(memory.host, _parts(memory), strict=True):
                there.copy_(host, non_blocking=True)
            memory.copied = back.record_event()
    elif memory.there.device.type == "cpu":
        np.copyto(memory.there.numpy(), memory.host)
    else:
        memory.there.copy_(torch.from_numpy(memory.host))


def _wait_for(memory: _Memory) -> None:
    if memory.copied is not None:
        torch.cuda.current_stream(memory.like.device).wait_event(memory.copied)
        memory.copied = None
