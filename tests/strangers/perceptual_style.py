"""Style transfer: gradients go through a frozen network, whose features are compared."""

import torch
from torch import nn
from torch.nn import functional as F


def layer(inward, outward, size):
    conv = nn.Conv2d(inward, outward, size, padding=size // 2)
    return nn.Sequential(conv, nn.InstanceNorm2d(outward, affine=True), nn.ReLU())


class Stylist(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.down = layer(3, width, 9)
        self.middle = nn.Sequential(*[layer(width, width, 3) for _ in range(4)])
        self.out = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, x):
        x = self.down(x)
        return torch.sigmoid(self.out(x + self.middle(x)))


def gram(x):
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def make_loss(micro_batch=4):
    model, images, style = Stylist(), torch.rand(micro_batch, 3, 40, 40), torch.rand(1, 3, 40, 40)
    convs = [nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, 2), nn.Conv2d(32, 32, 3)]
    frozen = nn.ModuleList(convs).requires_grad_(False)

    def features(x):
        return [x := conv(x).relu() for conv in frozen]

    def loss():
        made = features(model(images))
        with torch.no_grad():
            wanted, models = features(images), [gram(f) for f in features(style)]
        content = F.mse_loss(made[1], wanted[1])
        pairs = zip(made, models, strict=True)
        return content + sum((gram(a) - b).square().mean() for a, b in pairs)

    return loss, model
