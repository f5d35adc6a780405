"""Three models with what lab 06's exact step needs to know: the sum of losses and its terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.lab06_tokens import loss_sum as token_loss_sum
from tutorial_lib.checks.lab06_tokens import num_targets
from tutorial_lib.models.unet import UNet, UNetConfig


@dataclass
class Task:
    """A model with a batch, the sum of its losses, and the number of terms in that sum."""

    model: nn.Module
    batch: oracles.MicroBatch
    loss_sum: Callable[..., Tensor]
    count_terms: Callable[..., int]

    def stir(self) -> None:
        """Have its loss draw random numbers and move a buffer, as dropout and BatchNorm do."""
        self.model.register_buffer("seen", torch.zeros(3))
        plain = self.loss_sum

        def stirring(model: nn.Module, *micro_batch: Tensor) -> Tensor:
            torch.rand(3)
            model.get_buffer("seen").add_(1)
            return plain(model, *micro_batch)

        self.loss_sum = stirring

    def call(
        self, answer: Callable[..., Any], optimizer: Optimizer, num_steps: int, max_norm: float
    ) -> Any:
        """Give everything to an answer."""
        options = {"loss_sum": self.loss_sum, "count_terms": self.count_terms}
        return answer(self.model, optimizer, self.batch, num_steps, max_norm=max_norm, **options)


def gpt_task(seed: int, rows: int, dtype: torch.dtype, *, masked: bool = False) -> Task:
    """Give a GPT and rows of different lengths, perhaps without a target."""
    generator = torch.Generator().manual_seed(seed)
    (batch,) = oracles.token_window([rows], generator, [0] if masked else [])
    model = oracles.tiny_gpt(seed, dtype)
    return Task(model, batch, token_loss_sum, lambda tokens, labels: num_targets(labels))


def vit_task(seed: int, rows: int, dtype: torch.dtype) -> Task:
    """Give a ViT and images."""
    generator = torch.Generator().manual_seed(seed)
    ((images, labels),) = oracles.image_window([rows], generator)

    def loss_sum(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels, reduction="sum")

    batch = (images.to(dtype), labels)
    return Task(oracles.tiny_vit(seed, dtype), batch, loss_sum, lambda images, labels: len(labels))


def unet_task(seed: int, rows: int, dtype: torch.dtype) -> Task:
    """Give a U-Net and noisy images; its terms are pixels."""
    generator = torch.Generator().manual_seed(seed)
    images, noise = torch.randn(2, rows, 1, 8, 8, generator=generator, dtype=torch.float64)
    times = torch.randint(1000, (rows,), generator=generator)
    torch.manual_seed(seed)
    sizes = UNetConfig(base_channels=8, channel_multipliers=(1, 2), attention_levels=(1,))
    model = UNet(sizes).to(dtype)

    def loss_sum(model: nn.Module, images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        loss: Tensor = model.loss(images, times, noise)  # type: ignore[operator]
        return loss * images.numel()

    batch = (images.to(dtype), times, noise.to(dtype))
    return Task(model, batch, loss_sum, lambda images, times, noise: images.numel())


TASKS: dict[str, Callable[..., Task]] = {"GPT": gpt_task, "ViT": vit_task, "U-Net": unet_task}


def make_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Make plain SGD, or AdamW."""
    if name == "SGD":
        return SGD(model.parameters(), lr=0.1)
    return AdamW(model.parameters(), lr=1e-3)
