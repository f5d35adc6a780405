"""Language model: a sparse mixture of experts with a balancing loss, gathered from its layers."""

import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    def __init__(self, width, experts=4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        flat = self.norm(x).flatten(0, 1)
        share = self.router(flat).softmax(-1)
        weight, chosen = share.topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, token, weight[token, place, None] * expert(flat[token]))
        load = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        self.balance = len(self.experts) * (load * share.mean(0)).sum()
        return x + out.view_as(x)


class LanguageModel(nn.Module):
    def __init__(self, width=64, depth=4, vocabulary=200):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.mixing = nn.ModuleList(nn.GRU(width, width, batch_first=True) for _ in range(depth))
        self.layers = nn.ModuleList(Experts(width) for _ in range(depth))

    def forward(self, tokens):
        x = self.embed(tokens)
        for mix, layer in zip(self.mixing, self.layers, strict=True):
            x = layer(x + mix(x)[0])
        return self.head(x), sum(layer.balance for layer in self.layers)


def make_loss(micro_batch=4):
    model, tokens = LanguageModel(), torch.randint(200, (micro_batch, 65))

    def loss():
        scores, balance = model(tokens[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()) + 0.01 * balance

    return loss, model
