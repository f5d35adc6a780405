import math

import pytest
import torch
from small_models import maker, num_parameters
from torch import nn
from torch.nn import functional as F

from tutorial_lib import data
from tutorial_lib.models.resnet import ResNet, ResNetConfig

small = maker(ResNet)


@pytest.mark.parametrize(
    ("blocks", "layers", "published"), [(18, 164, 1_703_258), (111, 1001, 10_327_706)]
)
def test_published_depths_give_the_published_number_of_parameters(blocks, layers, published):
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


@pytest.mark.parametrize("depths", [(1,), (3, 1), (1, 2, 4)])
@pytest.mark.parametrize("base", [4, 8])
def test_the_number_of_parameters_is_that_of_the_formula(depths, base):
    total = 9 * base  # the stem, of one channel
    channels = base
    for stage, depth in enumerate(depths):
        c = base * 2**stage
        first = channels * c + 9 * c * c + c * 4 * c + channels * 4 * c + 2 * (channels + c + c)
        later = 4 * c * c + 9 * c * c + c * 4 * c + 2 * (4 * c + c + c)
        total += first + (depth - 1) * later
        channels = 4 * c
    total += 2 * channels + channels * 10 + 10
    assert num_parameters(small(stage_depths=depths, base_channels=base)) == total


def test_images_become_logits_and_every_parameter_learns():
    model, images = small(), data.image_batch(6, 1, 8)
    assert model(images).shape == (6, 10)
    model.loss(images, torch.arange(6)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_each_stage_after_the_first_halves_the_image_and_doubles_the_channels():
    model, shapes = small(stage_depths=(1, 2, 1)), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    model(data.image_batch(2, 1, 8))
    assert shapes == [(16, 8, 8), (32, 4, 4), (32, 4, 4), (64, 2, 2)]


def test_a_block_adds_to_what_it_gets():
    block = small(stage_depths=(2,)).blocks[1]
    nn.init.zeros_(block.conv_3.weight)
    x = data.image_batch(2, 16, 4)
    assert torch.equal(block(x), x)


def test_gradients_reach_the_first_of_a_thousand_layers():
    model = small(stage_depths=(333,), base_channels=2)
    model.loss(data.image_batch(4, 1, 4), torch.arange(4)).backward()
    first, last = (model.blocks[i].conv_2.weight.grad.norm() for i in (0, -1))
    assert 0.1 < first / last < 1e5  # without the sums it grows exponentially with depth


def test_the_loss_is_the_mean_over_images_and_starts_near_a_guess():
    model, (images, labels) = small(), data.digits()
    loss = model.loss(images[:64], labels[:64])
    torch.testing.assert_close(loss, F.cross_entropy(model(images[:64]), labels[:64]))
    assert abs(loss.item() - math.log(10)) < 0.5


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 8, 8)])
def test_images_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(batch, 1, height, width\) is needed"):
        small()(torch.zeros(shape))
