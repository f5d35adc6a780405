"""Language model: a decoder whose head is its embedding, with padded documents."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads=4, p=0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), self.p, self.training)
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        return x + F.dropout(self.down(F.silu(gate) * value), self.p, self.training)


class Decoder(nn.Module):
    def __init__(self, vocabulary=512, width=64, depth=4):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width, padding_idx=0)
        self.h = nn.ModuleList(Layer(width) for _ in range(depth))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens, labels):
        x = self.wte(tokens)
        for layer in self.h:
            x = layer(x)
        scores = self.lm_head(x)[:, :-1].flatten(0, 1)
        return F.cross_entropy(scores, labels[:, 1:].flatten(), ignore_index=0)


def make_loss(micro_batch=4):
    model, tokens = Decoder(), torch.randint(1, 512, (micro_batch, 96))
    tokens[1::2, 64:] = 0
    return (lambda: model(tokens, tokens)), model
