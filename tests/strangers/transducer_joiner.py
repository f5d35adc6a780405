"""Speech: a transducer, whose joiner makes one distribution for each frame and label."""

import torch
from torch import nn
from torch.nn import functional as F


class Transducer(nn.Module):
    def __init__(self, width=64, vocabulary=128):
        super().__init__()
        self.encoder = nn.LSTM(40, width, num_layers=2, batch_first=True)
        self.embed = nn.Embedding(vocabulary, width)
        self.predictor = nn.LSTM(width, width, batch_first=True)
        self.joiner = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, vocabulary)
        )

    def forward(self, frames, labels):
        heard, _ = self.encoder(frames)
        said, _ = self.predictor(F.pad(self.embed(labels), (0, 0, 1, 0)))
        return self.joiner(heard.unsqueeze(2) + said.unsqueeze(1)).log_softmax(-1)


def lattice_loss(scores, labels):
    """Negative log-probability of all alignments, (batch, frames, labels + 1, vocabulary)."""
    blank = scores[..., 0]
    index = labels[:, None, :, None].expand(-1, scores.shape[1], -1, -1)
    emit = scores[:, :, :-1].gather(-1, index).squeeze(-1)
    row = F.pad(emit[:, 0].cumsum(1), (1, 0))
    for frame in range(1, scores.shape[1]):
        stayed, cells = row + blank[:, frame - 1], []
        for place in range(stayed.shape[1]):
            here = stayed[:, place]
            if place:
                here = torch.logaddexp(here, cells[-1] + emit[:, frame, place - 1])
            cells.append(here)
        row = torch.stack(cells, 1)
    return -(row[:, -1] + blank[:, -1, -1]).mean()


def make_loss(micro_batch=4):
    model, frames = Transducer(), torch.randn(micro_batch, 48, 40)
    labels = torch.randint(1, 128, (micro_batch, 10))
    return (lambda: lattice_loss(model(frames, labels), labels)), model
