"""GAN: a discriminator under spectral norm, whose power iteration moves in every forward."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


class Down(nn.Module):
    def __init__(self, inward, outward):
        super().__init__()
        self.first = spectral_norm(nn.Conv2d(inward, outward, 3, padding=1))
        self.second = spectral_norm(nn.Conv2d(outward, outward, 4, 2, 1))
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Down(3, 32), Down(32, 48), Down(48, 64)])
        self.head = spectral_norm(nn.Linear(64, 1))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.sum((2, 3))).squeeze(1)


def make_loss(micro_batch=4):
    model, images = Critic(), torch.randn(micro_batch, 2, 3, 32, 32)

    def loss():
        real, fake = (model(part) for part in images.unbind(1))
        return torch.relu(1 - real).mean() + torch.relu(1 + fake).mean()

    return loss, model
