"""VQ-VAE: a codebook that is moved by running means in forward, not by gradients."""

import torch
from torch import nn
from torch.nn import functional as F


class Codebook(nn.Module):
    def __init__(self, entries=128, width=32, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(entries, width))
        self.register_buffer("count", torch.ones(entries))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x):
        flat = x.movedim(1, -1).flatten(0, -2)
        nearest = torch.cdist(flat, self.codes).argmin(1)
        found = self.codes[nearest].view_as(x.movedim(1, -1)).movedim(-1, 1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(nearest, len(self.codes)).to(flat.dtype)
                self.count.lerp_(hot.sum(0), 1 - self.decay)
                self.total.lerp_(hot.T @ flat, 1 - self.decay)
                self.codes.copy_(self.total / (self.count + 1e-5).unsqueeze(1))
        return x + (found - x).detach(), F.mse_loss(x, found.detach())


class Autoencoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        down, up = {"kernel_size": 4, "stride": 2, "padding": 1}, nn.ConvTranspose2d
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, **down), nn.ReLU(), nn.Conv2d(width, width, **down)
        )
        self.codebook = Codebook(width=width)
        self.decoder = nn.Sequential(up(width, width, **down), nn.ReLU(), up(width, 3, **down))

    def forward(self, images):
        codes, commitment = self.codebook(self.encoder(images))
        return self.decoder(codes), commitment


def make_loss(micro_batch=4):
    model, images = Autoencoder(), torch.randn(micro_batch, 3, 128, 128)

    def loss():
        again, commitment = model(images)
        return F.mse_loss(again, images) + 0.25 * commitment

    return loss, model
