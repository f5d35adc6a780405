"""Contrastive: two views through a convolutional encoder with BatchNorm, one call for each."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, inward, outward, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inward, outward, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outward),
            nn.ReLU(),
            nn.Conv2d(outward, outward, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outward),
        )
        self.short = nn.Conv2d(inward, outward, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 24, 48, 48, 96]
        self.layers = nn.Sequential(*[Block(a, b, 1 + (b > a > 3)) for a, b in pairwise(widths)])
        self.project = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32))

    def forward(self, x):
        return F.normalize(self.project(self.layers(x).mean((2, 3))), dim=1)


def make_loss(micro_batch=4):
    model, images = Encoder(), torch.randn(micro_batch, 3, 48, 48)

    def loss():
        first = model(images + 0.1 * torch.randn_like(images))
        second = model(images.flip(-1) + 0.1 * torch.randn_like(images))
        views = torch.cat([first, second])
        scores = (views @ views.T / 0.2).fill_diagonal_(-1e4)
        return F.cross_entropy(scores, torch.arange(len(views)).roll(len(first)))

    return loss, model
