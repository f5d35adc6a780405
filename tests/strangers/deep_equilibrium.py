"""Implicit layers: an equilibrium found without gradients, and one step with them."""

import torch
from torch import nn
from torch.nn import functional as F


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)

    def forward(self, z, x):
        y = self.norm1(F.relu(self.conv1(z)))
        return self.norm2(F.relu(z + x + 0.5 * self.conv2(y)))


class Equilibrium(nn.Module):
    def __init__(self, width=48, most=25, tolerance=1e-3):
        super().__init__()
        self.most, self.tolerance = most, tolerance
        self.inward, self.cell = nn.Conv2d(3, width, 3, padding=1), Cell(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.inward(images)
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(self.most):
                before, z = z, self.cell(z, x)
                if (z - before).norm() < self.tolerance * z.norm():
                    break
        for _ in range(3):
            z = self.cell(z, x)
        return self.head(z.mean((2, 3)))


def make_loss(micro_batch=4):
    model, images = Equilibrium(), torch.randn(micro_batch, 3, 32, 32)
    labels = torch.randint(10, (micro_batch,))
    return (lambda: F.cross_entropy(model(images), labels)), model
