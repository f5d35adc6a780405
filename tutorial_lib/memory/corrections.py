"""Where PyTorch's fake tensors are not as real ones are, and what they are then given.

A fake tensor has the shape and type that a kernel returns. A few kernels return more bytes than
that, or lay them out in another order, so that a later operation copies or need not: found by
running operations for real and on fake tensors and comparing every storage.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_LOSSES = {
    _aten.mse_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.soft_margin_loss.default,
    _aten.binary_cross_entropy.default,
}
_NORMS = {_aten.native_layer_norm.default: 2, _aten.native_group_norm.default: 1}  # where weight is
# Their kernels return rows in order; fake tensors keep the strides of what came in.
_IN_ORDER = {
    _aten.native_batch_norm.default,
    _aten.native_batch_norm_backward.default,
    _aten.native_layer_norm_backward.default,
}
_HALVES = (torch.float16, torch.bfloat16)


class RealSizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Give the results of some operations the bytes that their kernels return.

    Args:
        kernels: Whose kernels, `cuda` or `cpu`: they differ in the statistics of a layer norm.
    """

    def __init__(self, kernels: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = kernels

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and correct what it returns."""
        out = func(*args, **(kwargs or {}))
        if func in _LOSSES:
            return _not_shrunk(out, args[0], args[1])
        if func in _IN_ORDER and out[0] is not None:
            return _in_order(out[0]), *out[1:]
        if func in _NORMS and out[1].dtype in _HALVES:
            weight = args[_NORMS[func]]
            mixed = weight is not None and weight.dtype == torch.float32
            on_cuda = self.kernels == "cuda" and func is _aten.native_layer_norm.default
            if mixed or on_cuda:
                return out[0], out[1].float(), out[2].float()
        return out


def _not_shrunk(out: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Give a mean or sum of losses the storage that held all the losses before."""
    shape = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]
    if out.dim() or math.prod(shape) <= 1:
        return out
    return out.new_empty(shape).as_strided((), ())


def _in_order(out: Tensor) -> Tensor:
    """Give a result the memory format that a kernel chooses: contiguous, or channels last."""
    return out.contiguous(memory_format=suggest_memory_format(out))
