"""Audio: a denoiser whose blocks are attributes with numbers, and no list."""

import torch
from torch import nn
from torch.nn import functional as F


class Unit(nn.Module):
    def __init__(self, inward, outward, dilation):
        super().__init__()
        self.conv = nn.Conv1d(inward, 2 * outward, 5, padding=2 * dilation, dilation=dilation)
        self.norm = nn.GroupNorm(1, outward)

    def forward(self, x):
        value, gate = self.conv(x).chunk(2, 1)
        return self.norm(value.tanh() * gate.sigmoid())


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = Unit(1, 24, 1)
        self.block2 = Unit(24, 24, 2)
        self.block3 = Unit(24, 32, 4)
        self.block4 = Unit(32, 32, 8)
        self.block5 = Unit(32, 24, 4)
        self.out = nn.Conv1d(48, 1, 1)

    def forward(self, wave):
        first = self.block1(wave)
        x = self.block2(first)
        x = self.block3(x)
        x = x + self.block4(x)
        x = self.block5(x)
        return wave - self.out(torch.cat([x, first], 1))


def make_loss(micro_batch=4):
    model, clean = Denoiser(), torch.randn(micro_batch, 1, 2048)
    noisy = clean + 0.3 * torch.randn_like(clean)

    def loss():
        found = model(noisy)
        pairs = [
            torch.stft(w.squeeze(1), 128, window=torch.hann_window(128), return_complex=True).abs()
            for w in (found, clean)
        ]
        return F.l1_loss(found, clean) + F.l1_loss(*pairs)

    return loss, model
