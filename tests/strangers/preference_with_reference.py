"""Reinforcement learning from preferences: DPO, with a frozen copy of the policy as reference."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class Policy(nn.Module):
    def __init__(self, vocabulary=256, width=64, depth=4):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 256, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        length, device = tokens.shape[1], tokens.device
        x = self.embed(tokens) + self.place(torch.arange(length, device=device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def log_probability(model, tokens):
    scores = model(tokens[:, :-1]).log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(1)


def make_loss(micro_batch=4):
    policy = Policy()
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    chosen, rejected = torch.randint(256, (2, micro_batch, 48)).unbind(0)

    def loss():
        better, worse = log_probability(policy, chosen), log_probability(policy, rejected)
        with torch.no_grad():
            base = log_probability(reference, chosen) - log_probability(reference, rejected)
        return -F.logsigmoid(0.1 * (better - worse - base)).mean()

    return loss, policy
