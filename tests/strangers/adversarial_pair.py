"""GAN: generator and discriminator in one module, and both of their losses in one."""

import torch
from torch import nn
from torch.nn import functional as F


def generator(width=32):
    layers = [nn.ConvTranspose2d(64, 2 * width, 4)]
    for a, b in ((2 * width, 2 * width), (2 * width, width), (width, width)):
        layers += [nn.GroupNorm(8, a), nn.ReLU(), nn.ConvTranspose2d(a, b, 4, 2, 1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())


def discriminator(width=32):
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for a, b in ((width, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.LeakyReLU(0.2), nn.Conv2d(a, b, 4, 2, 1)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Conv2d(2 * width, 1, 4), nn.Flatten())


def make_loss(micro_batch=4):
    model = nn.ModuleDict({"generator": generator(), "discriminator": discriminator()})
    real = torch.rand(micro_batch, 3, 32, 32) * 2 - 1

    def loss():
        fake = model["generator"](torch.randn(len(real), 64, 1, 1))
        judged = model["discriminator"](torch.cat([real, fake.detach()]))
        caught = F.softplus(-judged[: len(real)]).mean() + F.softplus(judged[len(real) :]).mean()
        frozen = {k: p.detach() for k, p in model["discriminator"].named_parameters()}
        fooled = torch.func.functional_call(model["discriminator"], frozen, fake)
        return caught + F.softplus(-fooled).mean()

    return loss, model
