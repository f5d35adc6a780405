"""Readings of the meter for lab 01's models: the oracles of its answers."""

from collections.abc import Mapping
from functools import partial

import torch

from tutorial_lib import memory
from tutorial_lib.checks.given import Case, observe

from .given import TiedEmbeddingModel

Sizes = Mapping[str, int]
OPTIMIZERS = ("sgd", "momentum", "adamw")
make_optimizer = partial(observe.make_optimizer, foreach=True)  # CUDA's default


def at_rest(case: Case) -> Sizes:
    """Meter a TiedEmbeddingModel that nothing is done with: bytes by category."""
    with memory.watch(model=TiedEmbeddingModel(case)) as report:
        pass
    return report.at_peak


def after_step(case: Case) -> Sizes:
    """Meter it after a real training step with the case's `optimizer`."""
    model, tokens = TiedEmbeddingModel(case), torch.arange(case["vocab"])
    optimizer = make_optimizer(case["optimizer"], model.parameters())
    step = observe.training_step(lambda: model(tokens).sum(), optimizer)
    return memory.measure(step, model=model, optimizer=optimizer).curve()[-1]
