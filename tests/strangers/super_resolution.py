"""Restoration: convolutions without biases on float images, and a sub-pixel upsampling."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return x + 0.1 * self.body(x)


def make_loss(micro_batch=4, width=32):
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        *[Residual(width) for _ in range(6)],
        nn.Conv2d(width, 12, 3, padding=1, bias=False),
        nn.PixelShuffle(2),
    )
    small, large = torch.rand(micro_batch, 3, 48, 48), torch.rand(micro_batch, 3, 96, 96)

    def loss():
        error = model(small) - large
        return (error.square() + 1e-6).sqrt().mean()

    return loss, model
