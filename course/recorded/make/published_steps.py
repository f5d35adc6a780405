"""The steps of `course/recorded/published.csv`, as their sources describe them.

Models come from transformers where it has them; the others are written after their configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.instruments.published.libraries import making_lora

HALF = torch.bfloat16


# ---- single operations: Liger-Kernel's benchmark scripts; gradients add up over the steps ----


class Rms(nn.Module):
    """LlamaRMSNorm as transformers writes it: float32 inside, a float32 weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def layer(make: Callable[[], nn.Module], *shape: int, dtype=torch.float32, fixed=True):
    """Return a layer's forward and backward; `fixed` keeps one gradient, else it is drawn anew."""
    module, x = make(), torch.randn(shape, dtype=dtype)
    gradient = torch.randn_like(x) if fixed else None
    x.requires_grad_()

    def step():
        y = module(x)
        y.backward(torch.randn_like(y) if gradient is None else gradient, retain_graph=True)

    return step, module, None


def mlp(act: str) -> nn.Module:
    config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, hidden_act=act)
    return transformers.models.llama.modeling_llama.LlamaMLP(config).to(HALF)


def mlp_forward(act: str, tokens: int):
    module, x = mlp(act), torch.randn(8, tokens, 4096, dtype=HALF, requires_grad=True)

    def step():
        module(x)

    return step, module, None


def cross_entropy(vocabulary: int):
    x, target = torch.randn(16384, vocabulary, requires_grad=True), torch.zeros(16384).long()
    return (lambda: F.cross_entropy(x, target).backward()), nn.Identity(), None


def head(tokens: int):
    linear, other = (nn.Linear(4096, 128256, bias=False, dtype=HALF) for _ in range(2))
    x, target = torch.randn(tokens, 4096, dtype=HALF, requires_grad=True), torch.zeros(tokens)
    target = target.long()
    both = nn.ModuleList([linear, other])  # the script makes Liger's head too, and leaves it idle
    return (lambda: F.cross_entropy(linear(x), target).backward()), both, None


def distance(kind: str, vocabulary: int):
    """Compare two distributions; both are made before the first step, and their graph is kept."""
    shape = (16384, vocabulary)
    x, target = torch.randn(shape, requires_grad=True), torch.randn(shape).softmax(-1)
    x = x.log_softmax(-1) if kind == "kl" else x.softmax(-1)

    def step():
        if kind == "kl":
            loss = F.kl_div(x, target, reduction="batchmean")
        else:
            loss = torch.sum(torch.abs(x - target) / 2.0) / 16384
        loss.backward(retain_graph=True)

    return step, nn.Identity(), None


# ---- whole models of transformers ----


def train(model: nn.Module, loss: Callable[[], Tensor], optimizer="adamw", clip=False, keep=False):
    """Return a training step; `keep` zeroes the gradients in place, as PyTorch before 2.0 did."""
    made = {
        "adamw": torch.optim.AdamW,
        "for-loop": partial(torch.optim.AdamW, foreach=False),
        "fused": partial(torch.optim.AdamW, fused=True),
        "adam": torch.optim.Adam,
        "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    }[optimizer]([p for p in model.parameters() if p.requires_grad])

    def step():
        loss().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        made.zero_grad(set_to_none=not keep)

    return step, model, made


def build(kind: str, config: transformers.PretrainedConfig, attention="sdpa", dtype=None):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or torch.float32)
    try:
        cls = getattr(transformers, kind)
        return cls._from_config(config, attn_implementation=attention).train()
    finally:
        torch.set_default_dtype(before)


def with_lora(model: nn.Module, rank: int, names: list[str], dropout=0.0, dtype=None) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    with making_lora():
        config = LoraConfig(r=rank, target_modules=names, lora_dropout=dropout)
        model = get_peft_model(model, config, autocast_adapter_dtype=False)
    for p in model.parameters():
        p.data = p.data.to(dtype) if dtype and p.requires_grad else p.data
    return model


def tokens(batch: int, seq: int) -> dict[str, Tensor]:
    ids = torch.zeros(batch, seq, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}


CAUSAL = {  # class and configuration of transformers
    "santacoder": (
        "GPTBigCode",
        {
            **{"vocab_size": 49280, "n_positions": 2048, "n_embd": 2048, "n_layer": 24},
            **{"n_head": 16, "n_inner": 8192},
        },
    ),
    "mistral": ("Mistral", {"vocab_size": 32000}),
    "power": (
        "Granite",
        {
            **{"vocab_size": 49152, "hidden_size": 2304, "num_hidden_layers": 40},
            **{"num_attention_heads": 36, "num_key_value_heads": 36, "intermediate_size": 9216},
            "tie_word_embeddings": True,
        },
    ),
    "phi": ("Phi", {}),
    "llama7": ("Llama", {}),
    "llama13": (
        "Llama",
        {
            **{"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40},
            "num_attention_heads": 40,
        },
    ),
    "llama32": (
        "Llama",
        {
            **{"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192},
            **{"num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8},
            "tie_word_embeddings": True,
        },
    ),
}


def causal(name: str, dtype=HALF) -> nn.Module:
    kind, fields = CAUSAL[name]
    config = getattr(transformers, f"{kind}Config")(**fields, use_cache=False)
    return build(f"{kind}ForCausalLM", config, dtype=dtype)


def old_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss as the models of transformers had it up to 4.45: the logits are copied."""
    shifted = logits[..., :-1, :].contiguous()
    return F.cross_entropy(shifted.flatten(0, 1), ids[:, 1:].flatten())


def sft(name: str, batch: int, seq: int, lora=False):
    """Fine-tune as trl's SFTTrainer: every block checkpointed (reentrant), gradients clipped."""
    model = causal(name)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    if lora:
        model.enable_input_require_grads()
        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = with_lora(model, 16, names, dropout=0.1, dtype=torch.float32)
    ids = tokens(batch, seq)["input_ids"]

    def loss():
        with torch.autocast(ids.device.type, HALF, enabled=lora):
            logits = model(input_ids=ids).logits
            logits = logits if name == "santacoder" else logits.float()
            return old_loss(logits, ids)

    return train(model, loss, clip=True)


def litgpt(name: str, batch: int, seq: int):
    """Train LoRA of q and v; the head works through 128 tokens at a time."""
    model = with_lora(causal(name), 8, ["q_proj", "v_proj"], dropout=0.05, dtype=HALF)
    ids = torch.zeros(batch, seq, dtype=torch.long)
    inner = model.get_base_model()

    def loss():
        hidden = inner.model(input_ids=ids).last_hidden_state
        parts = zip(hidden[:, :-1].split(128, 1), ids[:, 1:].split(128, 1), strict=True)
        losses = [F.cross_entropy(inner.lm_head(h).flatten(0, 1), t.flatten()) for h, t in parts]
        return torch.stack(losses).mean()

    return train(model, loss)


def packed(name: str, batch: int, seq: int):
    model, data = causal(name), tokens(batch, seq)
    return train(model, lambda: model(**data).loss, "fused")


def fp32(kind: str, config, data, **choices):
    model, batch = build(kind, config, choices.pop("attention", "eager")), data()
    return train(model, lambda: model(**batch).loss, **choices)


def gpt2_of_2021():
    model = build("GPT2LMHeadModel", transformers.GPT2Config(use_cache=False), "eager")
    ids = tokens(2, 1024)["input_ids"]
    return train(model, lambda: old_loss(model(input_ids=ids).logits, ids), **OLD)


def images(batch: int, side: int, **labels) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, side, side), **labels}


# ---- ResNet-50 on video frames, and segmentation: OpenMMLab ----


class Shift(nn.Module):
    """TSM's shift: an eighth of the channels from the next frame, an eighth from the one before."""

    def __init__(self, inner: nn.Module, frames: int) -> None:
        super().__init__()
        self.inner, self.frames = inner, frames

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.view(-1, self.frames, c, h * w)
        left, middle, right = x.split([c // 8, c - 2 * (c // 8), c // 8], 2)
        left = torch.cat([left[:, 1:], torch.zeros_like(left[:, :1])], 1)
        right = torch.cat([torch.zeros_like(right[:, :1]), right[:, :-1]], 1)
        return self.inner(torch.cat([left, right, middle], 2).view(n, c, h, w))


def video(num_images: int, classes: int, frames: int, shifted=False):
    model = build("ResNetModel", transformers.ResNetConfig(), "eager")
    if shifted:
        for module in list(model.modules()):
            if type(module).__name__ == "ResNetBottleNeckLayer":
                module.layer[0] = Shift(module.layer[0], frames)
    model.head = nn.Linear(2048, classes)
    x, target = torch.randn(num_images, 3, 224, 224), torch.zeros(num_images // frames).long()

    def loss():
        pooled = F.dropout(model(x).pooler_output.flatten(1), 0.4)
        if shifted:
            score = model.head(pooled).view(-1, frames, classes).mean(1)
        else:
            score = model.head(pooled.view(-1, frames, 2048).mean(1))
        return F.cross_entropy(score, target)

    return train(model, loss, "sgd", clip=True, keep=True)


def conv(ins: int, outs: int, kernel=3, stride=1, dilation=1) -> nn.Sequential:
    pad = dilation * (kernel // 2)
    made = nn.Conv2d(ins, outs, kernel, stride, pad, dilation, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outs), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, ins: int, inside: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            conv(ins, inside, 1), conv(inside, inside, 3, stride, dilation),
            nn.Conv2d(inside, 4 * inside, 1, bias=False), nn.BatchNorm2d(4 * inside),
        )  # fmt: skip
        self.shortcut = None
        if ins != 4 * inside:
            made = nn.Conv2d(ins, 4 * inside, 1, stride, bias=False)
            self.shortcut = nn.Sequential(made, nn.BatchNorm2d(4 * inside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


class DilatedResNet(nn.Module):
    """ResNet-50 V1c at an eighth of the resolution; gives its last two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv(3, 32, 3, 2), conv(32, 32), conv(32, 64), nn.MaxPool2d(3, 2, 1)
        )
        self.stages, ins = nn.ModuleList(), 64
        for depth, inside, stride, dilation in (
            (3, 64, 1, 1), (4, 128, 2, 1), (6, 256, 1, 2), (3, 512, 1, 4),
        ):  # fmt: skip
            blocks = []
            for number in range(depth):
                first = dilation // 2 or 1  # mmseg's contract_dilation is on for this backbone
                d = first if number == 0 else dilation
                blocks.append(Bottleneck(ins, inside, stride if number == 0 else 1, d))
                ins = 4 * inside
            self.stages.append(nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        for stage in self.stages[:3]:
            x = stage(x)
        return self.stages[3](x), x


class UNet(nn.Module):
    """mmsegmentation's UNet-S5-D16; gives its last two decoder levels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 128, 256, 512, 1024]
        pairs = zip([3, *widths], widths, strict=False)
        self.down = nn.ModuleList(nn.Sequential(conv(i, o), conv(o, o)) for i, o in pairs)
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for wide, narrow in ((1024, 512), (512, 256), (256, 128), (128, 64)):
            self.up.append(conv(wide, narrow, 1))
            self.merge.append(nn.Sequential(conv(wide, narrow), conv(narrow, narrow)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skips = [x]
        for number, block in enumerate(self.down):
            skips.append(block(skips[-1] if not number else F.max_pool2d(skips[-1], 2)))
        outs = [skips.pop()]
        for up, merge in zip(self.up, self.merge, strict=True):
            wide = F.interpolate(outs[-1], scale_factor=2, mode="bilinear")
            outs.append(merge(torch.cat([skips.pop(), up(wide)], 1)))
        return outs[-1], outs[-2]


class Segmenter(nn.Module):
    """A backbone with mmsegmentation's FCN head and its auxiliary head."""

    def __init__(self, backbone: nn.Module, head: nn.Module, aux: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head, self.aux = backbone, head, aux

    def forward(self, x: Tensor) -> list[Tensor]:
        last, before = self.backbone(x)
        sides = {"size": x.shape[2:], "mode": "bilinear", "align_corners": False}
        return [F.interpolate(self.head(last), **sides), F.interpolate(self.aux(before), **sides)]


class FcnHead(nn.Module):
    """Two convolutions, the input beside them, and a classifier behind dropout."""

    def __init__(self, ins: int, width: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(conv(ins, width), conv(width, width))
        self.cat = conv(ins + width, width)
        self.last = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(width, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cat(torch.cat([x, self.convs(x)], 1)))


def plain_head(ins: int, width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(conv(ins, width), nn.Dropout2d(0.1), nn.Conv2d(width, classes, 1))


def segment(kind: str, batch: int, side: int):
    if kind == "fcn":
        model = Segmenter(DilatedResNet(), FcnHead(2048, 512, 19), plain_head(1024, 256, 19))
    else:
        model = Segmenter(UNet(), plain_head(64, 64, 2), plain_head(128, 64, 2))
    x, target = torch.randn(batch, 3, side, side), torch.zeros(batch, side, side).long()

    def loss():
        main, aux = (F.cross_entropy(logits, target, ignore_index=255) for logits in model(x))
        return main + 0.4 * aux

    return train(model, loss, "sgd", keep=True)


def segformer(depths: list[int]):
    config = transformers.SegformerConfig(
        depths=depths, hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=150
    )
    labels = {"labels": torch.zeros(2, 512, 512).long()}
    return fp32(
        "SegformerForSemanticSegmentation", config, lambda: images(2, 512, **labels), keep=True
    )


# ---- id of a row of published.csv: its step, and the card that it is emulated on ----

OLD = {"optimizer": "for-loop", "keep": True}
BERT = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 28996,
}
XLMR = {
    "vocab_size": 250002,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def _labels(batch: int) -> dict[str, Tensor]:
    return {"labels": torch.zeros(batch).long()}


def _squad() -> dict[str, Tensor]:
    at = torch.zeros(16, dtype=torch.long)
    ids = torch.zeros(16, 384, dtype=torch.long)
    return {"input_ids": ids, "start_positions": at, "end_positions": at.clone()}


STEPS: dict[str, Callable[[], Any]] = {
    **{f"lk_ce_V{v}": partial(cross_entropy, v) for v in (8192, 131072)},
    **{f"lk_flce_BT{t}": partial(head, t) for t in (4096, 32768)},
    **{
        f"lk_{name}_full_T{t}": partial(
            layer, partial(mlp, act), batch, t, 4096, dtype=HALF, fixed=False
        )
        for name, act, batch in (("geglu", "gelu_pytorch_tanh", 8), ("swiglu", "silu", 4))
        for t in (1024, 2048, 4096, 8192)
    },
    **{f"lk_geglu_fwd_T{t}": partial(mlp_forward, "gelu_pytorch_tanh", t) for t in (2048, 8192)},
    "lk_ln_N16384": partial(layer, partial(nn.LayerNorm, 16384), 4096, 16384),
    **{
        f"lk_rms_N{n}": partial(layer, partial(Rms, n), 2048, n, dtype=HALF)
        for n in (1024, 4096, 16384, 32768)
    },
    **{f"lk_kl_V{v}": partial(distance, "kl", v) for v in (4096, 32768)},
    "lk_tvd_V131072": partial(distance, "tvd", 131072),
    **{
        f"lk_gn_C{c}": partial(layer, partial(nn.GroupNorm, c // 4, c), 128, c, 512)
        for c in (32, 256, 2048)
    },
    **{f"fms_santa_full_b{b}": partial(sft, "santacoder", b, 2048) for b in (4, 8)},
    **{f"fms_mistral_full_b{b}": partial(sft, "mistral", b, 4096) for b in (4, 8)},
    **{f"fms_mistral_lora_b{b}": partial(sft, "mistral", b, 4096, True) for b in (4, 8)},
    **{f"fms_power_full_b{b}": partial(sft, "power", b, 4096) for b in (4, 8)},
    **{f"fms_power_lora_b{b}": partial(sft, "power", b, 4096, True) for b in (4, 8)},
    "hf_xlmr_squad_b16": lambda: fp32(
        "XLMRobertaForQuestionAnswering", transformers.XLMRobertaConfig(**XLMR), _squad, **OLD
    ),
    "hf_gpt2_b2": gpt2_of_2021,
    "mma_tsn_r50_b96": partial(video, 96, 400, 3),
    "mma_tsn_r50_ucf_b96": partial(video, 96, 101, 3),
    "mma_tsn_r50_b256": partial(video, 256, 400, 8),
    "mma_tsn_r50_b128": partial(video, 128, 174, 8),
    "mma_tsm_r50_b96": partial(video, 96, 400, 16, True),
    "mms_fcn_r50_769x769": partial(segment, "fcn", 2, 769),
    **{f"mms_unet_fcn_{side}": partial(segment, "unet", 4, side) for side in (64, 128, 256)},
    "mms_segformer_b2_512": partial(segformer, [3, 4, 6, 3]),
    "mms_segformer_b3_512": partial(segformer, [3, 4, 18, 3]),
    "hfdoc_bertl_b4": lambda: fp32(
        "BertForSequenceClassification",
        transformers.BertConfig(**BERT),
        lambda: {"input_ids": tokens(4, 512)["input_ids"], **_labels(4)},
        **OLD,
    ),
    "lit_phi_b2": partial(litgpt, "phi", 2, 1044),
    "lit_llama7_b1": partial(litgpt, "llama7", 1, 1304),
    "lit_llama13_b1": partial(litgpt, "llama13", 1, 1304),
    "tt_llama32_3b_packed": partial(packed, "llama32", 2, 4096),
    "gmn_mobilenetV2_b32": lambda: fp32(
        "MobileNetV2ForImageClassification",
        transformers.MobileNetV2Config(num_labels=1000),
        lambda: images(32, 224, **_labels(32)),
        optimizer="adam",
    ),
    "ob_vitb_b2": lambda: fp32(
        "ViTForImageClassification",
        transformers.ViTConfig(num_labels=2),
        lambda: images(2, 224, **_labels(2)),
        attention="sdpa",
    ),
}


def step_of(row_id: str) -> Callable[[], Any]:
    """Find the step of a run."""
    return STEPS[row_id]


# ---- what the sources' PyTorch and launcher held beyond today's step in one process ----


class _KeepsItsInput(torch.autograd.Function):
    """Softmax before PyTorch 1.11: its backward kept the input too, and did not use it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str, dim: int) -> Tensor:
        y = getattr(torch, kind)(x, dim)
        ctx.save_for_backward(x, y)
        ctx.kind, ctx.dim = kind, dim
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, y = ctx.saved_tensors
        backward = getattr(torch.ops.aten, f"_{ctx.kind}_backward_data")
        return backward(gradient, y, ctx.dim, x.dtype), None, None


@contextlib.contextmanager
def old_softmax():
    """Make softmax and cross-entropy keep their input, as before PyTorch 1.11."""

    def softmax(x, dim=None, _stacklevel=3, dtype=None):
        return _KeepsItsInput.apply(x if dtype is None else x.to(dtype), "softmax", dim)

    def loss(x, target, weight=None, size_average=None, ignore_index=-100, *_, **__):
        logs = _KeepsItsInput.apply(x, "log_softmax", 1)
        return F.nll_loss(logs, target, ignore_index=ignore_index)

    with mock.patch.object(F, "softmax", softmax), mock.patch.object(F, "cross_entropy", loss):
        yield


def ddp_buckets(model: nn.Module) -> Tensor:
    """Hold what DDP's buckets hold: a copy of all gradients."""
    return torch.empty(sum(p.numel() for p in model.parameters() if p.requires_grad))


def as_then(row_id: str) -> str:
    """Name what a row's source held beyond today's step; empty for most."""
    return next((words for start, words in THEN.items() if row_id.startswith(start)), "")


OLD_SOFTMAX, DDP = "softmax kept its input", "DDP's copy of the gradients"
THEN = {
    "hf_": OLD_SOFTMAX,
    "hfdoc_": OLD_SOFTMAX,
    "mma_": f"{OLD_SOFTMAX}; {DDP}",
    "mms_": f"{OLD_SOFTMAX}; {DDP}",
}
