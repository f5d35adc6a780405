"""Translation: an encoder and a decoder on padded sentences, a mean over all tokens that count."""

import torch
from torch import nn
from torch.nn import functional as F


class Translator(nn.Module):
    def __init__(self, vocabulary=300, width=64, depth=3):
        super().__init__()
        kind = {"dim_feedforward": 256, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.place = nn.Parameter(torch.randn(64, width) / 10)
        encoders = [nn.TransformerEncoderLayer(width, 4, **kind) for _ in range(depth)]
        self.encoders = nn.ModuleList(encoders)
        decoders = [nn.TransformerDecoderLayer(width, 4, **kind) for _ in range(depth)]
        self.decoders = nn.ModuleList(decoders)

    def forward(self, source, target):
        hidden, length = source == 0, target.shape[1]
        x = self.embed(source) + self.place[: source.shape[1]]
        for layer in self.encoders:
            x = layer(x, src_key_padding_mask=hidden)
        y, ahead = self.embed(target) + self.place[:length], torch.ones(length, length).triu(1) > 0
        for layer in self.decoders:
            y = layer(y, x, tgt_mask=ahead, memory_key_padding_mask=hidden)
        return self.head(y)


def make_loss(micro_batch=4):
    model = Translator()
    source, target = torch.randint(1, 300, (2, micro_batch, 40)).unbind(0)
    for row in range(micro_batch):
        source[row, 20 + row % 5 :], target[row, 15 + 3 * (row % 7) :] = 0, 0

    def loss():
        scores = model(source, target[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)

    return loss, model
