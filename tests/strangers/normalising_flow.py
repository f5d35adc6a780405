"""Density estimation: a normalising flow, whose layers give a pair of values."""

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, size, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(size // 2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, size),
        )

    def forward(self, x, log_det):
        kept, changed = x.chunk(2, 1)
        shift, scale = self.net(kept).chunk(2, 1)
        scale = torch.tanh(scale)
        changed = changed * scale.exp() + shift
        return torch.cat([changed, kept], 1), log_det + scale.sum(1)


class Flow(nn.Module):
    def __init__(self, size=32, depth=8):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(size) for _ in range(depth))

    def forward(self, x):
        log_det = torch.zeros(len(x), device=x.device)
        for coupling in self.couplings:
            x, log_det = coupling(x, log_det)
        return x, log_det


def make_loss(micro_batch=4):
    model, data = Flow(), torch.randn(128 * micro_batch, 32)

    def loss():
        z, log_det = model(data)
        return (0.5 * z.square().sum(1) - log_det).mean()

    return loss, model
