"""The device of this machine: pick it, name it, seed it, and choose sizes that suit it.

A learner on a laptop and one on a large GPU run the same cell. `pick_by_tier` gives each a size
that their machine can hold, so that nothing else in a notebook asks which machine it is on.
"""

import contextlib
import gc
import os
import platform
import random
import sys
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch

from tutorial_lib.units import GIB, human_bytes

T = TypeVar("T")


def has_gpu() -> bool:
    """Tell whether a CUDA device is there. MPS does not count: it reports no memory peaks."""
    return torch.cuda.is_available()


def is_emulated(device: torch.device | str = "cuda") -> bool:
    """Tell whether a device is emulated: PyTorch's own allocator is at work, and no kernel runs.

    Source:
        The variable that `tutorial_lib.instruments.emulated.run` sets for a program.
    """
    return torch.device(device).type == "cuda" and "TUTORIAL_EMULATED_CARD" in os.environ


def pick(name: torch.device | str | None = None) -> torch.device:
    """Pick the device to work on: a GPU when there is one, else the CPU.

    Args:
        name: A device by name, as in `cpu`, `cuda`, `cuda:1` or `mps`; `None` lets the machine
            decide. MPS is taken only by name.

    Returns:
        A device that is there.

    Raises:
        ValueError: When no device has that name, or that device is not there.
    """
    if name is None:
        return torch.device("cuda" if has_gpu() else "cpu")
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count() if has_gpu() else 0)]
    there = ["cpu", *gpus, *["mps"] * torch.backends.mps.is_available()]
    known = [*there, "cuda"] if has_gpu() else there
    if str(name) in known:
        return torch.device(name)
    raise ValueError(
        f"The device {str(name)!r} was asked for, but is not on this machine. "
        f"It has {', '.join(there)}. "
        "Try one of these, or no name at all, which takes the best one."
    )


def describe(device: torch.device | str) -> str:
    """Say in words what a device is, as in `Tesla T4, 14.6 GiB` or `emulated Tesla T4, 14.6 GiB`.

    Every CPU is `CPU`, so that a notebook's output is the same on every laptop.
    """
    device = torch.device(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        emulated = "emulated " if is_emulated(device) else ""
        return f"{emulated}{properties.name}, {human_bytes(properties.total_memory)}"
    return device.type.upper()


def total_bytes(device: torch.device | str) -> int | None:
    """Memory of a GPU in bytes; `None` where nothing says how much there is."""
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def tier(device: torch.device | str | None = None) -> str:
    """Return `cpu` (all but CUDA), `small gpu`, or `large gpu` from 32 GiB on.

    Args:
        device: A device; `None` means the one that `pick()` returns.
    """
    memory = total_bytes(pick() if device is None else device)
    if memory is None:
        return "cpu"
    # A T4 shows 14.6 GiB, an L4 22.2 GiB, an A100 39.4 GiB or more.
    return "large gpu" if memory >= 32 * GIB else "small gpu"


def pick_by_tier(*, cpu: T, small_gpu: T, large_gpu: T) -> T:
    """Return the value that suits this machine, as in `pick_by_tier(cpu=2, small_gpu=8, ...)`.

    A GPU is small below 32 GiB, such as Colab's T4.
    """
    return {"cpu": cpu, "small gpu": small_gpu, "large gpu": large_gpu}[tier()]


def supports_bfloat16(device: torch.device | str) -> bool:
    """Tell whether a device computes in bfloat16 in its own hardware.

    A T4 only emulates it, slowly, and counts as without. A CPU counts as with.
    """
    device = torch.device(device)
    if device.type == "cuda":
        here = contextlib.nullcontext() if device.index is None else torch.cuda.device(device)
        with here:  # PyTorch answers for the current device only
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        try:
            torch.empty(1, dtype=torch.bfloat16, device=device)
        except (RuntimeError, TypeError):  # macOS 13 and older
            return False
    return True


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's random numbers, on every device.

    Args:
        seed: From 0 to 2**32 - 1, the range that NumPy takes.

    Raises:
        ValueError: When the seed is outside that range.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed (={seed}) must be between 0 and 2**32 - 1: try seed=0.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector off until the block ends."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has done all it was told to; on a CPU there is nothing to wait for."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def reset_peak(device: torch.device | str) -> None:
    """Reset the GPU's peak counters to what is allocated now; no effect elsewhere."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def allocations() -> int:
    """Count the tensors that PyTorch has given GPU memory so far, including freed ones."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    count, name = torch.cuda.device_count(), "allocation.all.allocated"
    return sum(int(torch.cuda.memory_stats(index).get(name, 0)) for index in range(count))


def versions() -> dict[str, str]:
    """Return the versions of Python, torch, and transformers and diffusers where imported."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("transformers", "diffusers"):
        if package in sys.modules:
            found[package] = str(sys.modules[package].__version__)
    return found
