"""The comparable state of a training: named leaves, their sizes, and random states."""

import math
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Leaves = dict[str, Any]
_OF_ANY_MODULE = set(vars(nn.Module()))
_NUMBERS = (int, float, complex, np.number)


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers in float64, or complex128."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of all numbers of a tensor of any type, computed in float64."""
    return float(wide(tensor).norm())


def gradient_sizes(gradients: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Return each gradient's norm, or the norm at the usual size of a gradient's numbers.

    A bias before a norm has a gradient of zero on paper. What is computed for it is the rounding
    of numbers that are as large as any other gradient's.
    """
    there = {name: grad for name, grad in gradients.items() if grad is not None}
    count = sum(grad.numel() for grad in there.values())
    whole = math.hypot(*(norm(grad) for grad in there.values()))
    return {
        name: max(norm(grad), whole * math.sqrt(grad.numel() / max(1, count)))
        for name, grad in there.items()
    }


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Walk through dicts, lists and tuples; each leaf comes with its path, as in `a.0.b`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}")
    elif isinstance(value, list | tuple | deque):
        for place, item in enumerate(value):
            yield from leaves(item, f"{name}.{place}")
    else:
        yield name, value


def attributes(module: nn.Module, label: str = "") -> Leaves:
    """Read what modules keep in plain attributes: tensors, numbers, and lists of them.

    Parameters and tensors of a graph are left out, since each step makes the latter anew. So are
    booleans and text, which are settings, as `gradient_checkpointing` is.
    """
    found: Leaves = {}
    for path, part in module.named_modules(prefix=label):
        for key, value in vars(part).items():
            if key in _OF_ANY_MODULE:
                continue
            for name, leaf in leaves(value, f"{path}.{key}".removeprefix(".")):
                if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
                    leaf = torch.from_numpy(leaf)
                is_number = isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool)
                if is_number or (isinstance(leaf, Tensor) and not leaf.requires_grad):
                    found[name] = leaf
    return copied(found)


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
