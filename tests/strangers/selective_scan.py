"""Sequences: a selective state-space model, scanned token by token."""

import torch
from torch import nn
from torch.nn import functional as F


class SelectiveScan(nn.Module):
    def __init__(self, width, states=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.convolve = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.select, self.step = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))

    def forward(self, tokens):
        x, gate = self.inward(self.norm(tokens)).chunk(2, -1)
        x = F.silu(self.convolve(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        read_in, read_out = self.select(x).chunk(2, -1)
        dt = F.softplus(self.step(x)).unsqueeze(-1)
        decay = torch.exp(-dt * self.log_decay.exp())
        driven = dt * x.unsqueeze(-1) * read_in.unsqueeze(2)
        state, seen = torch.zeros_like(driven[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + driven[:, t]
            seen.append((state * read_out[:, t].unsqueeze(1)).sum(-1))
        return tokens + self.out(torch.stack(seen, 1) * F.silu(gate))


def make_loss(micro_batch=4):
    layers = [SelectiveScan(32) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(64, 32), *layers, nn.LayerNorm(32), nn.Linear(32, 64))
    tokens = torch.randint(64, (micro_batch, 65))

    def loss():
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return loss, model
