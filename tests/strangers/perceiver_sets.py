"""Multimodal: a Perceiver that reads long inputs into a few latents, with shared weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Read(nn.Module):
    def __init__(self, width, inward):
        super().__init__()
        self.norm, self.context = nn.LayerNorm(width), nn.Linear(inward, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, latents, inputs):
        context = self.context(inputs)
        latents = (
            latents + self.attention(self.norm(latents), context, context, need_weights=False)[0]
        )
        return latents + self.mlp(latents)


class Perceiver(nn.Module):
    def __init__(self, width=64, latents=24, inward=36, rounds=4):
        super().__init__()
        self.latents, self.rounds = nn.Parameter(torch.randn(latents, width)), rounds
        self.first = Read(width, inward)
        self.cross = Read(width, inward)
        self.think = Read(width, width)
        self.head = nn.Linear(width, 12)

    def forward(self, inputs):
        x = self.first(self.latents.expand(len(inputs), -1, -1), inputs)
        for _ in range(self.rounds):
            x = self.cross(self.think(x, x), inputs)
        return self.head(x.mean(1))


def make_loss(micro_batch=4):
    model, inputs = Perceiver(), torch.randn(micro_batch, 512, 36)
    labels = torch.randint(12, (micro_batch,))
    return (lambda: F.cross_entropy(model(inputs), labels, label_smoothing=0.1)), model
