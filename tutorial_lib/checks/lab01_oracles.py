"""The oracles of lab 01: models built from a case, run for real, and metered.

No function here computes what the lab asks for. Each builds what a case describes, runs it, and
reads the meter; a mistake's number is the meter's number for the model that the mistake believes
in (the same one untied, unfrozen, in float32).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib import memory
from tutorial_lib.checks.running import refused, remembered
from tutorial_lib.memory import meter
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

OPTIMIZERS = ("sgd", "momentum", "adamw")
LAYERS = {"relu": nn.ReLU, "gelu": nn.GELU}
Sizes = Mapping[str, int]


def make_optimizer(name: str, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Build one of `OPTIMIZERS` with CUDA's default, `foreach`, on any device."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    momentum = {"sgd": 0.0, "momentum": 0.9}[name]
    return torch.optim.SGD(parameters, lr=1e-4, momentum=momentum, foreach=True)


def without_meter() -> contextlib.AbstractContextManager[None]:
    """Refuse every measurement of memory while an answer runs."""
    # Whatever its name in the notebook, every measurement begins with a StorageLog.
    return refused(
        meter,
        "StorageLog",
        "memory.measure, memory.watch and memory.predict are the oracle here, so your function "
        "may not call them. Account for the tensors yourself.",
    )


class Words(nn.Module):
    """An embedding, some linear layers, and a head: tied, frozen and typed as the case says.

    Args:
        case: `vocab`, `widths`, `dtype` of the layers, `tied`, `frozen` (indices of layers), and
            `norm`, for a BatchNorm with its buffers.
    """

    def __init__(self, case: Mapping[str, Any]) -> None:
        super().__init__()
        vocab, widths = case["vocab"], case["widths"]
        self.embedding = nn.Embedding(vocab, widths[0])
        dtype = getattr(torch, case["dtype"])
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(i, o, dtype=dtype) for i, o in pairs)
        self.norm = nn.BatchNorm1d(widths[-1]) if case["norm"] else nn.Identity()
        self.head = nn.Linear(widths[-1], vocab, bias=False)
        if case["tied"]:
            self.head.weight = self.embedding.weight
        for index in case["frozen"]:
            self.layers[index].requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens `(B,)` to scores `(B, vocab)`."""
        x = self.embedding(tokens)  # (B, widths[0])
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        scores: Tensor = self.head(self.norm(x.float()))
        return scores


@remembered
def resident(case: Mapping[str, Any]) -> Sizes:
    """Meter a model at rest."""
    with memory.watch(model=Words(case)) as report:
        pass
    return report.at_peak


@remembered
def after_step(case: Mapping[str, Any]) -> Sizes:
    """Meter what is there after a real training step with the case's `optimizer`."""
    model = Words(case)
    optimizer = make_optimizer(case["optimizer"], model.parameters())
    tokens = torch.arange(case["vocab"])

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()

    return memory.measure(step, model=model, optimizer=optimizer).curve()[-1]


def make_chain(case: Mapping[str, Any]) -> nn.Sequential:
    """Build the layers of a case: each is a name, and for `linear` its output width."""
    width = case["shape"][-1]
    layers: list[nn.Module] = []
    for name, *sizes in case["layers"]:
        if name == "linear":
            layers.append(nn.Linear(width, sizes[0]))
            width = sizes[0]
        else:
            layers.append(nn.LayerNorm(width) if name == "norm" else LAYERS[name]())
    return nn.Sequential(*layers)


def saved_by(case: Mapping[str, Any], *, weights: bool = False) -> int:
    """Count what autograd saves in a chain, with or without the weights that it refers to."""
    chain, x = make_chain(case), torch.randn(case["shape"])
    return memory.saved(lambda: chain(x), params_of=None if weights else chain).num_bytes


def output_bytes(case: Mapping[str, Any]) -> list[int]:
    """Run a chain and give the size of each layer's output."""
    x = torch.randn(case["shape"])
    sizes = []
    for layer in make_chain(case):
        x = layer(x)
        sizes.append(x.nbytes)
    return sizes


def per_parameter(case: Mapping[str, Any], side: int = 64) -> int:
    """Meter a training step of one matrix by the case's recipe, per element of the matrix.

    What the step leaves behind for the next one is counted: weights, their gradients, the
    optimizer's state and the master copy.
    """
    dtype = getattr(torch, case["weights"])
    layer = nn.Linear(side, side, bias=False, dtype=dtype)
    weight, x = layer.weight, torch.randn(4, side, dtype=dtype)
    stepped = nn.Parameter(weight.detach().float()) if case["master_copy"] else weight
    optimizer = make_optimizer(case["optimizer"], [stepped])

    def step() -> None:
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            loss = layer(x).sum()
        loss.backward()
        if stepped is not weight:
            stepped.grad = weight.grad.float() if weight.grad is not None else None
        optimizer.step()
        if stepped is not weight:
            stepped.grad = None
            weight.data.copy_(stepped)

    left = memory.measure(step, model=layer, optimizer=optimizer).curve()[-1]
    kept = left["parameters"] + left["gradients"] + left["optimizer_state"]
    return kept // weight.numel()  # the rest is Adam's one step count


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


def make_training(case: Mapping[str, Any]) -> tuple[nn.Module, Callable[[], Tensor]]:
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


@remembered
def trained(case: Mapping[str, Any]) -> tuple[memory.MemoryReport, memory.SavedTensors]:
    """Meter a steady training step of the case, and what its forward saves."""
    model, loss_fn = make_training(case)
    optimizer = make_optimizer(case["optimizer"], model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss_fn().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer)
    return report, memory.saved(loss_fn, params_of=model)


@remembered
def saved_with_weights(case: Mapping[str, Any]) -> memory.SavedTensors:
    """Count what the case's forward saves, and the weights that autograd refers to beside it."""
    return memory.saved(make_training(case)[1])


def _tuple(value: Any) -> Any:
    # A case has crossed between processes as JSON, which knows lists alone.
    return tuple(value) if isinstance(value, list) else value
