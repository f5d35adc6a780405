"""Other frameworks beside PyTorch, for chapter 15: what is missing, and what TensorFlow keeps.

Nothing here imports a framework until it is asked to.
"""

import contextlib
import gc
import importlib
import math
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def leave_out_cells(*names: str) -> None:
    """Skip this notebook's cells that need a package, named as imported, which isn't installed.

    Such a cell begins with `# needs jax`, or with several names. A printed line names each package
    that is missing.
    """
    missing = [name for name in names if find_spec(name) is None]
    for name in missing:
        print(f"{name} is not installed: its cells are left out.")

    def left_out(lines: list[str]) -> list[str]:
        needs = lines[0] if lines and lines[0].startswith("# needs ") else ""
        wanted = needs.removeprefix("# needs ").strip().split(", ")
        return ["pass\n"] if {*wanted} & {*missing} else lines

    # IPython is there wherever a notebook runs, and it asks this function for the lines to run.
    shell = importlib.import_module("IPython").get_ipython()
    if shell is not None:
        shell.input_transformers_cleanup.append(left_out)


def import_tensorflow() -> Any:
    """Import TensorFlow, and Keras on top of it, without their messages about missing GPUs."""
    os.environ.update(_QUIET | {"KERAS_BACKEND": "tensorflow"})
    with _without_stderr():
        return importlib.import_module("tensorflow")


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # TensorFlow's C++ writes past Python's sys.stderr
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@dataclass(frozen=True)
class TensorFlowStep:
    """What one forward and backward under TensorFlow's tape held."""

    waiting_bytes: int  # results that are alive when forward has ended
    peak_bytes: int  # the most that was alive at once
    matmuls: int  # how many matmuls ran
    gradients: list[Any]  # one for each variable


def tensorflow_step(loss: Callable[[], Any], variables: Any) -> TensorFlowStep:
    """Run a loss and its gradient, eagerly on a CPU, and count the bytes of results.

    Args:
        loss: Called once, under a `tf.GradientTape`; gives a scalar.
        variables: `tf.Variable`s, in lists or dictionaries. Their own bytes are not counted.

    Returns:
        The bytes, and the gradients in the order of `tf.nest.flatten(variables)`.

    Source:
        An `op_callback`, which is internal to TensorFlow: its debugger uses it. Blind to what a
        kernel needs inside one operation, and to graphs of `tf.function`.
    """
    tf = import_tensorflow()
    callbacks = importlib.import_module("tensorflow.python.framework.op_callbacks")
    flat = tf.nest.flatten(variables)
    meter = _Meter(tf.resource, {_place(variable.value()) for variable in flat})
    callbacks.add_op_callback(meter)
    try:
        with tf.GradientTape() as tape:
            value = loss()
        gc.collect()
        waiting = meter.num_bytes()
        gradients = tape.gradient(value, flat)
    finally:
        callbacks.remove_op_callback(meter)
    return TensorFlowStep(waiting, meter.peak, meter.matmuls, gradients)


class _Meter:
    """Bytes of the results that are alive, each buffer once, without the variables."""

    def __init__(self, resource: Any, variables: set[int]) -> None:
        self.resource, self.variables = resource, variables
        self.alive: dict[int, tuple[int, int]] = {}
        self.peak = self.matmuls = 0

    def __call__(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, *_: Any, **__: Any
    ) -> None:
        self.matmuls += "MatMul" in str(op_type)
        for tensor in outputs:
            if tensor.dtype.size and tensor.dtype != self.resource:
                size = tensor.dtype.size * math.prod(tensor.shape)
                self.alive[id(tensor)] = _place(tensor), size
                weakref.finalize(tensor, self.alive.pop, id(tensor), None)
        self.peak = max(self.peak, self.num_bytes())

    def num_bytes(self) -> int:
        buffers = dict(self.alive.values())
        return sum(size for place, size in buffers.items() if place not in self.variables)


def _place(tensor: Any) -> int:
    """Say where a tensor's buffer begins: views of one buffer share it."""
    return int(np.asarray(memoryview(tensor)).ctypes.data)
