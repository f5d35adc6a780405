"""The module that uses names which PyTorch keeps to itself, and may move in any release.

`private_patches` beside it is the one other: it puts something in the place of such names.

Each name says the file of PyTorch 2.13 that it was read in, and has a test in
`tests/test_private_torch.py` that says what no longer works when a release moves it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# torch/_prims_common/__init__.py: the memory format that a kernel chooses for its result.
from torch._prims_common import suggest_memory_format

# torch/_subclasses/fake_tensor.py: tensors with a shape and no memory, and what they refuse.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

# torch/utils/_python_dispatch.py: a mode that is asked about every operation.
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

# torch/utils/_pytree.py: what lies in nested lists, tuples and dicts.
from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "TreeSpec",
    "suggest_memory_format",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]
# torch/_subclasses/fake_tensor.py: an operation's result, or its shape, depends on values.
LOOKS_AT_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
# torch/utils/checkpoint.py: what `checkpoint(use_reentrant=False)` calls, whoever imported it.
CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"


# ---- tensors, modules, modes ----


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identify a storage as long as it lives (`_cdata`: torch/_C/__init__.pyi, StorageBase)."""
    key: int = storage._cdata
    return key


def storage_keys(tensors: Sequence[Tensor]) -> list[int]:
    """Give `storage_key` of each tensor's storage; 0 where it has none, as sparse ones."""
    try:
        return [tensor.untyped_storage()._cdata for tensor in tensors]
    except NotImplementedError:
        pairs = [(t, t.layout is torch.strided) for t in tensors]
        return [t.untyped_storage()._cdata if strided else 0 for t, strided in pairs]


def times_written(tensor: Tensor) -> int:
    """Count the in-place writes to a tensor (`_version`: torch/_C/__init__.pyi, TensorBase)."""
    count: int = tensor._version
    return count


def active_modes() -> list[TorchDispatchMode]:
    """List the dispatch modes that are active, innermost last (torch/utils/_python_dispatch.py)."""
    return _get_current_dispatch_mode_stack()


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Compute for real in a block, whatever modes are active (torch/utils/_python_dispatch.py)."""
    off: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return off


def is_fake(tensor: Tensor) -> bool:
    """Tell whether a tensor has a shape and no memory (torch/_subclasses/fake_tensor.py)."""
    return isinstance(tensor, FakeTensor)


def is_compiled(module: nn.Module) -> bool:
    """Tell whether `module.compile()` or `torch.compile(module)` was called.

    `_compiled_call_impl`: torch/nn/modules/module.py; `_orig_mod`: torch/_dynamo/eval_frame.py.
    """
    by_call = any(part._compiled_call_impl is not None for part in module.modules())
    return by_call or hasattr(module, "_orig_mod")


def in_backward() -> bool:
    """Tell whether autograd's engine is at work here, recomputation within it included.

    `_current_graph_task_id`: torch/_C/__init__.pyi; -1 outside the engine.
    """
    return torch._C._current_graph_task_id() != -1


def checkpoint_modules(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> None:
    """Wrap the chosen modules of a model in PyTorch's own checkpoint.

    torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    apply_activation_checkpointing(model, check_fn=chosen)


# ---- operations and their dispatch ----


def operation_names() -> list[str]:
    """List all operations with their overloads (torch/_C/__init__.pyi)."""
    return torch._C._dispatch_get_all_op_names()


def has_kernel(operation: str, dispatch_key: str) -> bool:
    """Tell whether an operation does something of its own at a key (torch/_C/__init__.pyi)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation, dispatch_key)


def overriding_kernels() -> contextlib.AbstractContextManager[Any]:
    """Open a library whose kernels replace those of `aten` until the block ends.

    `_scoped_library`: torch/library.py.
    """
    library: contextlib.AbstractContextManager[Any] = torch.library._scoped_library("aten", "IMPL")
    return library


def below_cpu_autocast() -> contextlib.AbstractContextManager[Any]:
    """Call operations without the CPU's autocast in a block (torch/_C/__init__.pyi)."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    guard: contextlib.AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(keys)
    return guard


def overload_name(operation: Any) -> str:
    """Give the overload of an operation, as `dim_IntList` (`_overloadname`: torch/_ops.py)."""
    name: str = operation._overloadname
    return name


def argument_names(operation: Any) -> list[str]:
    """List an operation's arguments by name, in order (`_schema`: torch/_ops.py)."""
    return [argument.name for argument in operation._schema.arguments]


def gives_view(operation: Any) -> bool:
    """Tell whether an operation's result is a view of an argument (`_schema`: torch/_ops.py)."""
    returns = operation._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def written_arguments(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """List the tensors that an operation writes to (`_schema`: torch/_ops.py)."""
    if not operation._schema.is_mutable:
        return []
    given = [
        (argument, args[place] if place < len(args) else kwargs.get(argument.name))
        for place, argument in enumerate(operation._schema.arguments)
    ]
    written = [value for argument, value in given if argument.is_write]
    return [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor)]


def is_random(operation: Any) -> bool:
    """Tell whether an operation draws random numbers (`tags`: torch/_ops.py)."""
    return torch.Tag.nondeterministic_seeded in operation.tags


def is_uninitialised(operation: Any) -> bool:
    """Tell whether an operation gives memory as it finds it (`_schema`: torch/_ops.py)."""
    return "empty" in operation._schema.name


def ignores_values(operation: Any) -> bool:
    """Tell whether an operation takes a tensor for its shape alone, as `ones_like` does."""
    name = operation._schema.name.removeprefix("aten::")
    return name.startswith("new_") or (name.endswith("_like") and "rand" not in name)


def flash_attention(*args: Any, **settings: Any) -> Tensor:
    """Call CUDA's flash attention (aten/src/ATen/native/native_functions.yaml); on fake tensors."""
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(*args, **settings)[0]
    return out


def efficient_attention(*args: Any, **settings: Any) -> Tensor:
    """Call CUDA's memory-efficient attention (native_functions.yaml); on fake tensors."""
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(*args, **settings)[0]
    return out


def half_to_float_softmax(operation: Any) -> Callable[[Tensor, int, bool], Tensor] | None:
    """Find the kernel that reads float16 and writes float32, for softmax and log_softmax alone.

    `_softmax(input, dim, half_to_float)`: aten/src/ATen/native/native_functions.yaml.
    """
    aten = torch.ops.aten
    kernels = {aten.softmax.int: aten._softmax, aten.log_softmax.int: aten._log_softmax}
    return kernels.get(operation)


# ---- CUDA's allocator ----


def release_cublas_workspaces() -> None:
    """Give back the memory that cuBLAS keeps (torch/_C/__init__.pyi)."""
    torch._C._cuda_clearCublasWorkspaces()


def record_allocations(**settings: Any) -> None:
    """Begin to record what the allocator does; `enabled=None` ends it (torch/cuda/memory.py)."""
    torch.cuda.memory._record_memory_history(**settings)


def recorded_allocations() -> list[dict[str, Any]]:
    """Give what was recorded on the first GPU, in order (`_snapshot`: torch/cuda/memory.py)."""
    events: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return events


def write_snapshot(path: str) -> None:
    """Write the record for PyTorch's memory viewer (`_dump_snapshot`: torch/cuda/memory.py)."""
    torch.cuda.memory._dump_snapshot(path)  # type: ignore[no-untyped-call]


def once_cuda_starts(action: Callable[[], None]) -> None:
    """Do something as soon as CUDA is initialised (`_lazy_call`: torch/cuda/__init__.py)."""
    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def built_for_cuda() -> bool:
    """Tell whether this PyTorch has CUDA's allocator (torch/_C/__init__.pyi)."""
    return hasattr(torch._C, "_cuda_resetPeakMemoryStats")


def before_each_peak_reset(action: Callable[[], Any]) -> None:
    """Do something each time before the allocator's peaks are reset, from now on.

    `_cuda_resetPeakMemoryStats`, which `torch.cuda.reset_peak_memory_stats` calls:
    torch/cuda/memory.py.
    """
    reset = torch._C._cuda_resetPeakMemoryStats

    def act_and_reset(*arguments: Any) -> Any:
        action()
        return reset(*arguments)

    vars(torch._C)["_cuda_resetPeakMemoryStats"] = act_and_reset


# ---- the compiler ----


def import_compiler() -> None:
    """Import Dynamo now, which takes a second: else an optimizer's first step does."""
    importlib.import_module("torch._dynamo")
