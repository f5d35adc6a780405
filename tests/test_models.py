"""What holds for every kind of model, and what a kind has of its own."""

import math
from itertools import islice, repeat

import pytest
import torch
from small_models import (
    KINDS,
    configured,
    inputs,
    losses,
    num_parameters,
    num_parameters_of,
    small,
    token_batch,
    volumes,
)
from torch import nn
from torch.nn import functional as F

from tutorial_lib import data
from tutorial_lib.instruments.published.unet3d import UNet3d
from tutorial_lib.models.gpt import GPT
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import SelfAttention, UNet, embed_time, signal_left
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
        (GPT, {"dropout": 1.5}, r"dropout \(=1.5\)"),
        (GPT, {"attention": "flash"}, "attention .*'flash'.* must be one of"),
        (ViT, {"num_classes": 0}, r"num_classes \(=0\)"),
        (ResNet, {"stage_depths": ()}, r"stage_depths \(=\(\)\)"),
        (ResNet, {"stage_depths": (2, 0)}, r"stage_depths \(=\(2, 0\)\)"),
        (LSTM, {"chunk_len": 0}, r"chunk_len \(=0\)"),
        (UNet, {"attention_levels": (2,)}, "attention_levels .* among the levels 0 to 1"),
        (UNet, {"time_dim": 15}, r"time_dim \(=15\) must be even"),
        (UNet, {"channel_multipliers": ()}, "channel_multipliers"),
        (UNet3d, {"num_levels": 0}, r"num_levels \(=0\)"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(kind, changes, says):
    with pytest.raises(ValueError, match=says):
        configured(kind, **changes)


# ---- GPT ----


def test_gpt_gpt2_sizes_give_gpt2s_number_of_parameters():
    sizes = {"num_layers": 12, "num_heads": 12, "d_model": 768}
    assert num_parameters_of(GPT, 50257, 1024, **sizes) == 124_439_808


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_gpt_no_token_sees_the_future(attention):
    model = small(GPT, attention=attention)
    tokens = token_batch(1, 16, 50)
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 50
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:9].max() == 0
    assert difference[9:].min() > 0


def test_gpt_sequences_too_long_and_too_short_are_refused():
    model = small(GPT)
    with pytest.raises(ValueError, match=r"17 tokens.*seq_len \(=16\)"):
        model(token_batch(1, 17, 50))
    with pytest.raises(ValueError, match="at least 2 tokens, but has 1"):
        model.loss(token_batch(1, 1, 50))


# ---- ViT ----


@pytest.mark.parametrize(
    ("layers", "heads", "width", "published"),
    [(12, 12, 768, 86_567_656), (24, 16, 1024, 304_326_632)],
)
def test_vit_published_sizes_give_the_published_parameters(layers, heads, width, published):
    assert num_parameters_of(ViT, 224, 16, 3, 1000, layers, heads, width) == published


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_vit_every_token_sees_every_other(attention):
    block = small(ViT, attention=attention).blocks[0]
    x = torch.randn(1, 17, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    block(x)[0, 0].sum().backward()  # a causal first token would see itself alone
    assert x.grad.abs().amax(dim=-1).min() > 0


def test_vit_patches_are_cut_row_by_row():
    model = small(ViT, patch_size=4).eval()
    images = data.image_batch(1, 1, 8)
    weight, bias = model.patch_embedding.weight.flatten(1), model.patch_embedding.bias
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    patches = [images[0, :, y : y + 4, x : x + 4].flatten() for y, x in corners]
    seen = []
    model.dropout.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    model(images)
    tokens = torch.stack([model.class_token, *(weight @ patch + bias for patch in patches)])
    torch.testing.assert_close(seen[0], tokens + model.position_embedding.weight)


# ---- ResNet ----


@pytest.mark.parametrize(
    ("blocks", "layers", "published"), [(18, 164, 1_703_258), (111, 1001, 10_327_706)]
)
def test_resnet_published_depths_give_the_published_number_of_parameters(blocks, layers, published):
    config = ResNetConfig(stage_depths=(blocks,) * 3)
    with torch.device("meta"):
        model = ResNet(config)
    assert num_parameters(model) == published
    assert (
        config.num_layers
        == layers
        == sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules())
        - len(config.stage_depths)
    )  # a shortcut per stage, which papers do not count


# ---- LSTM ----


@pytest.mark.parametrize("chunk_len", [1, 4, 5, 11, 100])
def test_lstm_it_is_pytorchs_lstm_however_time_is_cut(chunk_len):
    model, tokens = small(LSTM, chunk_len=chunk_len), token_batch(3, 11, 50)
    oracle = nn.LSTM(16, 16, num_layers=2, batch_first=True)
    with torch.no_grad():
        for index, layer in enumerate(model.chunk.layers):
            getattr(oracle, f"weight_ih_l{index}").copy_(layer.from_input.weight)
            getattr(oracle, f"bias_ih_l{index}").copy_(layer.from_input.bias)
            getattr(oracle, f"weight_hh_l{index}").copy_(layer.from_hidden.weight)
            getattr(oracle, f"bias_hh_l{index}").zero_()
    state = tuple(torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    logits, (hidden, cell) = model(tokens, state)
    output, (expected_hidden, expected_cell) = oracle(model.embedding(tokens), state)
    torch.testing.assert_close(logits, model.head(output))
    torch.testing.assert_close(hidden, expected_hidden)
    torch.testing.assert_close(cell, expected_cell)


def test_lstm_no_token_sees_the_future_and_gradients_cross_chunks():
    model, tokens = small(LSTM), token_batch(1, 16, 50)
    seen = []
    model.embedding.register_forward_hook(lambda module, args, out: seen.append(out))
    logits, _ = model(tokens)
    seen[0].retain_grad()
    logits[0, 9].sum().backward()
    reached = seen[0].grad[0].abs().amax(dim=-1)
    assert reached[:10].min() > 0  # chunks are of 4
    assert reached[10:].max() == 0


def test_lstm_texts_too_short_and_states_of_another_batch_are_refused():
    model = small(LSTM)
    with pytest.raises(ValueError, match="at least 2 tokens, but has 1"):
        model.loss(token_batch(1, 1, 50))
    with pytest.raises(ValueError, match="at least 1 token, but has 0"):
        model(torch.zeros(1, 0, dtype=torch.int64))
    _, state = model(token_batch(2, 4, 50))
    with pytest.raises(ValueError, match=r"\(2, 2, 16\); twice \(2, 3, 16\) is needed"):
        model(token_batch(3, 4, 50), (state[1], state[0][:, :2]))


# ---- UNet ----


@pytest.mark.parametrize("blocks_per_level", [1, 2])
@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 3)])
def test_unet_noise_has_the_shape_of_the_images_and_every_parameter_learns(
    multipliers, blocks_per_level
):
    model = small(
        UNet,
        in_channels=3,
        channel_multipliers=multipliers,
        attention_levels=(len(multipliers) - 1,),
        blocks_per_level=blocks_per_level,
    )
    images = data.image_batch(2, 3, 8)
    t = torch.tensor([5, 900])
    assert model(images, t).shape == images.shape
    model.loss(images, t, data.image_batch(2, 3, 8, seed=1)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert len(model.blocks) == 2 * blocks_per_level * len(multipliers) + 1


def test_unet_attention_is_the_textbook_formula():
    layer = SelfAttention(8, groups=4)
    x = data.image_batch(2, 8, 4)
    q, k, v = (m.flatten(2).transpose(1, 2) for m in layer.qkv(layer.norm(x)).chunk(3, dim=1))
    y = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v  # (B, HW, C)
    expected = x + layer.out(y.transpose(1, 2).reshape(2, 8, 4, 4))
    torch.testing.assert_close(layer(x), expected)


def test_unet_time_and_signal_agree_with_diffusers():
    pytest.importorskip("diffusers")
    from diffusers import DDPMScheduler
    from diffusers.models.embeddings import get_timestep_embedding

    t = torch.tensor([0, 1, 500, 999])
    expected = get_timestep_embedding(t, 32, downscale_freq_shift=0)
    torch.testing.assert_close(embed_time(t, 32), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(signal_left(), DDPMScheduler().alphas_cumprod)


# ---- UNet3d ----


@pytest.mark.parametrize("sides", [(8, 8, 8), (4, 8, 12)])
@pytest.mark.parametrize("levels", [1, 3])
def test_unet3d_every_voxel_gets_logits_and_every_parameter_learns(levels, sides):
    model, x = small(UNet3d, in_channels=2, num_levels=levels), volumes(2, 2, sides)
    assert model(x).shape == (2, 3, *sides)
    model.loss(x, torch.ones(2, *sides, dtype=torch.int64)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    # a bias before a normalisation is taken out again: its gradient is 0 but for rounding
    learns = [name for name in gradients if not name.endswith(("conv_1.bias", "conv_2.bias"))]
    assert all(gradients[name].abs().sum() > 0 for name in learns)
    assert len(model.blocks) == 2 * levels - 1


def test_unet3d_unlabelled_voxels_do_not_count():
    model, x = small(UNet3d), volumes()
    labels = torch.randint(3, (2, 8, 8, 8), generator=torch.Generator().manual_seed(1))
    labels[:, 2:] = -100
    logits = model(x)[:, :, :2]
    expected = F.cross_entropy(logits.movedim(1, -1).reshape(-1, 3), labels[:, :2].flatten())
    torch.testing.assert_close(model.loss(x, labels), expected)


@pytest.mark.parametrize("channels", [(3,), ()])
@pytest.mark.parametrize(("kind", "sides"), [(ResNet, 2), (UNet, 2), (UNet3d, 3)])
def test_images_that_do_not_fit_are_refused(kind, sides, channels):
    more = (torch.zeros(1, dtype=torch.int64),) if kind is UNet else ()
    names = "height, width" if sides == 2 else "depth, height, width"
    with pytest.raises(ValueError, match=rf"\(batch, 1, {names}\) is needed"):
        small(kind)(torch.zeros(1, *channels, *[8] * sides), *more)


def test_unet_a_time_for_each_image_is_needed():
    said = r"times have shape \(1,\); one per image is needed, \(2,\)"
    with pytest.raises(ValueError, match=said):
        small(UNet)(torch.zeros(2, 1, 8, 8), torch.zeros(1, dtype=torch.int64))
