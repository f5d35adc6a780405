"""Predict the time of operations from their FLOPs and bytes, on tensors without memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.planning.run.matmuls import is_matmul
from tutorial_lib.instruments.private_torch.operations import gives_view
from tutorial_lib.memory.private_torch import TorchDispatchMode, flops_of
from tutorial_lib.memory.storages import list_tensors

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Speed:
    """How fast a device computes and moves bytes, as far as a prediction asks."""

    half_flops: float = 150e12  # floating-point operations a second in 16 bits
    float_flops: float = 60e12  # the same in float32
    bytes_per_second: float = 1.3e12  # what its memory gives and takes
    launch_seconds: float = 10e-6  # what the CPU takes to launch an operation; unchecked


class Roofline(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add up the predicted time of all operations while the mode is active, and count them.

    An operation takes the longer of two times: of its arithmetic, and of reading its inputs and
    writing its outputs once. Caches and overlap are left out. `launches` and `matmuls` are numbers
    of operations; `seconds` has nothing of what launches cost.

    Source:
        Williams et al. (2009), Roofline. Unchecked against a device.
    """

    def __init__(self, speed: Speed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.speed, self.seconds, self.launches, self.matmuls = speed, 0.0, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and add its time."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.matmuls += is_matmul(func, args)
        if func.namespace == "aten" and not gives_view(func):
            self.launches += 1
            made = list_tensors(out)
            touched = [*list_tensors(args), *list_tensors(kwargs), *made]
            moved = sum(tensor.numel() * tensor.element_size() for tensor in touched)
            self.seconds += max(
                moved / self.speed.bytes_per_second, self._arithmetic(func, args, kwargs, out)
            )
        return out

    def _arithmetic(self, func: Any, args: Any, kwargs: Any, out: Any) -> float:
        count = flops_of(func)
        if count is None:
            return 0.0
        first = next((leaf for leaf in list_tensors(args) if isinstance(leaf, Tensor)), None)
        half = first is not None and first.dtype in _HALVES
        flops = count(*args, **kwargs, out_val=out)
        return float(flops) / (self.speed.half_flops if half else self.speed.float_flops)
