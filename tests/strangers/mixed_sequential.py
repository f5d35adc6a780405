"""Keyword spotting: everything in one `self.net`, a sequence of unlike layers."""

import torch
from torch import nn


class Spotter(nn.Module):
    def __init__(self, classes=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, (10, 4), padding=(5, 2)),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.Dropout(0.2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((4, 4)),
            nn.Flatten(),
            nn.Linear(1024, 128),
            nn.Hardswish(),
            nn.Linear(128, classes),
        )

    def forward(self, x):
        return self.net(x)


def make_loss(micro_batch=4):
    model, criterion = Spotter(), nn.CrossEntropyLoss()
    spectra, words = torch.randn(micro_batch, 1, 98, 40), torch.randint(12, (micro_batch,))

    def loss():
        return criterion(model(spectra), words)

    return loss, model
