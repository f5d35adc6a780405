"""Speech: bidirectional LSTMs over packed utterances, phonemes as targets."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self, width=96, depth=3):
        super().__init__()
        sizes = [40] + [2 * width] * (depth - 1)
        self.layers = nn.ModuleList(
            nn.LSTM(size, width, batch_first=True, bidirectional=True) for size in sizes
        )
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(2 * width, 48)

    def forward(self, features, lengths):
        x = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
        for layer in self.layers:
            x, _ = layer(x)
        padded, _ = pad_packed_sequence(x, batch_first=True, total_length=features.shape[1])
        return self.head(self.dropout(padded))


def make_loss(micro_batch=4):
    model, features = Tagger(), torch.randn(micro_batch, 120, 40)
    lengths = 120 - 10 * (torch.arange(micro_batch) % 6)
    phonemes = torch.randint(48, (micro_batch, 120))
    phonemes[torch.arange(120) >= lengths.unsqueeze(1)] = -100

    def loss():
        scores = model(features, lengths).flatten(0, 1)
        return F.cross_entropy(scores, phonemes.flatten(), ignore_index=-100)

    return loss, model
