"""One entry of the catalogue: a published model, or one that a configuration file describes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal[
    "causal-lm",
    "masked-lm",
    "image-classifier",
    "two-tower",
    "unet",
    "rectified-flow",
    "autoencoder",
    "our-lm",
    "our-classifier",
    "our-segmenter",
]


@dataclass(frozen=True)
class Published:
    """A published model: what it is, how many parameters it has, how to build it.

    Args:
        name: Its key in `PUBLISHED`.
        family: Decides what a batch and the loss are.
        num_parameters: Exactly as many as the model has; tied weights count once. 0 for one that
            is described by a file, which does not say it.
        model_class: The class in transformers, diffusers or this course, head included.
        config: What differs from that class's default configuration.
        seq: Tokens in a batch's sequences when nothing else is asked for; of text, for a diffusion
            model.
        size: Height and width of a batch's images: pixels, latents for a U-Net or a transformer
            of diffusers, or voxels of a volume, whose depth it is too.
        source: The publication.
    """

    name: str
    family: Family
    num_parameters: int
    model_class: str
    source: str
    config: Mapping[str, Any] = field(default_factory=dict)
    seq: int | None = None
    size: int | None = None
