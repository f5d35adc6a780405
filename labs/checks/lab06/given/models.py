"""Small models and micro-batches for the checks of lab 06, and one training observed.

Everything is computed in float64, where two orders of one sum differ by 1e-15 or so: a larger
difference is a mistake, and a mistake has a gradient of its own that can be recognised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks.given import Answer, Case, observe, surroundings
from tutorial_lib.instruments.cap import capped
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig

MicroBatch = tuple[Tensor, ...]
RATE = 0.1  # of SGD
MANY = [6] * 8  # rows of micro-batches whose graphs, all at once, are far above one


def tiny_vit(seed: int, dtype: torch.dtype = torch.float64) -> ViT:
    """Build a vision transformer of one block."""
    torch.manual_seed(seed)
    return ViT(ViTConfig(num_layers=1, num_heads=2, d_model=16)).to(dtype)


def tiny_gpt(seed: int, dtype: torch.dtype = torch.float64) -> GPT:
    """Build a GPT of one block, for 64 tokens."""
    torch.manual_seed(seed)
    sizes = GPTConfig(vocab_size=64, seq_len=16, num_layers=1, num_heads=2, d_model=16)
    return GPT(sizes).to(dtype)


def tiny_unet(seed: int, dtype: torch.dtype = torch.float64) -> UNet:
    """Build a U-Net of two levels."""
    torch.manual_seed(seed)
    sizes = UNetConfig(base_channels=8, channel_multipliers=(1, 2), attention_levels=(1,))
    return UNet(sizes).to(dtype)


def image_window(sizes: Sequence[int], generator: torch.Generator) -> list[MicroBatch]:
    """Draw micro-batches of images `(size, 1, 8, 8)`, float64, and labels `(size,)`."""

    def draw(size: int) -> MicroBatch:
        images = torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64)
        return images, torch.randint(10, (size,), generator=generator)

    return [draw(size) for size in sizes]


def token_window(
    sizes: Sequence[int], generator: torch.Generator, masked: Sequence[int] = ()
) -> list[MicroBatch]:
    """Draw micro-batches of tokens and labels `(size, T)`: prompt and padding have label -100.

    T is 12; where some are masked, 12, 11 and 10 in turn.

    Args:
        sizes: Rows of each micro-batch.
        generator: Draws.
        masked: Micro-batches in which every label is -100.
    """
    window: list[MicroBatch] = []
    for place, size in enumerate(sizes):
        length = 12 - place % 3 if masked else 12
        tokens = torch.randint(64, (size, length), generator=generator)
        begin = torch.randint(0, 4, (size, 1), generator=generator)
        begin[:2] = 0  # their first labels are not masked, and nobody's targets
        end = torch.randint(6, 13, (size, 1), generator=generator)
        position = torch.arange(length)
        labels = tokens.where((position >= begin) & (position < end), torch.tensor(-100))
        window.append((tokens, torch.full_like(labels, -100) if place in masked else labels))
    return window


def num_targets(tokens: Tensor, labels: Tensor) -> int:
    """Count the labels `(B, T)` that are some token's next one: neither masked nor the first."""
    return int((labels[:, 1:] != -100).sum())


def token_loss_sum(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """Add up the cross-entropies of all next tokens that are not masked."""
    logits, targets = model(tokens)[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def image_loss_sum(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Add up the cross-entropies of all images."""
    return F.cross_entropy(model(images), labels, reduction="sum")


def pixel_loss_sum(model: Any, images: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Add up the squared errors of all pixels."""
    loss: Tensor = model.loss(images, times, noise)
    return loss * images.numel()


def train(call: Callable[[], Any], model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Run a training, and note its optimizer's gradients and the rows that the model saw at once.

    Returns:
        `returned`, `gradients` (a vector for each update), `parameters` after it, `rows` (of each
        forward), `peak` (bytes, with those of the model), `changed` (see `surroundings`).
    """
    with (
        torch.enable_grad(),
        capped(2**62, model=model) as cap,
        observe.updates_seen(model, optimizer) as gradients,
        observe.rows_seen(model) as rows,
        surroundings.watched(model, only=surroundings.SWITCHES) as changed,
    ):
        returned = call()
    return {
        "returned": returned,
        "gradients": gradients,
        "parameters": observe.parameter_vector(model),
        "rows": rows,
        "peak": cap.peak_bytes,
        "changed": changed,
    }


@dataclass
class Task:
    """A model with a batch, the sum of its losses, and the number of terms in that sum."""

    model: nn.Module
    batch: MicroBatch
    loss_sum: Callable[..., Tensor]
    count_terms: Callable[..., int]

    def add_side_effects(self) -> None:
        """Have its loss draw random numbers and move a buffer, as dropout and BatchNorm do."""
        self.model.register_buffer("seen", torch.zeros(3))
        plain = self.loss_sum

        def with_side_effects(model: nn.Module, *micro_batch: Tensor) -> Tensor:
            torch.rand(3)
            model.get_buffer("seen").add_(1)
            return plain(model, *micro_batch)

        self.loss_sum = with_side_effects

    def call(self, answer: Answer, optimizer: Optimizer, case: Case) -> Any:
        """Call an answer with everything it takes."""
        options = {"loss_sum": self.loss_sum, "count_terms": self.count_terms}
        steps, max_norm = case["num_steps"], case["max_norm"]
        return answer(self.model, optimizer, self.batch, steps, max_norm=max_norm, **options)


def task_of(case: Case) -> Task:
    """Return a GPT and rows of different lengths, perhaps without a target; a ViT; or a U-Net."""
    seed, rows, dtype = case["seed"], case["rows"], getattr(torch, case["dtype"])
    generator = torch.Generator().manual_seed(seed)
    if case["model"] == "GPT":
        (batch,) = token_window([rows], generator, [0] if case["fails"] == "all masked" else [])
        return Task(tiny_gpt(seed, dtype), batch, token_loss_sum, num_targets)
    if case["model"] == "ViT":
        ((images, labels),) = image_window([rows], generator)
        batch = (images.to(dtype), labels)
        return Task(tiny_vit(seed, dtype), batch, image_loss_sum, lambda _, labels: len(labels))
    images, noise = torch.randn(2, rows, 1, 8, 8, generator=generator, dtype=torch.float64)
    batch = (images.to(dtype), torch.randint(1000, (rows,), generator=generator), noise.to(dtype))
    return Task(tiny_unet(seed, dtype), batch, pixel_loss_sum, lambda images, *_: images.numel())


def make_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Make plain SGD, or AdamW."""
    is_sgd = name == "SGD"
    return SGD(model.parameters(), lr=RATE) if is_sgd else AdamW(model.parameters(), lr=1e-3)
