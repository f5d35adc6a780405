"""Fine-tuning: low-rank adapters, written by hand, beside the frozen layers of an encoder."""

import torch
from torch import nn
from torch.nn import functional as F


class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(x)))


def make_loss(micro_batch=4):
    embed, layers, head = nn.Embedding(300, 64), [Layer(64) for _ in range(5)], nn.Linear(64, 3)
    model = nn.Sequential(embed, *layers, head).requires_grad_(False)
    for layer in layers:
        layer.up, layer.down = Adapted(layer.up), Adapted(layer.down)
    head.requires_grad_(True)
    tokens, labels = torch.randint(300, (micro_batch, 64)), torch.randint(3, (micro_batch,))
    return (lambda: F.cross_entropy(model(tokens).mean(1), labels)), model
