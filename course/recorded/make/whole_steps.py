"""The steps of `course/recorded/whole_runs.csv`, as their sources' scripts describe them.

Each takes what its row says: a model, a batch, a length, what is trained, an optimizer. Models are
of diffusers, transformers, timm and torchvision. Those whose code was not in a library then (Qwen,
Baichuan 2, ChatGLM 3) are built as a Llama or Qwen 2 of the same sizes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch


def _unregistered(*_: Any, **__: Any) -> Any:
    return lambda function: function


with (  # torchvision without its compiled part, before transformers asks for it
    contextlib.suppress(ImportError),
    mock.patch.object(torch.library, "register_fake", _unregistered),
):
    import timm
    import torchvision
import diffusers
import transformers
from published_steps import HALF, build, fp32, tokens, train, with_lora
from torch import Tensor, nn
from torch.nn import functional as F

from tutorial_lib.instruments.training.adamw_8bit import AdamW8bit

Row = dict[str, str]
Step = tuple[Callable[[], Any], nn.Module, Any]


def in_half(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model with weights in bfloat16."""
    torch.set_default_dtype(HALF)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


# ---- PEFT's method comparison on images: FLUX.2-klein-base-4B, 512 px, texts of 512 tokens ----

TARGETS = "to_out.0 to_add_out to_qkv_mlp_proj add_k_proj add_q_proj add_v_proj to_k to_q to_v"
METHODS: dict[str, dict[str, Any]] = {  # from adapter_config.json of each run
    "adalora": {"init_r": 32, "target_r": 8, "lora_alpha": 32, "tinit": 100, "tfinal": 200}
    | {"total_step": 750},
    "boft": {"boft_block_size": 4, "boft_n_butterfly_factor": 2},
    "deft": {"r": 32},
    "delora": {"r": 32, "delora_lambda": 15},
    "dora": {"peft_type": "LORA", "r": 64, "lora_alpha": 64, "use_dora": True},
    "frod": {"sparse_rate": 0.01},
    "glora": {"r": 32, "config_A_B": "lora", "config_C": "lora", "config_D_E": "constant"},
    "gralora": {"r": 32, "alpha": 32, "gralora_k": 2, "hybrid_r": 0},
    "hra": {"r": 32},
    "lily": {"r": 32, "num_B": 2, "stride_A": 1, "scaling": 1.0},
    "lora": {"r": 32, "lora_alpha": 32},
    "psoft": {"r": 32, "psoft_alpha": 32},
    "pvera": {"r": 32},
    "shira": {"r": 32},
    "waveft": {"n_frequency": 2592, "scaling": 25.0},
}


def flux(row: Row) -> Step:
    """Train an adapter; beside it lie the encoder that judges images, and all texts and latents."""
    import peft

    base = in_half(
        lambda: diffusers.Flux2Transformer2DModel(
            num_layers=5,
            num_single_layers=20,
            num_attention_heads=24,
            joint_attention_dim=7680,
            guidance_embeds=False,
        )
    )
    base.enable_gradient_checkpointing()
    name = row["trains"].partition(",")[0]
    fields = {"peft_type": name.upper(), **METHODS[name]}
    targets = [*TARGETS.split(), "linear_in", "linear_out"]
    model = peft.get_peft_model(base, peft.get_peft_config({**fields, "target_modules": targets}))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    said = int(row["trains"].split()[1])
    if abs(trained - said) > 100:  # AdaLoRA has a counter for each layer, once among the weights
        raise ValueError(f"{trained} weights are trained, but the source says {row['trains']}.")
    judge = transformers.Dinov2Model(transformers.Dinov2Config())
    texts = torch.randn(14, 512, 7680, dtype=HALF)
    latents = torch.randn(14, 128, 32, 32, dtype=HALF)
    places = {"img_ids": torch.zeros(2, 1024, 4), "txt_ids": torch.zeros(2, 512, 4)}
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        batch, text = latents[:2].clone(), texts[:2].clone()
        noise, share = torch.randn_like(batch), torch.zeros(2, 1, 1, 1, dtype=HALF)
        noisy = ((1 - share) * batch + share * noise).reshape(2, 128, -1).permute(0, 2, 1)
        optimizer.zero_grad()
        out = model(
            hidden_states=noisy, timestep=torch.zeros(2), encoder_hidden_states=text,
            guidance=None, **places, return_dict=False,
        )[0]  # fmt: skip
        guess = out.permute(0, 2, 1).reshape(batch.shape)
        ((guess.float() - (noise - batch).float()) ** 2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step, nn.ModuleList([model, judge]), optimizer


# ---- CogVideoX factory: 49 frames of 480 x 720, latents and texts computed before ----

COG = {
    "CogVideoX-2b": {"num_attention_heads": 30, "num_layers": 30},
    "CogVideoX-5b": {
        **{"num_attention_heads": 48, "num_layers": 42},
        "use_rotary_positional_embeddings": True,
    },
}


class Offloaded:
    """torchao's CPUOffloadOptimizer: a gradient leaves the card as soon as it is there."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        for p in parameters:
            p.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))

    def step(self) -> None:
        """Change nothing on the card."""

    def zero_grad(self) -> None:
        """Find nothing on the card."""


def cogvideox(row: Row) -> Step:
    """Train LoRA or all, weights in bfloat16 and autocast on, as accelerate does it."""
    model = in_half(lambda: diffusers.CogVideoXTransformer3DModel(**COG[row["model"]]))
    if row["checkpointing"] != "none":
        model.enable_gradient_checkpointing()
    if row["trains"] != "all":
        rank = int(row["trains"].split()[1][1:])
        names = ["to_k", "to_q", "to_v", "to_out.0"]
        model = with_lora(model, rank, names, dtype=HALF)
    trained = [p for p in model.parameters() if p.requires_grad]
    made: dict[str, Callable[..., Any]] = {
        "AdamW": torch.optim.AdamW,
        "AdamW 8-bit (bitsandbytes)": AdamW8bit,
        "AdamW + CPUOffloadOptimizer (with gradient offloading)": Offloaded,
    }
    optimizer = made[row["optimizer"]](trained)
    batch, turned = int(row["batch"]), "use_rotary_positional_embeddings" in COG[row["model"]]
    moments = torch.randn(batch, 32, 13, 60, 90, dtype=HALF)  # mean and log variance
    text = torch.randn(batch, 226, 4096, dtype=HALF)
    rotary = tuple(torch.zeros(13 * 30 * 45, 64) for _ in range(2)) if turned else None

    def step() -> None:
        mean, log = moments.chunk(2, dim=1)
        video = (mean + torch.exp(0.5 * log) * torch.randn_like(mean)).permute(0, 2, 1, 3, 4)
        video = video.to(memory_format=torch.contiguous_format)
        noise, share = torch.randn_like(video), torch.zeros(batch, 1, 1, 1, 1, dtype=HALF)
        noisy, when = share * video + share * noise, torch.zeros(batch, dtype=torch.long)
        with torch.autocast("cuda", HALF):
            out = model(
                hidden_states=noisy, encoder_hidden_states=text, timestep=when,
                image_rotary_emb=rotary, return_dict=False,
            )[0]  # fmt: skip
        guess = share * noisy - share * out.float()
        ((share.float() * (guess - video) ** 2).reshape(batch, -1)).mean().backward()
        if not isinstance(optimizer, Offloaded):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, model, None if isinstance(optimizer, Offloaded) else optimizer


# ---- LoRA on language models: LitGPT, Qwen, ms-swift ----


def sizes(kind: str, width: int, layers: int, heads: int, inner: int, words: int, **more: Any):
    """Return what transformers builds: a class and its configuration."""
    fields = {
        **{"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"intermediate_size": inner, "vocab_size": words, "use_cache": False},
    }
    fields = {**fields, "num_key_value_heads": heads, **more}
    return f"{kind}ForCausalLM", getattr(transformers, f"{kind}Config")(**fields)


def _gemma(width: int, layers: int, heads: int, kv: int, inner: int) -> Any:
    groups = {"num_key_value_heads": kv, "head_dim": 256, "tie_word_embeddings": False}
    return sizes("Gemma", width, layers, heads, inner, 256000, **groups)


MODELS: dict[str, Callable[[], Any]] = {  # LitGPT ties no embedding to the head
    "Qwen-1.8B": lambda: sizes("Qwen2", 2048, 24, 16, 5504, 151936),
    "Qwen-7B": lambda: sizes("Qwen2", 4096, 32, 32, 11008, 151936),
    "Qwen-14B": lambda: sizes("Qwen2", 5120, 40, 40, 13696, 152064),
    "Qwen-72B": lambda: sizes("Qwen2", 8192, 80, 64, 24576, 152064),
    "qwen-1_8b-chat": lambda: sizes("Qwen2", 2048, 24, 16, 5504, 151936),
    "qwen-7b-chat": lambda: sizes("Qwen2", 4096, 32, 32, 11008, 151936),
    "qwen-14b-chat": lambda: sizes("Qwen2", 5120, 40, 40, 13696, 152064),
    "yi-6b-chat": lambda: sizes("Llama", 4096, 32, 32, 11008, 64000, num_key_value_heads=4),
    "yi-34b-chat": lambda: sizes("Llama", 7168, 60, 56, 20480, 64000, num_key_value_heads=8),
    "openbuddy-zephyr-7b-chat": lambda: sizes(
        "Mistral", 4096, 32, 32, 14336, 36608, num_key_value_heads=8
    ),
    "baichuan2-7b-chat": lambda: sizes("Llama", 4096, 32, 32, 11008, 125696),
    "baichuan2-13b-chat": lambda: sizes("Llama", 5120, 40, 40, 13696, 125696),
    "chatglm3-6b": lambda: sizes("Qwen2", 4096, 28, 32, 13696, 65024, num_key_value_heads=2),
    "llama-2-7b": lambda: sizes("Llama", 4096, 32, 32, 11008, 32000),
    "llama-3.1-8b": lambda: sizes("Llama", 4096, 32, 32, 14336, 128256, num_key_value_heads=8),
    "llama-3.2-1b": lambda: sizes(
        "Llama", 2048, 16, 32, 8192, 128256, num_key_value_heads=8
    ),
    "llama-3.2-3b": lambda: sizes(
        "Llama", 3072, 28, 24, 8192, 128256, num_key_value_heads=8
    ),
    "mistral-7b": lambda: sizes("Mistral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8),
    "mistral-7b-v0.2": lambda: sizes("Mistral", 4096, 32, 32, 14336, 32000, num_key_value_heads=8),
    "tiny-llama": lambda: sizes("Llama", 2048, 22, 32, 5632, 32000, num_key_value_heads=4),
    "Phi-3-mini-4k-instruct": lambda: sizes("Phi3", 3072, 32, 32, 8192, 32064, pad_token_id=0),
    "gemma-2b": lambda: _gemma(2048, 18, 8, 1, 16384),
    "gemma-7b": lambda: _gemma(3072, 28, 16, 16, 24576),
    "stablelm-base-alpha-3b": lambda: (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig(
            hidden_size=4096, num_hidden_layers=16, num_attention_heads=32, vocab_size=50688,
            intermediate_size=16384, max_position_embeddings=4096, use_cache=False,
        ),
    ),
}  # fmt: skip


class _FourBits(torch.autograd.Function):
    """A linear layer of weights in 4 bits, as bitsandbytes 0.42 has it, which LitGPT asked for.

    It unpacks them to float16, then to the input's type. It keeps the input too, which backward
    doesn't need (bitsandbytes#1270), and as an attribute, which backward doesn't free.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.x, ctx.packed, ctx.shape = x, packed, shape
        return F.linear(x, packed.new_zeros(shape, dtype=torch.float16).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weight = ctx.packed.new_zeros(ctx.shape, dtype=torch.float16).to(gradient.dtype)
        return gradient @ weight, None, None


class FourBitLinear(nn.Linear):
    """Weights in NF4 as bitsandbytes keeps them: 2 a byte, a float32 scale for each 64."""

    def pack(self) -> None:
        """Replace the weight by its packed form."""
        self.shape = tuple(self.weight.shape)
        self.packed = nn.Parameter(self.weight.new_zeros(self.weight.numel() // 2, 1).byte(), False)
        self.scales = nn.Parameter(torch.zeros(self.weight.numel() // 64), False)
        self.weight = nn.Parameter(torch.zeros(0), False)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        out = _FourBits.apply(x, self.packed, self.shape)
        return out if self.bias is None else out + self.bias


class GptqLinear(nn.Linear):
    """GPTQ's weights as AutoGPTQ 0.4.2 keeps them, 8 in an int32, unpacked for each matmul."""

    def pack(self) -> None:
        """Replace the weight by its packed form, with a scale and a zero for each 128."""
        out, inner = self.weight.shape
        self.register_buffer("packed", torch.zeros(inner // 8, out, dtype=torch.int32))
        self.register_buffer("scales", torch.zeros(inner // 128, 1, out, dtype=torch.float16))
        self.register_buffer("zeros", torch.zeros(inner // 128, 1, out // 8, dtype=torch.int32))
        self.register_buffer("shifts", torch.zeros(1, 8, 1, dtype=torch.int32))
        self.weight = nn.Parameter(torch.zeros(0), False)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        wide = self.packed.unsqueeze(1).expand(-1, 8, -1)
        weight = torch.bitwise_right_shift(wide, self.shifts).to(torch.int8)
        weight = weight.reshape(-1, 128, self.out_features)
        zeros = self.zeros.to(torch.int8).repeat(1, 1, 8)
        weight = (self.scales * (weight - zeros)).reshape(self.in_features, self.out_features)
        out = torch.matmul(x.half(), weight)
        return out if self.bias is None else out + self.bias


def pack_linears(model: nn.Module, kind: Any = FourBitLinear) -> nn.Module:
    """Turn all linear layers into packed ones; GPTQ leaves the head as it is."""
    kept = model.get_output_embeddings() if kind is GptqLinear else None
    for module in model.modules():
        if type(module) is nn.Linear and module is not kept:
            module.__class__ = kind
            module.pack()
    return model


PARTS = {  # LitGPT's names of what gets LoRA: ours
    "query": ("q_proj", "query_key_value", "qkv_proj"),
    "value": ("v_proj",),
    "key": ("k_proj",),
    "projection": ("o_proj", "dense"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "dense_h_to_4h", "dense_4h_to_h"),
    "head": ("lm_head", "embed_out"),
}


def linears(model: nn.Module, parts: list[str]) -> list[str]:
    """List the names of a model's layers that these parts mean."""
    found = {
        name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)
    }
    return sorted(found & {name for part in parts for name in PARTS[part]})


def litgpt_lora(row: Row) -> Step:
    """Train LoRA in bfloat16 on texts of 512 tokens; the head works through 128 at a time.

    Lightning returns the logits in float32. Two micro-batches, since the loop's variables keep the
    first one's graph until the second one has run forward.
    """
    kind, config = MODELS[row["model"]]()
    model = build(kind, config, dtype=HALF)
    if row["trains"].startswith("qlora"):
        pack_linears(model)
    rank, parts = re.fullmatch(r"q?lora r(\d+) \((.*)\)", row["trains"]).groups()
    model = with_lora(model, int(rank), linears(model, parts.split(", ")), 0.05, HALF)
    inner, batch = model.get_base_model(), int(row["batch"])
    ids = torch.zeros(batch, 512, dtype=torch.long)
    head = inner.get_output_embeddings()
    made = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

    def step() -> None:
        for _ in range(2):
            hidden = inner.base_model(input_ids=ids).last_hidden_state
            logits = [head(part).float() for part in hidden.split(128, 1)]
            logits[-1] = logits[-1][:, :-1]
            parts = zip(logits, ids[:, 1:].split(128, 1), strict=True)
            losses = [F.cross_entropy(p.flatten(0, 1), t.flatten()) for p, t in parts]
            loss = torch.stack(losses).mean()
            loss.backward()
        made.step()
        made.zero_grad()

    return step, model, made


def adapted(row: Row, rank: int, names: list[str], embeddings: bool = False) -> Step:
    """Train LoRA as transformers' Trainer: blocks checkpointed, gradients clipped."""
    kind, config = MODELS[row["model"]]()
    model = build(kind, config, dtype=HALF)
    if "int4" in row["precision"]:
        pack_linears(model, GptqLinear)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    model = with_lora(model, rank, names, 0.05)
    if embeddings:  # peft keeps the old ones, and trains copies
        for old in (model.get_input_embeddings(), model.get_output_embeddings()):
            old.kept = nn.Parameter(torch.zeros_like(old.weight), False)
            old.weight.requires_grad_()
    seq = int(re.search(r"\d+", row["sequence_or_image"]).group())
    ids = tokens(int(row["batch"]), seq)["input_ids"]

    def loss() -> Tensor:
        with torch.autocast("cuda", HALF):
            logits = model(input_ids=ids).logits
            logits = logits if kind == "Qwen2ForCausalLM" else logits.float()
            shifted = logits[..., :-1, :].contiguous()
            found = F.cross_entropy(shifted.flatten(0, 1), ids[:, 1:].flatten())
        loss.outputs = logits.float()  # as accelerate gives them back
        return found

    return train(model, loss, clip=True)


LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def qwen(row: Row) -> Step:
    """Train LoRA of rank 64 on all linear layers of a block, as Qwen's finetune.py does."""
    return adapted(row, 64, LINEARS, "emb" in row["trains"])


def swift(row: Row) -> Step:
    """Train LoRA of the attention's first projection, or of all linear layers."""
    rank = int(row["trains"].split()[1].strip("r,"))
    return adapted(row, rank, LINEARS if "ALL" in row["trains"] else LINEARS[:3])


# ---- CARMA: one training script for each, in float32 ----


def vision(make: Callable[[], nn.Module], side: int, classes: int, optimizer: str):
    """Return the step of an image classifier."""

    def step_of(row: Row) -> Step:
        model, batch = make().train(), int(row["batch"])
        x, target = torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
        return train(model, lambda: F.cross_entropy(model(x), target), optimizer)

    return step_of


def _timm(name: str) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=100)


def _torchvision(name: str, **fields: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision.models, name)(**fields)


def gpt2_large(row: Row) -> Step:
    """Train GPT-2 large on 8 texts of 512 tokens."""
    sizes = {"n_embd": 1280, "n_layer": 36, "n_head": 20}
    config = transformers.GPT2Config(vocab_size=50257, **sizes)
    return fp32("GPT2LMHeadModel", config, lambda: tokens(8, 512), attention="sdpa")


def xlnet_large(row: Row) -> Step:
    """Train XLNet large as a classifier on 4 texts of 512 tokens."""
    config = transformers.XLNetConfig(d_model=1024, n_layer=24, n_head=16, d_inner=4096)
    ids, label = torch.zeros(4, 512, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    data = {"input_ids": ids, "labels": label, "attention_mask": torch.ones(4, 512)}
    return fp32("XLNetForSequenceClassification", config, lambda: data, clip=True)


CARMA: dict[str, Callable[[Row], Step]] = {
    "efficientNet_cifar100": vision(_timm("efficientnet_b0"), 32, 100, "adamw"),
    "mobilenet_cifar100": vision(_timm("mobilenetv3_small_100"), 32, 100, "adamw"),
    "resnet18_cifar100": vision(_timm("resnet18"), 32, 100, "adamw"),
    "resnet34_cifar100": vision(_timm("resnet34"), 32, 100, "adamw"),
    "resnet50_cifar100": vision(_timm("efficientnet_b0"), 32, 100, "adamw"),  # so the script
    "efficientNet": vision(_torchvision("efficientnet_b0"), 224, 1000, "adam"),
    "mobilenet": vision(_torchvision("mobilenet_v2"), 224, 1000, "adam"),
    "resnet50": vision(_torchvision("resnet50"), 224, 1000, "adam"),
    "Inception": vision(_torchvision("inception_v3", aux_logits=False), 299, 1000, "adam"),
    "Xception": vision(lambda: timm.create_model("xception"), 224, 1000, "adam"),
    "gpt2_large_on_wiki": gpt2_large,
    "xlnet_large_cased": xlnet_large,
}


# ---- detectron2's model zoo: two images of 800 x 1333, 512 boxes drawn from each ----


class _Frozen(nn.Module):
    """A batch norm that is not trained: a product and a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1, width, 1, 1))
        self.register_buffer("shift", torch.zeros(1, width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        return x * self.scale + self.shift


class _Crops(torch.autograd.Function):
    """ROIAlign: it keeps the boxes, and its backward fills a gradient of the whole map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, boxes: int, side: int) -> Tensor:
        ctx.shape = x.shape
        return x.new_zeros(boxes, x.shape[1], side, side)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.new_zeros(ctx.shape), None, None


def _conv(i: int, o: int, side: int) -> nn.Conv2d:
    return nn.Conv2d(i, o, side, padding=side // 2)


class Detector(nn.Module):
    """Faster and Mask R-CNN on a ResNet: `C4`, `DC5` or `FPN`, as the configuration says."""

    def __init__(self, trunk: str, kind: str, classes: int, boxes: bool, masks: bool) -> None:
        super().__init__()
        dilated = [False, False, kind == "DC5"]
        make = getattr(torchvision.models, trunk)
        self.trunk = make(norm_layer=_Frozen, replace_stride_with_dilation=dilated)
        for module in self.trunk.modules():
            if isinstance(module, torchvision.models.resnet.Bottleneck) and "x" not in trunk:
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        self.trunk.fc = nn.Identity()
        for part in (self.trunk.conv1, self.trunk.layer1):
            part.requires_grad_(False)
        self.kind, self.boxes, self.masks = kind, boxes, masks
        width = {"C4": 1024, "DC5": 2048, "FPN": 256}[kind]
        if kind == "FPN":
            self.inner = nn.ModuleList(_conv(256 * 2**i, 256, 1) for i in range(4))
            self.outer = nn.ModuleList(_conv(256, 256, 3) for _ in range(4))
        anchors = 3 if kind == "FPN" else 15
        self.rpn = nn.ModuleList([_conv(width, width, 3), _conv(width, anchors, 1)])
        self.rpn.append(_conv(width, 4 * anchors, 1))
        if kind == "C4" and not boxes:
            self.trunk.layer4 = nn.Identity()
        if boxes:
            fc = nn.Sequential(
                nn.Flatten(), nn.Linear(49 * width, 1024), nn.ReLU(True), nn.Linear(1024, 1024),
                nn.ReLU(True),
            )  # fmt: skip
            self.fc = nn.Identity() if kind == "C4" else fc
            found = 2048 if kind == "C4" else 1024
            self.score, self.place = nn.Linear(found, classes + 1), nn.Linear(found, 4 * classes)
        if masks:
            wide = 2048 if kind == "C4" else 256
            convs = (
                [] if kind == "C4" else [_conv(width, 256, 3), *(_conv(256, 256, 3) for _ in "123")]
            )
            self.mask = nn.Sequential(*(p for c in convs for p in (c, nn.ReLU())))
            self.up, self.last = nn.ConvTranspose2d(wide, 256, 2, 2), _conv(256, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the losses' sum: of anchors, of boxes, of masks."""
        t, losses = self.trunk, []
        x = t.layer1(t.maxpool(t.relu(t.bn1(t.conv1(x)))))
        maps = [x, t.layer2(x)]
        maps.append(t.layer3(maps[-1]))
        if self.kind != "C4":
            maps.append(t.layer4(maps[-1]))
        if self.kind == "FPN":
            inner, levels = None, []
            for i in (3, 2, 1, 0):
                side = self.inner[i](maps[i])
                if inner is not None:
                    side = side + F.interpolate(inner, size=side.shape[-2:])
                inner = side
                levels.insert(0, self.outer[i](inner))
            levels.append(F.max_pool2d(levels[-1], 1, 2))
        else:
            levels = maps[-1:]
        del maps
        for level in levels:
            hidden = F.relu(self.rpn[0](level))
            losses += [self.rpn[1](hidden).sum(), self.rpn[2](hidden).abs().sum()]
        crops = 512 * len(x)
        if self.boxes:
            parts = levels[:4] if self.kind == "FPN" else levels
            side = 14 if self.kind == "C4" else 7
            cut = torch.cat([_Crops.apply(one, crops // len(parts), side) for one in parts])
            found = t.layer4(cut) if self.kind == "C4" else self.fc(cut)
            if self.masks and self.kind == "C4":
                some = found[torch.arange(crops // 4)]
            elif self.masks:
                each = crops // 4 // len(parts)
                some = self.mask(torch.cat([_Crops.apply(one, each, 14) for one in parts]))
            del cut
            pooled = found.mean([2, 3]) if self.kind == "C4" else found
            goal = torch.zeros(crops, dtype=torch.long)
            losses += [F.cross_entropy(self.score(pooled), goal), self.place(pooled).abs().sum()]
            if self.masks:
                logits = self.last(F.relu(self.up(some)))[:, 0]
                losses.append(F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits)))
        return torch.stack([loss.float() for loss in losses]).sum()


OF_DETECTRON2 = r"(rpn|faster_rcnn|mask_rcnn)_(R_50|R_101|X_101_32x8d)_(C4|DC5|FPN)(_[13]x)?$"


def detectron(row: Row) -> Step:
    """Train on two images; a quarter of the boxes have masks; DDP holds a copy of gradients.

    Those are the most boxes that are drawn. Left out are anchors, proposals and their matching.
    """
    name = row["id"]
    trunk = (
        "resnext101_32x8d" if "X_101" in name else "resnet101" if "R_101" in name else "resnet50"
    )
    kind = next(kind for kind in ("C4", "DC5", "FPN") if kind in name)
    masks = "mask_rcnn" in name
    model = Detector(trunk, kind, 20 if "VOC" in name else 80, "rpn" not in name, masks).train()
    images = torch.randn(2, 3, 800, 1344 if kind == "FPN" else 1333)
    trained = [p for p in model.parameters() if p.requires_grad]
    model.register_buffer("buckets", torch.zeros(sum(p.numel() for p in trained)))
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        model(images).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step, model, optimizer


# ---- what describes a row, or why nothing does ----

MANY = "several ranks with a launcher of its own"
REASONS = {
    "modded-nanogpt": "each log's own program, compiled, on 8 cards",
    "PEFT": "texts of their own lengths: the longest batch is not known",
    "torchtitan": f"compiled, or {MANY}",
    "Megatron": MANY,
    "DeepSpeed": f"{MANY}: an outcome alone",
    "torchgpipe": "a pipeline over several cards",
    "MiniCPM": "weights and optimizer on the host, several ranks",
    "RWKV": "kernels of its own, and a tenth of a GB in the figure",
    "torchao": f"compiled, and {MANY}",
    "finetrainers": "video model without a recipe here",
    "detectron2": "a head or a norm without a recipe here",
    "LitGPT": "several ranks, or a copy of the row of one card",
    "Qwen": "DeepSpeed's buffers, on one rank or several",
    "ms-swift": "weights of GPTQ's or bitsandbytes' kernels, or their type is not said",
    "CARMA": "a model without a recipe here",
    "CogVideoX": "DeepSpeed's offload on 2 ranks",
}


def step_for(row: Row) -> Callable[[], Step] | str:
    """Find what describes a row: its step's maker, or the reason why none is here."""
    source, one = row["source"], row["gpus"] in {"", "1"}
    bare = next(reason for start, reason in REASONS.items() if source.startswith(start))
    made: Callable[[Row], Step] | None = None
    if source.startswith("PEFT") and "flux2" in row["id"]:
        made = flux
    elif source.startswith("CogVideoX") and one:
        made = cogvideox
    elif source.startswith("LitGPT") and one and row["model"] in MODELS:
        made = litgpt_lora
    elif source.startswith("Qwen") and row["trains"] in {"LoRA", "LoRA (emb)", "Q-LoRA"} and one:
        made = qwen
    elif source.startswith("ms-swift") and row["precision"] == "bf16" and one:
        made = swift if row["trains"] != "all" and row["model"] in MODELS else None
    elif source.startswith("CARMA"):
        made = CARMA.get(row["model"])
    elif source.startswith("detectron2") and re.search(OF_DETECTRON2, row["id"]):
        made = detectron
    return partial(made, row) if made else bare
