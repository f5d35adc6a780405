"""Diffusion: a U-Net that predicts noise drawn in the loss, with averaged weights beside it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class ResBlock(nn.Module):
    def __init__(self, inward, outward):
        super().__init__()
        self.first = nn.Conv2d(inward, outward, 3, padding=1)
        self.second = nn.Conv2d(outward, outward, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, inward), nn.GroupNorm(4, outward)])
        self.time, self.short = nn.Linear(64, outward), nn.Conv2d(inward, outward, 1)

    def forward(self, x, time):
        h = self.first(F.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        return self.short(x) + self.second(F.silu(self.norms[1](h)))


class UNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64))
        self.inward, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(ResBlock(a, b) for a, b in ((width, width), (width, 2 * width)))
        self.up = nn.ModuleList(ResBlock(a, b) for a, b in ((4 * width, width), (2 * width, width)))

    def forward(self, x, t):
        time, x, skips = self.time(t.unsqueeze(1)), self.inward(x), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), time)
        return self.out(x)


def make_loss(micro_batch=4):
    model, images = UNet(), torch.randn(micro_batch, 3, 32, 32)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def loss():
        average.update_parameters(model)
        noise, t = torch.randn_like(images), torch.rand(len(images))
        angle = (t * 1.57)[:, None, None, None]
        return F.mse_loss(model(angle.cos() * images + angle.sin() * noise, t), noise)

    return loss, model
