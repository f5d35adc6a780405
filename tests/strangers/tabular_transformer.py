"""Tables: a transformer over columns, categories embedded and numbers scaled."""

import torch
from torch import nn
from torch.nn import functional as F


class TableTransformer(nn.Module):
    def __init__(self, sizes=(12, 7, 30, 4), numbers=20, width=48, depth=4):
        super().__init__()
        self.categories = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.scale, self.shift = (nn.Parameter(torch.randn(numbers, width)) for _ in range(2))
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(numbers)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, kinds, numbers):
        columns = [embed(kinds[:, i]) for i, embed in enumerate(self.categories)]
        values = self.norm(numbers).unsqueeze(-1) * self.scale + self.shift
        x = torch.cat([self.cls.expand(len(kinds), -1, -1), torch.stack(columns, 1), values], 1)
        return self.head(self.encoder(x)[:, 0]).squeeze(1)


def make_loss(micro_batch=4):
    model, rows = TableTransformer(), 16 * micro_batch
    kinds = torch.stack([torch.randint(size, (rows,)) for size in (12, 7, 30, 4)], 1)
    numbers, target = torch.randn(rows, 20), torch.randint(2, (rows,)).float()
    weight = torch.tensor(3.0)

    def loss():
        return F.binary_cross_entropy_with_logits(model(kinds, numbers), target, pos_weight=weight)

    return loss, model
