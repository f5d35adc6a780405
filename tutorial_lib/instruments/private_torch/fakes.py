"""Fake tensors made without asking their mode, which takes ten times as long.

Each name says the file of PyTorch 2.13 that it was read in.
"""

import contextlib
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.memory.private_torch import FakeTensor, FakeTensorMode

_CPU, _META = torch.device("cpu"), torch.device("meta")


class FakeMaker:
    """Makes fake tensors on the CPU as their constructor does, with the same attributes.

    `FakeTensor.__new__`, `FakeTensorConverter`: torch/_subclasses/fake_tensor.py.
    `storage_memo`, `describer`: torch/_subclasses/meta_utils.py. `_dispatch_key_set`,
    `_make_subclass`, `_set_throw_on_mutable_data_ptr`: torch/_C/__init__.pyi.

    Args:
        mode: Whose tensors they are.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._converter: Any = mode.fake_tensor_converter
        with torch._C._DisableTorchDispatch():
            first = FakeTensor(mode, torch.empty(0, device=_META), _CPU)
        self._attributes = dict(vars(first))
        self._keys = torch._C._dispatch_key_set(first)

    def makes(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is of the kind that is made here: no negated view, no constant."""
        mine = type(tensor) is FakeTensor and tensor.fake_device == _CPU and tensor.constant is None
        return mine and bool(torch._C._dispatch_key_set(tensor) == self._keys)

    def make(self, kind: torch.dtype, size: Any, strides: Any) -> Tensor:
        """Make a tensor with a storage of its own; inside `asking_no_mode`."""
        return self._dressed(torch.empty_strided(size, strides, dtype=kind, device=_META))

    def make_view(
        self, of: Tensor, kind: torch.dtype, size: Any, strides: Any, first: int
    ) -> Tensor:
        """Make a tensor with the storage of another; inside `asking_no_mode`."""
        empty = torch.empty(0, dtype=kind, device=_META)
        return self._dressed(empty.set_(of.untyped_storage(), first, size, strides))

    def make_constant(self, number: Tensor, view_of: Tensor | None = None) -> Tensor:
        """Make what remembers a real number, inside `asking_no_mode`, as `from_real_tensor`."""
        size, strides, kind = number.size(), number.stride(), number.dtype
        made: Any = (
            self.make(kind, size, strides)
            if view_of is None
            else self.make_view(view_of, kind, size, strides, int(number.storage_offset()))
        )
        made.constant = number
        self._converter.add_constant_storage_mapping(made)
        self._converter.set_tensor_memo(number, made)
        shapes = self._converter.meta_converter
        key = shapes.describer.get_storage_id(number.untyped_storage())
        shapes.storage_memo[key] = made.untyped_storage()
        return made  # type: ignore[no-any-return]

    def _dressed(self, meta: Tensor) -> Tensor:
        made: Tensor = Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=_CPU
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(self._attributes)
        return made


def asking_no_mode() -> contextlib.AbstractContextManager[Any]:
    """Call operations in a block without asking a mode (torch/_C/__init__.pyi)."""
    guard: contextlib.AbstractContextManager[Any] = torch._C._DisableTorchDispatch()
    return guard
