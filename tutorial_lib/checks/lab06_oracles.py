"""What the checks of lab 06 share: small models, one training observed, and slips by their number.

Everything is computed in float64, where two orders of one sum differ by 1e-15 or so: a larger
difference is a mistake, and a mistake has a gradient of its own that can be recognised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig

EXACT = 1e-12  # relative, in float64

MicroBatch = tuple[Tensor, ...]


def tiny_vit(seed: int, dtype: torch.dtype = torch.float64) -> ViT:
    """Build a vision transformer of one block."""
    torch.manual_seed(seed)
    return ViT(ViTConfig(num_layers=1, num_heads=2, d_model=16)).to(dtype)


def tiny_gpt(seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """Build a GPT of one block, for 64 tokens."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocab_size=64, seq_len=16, num_layers=1, num_heads=2, d_model=16)).to(
        dtype
    )


def image_window(sizes: Sequence[int], generator: torch.Generator) -> list[MicroBatch]:
    """Draw micro-batches of images `(size, 1, 8, 8)`, float64, and labels `(size,)`."""
    window: list[MicroBatch] = [
        (
            torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(10, (size,), generator=generator),
        )
        for size in sizes
    ]
    return window


def token_window(
    sizes: Sequence[int], generator: torch.Generator, masked: Sequence[int] = ()
) -> list[MicroBatch]:
    """Draw micro-batches of tokens and labels `(size, 12)`: prompt and padding have label -100.

    Args:
        sizes: Rows of each micro-batch.
        generator: Draws.
        masked: Micro-batches in which every label is -100.
    """
    window: list[MicroBatch] = []
    for place, size in enumerate(sizes):
        tokens = torch.randint(64, (size, 12), generator=generator)
        begin = torch.randint(0, 4, (size, 1), generator=generator)
        begin[:2] = 0  # their first labels are not masked, and nobody's targets
        end = torch.randint(6, 13, (size, 1), generator=generator)
        position = torch.arange(12)
        labels = tokens.where((position >= begin) & (position < end), torch.tensor(-100))
        if place in masked:
            labels = torch.full_like(labels, -100)
        window.append((tokens, labels))
    return window


def whole(window: Sequence[MicroBatch]) -> MicroBatch:
    """Put the micro-batches of a window together again."""
    return tuple(torch.cat(parts) for parts in zip(*window, strict=True))


def vector(tensors: Sequence[Tensor]) -> Tensor:
    """Put tensors into one vector of float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def gradients_of(model: nn.Module) -> Tensor:
    """Put all gradients into one vector; a parameter without one counts as zeros."""
    return vector([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])


def is_all_one(gradient: Tensor | None) -> bool:
    """Tell whether a `.grad` is that of ones that a check has put there."""
    return gradient is not None and bool((gradient == 1).all())


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    """Differentiate a loss by all parameters, into one vector; `.grad` is left alone."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return vector([torch.zeros_like(p) if g is None else g for g, p in pairs])


def switches(model: nn.Module) -> list[bool]:
    """Read every mode and every `requires_grad` of a model, and whether gradients are on."""
    modes = [module.training for module in model.modules()]
    return [*modes, *(p.requires_grad for p in model.parameters()), torch.is_grad_enabled()]


def observe(
    train: Callable[[], Any], model: nn.Module, optimizer: Optimizer | None = None
) -> dict[str, Any]:
    """Run a training, and note what its optimizer got and how many rows the model saw at once.

    Returns:
        `returned`, `gradients` (a vector for each update), `parameters` after it, `rows` (of each
        forward), `switches_kept`.
    """
    gradients: list[Tensor] = []
    rows: list[int] = []

    def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)]
        rows.extend(len(tensor) for tensor in tensors[:1])

    before = switches(model)
    with torch.enable_grad(), contextlib.ExitStack() as hooks:
        handles = [model.register_forward_pre_hook(entered, with_kwargs=True)]
        if optimizer is not None:
            note = lambda *_: gradients.append(gradients_of(model))  # noqa: E731
            handles.append(optimizer.register_step_pre_hook(note))
        for handle in handles:
            hooks.callback(handle.remove)
        returned = train()
        kept = switches(model) == before
    parameters = vector(list(model.parameters()))
    return {
        "returned": returned,
        "gradients": gradients,
        "parameters": parameters,
        "rows": rows,
        "switches_kept": kept,
    }


def off(seen: Tensor, wanted: Tensor) -> float:
    """Give the relative difference of two vectors, in norm; nan and inf stay."""
    if torch.equal(seen, wanted):
        return 0.0
    size = float(wanted.norm())
    return float((seen - wanted).norm()) / size if size else math.inf


def is_close(seen: Tensor, wanted: Tensor, tolerance: float = EXACT) -> bool:
    """Tell whether two vectors are one, to rounding."""
    return off(seen, wanted) <= tolerance
