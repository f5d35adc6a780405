"""PyTorch's operations by names that it keeps to itself, and may move in any release.

Each name says the file of PyTorch 2.13 that it was read in.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# torch/overrides.py, torch/utils/_device.py: modes that are asked about every call from Python.
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from tutorial_lib.memory.private_torch import active_modes, sparse_parts

_aten = torch.ops.aten
MATMUL_OF_8_BITS = _aten._scaled_mm.default
# The operations that autograd runs for softmax and fused attention (native_functions.yaml).
SOFTMAX_BACKWARD = _aten._softmax_backward_data.default
EFFICIENT_FORWARD = _aten._scaled_dot_product_efficient_attention.default
FLASH_FORWARD = _aten._scaled_dot_product_flash_attention.default
FLASH_BACKWARD = _aten._scaled_dot_product_flash_attention_backward.default
EFFICIENT_BACKWARD = _aten._scaled_dot_product_efficient_attention_backward.default
GROUPED_MATMUL = _aten._grouped_mm.default  # groups of rows, each with its matrix
# CUDA's cells of an LSTM and a GRU, and what autograd runs for them (the same file).
FUSED_CELLS = (_aten._thnn_fused_lstm_cell.default, _aten._thnn_fused_gru_cell.default)
READ_NUMBER = _aten._local_scalar_dense.default
# Gives a matmul's result its shape, and moves nothing: 2.15's linear layers end in one too.
MATMUL_SHAPED = _aten._unsafe_view.default
LIFT, DETACH, CLONE = _aten.lift_fresh.default, _aten.detach.default, _aten.clone.default
ADD_TO, SET_TO_ZERO = _aten.add_.Tensor, _aten.zero_.default
PACK, UNPACK = _aten._pack_padded_sequence.default, _aten._pack_padded_sequence_backward.default
LSTM_CELL_BACKWARD = _aten._thnn_fused_lstm_cell_backward_impl.default
GRU_CELL_BACKWARD = _aten._thnn_fused_gru_cell_backward.default
# Kernels that read float16 and write float32, `(input, dim, half_to_float)` (the same file).
HALF_TO_FLOAT = {"softmax.int": _aten._softmax, "log_softmax.int": _aten._log_softmax}
# What autograd runs for an `EmbeddingBag` (the same file).
BAG_BACKWARD = _aten._embedding_bag_backward.default


def operation_names() -> list[str]:
    """List all operations with their overloads (torch/_C/__init__.pyi)."""
    return torch._C._dispatch_get_all_op_names()


def has_kernel(operation: str, dispatch_key: str) -> bool:
    """Tell whether an operation does something of its own at a key (torch/_C/__init__.pyi)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation, dispatch_key)


def interceptors() -> list[object]:
    """List what could answer in the place of PyTorch's own kernels, to be compared later.

    These are the modes that are on, without that of a default device, and the kernels that compare
    and copy (torch/_C/__init__.pyi); not those for fake tensors, which are registered late.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in modes if type(mode) is not DeviceContext]
    names = ("equal", "allclose", "isclose", "eq.Tensor", "clone", "detach")
    kernels = "".join(torch._C._dispatch_dump(f"aten::{name}") for name in names)
    return [*active_modes(), *modes, *(one for one in kernels.split("\n") if "Meta" not in one)]


def overriding_kernels() -> contextlib.AbstractContextManager[Any]:
    """Open a library whose kernels replace those of `aten` until the block ends.

    `_scoped_library`: torch/library.py.
    """
    library: contextlib.AbstractContextManager[Any] = torch.library._scoped_library("aten", "IMPL")
    return library


def replace_composite(library: Any, name: str, instead: Callable[..., Any]) -> None:
    """Run a function in the place of an operation's kernel, and give it that kernel first.

    `get_kernel` and what it returns: torch/library.py.
    """
    kernel = torch.library.get_kernel(f"aten::{name}", "AutogradCPU")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return instead(functools.partial(kernel.call_boxed, keys), *args, **kwargs)

    key = "CompositeImplicitAutograd"
    library.impl(name, run, key, with_keyset=True, allow_override=True)


def below_cpu_autocast() -> contextlib.AbstractContextManager[Any]:
    """Call operations without the CPU's autocast in a block (torch/_C/__init__.pyi)."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    guard: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


def overloads(name: str) -> list[Any]:
    """List an operation's overloads that make their own results (`overloads`: torch/_ops.py)."""
    packet = getattr(_aten, name)
    return [getattr(packet, one) for one in packet.overloads() if "out" not in one]


def overload_name(operation: Any) -> str:
    """Overload of an operation, as `dim_IntList` (`_overloadname`: torch/_ops.py)."""
    name: str = operation._overloadname
    return name


def argument_names(operation: Any) -> list[str]:
    """List an operation's arguments by name, in order (`_schema`: torch/_ops.py)."""
    return [argument.name for argument in operation._schema.arguments]


@functools.cache
def gives_view(operation: Any) -> bool:
    """Tell whether an operation's result is a view of an argument (`_schema`: torch/_ops.py)."""
    returns = operation._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def written_arguments(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """List the tensors that an operation writes to (`_schema`: torch/_ops.py)."""
    written: list[Any] = []
    for place, name in _written_places(operation):
        value = args[place] if place < len(args) else kwargs.get(name)
        written += value if isinstance(value, list | tuple) else [value]
    return [value for value in written if isinstance(value, Tensor)]


@functools.cache
def _written_places(operation: Any) -> list[tuple[int, str]]:
    arguments = enumerate(operation._schema.arguments)
    return [(place, argument.name) for place, argument in arguments if argument.is_write]


@functools.cache
def may_follow_from_shapes(operation: Any) -> bool:
    """Tell whether shapes of arguments may decide on those of results (`tags`: torch/_ops.py)."""
    by_values = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    odd = by_values.intersection(operation.tags) or torch.Tag.inplace_view in operation.tags
    return operation.namespace == "aten" and not odd and "lift" not in operation._schema.name


@functools.cache
def is_foreach(operation: Any) -> bool:
    """Tell whether an operation takes lists of tensors and numbers (`_schema`: torch/_ops.py)."""
    return "::_foreach_" in operation._schema.name


@functools.cache
def is_random(operation: Any) -> bool:
    """Tell whether an operation draws random numbers (`tags`: torch/_ops.py)."""
    return torch.Tag.nondeterministic_seeded in operation.tags


def makes_new(operation: Any) -> bool:
    """Tell whether an operation's results are new tensors (`_schema`: torch/_ops.py)."""
    return not operation._schema.is_mutable and not gives_view(operation)


@functools.cache
def is_elementwise(operation: Any) -> bool:
    """Tell whether an operation takes its arguments number by number (`tags`: torch/_ops.py)."""
    return torch.Tag.pointwise in operation.tags


@functools.cache
def is_uninitialised(operation: Any) -> bool:
    """Tell whether an operation gives memory as it finds it (`_schema`: torch/_ops.py)."""
    return "empty" in operation._schema.name


@functools.cache
def gives_indices(operation: Any) -> bool:
    """Tell whether a result says where values were, as `topk`'s does (`_schema`: torch/_ops.py)."""
    return any(result.name == "indices" for result in operation._schema.returns)


@functools.cache
def ignores_values(operation: Any) -> bool:
    """Tell whether an operation takes a tensor for its shape alone, as `ones_like` does."""
    name = operation._schema.name.removeprefix("aten::")
    return name.startswith("new_") or (name.endswith("_like") and "rand" not in name)


_ZEROS = {_aten.zeros.default, _aten.zeros_like.default, _aten.zero_.default}
_ONES = {_aten.ones.default, _aten.ones_like.default}
_FILLED = {_aten.fill_.Scalar, _aten.full.default, _aten.full_like.default}


def fills_with(operation: Any, args: tuple[Any, ...]) -> float | None:
    """Return the number that an operation's result is full of, None where it isn't of one."""
    if operation in _ZEROS:
        return 0
    return 1 if operation in _ONES else args[1] if operation in _FILLED else None


# ---- sparse tensors ----


def is_empty_sparse(value: Any) -> bool:
    """Tell whether a value is a sparse tensor without entries."""
    parts = sparse_parts(value)
    return bool(parts) and value.layout is torch.sparse_coo and not parts[0].numel()


def sparse(indices: Tensor, values: Tensor, like: Tensor) -> Tensor:
    """Make a sparse tensor of the shape and order of another (native_functions.yaml)."""
    order = like.is_coalesced()
    made: Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(
        indices, values, like.shape, is_coalesced=order
    )
    return made
