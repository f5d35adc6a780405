import pytest
import torch
from small_models import maker
from torch.nn import functional as F

from tutorial_lib import data
from tutorial_lib.models.unet import SelfAttention, UNet, embed_time, signal_left

small = maker(UNet)


@pytest.mark.parametrize("blocks_per_level", [1, 2])
@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 3)])
def test_noise_has_the_shape_of_the_images_and_every_parameter_learns(
    multipliers, blocks_per_level
):
    model = small(
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


def test_attention_is_the_textbook_formula():
    layer = SelfAttention(8, groups=4)
    x = data.image_batch(2, 8, 4)
    q, k, v = (m.flatten(2).transpose(1, 2) for m in layer.qkv(layer.norm(x)).chunk(3, dim=1))
    y = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v  # (B, HW, C)
    expected = x + layer.out(y.transpose(1, 2).reshape(2, 8, 4, 4))
    torch.testing.assert_close(layer(x), expected)


def test_time_and_signal_agree_with_diffusers():
    pytest.importorskip("diffusers")
    from diffusers import DDPMScheduler
    from diffusers.models.embeddings import get_timestep_embedding

    t = torch.tensor([0, 1, 500, 999])
    expected = get_timestep_embedding(t, 32, downscale_freq_shift=0)
    torch.testing.assert_close(embed_time(t, 32), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(signal_left(), DDPMScheduler().alphas_cumprod)


def test_the_loss_is_the_error_of_the_guessed_noise():
    model, t = small(), torch.tensor([0, 999])
    images, noise = data.image_batch(2, 1, 8), data.image_batch(2, 1, 8, seed=1)
    signal = signal_left()[t].view(2, 1, 1, 1)
    noisy = signal**0.5 * images + (1 - signal) ** 0.5 * noise
    torch.testing.assert_close(model.loss(images, t, noise), F.mse_loss(model(noisy, t), noise))


@pytest.mark.parametrize(
    ("shape", "times", "says"),
    [
        ((1, 1, 9, 8), (1,), "9 x 8; both must be multiples of 2.* Try 8 x 8"),
        ((1, 1, 1, 1), (1,), "Try 2 x 2"),
        ((1, 3, 8, 8), (1,), r"shape \(1, 3, 8, 8\); \(batch, 1, height, width\)"),
        ((1, 8, 8), (1,), r"shape \(1, 8, 8\)"),
        ((2, 1, 8, 8), (1,), r"times have shape \(1,\); one per image is needed, \(2,\)"),
    ],
)
def test_images_and_times_that_do_not_fit_are_refused(shape, times, says):
    with pytest.raises(ValueError, match=says):
        small()(torch.zeros(shape), torch.zeros(times, dtype=torch.int64))
