"""Medical imaging: a 3-D U-Net on patches, with a soft Dice loss."""

import torch
from torch import nn
from torch.nn import functional as F


def double(inward, outward):
    layers = []
    for a in (inward, outward):
        layers.append(nn.Conv3d(a, outward, 3, padding=1, bias=False))
        layers += [nn.InstanceNorm3d(outward), nn.LeakyReLU()]
    return nn.Sequential(*layers)


class VolumeUNet(nn.Module):
    def __init__(self, widths=(8, 16, 32), classes=3):
        super().__init__()
        pairs = list(zip((1, *widths), widths, strict=False))
        self.down = nn.ModuleList(double(a, b) for a, b in pairs)
        self.rise = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs[:0:-1])
        self.up = nn.ModuleList(double(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for level in self.down:
            x = level(F.max_pool3d(x, 2) if skips else x)
            skips.append(x)
        for rise, level, skip in zip(self.rise, self.up, skips[-2::-1], strict=True):
            x = level(torch.cat([skip, rise(x)], 1))
        return self.head(x)


def make_loss(micro_batch=4):
    model, volumes = VolumeUNet(), torch.randn(micro_batch, 1, 24, 24, 24)
    labels = torch.randint(3, (micro_batch, 24, 24, 24))

    def loss():
        share = model(volumes).softmax(1)
        true = F.one_hot(labels, 3).movedim(-1, 1).to(share.dtype)
        both, each = (share * true).sum((2, 3, 4)), (share + true).sum((2, 3, 4))
        entropy = -(share.clamp(min=1e-6).log() * true).mean()
        return 1 - (2 * both / (each + 1e-5)).mean() + 0.1 * entropy

    return loss, model
