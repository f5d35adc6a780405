"""A log of the birth and death of every tensor storage, which says afterwards what each was.

PyTorch asks a `TorchDispatchMode` about every operation, so every new storage is seen at birth. A
weak reference tells when it is freed. What a storage *was* (a gradient, an activation) is often
known only later, so labels are given at the end, from birth on.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn

from tutorial_lib.memory.private_torch import (
    TorchDispatchMode,
    in_backward,
    in_checkpoint,
    is_fake,
    is_wrapper,
    leaves_of,
    sparse_parts,
    storage_key,
    storage_keys,
    watched_backwards,
)
from tutorial_lib.memory.records import Phase, StorageRecord
from tutorial_lib.memory.timeline import Life

# Types that most arguments have: asked first, since this is done for every operation.
_PLAIN = (Tensor, nn.Parameter)
_SEQUENCES = (tuple, list)
# torch.tensor and torch.from_numpy end in it: its result is new, and no operation made it.
_FROM_OUTSIDE = torch.ops.aten.lift_fresh.default


class StorageLog(TorchDispatchMode):
    """Record every storage of one device type while the mode is active.

    Blind to a kernel's workspace, unless `workspace_of` says how much; and to tensors that no
    operation touches, unless `label_storages` was told of them or a graph holds them as leaves.
    """

    workspace_of: Callable[[Any, Any], int] | None = None  # given by `predict`

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.records: list[StorageRecord] = []
        self.clock = 0
        self.phase: Phase = "zero"
        self.phase_starts: list[tuple[int, Phase]] = [(0, "zero")]
        self.in_optimizer = False
        self.module_stack: list[str] = []
        self.owners: dict[int, str] = {}  # from a parameter's id to the name of its module
        self.line_of: Callable[[FrameType], str] | None = None  # asked of each birth, where set
        self.then: Callable[..., None] | None = None  # told of each operation and its result
        self._counts_fake = False
        self._collective = ""
        self._metered: dict[torch.device, bool] = {}
        self._patches = contextlib.ExitStack()
        self._backwards: list[bool] = []  # of those that are running, whether each keeps a graph
        self._alive: dict[int, tuple[StorageRecord, weakref.ref[torch.UntypedStorage]]] = {}

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation and record the storages that it met and made."""
        if func.namespace != "profiler":
            self._enter_phase()
        # gloo copies what it reduces, and shows the copy in the operation after the collective.
        if func is _FROM_OUTSIDE:  # a fake result is another tensor than the argument
            self._record(out := func(*args), "lift_fresh", "inputs")
            return out
        tensors = list_tensors((args, kwargs) if kwargs else args)
        for tensor, key in zip(tensors, storage_keys(tensors), strict=True):
            if key not in self._alive:
                for held in (tensor, *leaves_of(tensor)):  # of a graph that is older than the log
                    self._record(held, self._collective, "" if self._collective else "inputs")
        if func.namespace == "torch_nn":
            from tutorial_lib.memory.private_torch_unseen import run_opaque

            out = run_opaque(self, func, args, kwargs, halves=self.workspace_of is None)
        else:
            out = self.run_below(func, args, kwargs)
        if self.then is not None:
            self.then(func, args, kwargs, out)
        self._collective = func.overloadpacket.__name__ if func.namespace == "c10d" else ""
        if self._collective == "allreduce_":
            self._label_buckets(tensors)
        # Time passes with births alone: an operation that makes no storage changes no total.
        before = len(self.records)
        self.clock += 1
        op = func.overloadpacket.__name__
        for tensor in list_tensors(out):
            self._record(tensor, op, "")
        if self.workspace_of is not None and (size := self.workspace_of(func, args)):
            lost = StorageRecord(size, self.clock, self.phase, op, "", "other", died=self.clock)
            self.records.append(lost)
        self.clock -= len(self.records) == before
        return out

    def __enter__(self) -> Self:
        """Begin, and see the resizes too that no operation makes: FSDP's."""
        self._counts_fake |= is_fake(torch.empty(0))  # a prediction is being made
        plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            before = storage.nbytes()
            out = plain(storage, size)
            self._resized(storage, before)
            return out

        self._patches.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", resize))
        self._backwards = self._patches.enter_context(watched_backwards())
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End, also after an error."""
        self._patches.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def label_storages(
        self, tensors: Iterable[Tensor | None], label: str, *, of: Tensor | None = None
    ) -> None:
        """Label the storages of these tensors, seen before or not; those `of` a parameter."""
        owner = self.owners.get(id(of), "")
        for tensor in list_tensors([tensor for tensor in tensors if tensor is not None]):
            for part in sparse_parts(tensor) or [tensor]:
                self._counts_fake |= is_fake(part)
                if (record := self._record(part, "", label)) is not None:
                    record.label, record.module = label, owner or record.module

    def was_made(self, tensor: Tensor) -> bool:
        """Tell whether an operation under the log made a tensor's storage."""
        records = [self._alive[key][0] for key in storage_keys([tensor]) if key in self._alive]
        return any(record.born for record in records)

    def label_module(self, module: nn.Module, *, recurse: bool = True) -> None:
        """Label a module's parameters, buffers and present gradients."""
        for parameter in module.parameters(recurse):
            self.label_storages([parameter], "parameters", of=parameter)
            self.label_storages([parameter.grad], "gradients", of=parameter)
        self.label_storages(module.buffers(recurse), "buffers")

    def label_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Label an optimizer's parameters, their present gradients, and its state."""
        for group in optimizer.param_groups:
            self.label_storages(group["params"], "parameters")
            self.label_storages((parameter.grad for parameter in group["params"]), "gradients")
        for parameter, state in optimizer.state.items():
            self.label_storages(list_tensors([state]), "optimizer_state", of=parameter)

    def set_phase(self, phase: Phase) -> None:
        """Note that another phase of the step has begun."""
        if phase == self.phase:
            return
        if phase == "backward":
            for record, _ in self._alive.values():
                record.waits_for_backward |= record.is_of_a_graph()
        # A tick of its own, so that what dies between two phases is seen to die.
        self.clock += 1
        self.phase = phase
        self.phase_starts.append((self.clock, phase))

    def alive_bytes(self) -> int:
        """Count the bytes of all storages that are alive now."""
        return sum(record.num_bytes for record, _ in self._alive.values())

    def finish(self) -> None:
        """End the step: what a forward made with gradients on still waits for its backward."""
        self.clock += 1
        for record, _ in self._alive.values():
            record.waits_for_backward |= record.is_of_a_graph() and record.with_grad

    def lives(self) -> list[Life]:
        """Return every storage's life, labelled."""
        return [
            Life(r.num_bytes, r.born, r.died, r.category(), r.phase, r.op, r.module, r.line)
            for r in self.records
        ]

    def _label_buckets(self, tensors: list[Tensor]) -> None:
        """Label what DDP adds up over all ranks and never gives away: copies of gradients."""
        for record in filter(None, (self._record(tensor, "", "inputs") for tensor in tensors)):
            if record.label == "inputs" and self.phase == "backward":
                record.label = "gradients"

    def _enter_phase(self) -> None:
        if in_backward():  # recomputation too
            phase = "backward"
        # Between backward and the update, without gradients: unscaling or clipping.
        elif self.in_optimizer or (self.phase == "backward" and not torch.is_grad_enabled()):
            phase = "optimizer"
        else:
            phase = "forward" if torch.is_grad_enabled() else self.phase
        self.set_phase(phase)

    def _record(self, tensor: Tensor, op: str, label: str) -> StorageRecord | None:
        (key,) = storage_keys((tensor,))
        if not key:
            for part in sparse_parts(tensor):
                self._record(part, op, label)
            return None
        storage = tensor.untyped_storage()
        if key in self._alive:
            record = self._alive[key][0]
            if storage.nbytes() != record.num_bytes:
                self._resize(record, storage)
            return record
        if not self._is_metered(tensor.device):
            return None
        if not self._counts_fake and is_fake(tensor):
            return None  # sharded tensors ask one for a result's shape; it has no memory
        # Never seen and no operation's output: it was there before the log began.
        born = self.clock if op else 0
        module = self.module_stack[-1] if self.module_stack else ""
        record = StorageRecord(storage.nbytes(), born, self.phase, op, module, label)
        record.with_grad = torch.is_grad_enabled()
        if self.phase == "backward" and record.with_grad:
            # Plain backward runs with gradients off: only a recomputed forward turns them on.
            keeps_graph = bool(self._backwards) and all(self._backwards)
            record.recomputed = not keeps_graph or in_checkpoint(sys._getframe(1), "unpack_hook")
        if self.line_of is not None and born:
            record.line = self.line_of(sys._getframe(1))
        self._watch(record, storage, key)
        return record

    def _is_metered(self, device: torch.device) -> bool:
        if device not in self._metered:  # the device's type takes longer to read
            self._metered[device] = device.type == self.device_type
        return self._metered[device]

    def _watch(self, record: StorageRecord, storage: torch.UntypedStorage, key: int) -> None:
        self.records.append(record)
        self._alive[key] = (record, weakref.ref(storage, self._on_death(key)))

    def _resized(self, storage: torch.UntypedStorage, before: int) -> None:
        if storage.nbytes() == before:
            return
        self.clock += 1
        key = storage_key(storage)
        if key in self._alive:
            self._resize(self._alive[key][0], storage)
        elif not before and storage.device.type in (self.device_type, "meta"):  # a fake one's
            # FSDP gathers weights into storages that it keeps empty meanwhile.
            record = StorageRecord(storage.nbytes(), self.clock, self.phase, "resize_", "")
            record.label = "parameters"
            self._watch(record, storage, key)

    def _resize(self, record: StorageRecord, storage: torch.UntypedStorage) -> None:
        # resize_() keeps the storage: end one life and begin another of the new size.
        self.records.append(replace(record, died=max(record.born, self.clock - 1)))
        record.num_bytes, record.born = storage.nbytes(), self.clock

    def _on_death(self, key: int) -> Callable[[Any], None]:
        def died(_: Any) -> None:
            if key in self._alive:
                self._alive.pop(key)[0].died = self.clock

        return died


def list_tensors(value: Any) -> list[Tensor]:
    """List the tensors in lists, tuples and dicts; of one that is sharded, what this rank holds."""
    found: list[Tensor] = []
    items = value.values() if isinstance(value, dict) else value
    if type(items) not in _SEQUENCES and (
        isinstance(items, Tensor) or not isinstance(items, Iterable)
    ):
        items = (items,)
    for item in items:
        kind = type(item)
        if kind in _PLAIN:
            found.append(item)
        elif isinstance(item, Tensor):
            found += _parts(item) if is_wrapper(kind) else [item]  # type: ignore[arg-type]
        elif isinstance(item, list | tuple | dict):
            found += list_tensors(item)
    return found


def _parts(wrapper: Any) -> list[Tensor]:
    names, _ = wrapper.__tensor_flatten__()
    return list_tensors([getattr(wrapper, name) for name in names])
