"""The comparable state of a training: named leaves, their sizes, and random states."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Leaves = dict[str, Any]


def wide(tensor: Tensor) -> Tensor:
    """Give a tensor's numbers in float64, or complex128."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def norm(tensor: Tensor) -> float:
    """Give the Euclidean norm of all numbers of a tensor of any type, as a float64."""
    return float(wide(tensor).norm())


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Walk through dicts, lists and tuples; each leaf comes with its path, as in `a.0.b`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from leaves(item, f"{name}.{place}")
    else:
        yield name, value


def copied(found: Leaves) -> Leaves:
    """Copy the tensors among the leaves; the rest does not change under our hands."""
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in found.items()}


def random_states() -> Leaves:
    """Read every random state that training draws from."""
    states: Leaves = {
        "torch": torch.random.get_rng_state(),
        "Python": random.getstate(),
        "NumPy": np.random.get_state(),
    }
    if torch.cuda.is_available():
        states["CUDA"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: Leaves) -> None:
    """Put random states back."""
    torch.random.set_rng_state(states["torch"])
    random.setstate(states["Python"])
    np.random.set_state(states["NumPy"])
    if "CUDA" in states:
        torch.cuda.set_rng_state_all(states["CUDA"])
