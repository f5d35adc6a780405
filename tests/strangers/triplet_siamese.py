"""Contrastive: a siamese network that is called on anchor, positive and negative."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.act, self.fc = nn.PReLU(), nn.Linear(2 * width, 64)

    def forward(self, x):
        x = self.act(self.conv2(self.act(self.conv1(x))))
        x = self.act(self.conv4(self.act(self.conv3(x))))
        return self.fc(x.mean((2, 3)))


def make_loss(micro_batch=4):
    model, criterion = Embedder(), nn.TripletMarginLoss(margin=0.5)
    anchor, positive, negative = (torch.randn(micro_batch, 1, 40, 40) for _ in range(3))
    return (lambda: criterion(model(anchor), model(positive), model(negative))), model
