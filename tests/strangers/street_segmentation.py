"""Segmentation: a convolutional network with BatchNorm, dilated branches and an auxiliary loss."""

import torch
from torch import nn
from torch.nn import functional as F


def unit(inward, outward, **kind):
    kind = {"padding": 1, "bias": False} | kind
    return nn.Sequential(
        nn.Conv2d(inward, outward, 3, **kind), nn.BatchNorm2d(outward), nn.ReLU(inplace=True)
    )


class Segmenter(nn.Module):
    def __init__(self, width=32, classes=19):
        super().__init__()
        self.stem = unit(3, width, stride=2)
        self.body = nn.Sequential(*[unit(width, width) for _ in range(3)])
        self.branches = nn.ModuleList(unit(width, width, padding=d, dilation=d) for d in (1, 3, 6))
        self.classify = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(3 * width, classes, 1))
        self.auxiliary = nn.Conv2d(width, classes, 1)

    def forward(self, images):
        x = self.body(self.stem(images))
        wide = torch.cat([branch(x) for branch in self.branches], 1)
        size = {"size": images.shape[-2:], "mode": "bilinear", "align_corners": False}
        outputs = {"out": self.classify(wide), "aux": self.auxiliary(x)}
        return {name: F.interpolate(scores, **size) for name, scores in outputs.items()}


def make_loss(micro_batch=4):
    model, images = Segmenter(), torch.randn(micro_batch, 3, 64, 64)
    labels = torch.randint(19, (micro_batch, 64, 64))
    labels[:, :8] = 255

    def loss():
        found = model(images)
        main, extra = (F.cross_entropy(found[k], labels, ignore_index=255) for k in ("out", "aux"))
        return main + 0.4 * extra

    return loss, model
