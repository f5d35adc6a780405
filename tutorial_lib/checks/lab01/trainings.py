"""The trainings whose peak 1.5 asks for: a wide MLP, a GPT, a U-Net and a VGG."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab01.models import make_optimizer
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig


class WideMLP(nn.Module):
    """Three linear layers on fixed random features, whose projection is a buffer.

    It holds few activations and many weights; its buffer is too large to be left out of a sum.
    """

    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(1536, 256))
        layers = [nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1536)` to scores `(B, 10)`."""
        scores: Tensor = self.layers(torch.relu(x @ self.projection))
        return scores


class VGG(nn.Module):
    """Convolutions that hold the activations, then a linear layer that holds the weights.

    Backward comes to the weights first: their gradient is there while most is still saved.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in itertools.pairwise([3, 32, 64, 128]):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(nn.Linear(128 * 4 * 4, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, 3, 32, 32)` to scores `(B, 10)`."""
        scores: Tensor = self.head(self.features(images))
        return scores


def make_training(case: Case) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Build a model and the function that gives its loss on one batch."""
    batch = case["batch"]
    if case["kind"] == "gpt":
        gpt = GPT(GPTConfig(**case["config"]))
        tokens = torch.randint(0, gpt.config.vocab_size, (batch, gpt.config.seq_len))
        return gpt, lambda: gpt.loss(tokens)
    if case["kind"] == "unet":
        sizes = {name: _tuple(value) for name, value in case["config"].items()}
        unet = UNet(UNetConfig(**sizes))
        images, t = torch.randn(batch, 1, 32, 32), torch.randint(0, 1000, (batch,))
        noise = torch.randn_like(images)
        return unet, lambda: unet.loss(images, t, noise)
    if case["kind"] == "vgg":
        vgg = VGG(**case["config"])
        pictures, kinds = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
        return vgg, lambda: F.cross_entropy(vgg(pictures), kinds)
    mlp = WideMLP(case["config"]["width"])
    x, y = torch.randn(batch, mlp.projection.size(0)), torch.randint(0, 10, (batch,))
    return mlp, lambda: F.cross_entropy(mlp(x), y)


class MeteredStep:
    """A steady training step of a case, read by the meter."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def report(self) -> memory.MemoryReport:
        """That of the step."""
        model, loss_fn = make_training(self.case)
        optimizer = make_optimizer(self.case["optimizer"], model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            loss_fn().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return memory.measure(step, model=model, optimizer=optimizer)

    @cached_property
    def saved(self) -> memory.SavedTensors:
        """What forward saves."""
        model, loss_fn = make_training(self.case)
        return memory.saved(loss_fn, params_of=model)

    @cached_property
    def saved_with_weights(self) -> memory.SavedTensors:
        """What forward saves, and the weights that autograd refers to beside it."""
        return memory.saved(make_training(self.case)[1])


def _tuple(value: Any) -> Any:
    # A case has crossed between processes as JSON, which knows lists alone.
    return tuple(value) if isinstance(value, list) else value
