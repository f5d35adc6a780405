"""Medical signals: a model whose own `training_step` makes the loss, and forward is for later."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.wide, self.back = (
            nn.Conv1d(width, 2 * width, 9, padding=4),
            nn.Conv1d(2 * width, width, 1),
        )

    def forward(self, x):
        return x + self.back(F.gelu(self.wide(self.norm(x))))


class HeartModel(nn.Module):
    def __init__(self, leads=12, width=32, depth=5):
        super().__init__()
        self.stem = nn.Conv1d(leads, width, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.classify, self.rate = nn.Linear(width, 5), nn.Linear(width, 1)

    def features(self, signal):
        return self.blocks(self.stem(signal)).mean(-1)

    def forward(self, signal):
        return self.classify(self.features(signal)).sigmoid()

    def training_step(self, batch):
        x = self.features(batch["signal"])
        findings = F.binary_cross_entropy_with_logits(self.classify(x), batch["findings"])
        return findings + 0.1 * F.huber_loss(self.rate(x).squeeze(1), batch["rate"])


def make_loss(micro_batch=4):
    model, signal = HeartModel(), torch.randn(micro_batch, 12, 1000)
    findings, rate = torch.rand(micro_batch, 5).round(), torch.randn(micro_batch)
    batch = {"signal": signal, "findings": findings, "rate": rate}
    return (lambda: model.training_step(batch)), model
