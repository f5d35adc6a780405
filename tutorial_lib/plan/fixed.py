"""What a training step holds whatever is checkpointed: model, states, and the update's own peak."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tutorial_lib import memory
from tutorial_lib.training import Recipe


@dataclass(frozen=True)
class Fixed:
    """The bytes of an optimizer with its model.

    Args:
        resident_bytes: Parameters, buffers and states: held all the time.
        update_bytes: Peak of the update, gradients included.
        touched_bytes: Read and written by the update, about.
    """

    resident_bytes: int
    update_bytes: int
    touched_bytes: int


def fixed_parts(recipe: Recipe, optimizers: Sequence[str]) -> dict[str, Fixed]:
    """Predict updates alone, without any forward.

    Args:
        recipe: Model and precision.
        optimizers: Names, as in `Recipe`.
    """
    return {name: _fixed(replace(recipe, optimizer=name)) for name in optimizers}


def _fixed(recipe: Recipe) -> Fixed:
    def make_step() -> Any:
        _, model, optimizer = recipe.make_step()

        def update() -> None:
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
            optimizer.zero_grad()

        return update, model, optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", memory.MeterWarning)  # that this is no whole step
        report = memory.predict(make_step)
    return Fixed(
        report.baseline_bytes,
        report.peak_bytes,
        2 * report.baseline_bytes + report.at_peak["gradients"],
    )
