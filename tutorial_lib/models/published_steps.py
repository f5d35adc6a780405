"""What the published models are trained on: a batch and the loss of each family.

model = published.build("gpt2", device="cpu")
batch = published_steps.batch("gpt2", 2, seq=128)
published_steps.loss("gpt2", model, batch).backward()
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.models.catalogue import Published, config_value, find

Batch = dict[str, Tensor]

IGNORE = -100  # cross-entropy's mark for a target that does not count
NUM_TIMESTEPS = 1000


@dataclass(frozen=True)
class _Order:
    """What `batch` was asked for."""

    model: Published
    overrides: Mapping[str, Any]
    micro_batch: int
    seq: int | None
    size: int | None
    generator: torch.Generator

    def config(self, key: str) -> Any:
        return config_value(self.model, self.overrides, key)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(self.micro_batch, *shape, generator=self.generator)

    def below(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, (self.micro_batch, *shape), generator=self.generator)


def batch(
    name: str,
    micro_batch: int,
    *,
    seq: int | None = None,
    size: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **overrides: Any,
) -> Batch:
    """Make a random batch of what a published model is trained on.

    Args:
        name: A key of `PUBLISHED`.
        micro_batch: Samples in memory at once.
        seq: Tokens in a sequence; `None` means the model's own. For a U-Net, tokens of text.
        size: Height and width of images, in latents for a U-Net; `None` means the model's own.
        device: Where the tensors are wanted.
        seed: The same seed gives the same batch; the global random state is not touched.
        **overrides: The same as were given to `build`.

    Returns:
        Tensors by name, for `loss`.

    Raises:
        ValueError: When the name is not known, or a size is below 1 or beyond the model's.
    """
    model = find(name)
    for key, value in (("micro_batch", micro_batch), ("seq", seq), ("size", size)):
        if value is not None and value < 1:
            raise ValueError(f"{key} (={value}) must be at least 1: try {key}=1.")
    if size is not None and model.size is None:
        raise ValueError(f"{name} reads text and takes no size (={size}): try seq={size}.")
    if seq is not None and model.seq is None:
        raise ValueError(f"{name} reads images and takes no seq (={seq}): try size={model.size}.")
    order = _Order(model, overrides, micro_batch, seq, size, torch.Generator().manual_seed(seed))
    make = {
        "causal-lm": _causal_batch,
        "masked-lm": _masked_batch,
        "image-classifier": _image_batch,
        "unet": _unet_batch,
    }[model.family]
    return {key: value.to(device) for key, value in make(order).items()}


def loss(name: str, model: nn.Module, batch: Batch) -> Tensor:
    """Give the loss that a published model is really trained with, a scalar.

    Next token for GPT-2 and Llama, masked tokens for BERT, classes for ViT, and for U-Nets the
    mean squared error of the noise that was mixed into the latents.

    Args:
        name: A key of `PUBLISHED`.
        model: What `build` gave for that name, or your own with the same inputs.
        batch: What `batch` gave for that name. Floats are brought to the model's dtype.

    Raises:
        ValueError: When the name is not known, or the batch is that of another family.
    """
    family = find(name).family
    needs = {"unet": "latents", "image-classifier": "pixel_values"}.get(family, "input_ids")
    if needs not in batch:
        raise ValueError(
            f"The batch has {', '.join(batch)}; {name} needs {needs}. "
            f"Try batch({name!r}, micro_batch)."
        )
    dtype = next(model.parameters()).dtype
    batch = {key: v.to(dtype) if v.is_floating_point() else v for key, v in batch.items()}
    if family == "unet":
        return _noise_loss(model, batch)
    with _unpacked_sequences():
        value: Tensor = model(**batch).loss
    return value


def noised(latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
    """Mix noise into latents as Stable Diffusion does in training.

    Args:
        latents: Clean latents `(batch, 4, height, width)`.
        noise: Of the same shape.
        timesteps: `(batch,)`, from 0 to 999.

    Source:
        Ho et al. (2020), equation 4, with Stable Diffusion's betas: the square of equal steps
        from sqrt(0.00085) to sqrt(0.012).
    """
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, NUM_TIMESTEPS, device=latents.device) ** 2
    signal = (1 - betas).cumprod(0)[timesteps].view(-1, 1, 1, 1)  # (batch, 1, 1, 1)
    mixed = signal.sqrt() * latents + (1 - signal).sqrt() * noise
    return mixed.to(latents.dtype)


def _noise_loss(unet: nn.Module, batch: Batch) -> Tensor:
    noisy = noised(batch["latents"], batch["noise"], batch["timesteps"])
    text = batch["encoder_hidden_states"]
    added = {key: batch[key] for key in ("text_embeds", "time_ids") if key in batch}
    guess = unet(noisy, batch["timesteps"], text, added_cond_kwargs=added or None).sample
    return F.mse_loss(guess.float(), batch["noise"].float())


def _causal_batch(order: _Order) -> Batch:
    tokens = _tokens(order)
    return {"input_ids": tokens, "labels": tokens}  # the model shifts the labels itself


def _masked_batch(order: _Order) -> Batch:
    tokens = _tokens(order)
    # 15 % of the tokens are to be guessed, as published; all of these are hidden by [MASK].
    hidden = torch.rand(tokens.shape, generator=order.generator) < 0.15
    mask_token = min(103, order.config("vocab_size") - 1)
    return {
        "input_ids": tokens.masked_fill(hidden, mask_token),
        "labels": tokens.masked_fill(~hidden, IGNORE),
    }


def _image_batch(order: _Order) -> Batch:
    side = order.config("image_size")
    if order.size not in (None, side):
        raise ValueError(
            f"{order.model.name} takes images of image_size (={side}), and size is {order.size}. "
            f"Try image_size={order.size} in both build and batch."
        )
    return {
        "pixel_values": order.normal(order.config("num_channels"), side, side),
        "labels": order.below(order.config("num_labels")),
    }


def _unet_batch(order: _Order) -> Batch:
    side = order.size or order.config("sample_size")
    channels = order.config("in_channels")
    text_length = order.seq or order.model.seq or 1
    made = {
        "latents": order.normal(channels, side, side),
        "noise": order.normal(channels, side, side),
        "timesteps": order.below(NUM_TIMESTEPS),
        "encoder_hidden_states": order.normal(text_length, order.config("cross_attention_dim")),
    }
    if order.config("addition_embed_type") == "text_time":
        # SDXL is told six numbers too: original size, crop corner and target size, in pixels.
        numbers_width = 6 * order.config("addition_time_embed_dim")
        pooled_width = order.config("projection_class_embeddings_input_dim") - numbers_width
        pixels = 8.0 * side
        made["text_embeds"] = order.normal(pooled_width)
        sizes = torch.tensor([pixels, pixels, 0.0, 0.0, pixels, pixels])
        made["time_ids"] = sizes.repeat(order.micro_batch, 1)
    return made


def _tokens(order: _Order) -> Tensor:
    longest = order.config("max_position_embeddings")
    length = order.seq or min(order.model.seq or longest, longest)
    if length > longest:
        raise ValueError(
            f"seq (={length}) must be at most {longest}, the positions that {order.model.name} "
            f"knows. Try seq={longest}."
        )
    return order.below(order.config("vocab_size"), length)


@contextlib.contextmanager
def _unpacked_sequences() -> Iterator[None]:
    """Tell transformers that no batch of ours packs several texts into one sequence.

    It looks at the positions to find out. Fake tensors have no values to look at: it would then
    make a mask `(batch, 1, seq, seq)` that no real step has.
    """
    masking = importlib.import_module("transformers.masking_utils")
    if not hasattr(masking, "find_packed_sequence_indices"):
        yield
        return
    with mock.patch.object(masking, "find_packed_sequence_indices", return_value=None):
        yield
