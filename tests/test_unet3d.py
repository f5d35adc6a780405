import pytest
import torch
from small_models import maker, volumes
from torch.nn import functional as F

from tutorial_lib.instruments.published.unet3d import UNet3d

small = maker(UNet3d)


@pytest.mark.parametrize("sides", [(8, 8, 8), (4, 8, 12)])
@pytest.mark.parametrize("levels", [1, 3])
def test_every_voxel_gets_logits_and_every_parameter_learns(levels, sides):
    model, x = small(in_channels=2, num_levels=levels), volumes(2, 2, sides)
    assert model(x).shape == (2, 3, *sides)
    model.loss(x, torch.ones(2, *sides, dtype=torch.int64)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    # a bias before a normalisation is taken out again: its gradient is 0 but for rounding
    learns = [name for name in gradients if not name.endswith(("conv_1.bias", "conv_2.bias"))]
    assert all(gradients[name].abs().sum() > 0 for name in learns)
    assert len(model.blocks) == 2 * levels - 1


def test_unlabelled_voxels_do_not_count():
    model, x = small(), volumes()
    labels = torch.randint(3, (2, 8, 8, 8), generator=torch.Generator().manual_seed(1))
    labels[:, 2:] = -100
    logits = model(x)[:, :, :2]
    expected = F.cross_entropy(logits.movedim(1, -1).reshape(-1, 3), labels[:, :2].flatten())
    torch.testing.assert_close(model.loss(x, labels), expected)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 1, 9, 8, 8), "are 9 x 8 x 8; each side .* multiple of 2.* Try 8 x 8 x 8"),
        ((1, 3, 8, 8, 8), r"\(batch, 1, depth, height, width\) is needed"),
        ((1, 8, 8, 8), r"\(batch, 1, depth, height, width\) is needed"),
    ],
)
def test_volumes_that_do_not_fit_are_refused(shape, says):
    with pytest.raises(ValueError, match=says):
        small()(torch.zeros(shape))
