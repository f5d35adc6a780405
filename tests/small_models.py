"""Small models of the kinds that the course builds and of published ones, each with a batch."""

from pathlib import Path

import torch
import yaml

from tutorial_lib.data import image_batch
from tutorial_lib.instruments import published
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
    """Return a kind's small configuration, with changes."""
    make, sizes = KINDS[kind]
    return make(**{**sizes, **changes})


def small(kind, **changes):
    """Build a small model; the same one each time."""
    torch.manual_seed(0)
    return kind(configured(kind, **changes))


def inputs(kind):
    """Return what a small model's forward takes, of 2 examples."""
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


def with_loss(kind, rows, length, **changes):
    """Return a function that builds a small model, and its loss on texts or images of a length."""

    def build():
        model = kind(configured(kind, **changes))
        images, noise = (image_batch(rows, 1, length, seed=seed) for seed in (0, 1))
        batch = (images, torch.arange(rows))
        if kind in (GPT, LSTM):
            batch = (token_batch(rows, length, model.config.vocab_size),)
        elif kind is UNet:
            batch = (images, torch.tensor([3, 800, 5, 7])[:rows], noise)
        elif kind is UNet3d:
            batch = (volumes(rows, sides=(length,) * 3), torch.ones(rows, *(length,) * 3).long())
        return model, lambda: model.loss(*batch)

    return build


# ---- published models ----


def _with_tuples(sizes):
    """Sizes as a configuration's own are: what YAML calls a list is a tuple there."""
    if isinstance(sizes, dict):
        return {name: _with_tuples(size) for name, size in sizes.items()}
    return tuple(sizes) if isinstance(sizes, list) else sizes


_SIZES = Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8")
_SIZES = _with_tuples(yaml.safe_load(_SIZES))
UNET_TINY = _SIZES["_unet"]
TINY = {name: sizes for name, sizes in _SIZES.items() if not name.startswith("_")}
# What a batch is asked for where the configuration does not say how large an image is.
ASKED = {"resnet50": {"size": 32}, "sd-vae": {"size": 16}, "unet3d": {"size": 8}}
ASKED |= {"sd35-medium": {"seq": 5}, "flux-dev": {"seq": 5, "size": 8}}


def published_with_loss(name, micro_batch=2, *, asked=None, **changes):
    """Return a function that builds a published model, small, and its loss on a batch."""
    sizes = {**TINY[name], **changes}

    def build():
        model = published.build(name, device="cpu", **sizes)
        batch = published.batch(name, micro_batch, **(asked or ASKED.get(name, {})), **sizes)
        return model, lambda: published.loss(name, model, batch)

    return build


def publish_tiny(monkeypatch, seq, **sizes):
    """Add to the catalogue a GPT-2 that is small enough for a test; gives its name."""
    config = {**published.find("gpt2").config, **sizes}
    cls = "transformers.GPT2LMHeadModel"
    model = published.Published("tiny", "causal-lm", 0, cls, "made up", config, seq=seq)
    monkeypatch.setitem(published.PUBLISHED, "tiny", model)
    return "tiny"
