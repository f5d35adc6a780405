"""Private names of PyTorch that the watcher on an emulated card uses.

It loads this file by its path, in a program that may have no course: nothing of ours is imported.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def recorded_allocations() -> list[dict[str, Any]]:
    """Return what was recorded on the first GPU, in order (`_snapshot`: torch/cuda/memory.py)."""
    events: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    return events


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


def kernels_of_cuda() -> Iterator[tuple[Any, str]]:
    """Yield each operation that has a kernel for a GPU, and `copy_`: its schema and full name.

    What makes a view, or takes no tensor, is left out. `_jit_get_all_schemas` and
    `_dispatch_get_registrations_for_dispatch_key`: torch/csrc/jit/python/init.cpp,
    torch/csrc/utils/python_dispatch.cpp.
    """
    names = {"aten::copy_", *torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")}
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
        is_view = any(value.alias_info for value in schema.returns) and not schema.is_mutable
        takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
        if name.startswith("aten::") and name in names and takes_tensors and not is_view:
            yield schema, name
