"""Hold `predict` against an emulated card on training steps that no other list has.

    python tests/benchmarks/unlisted.py            all; needs .venv-cuda (emulate --setup)
    python tests/benchmarks/unlisted.py 'swin*'    these steps

Prints for each step what was predicted, what PyTorch's allocator was asked for on an A100, and
what is left once cuBLAS's workspaces (one of 8.125 MiB for each thread that multiplies) are set
apart.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers as hf
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.instruments.emulated import emulate, find_card, find_cuda_torch
from tutorial_lib.memory import private_torch
from tutorial_lib.units import MIB

ROOT = Path(__file__).resolve().parents[2]
CARD = "a100"
WORKSPACE = int(8.125 * MIB)


def trained(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    device: str,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    half: torch.dtype | None = None,
) -> Any:
    """Give a step under autocast, with a gradient scaler for float16."""
    model.to(device).train()
    update = optimizer([p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16)

    def step() -> None:
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad()

    return step, model, update


def text(model: nn.Module, batch: int, length: int, device: str, *, mask=False, **options: Any):
    """Train on labels that are the tokens; the mask, where there is one, is all ones."""
    ids = torch.zeros(batch, length, dtype=torch.long)
    words = {"input_ids": ids, "labels": ids} | ({"attention_mask": ids + 1} if mask else {})
    placed = {name: word.to(device) for name, word in words.items()}
    return trained(model, lambda: model(**placed).loss, device, **options)


def images(model: nn.Module, batch: int, side: int, device: str, *labels: int, **options: Any):
    """Classify images, or each pixel where labels have sides."""
    kept = torch.zeros(batch, 3, side, side), torch.zeros(batch, *labels, dtype=torch.long)
    pixels, classes = (tensor.to(device) for tensor in kept)
    return trained(
        model, lambda: model(pixel_values=pixels, labels=classes).loss, device, **options
    )


def whisper(device: str):
    small = {"d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12}
    layers = {"encoder_layers": 12, "decoder_layers": 12}
    wide = {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**small, **layers, **wide))
    sound, words = torch.zeros(8, 80, 3000), torch.zeros(8, 128, dtype=torch.long)
    sound, words = sound.to(device), words.to(device)
    loss = lambda: model(input_features=sound, labels=words).loss  # noqa: E731
    return trained(model, loss, device, half=torch.float16)


def denoiser(device: str):
    model = diffusers.UNet2DModel(sample_size=64, block_out_channels=(128, 128, 256, 512))
    model.enable_gradient_checkpointing()
    noisy = torch.zeros(8, 3, 64, 64, device=device)
    times = torch.zeros(8, dtype=torch.long, device=device)
    return trained(model, lambda: model(noisy, times).sample.square().mean(), device)


def with_lora(device: str):
    import peft

    sizes = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16}
    model = hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes, intermediate_size=4096))
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query_key_value"]))
    return text(model, 8, 1024, device, half=torch.bfloat16)


_QWEN = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
_MOE = {"num_local_experts": 4, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64}
STEPS: dict[str, Callable[[str], Any]] = {
    "swin-t 32, bf16 autocast": lambda device: images(
        hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000)),
        *(32, 224, device),
        half=torch.bfloat16,
    ),
    "whisper-small 8, fp16 autocast": whisper,
    "distilbert 32 x 256, mask of ones": lambda device: text(
        hf.DistilBertForMaskedLM(hf.DistilBertConfig()), 32, 256, device, mask=True
    ),
    "qwen2 4 x 1024, mask of ones": lambda device: text(
        hf.Qwen2ForCausalLM(hf.Qwen2Config(**_QWEN, intermediate_size=4864, num_hidden_layers=6)),
        *(4, 1024, device),
        mask=True,
        half=torch.bfloat16,
    ),
    "t5 8 x 256, Adafactor": lambda device: text(
        hf.T5ForConditionalGeneration(hf.T5Config(decoder_start_token_id=0)),
        *(8, 256, device),
        optimizer=torch.optim.Adafactor,
    ),
    "pythia-like 8 x 1024, LoRA, checkpointed": with_lora,
    "unet2d 8 x 64 x 64, checkpointed": denoiser,
    "mixtral-like 4 x 256": lambda device: text(
        hf.MixtralForCausalLM(
            hf.MixtralConfig(**_MOE, num_hidden_layers=2, num_attention_heads=8)
        ).bfloat16(),
        *(4, 256, device),
    ),
    "modernbert 8 x 512, fp16 autocast": lambda device: text(
        hf.ModernBertForMaskedLM(hf.ModernBertConfig(num_hidden_layers=6)),
        *(8, 512, device),
        mask=True,
        half=torch.float16,
    ),
    "dinov2-b 16, SGD": lambda device: images(
        hf.Dinov2ForImageClassification(hf.Dinov2Config(num_labels=1000)),
        *(16, 224, device),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        half=torch.bfloat16,
    ),
    "segformer-b0 4 x 512 x 512": lambda device: images(
        hf.SegformerForSemanticSegmentation(hf.SegformerConfig(num_labels=150)),
        *(4, 512, device, 512, 512),
    ),
    "resnet-50 32, RMSprop, bf16 autocast": lambda device: images(
        hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000)),
        *(32, 224, device),
        optimizer=torch.optim.RMSprop,
        half=torch.bfloat16,
    ),
}


def requested(make_step: Callable[[str], Any]) -> int:
    """Requested bytes of a steady step on the emulated card."""
    step, _, _ = make_step("cuda")
    step()
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return peak


def run_on_card(names: list[str], out: Path) -> None:
    found = {}
    for name in names:
        found[name] = requested(STEPS[name])
        gc.collect()
        private_torch.release_cublas_workspaces()
        torch.cuda.empty_cache()
        print(name, found[name], file=sys.stderr, flush=True)
        out.write_text(json.dumps(found))


def main(words: list[str]) -> None:
    warnings.simplefilter("ignore")
    if words[:1] == ["--inside"]:
        run_on_card(words[2:], Path(words[1]))
        return
    names = [name for name in STEPS if not words or any(fnmatch.fnmatch(name, w) for w in words)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = ["python", __file__, "--inside", str(out), *names]
        emulate(command, find_card(CARD), find_cuda_torch(ROOT), watch=False, cudnn=False)
        found = json.loads(out.read_text())
    for name, seen in found.items():
        predicted = memory.predict(lambda name=name: STEPS[name]("cpu")).peak_bytes
        rest = min((seen - predicted - n * WORKSPACE for n in range(3)), key=abs)
        print(
            f"{name:<42}{predicted / MIB:9.1f} MiB predicted{seen / MIB:9.1f} requested "
            f"{predicted / seen - 1:+7.2%}, beside workspaces {rest / MIB:+7.1f} MiB "
            f"({rest / seen:+.2%})",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
