"""GAN: a Wasserstein critic with a gradient penalty, which differentiates inside the loss."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 4, 2, 1),
            nn.InstanceNorm2d(width, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 4, 2, 1),
            nn.InstanceNorm2d(width, affine=True),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(width * 64, 1),
        )

    def forward(self, images):
        return self.net(images).squeeze(1)


def make_loss(micro_batch=4):
    critic = Critic()
    real, fake = (torch.randn(micro_batch, 3, 32, 32) for _ in range(2))

    def loss():
        mix = torch.rand(len(real), 1, 1, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return loss, critic
