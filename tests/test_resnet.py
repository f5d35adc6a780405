import pytest
import torch
from small_models import maker, num_parameters
from torch import nn

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


def test_each_stage_after_the_first_halves_the_image_and_doubles_the_channels():
    model, shapes = small(stage_depths=(1, 2, 1)), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    model(data.image_batch(2, 1, 8))
    assert shapes == [(16, 8, 8), (32, 4, 4), (32, 4, 4), (64, 2, 2)]


def test_gradients_reach_the_first_of_a_thousand_layers():
    model = small(stage_depths=(333,), base_channels=2)
    model.loss(data.image_batch(4, 1, 4), torch.arange(4)).backward()
    first, last = (model.blocks[i].conv_2.weight.grad.norm() for i in (0, -1))
    assert 0.1 < first / last < 1e5  # without the sums it grows exponentially with depth


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 8, 8)])
def test_images_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(batch, 1, height, width\) is needed"):
        small()(torch.zeros(shape))
