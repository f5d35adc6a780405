"""Quantisation-aware training: ranges that observers move in forward and then round with."""

import torch
from torch import nn
from torch.nn import functional as F


class FakeQuantise(nn.Module):
    def __init__(self, momentum=0.05):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("largest", torch.tensor(4.0))

    def forward(self, x):
        if self.training:
            seen = x.detach().abs().amax()
            self.largest.mul_(1 - self.momentum).add_(self.momentum * seen)
        scale = self.largest / 127
        rounded = (x / scale).round().clamp(-127, 127) * scale
        return x + (rounded - x).detach()


class QuantisedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.weights, self.activations = FakeQuantise(), FakeQuantise()

    def forward(self, x):
        y = F.conv2d(x, self.weights(self.conv.weight), self.conv.bias, padding=1)
        return x + self.activations(F.relu(y))


def make_loss(micro_batch=4):
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1),
        *[QuantisedBlock(24) for _ in range(5)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )
    images, labels = torch.randn(micro_batch, 3, 64, 64), torch.randint(10, (micro_batch,))
    return (lambda: F.cross_entropy(model(images), labels)), model
