"""Random batches for the published models, one kind for each family.

`steps.batch` fills in the order; each function here makes the tensors, on the CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.instruments.published.entry import Published
from tutorial_lib.instruments.published.libraries import config_value

Batch = dict[str, Tensor]

IGNORE = -100  # cross-entropy's mark for a target that does not count
NUM_TIMESTEPS = 1000
GUIDANCE = 3.5  # what diffusers' training scripts tell Flux.1-dev


@dataclass(frozen=True)
class Order:
    """What `steps.batch` was asked for."""

    model: Published
    overrides: Mapping[str, Any]
    micro_batch: int
    seq: int | None
    size: int | None
    generator: torch.Generator

    def config(self, key: str) -> Any:
        """Field of the model's configuration, `None` when it has no such field."""
        return config_value(self.model, self.overrides, key)

    @property
    def side(self) -> int:
        """Height and width of the images."""
        return self.size or self.model.size or 1

    def normal(self, *shape: int) -> Tensor:
        """Draw `(micro_batch, *shape)` of mean 0 and deviation 1."""
        return torch.randn(self.micro_batch, *shape, generator=self.generator)

    def below(self, limit: int, *shape: int) -> Tensor:
        """Draw `(micro_batch, *shape)` whole numbers below a limit."""
        return torch.randint(limit, (self.micro_batch, *shape), generator=self.generator)


def causal_batch(order: Order) -> Batch:
    """Make whole texts; the model shifts the labels itself."""
    tokens = _tokens(order)
    return {"input_ids": tokens, "labels": tokens}


def masked_batch(order: Order) -> Batch:
    """Make texts of which 15 % of the tokens are hidden and to be guessed."""
    tokens = _tokens(order)
    # As published; but all of these are hidden by [MASK], none by another word.
    hidden = torch.rand(tokens.shape, generator=order.generator) < 0.15
    mask_token = min(103, order.config("vocab_size") - 1)
    return {
        "input_ids": tokens.masked_fill(hidden, mask_token),
        "labels": tokens.masked_fill(~hidden, IGNORE),
    }


def image_batch(order: Order) -> Batch:
    """Make images and their classes, for a model of transformers."""
    return {"pixel_values": _images(order), "labels": order.below(order.config("num_labels"))}


def pair_batch(order: Order) -> Batch:
    """Make texts and the images they belong to, in the same order."""
    tokens = _tokens(order, "text_config.")
    # CLIP takes what it has read by the token that ends the text as the meaning of the text.
    tokens[:, -1] = order.config("text_config.eos_token_id")
    return {"input_ids": tokens, "pixel_values": _images(order, "vision_config.")}


def autoencoder_batch(order: Order) -> Batch:
    """Make images, which are their own target."""
    multiple = 2 ** (len(order.config("block_out_channels")) - 1)
    _refuse_uneven(order, order.side, multiple, "halves images level by level")
    return {"images": _images(order)}


def our_text_batch(order: Order) -> Batch:
    """Make texts, for a model of this course."""
    return {"tokens": _tokens(order)}


def our_image_batch(order: Order) -> Batch:
    """Make images and their classes, for a model of this course."""
    return {"images": _images(order), "labels": order.below(order.config("num_classes"))}


def volume_batch(order: Order) -> Batch:
    """Make volumes and the class of each voxel."""
    sides = 3 * [order.side]
    return {
        "volumes": order.normal(order.config("in_channels"), *sides),
        "labels": order.below(order.config("num_classes"), *sides),
    }


def unet_batch(order: Order) -> Batch:
    """Make latents, the noise to mix in, times, and the text that goes with them."""
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


def flow_batch(order: Order) -> Batch:
    """Make latents, noise, each sample's share of noise, and the text that goes with them.

    Stable Diffusion 3 cuts latents into patches itself. Flux is given the patches, a row of
    channels for each, and where each one stands.
    """
    side = order.size or order.config("sample_size") or order.side
    _refuse_uneven(order, side, 2, "cuts latents into patches of 2 x 2")
    is_flux = order.config("guidance_embeds") is not None
    channels = order.config("in_channels")
    shape = ((side // 2) ** 2, channels) if is_flux else (channels, side, side)
    width = order.config("pooled_projection_dim")
    text_length = order.seq or order.model.seq or 1
    sigmas = order.normal().sigmoid()  # Esser et al. (2024), section 3.1: logit-normal
    made = {
        "latents": order.normal(*shape),
        "noise": order.normal(*shape),
        "sigmas": sigmas,
        "timestep": sigmas if is_flux else NUM_TIMESTEPS * sigmas,  # as each model takes it
        "encoder_hidden_states": order.normal(text_length, order.config("joint_attention_dim")),
        "pooled_projections": order.normal(width),
    }
    if is_flux:
        made["txt_ids"] = torch.zeros(text_length, 3)
        places = torch.arange(side // 2, dtype=torch.float32)
        rows, columns = torch.meshgrid(places, places, indexing="ij")
        made["img_ids"] = torch.stack([0 * rows, rows, columns], dim=-1).flatten(0, 1)
    if order.config("guidance_embeds"):
        made["guidance"] = torch.full((order.micro_batch,), GUIDANCE)
    return made


def _refuse_uneven(order: Order, side: int, multiple: int, why: str) -> None:
    if side % multiple:
        raise ValueError(
            f"size (={side}) must be a multiple of {multiple}, since {order.model.name} {why}. "
            f"Try size={-(-side // multiple) * multiple}."
        )


def _images(order: Order, part: str = "") -> Tensor:
    """Make images for a model, or for the part of it whose configuration is `part`."""
    fixed = order.config(part + "image_size")
    if fixed and order.size not in (None, fixed):
        raise ValueError(
            f"{order.model.name} takes images of image_size (={fixed}), but size is {order.size}. "
            f"Try image_size={order.size} in both build and batch."
        )
    side = fixed or order.side
    channels = order.config(part + "num_channels") or order.config(part + "in_channels")
    return order.normal(channels, side, side)


def _tokens(order: Order, part: str = "") -> Tensor:
    longest = order.config(part + "max_position_embeddings") or order.config(part + "seq_len")
    own = order.model.seq or 1
    length = order.seq or (min(own, longest) if longest else own)
    if longest and length > longest:
        raise ValueError(
            f"seq (={length}) must be at most {longest}, the positions that {order.model.name} "
            f"knows. Try seq={longest}."
        )
    return order.below(order.config(part + "vocab_size"), length)
