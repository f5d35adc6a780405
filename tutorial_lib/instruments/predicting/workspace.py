"""Workspace that a GPU's kernel takes and gives back inside one operation; no tensor shows it.

An A100's, where it depends on the card. `tests/test_emulated_rows.py` holds the predicted peaks
against what PyTorch's own allocator was asked for.
"""

import math
import os
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.predicting.release import is_since
from tutorial_lib.instruments.private_torch import operations

_FLOAT_BYTES = 4
_MULTIPROCESSORS, _THREADS = 108, 2048  # of an A100, and of each of its multiprocessors
_aten = torch.ops.aten
_SUMS = {_aten.sum.dim_IntList, _aten.mean.dim}
_MATMULS = {
    *(_aten.mm, _aten.bmm, _aten.addmm, _aten.addmm_, _aten.baddbmm, _aten.baddbmm_),
    *(_aten.mv, _aten.addmv, _aten.dot, _aten.vdot),
    operations.MATMUL_OF_8_BITS.overloadpacket,
}
_CUBLAS, _CUBLASLT = 8320 * 1024, 1024 * 1024  # of an A100; a Hopper's cuBLAS takes 32 MiB


def workspace_bytes(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that an operation's kernel needs on a GPU, beside arguments and result."""
    if func.overloadpacket in _MATMULS:
        return _of_a_matmul(func, args)
    if func in _SUMS:
        return _of_a_sum(args[0], args[1])
    if func is operations.LSTM_CELL_BACKWARD:
        return _of_a_sum(args[4], [0]) * bool(args[5])  # the biases' gradient
    if func is operations.GRU_CELL_BACKWARD:
        rows, width = args[0].shape
        return _of_a_sum(args[0].new_empty(rows, 3 * width), [0]) * bool(args[2])
    if func is operations.SOFTMAX_BACKWARD:
        # `Tensor tmp = grad * output;` in aten/src/ATen/native/cuda/SoftMax.cu (2.13)
        return int(args[0].numel() * args[0].element_size())
    if func is operations.FLASH_FORWARD:
        return _of_flash_forward(args[0], args[1]) * (len(args) < 4 or not args[3])
    if func is operations.FLASH_BACKWARD:
        return _of_flash_backward(args[1], args[2]) + _laid_out(args[0]) + _laid_out(args[4])
    if func is operations.EFFICIENT_FORWARD:
        return _of_efficient_forward(args[0], args[2])
    if func is operations.EFFICIENT_BACKWARD:
        return _of_efficient_backward(*args[1:4]) + _laid_out(args[0])
    return 0


def _of_a_matmul(func: Any, args: tuple[Any, ...]) -> int:
    """Bytes that cuBLAS gives back after each call, since 2.15; before, it kept them.

    Source:
        `getChosenWorkspaceSize` and `isCUDABlasWorkspaceCachingEnabled` in aten/src/ATen/cuda/
        CublasHandlePool.cpp, and `addmm_out_cuda_impl` in aten/src/ATen/native/cuda/Blas.cpp, which
        takes cuBLASLt to add a bias, or a matrix of 16-bit numbers (2.15). Matmuls of 8-bit numbers
        always take it (`scaled_gemm` in aten/src/ATen/cuda/CUDABlas.cpp).
    """
    kept = not is_since("2.15") or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"
    if kept or not all(one.numel() for one in args if isinstance(one, Tensor)):
        return 0
    if func is not _aten.addmm.default:
        return _CUBLASLT if func is operations.MATMUL_OF_8_BITS else _CUBLAS
    added, _, other = args
    fused = added.is_contiguous() and (added.dim() == 1 or added.element_size() == 2)
    return _CUBLASLT if fused and min(other.shape) > 1 else _CUBLAS


def _laid_out(tensor: Tensor) -> int:
    """Bytes of a copy in the order of a kernel of attention, `(batch, seq, heads, width)`."""
    rows = tensor.transpose(1, 2)
    return 0 if rows.is_contiguous() else rows.numel() * rows.element_size()


def _of_flash_forward(query: Tensor, key: Tensor) -> int:
    """Results of parts of the keys, where queries alone do not fill the card; without dropout.

    Source:
        `set_params_splitkv` and `num_splits_heuristic` in aten/src/ATen/native/transformers/cuda/
        flash_attn/flash_api.cpp (2.13).
    """
    batch, heads, rows, width = query.shape
    columns = 256 if width <= 64 else 128 if width <= 128 else 64
    blocks, places = batch * heads * -(-rows // 64), 2 * _MULTIPROCESSORS
    if blocks >= 0.8 * places:
        return 0
    parts = -(-key.size(2) // columns)
    numbers = range(1, min(128, parts) + 1)
    splits = [n for n in numbers if n == 1 or -(-parts // n) != -(-parts // (n - 1))]
    filled = {n: blocks * n / places / math.ceil(blocks * n / places) for n in splits}
    chosen = next(n for n in splits if filled[n] >= 0.85 * max(filled.values()))
    wide = _round_up(width, 32 if width <= 128 else 64)
    return chosen * batch * heads * rows * (wide + 1) * _FLOAT_BYTES * (chosen > 1)


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


def _of_efficient_forward(query: Tensor, value: Tensor) -> int:
    """`output_accum` of 16-bit types, where a wide result does not fit into registers.

    Source:
        `_efficient_attention_forward` in aten/src/ATen/native/transformers/cuda/attention.cu and
        `kNeedsOutputAccumulatorBuffer` in mem_eff_attention/kernel_forward.h there (2.13).
    """
    if value.element_size() != 2 or value.size(-1) <= 128:
        return 0
    return _FLOAT_BYTES * math.prod(query.shape[:-1]) * value.size(-1)


def _of_efficient_backward(query: Tensor, key: Tensor, value: Tensor) -> int:
    """`delta`, and tiles in which gradients are added up; before them float32 has a product.

    Source:
        `_efficient_attention_backward` in aten/src/ATen/native/transformers/cuda/
        attention_backward.cu, `workspace_size` in mem_eff_attention/kernel_backward.h there, and
        the sizes of blocks in mem_eff_attention/kernels/generate_kernels.py (2.13).
    """
    half = query.element_size() == 2
    batch, heads, rows, width = query.shape
    widest = max(width, value.size(-1))
    high = 64 if widest <= 64 else 128
    wide = 128 if half and 64 < widest <= 128 else 64
    floats = -(-rows // high) * -(-width // wide) * (high * wide + 4)
    if half and widest > 128:  # gradients of keys and values do not fit into registers
        splits = max(1, min(-(-key.size(2) // wide), 200 // (batch * heads)))
        floats += splits * wide * (_round_up(width, high) + _round_up(value.size(-1), high))
    delta = _FLOAT_BYTES * batch * heads * rows
    workspace = delta + _FLOAT_BYTES * batch * heads * floats
    groups = batch * heads * key.size(2) * (width + value.size(-1)) * query.element_size()
    groups *= heads != key.size(1)  # keys' and values' gradients for each head of a group (2.14)
    return groups + (workspace if half else max(workspace, delta * (value.size(-1) + 2)))


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
