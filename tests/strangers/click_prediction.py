"""Recommendation: bags of embeddings with offsets, crossed with dense features."""

import torch
from torch import nn
from torch.nn import functional as F


class ClickModel(nn.Module):
    def __init__(self, rows=(2000, 500, 3000), width=32):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in rows)
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + 6, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense, bags):
        x = self.bottom(dense)
        found = [
            bag(ids.flatten(), starts) for bag, (ids, starts) in zip(self.bags, bags, strict=True)
        ]
        features = torch.stack([x, *found], 1)
        crossed = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(len(found) + 1, len(found) + 1, -1)
        return self.top(torch.cat([x, crossed[:, row, column]], 1)).squeeze(1)


def make_loss(micro_batch=4):
    model, dense = ClickModel(), torch.randn(256 * micro_batch, 13)
    ids = [torch.randint(rows, (len(dense), 5)) for rows in (2000, 500, 3000)]
    clicked = torch.randint(2, (len(dense),)).float()

    def loss():
        bags = [(i, torch.arange(0, i.numel(), i.shape[1])) for i in ids]
        return F.binary_cross_entropy_with_logits(model(dense, bags), clicked)

    return loss, model
