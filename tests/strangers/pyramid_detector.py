"""Detection: a feature pyramid without anchors, and images with different numbers of boxes."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


def conv(inward, outward, stride=1):
    layer = nn.Conv2d(inward, outward, 3, stride, 1)
    return nn.Sequential(layer, nn.GroupNorm(8, outward), nn.ReLU())


class Detector(nn.Module):
    def __init__(self, widths=(16, 32, 64, 96), width=32, classes=10):
        super().__init__()
        self.stem = conv(3, widths[0], 2)
        levels = [nn.Sequential(conv(a, b, 2), conv(b, b)) for a, b in pairwise(widths)]
        self.levels = nn.ModuleList(levels)
        self.lateral = nn.ModuleList(nn.Conv2d(b, width, 1) for b in widths[1:])
        self.head = nn.Sequential(conv(width, width), nn.Conv2d(width, classes + 4, 3, padding=1))

    def forward(self, images):
        x, features = self.stem(images), []
        for level in self.levels:
            x = level(x)
            features.append(x)
        merged = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for i in (1, 0):
            merged[i] = merged[i] + F.interpolate(merged[i + 1], scale_factor=2)
        return [self.head(m).split((10, 4), 1) for m in merged]


def make_loss(micro_batch=4):
    model, images = Detector(), torch.randn(micro_batch, 3, 128, 128)
    boxes = [100 * torch.rand(2 + i % 4, 4) for i in range(micro_batch)]
    classes = [torch.randint(10, (len(b),)) for b in boxes]

    def loss():
        total = 0.0
        for scores, regressed in model(images):
            size, target = scores.shape[-1], torch.zeros_like(scores)
            for i, (box, kind) in enumerate(zip(boxes, classes, strict=True)):
                x, y = (box[:, :2] / 128 * size).long().unbind(1)
                target[i, kind, y, x] = 1
                total = total + F.l1_loss(regressed[i, :, y, x].T, box) / len(images)
            p = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
            total = total + ((1 - (-p).exp()) ** 2 * p).mean()
        return total

    return loss, model
