"""The device of this machine: pick it, name it, seed it, and choose sizes that suit it.

A learner on a laptop and one on a large GPU run the same cell. `pick_by_tier` gives each a size
that their machine can hold, so that nothing else in a notebook asks which machine it is on.
"""

import contextlib
import enum
import os
import platform
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from tutorial_lib.units import GIB, human_bytes

T = TypeVar("T")

# A T4 shows 14.6 GiB and an L4 22.2 GiB: small. An A100 shows 39.4 GiB or more: large.
LARGE_GPU_BYTES = 32 * GIB


class DeviceWarning(UserWarning):
    """What was asked for is not what this device does well."""


class Tier(enum.Enum):
    """How much a machine can hold: a laptop, a small GPU or a large one."""

    CPU = "cpu"
    SMALL_GPU = "small gpu"
    LARGE_GPU = "large gpu"


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
        ValueError: When the name is no device's, or when that device is not there.
    """
    if name is None:
        return torch.device("cuda" if has_gpu() else "cpu")
    there = _names_there()
    known = [*there, "cuda"] if has_gpu() else there
    if str(name) in known:
        return torch.device(name)
    raise ValueError(
        f"The device {str(name)!r} was asked for and is not on this machine. "
        f"There is {', '.join(there)}. "
        "Try one of these, or no name at all, which takes the best one."
    )


def describe(device: torch.device | str) -> str:
    """Say in words what a device is, as in `Tesla T4, 14.6 GiB` or `emulated Tesla T4, 14.6 GiB`.

    Returns:
        `CPU` for every CPU, so that a notebook's output is the same on every laptop.
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


def tier(device: torch.device | str | None = None) -> Tier:
    """Tell which tier a device belongs to.

    Args:
        device: A device; `None` means the one that `pick()` gives.

    Returns:
        `Tier.CPU` for everything that is no CUDA device; a GPU is large from 32 GiB on.
    """
    memory = total_bytes(pick() if device is None else device)
    if memory is None:
        return Tier.CPU
    return Tier.LARGE_GPU if memory >= LARGE_GPU_BYTES else Tier.SMALL_GPU


def pick_by_tier(*, cpu: T, small_gpu: T, large_gpu: T) -> T:
    """Choose the value that suits this machine, as in `pick_by_tier(cpu=2, small_gpu=8, ...)`.

    Args:
        cpu: The value for a machine without a GPU.
        small_gpu: The value for a GPU below 32 GiB, such as Colab's T4.
        large_gpu: The value for a larger GPU.

    Returns:
        One of the three values, unchanged.
    """
    return {Tier.CPU: cpu, Tier.SMALL_GPU: small_gpu, Tier.LARGE_GPU: large_gpu}[tier()]


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


def half_dtype(device: torch.device | str, wanted: torch.dtype = torch.bfloat16) -> torch.dtype:
    """Choose the 16-bit type for autocast: the wanted one, where the hardware has it.

    Args:
        device: Where the training runs.
        wanted: `torch.bfloat16` or `torch.float16`.

    Returns:
        `wanted`, or float16 in place of a bfloat16 that the device would only emulate. With
        float16 comes a gradient scaler: its smallest gradients are zeros without one.

    Raises:
        ValueError: When the wanted type is neither.

    Warns:
        DeviceWarning: When float16 takes the place of bfloat16, as on a T4.
    """
    if wanted not in (torch.bfloat16, torch.float16):
        raise ValueError(f"wanted (={wanted}) must be torch.bfloat16 or torch.float16.")
    if wanted == torch.float16 or supports_bfloat16(device):
        return wanted
    warnings.warn(
        f"bfloat16 was asked for, and {device} only emulates it, slowly: float16 takes its place. "
        "Train with a gradient scaler, or in float32.",
        DeviceWarning,
        stacklevel=2,
    )
    return torch.float16


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


def python_random_states() -> tuple[Any, ...]:
    """Return the states of `random` and NumPy, which no checkpoint puts back."""
    numpy: Any = np.random.get_state()
    return random.getstate(), (numpy[0], tuple(numpy[1].tolist()), *numpy[2:])


def set_python_random_states(states: tuple[Any, ...]) -> None:
    """Put back what `python_random_states` returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextlib.contextmanager
def keeping_python_random_states() -> Iterator[None]:
    """Put the states of `random` and NumPy back when the block ends."""
    states = python_random_states()
    try:
        yield
    finally:
        set_python_random_states(states)


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has done all it was given; on a CPU there is nothing to wait for."""
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


@contextlib.contextmanager
def memory_limit(device: torch.device | str, limit_bytes: int) -> Iterator[None]:
    """Limit this process to so many bytes of a GPU's memory, until the block ends.

    Args:
        device: A CUDA device; without an index the current one.
        limit_bytes: The most that PyTorch's allocator may reserve there. What it has reserved
            already it gives out beyond that too, unless `torch.cuda.empty_cache` frees it first.

    Raises:
        torch.OutOfMemoryError: Inside the block, from the operation that does not fit.
        ValueError: When the limit is below 1 byte, or more than the GPU has.

    Source:
        `torch.cuda.set_per_process_memory_fraction`. It takes no device without an index.
    """
    device = torch.device(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    total = total_bytes(torch.device("cuda", index)) or 0
    if not 1 <= limit_bytes <= total:
        raise ValueError(
            f"limit_bytes (={limit_bytes}) must be from 1 to {total}, all of {describe(device)}."
        )
    before = torch.cuda.get_per_process_memory_fraction(index)
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)


def allocations() -> int:
    """Count the tensors that PyTorch has given GPU memory so far, with those that are gone."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    count, name = torch.cuda.device_count(), "allocation.all.allocated"
    return sum(int(torch.cuda.memory_stats(index).get(name, 0)) for index in range(count))


def versions() -> dict[str, str]:
    """Versions that a measured number depends on.

    Returns:
        Python and torch, and transformers and diffusers when they are already imported.
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("transformers", "diffusers"):
        if package in sys.modules:
            found[package] = str(sys.modules[package].__version__)
    return found


def _names_there() -> list[str]:
    names = ["cpu"]
    if has_gpu():
        names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names
