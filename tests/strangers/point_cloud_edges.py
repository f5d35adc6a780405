"""Point clouds: edge convolutions over nearest neighbours that are found in every layer."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


class EdgeConv(nn.Module):
    def __init__(self, inward, outward, neighbours=12):
        super().__init__()
        self.neighbours = neighbours
        self.mlp = nn.Sequential(
            nn.Conv2d(2 * inward, outward, 1, bias=False),
            nn.BatchNorm2d(outward),
            nn.LeakyReLU(0.2),
        )

    def forward(self, x):  # (batch, channels, points)
        points = x.transpose(1, 2)
        near = torch.cdist(points, points).topk(self.neighbours, largest=False).indices
        batch = torch.arange(len(x), device=x.device).view(-1, 1, 1)
        there = points[batch, near].permute(0, 3, 1, 2)
        here = x.unsqueeze(-1).expand_as(there)
        return self.mlp(torch.cat([here, there - here], 1)).amax(-1)


class PointNet(nn.Module):
    def __init__(self, widths=(3, 24, 24, 48), classes=40):
        super().__init__()
        self.convs = nn.ModuleList(EdgeConv(a, b) for a, b in pairwise(widths))
        self.fuse = nn.Conv1d(sum(widths[1:]), 128, 1)
        self.classify = nn.Sequential(
            nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, classes)
        )

    def forward(self, points):
        x, seen = points.transpose(1, 2), []
        for conv in self.convs:
            x = conv(x)
            seen.append(x)
        x = self.fuse(torch.cat(seen, 1))
        return self.classify(torch.cat([x.amax(-1), x.mean(-1)], 1))


def make_loss(micro_batch=4):
    model, points = PointNet(), torch.randn(micro_batch, 192, 3)
    labels = torch.randint(40, (micro_batch,))
    return (lambda: F.cross_entropy(model(points), labels)), model
