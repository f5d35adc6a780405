"""Optical flow: one update block called many times on a correlation volume, a loss for each."""

import torch
from torch import nn
from torch.nn import functional as F


class Update(nn.Module):
    def __init__(self, width, pairs):
        super().__init__()
        self.motion = nn.Conv2d(pairs + 2, width, 1)
        self.gates = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.new = nn.Conv2d(2 * width, width, 3, padding=1)
        self.flow = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, h, correlation, flow):
        x = F.relu(self.motion(torch.cat([correlation, flow], 1)))
        z, r = self.gates(torch.cat([h, x], 1)).sigmoid().chunk(2, 1)
        h = (1 - z) * h + z * torch.tanh(self.new(torch.cat([r * h, x], 1)))
        return h, self.flow(h)


class FlowNet(nn.Module):
    def __init__(self, width=32, rounds=6):
        super().__init__()
        self.rounds = rounds
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 8, 4, 2), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.update = Update(width, pairs=256)

    def forward(self, first, second):
        a, b = self.encode(first), self.encode(second)
        pairs = torch.einsum("bchw,bcn->bnhw", a, b.flatten(2)) / a.shape[1] ** 0.5
        flow, h, found = torch.zeros_like(a[:, :2]), a.tanh(), []
        for _ in range(self.rounds):
            h, change = self.update(h, pairs, flow.detach())
            flow = flow.detach() + change
            found.append(flow)
        return found


def make_loss(micro_batch=4):
    model, frames = FlowNet(), torch.randn(micro_batch, 2, 3, 64, 64)
    truth = torch.randn(micro_batch, 2, 16, 16)

    def loss():
        found = model(*frames.unbind(1))
        return sum(0.8 ** (len(found) - i) * F.l1_loss(f, truth) for i, f in enumerate(found))

    return loss, model
