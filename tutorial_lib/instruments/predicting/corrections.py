"""Corrections that give fake tensors the strides, types and buffers of real kernels.

A fake tensor has the shape and type that a kernel returns. A few kernels return more bytes than
that, or lay them out in another order, so that a later operation copies or need not: found by
running operations for real and on fake tensors and comparing every storage.
"""

import math
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.private_torch import operations, suggest_memory_format, without_modes
from tutorial_lib.memory.private_torch import TorchDispatchMode, sparse_parts

_aten = torch.ops.aten
# Each row was found by a test that compares real and fake storages: tests/test_corrections.py for
# a CPU's kernels, tests/test_emulated.py for those of PyTorch's CUDA build (2.13).
# A mean or sum of losses is a view of all the losses. (test_a_loss_keeps_the_storage_of_all_losses)
_LOSSES = {
    _aten.mse_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.soft_margin_loss.default,
    _aten.binary_cross_entropy.default,
}
# The statistics of 16-bit inputs are float32 where the weight is, which is this argument.
# (test_statistics_have_the_real_type)
_NORMS = {
    _aten.native_layer_norm.default: 2,
    _aten.native_group_norm.default: 1,
    _aten.native_batch_norm.default: 1,
}
# On CUDA those of these two always are. (test_predicted_kernels_save_what_a_cuda_build_saves)
_FLOAT32_ON_CUDA = {_aten.native_layer_norm.default, _aten.native_batch_norm.default}
# Their kernels return rows in order; fake tensors keep the strides of what came in.
# (test_rows_lie_as_kernels_lay_them)
_IN_ORDER = {
    _aten.native_batch_norm.default,
    _aten.native_batch_norm_backward.default,
    _aten.native_layer_norm_backward.default,
}
# Fake tensors take its formula apart into fifty operations, and some 10 ms. (test_a_group_norm...)
_GROUP_NORM_BACKWARD = _aten.native_group_norm_backward.default
_LARGE = 2**17  # numbers, which no prediction follows
# What sums columns into an image begins in memory of the columns' size, and keeps it: `fold`, and
# the backward of `unfold`. (test_an_image_keeps_the_storage_of_its_columns)
_FOLD = _aten.col2im.default
# What an LSTM keeps for its backward, beside output and states; fake tensors say nothing.
# (test_an_lstm_keeps_a_workspace)
_LSTM = _aten.mkldnn_rnn_layer.default
_HALVES = (torch.float16, torch.bfloat16)


class RealSizes(TorchDispatchMode):
    """Return the results of some operations with the bytes that their kernels return."""

    def __init__(self, kernels: str) -> None:
        super().__init__()
        self.kernels = kernels

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation and correct what it returns."""
        if func is operations.GROUPED_MATMUL and args[0].dtype is not torch.bfloat16:
            # Fake tensors know the kernel for bfloat16 alone. (test_a_foreign_step... Mixtral)
            halves = [one.to(torch.bfloat16) for one in args[:2]]
            return func(*halves, *args[2:], **kwargs).to(args[0].dtype)
        if func is _aten.add_.Tensor and sparse_parts(args[1]) and not sparse_parts(args[0]):
            return args[0]  # fake tensors would read the entries' places
        if func is _GROUP_NORM_BACKWARD and (found := _of_group_norm(*args)) is not None:
            return found
        out = func(*args, **kwargs)
        if func is operations.EFFICIENT_BACKWARD and out[1].shape != args[2].shape:
            # Fake tensors know no groups of heads up to 2.13. (test_from_2_14_on_grouped_...)
            grads = (one.new_empty(one.transpose(1, 2).shape).transpose(1, 2) for one in args[2:4])
            return out[0], *grads, out[3]
        if operations.is_empty_sparse(out):
            return _as_many(func, args, out)
        if func is _FOLD and args[0].numel() > out.numel():
            return args[0].new_empty(args[0].numel()).as_strided(out.shape, out.stride())
        if isinstance(out, Tensor) and out.dim() > 3 and 1 in out.shape and not kwargs:
            return _laid_out(func, args, out)
        if func in _LOSSES:
            return _not_shrunk(out, args[0], args[1])
        if func in _NORMS and out[1].dtype in _HALVES:
            weight = args[_NORMS[func]]
            mixed = weight is not None and weight.dtype == torch.float32
            if mixed or (self.kernels == "cuda" and func in _FLOAT32_ON_CUDA):
                out = out[0], out[1].float(), out[2].float()
        if func is _LSTM and out[3].dtype == torch.uint8 and not out[3].numel():
            num_bytes = _lstm_workspace(self.kernels, args[0], args[10])
            out = *out[:3], out[3].new_empty(num_bytes)
        if func in _IN_ORDER and out[0] is not None:
            first = out[0].contiguous(memory_format=suggest_memory_format(out[0]))
            out = first, *out[1:]
        return out


def _as_many(func: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """Return a sparse result with as many entries as its inputs have, which fake tensors lose.

    Too many where entries of one place are added up, and where a bag has padding, whose entries a
    kernel drops. (`sparse bags` and its like in course/recorded/make/foreign_models.py)
    """
    if func is operations.BAG_BACKWARD:  # an entry for each index in the bags, where they lie
        values = sparse_parts(out)[1].new_empty(args[1].numel(), out.size(1))
        return operations.sparse(args[1].long().view(1, -1), values, out)
    parts = [part for one in args if isinstance(one, Tensor) for part in sparse_parts(one)]
    count = sum(part.size(-1) for part in parts if part.dim() == 2 and not part.is_floating_point())
    if not count:
        return out
    indices, values = sparse_parts(out)
    return operations.sparse(
        indices.new_empty(indices.size(0), count), values.new_empty(count, *values.shape[1:]), out
    )


def _of_group_norm(*args: Any) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of a plain image, and of scales and shifts, as the formula does."""
    tensors, channels, mask = args[:5], args[6], args[-1]
    if tensors[4] is None or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    x = tensors[1]
    is_plain = tensors[0].is_contiguous() and x.is_contiguous() and 1 not in x.shape[1:]
    if not is_plain or x.numel() < _LARGE:
        return None
    shapes = x.shape, (channels,), (channels,)
    return tuple(
        x.new_empty(shape) if asked else None for asked, shape in zip(mask, shapes, strict=True)
    )


def _laid_out(func: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """Return an image with the strides of C++: a side of 1 decides on later memory formats.

    Fake tensors have others there. (test_rows_lie_as_kernels_lay_them)
    """
    tensors = [one for one in args if isinstance(one, Tensor)]
    strides = out.stride()
    if func is _aten.view.default:
        with without_modes():
            twin = torch.empty_strided(args[0].shape, args[0].stride(), device="meta")
            strides = twin.view(args[1]).stride()
    elif (
        operations.is_elementwise(func)
        and len({one.stride() for one in tensors}) == 1
        and not tensors[0].is_contiguous()
    ):
        last = sum((n - 1) * k for n, k in zip(out.shape, tensors[0].stride(), strict=True))
        strides = tensors[0].stride() if last + 1 == out.numel() else strides
    return out if strides == out.stride() else out.as_strided(out.shape, strides)


def _not_shrunk(out: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Return a mean or sum of losses in the storage that held all the losses before."""
    shape = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]
    if out.dim() or math.prod(shape) <= 1:
        return out
    return out.new_empty(shape).as_strided((), ())


def _lstm_workspace(kernels: str, x: Tensor, hidden: int) -> int:
    """Bytes that one layer of an LSTM keeps from forward to backward.

    Source:
        For a CPU the parts of oneDNN's `src/cpu/rnn/rnn_utils.cpp`, each in whole pages; exact for
        float32; up to 14 % off for bfloat16. For CUDA four gates, cell and output of each step:
        a guess, unchecked, since cuDNN does not say what it keeps. Not counted is the state of its
        dropout, which stays on the card: 16 bytes for each thread that runs there at once.
    """
    steps, batch, width = x.shape
    item = x.element_size()
    if kernels == "cuda":
        return steps * batch * hidden * 6 * item

    def padded(size: int, item_bytes: int) -> int:
        line = 64 // item_bytes
        rounded = -(-size // line) * line
        return rounded + line if rounded % 256 == 0 else rounded

    wide = max(width, hidden)
    rows = 2 * (steps + 1) * batch
    parts = [
        steps * batch * padded(4 * hidden, item) * item,  # gates
        *[rows * padded(wide, item) * item] * 2,  # states of the layer and of the steps
        *[rows * padded(wide, 4) * 4] * (3 if torch.__version__ < "2.11" else 1),  # their gradients
        *[rows * hidden * 4] * 2,  # cells, and their gradients
        steps * batch * padded(hidden, item) * item,  # outputs
    ]
    return sum(-(-part // 4096) * 4096 for part in parts)
