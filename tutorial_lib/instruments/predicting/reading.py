"""How Python itself reads fake tensors: their numbers as text, arrays, lists and copies."""

import functools
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tutorial_lib.instruments.private_torch import operations as ops
from tutorial_lib.instruments.private_torch import tree_leaves, tree_map_only, without_modes
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


def real_of(tensor: Tensor) -> Tensor:
    """Return a tensor of integers with memory of its own, for what reads that."""
    numbers = tensor.tolist()
    with without_modes():
        return _tensor_of_numbers(numbers)


def padded_of(
    data: Tensor, sizes: Tensor, batch_first: bool, value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Pad a packed sequence as `_pad_packed_sequence` does, and return the lengths too.

    Source:
        aten/src/ATen/native/PackedSequence.cpp (2.13).
    """
    numbers: list[int] = sizes.tolist()
    steps = max(total_length, len(numbers))
    padded = data.new_full((steps, numbers[0], *data.shape[1:]), value)
    start = step = 0
    for size, group in itertools.groupby(numbers):  # steps with as many samples are copied at once
        stop = step + len(list(group))
        rows = data[start : start + size * (stop - step)]
        padded[step:stop, :size].copy_(rows.view(stop - step, size, *data.shape[1:]))
        start, step = start + len(rows), stop
    lengths = [sum(size > sample for size in numbers) for sample in range(numbers[0])]
    return padded.transpose(0, 1) if batch_first else padded, torch.tensor(lengths)


class Packing(torch.autograd.Function):
    """Pack a padded sequence as `_pack_padded_sequence` does; backward reads sizes from memory."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, lengths: Tensor, batch_first: bool) -> Any:
        """Return the packed rows, and how many there are at each step."""
        data, sizes = ops.PACK(padded, lengths, batch_first)
        ctx.save_for_backward(sizes)
        ctx.mark_non_differentiable(sizes)
        ctx.given = padded.shape, batch_first
        return data, sizes

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of the padded sequence."""
        shape, batch_first = ctx.given
        sizes = real_of(*ctx.saved_tensors)
        return ops.UNPACK(gradients[0], shape, sizes, batch_first), None, None


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
