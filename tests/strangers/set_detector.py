"""Detection: queries matched to boxes by the Hungarian method, with a loss at every layer."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F


class SetDetector(nn.Module):
    def __init__(self, width=64, depth=3, queries=20, classes=8):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 32, 8, 8), nn.GELU(), nn.Conv2d(32, width, 1))
        self.queries = nn.Parameter(torch.randn(queries, width))
        layer = {"nhead": 4, "dim_feedforward": 256, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, **layer), depth)
        decoders = [nn.TransformerDecoderLayer(width, **layer) for _ in range(depth)]
        self.decoder = nn.ModuleList(decoders)
        self.kind, self.box = nn.Linear(width, classes + 1), nn.Linear(width, 4)

    def forward(self, images):
        memory = self.encoder(self.backbone(images).flatten(2).transpose(1, 2))
        x, outputs = self.queries.expand(len(images), -1, -1), []
        for layer in self.decoder:
            x = layer(x, memory)
            outputs.append({"logits": self.kind(x), "boxes": self.box(x).sigmoid()})
        return outputs


def matched_loss(output, targets):
    total = 0.0
    for logits, boxes, target in zip(output["logits"], output["boxes"], targets, strict=True):
        with torch.no_grad():
            cost = torch.cdist(boxes, target["boxes"], p=1)
            cost = cost - logits.softmax(-1)[:, target["labels"]]
            rows, columns = (torch.as_tensor(i) for i in linear_sum_assignment(cost.cpu()))
        kinds = torch.full((len(logits),), 8, device=logits.device)
        kinds[rows] = target["labels"][columns]
        total = total + F.cross_entropy(logits, kinds)
        total = total + F.l1_loss(boxes[rows], target["boxes"][columns])
    return total / len(targets)


def make_loss(micro_batch=4):
    model, images = SetDetector(), torch.randn(micro_batch, 3, 128, 128)
    counts = [2 + i % 3 for i in range(micro_batch)]
    targets = [{"boxes": torch.rand(n, 4), "labels": torch.randint(8, (n,))} for n in counts]
    return (lambda: sum(matched_loss(output, targets) for output in model(images))), model
