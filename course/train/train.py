"""Train a GPT of GPT-2 medium's shape on text: the run of this course.

`python course/train/train.py` trains it. With `--twin` it trains a small model of the same kind,
in seconds, on a CPU. At the end of a core chapter you rewrite one function of it, a lever each.
"""

import sys

import torch
from torch.nn import functional as F
from torch.optim import AdamW

from tutorial_lib import data
from tutorial_lib.models.gpt import GPT, GPTConfig

BATCH = 12  # sequences per update
# GPT-2 medium's sizes. The text comes in bytes, so most of the vocabulary goes unused.
MEDIUM = GPTConfig(50257, seq_len=1024, num_layers=24, num_heads=16, d_model=1024)
TWIN = GPTConfig(256, seq_len=64, num_layers=3, num_heads=4, d_model=64)


def embedded(model, tokens):
    """The sum of token and position embeddings, (batch, sequence, width)."""
    positions = torch.arange(tokens.size(1), device=tokens.device)
    return model.dropout(model.token_embedding(tokens) + model.position_embedding(positions))


def hidden_of(model, tokens):
    """What the last norm gives for each token, (batch, sequence, width)."""
    x = embedded(model, tokens)
    for block in model.blocks:
        x = block(x)
    return model.norm(x)


def targets_of(tokens):
    """What each token is to guess, its next one, flat; -100 if there is none, or padding (0)."""
    targets = F.pad(tokens[:, 1:], (0, 1))  # the last has no next
    return targets.masked_fill(targets == 0, -100).flatten()


def summed(head, hidden, targets):
    """The cross-entropy of these tokens, summed; a target of -100 does not count."""
    return F.cross_entropy(head(hidden), targets, reduction="sum")


def loss_of(model, tokens):
    """The mean loss of guessing each token's next one, over the targets that count."""
    targets = targets_of(tokens)
    hidden = hidden_of(model, tokens).flatten(0, 1)
    return summed(model.head, hidden, targets) / (targets >= 0).sum()


def update(model, optimizer, tokens):
    """Do one update with these tokens, (batch, sequence); return the loss, a tensor."""
    optimizer.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    return loss.detach()


def make(config):
    """A model with seeded weights, and its optimizer."""
    torch.manual_seed(0)
    model = GPT(config)
    return model, AdamW(model.parameters(), lr=3e-4)


def main(config, updates, device):
    """Train, and print the loss of each update."""
    model, optimizer = make(config)
    model.to(device)
    batches = data.text_batches(BATCH, config.seq_len)
    for number in range(updates):
        loss = update(model, optimizer, next(batches).to(device))
        print(f"update {number + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True  # faster float32 matmuls on newer GPUs
    is_twin = "--twin" in sys.argv[1:]
    on = "cuda" if torch.cuda.is_available() and not is_twin else "cpu"
    main(TWIN if is_twin else MEDIUM, updates=8 if is_twin else 100, device=on)
