"""Speech: a conformer encoder under CTC, with dropout and utterances of several lengths."""

import torch
from torch import nn
from torch.nn import functional as F


def feed_forward(width, p):
    up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    return nn.Sequential(up, nn.SiLU(), nn.Dropout(p), down)


class Conformer(nn.Module):
    def __init__(self, width, p=0.1):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.ff1, self.ff2 = feed_forward(width, p), feed_forward(width, p)
        self.attention = nn.MultiheadAttention(width, 4, dropout=p, batch_first=True)
        self.inward = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)

    def forward(self, x, padding):
        x = x + 0.5 * self.ff1(self.norms[0](x))
        y = self.norms[1](x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = F.glu(self.inward(self.norms[2](x).transpose(1, 2)), 1)
        x = x + F.silu(self.depthwise(y)).transpose(1, 2)
        return x + 0.5 * self.ff2(self.norms[3](x))


class Recogniser(nn.Module):
    def __init__(self, width=64, depth=4, vocabulary=32):
        super().__init__()
        self.subsample = nn.Conv1d(40, width, 4, stride=4)
        self.layers = nn.ModuleList(Conformer(width) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, features, lengths):
        x = self.subsample(features.transpose(1, 2)).transpose(1, 2)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1) // 4
        for layer in self.layers:
            x = layer(x, padding)
        return self.head(x).log_softmax(-1)


def make_loss(micro_batch=4):
    model, features = Recogniser(), torch.randn(micro_batch, 256, 40)
    labels = torch.randint(1, 32, (micro_batch, 12))
    lengths, spoken = torch.arange(micro_batch) % 4 * 16 + 208, torch.arange(micro_batch) % 5 + 8

    def loss():
        scores = model(features, lengths).transpose(0, 1)
        return F.ctc_loss(scores, labels, lengths // 4, spoken, zero_infinity=True)

    return loss, model
