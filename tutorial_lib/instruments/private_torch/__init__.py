"""The one room that uses names which PyTorch keeps to itself, and may move in any release.

Here stand tensors, modes and CUDA; `operations` has what is asked about operations, and `patches`
what is put in the place of such names.

Each name says the file of PyTorch 2.13 that it was read in; where one is gone, `memory.release`
names the function that needs it. `tests/test_private_torch.py` has those whose loss would show
nowhere else.
"""

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# torch/_prims_common/__init__.py: the memory format that a kernel chooses for its result.
from torch._prims_common import suggest_memory_format

# torch/_subclasses/fake_tensor.py: what tensors without memory refuse.
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

# torch/utils/_python_dispatch.py: modes that are asked about every operation.
from torch.utils._python_dispatch import _disable_current_modes

# torch/utils/_pytree.py: what lies in nested lists, tuples and dicts.
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from tutorial_lib.device import without_garbage_collection

__all__ = [
    "CALL",
    "COMPILER",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "TreeSpec",
    "suggest_memory_format",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]
# torch/_subclasses/fake_tensor.py: an operation's result, or its shape, depends on values.
LOOKS_AT_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
# torch/nn/modules/module.py: what calling a module runs, its hooks and then `forward`.
CALL = "_call_impl"
# torch/autograd/graph.py: what `saved_tensors_hooks` calls, under both of its names.
PUSHES_SAVED_TENSOR_HOOKS = (
    "torch._C._autograd:_push_saved_tensors_default_hooks",
    "torch.autograd:_push_saved_tensors_default_hooks",
)


# ---- tensors, modules, modes ----


def times_written(tensor: Tensor) -> int:
    """Count the in-place writes to a tensor (`_version`: torch/_C/__init__.pyi, TensorBase)."""
    count: int = tensor._version
    return count


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Compute for real in a block, whatever modes are active (torch/utils/_python_dispatch.py)."""
    off: contextlib.AbstractContextManager[Any] = _disable_current_modes()
    return off


def policy_of(context: Any) -> Callable[..., Any] | None:
    """Policy that a selective checkpoint's context asks; None for any other context.

    `policy_fn` of `_CachingTorchDispatchMode`: torch/utils/checkpoint.py.
    """
    policy: Callable[..., Any] | None = getattr(context, "policy_fn", None)
    return policy


# ---- large modules ----

# torch/_dynamo/__init__.py: what compiles. The first fake tensors and optimizers load it.
COMPILER = "torch._dynamo"


def imported(name: str) -> ModuleType:
    """Import a module of many objects, none of them garbage, without looking for any meanwhile."""
    with without_garbage_collection():
        return importlib.import_module(name)


def import_compiler() -> None:
    """Import Dynamo now, which takes a second, and compile once: else an answer's first step does.

    Both change functions of PyTorch's own, `torch.manual_seed` and `nn.Module.__init__`.
    """
    imported(COMPILER)
    torch.compile(torch.nn.Identity(), backend="eager")(torch.ones(1))


def in_transform() -> bool:
    """Tell whether `torch.func` is at work, or forward-mode derivatives.

    `maybe_current_level`: torch/_C/_functorch.pyi; `_current_level`: torch/autograd/forward_ad.py.
    """
    is_forward_mode = torch.autograd.forward_ad._current_level >= 0
    return is_forward_mode or torch._C._functorch.maybe_current_level() is not None
