"""Steps that name a GPU, predicted on a machine that may have none.

A second GPU is left alone: its tensors would be counted as the first one's.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tutorial_lib.instruments.private_torch import COMPILER, imported

_FIRST_GPU = ("cuda", "cuda:0")
_WITHOUT_EFFECT = ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_device")


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
    """Make `.cuda()` and `.to("cuda")` leave tensors where they are, until the block ends.

    Waiting for the GPU, emptying its cache and choosing it do nothing meanwhile.
    """
    to, module_to = Tensor.to, nn.Module.to

    def first(place: Any) -> Any:
        return "cpu" if type(place) is int and place == 0 else without_gpu(place)

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return to(tensor, *map(first, args), **{name: first(arg) for name, arg in kwargs.items()})

    def moved_module(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return module_to(module, *map(first, args), **{n: first(arg) for n, arg in kwargs.items()})

    def cuda(tensor: Tensor, device: Any = None, **kwargs: Any) -> Tensor:
        return moved(tensor, "cuda" if device is None else device, **kwargs)

    unused: dict[str, Any] = dict.fromkeys(_WITHOUT_EFFECT, lambda *args, **kwargs: None)
    with (
        mock.patch.multiple(Tensor, to=moved, cuda=cuda, pin_memory=lambda tensor, *_: tensor),
        mock.patch.object(nn.Module, "to", moved_module),
        mock.patch.multiple(torch.cuda, current_device=lambda: 0, **unused),
    ):
        yield


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run code that names the first GPU on the CPU, for real, until the block ends."""
    imported(COMPILER)  # which notes PyTorch's functions as it finds them
    with ignoring_gpu(), _OnCpu():
        yield


class _OnCpu(TorchFunctionMode):
    """Puts on the CPU what is made on the first GPU, as `torch.zeros(2, device="cuda")`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.device:  # PyTorch remembers what a device's name led to
            return func(*args, **(kwargs or {}))
        named = {name: without_gpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(without_gpu, args), **named)
