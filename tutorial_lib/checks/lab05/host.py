"""A host's memory that the meter cannot see, for tensors that leave the device."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor


class Host:
    """Holds copies of storages, and counts them.

    On a CPU a copy is a NumPy array, which no meter takes for a tensor: what tensors still hold is
    what would be held on a GPU. From a GPU, a copy goes to pinned memory.
    """

    def __init__(self) -> None:
        self.copied_bytes = 0  # since the beginning
        self.held_bytes = 0  # now

    def put(self, tensor: Tensor) -> HostCopy:
        """Copy the whole storage in which a tensor lies, also where the tensor is a part of it."""
        copy = HostCopy(tensor)
        self._add(copy.num_bytes)
        self.copied_bytes += copy.num_bytes
        weakref.finalize(copy, self._add, -copy.num_bytes)
        return copy

    def _add(self, num_bytes: int) -> None:
        self.held_bytes += num_bytes


class HostCopy:
    """A storage's copy; its memory is given back when nobody holds the copy any more."""

    def __init__(self, tensor: Tensor) -> None:
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        whole.set_(tensor.untyped_storage())
        self.num_bytes: int = whole.numel()
        self._device = tensor.device
        self._array: Any = None
        if tensor.is_cuda:
            self._array = torch.empty(whole.shape, dtype=torch.uint8, pin_memory=True).copy_(whole)
        else:
            self._array = whole.numpy().copy()

    def get(
        self, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int
    ) -> Tensor:
        """Bring the part of the storage that a tensor covers back to the device.

        Args:
            dtype: The tensor's.
            size: The tensor's.
            stride: The tensor's; steps in the storage, in elements.
            offset: `tensor.storage_offset()`: where in the storage it begins, in elements.
        """
        whole = torch.as_tensor(self._array).view(dtype)
        return whole.as_strided(size, stride, offset).to(self._device, copy=True)
