"""The check of 9.3: cases E and F, parts that are not trained, or not checkpointed."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab09.checkpointed import Made, patient
from tutorial_lib.checks.lab09.ex9_1 import make_gpt
from tutorial_lib.checks.lab09.patients import ward


def _frozen_gpt(case: Case) -> Made:
    made = make_gpt(case)
    for name in ("token_embedding", "position_embedding"):
        made.model.get_submodule(name).requires_grad_(False)
    return made


def _library_vit(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    image = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    layers = {"num_hidden_layers": 3 + case["seed"] % 2, "hidden_dropout_prob": 0.2}
    config = transformers.ViTConfig(**sizes, **image, **layers)
    vit: nn.Module = transformers.ViTForImageClassification(config).double()
    new = getattr(vit, "activation_checkpointing_enable", None)
    (new or vit.gradient_checkpointing_enable)({"use_reentrant": False})  # type: ignore[operator]
    images, labels = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.randint(10, (4,))
    blocks = [m for m in vit.modules() if hasattr(m, "layernorm_before")]

    def loss() -> torch.Tensor:
        value: torch.Tensor = vit.eval()(pixel_values=images, labels=labels).loss
        return value

    # counts of a part: the library keeps a layer's own hooks out of its checkpoint
    return Made(vit, blocks, "layernorm_before", (images, labels), loss, frozenset({"modes"}))


untrained_parts = ward(
    "lab09.untrained_parts",
    "9.3",
    "cases E and F: all that should learn does, without dropout, in the memory of checkpoints",
    {
        "E": patient(
            _frozen_gpt,
            "frozen input",
            48,
            "how many parameters of make_e that need a gradient have none after broken_e",
            "Do the blocks get gradients? The first one's input needs none.",
        ),
        "F": patient(
            _library_vit,
            "not checkpointed",
            1,
            "how often a layer's first norm runs in one step of broken_f",
            "Is any dropout at work? It was switched off, and has to stay so.",
        ),
    },
)
