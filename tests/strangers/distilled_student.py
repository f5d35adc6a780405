"""Distillation: a small student learns from a frozen, larger teacher that the loss calls."""

import torch
from torch import nn
from torch.nn import functional as F


class Mixer(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Classifier(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.mixers = nn.Sequential(*[Mixer(64, width) for _ in range(depth)])
        self.head = nn.Linear(width, 100)

    def forward(self, images):
        return self.head(self.mixers(self.patch(images).flatten(2).transpose(1, 2)).mean(1))


def make_loss(micro_batch=4):
    student, teacher = Classifier(48, 4), Classifier(128, 6).eval().requires_grad_(False)
    images, labels = torch.randn(micro_batch, 3, 64, 64), torch.randint(100, (micro_batch,))

    def loss():
        with torch.no_grad():
            wanted = (teacher(images) / 2).softmax(1)
        scores = student(images)
        soft = F.kl_div((scores / 2).log_softmax(1), wanted, reduction="batchmean")
        return 4 * soft + F.cross_entropy(scores, labels)

    return loss, student
