"""Functions as people bring them: each gives a loss and the model that it trains."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """A block of convolutions that adds its input."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.conv(F.silu(self.norm(x)))


def segmentation(micro_batch=2):
    """Convolutions of float images, named by no library."""
    width, side = 16, 16
    blocks = [Residual(width) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 4, 1))
    images = torch.randn(micro_batch, 3, side, side)
    labels = torch.randint(4, (micro_batch, side, side))
    return (lambda: F.cross_entropy(model(images), labels)), model


def two_models(micro_batch=2):
    """A holder without a forward of its own."""
    nets = nn.ModuleDict({"one": nn.Linear(16, 16), "other": nn.Linear(16, 1)})
    x = torch.randn(micro_batch, 16)
    return (lambda: nets["other"](nets["one"](x)).square().mean()), nets


class AddedBlocks(nn.Module):
    """It adds each block's output itself."""

    def __init__(self, width=32, depth=8):
        super().__init__()
        parts = [(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        self.blocks = nn.ModuleList(nn.Sequential(*three) for three in parts)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def residual(micro_batch=16):
    """A residual between the stages, which the model adds."""
    model, x = AddedBlocks(), torch.randn(micro_batch * 8, 32)
    return (lambda: model(x).square().mean()), model
