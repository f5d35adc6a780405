"""Reinforcement learning: a recurrent world model with sampled states and a KL loss."""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence


class WorldModel(nn.Module):
    def __init__(self, deter=128, stoch=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2), nn.ELU(), nn.Conv2d(16, 32, 4, 2), nn.ELU(), nn.Flatten()
        )
        self.cell, self.inward = nn.GRUCell(deter, deter), nn.Linear(stoch + 4, deter)
        self.prior, self.posterior = nn.Linear(deter, 2 * stoch), nn.Linear(deter + 1152, 2 * stoch)
        self.decoder = nn.Sequential(nn.Linear(deter + stoch, 256), nn.ELU(), nn.Linear(256, 3072))

    def forward(self, images, actions):  # (batch, time, 3, 32, 32), (batch, time, 4)
        seen = self.encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        h = images.new_zeros(len(images), self.cell.hidden_size)
        z, divergence, states = h[:, : self.prior.out_features // 2], [], []
        for t in range(images.shape[1]):
            h = self.cell(self.inward(torch.cat([z, actions[:, t]], 1)).relu(), h)
            numbers = self.prior(h), self.posterior(torch.cat([h, seen[:, t]], 1))
            parts = (both.chunk(2, 1) for both in numbers)
            prior, posterior = (Normal(mean, spread.sigmoid() + 0.1) for mean, spread in parts)
            z = posterior.rsample()
            divergence.append(kl_divergence(posterior, prior).sum(1))
            states.append(torch.cat([h, z], 1))
        return self.decoder(torch.stack(states, 1)).view_as(images), torch.stack(divergence, 1)


def make_loss(micro_batch=4):
    model = WorldModel()
    images, actions = torch.rand(micro_batch, 12, 3, 32, 32), torch.randn(micro_batch, 12, 4)

    def loss():
        again, divergence = model(images, actions)
        return (again - images).square().mean() + divergence.clamp(min=1).mean()

    return loss, model
