"""Self-supervised: a masked autoencoder, whose random mask is drawn in forward."""

import torch
from torch import nn


def stack(width, depth):
    return nn.ModuleList(
        nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        for _ in range(depth)
    )


class MaskedAutoencoder(nn.Module):
    def __init__(self, patches=144, size=192, width=64, narrow=32):
        super().__init__()
        self.patches, self.kept = patches, patches // 4
        self.inward = nn.Linear(size, width)
        self.place = nn.Parameter(torch.randn(patches, width) / 50)
        self.encoder, self.decoder = stack(width, 4), stack(narrow, 2)
        self.bridge, self.mask = nn.Linear(width, narrow), nn.Parameter(torch.zeros(1, 1, narrow))
        self.decoder_place = nn.Parameter(torch.randn(patches, narrow) / 50)
        self.out = nn.Linear(narrow, size)

    def forward(self, patches):
        order = torch.rand(patches.shape[:2], device=patches.device).argsort(1)
        kept = order[:, : self.kept, None]
        x = (self.inward(patches) + self.place).gather(1, kept.expand(-1, -1, self.place.shape[1]))
        for layer in self.encoder:
            x = layer(x)
        x = self.bridge(x)
        full = self.mask.expand(len(x), self.patches, -1).scatter(1, kept.expand_as(x), x)
        full = full + self.decoder_place
        for layer in self.decoder:
            full = layer(full)
        hidden = torch.ones_like(order, dtype=full.dtype).scatter(1, kept.squeeze(2), 0.0)
        return self.out(full), hidden


def make_loss(micro_batch=4):
    model, patches = MaskedAutoencoder(), torch.randn(micro_batch, 144, 192)

    def loss():
        again, hidden = model(patches)
        return ((again - patches).square().mean(-1) * hidden).sum() / hidden.sum()

    return loss, model
