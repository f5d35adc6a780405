"""Video: attention over space, then over time, on the patches of each frame."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):  # (batch, other axis, tokens, channels)
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2)
        q, k, v = heads.unbind(-3)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(-3, -2).flatten(-2))


class SpaceTimeBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.space, self.time = Attention(width), Attention(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):  # (batch, frames, patches, channels)
        x = x + self.space(x)
        x = x + self.time(x.transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(x)


def make_loss(micro_batch=4):
    model = nn.Sequential(
        nn.Linear(192, 64),
        *[SpaceTimeBlock(64) for _ in range(4)],
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    )
    clips, actions = torch.randn(micro_batch, 6, 16, 192), torch.randint(10, (micro_batch,))
    return (lambda: F.cross_entropy(model(clips).mean((1, 2)), actions)), model
