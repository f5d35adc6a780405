"""The check of 9.2: cases C and D, where running twice leaves a trace."""

from __future__ import annotations

import torch

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab09.checkpointed import Made, patient
from tutorial_lib.checks.lab09.patients import ward
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig


def _unet(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    sizes = {"base_channels": 8, "channel_multipliers": (1, 2), "attention_levels": (1,)}
    unet = UNet(UNetConfig(**sizes, dropout=0.2)).double()  # type: ignore[arg-type]
    images, noise = torch.randn(2, 24, 1, 8, 8, dtype=torch.float64)
    batch = (images, torch.randint(1000, (24,)), noise)
    return Made(unet, unet.blocks, "res.norm_1", batch, lambda: unet.loss(*batch))


def _resnet(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    resnet = ResNet(ResNetConfig(stage_depths=(1, 3), base_channels=8)).double()
    images, labels = torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.randint(10, (16,))
    batch = (images, labels)
    return Made(resnet, list(resnet.blocks), "norm_1", batch, lambda: resnet.loss(*batch))


repeated_work = ward(
    "lab09.repeated_work",
    "9.2",
    "cases C and D train as without checkpoints, masks and running statistics too",
    {
        "C": patient(
            _unet,
            "random state",
            10,
            "the number of different random states (torch.get_rng_state) in which the five blocks "
            "of make_c begin, forward or again, in one step of broken_c",
            "Does a recomputation draw the masks of its forward?",
        ),
        "D": patient(
            _resnet,
            "counted twice",
            2,
            "num_batches_tracked in a block after one step of broken_d",
            "How often do the running statistics move in one step?",
        ),
    },
)
