"""One entry of the catalogue: a published model, or one that a configuration file describes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Published:
    """A published model: what it is, how many parameters it has, how to build it."""

    name: str  # its key in `PUBLISHED`
    family: str  # decides what a batch and the loss are: `steps` has all of them
    num_parameters: int  # exact, tied weights once; 0 where a file describes the model
    model_class: str  # the class in transformers, diffusers or this course, head included
    source: str
    # what differs from that class's default configuration
    config: Mapping[str, Any] = field(default_factory=dict)
    # tokens in a batch's sequences when nothing else is asked for; of text, for a diffusion model
    seq: int | None = None
    # edge of a batch's images in pixels, in latents for diffusers' U-Nets and transformers, or of
    # a volume in voxels
    size: int | None = None
