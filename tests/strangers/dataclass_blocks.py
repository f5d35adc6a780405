"""Molecules: blocks that hand a dataclass of node, edge and global features to each other."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass
class Features:
    nodes: torch.Tensor  # (batch, atoms, channels)
    edges: torch.Tensor  # (batch, atoms, atoms, channels)
    whole: torch.Tensor  # (batch, channels)


def mlp(inward, outward):
    return nn.Sequential(nn.Linear(inward, 2 * outward), nn.SiLU(), nn.Linear(2 * outward, outward))


class GraphBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge, self.node = mlp(3 * width, width), mlp(3 * width, width)
        self.all = mlp(2 * width, width)

    def forward(self, f: Features) -> Features:
        nodes, shape = f.nodes, f.edges.shape
        ends = nodes.unsqueeze(2).expand(shape), nodes.unsqueeze(1).expand(shape)
        edges = f.edges + self.edge(torch.cat([*ends, f.edges], -1))
        around = [nodes, edges.mean(2), f.whole.unsqueeze(1).expand_as(nodes)]
        nodes = nodes + self.node(torch.cat(around, -1))
        return Features(nodes, edges, f.whole + self.all(torch.cat([nodes.mean(1), f.whole], -1)))


class Network(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.nodes, self.edges = nn.Linear(16, width), nn.Linear(4, width)
        self.start = nn.Parameter(torch.zeros(width))
        self.stack = nn.ModuleList(GraphBlock(width) for _ in range(depth))
        self.property = nn.Linear(width, 1)

    def forward(self, atoms, bonds):
        f = Features(self.nodes(atoms), self.edges(bonds), self.start.expand(len(atoms), -1))
        for block in self.stack:
            f = block(f)
        return self.property(f.whole).squeeze(1)


def make_loss(micro_batch=4):
    model, atoms = Network(), torch.randn(micro_batch, 20, 16)
    bonds, target = torch.randn(micro_batch, 20, 20, 4), torch.randn(micro_batch)
    return (lambda: F.smooth_l1_loss(model(atoms, bonds), target)), model
