"""Models and batches for a training step through checkpoints, and the step observed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from transformers import ViTConfig as LibraryViTConfig
from transformers import ViTForImageClassification

from tutorial_lib.checks.given import Answer, Case, Result, exam, observe, surroundings
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.models.vit import ViT, ViTConfig


@dataclass(frozen=True)
class Made:
    """A model with a batch, built anew for each run."""

    model: nn.Module  # in float64
    blocks: Sequence[nn.Module]  # what is checkpointed, each a segment
    counted: str  # how the names of the parts end whose runs are counted, one in each block
    batch: tuple[Any, ...]  # what the step takes after model and optimizer
    but: frozenset[str] = frozenset()  # what of the surroundings a step may change


def make(case: Case) -> Made:
    """Build the model and the batch of a case."""
    torch.manual_seed(case["seed"])
    return _MAKE[case["case"]](case["seed"])


def _gpt(seed: int) -> Made:
    """Make a GPT of three to five blocks, with sixteen rows of tokens."""
    sizes: Any = {"vocab_size": 32, "seq_len": 12, "num_heads": 2, "d_model": 32}
    gpt = GPT(GPTConfig(num_layers=3 + seed % 3, tie_weights=False, **sizes)).double()
    return Made(gpt, list(gpt.blocks), "norm_1", (torch.randint(32, (16, 12)),))


def _lstm(seed: int) -> Made:
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=16, chunk_len=8)).double()
    return Made(lstm, [lstm.chunk], "layers.0", (torch.randint(32, (3, 33)), {"scale": 1.5}))


def _unet(seed: int) -> Made:
    sizes = {"base_channels": 8, "channel_multipliers": (1, 2), "attention_levels": (1,)}
    unet = UNet(UNetConfig(**sizes, dropout=0.2)).double()  # type: ignore[arg-type]
    images, noise = torch.randn(2, 24, 1, 8, 8, dtype=torch.float64)
    return Made(unet, unet.blocks, "res.norm_1", (images, torch.randint(1000, (24,)), noise))


def _resnet(seed: int) -> Made:
    resnet = ResNet(ResNetConfig(stage_depths=(1, 3), base_channels=8)).double()
    images, labels = torch.randn(16, 3, 8, 8, dtype=torch.float64), torch.randint(10, (16,))
    return Made(resnet, list(resnet.blocks), "norm_1", (images, labels))


def _frozen_gpt(seed: int) -> Made:
    made = _gpt(seed)
    _frozen(made.model)
    return made


def _frozen(gpt: Any) -> Any:
    for embedding in (gpt.token_embedding, gpt.position_embedding):
        embedding.requires_grad_(False)
    return gpt


def _switched_vit(num_layers: int) -> nn.Module:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    image = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    layers = {"num_hidden_layers": num_layers, "hidden_dropout_prob": 0.2}
    vit: nn.Module = ViTForImageClassification(LibraryViTConfig(**sizes, **image, **layers))
    new = getattr(vit, "activation_checkpointing_enable", None)
    (new or vit.gradient_checkpointing_enable)({"use_reentrant": False})  # type: ignore[operator]
    return vit


def library_layers(vit: nn.Module) -> list[nn.Module]:
    """List the layers of a library's ViT."""
    return [module for module in vit.modules() if hasattr(module, "layernorm_before")]


def _library_vit(seed: int) -> Made:
    vit = _switched_vit(3 + seed % 2).double()
    batch = torch.randn(4, 1, 8, 8, dtype=torch.float64), torch.randint(10, (4,))
    # counts of a part: the library keeps a layer's own hooks out of its checkpoint
    return Made(vit, library_layers(vit), "layernorm_before", batch, frozenset({"modes"}))


def _vit(seed: int) -> Made:
    vit = ViT(ViTConfig(num_layers=8 + 2 * (seed % 2), num_heads=2, d_model=32)).double()
    images, labels = torch.randn(8, 1, 8, 8, dtype=torch.float64), torch.randint(10, (8,))
    return Made(vit, list(vit.blocks), "norm_1", (images, labels))


def sit_frozen_gpt(case: Case) -> tuple[GPT, Sequence[Any]]:
    """Make the GPT of a memory exam and its batch, with frozen embeddings."""
    gpt, batch = exam.make_gpt(case)
    return _frozen(gpt), batch


def sit_lstm(case: Case) -> tuple[LSTM, Sequence[Any]]:
    """Make an LSTM for a memory exam and its batch: 241 MiB at the peak, 66 with checkpoints."""
    torch.manual_seed(case["seed"])
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=32, chunk_len=16))
    return lstm, (torch.randint(32, (768, 129)), {"scale": 1.5})


def sit_library_vit(case: Case) -> tuple[nn.Module, Sequence[Any]]:
    """Make a library's ViT for a memory exam: 275 MiB at the peak, 36 with checkpoints."""
    torch.manual_seed(case["seed"])
    return _switched_vit(24), (torch.randn(448, 1, 8, 8), torch.randint(10, (448,)))


def sit_vit(case: Case) -> tuple[ViT, Sequence[Any]]:
    """Make a ViT with the blocks of an exam, and its batch."""
    torch.manual_seed(case["seed"])
    vit = ViT(ViTConfig(num_layers=1, num_heads=2, d_model=exam.WIDTH))
    vit.blocks = nn.ModuleList(exam.make(case)[0])
    return vit, (torch.randn(64, 1, 8, 8), torch.randint(10, (64,)))


def sit_unet(case: Case) -> tuple[UNet, Sequence[Any]]:
    """Make a U-Net for a memory exam and its batch: 297 MiB at the peak, 80 with checkpoints."""
    torch.manual_seed(case["seed"])
    sizes: Any = {"channel_multipliers": (1,), "attention_levels": ()}
    unet = UNet(UNetConfig(base_channels=16, blocks_per_level=9, **sizes))
    images, noise = torch.randn(2, 512, 1, 8, 8)
    return unet, (images, torch.randint(1000, (512,)), noise)


def sit_resnet(case: Case) -> tuple[ResNet, Sequence[Any]]:
    """Make a ResNet for a memory exam and its batch: 224 MiB at the peak, 82 with checkpoints."""
    torch.manual_seed(case["seed"])
    resnet = ResNet(ResNetConfig(stage_depths=(24,), base_channels=16))
    return resnet, (torch.randn(192, 3, 8, 8), torch.randint(10, (192,)))


_MAKE: dict[str, Callable[[int], Made]] = {"A": _gpt, "B": _lstm, "C": _unet, "D": _resnet}
_MAKE |= {"E": _frozen_gpt, "F": _library_vit, "I": _vit}


def take_step(step: Answer, case: Case, made: Made | None = None) -> Result:
    """Take a step with the model and the batch of a case, and note its outcome."""
    made = made or make(case)
    model, settings = made.model, [item for item in made.batch if isinstance(item, dict)]
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)  # what an earlier step has left
    optimizer = SGD(trained, lr=0.1)
    counted = [m for name, m in model.named_modules() if name.endswith(made.counted)]
    counts, layers, returned = [0] * len(counted), _layers(model), list[Any]()
    for place, module in enumerate(counted):
        module.register_forward_pre_hook(partial(_add, counts, place))
    torch.manual_seed(case["seed"])
    with (
        observe.updates_seen(model, optimizer) as gradients,
        surroundings.watched(model, only=surroundings.SWITCHES, but=made.but) as changed,
    ):
        call = lambda: returned.append(step(model, optimizer, *made.batch))  # noqa: E731
        peak, _ = observe.peak_above(call, model)
    return {
        "returned": returned[0],
        "gradients": gradients,
        "counts": counts,
        "buffers": [b for b in model.buffers() if b.is_floating_point()],
        "parameters": observe.parameter_vector(model),
        "peak": peak,
        "changed": changed,
        "settings": settings,
        "layers": layers == _layers(model),
    }


def _layers(model: nn.Module) -> list[Any]:
    return [(vars(m).get("momentum"), vars(m).get("p")) for m in model.modules()]


def _add(counts: list[int], place: int, *_: Any) -> None:
    counts[place] += 1
