"""The check of 9.5: case I, one checkpoint around a whole model, which dies in backward."""

from __future__ import annotations

import torch

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab09.checkpointed import Made, broken_step
from tutorial_lib.checks.lab09.scripts import check_scripts
from tutorial_lib.models.vit import ViT, ViTConfig


def _vit(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    vit = ViT(ViTConfig(num_layers=6 + case["seed"] % 3, num_heads=2, d_model=32)).double()
    images, labels = torch.randn(8, 1, 8, 8, dtype=torch.float64), torch.randint(10, (8,))
    batch = (images, labels)
    return Made(vit, list(vit.blocks), "norm_1", batch, lambda: vit.loss(*batch))


died_in_backward = check_scripts(
    "lab09.died_in_backward",
    "9.5",
    "case I trains as without checkpoints, and one block at a time is recomputed",
    {
        "I": broken_step(
            _vit,
            "one segment",
            4,
            "how many results of gelu are held when broken_i dies under CAP_I",
            "A checkpoint changes no gradient.",
        )
    },
)
