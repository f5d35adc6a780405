"""Satellite images: the first blocks frozen and in evaluation, the last ones fine-tuned."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, width // 2, 1, bias=False), nn.BatchNorm2d(width // 2), nn.ReLU()),
            *(nn.Conv2d(width // 2, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


class LandCover(nn.Module):
    def __init__(self, width=32, depth=6, frozen=3):
        super().__init__()
        self.frozen, self.stem = frozen, nn.Conv2d(4, width, 4, stride=2, padding=1)
        self.layers = nn.ModuleList(Bottleneck(width) for _ in range(depth))
        self.head = nn.Conv2d(width, 9, 1)
        for part in (self.stem, *self.layers[:frozen]):
            part.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        for layer in self.layers[: self.frozen]:
            layer.eval()
        return self

    def forward(self, images):
        x = self.stem(images)
        for layer in self.layers:
            x = layer(x)
        return F.interpolate(self.head(x), scale_factor=2, mode="bilinear")


def make_loss(micro_batch=4):
    model, images = LandCover().train(), torch.randn(micro_batch, 4, 64, 64)
    cover = torch.randint(9, (micro_batch, 64, 64))
    return (lambda: F.cross_entropy(model(images), cover)), model
