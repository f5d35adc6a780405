"""Genomics: long sequences through blocks that the model itself checkpoints in training."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 5, padding=2 * dilation, dilation=dilation)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        y = F.glu(self.conv(self.norm(x).transpose(1, 2)), 1).transpose(1, 2)
        return x + self.out(F.gelu(y))


class GenomeModel(nn.Module):
    def __init__(self, width=48, depth=5, checkpointing=True):
        super().__init__()
        self.checkpointing = checkpointing
        self.embed, self.head = nn.Embedding(6, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(Dilated(width, 2**i) for i in range(depth))

    def forward(self, bases):
        x = self.embed(bases)
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return F.softplus(self.head(x))


def make_loss(micro_batch=4):
    model, bases = GenomeModel(), torch.randint(6, (micro_batch, 1024))
    tracks = torch.poisson(torch.rand(micro_batch, 1024, 4) * 3)
    return (lambda: F.poisson_nll_loss(model(bases), tracks, log_input=False)), model
