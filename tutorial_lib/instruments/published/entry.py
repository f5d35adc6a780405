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
    """A published model: what it is, how many parameters it has, how to build it."""

    name: str  # its key in `PUBLISHED`
    family: Family  # decides what a batch and the loss are
    # exactly as many as the model has; tied weights count once. 0 for one that is described by a
    # file, which does not say it
    num_parameters: int
    model_class: str  # the class in transformers, diffusers or this course, head included
    source: str
    # what differs from that class's default configuration
    config: Mapping[str, Any] = field(default_factory=dict)
    # tokens in a batch's sequences when nothing else is asked for; of text, for a diffusion model
    seq: int | None = None
    # height and width of a batch's images: pixels, latents for a U-Net or a transformer of
    # diffusers, or voxels of a volume, whose depth it is too
    size: int | None = None
