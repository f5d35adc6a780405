"""A vision transformer small enough to read, and to train on digit images on a laptop.

An image is cut into square patches, each patch becomes a token, and the GPT's own blocks mix the
tokens, every one looking at all. With the sizes of ViT-B/16 (Dosovitskiy et al., 2021) this model
has its number of parameters. Shapes in comments: B batch, P patches, T = P + 1 tokens, C width of
the model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.models.gpt import Block, GPTConfig, init_weights


@dataclass(frozen=True)
class ViTConfig:
    """The sizes of a vision transformer.

    Raises:
        ValueError: When two of these do not go together.
    """

    image_size: int = 8  # height and width of the images
    patch_size: int = 2  # height and width of a patch; divides `image_size`
    in_channels: int = 1  # channels of the images
    num_classes: int = 10  # what an image can show
    num_layers: int = 4  # blocks, one after the other
    num_heads: int = 4  # attention heads in a block; they share `d_model` evenly
    d_model: int = 64  # width of the vectors between blocks
    dropout: float = 0.0  # probability, between 0 and 1
    attention: str = "sdpa"  # `sdpa` or `eager`, as in `GPTConfig`

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "in_channels", "num_classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if self.image_size % self.patch_size:
            fits = self.patch_size * max(1, round(self.image_size / self.patch_size))
            raise ValueError(
                f"image_size (={self.image_size}) must be a multiple of patch_size "
                f"(={self.patch_size}). Try image_size={fits}."
            )
        self.block_config()  # checks the rest

    @property
    def num_patches(self) -> int:
        """How many patches an image is cut into."""
        return (self.image_size // self.patch_size) ** 2

    def block_config(self) -> GPTConfig:
        """Say the sizes of the blocks as the GPT's blocks want them."""
        return GPTConfig(
            seq_len=self.num_patches + 1,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            d_model=self.d_model,
            dropout=self.dropout,
            attention=self.attention,
        )


class ViT(nn.Module):
    """An image classifier: images in, a score for every class out."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width, patch = config.d_model, config.patch_size
        self.patch_embedding = nn.Conv2d(config.in_channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.position_embedding = nn.Embedding(config.num_patches + 1, width)
        self.dropout = nn.Dropout(config.dropout)
        sizes = config.block_config()
        self.blocks = nn.ModuleList(Block(sizes, causal=False) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.num_classes)
        init_weights(self, config.num_layers)

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, channels, height, width)` to logits `(B, num_classes)`.

        Raises:
            ValueError: When the images do not have the size of the configuration.
        """
        config = self.config
        expected = (config.in_channels, config.image_size, config.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"The images have shape {tuple(images.shape)}, but this model takes "
                f"(batch, {', '.join(map(str, expected))}). Try image_size={images.size(-1)}."
            )
        patches = self.patch_embedding(images).flatten(2).transpose(1, 2)  # -> (B, P, C)
        first = self.class_token.expand(len(images), 1, -1)  # (C,) -> (B, 1, C)
        x = torch.cat([first, patches], dim=1) + self.position_embedding.weight  # (B, T, C)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))  # the class token has looked at all patches
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of guessing the labels `(B,)`, a scalar; raises as `forward` does."""
        return F.cross_entropy(self(images), labels)
