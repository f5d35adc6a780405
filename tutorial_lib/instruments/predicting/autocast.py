"""CUDA's autocast policy, on tensors that lie on the CPU.

Autocast has one list of operations for each kind of device. The CPU's differs from CUDA's, and with
it the type, and so the bytes, of what a step saves.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tutorial_lib.instruments.private_torch import operations, tree_map_only

# The lists of PyTorch's ATen/autocast_mode.h (2.13), by what is done with an operation. Those that
# the running PyTorch does not have are left out; a test compares them with the installed header.
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
"""
_FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_FLOAT32_NORM = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
# Of the operations that CUDA's autocast computes in 16 bits, those that the CPU's leaves alone
# (the same header).
_HALF = """
    convolution _convolution _convolution.deprecated einsum addmv addr mv chain_matmul
    linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
"""

_aten = torch.ops.aten

Rule = Callable[..., Any]


@contextlib.contextmanager
def cuda_autocast_policy() -> Iterator[None]:
    """Make the CPU's autocast do what CUDA's does, until the block ends."""
    cached: dict[Tensor, Tensor] = {}  # weights in 16 bits, while a block of autocast lasts
    rules: dict[str, Rule] = {
        **dict.fromkeys(_FLOAT32.split(), _in_float32),
        **dict.fromkeys(_FLOAT32_RESULT.split(), _to_float32),
        **dict.fromkeys(_FLOAT32_NORM, _norm_to_float32),
        **dict.fromkeys(_WIDEST.split(), _in_widest),
        **dict.fromkeys(_HALF.split(), functools.partial(_in_half, cached)),
    }
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        cached.clear()
        clear()

    with (
        operations.overriding_kernels() as library,
        mock.patch.object(torch, "clear_autocast_cache", clear_both),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each registration warns that it overrides one
            for name in filter(casts_on_cuda, rules):
                library.impl(name, _kernel(rules[name], name), "AutocastCPU", allow_override=True)
            for name in _cast_on_cpu_alone():
                fallthrough = torch.library.fallthrough_kernel
                library.impl(name, fallthrough, "AutocastCPU", allow_override=True)
        yield


def casts_on_cuda(name: str) -> bool:
    """Say whether CUDA's autocast does anything with an operation, in this version of PyTorch."""
    return operations.has_kernel(f"aten::{name}", "AutocastCUDA")


def _cast_on_cpu_alone() -> list[str]:
    has = operations.has_kernel
    return [
        name.removeprefix("aten::")
        for name in operations.operation_names()
        if name.startswith("aten::") and has(name, "AutocastCPU") and not has(name, "AutocastCUDA")
    ]


def _kernel(rule: Rule, name: str) -> Rule:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(_aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with operations.below_cpu_autocast():
            return rule(op, *args, **kwargs)

    return kernel


def _is_eligible(value: Any) -> bool:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return floating and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _is_eligible(value) else value


def _in_float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*_cast(args, torch.float32), **kwargs)


def _in_half(cached: dict[Tensor, Tensor], op: Any, *args: Any, **kwargs: Any) -> Any:
    """Cast a weight once (`cached_cast` in aten/src/ATen/autocast_mode.cpp, 2.13)."""
    dtype = torch.get_autocast_dtype("cpu")

    def once(value: Tensor) -> Tensor:
        weight = value.dtype is torch.float32 and value.requires_grad and value.is_leaf
        if weight and value not in cached and torch.is_autocast_cache_enabled():
            with torch.enable_grad():
                cached[value] = value.to(dtype)
        return cached.get(value, value)

    return op(*_cast(tree_map_only(Tensor, once, args), dtype), **kwargs)


def _in_widest(op: Any, *args: Any, **kwargs: Any) -> Any:
    floats = [value for value in args if _is_eligible(value)]
    has_float32 = any(value.dtype == torch.float32 for value in floats)
    dtype = torch.float32 if has_float32 else torch.get_autocast_dtype("cpu")
    return op(*_cast(args, dtype), **kwargs)


def _to_float32(op: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    """Ask for float32 where no type was asked for; the input keeps its own."""
    names = operations.argument_names(op)[1:]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("dtype") is None and _is_eligible(first):
        given["dtype"] = torch.float32
    return op(first, **given)


def _norm_to_float32(op: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
    overload = getattr(_aten.norm, _FLOAT32_NORM["norm." + operations.overload_name(op)])
    dtype = torch.float32 if _is_eligible(first) else first.dtype
    return overload(first, *args, **kwargs, dtype=dtype)
