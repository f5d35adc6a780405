"""Prediction of a training step's memory without allocating it: the same meter, on fake tensors."""

import contextlib
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from tutorial_lib.device import without_garbage_collection
from tutorial_lib.instruments.predicting import reading
from tutorial_lib.instruments.predicting.corrections import RealSizes
from tutorial_lib.instruments.predicting.kernels import cuda_kernels
from tutorial_lib.instruments.predicting.placement import ignoring_gpu
from tutorial_lib.instruments.predicting.refusals import CannotPredictError
from tutorial_lib.instruments.predicting.release import following, kernels_in_words
from tutorial_lib.instruments.predicting.repeats import Repeats
from tutorial_lib.instruments.predicting.transformers_asks import with_own_caches, with_values
from tutorial_lib.instruments.predicting.values import Values
from tutorial_lib.instruments.private_torch import COMPILER, imported, patches, without_modes
from tutorial_lib.instruments.random_states import keeping_python_random_states
from tutorial_lib.memory.lines import line_in_words
from tutorial_lib.memory.meter import MeterWarning, measure
from tutorial_lib.memory.private_torch import (
    FakeTensor,
    FakeTensorMode,
    active_modes,
    compiling_nothing,
)
from tutorial_lib.memory.release import naming_what_is_gone
from tutorial_lib.memory.report import MemoryReport

Step = tuple[Callable[[], Any], nn.Module, Optimizer | None]

_NO_MEMORY = ("data is not allocated", "Cannot access data pointer", "INTERNAL ASSERT FAILED")
_ANOTHER_PATH = (
    "If a different value makes the step do something else, its memory differs from this "
    "prediction: compare with memory.measure at a small size."
)


def predict(
    make_step: Callable[[], Step],
    *,
    kernels: Literal["cuda", "cpu"] = "cuda",
    label: str = "",
    warmup: int = 1,
    lines: bool = False,
    release: str | None = None,
) -> MemoryReport:
    """Run a training step on tensors that have a shape and no memory, and meter it.

    Args:
        make_step: Builds everything, as it would for real, and returns the step, its model and
            its optimizer (or None), all on the CPU; `.cuda()` in it is ignored. It is called under
            `FakeTensorMode`, so that a 7B model takes no memory.
        kernels: Whose kernels the step is to take: those of a GPU (Ampere or newer), or those of
            this CPU. They save different bytes for dropout, attention and autocast.
        label: Words for the report.
        warmup: Steps before the predicted one; 1 brings the optimizer's state.
        lines: Whether to note which line of code made each tensor, for `report.by("line")`.
        release: PyTorch's release, as in `2.13`, whose kernels for CUDA the step is to take; the
            installed one's by default, and 2.10's for an older one. They differ in attention with
            grouped heads or without a batch, and in cuBLAS's workspaces.

    Returns:
        The report, `method` being `predicted`: with `cpu` byte for byte what the meter counts when
        the step is run; with `cuda` the bytes that tensors request and, as `other`, the buffers of
        PyTorch's own kernels on an A100, which since PyTorch 2.15 include cuBLAS's workspace
        where the peak is inside a matmul. Not counted are the two that PyTorch up to 2.14 keeps
        (8.125 MiB, 32 MiB on an H100), cuDNN's workspace, and the allocator's rounding. What cuDNN
        keeps of a recurrent layer is a guess. A T4 writes scores out in bfloat16.

    Raises:
        ValueError: When a tensor was made outside `make_step` or is not on the CPU, when one is
            too large to be addressed, or when the release is not one that was tried.
        CannotPredictError: When the step does what fake tensors cannot: it names the line.

    Warns:
        MeterWarning: Where the step looks at a value that does not follow from constants, and one
            was assumed. A decision that ends in an error is taken the other way: `make_step` is
            then called again. Where it calls compiled code, which is predicted uncompiled.

    Example:
        >>> def make_step():
        ...     layer, x = torch.nn.Linear(1024, 1024), torch.zeros(256, 1024)
        ...     return lambda: (layer(x).sum().backward(), layer.zero_grad()), layer, None
        >>> predict(make_step, kernels="cpu").peak_bytes
        9.01 MiB
    """
    with following(release):
        report, values = _decided(make_step, kernels, label=label, warmup=warmup, lines=lines)
        assumed = kernels_in_words() if kernels == "cuda" else ""
    _warn(values, stacklevel=3)
    report.method = "predicted"
    report.device = f"{kernels.upper()} kernels{assumed}"
    return report


def _decided(
    make_step: Callable[[], Step], kernels: str, **options: Any
) -> tuple[MemoryReport, Values]:
    """Predict a step, and again with the last new decision reversed while one ends in an error."""
    first_error: Exception | None = None
    decisions: dict[str, bool] = {}
    while True:
        values = Values(decisions)
        try:
            return _predicted(make_step, values, kernels, **options), values
        except Exception as error:
            first_error = first_error or error
            untried = [line for line in values.decided if line not in decisions]
            if not untried:
                raise first_error from first_error.__cause__
            decisions[untried[-1]] = not values.decided[untried[-1]]


def _predicted(
    make_step: Callable[[], Step], values: Values, kernels: str, **options: Any
) -> MemoryReport:
    with _predicting(kernels, values):
        step, model, optimizer = make_step()
        if kinds := {parameter.device.type for parameter in model.parameters()} - {"cpu"}:
            raise ValueError(
                f"make_step built its model on {', '.join(sorted(kinds))}, but a prediction needs "
                "it on the CPU, whose tensors take no memory either: leave the device out."
            )
        with with_values(), with_own_caches():  # make_step may have imported transformers
            return measure(step, model=model, optimizer=optimizer, **options)


def _warn(values: Values, *, stacklevel: int) -> None:
    for assumption in values.assumptions.values():
        warnings.warn(f"{assumption} {_ANOTHER_PATH}", MeterWarning, stacklevel=stacklevel)


@contextlib.contextmanager
def predicting(kernels: Literal["cuda", "cpu"] = "cuda") -> Iterator[None]:
    """Make all tensors without memory, and let operations save what a GPU's would save.

    For what needs no whole training step, as in `memory.saved` of one layer at its published size.

    Args:
        kernels: Whose kernels the operations are to take, as in `predict`.

    Raises:
        ValueError: When the block uses a tensor that was made outside it.

    Warns:
        MeterWarning: Where the block looks at a value that does not follow from constants.

    Example:
        >>> with predicting():
        ...     torch.zeros(2**20, 2**20).nbytes // 2**40  # TiB, of which no byte is there
        4
    """
    values = Values()
    with _predicting(kernels, values):
        yield
    _warn(values, stacklevel=4)


@contextlib.contextmanager
def _predicting(kernels: str, values: Values) -> Iterator[None]:
    if kernels not in ("cuda", "cpu"):
        raise ValueError(f"kernels (={kernels!r}) must be 'cuda' or 'cpu'.")
    imported(COMPILER)
    kernel_mode = cuda_kernels() if kernels == "cuda" else contextlib.nullcontext()
    is_inside = any(isinstance(mode, FakeTensorMode) for mode in active_modes())
    with (
        # modes of a prediction around this one would answer too, with values of their own
        without_modes() if is_inside else contextlib.nullcontext(),
        torch.random.fork_rng(devices=[]),
        keeping_python_random_states(),
        FakeTensorMode() as mode,
        Repeats(mode),
        values,
        _workarounds(),
        compiling_nothing(),  # code compiled before knows real tensors alone
        kernel_mode,
        RealSizes(kernels),
        naming_what_is_gone(),
        Repeats(mode, kernels, values),
        _explain_refusals(),
        without_garbage_collection(),
    ):
        yield


@contextlib.contextmanager
def _workarounds() -> Iterator[None]:
    """Patch what fake tensors cannot do in a training step."""
    with (
        patches.without_truncated_normal(),
        patches.with_weak_references(),
        patches.with_finite_gradients(),
        patches.without_new_buckets(),
        patches.with_packed_sequences(reading.real_of, reading.padded_of, reading.Packing.apply),
        patches.without_tracebacks_of_fake_tensors(),
        patches.without_printed_tensors(),
        # Else a copy of a model takes a copy of the mode along, and may end the process
        # (test_a_copy_of_the_model_made_in_the_step).
        mock.patch.object(FakeTensor, "__deepcopy__", reading.copy_of, create=True),
        mock.patch.object(FakeTensor, "__format__", reading.format_of, create=True),
        mock.patch.object(FakeTensor, "numpy", reading.numpy_of, create=True),
        patches.with_constructor(reading.tensor_of),
        ignoring_gpu(),
        with_values(),
        with_own_caches(),
    ):
        yield


@contextlib.contextmanager
def _explain_refusals() -> Iterator[None]:
    """Say of what fake tensors refuse in which line it was, and what to do instead."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if "convert all Tensors to FakeTensors" in str(error) and "type='meta'" in str(error):
            raise CannotPredictError(
                f"{_line_of(error)} takes a derivative in forward mode (jvp, jacfwd, hessian), and "
                "PyTorch's formula for one makes a tensor that no prediction follows: use jacrev "
                "or torch.autograd.grad, or count the real step with memory.measure."
            ) from error
        if "convert all Tensors to FakeTensors" in str(error):
            raise ValueError(
                f"{_line_of(error)} uses a tensor that was made outside make_step: build model, "
                "optimizer and batch inside it, where tensors take no memory."
            ) from error
        if "overflow" in str(error).lower() and isinstance(error, RuntimeError):
            raise ValueError(
                f"{_line_of(error)} asks for a tensor of more than 2**63 bytes: choose a smaller "
                "micro-batch or smaller sizes."
            ) from error
        frames = traceback.extract_tb(error.__traceback__)
        fake_refused = "_subclasses" in Path(frames[-1].filename).parts  # not the operation itself
        if any(words in str(error) for words in _NO_MEMORY) or fake_refused:
            said = re.split("\n| If you're| INTERNAL", str(error))[0]
            raise CannotPredictError(
                f"{_line_of(error)} needs a tensor's memory itself ({said}), but a predicted one "
                "has none: count the real step with memory.measure, smaller if it does not fit."
            ) from error
        raise


def _line_of(error: Exception) -> str:
    """Name the innermost line that is neither PyTorch's, nor Python's, nor ours."""
    return line_in_words(reversed(list(traceback.walk_tb(error.__traceback__))))
