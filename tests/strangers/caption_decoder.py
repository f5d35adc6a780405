"""Captions: a GRU decoder with attention to an image, word by word with teacher forcing."""

import torch
from torch import nn
from torch.nn import functional as F


class Captioner(nn.Module):
    def __init__(self, vocabulary=400, width=96):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, width, 8, 8), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.embed, self.cell = nn.Embedding(vocabulary, width), nn.GRUCell(2 * width, width)
        self.keys = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.energy = nn.Linear(width, 1)
        self.out = nn.Linear(2 * width, vocabulary)

    def forward(self, images, words):
        seen = self.see(images).flatten(2).transpose(1, 2)
        keys, h, scores = self.keys(seen), seen.mean(1), []
        for word in self.embed(words).unbind(1):
            energy = self.energy(torch.tanh(keys + self.query(h).unsqueeze(1)))
            context = (energy.softmax(1) * seen).sum(1)
            h = self.cell(torch.cat([word, context], 1), h)
            scores.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(scores, 1)


def make_loss(micro_batch=4):
    model, images = Captioner(), torch.randn(micro_batch, 3, 128, 128)
    words = torch.randint(400, (micro_batch, 16))

    def loss():
        scores = model(images, words[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())

    return loss, model
