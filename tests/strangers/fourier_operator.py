"""Weather and fluids: a Fourier neural operator with complex weights and a relative loss."""

import torch
from torch import nn
from torch.nn import functional as F


class FourierLayer(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        scale = 1 / width**2
        self.modes, self.local = modes, nn.Conv2d(width, width, 1)
        self.weight = nn.Parameter(
            scale * torch.view_as_complex(torch.randn(2, width, width, modes, modes, 2))
        )

    def forward(self, x):
        spectrum, m = torch.fft.rfft2(x), self.modes
        out = torch.zeros_like(spectrum)
        for part, rows in enumerate((slice(None, m), slice(-m, None))):
            low = spectrum[:, :, rows, :m]
            out[:, :, rows, :m] = torch.einsum("bixy,ioxy->boxy", low, self.weight[part])
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))


class Operator(nn.Module):
    def __init__(self, width=24, depth=4):
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.layers = nn.ModuleList(FourierLayer(width, modes=8) for _ in range(depth))
        self.project = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, field):
        x = self.lift(field)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)


def make_loss(micro_batch=4):
    model = Operator()
    field, solution = torch.randn(micro_batch, 3, 64, 64), torch.randn(micro_batch, 1, 64, 64)

    def loss():
        error = (model(field) - solution).flatten(1).norm(dim=1)
        return (error / solution.flatten(1).norm(dim=1)).mean()

    return loss, model
