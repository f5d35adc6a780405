"""Graphs: attention over edges with jumping knowledge, and labels on some of the nodes."""

import torch
from torch import nn
from torch.nn import functional as F


class EdgeAttention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.values, self.scores = nn.Linear(width, width), nn.Linear(2 * width, heads)

    def forward(self, h, source, target):
        scores = F.leaky_relu(self.scores(torch.cat([h[source], h[target]], 1)), 0.2).exp()
        total = torch.zeros(len(h), self.heads, device=h.device).index_add(0, target, scores)
        weights = F.dropout(scores / total[target], 0.2, self.training).unsqueeze(2)
        values = self.values(h).view(len(h), self.heads, -1)[source]
        mixed = torch.zeros(len(h), *values.shape[1:], device=h.device)
        return F.elu(self.norm(mixed.index_add(0, target, weights * values).flatten(1)))


class GraphNet(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.embed = nn.Linear(50, width)
        self.layers = nn.ModuleList(EdgeAttention(width) for _ in range(depth))
        self.classify = nn.Linear(depth * width, 7)

    def forward(self, x, edges):  # (graphs, nodes, features), (graphs, edges, 2)
        first = torch.arange(len(x), device=x.device).view(-1, 1, 1) * x.shape[1]
        source, target = (edges + first).view(-1, 2).unbind(1)
        h, seen = self.embed(x.flatten(0, 1)), []
        for layer in self.layers:
            h = layer(h, source, target)
            seen.append(h)
        return self.classify(torch.cat(seen, 1)).view(*x.shape[:2], -1)


def make_loss(micro_batch=4):
    model, x = GraphNet(), torch.randn(micro_batch, 150, 50)
    edges, labels = torch.randint(150, (micro_batch, 1500, 2)), torch.randint(7, (micro_batch, 150))
    known = torch.rand(micro_batch, 150) < 0.3
    return (lambda: F.cross_entropy(model(x, edges)[known], labels[known])), model
