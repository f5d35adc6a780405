"""The checks of 9.1, 9.2 and 9.3: cases A to F, a training step through checkpoints each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab09.checkpointed import Made, broken_step
from tutorial_lib.checks.lab09.scripts import check_scripts
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig


def _gpt(case: Case) -> Made:
    """Make a GPT of three to five blocks, with sixteen rows of tokens."""
    torch.manual_seed(case["seed"])
    sizes: Any = {"vocab_size": 32, "seq_len": 12, "num_heads": 2, "d_model": 32}
    config = GPTConfig(num_layers=3 + case["seed"] % 3, tie_weights=False, **sizes)
    gpt, tokens = GPT(config).double(), torch.randint(32, (16, 12))
    return Made(gpt, list(gpt.blocks), "norm_1", (tokens,), lambda: gpt.loss(tokens))


def _lstm(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=16, chunk_len=8)).double()
    tokens = torch.randint(32, (3, 33))
    settings = {"scale": 1.5}

    def scale(module: Any, args: Any, embedded: Tensor) -> Tensor:
        return embedded * settings["scale"]

    def loss() -> Tensor:
        handle = lstm.embedding.register_forward_hook(scale)
        value = lstm.loss(tokens)
        handle.remove()
        settings["scale"] /= 2
        return value

    return Made(lstm, [lstm.chunk], "layers.0", (tokens, settings), loss)


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


def _frozen_gpt(case: Case) -> Made:
    made = _gpt(case)
    for name in ("token_embedding", "position_embedding"):
        made.model.get_submodule(name).requires_grad_(False)
    return made


def _library_vit(case: Case) -> Made:
    import transformers  # a second, and the notebook has it anyway

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

    def loss() -> Tensor:
        value: Tensor = vit.eval()(pixel_values=images, labels=labels).loss
        return value

    # counts of a part: the library keeps a layer's own hooks out of its checkpoint
    return Made(vit, blocks, "layernorm_before", (images, labels), loss, frozenset({"modes"}))


changed_in_between = check_scripts(
    "lab09.changed_in_between",
    "9.1",
    "cases A and B train as without checkpoints, in the memory of a checkpointed run",
    {
        "A": broken_step(
            _gpt,
            "late binding",
            5,
            "how often the last block of make_a runs in one step of broken_a",
            "Which block does a recomputation run? A name in a lambda is looked up at each call.",
        ),
        "B": broken_step(
            _lstm,
            "changed state",
            0.5,
            "the scale that a recomputation of broken_b reads, where forward read 1",
            "Which scale is read? Forward and recomputation need the one that the step began with, "
            "and a line between them changes it.",
        ),
    },
)

repeated_work = check_scripts(
    "lab09.repeated_work",
    "9.2",
    "cases C and D train as without checkpoints, masks and running statistics too",
    {
        "C": broken_step(
            _unet,
            "random state",
            10,
            "the number of different random states (torch.get_rng_state) in which the five blocks "
            "of make_c begin, forward or again, in one step of broken_c",
            "Does a recomputation draw the masks of its forward?",
        ),
        "D": broken_step(
            _resnet,
            "counted twice",
            2,
            "num_batches_tracked in a block after one step of broken_d",
            "How often do the running statistics move in one step?",
        ),
    },
)

untrained_parts = check_scripts(
    "lab09.untrained_parts",
    "9.3",
    "cases E and F: all that should learn does, without dropout, in the memory of checkpoints",
    {
        "E": broken_step(
            _frozen_gpt,
            "frozen input",
            48,
            "how many parameters of make_e that need a gradient have none after broken_e",
            "Do the blocks get gradients? The first one's input needs none.",
        ),
        "F": broken_step(
            _library_vit,
            "not checkpointed",
            1,
            "how often a layer's first norm runs in one step of broken_f",
            "Is any dropout at work? It was switched off, and has to stay so.",
        ),
    },
)
