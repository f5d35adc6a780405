"""Build the training step of a recipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib import strategies
from tutorial_lib.models import published
from tutorial_lib.models.libraries import config_value
from tutorial_lib.training.adamw_8bit import AdamW8bit
from tutorial_lib.training.choices import Choices, OptimizerName, Precision

Step = tuple[Callable[[], None], nn.Module, Optimizer]
Loss = tuple[Callable[[], Tensor], nn.Module]

LEARNING_RATE = 1e-4
# PyTorch begins at 65536, and an update that overflows is skipped: the state would come late.
FIRST_SCALE = 1024.0
_AUTOCAST = {Precision.BF16_AMP: torch.bfloat16, Precision.FP16_AMP: torch.float16}


def make_model(recipe: Choices, device: torch.device | str = "cpu") -> nn.Module:
    """Build the model of a recipe: see `Recipe.make_model`."""
    return published.build(
        recipe.model,
        device=device,
        dtype=torch.bfloat16 if recipe.precision == Precision.BF16 else None,
        attention=str(recipe.attention),
        **_overrides(recipe),
    )


def make_loss(recipe: Choices, device: torch.device | str = "cpu") -> Loss:
    """Build model and batch of a recipe; checkpointing and accumulation are left to the step."""
    batch = published.batch(
        recipe.model,
        recipe.micro_batch,
        seq=recipe.seq,
        size=recipe.size,
        device=device,
        **_overrides(recipe),
    )
    model = make_model(recipe, device)
    autocast = _autocast(str(recipe.precision), torch.device(device).type)

    def loss() -> Tensor:
        with autocast():
            return published.loss(recipe.model, model, batch)

    return loss, model


def make_step(recipe: Choices, device: torch.device | str = "cpu") -> Step:
    """Build model, batch and optimizer of a recipe: see `Recipe.make_step`."""
    loss, model = make_loss(recipe, device)
    optimizer = _optimizer(str(recipe.optimizer), model.parameters())
    scaler = torch.amp.GradScaler(
        torch.device(device).type,
        init_scale=FIRST_SCALE,
        enabled=recipe.precision == Precision.FP16_AMP,
    )

    def step() -> None:
        with strategies.applied(model, recipe.checkpointing):
            for _ in range(recipe.accumulation):
                value = loss() / recipe.accumulation if recipe.accumulation > 1 else loss()
                scaler.scale(value).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step, model, optimizer


def _optimizer(name: str, parameters: Iterable[nn.Parameter]) -> Optimizer:
    if name == OptimizerName.SGD:
        return SGD(parameters, lr=LEARNING_RATE)
    if name == OptimizerName.ADAMW_8BIT:
        return AdamW8bit(parameters, lr=LEARNING_RATE)
    return AdamW(parameters, lr=LEARNING_RATE, fused=name == OptimizerName.ADAMW_FUSED or None)


def _autocast(precision: str, device_type: str) -> Callable[[], Any]:
    dtype = _AUTOCAST.get(Precision(precision))
    if dtype is None:
        return contextlib.nullcontext
    return lambda: torch.autocast(device_type, dtype=dtype)


def _overrides(recipe: Choices) -> Mapping[str, Any]:
    """Put the image size where a model's configuration fixes it, for it has a position a patch."""
    model, size = published.find(recipe.model), recipe.size
    if size is None:
        return recipe.overrides
    part = "vision_config" if model.family == "two-tower" else ""
    within = f"{part}." if part else ""
    if not config_value(model, recipe.overrides, f"{within}image_size"):
        return recipe.overrides
    patch = config_value(model, recipe.overrides, f"{within}patch_size") or 1
    if size < 1 or size % patch:
        raise ValueError(
            f"size (={size}) must be a multiple of {patch}, the height and width of "
            f"{recipe.model}'s patches. Try size={max(1, round(size / patch)) * patch}."
        )
    if not part:
        return {**recipe.overrides, "image_size": size}
    before = {**model.config.get(part, {}), **recipe.overrides.get(part, {})}
    return {**recipe.overrides, part: {**before, "image_size": size}}
