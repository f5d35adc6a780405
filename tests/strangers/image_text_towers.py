"""Contrastive: an image and a text tower, and a matrix of all pairs (as in CLIP)."""

import torch
from torch import nn
from torch.nn import functional as F


def tower(depth=3, width=64):
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class Pairs(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.patch, self.image = nn.Conv2d(3, width, 8, 8), tower()
        self.tokens, self.text = nn.Embedding(500, width), tower()
        self.image_out, self.text_out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.log_scale = nn.Parameter(torch.tensor(2.7))

    def forward(self, images, captions):
        patches = self.image(self.patch(images).flatten(2).transpose(1, 2))
        words = self.text(self.tokens(captions))
        a = F.normalize(self.image_out(patches.mean(1)), dim=-1)
        b = F.normalize(self.text_out(words[:, -1]), dim=-1)
        return self.log_scale.exp() * a @ b.T


def make_loss(micro_batch=4):
    model, images = Pairs(), torch.randn(micro_batch, 3, 96, 96)
    captions = torch.randint(500, (micro_batch, 32))

    def loss():
        scores = model(images, captions)
        place = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, place) + F.cross_entropy(scores.T, place)) / 2

    return loss, model
