"""Predict a training step's memory without allocating it: the same meter, on fake tensors."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import private_torch
from tutorial_lib.memory.corrections import RealSizes
from tutorial_lib.memory.kernels import as_on_cuda, cuda_kernels
from tutorial_lib.memory.meter import measure
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.private_torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

Step = tuple[Callable[[], Any], nn.Module, Optimizer | None]

_RUN_IT = "or run the real step with memory.measure"
_NOT_OF_THE_USER = (
    Path(torch.__file__).parent,
    Path(__file__).parent,
    Path(private_torch.__file__),
)


def predict(
    make_step: Callable[[], Step],
    *,
    kernels: Literal["cuda", "cpu"] = "cuda",
    label: str = "",
    warmup: int = 1,
) -> MemoryReport:
    """Run a training step on tensors that have a shape and no memory, and meter it.

    Args:
        make_step: Builds everything, as it would for real, and returns the step, its model and
            its optimizer (or None), all on the CPU. It is called under `FakeTensorMode`, so that a
            7B model takes no memory.
        kernels: Whose kernels the step is to take: those of a GPU (Ampere or newer), or those of
            this CPU. They save different bytes for dropout, attention and autocast.
        label: Words for the report.
        warmup: Steps before the predicted one; 1 brings the optimizer's state.

    Returns:
        The report, `method` being `predicted`: with `cpu` byte for byte what the meter counts when
        the step is run; with `cuda` the bytes that tensors request, without the kernels' workspace
        and the allocator's rounding. Unchecked for recurrent layers: an `nn.LSTM` is predicted
        written out, and real kernels (cuDNN, oneDNN) save other bytes. Too high where a model of
        transformers gets an `attention_mask` without padding, which it drops after a look at it;
        too low for sparse gradients, whose values are not counted.

    Raises:
        RuntimeError: When `make_step` or the step looks at a tensor's values, which fake tensors
            do not have: the message names the line.
        ValueError: When a tensor was made outside `make_step` or is not on the CPU, or when one is
            too large to be addressed.
    """
    with predicting(kernels):
        step, model, optimizer = make_step()
        _check_device(model)
        if kernels == "cuda" and optimizer is not None:
            as_on_cuda(optimizer)
        with _unpacked_sequences():  # make_step may have imported transformers
            report = measure(step, model=model, optimizer=optimizer, label=label, warmup=warmup)
    report.method = "predicted"
    report.device = f"{kernels.upper()} kernels"
    return report


@contextlib.contextmanager
def predicting(kernels: Literal["cuda", "cpu"] = "cuda") -> Iterator[None]:
    """Make all tensors without memory, and let operations save what a GPU's would save.

    For what needs no whole training step, as in `memory.saved` of one layer at its published size.

    Args:
        kernels: Whose kernels the operations are to take, as in `predict`.

    Raises:
        RuntimeError: When the block looks at a tensor's values: the message names the line.
        ValueError: When the block uses a tensor that was made outside it.
    """
    if kernels not in ("cuda", "cpu"):
        raise ValueError(f"kernels (={kernels!r}) must be 'cuda' or 'cpu'.")
    kernel_mode = cuda_kernels() if kernels == "cuda" else contextlib.nullcontext()
    with (
        torch.random.fork_rng(devices=[]),
        FakeTensorMode(),
        _workarounds(),
        kernel_mode,
        RealSizes(kernels),
        _explain_refusals(),
    ):
        yield


@contextlib.contextmanager
def _workarounds() -> Iterator[None]:
    """Let a training step do what fake tensors cannot."""
    with (
        private_torch.without_truncated_normal(),
        private_torch.with_weak_references(),
        private_torch.with_finite_gradients(),
        # Else a copy of a model takes a copy of the mode along, and may end the process
        # (test_a_copy_of_the_model_made_in_the_step).
        mock.patch.object(FakeTensor, "__deepcopy__", _copy, create=True),
        _unpacked_sequences(),
    ):
        yield


def _none_found(*_: Any, **__: Any) -> None:
    return None


def _copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):  # whose gradient a copy leaves out
            twin = nn.Parameter(twin)
        elif tensor.grad is not None:
            twin.grad = _copy(tensor.grad, memo)
        memo[id(tensor)] = twin.requires_grad_(tensor.requires_grad)
    copied: Tensor = memo[id(tensor)]
    return copied


def _unpacked_sequences() -> contextlib.AbstractContextManager[Any]:
    """Tell transformers that no batch packs several texts into one sequence.

    It looks at the positions to find out. Fake tensors have no values to look at: it would then
    make a mask `(batch, 1, seq, seq)` that a real step has only with packed sequences.

    Source:
        `find_packed_sequence_indices` in transformers/masking_utils.py (5.23).
    """
    masking = sys.modules.get("transformers.masking_utils")
    if not hasattr(masking, "find_packed_sequence_indices"):
        return contextlib.nullcontext()
    return mock.patch.object(masking, "find_packed_sequence_indices", _none_found)


def _check_device(model: nn.Module) -> None:
    kinds = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
    if kinds:
        raise ValueError(
            f"make_step built its model on {', '.join(sorted(kinds))}, and a prediction needs it "
            "on the CPU, whose tensors take no memory either: leave the device out."
        )


@contextlib.contextmanager
def _explain_refusals() -> Iterator[None]:
    """Say of what fake tensors refuse in which line it was, and what to do instead."""
    try:
        yield
    except DataDependentOutputException as error:
        raise RuntimeError(_asks_for_a_value(error, str(error))) from error
    except DynamicOutputShapeException as error:
        raise RuntimeError(
            f"{_line_of(error)} makes a tensor whose shape depends on values ({error}), and a "
            "predicted tensor has none: take torch.where or a product with a mask instead of "
            f"nonzero and indexing by a mask, {_RUN_IT}."
        ) from error
    except TypeError as error:
        if "FakeTensor.__format__" not in str(error):
            raise
        raise RuntimeError(_asks_for_a_value(error, "format")) from error
    except AssertionError as error:
        if "convert all Tensors to FakeTensors" not in str(error):
            raise
        raise ValueError(
            f"{_line_of(error)} uses a tensor that was made outside make_step: build model, "
            "optimizer and batch inside it, where tensors take no memory."
        ) from error
    except RuntimeError as error:
        if ".numpy() is not supported" in str(error):
            raise RuntimeError(_asks_for_a_value(error, "numpy")) from error
        if "overflow" not in str(error).lower():
            raise
        raise ValueError(
            f"{_line_of(error)} asks for a tensor of more than 2**63 bytes: choose a smaller "
            "micro-batch or smaller sizes."
        ) from error


def _asks_for_a_value(error: Exception, operation: str) -> str:
    return (
        f"{_line_of(error)} asks for the value of a tensor ({operation}), and a predicted tensor "
        f"has none: take .item(), bool(tensor), .numpy() and the like out of the step, {_RUN_IT}."
    )


def _line_of(error: Exception) -> str:
    """Name the innermost line that is neither PyTorch's, nor Python's, nor ours."""
    python = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))  # it lies inside Python's own folder
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        of_python = path.is_relative_to(python) and not path.is_relative_to(packages)
        if not of_python and not any(path.is_relative_to(home) for home in _NOT_OF_THE_USER):
            code = f" (`{frame.line}`)" if frame.line else ""
            return f"{path.name}, line {frame.lineno}, in {frame.name}{code},"
    return "make_step"
