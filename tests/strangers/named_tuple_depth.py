"""Depth and normals: a model that gives a named tuple of nested dicts."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Prediction(NamedTuple):
    maps: dict[str, torch.Tensor]
    per_scale: list[dict[str, torch.Tensor]]


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.out = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        x = F.relu(x + self.body(x))
        depth, normal = self.out(x).split((1, 3), 1)
        return x, {"depth": F.softplus(depth), "normal": F.normalize(normal, dim=1)}


class DepthNet(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.inward = nn.Conv2d(3, width, 3, padding=1)
        self.scales = nn.ModuleList(Scale(width) for _ in range(depth))

    def forward(self, images):
        x, found = self.inward(images), []
        for scale in self.scales:
            x, maps = scale(x)
            found.append(maps)
        return Prediction(found[-1], found[:-1])


def make_loss(micro_batch=4):
    model, images = DepthNet(), torch.randn(micro_batch, 3, 48, 48)
    depth, normal = torch.rand(micro_batch, 1, 48, 48), torch.randn(micro_batch, 3, 48, 48)

    def one(maps):
        return F.l1_loss(maps["depth"], depth) - F.cosine_similarity(maps["normal"], normal).mean()

    def loss():
        found = model(images)
        return one(found.maps) + sum(0.5 * one(maps) for maps in found.per_scale)

    return loss, model
