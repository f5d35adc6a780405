"""Workspace that a GPU's kernel takes and gives back inside one operation; no tensor shows it.

An A100's, where it depends on the card. `tests/test_emulated_rows.py` holds the predicted peaks
against what PyTorch's own allocator was asked for.
"""

import math
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.private_torch import operations

_FLOAT_BYTES = 4
_MULTIPROCESSORS, _THREADS = 108, 2048  # of an A100, and of each of its multiprocessors
_SUMS = {torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim}


def workspace_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that an operation's kernel needs on a GPU, beside arguments and result."""
    if func in _SUMS:
        return _of_a_sum(args[0], args[1])
    if func is operations.SOFTMAX_BACKWARD:
        # `Tensor tmp = grad * output;` in aten/src/ATen/native/cuda/SoftMax.cu (2.13)
        return int(args[0].numel() * args[0].element_size())
    if func is operations.FLASH_BACKWARD:
        return _of_flash_backward(args[1], args[2])
    if func is operations.EFFICIENT_BACKWARD:
        # `delta`, in aten/src/ATen/native/transformers/cuda/attention_backward.cu (2.13)
        return _FLOAT_BYTES * int(args[6].numel())
    return 0


def _of_flash_backward(query: Tensor, key: Tensor) -> int:
    """`softmax_d` and `dq_accum` in float32, and keys and values for each head of a group.

    Source:
        `mha_bwd` in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (2.13).
    """
    batch, heads, length, width = query.shape
    rows = batch * heads * _round_up(length, 128)
    wide = _round_up(width, 32 if width <= 128 else 64)
    expanded = 2 * batch * heads * key.size(2) * width * query.element_size()
    return rows * (wide + 1) * _FLOAT_BYTES + expanded * (heads != key.size(1))


def _of_a_sum(tensor: Tensor, dims: list[int] | None) -> int:
    """Partial sums of a reduction that several blocks share.

    A bias's gradient is one. Where neighbours in memory are added up, the bytes are few.

    Source:
        `setReduceConfig` and `global_memory_size` in ATen/native/cuda/Reduce.cuh (2.13).
    """
    reduced = {dim % tensor.dim() for dim in dims or range(tensor.dim())} if tensor.dim() else set()
    kept = [dim for dim in range(tensor.dim()) if dim not in reduced and tensor.size(dim) > 1]
    fastest = min(kept, key=tensor.stride, default=None)
    if fastest is None or tensor.stride(fastest) != 1:
        return 0
    outputs = math.prod(tensor.size(dim) for dim in kept)
    inputs = tensor.numel() // outputs if outputs else 0
    vector = math.gcd(4, tensor.size(fastest))
    width, height = _block(outputs // vector, inputs, 512 // vector)
    values = -(-inputs // height)
    if inputs < min(16 * height, 256) or values < 256:
        return 0
    grid = -(-(outputs // vector) // width)
    target = _MULTIPROCESSORS * (_THREADS // (width * height))
    if grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    return _FLOAT_BYTES * outputs * blocks * width * vector if blocks > 1 else 0


def _block(dim0: int, dim1: int, most: int) -> tuple[int, int]:
    """Width and height of a block of threads (`set_block_dimension`)."""
    wide, high = (2 ** (min(max(dim, 1), most).bit_length() - 1) for dim in (dim0, dim1))
    height = min(high, most // min(wide, 32))
    return min(wide, most // height), height


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
