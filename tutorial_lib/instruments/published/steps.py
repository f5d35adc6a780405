"""Batch and loss of each family of published models."""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.instruments.published import batches
from tutorial_lib.instruments.published.batches import NUM_TIMESTEPS, Batch
from tutorial_lib.instruments.published.catalogue import find
from tutorial_lib.instruments.published.entry import Published

KL_WEIGHT = 1e-6  # Rombach et al. (2022), of the sum over the latents


def batch(
    name: str | Published,
    micro_batch: int,
    *,
    seq: int | None = None,
    size: int | None = None,
    device: torch.device | str = "cpu",
    **overrides: Any,
) -> Batch:
    """Make a random batch of what a published model is trained on.

    Args:
        name: What `find` takes.
        micro_batch: Samples in memory at once.
        seq: Tokens in a sequence; `None` means the model's own. For a diffusion model, of text.
        size: Height and width of images, in latents for a U-Net or a transformer of diffusers, and
            the depth too of volumes; `None` means the model's own.
        device: Where the tensors are wanted.
        **overrides: The same as were given to `build`.

    Returns:
        Tensors by name, for `loss`: the same ones each time; the global RNG is not touched.

    Raises:
        ValueError: When the name is not known, or a size is below 1 or beyond the model's.
    """
    model = find(name)
    name = model.name
    if micro_batch < 1:
        raise ValueError(f"micro_batch (={micro_batch}) must be at least 1: try micro_batch=1.")
    if size is not None and model.size is None:
        raise ValueError(f"{name} reads text and takes no size (={size}): choose seq, or neither.")
    if seq is not None and model.seq is None:
        raise ValueError(f"{name} reads images and takes no seq (={seq}): choose size, or neither.")
    for key, value in (("seq", seq), ("size", size)):
        if value is not None and value < 1:  # 1 is too small for some
            raise ValueError(f"{key} (={value}) must be at least 1: leave it out for {name}'s own.")
    order = batches.Order(
        model, overrides, micro_batch, seq, size, torch.Generator().manual_seed(0)
    )
    made = _FAMILIES[model.family].make(order)
    return {key: value.to(device) for key, value in made.items()}


def loss(name: str | Published, model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss that a published model is really trained with, a scalar.

    Next token for GPT-2, Llama and LSTM; masked tokens for BERT; classes for ViT and ResNet, and
    each voxel's class for the U-Net of volumes; for the U-Nets of diffusers the mean squared error
    of the noise that was mixed into the latents, for its transformers the error of noise minus
    latents; for CLIP which text belongs to which image; for the autoencoder reconstruction and
    divergence, without the two further networks that judge its images in the paper.

    Args:
        name: A key of `PUBLISHED`.
        model: What `build` returned for that name, or your own with the same inputs.
        batch: What `batch` returned for that name. Floats are brought to the model's dtype.

    Raises:
        ValueError: When the name is not known, or the batch is for another family.
    """
    found = find(name)
    family, name = _FAMILIES[found.family], found.name
    if family.needs not in batch:
        raise ValueError(
            f"The batch has {', '.join(batch)}; {name} needs {family.needs}. "
            f"Try batch({name!r}, micro_batch)."
        )
    dtype = next(model.parameters()).dtype
    batch = {key: v.to(dtype) if v.is_floating_point() else v for key, v in batch.items()}
    return family.lose(model, batch)


def noised(latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
    """Mix noise into latents `(batch, 4, height, width)` as Stable Diffusion does in training.

    The noise has the same shape; timesteps are `(batch,)`, from 0 to 999.

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


def _flow_loss(transformer: nn.Module, batch: Batch) -> Tensor:
    """Rectified flow: the model predicts the straight way from latents to noise.

    Source:
        Esser et al. (2024), arXiv 2403.03206, section 2.
    """
    given = dict(batch)
    latents, noise, sigmas = (given.pop(key) for key in ("latents", "noise", "sigmas"))
    share = sigmas.view(-1, *[1] * (latents.dim() - 1))  # (batch, 1, ...)
    noisy = (1 - share) * latents + share * noise
    guess = transformer(noisy, **given).sample
    return F.mse_loss(guess.float(), (noise - latents).float())


def _library_loss(model: nn.Module, batch: Batch, **asked: Any) -> Tensor:
    with _unpacked_sequences():
        value: Tensor = model(**batch, **asked).loss
    return value


def _our_loss(model: Any, batch: Batch) -> Tensor:
    value: Tensor = model.loss(**batch)
    return value


def _autoencoder_loss(model: Any, batch: Batch) -> Tensor:
    """Join absolute error and divergence, both per value of the images."""
    images = batch["images"]
    posterior = model.encode(images).latent_dist
    rebuilt: Tensor = model.decode(posterior.sample()).sample
    divergence: Tensor = posterior.kl().float().mean() / images[0].numel()
    return F.l1_loss(rebuilt.float(), images.float()) + KL_WEIGHT * divergence


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


_contrastive_loss = functools.partial(_library_loss, return_loss=True)


@dataclass(frozen=True)
class _Family:
    """How a family is trained: a tensor that each of its batches has, its batch, its loss."""

    needs: str
    make: Callable[[batches.Order], Batch]
    lose: Callable[[nn.Module, Batch], Tensor]


_FAMILIES: dict[str, _Family] = {
    "causal-lm": _Family("input_ids", batches.causal_batch, _library_loss),
    "masked-lm": _Family("input_ids", batches.masked_batch, _library_loss),
    "image-classifier": _Family("pixel_values", batches.image_batch, _library_loss),
    "two-tower": _Family("pixel_values", batches.pair_batch, _contrastive_loss),
    "unet": _Family("latents", batches.unet_batch, _noise_loss),
    "rectified-flow": _Family("sigmas", batches.flow_batch, _flow_loss),
    "autoencoder": _Family("images", batches.autoencoder_batch, _autoencoder_loss),
    "our-lm": _Family("tokens", batches.our_text_batch, _our_loss),
    "our-classifier": _Family("images", batches.our_image_batch, _our_loss),
    "our-segmenter": _Family("volumes", batches.volume_batch, _our_loss),
}
