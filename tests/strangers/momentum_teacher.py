"""Self-supervised: student and momentum teacher in one module, the teacher moved in forward."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class Backbone(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(1, width),
                nn.Conv2d(width, 3 * width, 3, padding=1),
                nn.GELU(),
                nn.Conv2d(3 * width, width, 1),
            )
            for _ in range(4)
        )

    def forward(self, images):
        x = self.patch(images)
        for layer in self.layers:
            x = x + layer(x)
        return x.mean((2, 3))


class Bootstrap(nn.Module):
    def __init__(self, momentum=0.99):
        super().__init__()
        self.momentum, self.student = momentum, Backbone()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.predict = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 48))

    def forward(self, first, second):
        with torch.no_grad():
            for slow, fast in zip(
                self.teacher.parameters(), self.student.parameters(), strict=True
            ):
                slow.lerp_(fast, 1 - self.momentum)
            wanted = self.teacher(second)
        return F.cosine_similarity(self.predict(self.student(first)), wanted)


def make_loss(micro_batch=4):
    model, images = Bootstrap(), torch.randn(micro_batch, 3, 48, 48)
    return (lambda: 2 - 2 * model(images, images.flip(-1)).mean()), model
