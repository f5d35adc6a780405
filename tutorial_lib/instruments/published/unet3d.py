"""A U-Net for volumes, such as CT and MRI scans: a class for every voxel.

This is the network of Çiçek et al. (2016), 3D U-Net, arXiv 1606.06650, with one difference: its
convolutions are padded, so that the answer has the size of the volume. Shapes in comments: B
batch, C channels, D depth, H height, W width, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class UNet3dConfig:
    """The sizes of a U-Net for volumes.

    Args:
        in_channels: Channels of the volumes.
        num_classes: What a voxel can be.
        base_channels: Channels after the first convolution.
        num_levels: Levels; each has half the resolution of the one above, and twice the channels.
        dropout: Probability, between 0 and 1.

    Raises:
        ValueError: When one of these cannot be.
    """

    in_channels: int = 1
    num_classes: int = 3
    base_channels: int = 8
    num_levels: int = 3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("in_channels", "num_classes", "base_channels", "num_levels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be at least 0 and below 1.")

    @property
    def size_multiple(self) -> int:
        """Depth, height and width of the volumes must be multiples of this."""
        return int(2 ** (self.num_levels - 1))


class Block(nn.Module):
    """Two convolutions, each followed by normalisation and ReLU."""

    def __init__(self, ins: int, inside: int, outs: int, dropout: float) -> None:
        super().__init__()
        self.conv_1 = nn.Conv3d(ins, inside, 3, padding=1)
        self.conv_2 = nn.Conv3d(inside, outs, 3, padding=1)
        # without scale and shift: the published number of parameters has no room for them
        self.norm_1 = nn.BatchNorm3d(inside, affine=False)
        self.norm_2 = nn.BatchNorm3d(outs, affine=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C_in, D, H, W)` to `(B, C_out, D, H, W)`."""
        h = F.relu(self.norm_1(self.conv_1(x)))
        return F.relu(self.norm_2(self.conv_2(self.dropout(h))))


class UNet3d(nn.Module):
    """A segmenter: volumes in, a score for every class out, for each voxel."""

    def __init__(self, config: UNet3dConfig) -> None:
        super().__init__()
        self.config = config
        p = config.dropout
        widths = [config.base_channels * 2**level for level in range(config.num_levels + 1)]
        firsts = [config.in_channels, *widths[1:-1]]
        self.down = nn.ModuleList(
            Block(first, inside, outs, p)
            for first, inside, outs in zip(firsts, widths, widths[1:], strict=False)
        )
        above = widths[-2:0:-1]  # what each skip carries, from the bottom up
        self.up = nn.ModuleList(Block(3 * skip, skip, skip, p) for skip in above)
        self.grow = nn.ModuleList(
            nn.ConvTranspose3d(2 * skip, 2 * skip, 2, stride=2, bias=False) for skip in above
        )
        self.head = nn.Conv3d(widths[1], config.num_classes, 1)

    @property
    def blocks(self) -> list[nn.Module]:
        """All blocks in the order in which they run: down, then up."""
        return [*self.down, *self.up]

    def forward(self, volumes: Tensor) -> Tensor:
        """Map volumes `(B, C, D, H, W)` to logits `(B, K, D, H, W)`.

        Raises:
            ValueError: When the volumes cannot be halved once per level, or a shape is wrong.
        """
        self._check(volumes)
        x, skips = volumes, []
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)  # (B, C, D, H, W) -> halves of D, H, W
            skips.append(x)
        skips.pop()  # the bottom's output goes up by itself
        for block, grow in zip(self.up, self.grow, strict=True):
            x = block(torch.cat([skips.pop(), grow(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits

    def loss(self, volumes: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar; labels `(B, D, H, W)` are -100 where nobody set one."""
        return F.cross_entropy(self(volumes), labels)  # -100 is what it ignores by default

    def _check(self, volumes: Tensor) -> None:
        channels, multiple = self.config.in_channels, self.config.size_multiple
        if volumes.dim() != 5 or volumes.size(1) != channels:
            needed = f"(batch, {channels}, depth, height, width)"
            raise ValueError(f"The volumes have shape {tuple(volumes.shape)}; {needed} is needed.")
        if any(side % multiple for side in volumes.shape[2:]):
            # Twice: batch normalisation needs two voxels, at the bottom too, where the batch is 1.
            sides = [max(2, round(side / multiple)) * multiple for side in volumes.shape[2:]]
            raise ValueError(
                f"The volumes are {' x '.join(map(str, volumes.shape[2:]))}; each side must be a "
                f"multiple of {multiple}, one halving per level after the first. "
                f"Try {' x '.join(map(str, sides))}."
            )
