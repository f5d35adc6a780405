"""Predict a training step's memory without allocating it: the same meter, on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from tutorial_lib.memory.meter import measure
from tutorial_lib.memory.report import MemoryReport

Step = tuple[Callable[[], Any], nn.Module, Optimizer]


def predict(make_step: Callable[[], Step], *, label: str = "", warmup: int = 1) -> MemoryReport:
    """Run a training step on tensors that have a shape and no memory, and meter it.

    Args:
        make_step: Builds everything, as it would for real, and returns the step, its model and
            its optimizer. It is called under `FakeTensorMode`, so that a 7B model takes no memory.
        label: Words for the report.
        warmup: Steps before the predicted one; 1 brings the optimizer's state.

    Returns:
        The report, `method` being `predicted`: byte for byte what the meter counts when the same
        step is run on a CPU with the same kernels.

    Raises:
        RuntimeError: When the step looks at a tensor's values, which fake tensors do not have.
    """
    with torch.random.fork_rng(devices=[]), FakeTensorMode():
        step, model, optimizer = make_step()
        try:
            report = measure(step, model=model, optimizer=optimizer, label=label, warmup=warmup)
        except torch._subclasses.fake_tensor.DataDependentOutputException as error:
            raise RuntimeError(
                f"the step reads the value of a tensor ({error}), and a predicted tensor has none: "
                "take .item(), bool(tensor) and the like out of the step."
            ) from error
    report.method = "predicted"
    return report
