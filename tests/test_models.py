"""What holds for every kind of model; what a kind has of its own stands in its file."""

import math
from itertools import islice, repeat

import pytest
import torch
from small_models import KINDS, configured, inputs, losses, small, token_batch, volumes
from torch.nn import functional as F

from tutorial_lib import data
from tutorial_lib.instruments.published.unet3d import UNet3d
from tutorial_lib.models.gpt import GPT
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.resnet import ResNet
from tutorial_lib.models.unet import UNet
from tutorial_lib.models.vit import ViT

EAGER = {"attention": "eager"}
DIGITS = [part[:64] for part in data.digits()]


def logits(model, *batch):
    out = model(*batch)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize(
    ("kind", "changes"), [*((kind, {}) for kind in KINDS), (GPT, EAGER), (ViT, EAGER)]
)
def test_dropout_acts_in_training_only(kind, changes):
    model, batch = small(kind, dropout=0.5, **changes), inputs(kind)
    assert not torch.equal(logits(model, *batch), logits(model, *batch))
    model.eval()
    assert torch.equal(logits(model, *batch), logits(model, *batch))


@pytest.mark.parametrize("kind", [GPT, ViT])
def test_both_attentions_are_the_same_function(kind):
    batch = inputs(kind)
    torch.testing.assert_close(small(kind)(*batch), small(kind, **EAGER)(*batch))


@pytest.mark.parametrize(("kind", "off"), [(GPT, 0.2), (LSTM, 0.2), (ViT, 0.1), (ResNet, 0.5)])
def test_the_loss_is_a_mean_and_starts_as_a_guess(kind, off):
    model, is_text = small(kind), kind in (GPT, LSTM)
    batch = (token_batch(3, 16, 50),) if is_text else DIGITS
    guesses, labels = logits(model, batch[0]), batch[-1]
    if is_text:
        guesses, labels = guesses[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    loss = model.loss(*batch)
    torch.testing.assert_close(loss, F.cross_entropy(guesses, labels))
    assert abs(loss.item() - math.log(guesses.shape[-1])) < off


def texts(length, num):
    return ((batch,) for batch in islice(data.text_batches(8, length), num))


def noisy_digits():
    generator = torch.Generator().manual_seed(0)
    for images in data.digits()[0].split(16)[:40]:
        times = torch.randint(1000, (16,), generator=generator)
        yield images, times, torch.randn(images.shape, generator=generator)


def balls():
    grid = torch.stack(torch.meshgrid(*3 * [torch.arange(8.0)], indexing="ij"))
    labels = ((grid - 3.5).square().sum(0) < 9).long().expand(2, 8, 8, 8)
    return repeat((labels.unsqueeze(1) + 0.5 * volumes(), labels), 15)


TEXT = {"vocab_size": 256, "d_model": 64}


@pytest.mark.parametrize(
    ("kind", "changes", "batches", "rate", "last", "share"),
    [
        (GPT, {**TEXT, "seq_len": 32}, lambda: texts(32, 40), 3e-3, 1, 0.7),
        (LSTM, {**TEXT, "num_layers": 1, "chunk_len": 16}, lambda: texts(33, 40), 1e-2, 1, 0.7),
        (ViT, {"patch_size": 4}, lambda: repeat(DIGITS, 40), 3e-3, 1, 0.5),
        (ResNet, {}, lambda: repeat(DIGITS, 20), 1e-2, 1, 0.5),
        (UNet, {}, noisy_digits, 3e-3, 10, 0.7),
        (UNet3d, {"num_classes": 2}, balls, 1e-2, 1, 0.5),
    ],
)
def test_it_learns(kind, changes, batches, rate, last, share):
    found = losses(small(kind, **changes), batches(), rate)
    assert sum(found[-last:]) < share * sum(found[:last])
    if kind is UNet3d:
        assert abs(found[0] - math.log(2)) < 0.3  # it starts near a guess


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        (GPT, {"d_model": 33}, "d_model .*multiple of num_heads .*Try d_model=34"),
        (GPT, {"num_layers": 0}, r"num_layers \(=0\)"),
        (GPT, {"dropout": 1.5}, r"dropout \(=1.5\)"),
        (GPT, {"attention": "flash"}, "attention .*'flash'.* must be one of"),
        (ViT, {"patch_size": 3}, r"image_size \(=8\) .*of patch_size \(=3\). Try image_size=9"),
        (ViT, {"num_classes": 0}, r"num_classes \(=0\)"),
        (ViT, {"d_model": 33}, "d_model .*multiple of num_heads .*Try d_model=34"),
        (ViT, {"dropout": 1.5}, r"dropout \(=1.5\)"),
        (ViT, {"attention": "flash"}, "attention .*'flash'.* must be one of"),
        (ResNet, {"stage_depths": ()}, r"stage_depths \(=\(\)\)"),
        (ResNet, {"stage_depths": (2, 0)}, r"stage_depths \(=\(2, 0\)\)"),
        (ResNet, {"base_channels": 0}, r"base_channels \(=0\)"),
        (ResNet, {"dropout": 1.0}, r"dropout \(=1.0\)"),
        (LSTM, {"chunk_len": 0}, r"chunk_len \(=0\)"),
        (LSTM, {"num_layers": 0}, r"num_layers \(=0\)"),
        (LSTM, {"dropout": -0.5}, r"dropout \(=-0.5\)"),
        (UNet, {"groups": 3}, r"multiple of groups \(=3\). Try groups=1"),
        (UNet, {"attention_levels": (2,)}, "attention_levels .* among the levels 0 to 1"),
        (UNet, {"time_dim": 15}, r"time_dim \(=15\) must be even"),
        (UNet, {"channel_multipliers": ()}, "channel_multipliers"),
        (UNet, {"dropout": 1.0}, "dropout"),
        (UNet, {"blocks_per_level": 0}, r"blocks_per_level \(=0\)"),
        (UNet3d, {"num_levels": 0}, r"num_levels \(=0\)"),
        (UNet3d, {"base_channels": 0}, r"base_channels \(=0\)"),
        (UNet3d, {"dropout": 1.0}, r"dropout \(=1.0\)"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(kind, changes, says):
    with pytest.raises(ValueError, match=says):
        configured(kind, **changes)


@pytest.mark.parametrize("kind", [UNet, UNet3d])
def test_blocks_are_listed_in_the_order_in_which_they_run(kind):
    model, ran = small(kind), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, *_: ran.append(module))
    model(*inputs(kind))
    assert ran == model.blocks
