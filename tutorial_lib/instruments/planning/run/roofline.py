"""Predict the time of operations from their FLOPs and bytes, on tensors without memory."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Self
from unittest import mock

import torch
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from tutorial_lib.instruments.planning.run.matmuls import is_matmul
from tutorial_lib.instruments.private_torch.operations import MATMUL_SHAPED, gives_view
from tutorial_lib.memory.private_torch import TorchDispatchMode
from tutorial_lib.memory.private_torch_unseen import flops_of
from tutorial_lib.memory.storages import list_tensors

_HALVES = (torch.float16, torch.bfloat16)
A100 = "NVIDIA A100-SXM4-80GB"
PUBLISHED_SPEEDS: dict[str, dict[str, float]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)

# Of these steps (`own_times.csv`, `whole_runs.csv` in `course/recorded`) nine in ten took from so
# much to so much of `Roofline.elapsed`. The 39 checkpointed ones took no part when it was set.
TIMED = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", A100, "NVIDIA L40S")
RESTS_ON, LASTS = "118 steps in bfloat16 on an H200, an H100, an A100 and an L40S", (0.6, 1.6)


@dataclass(frozen=True)
class Speed:
    """How fast a device computes and moves bytes, as far as a prediction asks; an A100's."""

    half_flops: float = 150e12  # floating-point operations a second in 16 bits
    float_flops: float = 60e12  # the same in float32, with TF32
    bytes_per_second: float = 1.3e12  # what its memory gives and takes
    # What the CPU takes to launch an operation: 14 to 26 microseconds on an H200's machine. Of 10,
    # 15, 20, 25 and 30 it is nearest to the steps there without checkpoints.
    launch_seconds: float = 20e-6
    # What a call of a hook takes on a saved tensor: a checkpoint's Python. Of 5, 10, 15 and 20 it
    # is nearest to an H200's prices of checkpoints. An H100's rows took no part in either choice.
    hook_seconds: float = 15e-6
    has_bfloat16: bool = True  # else bfloat16 is no faster than float32
    matmul_flops: float | None = None  # in float32 without TF32; convolutions take it, untold

    @classmethod
    def of(cls, card: str | None) -> Speed:
        """Take a card's speed: the shares of what is published that the default has of an A100's.

        `None` takes the A100. Float32 matmuls take TF32 only where PyTorch is told to use it.

        Raises:
            ValueError: For a name that is no key of `PUBLISHED_SPEEDS`.
        """
        if (name := card or A100) not in PUBLISHED_SPEEDS:
            known = f"name one of {', '.join(PUBLISHED_SPEEDS)}"
            raise ValueError(f"No speed of {card!r} is known here: {known}, or give a Speed.")
        mine, a100 = PUBLISHED_SPEEDS[name], PUBLISHED_SPEEDS[A100]
        half = cls.half_flops * mine["half"] / a100["half"]
        single = 0.64e12 * mine["single"]  # the share that memory reaches
        memory = cls.bytes_per_second * mine["memory"] / a100["memory"]
        if "tf32" in mine:
            return cls(half, single, memory, has_bfloat16=False)
        told = torch.backends.cuda.matmul.fp32_precision == "tf32"
        with_tf32 = max(single, cls.float_flops / cls.half_flops * half)
        return cls(half, with_tf32, memory, matmul_flops=None if told else single)

    @property
    def autocast(self) -> str:
        """Precision of `Recipe` under which its tensor cores compute."""
        return "bf16-amp" if self.has_bfloat16 else "fp16-amp"


class Roofline(TorchDispatchMode):
    """Add up the predicted time of all operations while the mode is active, and count them.

    An operation takes the longer of two times: of its arithmetic, and of reading its inputs and
    writing its outputs once. Caches and overlap are left out. `launches` and `matmuls` are numbers
    of operations, `hooks` of calls on saved tensors; only `elapsed` has what those cost the CPU,
    which launches one operation after the other. The device begins one when the last has ended.

    Source:
        Williams et al. (2009), Roofline. Held against an H200's seconds in `own_times.csv`.
    """

    takes_wrappers = True  # a sharded operation is priced as one

    def __init__(self, speed: Speed) -> None:
        super().__init__()
        self.speed, self.seconds, self.launches, self.matmuls, self.hooks = speed, 0.0, 0, 0, 0
        self._device = 0.0  # when it has ended what was launched

    @property
    def elapsed(self) -> float:
        """Seconds until the CPU and the device have both ended."""
        cpu = self.launches * self.speed.launch_seconds + self.hooks * self.speed.hook_seconds
        return max(self._device, cpu)

    def __enter__(self) -> Self:
        """Begin, and count what checkpoints do with saved tensors, too."""
        self._counting = mock.patch.object(saved_tensors_hooks, "__init__", self._count_hooks())
        self._counting.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """End, also after an error."""
        self._counting.stop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _count_hooks(self) -> Callable[..., None]:
        plain = saved_tensors_hooks.__init__

        def counted(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @wraps(hook)  # checkpoint knows its own hooks by their attributes, since 2.15
            def counting(kept: Any) -> Any:
                self.hooks += 1
                return hook(kept)

            return counting

        return lambda hooks, pack_hook, unpack_hook: plain(
            hooks, counted(pack_hook), counted(unpack_hook)
        )

    def run_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the operation and add its time."""
        out = func(*args, **kwargs)
        self.add(func, args, kwargs, out)
        return out

    def add(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Add the time of an operation that was run."""
        if (count := flops_of(func)) is not None:
            self.matmuls += is_matmul(func, args)
        if func.namespace == "aten" and not gives_view(func) and func is not MATMUL_SHAPED:
            self.launches += 1
            given = list_tensors(args)
            touched = [*given, *list_tensors(kwargs), *list_tensors(out)]
            moved = sum([tensor.numel() * tensor.element_size() for tensor in touched])
            seconds = moved / self.speed.bytes_per_second
            if count is not None:
                is_half = bool(given) and given[0].dtype in _HALVES[: 1 + self.speed.has_bfloat16]
                peak = self.speed.half_flops if is_half else self.speed.float_flops
                if not is_half and "conv" not in func.__name__:
                    peak = self.speed.matmul_flops or peak
                seconds = max(seconds, float(count(*args, **kwargs, out_val=out)) / peak)
            self.seconds += seconds
            self._device = self.elapsed + seconds


def lasts(make_step: Callable[[], Any], speed: Speed) -> tuple[float, float]:
    """Return from and to how many seconds a step takes on a card, as nine in ten timed steps did.

    What ranks exchange is not in it, nor what the data loader does.
    """
    with memory.predicting():
        step, *_ = make_step()
        with Roofline(speed) as roofline:
            step()
    return LASTS[0] * roofline.elapsed, LASTS[1] * roofline.elapsed
