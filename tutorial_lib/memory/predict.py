"""Predict a training step's memory without allocating it: the same meter, on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.optim import Optimizer

from tutorial_lib.memory.kernels import as_on_cuda, cuda_kernels
from tutorial_lib.memory.meter import measure
from tutorial_lib.memory.report import MemoryReport

Step = tuple[Callable[[], Any], nn.Module, Optimizer]


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
            its optimizer, all on the CPU. It is called under `FakeTensorMode`, so that a 7B model
            takes no memory.
        kernels: Whose kernels the step is to take: those of a GPU (Ampere or newer), or those of
            this CPU. They save different bytes for dropout, attention and autocast.
        label: Words for the report.
        warmup: Steps before the predicted one; 1 brings the optimizer's state.

    Returns:
        The report, `method` being `predicted`: with `cpu` byte for byte what the meter counts when
        the step is run; with `cuda` the bytes that tensors request, without the kernels' workspace
        and the allocator's rounding.

    Raises:
        RuntimeError: When the step looks at a tensor's values, which fake tensors do not have.
    """
    if kernels not in ("cuda", "cpu"):
        raise ValueError(f"kernels (={kernels!r}) must be 'cuda' or 'cpu'.")
    personality = cuda_kernels() if kernels == "cuda" else contextlib.nullcontext()
    with torch.random.fork_rng(devices=[]), FakeTensorMode(), _mended(), personality:
        step, model, optimizer = make_step()
        if kernels == "cuda":
            as_on_cuda(optimizer)
        try:
            report = measure(step, model=model, optimizer=optimizer, label=label, warmup=warmup)
        except DataDependentOutputException as error:
            raise RuntimeError(
                f"the step reads the value of a tensor ({error}), and a predicted tensor has none: "
                "take .item(), bool(tensor) and the like out of the step."
            ) from error
    report.method = "predicted"
    report.device = f"{kernels.upper()} kernels"
    return report


@contextlib.contextmanager
def _mended() -> Iterator[None]:
    """Mend two things that models do while they are built and fake tensors cannot."""
    with (
        # Rejection sampling looks at values (torch 2.12 and up).
        mock.patch.object(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
        # model.to(dtype) refuses parameters that have weak references, as all fake ones have.
        mock.patch("torch.utils.weakref.getweakrefs", return_value=[]),
    ):
        yield
