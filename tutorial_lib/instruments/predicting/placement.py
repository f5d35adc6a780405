"""Steps that name a GPU, on a machine that may have none: their tensors are predicted as all are.

A second GPU is left alone: what it holds would be counted as held by the first.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

_FIRST_GPU = ("cuda", "cuda:0")


def without_gpu(device: Any) -> Any:
    """Return the CPU in place of the first GPU, and anything else as it came.

    Example:
        >>> without_gpu("cuda:0"), without_gpu("cuda:1")
        ('cpu', 'cuda:1')
    """
    named = isinstance(device, str | torch.device) and str(device) in _FIRST_GPU
    return ("cpu" if isinstance(device, str) else torch.device("cpu")) if named else device


@contextlib.contextmanager
def ignoring_gpu() -> Iterator[None]:
    """Let `.cuda()` and `.to("cuda")` leave a tensor where it is, until the block ends."""
    to = Tensor.to

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        args = tuple("cpu" if type(arg) is int and arg == 0 else without_gpu(arg) for arg in args)
        return to(tensor, *args, **{name: without_gpu(arg) for name, arg in kwargs.items()})

    def cuda(tensor: Tensor, device: Any = None, **kwargs: Any) -> Tensor:
        return moved(tensor, "cuda" if device is None else device, **kwargs)

    with mock.patch.object(Tensor, "to", moved), mock.patch.object(Tensor, "cuda", cuda):
        yield
