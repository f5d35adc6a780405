"""The states of `random` and NumPy, which PyTorch's checkpoint does not put back."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


def python_random_states() -> tuple[Any, ...]:
    """Return the states of `random` and NumPy."""
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
