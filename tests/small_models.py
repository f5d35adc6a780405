"""Small models of the kinds that the course builds, and a batch for each."""

from functools import partial

import torch

from tutorial_lib.data import image_batch
from tutorial_lib.instruments.published.unet3d import UNet3d, UNet3dConfig
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig

_GPT = {"vocab_size": 50, "seq_len": 16, "num_layers": 2, "num_heads": 2, "d_model": 32}
_UNET = {"base_channels": 8, "channel_multipliers": (1, 2), "attention_levels": (1,), "groups": 4}
KINDS = {
    GPT: (GPTConfig, _GPT),
    ViT: (ViTConfig, {"num_layers": 2, "num_heads": 2, "d_model": 32}),
    ResNet: (ResNetConfig, {"in_channels": 1, "stage_depths": (1, 2), "base_channels": 4}),
    LSTM: (LSTMConfig, {"vocab_size": 50, "num_layers": 2, "d_model": 16, "chunk_len": 4}),
    UNet: (UNetConfig, {**_UNET, "time_dim": 16}),
    UNet3d: (UNet3dConfig, {"base_channels": 4, "num_levels": 2}),
}


def configured(kind, **changes):
    """Give a kind's small configuration, with changes."""
    make, sizes = KINDS[kind]
    return make(**{**sizes, **changes})


def small(kind, **changes):
    """Build a small model; the same one each time."""
    torch.manual_seed(0)
    return kind(configured(kind, **changes))


def inputs(kind):
    """Give what a small model's forward takes, of 2 examples."""
    if kind in (GPT, LSTM):
        return (token_batch(2, 8, 50),)
    if kind is UNet3d:
        return (volumes(),)
    times = (torch.tensor([5, 900]),) if kind is UNet else ()
    return (image_batch(2, 1, 8), *times)


def token_batch(batch, seq, vocab):
    """Draw tokens; the same ones each time."""
    return torch.randint(vocab, (batch, seq), generator=torch.Generator().manual_seed(0))


def volumes(batch=2, channels=1, sides=(8, 8, 8)):
    """Draw volumes of noise."""
    return torch.randn(batch, channels, *sides, generator=torch.Generator().manual_seed(0))


def num_parameters(model):
    """Count a model's parameters."""
    return sum(p.numel() for p in model.parameters())


def num_parameters_of(kind, *sizes, **named):
    """Count those of a full-size model, without allocating it."""
    with torch.device("meta"):
        return num_parameters(kind(KINDS[kind][0](*sizes, **named)))


def losses(model, batches, rate):
    """Train by AdamW, an update for each batch; gives the losses."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=rate), []
    for batch in batches:
        loss = model.loss(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def maker(kind):
    """Give `small` of one kind."""
    return partial(small, kind)
