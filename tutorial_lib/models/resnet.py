"""A residual network of any depth, small enough to read and, with a thousand layers, to measure.

This is the form of He et al. (2016), Identity Mappings in Deep Residual Networks: bottleneck
blocks that normalise and activate *before* each convolution, so that the sum of a block reaches
the next one untouched. `ResNetConfig(stage_depths=(111, 111, 111))` is their ResNet-1001. Shapes
in comments: B batch, C channels, H height, W width.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

EXPANSION = 4  # a block's sum has this many times the channels of its inside


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a residual network.

    Raises:
        ValueError: When one of these cannot be.
    """

    in_channels: int = 3  # channels of the images
    num_classes: int = 10  # what an image can show
    # blocks in each stage; each stage after the first halves the resolution and doubles the
    # channels
    stage_depths: tuple[int, ...] = (2, 2, 2)
    base_channels: int = 16  # channels inside the blocks of the first stage
    dropout: float = 0.0  # probability, between 0 and 1, inside the blocks

    def __post_init__(self) -> None:
        for name in ("in_channels", "num_classes", "base_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} (={getattr(self, name)}) must be at least 1.")
        if not self.stage_depths or min(self.stage_depths) < 1:
            raise ValueError(f"stage_depths (={self.stage_depths}) must be one or more from 1 on.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout (={self.dropout}) must be at least 0 and below 1.")

    @property
    def num_layers(self) -> int:
        """Layers with weights, as papers count them: three in a block, the stem and the head."""
        return 3 * sum(self.stage_depths) + 2


class Bottleneck(nn.Module):
    """Three convolutions, narrow inside, each normalised before; their input is added."""

    def __init__(self, ins: int, inside: int, stride: int, dropout: float) -> None:
        super().__init__()
        outs = EXPANSION * inside
        self.norm_1 = nn.BatchNorm2d(ins)
        self.conv_1 = nn.Conv2d(ins, inside, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(inside)
        self.conv_2 = nn.Conv2d(inside, inside, 3, stride=stride, padding=1, bias=False)
        self.norm_3 = nn.BatchNorm2d(inside)
        self.dropout = nn.Dropout(dropout)
        self.conv_3 = nn.Conv2d(inside, outs, 1, bias=False)
        changes = ins != outs or stride != 1
        self.shortcut = nn.Conv2d(ins, outs, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C_in, H, W)` to `(B, C_out, H / stride, W / stride)`."""
        active = F.relu(self.norm_1(x))
        h = self.conv_1(active)
        h = self.conv_2(F.relu(self.norm_2(h)))
        h = self.conv_3(self.dropout(F.relu(self.norm_3(h))))
        y: Tensor = h + (x if self.shortcut is None else self.shortcut(active))
        return y


class ResNet(nn.Module):
    """An image classifier: images in, a score for every class out."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(config.in_channels, config.base_channels, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList()
        channels = config.base_channels
        for stage, depth in enumerate(config.stage_depths):
            inside = config.base_channels * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(Bottleneck(channels, inside, stride, config.dropout))
                channels = EXPANSION * inside
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, config.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al. (2015), equation 14
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(B, in_channels, H, W)`, of any size, to logits `(B, num_classes)`.

        Raises:
            ValueError: When the images have other dimensions or channels.
        """
        if images.dim() != 4 or images.size(1) != self.config.in_channels:
            raise ValueError(
                f"The images have shape {tuple(images.shape)}; (batch, {self.config.in_channels}, "
                "height, width) is needed, with in_channels from the configuration."
            )
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x)).mean(dim=(2, 3))  # (B, C, H, W) -> (B, C)
        logits: Tensor = self.head(x)
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of guessing the labels `(B,)`, a scalar; raises as `forward` does."""
        return F.cross_entropy(self(images), labels)
