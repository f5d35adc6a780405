"""Hold `predict` against an emulated card on twelve training steps that no other list has.

python -m tutorial_lib emulate --card a100 -- python course/recorded/make/unlisted.py [swin ...]

What is left stands beside cuBLAS's workspaces, one for each thread that multiplies.
"""

import gc
import sys
import warnings
from functools import partial
from pathlib import Path

import diffusers
import torch
import transformers
from torch import nn, optim

sys.path.insert(0, str(Path(__file__).parent))
from published_steps import with_lora

from tutorial_lib import memory
from tutorial_lib.memory import private_torch
from tutorial_lib.units import MIB

WORKSPACE = int(8.125 * MIB)  # tests/test_emulated_rows.py says where it is from
HALF, FUSED = {"half": torch.bfloat16}, {"by": partial(optim.AdamW, fused=True)}
SGD, LAST = partial(optim.SGD, momentum=0.9, nesterov=True), {"memory_format": torch.channels_last}


def trained(model, batch, loss=lambda out: out.loss, by=optim.AdamW, half=None, clip=False):
    """Train on one batch: under autocast, with a scaler for float16, with gradients clipped."""
    model.train()
    update = by([p for p in model.parameters() if p.requires_grad])
    # PyTorch begins at 65536: on a real card updates overflow and are skipped, states come late.
    scaler = torch.amp.GradScaler("cuda", init_scale=1024, enabled=half is torch.float16)

    def step():
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            value = loss(model(**batch))
        scaler.scale(value).backward()
        if clip:
            scaler.unscale_(update)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(update)
        scaler.update()
        update.zero_grad()

    return step, model, update


def library(name, **sizes):
    config = getattr(transformers, name.partition("For")[0].removesuffix("Model") + "Config")
    return getattr(transformers, name)(config(**sizes))


def ids(*shape):
    return torch.zeros(shape, dtype=torch.long)


def padded(*shape):
    mask = torch.ones(shape, dtype=torch.long)
    mask[1:, shape[1] // 2 :] = 0
    return {"input_ids": ids(*shape), "labels": ids(*shape), "attention_mask": mask}


def images(batch, **placed):
    return {"pixel_values": torch.zeros(batch, 3, 224, 224).to(**placed), "labels": ids(batch)}


def half_frozen():
    model = library("RobertaForMaskedLM", vocab_size=50265, max_position_embeddings=514)
    model.roberta.embeddings.requires_grad_(False)
    model.roberta.encoder.layer[:6].requires_grad_(False)
    model.gradient_checkpointing_enable()
    return trained(model, padded(16, 512), **FUSED, **HALF)


NET = {"num_labels": 1000, "drop_path_rate": 0.1}
B0 = {"image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
SMALL = {"attention_heads": 12, "layers": 12, "ffn_dim": 3072}
SMALL = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SMALL.items()}
FLAN = {"num_layers": 8, "num_heads": 6, "d_ff": 1024, "feed_forward_proj": "gated-gelu"}
V3 = {"relative_attention": True, "position_buckets": 256, "share_att_key": True}
V3 |= {"pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "intermediate_size": 3072}
V3 |= {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
DANCE = {"block_out_channels": (128, 128, 256), "time_embedding_dim": 16, "extra_in_channels": 16}
STEPS = {
    "swin-t 32, bf16 autocast": lambda: trained(
        library("SwinForImageClassification", **NET), images(32), **HALF
    ),
    "whisper-small 8, fp16 autocast": lambda: trained(
        library("WhisperForConditionalGeneration", d_model=768, **SMALL),
        {"input_features": torch.zeros(8, 80, 3000), "labels": ids(8, 128)},
        half=torch.float16,
    ),
    "convnextv2-tiny 32, bf16 autocast, fused, clipped": lambda: trained(
        library("ConvNextV2ForImageClassification", **NET), images(32), clip=True, **FUSED, **HALF
    ),
    "flan-t5-small 16 x 256, Adafactor": lambda: trained(
        library("T5ForConditionalGeneration", **FLAN, decoder_start_token_id=0),
        *(padded(16, 256), lambda out: out.loss, optim.Adafactor),
    ),
    "deberta-v3-small 16 x 256, clipped": lambda: trained(
        library("DebertaV2ForMaskedLM", **V3), padded(16, 256), clip=True
    ),
    "vit-b-16 32, LoRA, bf16 autocast": lambda: trained(
        with_lora(library("ViTForImageClassification"), 16, "all-linear"), images(32), **HALF
    ),
    "unet1d 4 x 16384, NAdam": lambda: trained(
        diffusers.UNet1DModel(16384, **DANCE),
        {"sample": torch.zeros(4, 2, 16384), "timestep": ids(4)},
        *(lambda out: out.sample.square().mean(), optim.NAdam),
    ),
    "mamba 8 x 64, six layers, bf16 autocast": lambda: trained(
        library("MambaForCausalLM", num_hidden_layers=6, use_cache=False), padded(8, 64), **HALF
    ),
    "beit-b-16 16, clipped": lambda: trained(
        library("BeitForImageClassification", use_relative_position_bias=True),
        *(images(16), lambda out: out.loss, SGD, None, True),
    ),
    "siglip-b-16 32, float16 autocast, clipped": lambda: trained(
        library("SiglipForImageClassification"), images(32), half=torch.float16, clip=True
    ),
    "efficientnet-b0 64, channels last, bf16 autocast": lambda: trained(
        library("EfficientNetForImageClassification", **B0).to(**LAST),
        *(images(64, **LAST), lambda out: out.loss, SGD, torch.bfloat16),
    ),
    "roberta 16 x 512, half frozen, checkpointed": half_frozen,
}


def requested(name):
    """Return the bytes that PyTorch's allocator is asked for in a steady step."""
    with torch.device("cuda"):
        step, *_ = STEPS[name]()
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            step()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in [name for name in STEPS if name.startswith(tuple(sys.argv[1:]) or "")]:
        predicted, seen = int(memory.predict(STEPS[name]).peak_bytes), requested(name)
        left = min((seen - predicted - n * WORKSPACE for n in range(3)), key=abs)
        sizes = f"{predicted / MIB:9.1f} MiB predicted{seen / MIB:9.1f} requested"
        print(f"{name:<50}{sizes}; left {left / MIB:+7.2f} MiB, {left / seen:+.2%}", flush=True)
        gc.collect()
        private_torch.release_cublas_workspaces()
