"""A small diffusion U-Net, an update's draws, and a plain loop over it."""

import torch
from diffusers import UNet2DModel
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.checks.given import Case

SIDE = 8
Drawn = tuple[Tensor, Tensor, Tensor]


def make_unet(case: Case) -> nn.Module:
    """Build the U-Net of a case from its seed, where random numbers then go on."""
    torch.manual_seed(case["seed"])
    levels, channels = case.get("levels", 2), case.get("channels", 1)
    unet: nn.Module = UNet2DModel(
        sample_size=SIDE,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(8, 16, 16, 16)[:levels],
        layers_per_block=case.get("layers", 1),
        norm_num_groups=4,
        dropout=case.get("dropout", 0.0),
        add_attention=case.get("attention", False),
        down_block_types=("DownBlock2D",) * levels,
        up_block_types=("UpBlock2D",) * levels,
    )
    if case.get("dtype") == "float64":
        nn.Module.double(unet)  # diffusers' own `to` warns
    return unet


def make_drawn(case: Case, num: int) -> Drawn:
    """Make noisy images, times and noise; the global random state stays."""
    generator = torch.Generator().manual_seed(case["seed"])
    dtype = getattr(torch, case.get("dtype", "float32"))
    shape = (num, case.get("channels", 1), SIDE, SIDE)
    noisy, noise = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return noisy, torch.randint(100, (num,), generator=generator), noise


def loss_of(unet: nn.Module, noisy: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return the mean squared error of the guessed noise."""
    return F.mse_loss(unet(noisy, times).sample, noise)


def backward(unet: nn.Module, drawn: Drawn, micro_batch: int) -> float:
    """Add the gradient of the mean loss to `.grad`, so many images at a time."""
    total, num = 0.0, len(drawn[0])
    for part in zip(*(torch.split(tensor, micro_batch) for tensor in drawn), strict=True):
        loss = loss_of(unet, *part) * (len(part[0]) / num)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total
