"""Real values for small tensors of an emulated card, where no kernel runs.

Programs read some values back and decide by them: whether a mask holds a zero, how long a batch
is. Such tensors are small, and computed from what the host copied in. Before each of PyTorch's
kernels for a card stands a function here. It lets the kernel do what it does on the host, then
does the same with the host's copies of the values, if all of them are known. A kernel with an
input that is not known makes unknown what it writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

# Values of a larger tensor are not followed: computing them would take the host too long.
MAX_BYTES, MAX_FLOAT_BYTES = 4 << 20, 4 << 10
# To these, as to `out=`, it does not matter what the tensor held before.
_OVERWRITE = {"zero_", "fill_", "copy_", "random_"}
_DRAWN = {"random_", "randperm"}  # integers; what else is drawn at random stays unknown
_CHANGE_THE_STORAGE = {"resize_", "set_", "_resize_output_"}
# Where one input settles the result: what is nothing but zeros, or True where all are of that kind.
_AND, _OR = {"bitwise_and", "logical_and"}, {"bitwise_or", "logical_or"}
# They may be given a number as a tensor on the card, which Python cannot be handed.
_NOT_STOOD_BEFORE = {
    *("aten::pow.Tensor_Tensor", "aten::pow.Tensor_Tensor_out"),
    *("aten::searchsorted.Tensor", "aten::searchsorted.Tensor_out"),
}
_NUMBERS = (bool, int, float, complex)
_KNOWN, _NUMBER = "a known value", "a number that is not known"


class KnownValues:
    """Small tensors on the card whose values are known.

    `kernels` are schema and full name of each operation that has a kernel for a card. `note_read`
    is called when the program reads a value that is not known; with True when it is a number.
    """

    def __init__(
        self, torch: Any, kernels: Iterable[tuple[Any, str]], note_read: Callable[[bool], None]
    ) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch = torch
        self.weak: Callable[[Any], Any] = StorageWeakRef
        self.note_read = note_read
        self.storages: dict[int, tuple[Any, Any]] = {}  # by address: the card's, the host's
        self.zeros_read = 0
        self.thread = threading.local()
        self.generator = torch.Generator()
        self.library = torch.library.Library("aten", "IMPL")
        for schema, name in kernels:
            if name in _NOT_STOOD_BEFORE:
                continue
            kernel = torch.library.get_kernel(name, "CUDA")
            stand_in = partial(self._run, _Operation(torch, schema), kernel)
            self.library.impl(name, stand_in, "CUDA", with_keyset=True)
        self.callback = ctypes.CFUNCTYPE(None)(self._on_read)
        self.hook = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "on_read")
        self.hook.value = ctypes.cast(self.callback, ctypes.c_void_p).value

    def stop(self) -> None:
        """Note no more reads, since Python is about to end."""
        self.hook.value = None

    def _on_read(self) -> None:
        """Zeros were copied to the host in place of values that no kernel has made."""
        reading = getattr(self.thread, "reading", "")
        if reading != _KNOWN:
            self.zeros_read += 1
            self.note_read(reading == _NUMBER)

    def _run(self, operation: _Operation, kernel: Any, keys: Any, *args: Any, **named: Any) -> Any:
        """Run a kernel, and keep the host's copies of the values as they would be on a card."""
        inputs, written = operation.tensors(args, named)
        known = all(map(self._is_known, inputs)) or self._is_settled(operation, inputs)
        known = known and all(map(_is_small, written))
        args = operation.with_tensors(args)
        outer = getattr(self.thread, "reading", "")
        reads_a_number = operation.reads and inputs[0].is_floating_point()  # a loss, mostly
        self.thread.reading = (known and _KNOWN) or outer or (reads_a_number and _NUMBER) or ""
        try:
            out = kernel.call_boxed(keys, *args, **named)
        finally:
            self.thread.reading = outer
        if known and operation.on_host is not None:
            with contextlib.suppress(RuntimeError, NotImplementedError, IndexError, TypeError):
                return self._compute(operation, args, named, written, out)
        for tensor in written:
            self.storages.pop(_address(tensor), None)
        return out

    def _compute(
        self, operation: _Operation, args: Any, named: dict[str, Any], written: Any, out: Any
    ) -> Any:
        """Do on the host what the kernel did not do on the card, and give the kernel's result."""
        if operation.drawn:
            named = {**named, "generator": self.generator}
        for tensor in written:
            if not self._is_known(tensor):
                self._learn(tensor)
        find = self._on_host_or_zeros if operation.logic in _AND | _OR else self._on_host
        on_host = partial(_map_tensors, self.torch, find)
        result = operation.on_host(*on_host(args), **on_host(named))
        if operation.written:
            return out
        if isinstance(result, (tuple, list)):
            return type(out)(map(self._as_result, out, result))
        return self._as_result(out, result)

    def _as_result(self, out: Any, value: Any) -> Any:
        """Return what the program gets: the kernel's tensor, or a number that is known."""
        if not isinstance(value, self.torch.Tensor):
            return value
        if value.shape != out.shape:  # it depends on the values
            return value.to(out.device)
        self._learn(out, value)
        return out

    def _is_known(self, tensor: Any) -> bool:
        if not tensor.is_cuda:
            return bool(tensor.device.type == "cpu") and _is_small(tensor)
        found = self.storages.get(_address(tensor))
        return found is not None and not found[0].expired()

    def _is_settled(self, operation: _Operation, inputs: list[Any]) -> bool:
        """Tell whether the result is known by one input, as that of `unknown | True`."""
        known = filter(self._is_known, inputs)
        if operation.logic in _AND:
            return not all(bool(self._on_host(tensor).any()) for tensor in known)
        if operation.logic in _OR and all(t.dtype is self.torch.bool for t in inputs):
            return any(bool(self._on_host(tensor).all()) for tensor in known)
        return False

    def _learn(self, tensor: Any, value: Any = None) -> None:
        """Begin to follow a tensor's values; without a value they are about to be written."""
        storage = tensor.untyped_storage()
        if not _is_small(tensor) or tensor.numel() * tensor.itemsize != storage.nbytes():
            raise RuntimeError("Only a part of the values would be known.")
        host = self.torch.UntypedStorage(storage.nbytes(), device="cpu").fill_(0)
        self.storages[storage.data_ptr()] = (self.weak(storage), host)
        if value is not None:
            self._on_host(tensor).copy_(value)

    def _on_host_or_zeros(self, tensor: Any) -> Any:
        """Return the host's copy of a tensor, or zeros where another input settles the result."""
        known = self._is_known(tensor)
        return self._on_host(tensor) if known else self.torch.zeros_like(tensor, device="cpu")

    def _on_host(self, tensor: Any) -> Any:
        """Return the host's copy of a tensor: of the same shape and strides."""
        if not tensor.is_cuda:
            return tensor
        if not self._is_known(tensor):  # cuDNN's flat weights
            raise RuntimeError("The kernel has given the tensor another storage.")
        place = (tensor.storage_offset(), tensor.size(), tensor.stride())
        empty = self.torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(self.storages[_address(tensor)][1], *place)


class _Operation:
    """What a schema says of an operation: which tensors it reads, which it writes."""

    def __init__(self, torch: Any, schema: Any) -> None:
        self.torch, self.schema = torch, schema
        self.name = schema.name.removeprefix("aten::")
        self.logic = self.name.rstrip("_")
        arguments = schema.arguments
        self.written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        self.overwrites = self.name in _OVERWRITE or any(a.is_out for a in arguments)
        self.names = [a.name for a in arguments]
        self.places = [n for n, a in enumerate(arguments) if str(a.type) == "Tensor"]
        self.drawn = self.name in _DRAWN
        self.reads = self.name in ("copy_", "_local_scalar_dense")

    @cached_property
    def on_host(self) -> Any:
        """What to call with the host's tensors; None for what is not followed."""
        packet = getattr(self.torch.ops.aten, self.name)
        found = getattr(packet, self.schema.overload_name or "default")
        at_random = self.torch.Tag.nondeterministic_seeded in found.tags and not self.drawn
        return None if at_random or self.name in _CHANGE_THE_STORAGE else found

    def tensors(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return the tensors whose values count, and those that are written."""
        inputs, written = [], []
        for name, value in [*zip(self.names, args, strict=False), *named.items()]:
            found = list(_tensors(self.torch, value))
            if name in self.written:
                written += found
            if name not in self.written or not self.overwrites:
                inputs += found
        return inputs, written

    def with_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Put tensors where Python was given numbers, of the type that promotion gives them."""
        places = [n for n in self.places if n < len(args)]  # others have names, as `out`
        numbers = [n for n in places if isinstance(args[n], _NUMBERS)]
        if not numbers:
            return args
        tensors = [args[n] for n in places if isinstance(args[n], self.torch.Tensor)]
        others = [t for t in tensors if t.dtype is not self.torch.bool] or tensors
        changed = list(args)
        for n in numbers:
            dtype = self.torch.result_type(others[0], args[n])
            changed[n] = self.torch.scalar_tensor(args[n], dtype=dtype, device="cpu")
        return tuple(changed)


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(torch, part)


def _map_tensors(torch: Any, change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_tensors(torch, change, part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(torch, change, part) for part in value)
    return value


def _address(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _is_small(tensor: Any) -> bool:
    limit = MAX_FLOAT_BYTES if tensor.is_floating_point() else MAX_BYTES
    return bool(tensor.untyped_storage().nbytes() <= limit)
