"""What Python itself reads of fake tensors: their numbers as text, arrays, lists and copies."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.instruments.private_torch import tree_leaves, tree_map_only
from tutorial_lib.memory.private_torch import FakeTensor

_tensor_of_numbers = torch.tensor


def tensor_of(data: Any, *, dtype: torch.dtype | None = None, **settings: Any) -> Tensor:
    """Read the numbers of tensors in a list one by one, where C++ would read their memory."""
    if isinstance(data, list | tuple):
        fakes = [one for one in tree_leaves(data) if isinstance(one, FakeTensor)]
        if fakes and dtype is None:
            dtype = functools.reduce(torch.promote_types, (one.dtype for one in fakes))
        data = tree_map_only(FakeTensor, lambda one: one.tolist(), data) if fakes else data
    return _tensor_of_numbers(data, dtype=dtype, **settings)


def format_of(tensor: Tensor, spec: str) -> str:
    """Format a number by its value, as in an f-string."""
    return format(tensor.item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)


def numpy_of(tensor: Tensor, *, force: bool = False) -> Any:
    """Return a tensor's values as an array."""
    if tensor.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    return np.array(tensor.tolist())


def copy_of(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a tensor and its gradient: by default the mode would be copied along."""
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):  # whose gradient a copy leaves out
            twin = nn.Parameter(twin)
        elif tensor.grad is not None:
            twin.grad = copy_of(tensor.grad, memo)
        memo[id(tensor)] = twin.requires_grad_(tensor.requires_grad)
    copied: Tensor = memo[id(tensor)]
    return copied
