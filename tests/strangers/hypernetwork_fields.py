"""Implicit shapes: a hypernetwork that writes the weights of a small network for each shape."""

import torch
from torch import nn
from torch.func import functional_call


class HyperField(nn.Module):
    def __init__(self, code=32, width=32):
        super().__init__()
        self.field = nn.Sequential(
            nn.Linear(3, width),
            nn.Softplus(),
            nn.Linear(width, width),
            nn.Softplus(),
            nn.Linear(width, 1),
        ).requires_grad_(False)
        self.shapes = {name: p.shape for name, p in self.field.named_parameters()}
        numbers = sum(shape.numel() for shape in self.shapes.values())
        self.writer = nn.Sequential(
            nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, numbers)
        )

    def forward(self, codes, points):
        distances = []
        for weights, where in zip(self.writer(codes) / 8, points, strict=True):
            parts = weights.split([shape.numel() for shape in self.shapes.values()])
            named = zip(self.shapes.items(), parts, strict=True)
            own = {name: part.view(shape) for (name, shape), part in named}
            distances.append(functional_call(self.field, own, where))
        return torch.stack(distances).squeeze(-1)


def make_loss(micro_batch=4):
    model, codes = HyperField(), torch.randn(micro_batch, 32)
    points, distances = torch.rand(micro_batch, 4096, 3), torch.randn(micro_batch, 4096)
    return (lambda: (model(codes, points) - distances).abs().clamp(max=0.5).mean()), model
