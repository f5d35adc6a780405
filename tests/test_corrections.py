"""Fake results hold as many bytes as real ones."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from tutorial_lib.instruments.predicting.corrections import RealSizes

BF16 = torch.bfloat16


def both(run):
    """Bytes of the storages that a real and a corrected fake run return, and without correction."""
    real = run()
    with FakeTensorMode():
        plain = run()
        with RealSizes("cpu"):
            corrected = run()
    return tuple([x.untyped_storage().nbytes() for x in y] for y in (real, corrected, plain))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.binary_cross_entropy]
)
def test_a_loss_keeps_the_storage_of_all_losses(loss, reduction):
    shape = (3, 5)
    run = lambda: [loss(torch.full(shape, 0.5), torch.ones(shape), reduction=reduction)]  # noqa: E731
    real, corrected, plain = both(run)
    assert real == corrected == [60]
    assert (plain == real) == (reduction == "none")


@pytest.mark.parametrize("weight_type", [torch.float32, BF16, None])
@pytest.mark.parametrize("norm", ["layer", "group", "batch"])
def test_statistics_have_the_real_type(norm, weight_type):
    def run():
        x = torch.ones(4, 8, dtype=BF16)
        weight = bias = None if weight_type is None else torch.ones(8, dtype=weight_type)
        if norm == "layer":
            return torch.native_layer_norm(x, (8,), weight, bias, 1e-5)
        if norm == "batch":
            return torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
        return torch.native_group_norm(x, weight, bias, 4, 8, 1, 2, 1e-5)

    real, corrected, plain = both(run)
    assert corrected == real
    assert (plain == real) == (weight_type != torch.float32)


def transposed_norm():
    return F.batch_norm(torch.ones(4, 6, 8).transpose(1, 2), None, None, training=True)


def transposed_gradient():
    x, weight = torch.ones(4, 6, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    wanted = torch.ones(4, 8, 6).transpose(1, 2)
    return torch.autograd.grad(F.layer_norm(x, (8,), weight), x, wanted)[0]


def channels_last_norm():
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return F.batch_norm(x, None, None, training=True)


def view_of_one_image():
    return torch.ones(1, 16, 6).transpose(1, 2).view(1, 6, 4, 4)


@pytest.mark.parametrize(
    "run", [view_of_one_image, transposed_norm, transposed_gradient, channels_last_norm]
)
def test_rows_lie_as_kernels_lay_them(run):
    real = run().stride()
    with FakeTensorMode():
        plain = run().stride()
        with RealSizes("cpu"):
            assert run().stride() == real
    assert (plain == real) == (run is channels_last_norm)


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_an_image_keeps_the_storage_of_its_columns(kernel, stride, batch):
    def run():
        side = (9 - kernel) // stride + 1
        columns = torch.ones(*batch, 5 * kernel**2, side**2)
        image = torch.ones(*batch, 5, 9, 9, requires_grad=True)
        spread = F.unfold(image, kernel, stride=stride)
        (grad,) = torch.autograd.grad(spread, image, torch.ones_like(spread))
        return [F.fold(columns, (9, 9), kernel, stride=stride), grad]

    real, corrected, plain = both(run)
    assert corrected == real
    assert (plain == real) == (kernel == 1 or stride == 3)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("shape", [(2, 256, 16, 16), (1, 256, 32, 32), (2, 256, 512)])
@pytest.mark.parametrize("asked", [(True, True, True), (True, False, False), (False, True, True)])
def test_a_group_norm_s_gradients_are_those_of_its_formula(dtype, shape, asked):
    count, channels = shape[:2]
    with FakeTensorMode():
        x, statistics = torch.empty(shape, dtype=dtype), torch.empty(count, 8, dtype=dtype)
        given = x, x, statistics, statistics, x.new_empty(channels)
        sizes = count, channels, x.numel() // count // channels, 8
        backward = torch.ops.aten.native_group_norm_backward.default
        plain = backward(*given, *sizes, [*asked])
        with RealSizes("cpu"):
            corrected = backward(*given, *sizes, [*asked])
    kinds = [
        [x is not None and (x.shape, x.dtype, x.stride()) for x in found]
        for found in (plain, corrected)
    ]
    assert kinds[0] == kinds[1]
    held = [
        [x.untyped_storage().nbytes() for x in found if x is not None]
        for found in (plain, corrected)
    ]
    assert held[0] == held[1]
