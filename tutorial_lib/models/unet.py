"""A diffusion U-Net small enough to read, and to train on digit images on a laptop.

The layout is that of DDPM (Ho et al., 2020), simplified: residual blocks on the way down, each
leaving a skip; one block at the bottom; residual blocks on the way up, each taking a skip. Shapes
in comments: B batch, C channels, H height, W width, E width of the time embedding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_TIMESTEPS = 1000


@dataclass(frozen=True)
class UNetConfig:
    """The sizes of a U-Net.

    Raises:
        ValueError: When two of these do not go together.
    """

    in_channels: int = 1  # channels of the images
    base_channels: int = 32  # channels at full resolution
    # one per level; each level halves the resolution of the one before and has this many
    # times the base channels
    channel_multipliers: tuple[int, ...] = (1, 2, 2)
    blocks_per_level: int = 1  # blocks at each level on the way down, and again on the way up
    # levels whose blocks end with self-attention; 0 is full resolution
    attention_levels: tuple[int, ...] = (2,)
    time_dim: int = 128  # width of the time embedding, even
    groups: int = 8  # groups of every group normalisation
    dropout: float = 0.0  # probability, between 0 and 1

    def __post_init__(self) -> None:
        multipliers = self.channel_multipliers
        for name in ("in_channels", "base_channels", "blocks_per_level", "groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if not multipliers or min(multipliers) < 1:
            raise ValueError(f"channel_multipliers (={multipliers}) must be one or more from 1 on.")
        if self.base_channels % self.groups:
            raise ValueError(
                f"base_channels (={self.base_channels}) must be a multiple of groups "
                f"(={self.groups}). Try groups={math.gcd(self.base_channels, self.groups)}."
            )
        if self.time_dim < 2 or self.time_dim % 2:
            raise ValueError(f"time_dim (={self.time_dim}) must be even and at least 2.")
        if not set(self.attention_levels) <= set(range(len(multipliers))):
            raise ValueError(
                f"attention_levels (={self.attention_levels}) must be among the levels "
                f"0 to {len(multipliers) - 1}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be at least 0 and below 1.")

    @property
    def size_multiple(self) -> int:
        """Height and width of the images must be multiples of this."""
        return int(2 ** (len(self.channel_multipliers) - 1))


class ResBlock(nn.Module):
    """Two convolutions, each normalised before, told the time, added to their input."""

    def __init__(self, in_channels: int, out_channels: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm_1 = nn.GroupNorm(config.groups, in_channels)
        self.conv_1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.time = nn.Linear(config.time_dim, out_channels)
        self.norm_2 = nn.GroupNorm(config.groups, out_channels)
        self.dropout = nn.Dropout(config.dropout)
        self.conv_2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Map `(B, C_in, H, W)` and the embedded time `(B, E)` to `(B, C_out, H, W)`."""
        h = self.conv_1(F.silu(self.norm_1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]  # (B, C_out) -> (B, C_out, 1, 1)
        h = self.conv_2(self.dropout(F.silu(self.norm_2(h))))
        y: Tensor = self.shortcut(x) + h
        return y


class SelfAttention(nn.Module):
    """Every pixel looks at every pixel, with one head."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C, H, W)` to `(B, C, H, W)`."""
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 3, 1, channels, height * width)
        q, k, v = qkv.permute(1, 0, 2, 4, 3)  # (B, 3, 1, C, HW) -> 3 of (B, 1, HW, C)
        y = F.scaled_dot_product_attention(q, k, v)  # (B, 1, HW, C)
        y = y.transpose(-2, -1).reshape(batch, channels, height, width)
        mixed: Tensor = x + self.out(y)
        return mixed


class Block(nn.Module):
    """What a level is made of: a residual block, and self-attention where the level has it."""

    def __init__(self, in_channels: int, level: int, config: UNetConfig) -> None:
        super().__init__()
        channels = config.base_channels * config.channel_multipliers[level]
        self.res = ResBlock(in_channels, channels, config)
        attends = level in config.attention_levels
        self.attention = SelfAttention(channels, config.groups) if attends else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Map `(B, C_in, H, W)` and the embedded time `(B, E)` to `(B, C_out, H, W)`."""
        y: Tensor = self.attention(self.res(x, time))
        return y


class UNet(nn.Module):
    """A denoiser: noisy images and their time in, the noise that is in them out."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths = [config.base_channels * m for m in config.channel_multipliers]
        levels = range(len(widths))
        self.time_mlp = nn.Sequential(
            nn.Linear(config.time_dim, config.time_dim),
            nn.SiLU(),
            nn.Linear(config.time_dim, config.time_dim),
        )
        self.stem = nn.Conv2d(config.in_channels, widths[0], 3, padding=1)

        def blocks(first: int, others: int, level: int) -> nn.ModuleList:
            ins = [first] + [others] * (config.blocks_per_level - 1)
            return nn.ModuleList(Block(channels, level, config) for channels in ins)

        # Down: a level begins with the channels of the one above it.
        above = [widths[0], *widths[:-1]]
        self.down = nn.ModuleList(blocks(above[i], widths[i], i) for i in levels)
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle = Block(widths[-1], levels[-1], config)
        # Up: a level begins with the channels of the one below it; every block gets a skip too.
        below = [*widths[1:], widths[-1]]
        self.up = nn.ModuleList(
            blocks(below[i] + widths[i], 2 * widths[i], i) for i in reversed(levels)
        )
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in reversed(widths[1:]))
        self.norm = nn.GroupNorm(config.groups, widths[0])
        self.head = nn.Conv2d(widths[0], config.in_channels, 3, padding=1)
        self.register_buffer("signal", signal_left(), persistent=False)  # (NUM_TIMESTEPS,)

    @property
    def blocks(self) -> list[Block]:
        """All blocks in the order in which they run: down, middle, up."""
        return [module for module in self.modules() if isinstance(module, Block)]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Map noisy images `(B, C, H, W)` and times `(B,)` to their noise `(B, C, H, W)`.

        Raises:
            ValueError: When the images cannot be halved once per level, or a shape is wrong.
        """
        self._check(x, t)
        time = self.time_mlp(embed_time(t, self.config.time_dim).to(x.dtype))  # (B, E)
        x = self.stem(x)
        skips = []
        for level, blocks in enumerate(self.down):
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, time)
                skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)  # (B, C, H, W) -> (B, C, H/2, W/2)
        x = self.middle(x, time)
        for level, blocks in enumerate(self.up):
            for block in blocks:  # type: ignore[attr-defined]
                x = block(torch.cat([x, skips.pop()], dim=1), time)
            if level < len(self.grow):
                x = self.grow[level](F.interpolate(x, scale_factor=2.0))  # -> (B, C, 2H, 2W)
        noise: Tensor = self.head(F.silu(self.norm(x)))
        return noise

    def loss(self, images: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Noise the images, guess the noise, and return the mean squared error, a scalar.

        Args:
            images: Clean images `(B, C, H, W)`.
            t: Times `(B,)`, whole numbers from 0 (almost clean) to 999 (almost noise).
            noise: What to add, shaped like `images`, of mean 0 and deviation 1.

        Raises:
            ValueError: As in `forward`.

        Source:
            Ho et al. (2020), Denoising Diffusion Probabilistic Models, equations 4 and 14.
        """
        signal = self.signal[t].view(-1, 1, 1, 1).to(images.dtype)  # type: ignore[index]
        noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
        return F.mse_loss(self(noisy, t), noise)

    def _check(self, x: Tensor, t: Tensor) -> None:
        multiple = self.config.size_multiple
        if x.dim() != 4 or x.size(1) != self.config.in_channels:
            raise ValueError(
                f"The images have shape {tuple(x.shape)}; (batch, {self.config.in_channels}, "
                "height, width) is needed, with in_channels from the configuration."
            )
        if x.size(2) % multiple or x.size(3) % multiple:
            sizes = [max(1, round(side / multiple)) * multiple for side in x.shape[2:]]
            raise ValueError(
                f"The images are {x.size(2)} x {x.size(3)}; both must be multiples of {multiple}, "
                f"one halving per level after the first. Try {sizes[0]} x {sizes[1]}."
            )
        if t.shape != (x.size(0),):
            raise ValueError(
                f"The times have shape {tuple(t.shape)}; one per image is needed, ({x.size(0)},)."
            )


def embed_time(t: Tensor, dim: int) -> Tensor:
    """Write times `(B,)` as waves of many lengths, `(B, dim)`, float32.

    Source:
        Vaswani et al. (2017), section 3.5, sines first and cosines after.
    """
    steps = torch.arange(dim // 2, device=t.device, dtype=torch.float32)
    frequencies = torch.exp(-math.log(10_000) * steps / (dim // 2))
    angles = t[:, None] * frequencies  # (B, dim/2)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def signal_left() -> Tensor:
    """Share of the signal's variance that is left at each time, `(NUM_TIMESTEPS,)`.

    Source:
        Ho et al. (2020), section 4: alpha-bar of betas from 1e-4 to 0.02 in equal steps.
    """
    return (1 - torch.linspace(1e-4, 0.02, NUM_TIMESTEPS)).cumprod(0)
