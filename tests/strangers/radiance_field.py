"""Rendering: a radiance field, coarse and fine, with points drawn along each ray."""

from itertools import pairwise

import torch
from torch import nn


class Radiance(nn.Module):
    def __init__(self, width=64, depth=4, octaves=6):
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(octaves))
        sizes = [6 * octaves] + [width] * depth
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, points):
        angles = (points.unsqueeze(-1) * self.octaves).flatten(-2)
        x = torch.cat([angles.sin(), angles.cos()], -1)
        for layer in self.layers:
            x = layer(x)
        colour, density = self.out(x).split((3, 1), -1)
        return colour.sigmoid(), density.squeeze(-1).relu()


def render(field, start, direction, depths):
    colour, density = field(start.unsqueeze(1) + direction.unsqueeze(1) * depths.unsqueeze(-1))
    opacity = 1 - torch.exp(-density * (depths[:, -1:] / depths.shape[1]))
    clear = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-6], 1), 1)
    weights = opacity * clear[:, :-1]
    return (weights.unsqueeze(-1) * colour).sum(1), weights


def make_loss(micro_batch=4):
    model = nn.ModuleDict({"coarse": Radiance(), "fine": Radiance()})
    start, direction, truth = torch.randn(3, 64 * micro_batch, 3).unbind(0)

    def loss():
        depths = (torch.arange(24) + torch.rand(len(start), 24)) / 6
        coarse, weights = render(model["coarse"], start, direction, depths)
        more = depths.gather(1, torch.multinomial(weights.detach() + 1e-3, 24, replacement=True))
        both = torch.cat([depths, more + 0.05 * torch.rand_like(more)], 1).sort(1).values
        fine, _ = render(model["fine"], start, direction, both)
        return (coarse - truth).square().mean() + (fine - truth).square().mean()

    return loss, model
