"""CUDA's autocast policy, on tensors that lie on the CPU.

Autocast has one list of operations for each kind of device. The CPU's differs from CUDA's, and with
it the type, and so the bytes, of what a step saves.
"""

import contextlib
import functools
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tutorial_lib.instruments.private_torch import operations

_LISTS = tomllib.loads(Path(__file__).with_name("operations.toml").read_text("utf-8"))["autocast"]
_FLOAT32_NORM = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
_aten = torch.ops.aten

Rule = Callable[..., Any]


@contextlib.contextmanager
def cuda_autocast_policy() -> Iterator[None]:
    """Make the CPU's autocast do what CUDA's does, until the block ends."""
    cached: dict[Tensor, Tensor] = {}  # weights in 16 bits, while a block of autocast lasts
    rules: dict[str, Rule] = {
        **dict.fromkeys(
            _LISTS["float32"].split(), lambda op, *args, **kw: op(*_cast(args, torch.float32), **kw)
        ),
        **dict.fromkeys(_LISTS["float32_result"].split(), _to_float32),
        **dict.fromkeys(_FLOAT32_NORM, _norm_to_float32),
        **dict.fromkeys(_LISTS["widest"].split(), _in_widest),
        **dict.fromkeys(_LISTS["half"].split(), functools.partial(_in_half, cached)),
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
            for name in (n for n in rules if operations.has_kernel(f"aten::{n}", "AutocastCUDA")):
                library.impl(name, _kernel(rules[name], name), "AutocastCPU", allow_override=True)
            for name in _cast_on_cpu_alone():
                fallthrough = torch.library.fallthrough_kernel
                library.impl(name, fallthrough, "AutocastCPU", allow_override=True)
        yield


@functools.cache
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
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype, cached: dict[Tensor, Tensor] | None = None) -> Any:
    """Cast what is a float; a weight once (`cached_cast` in aten/src/ATen/autocast_mode.cpp)."""
    if isinstance(value, list | tuple):
        return [_cast(item, dtype, cached) for item in value]
    if cached is not None and isinstance(value, Tensor):
        weight = value.dtype is torch.float32 and value.requires_grad and value.is_leaf
        if weight and value not in cached and torch.is_autocast_cache_enabled():
            with torch.enable_grad():
                cached[value] = value.to(dtype)
        value = cached.get(value, value)
    return value.to(dtype) if _is_eligible(value) else value


def _in_half(cached: dict[Tensor, Tensor], op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*_cast(args, torch.get_autocast_dtype("cpu"), cached), **kwargs)


def _in_widest(op: Any, *args: Any, **kwargs: Any) -> Any:
    kinds = {value.dtype for value in args if _is_eligible(value)}
    dtype = torch.float32 if torch.float32 in kinds else torch.get_autocast_dtype("cpu")
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
