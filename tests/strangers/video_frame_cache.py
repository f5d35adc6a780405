"""Video: a causal decoder of frames, whose convolutions keep the frame before in a list."""

import torch
from torch import nn
from torch.nn import functional as F


class CausalBlock(nn.Module):
    def __init__(self, width, cache, place):
        super().__init__()
        self.cache, self.place = cache, place  # one list for all blocks, as in video autoencoders
        self.mix, self.out = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        before = self.cache[self.place]
        self.cache[self.place] = x
        before = torch.zeros_like(x) if before is None else before
        return x + self.out(F.silu(self.mix(torch.cat([before, x], 1))))


class FrameDecoder(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.cache = [None] * depth
        self.inward = nn.Conv2d(8, width, 3, padding=1)
        self.blocks = nn.ModuleList(CausalBlock(width, self.cache, i) for i in range(depth))
        self.outward = nn.Sequential(nn.PixelShuffle(2), nn.Conv2d(width // 4, 3, 3, padding=1))

    def forward(self, latents):  # (batch, frames, 8, height, width)
        self.cache[:], frames = [None] * len(self.cache), []
        for latent in latents.unbind(1):
            x = self.inward(latent)
            for block in self.blocks:
                x = block(x)
            frames.append(self.outward(x))
        return torch.stack(frames, 1)


def make_loss(micro_batch=4):
    model, latents = FrameDecoder(), torch.randn(micro_batch, 4, 8, 24, 24)
    video = torch.randn(micro_batch, 4, 3, 48, 48)
    return (lambda: F.l1_loss(model(latents), video)), model
