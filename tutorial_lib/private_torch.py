"""The one module that touches names which PyTorch keeps to itself, and may move in any release.

Each name says the file of PyTorch 2.13 that it was read in, and has a test in
`tests/test_private_torch.py` that says what no longer works when a release moves it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any
from unittest import mock

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
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

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
# torch/utils/checkpoint.py: what `checkpoint(use_reentrant=False)` calls, whoever imported it.
CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"

Patch = contextlib.AbstractContextManager[Any]


# ---- tensors, modules, modes ----


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identify a storage as long as it lives (`_cdata`: torch/_C/__init__.pyi, StorageBase)."""
    key: int = storage._cdata
    return key


def times_written(tensor: Tensor) -> int:
    """Count the in-place writes to a tensor (`_version`: torch/_C/__init__.pyi, TensorBase)."""
    count: int = tensor._version
    return count


def active_modes() -> list[TorchDispatchMode]:
    """List the dispatch modes that are active, innermost last (torch/utils/_python_dispatch.py)."""
    return _get_current_dispatch_mode_stack()


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


# ---- what fake tensors cannot do ----
# By functions: mock's `return_value` would remember the tensors that it is called with.


def without_truncated_normal() -> Patch:
    """Let `trunc_normal_` leave tensors as they are: its rejection sampling looks at values.

    `_no_grad_trunc_normal_`: torch/nn/init.py (2.12 and up).
    """
    return mock.patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor)


def with_weak_references() -> Patch:
    """Let `module.to` swap parameters that have weak references, as all fake ones have.

    `getweakrefs`, asked by `swap_tensors`: torch/utils/__init__.py.
    """
    return mock.patch("torch.utils.weakref.getweakrefs", _none_of)


def _none_of(_: Any) -> list[Any]:
    return []


def with_finite_gradients() -> Patch:
    """Let a gradient scaler update without a look whether all gradients are finite.

    `_maybe_opt_step`: torch/amp/grad_scaler.py.
    """

    def update(_: Any, optimizer: Any, __: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    return mock.patch.object(torch.amp.GradScaler, "_maybe_opt_step", update)


def with_gradient_scaler() -> Patch:
    """Keep a gradient scaler for `cuda` on where there is no GPU.

    `amp_definitely_not_available`: torch/cuda/amp/common.py, asked in torch/amp/grad_scaler.py.
    """
    return mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False)


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
