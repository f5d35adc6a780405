"""Models and steps that nobody here built the instruments for: name -> function that builds a step.

All are small random configurations of published architectures, or ways to train that people use.
`timm`'s are tried where it is installed. course/recorded/make/foreign.py prints the whole table.
"""

import copy
import importlib.util

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

KINDS = {}
QUICK = []
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HIDDEN = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    "num_attention_heads": 4,
}


def kind(name, *, quick=False, needs=None):
    """Register a function that builds `(step, model, optimizer)`."""

    def register(build):
        if needs is None or importlib.util.find_spec(needs):
            KINDS[name] = build
            if quick:
                QUICK.append(name)
        return build

    return register


def trained(model, loss, optimizer=None):
    """A plain training step."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(parameters, lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step, model, optimizer


def ids(batch=2, seq=16, most=90):
    return torch.randint(3, most, (batch, seq))


# ---- transformers ----


def library(name, model_name, batch, *, quick=False, config="", **sizes):
    """Register a step of a model of transformers on a batch that `batch()` makes."""

    @kind(name, quick=quick)
    def build():
        import transformers

        make = getattr(transformers, config or model_name.partition("For")[0] + "Config")
        model = getattr(transformers, model_name)(make(**sizes))
        inputs = batch()
        return trained(model, lambda: _loss(model(**inputs)))


def _loss(out):
    for name in ("loss", "loss_value", "sample", "last_hidden_state", "logits"):
        if getattr(out, name, None) is not None:
            value = getattr(out, name)
            return value if value.dim() == 0 else value.float().square().mean()
    raise AssertionError(f"no loss in {out}")


def _labelled(**more):
    def batch():
        tokens = ids()
        return {"input_ids": tokens, "labels": tokens, **{k: v() for k, v in more.items()}}

    return batch


def _padded():
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 10:] = 0
    return mask


LLAMA = {**IDS, **HIDDEN, "num_key_value_heads": 2, "use_cache": False}
IMAGE = {"image_size": 32, "patch_size": 8, "num_channels": 3}


def _images(size=32, batch=2):
    return torch.randn(batch, 3, size, size)


def _all_ones():
    return torch.ones(2, 16, dtype=torch.long)


_T5 = {
    **{"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    **{"vocab_size": 99, "decoder_start_token_id": 0},
}
library("T5", "T5ForConditionalGeneration", _labelled(), **_T5)
library("Llama, padding", "LlamaForCausalLM", _labelled(attention_mask=_padded), **LLAMA)
library(
    "Llama, mask of ones",
    "LlamaForCausalLM",
    _labelled(attention_mask=_all_ones),
    quick=True,
    **LLAMA,
)
library("Qwen3", "Qwen3ForCausalLM", _labelled(), **LLAMA, head_dim=8, max_window_layers=2)
library("Gemma 3", "Gemma3ForCausalLM", _labelled(), **LLAMA, head_dim=8, config="Gemma3TextConfig")
library(
    "Mixtral, float32",
    "MixtralForCausalLM",
    _labelled(),
    quick=True,
    **LLAMA,
    **{"num_local_experts": 4, "num_experts_per_tok": 2},
)
library(
    "Mamba",
    "MambaForCausalLM",
    _labelled(),
    **IDS,
    **{"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "use_cache": False},
)
library(
    "DeBERTa",
    "DebertaV2ForMaskedLM",
    _labelled(),
    **IDS,
    **HIDDEN,
    **{"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
)
library(
    "Longformer",
    "LongformerForMaskedLM",
    _labelled(),
    **IDS,
    **HIDDEN,
    **{"attention_window": 4, "max_position_embeddings": 64},
)
library(
    "Swin",
    "SwinForImageClassification",
    lambda: {"pixel_values": _images(), "labels": torch.tensor([0, 1])},
    **{"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2]},
    **{"num_heads": [2, 4], "window_size": 4},
)
library(
    "ConvNext",
    "ConvNextForImageClassification",
    lambda: {"pixel_values": _images(64), "labels": torch.tensor([0, 1])},
    quick=True,
    **{"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "drop_path_rate": 0.1},
)
library(
    "ViT-MAE",
    "ViTMAEForPreTraining",
    lambda: {"pixel_values": _images()},
    **HIDDEN,
    **IMAGE,
    **{"decoder_hidden_size": 32, "decoder_intermediate_size": 64},
    **{"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4},
)


@kind("CLIP")
def clip():
    import transformers

    text = {**HIDDEN, **IDS, "max_position_embeddings": 16}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**HIDDEN, **IMAGE}, projection_dim=16
    )
    model = transformers.CLIPModel(config)
    inputs = {"input_ids": ids(), "pixel_values": _images()}
    return trained(model, lambda: model(**inputs, return_loss=True).loss)


_WHISPER = {
    **{"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64},
    **{"decoder_ffn_dim": 64, "num_mel_bins": 16, "max_source_positions": 32},
    **{"max_target_positions": 32, "decoder_start_token_id": 1, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2},
}
library(
    "Whisper",
    "WhisperForConditionalGeneration",
    lambda: {"input_features": torch.randn(2, 16, 64), "labels": ids()},
    **_WHISPER,
)
_WAV2VEC2 = {
    **{**HIDDEN, "vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 4)},
    **{"conv_kernel": (10, 8), "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    **{"num_feat_extract_layers": 2, "mask_time_length": 4, "ctc_loss_reduction": "mean"},
}


def _speech():
    return {"input_values": torch.randn(2, 2000), "labels": torch.randint(1, 30, (2, 6))}


library("wav2vec2", "Wav2Vec2ForCTC", _speech, **_WAV2VEC2, layerdrop=0.0, quick=True)
library("wav2vec2, LayerDrop", "Wav2Vec2ForCTC", _speech, **_WAV2VEC2, layerdrop=0.5)
library(
    "LayoutLM",
    "LayoutLMForMaskedLM",
    _labelled(bbox=lambda: torch.randint(0, 99, (2, 16, 4)).sort(-1).values),
    **IDS,
    **HIDDEN,
    **{"max_2d_position_embeddings": 128},
)


@kind("LLaVA")
def llava():
    import transformers

    vision = transformers.CLIPVisionConfig(**HIDDEN, **IMAGE)
    text = transformers.LlamaConfig(**LLAMA)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=98, vision_feature_layer=-1
    )
    model = transformers.LlavaForConditionalGeneration(config)
    tokens = torch.cat([torch.full((2, 16), 98), ids()], 1)
    inputs = {"input_ids": tokens, "pixel_values": _images(), "labels": tokens}
    return trained(model, lambda: model(**inputs).loss)


@kind("DETR")
def detr():
    import transformers

    backbone = transformers.ResNetConfig(
        **{"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, out_features=["stage2"]
    )
    sizes = {
        **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 5},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64},
        **{"decoder_ffn_dim": 64, "num_labels": 4},
    }
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, **sizes
    )
    model = transformers.DetrForObjectDetection(config)
    labels = [
        {"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4)},
        {"class_labels": torch.tensor([0]), "boxes": torch.rand(1, 4)},
    ]
    images = _images(64)
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss)


@kind("LoRA", quick=True)
def lora():
    import peft
    import transformers

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    )
    tokens = ids()
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


# ---- diffusers ----


def diffused(name, class_name, call, **sizes):
    """Register a step of a model of diffusers on what `call()` gives."""

    @kind(name)
    def build():
        import diffusers

        model = getattr(diffusers, class_name)(**sizes)
        inputs = call()
        return trained(model, lambda: _loss(model(**inputs)))


def _time(batch=2):
    return torch.randint(0, 1000, (batch,))


diffused(
    "DiT",
    "DiTTransformer2DModel",
    lambda: {
        **{"hidden_states": torch.randn(2, 4, 8, 8), "timestep": _time()},
        "class_labels": torch.randint(0, 10, (2,)),
    },
    **{"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "num_layers": 2},
    **{"sample_size": 8, "patch_size": 2, "norm_num_groups": 4, "num_embeds_ada_norm": 10},
)
diffused(
    "SD3",
    "SD3Transformer2DModel",
    lambda: {
        **{"hidden_states": torch.randn(2, 4, 8, 8), "timestep": _time()},
        "encoder_hidden_states": torch.randn(2, 6, 32),
        "pooled_projections": torch.randn(2, 64),
    },
    **{"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2},
    **{"attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 32},
    **{"caption_projection_dim": 32, "pooled_projection_dim": 64, "out_channels": 4},
)
diffused(
    "Flux",
    "FluxTransformer2DModel",
    lambda: {
        **{"hidden_states": torch.randn(2, 16, 4), "timestep": torch.rand(2)},
        "encoder_hidden_states": torch.randn(2, 6, 32),
        "pooled_projections": torch.randn(2, 32),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(6, 3),
    },
    **{"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1},
    **{"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32},
    **{"pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
)
diffused(
    "CogVideoX",
    "CogVideoXTransformer3DModel",
    lambda: {
        **{"hidden_states": torch.randn(1, 5, 4, 8, 8), "timestep": _time(1)},
        "encoder_hidden_states": torch.randn(1, 8, 16),
    },
    **{"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4},
    **{"out_channels": 4, "time_embed_dim": 8, "text_embed_dim": 16, "num_layers": 2},
    **{"sample_width": 8, "sample_height": 8, "sample_frames": 9, "patch_size": 2},
    **{"temporal_compression_ratio": 4, "max_text_seq_length": 8},
)
diffused(
    "Wan",
    "WanTransformer3DModel",
    lambda: {
        **{"hidden_states": torch.randn(1, 4, 2, 8, 8), "timestep": _time(1)},
        "encoder_hidden_states": torch.randn(1, 8, 16),
    },
    **{"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12},
    **{"in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 32, "ffn_dim": 32},
    **{"num_layers": 2, "cross_attn_norm": True, "rope_max_seq_len": 32},
)
diffused(
    "LTX",
    "LTXVideoTransformer3DModel",
    lambda: {
        **{"hidden_states": torch.randn(1, 32, 4), "timestep": _time(1)},
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "encoder_attention_mask": torch.ones(1, 8, dtype=torch.bool),
        **{"num_frames": 2, "height": 4, "width": 4},
    },
    **{"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "num_layers": 1},
    **{"attention_head_dim": 16, "cross_attention_dim": 32, "caption_channels": 32},
)
diffused(
    "AutoencoderKL",
    "AutoencoderKL",
    lambda: {"sample": _images(), "sample_posterior": True},
    **{"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4},
    **{"down_block_types": ("DownEncoderBlock2D",) * 2},
    **{"up_block_types": ("UpDecoderBlock2D",) * 2},
)
diffused(
    "UNet3D",
    "UNet3DConditionModel",
    lambda: {
        **{"sample": torch.randn(1, 4, 2, 16, 16), "timestep": _time(1)},
        "encoder_hidden_states": torch.randn(1, 4, 32),
    },
    **{"sample_size": 16, "block_out_channels": (8, 16), "norm_num_groups": 4},
    **{"cross_attention_dim": 32, "attention_head_dim": 4},
    **{"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D")},
    **{"up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
)


@kind("ControlNet")
def controlnet():
    import diffusers

    sizes = {
        **{"block_out_channels": (8, 16), "norm_num_groups": 4, "cross_attention_dim": 16},
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "attention_head_dim": 4,
    }
    unet = diffusers.UNet2DConditionModel(
        **sizes, sample_size=16, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")
    ).requires_grad_(False)
    control = diffusers.ControlNetModel.from_unet(
        unet, conditioning_embedding_out_channels=(8, 16)
    ).train()
    control.requires_grad_(True)
    x, text, image = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 16), torch.randn(1, 3, 32, 32)
    time = _time(1)

    def loss():
        down, middle = control(x, time, text, controlnet_cond=image, return_dict=False)
        return (
            unet(
                x,
                time,
                text,
                down_block_additional_residuals=down,
                mid_block_additional_residual=middle,
            )
            .sample.square()
            .mean()
        )

    return trained(control, loss)


# ---- timm ----


def _timm(name, size=64, **settings):
    def build():
        import timm

        model = timm.create_model(name, num_classes=10, drop_path_rate=0.1, **settings)
        images, labels = _images(size), torch.tensor([1, 2])
        return trained(model, lambda: F.cross_entropy(model(images), labels))

    return build


for _name, _model, _settings in (
    ("timm EfficientNet", "efficientnet_b0", {}),
    ("timm EVA-02", "eva02_tiny_patch14_224", {"img_size": 56, "depth": 2, "size": 56}),
    ("timm Swin v2", "swinv2_tiny_window8_256", {"img_size": 64, "depths": (1, 1, 1, 1)}),
    ("timm ViT", "vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
    ("timm MaxViT", "maxvit_rmlp_pico_rw_256", {"img_size": 64}),
):
    kind(_name, needs="timm")(_timm(_model, **_settings))


# ---- plain PyTorch: layers ----


@kind("nn.Transformer")
def plain_transformer():
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    x, y = torch.randn(2, 8, 32), torch.randn(2, 8, 32)
    return trained(model, lambda: model(x, y).square().mean())


@kind("LSTM", quick=True)
def lstm():
    model = nn.LSTM(16, 32, num_layers=2, batch_first=True, dropout=0.1)
    x = torch.randn(4, 12, 16)
    return trained(model, lambda: model(x)[0].square().mean())


@kind("packed GRU", quick=True)
def packed_gru():
    model, lengths = nn.GRU(16, 32, batch_first=True), torch.tensor([12, 9, 5, 3])
    x = torch.randn(4, 12, 16)

    def loss():
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = model(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].square().mean()

    return trained(model, loss)


@kind("EmbeddingBag")
def embedding_bag():
    model = nn.Sequential(nn.EmbeddingBag(50, 16), nn.Linear(16, 4))
    x = torch.randint(0, 50, (8, 5))
    return trained(model, lambda: model(x).square().mean())


@kind("complex, FFT")
def complex_fft():
    model, x = nn.Linear(16, 16), torch.randn(4, 16)
    weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))
    model.register_parameter("filter", weight)
    return trained(
        model, lambda: torch.fft.irfft(torch.fft.rfft(model(x)) * weight, n=16).square().mean()
    )


@kind("weight and spectral norm")
def normed_weights():
    from torch.nn.utils.parametrizations import spectral_norm, weight_norm

    model = nn.Sequential(
        weight_norm(nn.Linear(16, 32)), nn.ReLU(), spectral_norm(nn.Linear(32, 4))
    )
    x = torch.randn(8, 16)
    return trained(model, lambda: model(x).square().mean())


@kind("compiled")
def compiled():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    model.compile()
    x = torch.randn(4, 16)
    return trained(model, lambda: model(x).square().mean())


@kind("module hooks")
def hooked():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[1].register_full_backward_hook(lambda module, gin, gout: (gin[0] * 0.5,))
    x = torch.randn(4, 16)
    return trained(model, lambda: model(x).square().mean())


@kind("scatter GNN")
def scatter_gnn():
    model = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
    x, edges = torch.randn(30, 16), torch.randint(0, 30, (2, 80))

    def loss():
        h = x
        for layer in model:
            messages = layer(h)[edges[0]]
            h = torch.zeros_like(h).index_add(0, edges[1], messages).relu()
        return h.square().mean()

    return trained(model, loss)


@kind("custom Function")
def custom_function():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    model, x = nn.Linear(16, 16), torch.randn(8, 16)
    return trained(model, lambda: Square.apply(model(x)).mean())


@kind("channels last")
def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model.to(memory_format=torch.channels_last)
    x = _images().to(memory_format=torch.channels_last)
    return trained(model, lambda: model(x).square().mean())


@kind("boolean mask", quick=True)
def boolean_mask():
    model, x = nn.Linear(16, 16), torch.randn(8, 10, 16)
    keep = (torch.arange(80) % 3 > 0).view(8, 10)
    return trained(model, lambda: model(x)[keep].square().mean())


@kind("CTC", quick=True)
def ctc():
    model, x = nn.Linear(16, 12), torch.randn(20, 3, 16)
    labels, frames = torch.randint(1, 12, (3, 6)), torch.tensor([20, 18, 15])
    sizes = torch.tensor([6, 5, 4])
    return trained(
        model, lambda: F.ctc_loss(model(x).log_softmax(-1), labels, frames, sizes, reduction="mean")
    )


@kind("jagged tensors", quick=True)
def jagged():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    parts = [torch.randn(size, 16) for size in (3, 5, 2)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return trained(model, lambda: model(x).values().square().mean())


@kind("sparse gradients, SGD", quick=True)
def sparse_sgd():
    model, x = nn.Embedding(50, 16, sparse=True), torch.randint(0, 50, (4, 6))
    return trained(
        model, lambda: model(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1)
    )


@kind("sparse bags, SGD", quick=True)
def sparse_bags():
    model, x = nn.EmbeddingBag(50, 16, mode="sum", sparse=True), torch.randint(0, 50, (4, 6))
    return trained(
        model, lambda: model(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1)
    )


@kind("sparse gradients, SparseAdam")
def sparse_adam():
    model, x = nn.Embedding(50, 16, sparse=True), torch.randint(0, 50, (4, 6))
    return trained(
        model, lambda: model(x).square().mean(), torch.optim.SparseAdam(model.parameters())
    )


@kind("sparse adjacency", quick=True)
def sparse_adjacency():
    model, x = nn.Linear(16, 16), torch.randn(50, 16)
    edges = torch.randint(0, 50, (2, 200))
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(200), (50, 50)).coalesce()
    return trained(model, lambda: torch.sparse.mm(adjacency, model(x)).square().mean())


# ---- plain PyTorch: steps ----


def _mlp(width=16):
    return nn.Sequential(nn.Linear(16, 2 * width), nn.GELU(), nn.Linear(2 * width, 16))


@kind("checkpoint, save_on_cpu")
def offloaded():
    model, x = _mlp(), torch.randn(8, 16)

    def loss():
        with torch.autograd.graph.save_on_cpu():
            return checkpoint(model, x, use_reentrant=False).square().mean()

    return trained(model, loss)


@kind("reentrant checkpoint")
def reentrant():
    model, x = _mlp(), torch.randn(8, 16, requires_grad=True)
    return trained(model, lambda: checkpoint(model, x, use_reentrant=True).square().mean())


@kind("Muon")
def muon():
    model, x = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)), None
    x = torch.randn(8, 16)
    return trained(model, lambda: model(x).square().mean(), torch.optim.Muon(model.parameters()))


@kind("Adafactor")
def adafactor():
    model, x = _mlp(), torch.randn(8, 16)
    return trained(
        model, lambda: model(x).square().mean(), torch.optim.Adafactor(model.parameters())
    )


@kind("LBFGS")
def lbfgs():
    model, x = _mlp(), torch.randn(8, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure), model, optimizer


@kind("loss.item()", quick=True)
def logged():
    model, x, log = _mlp(), torch.randn(8, 16), []
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        log.append(loss.item())

    return step, model, optimizer


@kind("GAN")
def gan():
    model = nn.ModuleDict({"G": _mlp(), "D": nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))})
    first, second = (torch.optim.Adam(model[name].parameters()) for name in "GD")
    real, ones = torch.randn(8, 16), torch.ones(8, 1)

    def step():
        fake = model["G"](torch.randn(8, 16))
        second.zero_grad()
        judged = F.binary_cross_entropy_with_logits(model["D"](real), ones)
        guessed = F.binary_cross_entropy_with_logits(model["D"](fake.detach()), 0 * ones)
        (judged + guessed).backward()
        second.step()
        first.zero_grad()
        F.binary_cross_entropy_with_logits(model["D"](fake), ones).backward()
        first.step()

    return step, model, None


@kind("accumulation, EMA")
def averaged():
    model, x = _mlp(), torch.randn(4, 8, 16)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        for part in x:
            (model(part).square().mean() / len(x)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.01)

    return step, model, optimizer


@kind("torch.func")
def functional():
    model, x = _mlp(), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def loss(parameters, one):
        return torch.func.functional_call(model, parameters, (one,)).square().mean()

    def step():
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        for name, parameter in model.named_parameters():
            parameter.grad = grads[name].mean(0)
        optimizer.step()

    return step, model, optimizer


@kind("double backward")
def penalised():
    model, x = _mlp(), torch.randn(8, 16, requires_grad=True)

    def loss():
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.square().mean() + grad.square().mean()

    return trained(model, loss)


@kind("optimizer in backward")
def in_backward():
    model, x = _mlp(), torch.randn(8, 16)
    optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return lambda: model(x).square().mean().backward(), model, None


@kind("GradScaler", quick=True)
def scaled():
    model, x = _mlp(), torch.randn(8, 16)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer


# ---- several ranks (inside `ranks.pretend(4)`) ----


def _layers(width=64):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]), torch.randn(8, width)


@kind("DDP", quick=True)
def ddp():
    model, x = _layers()
    wrapped = nn.parallel.DistributedDataParallel(model)
    return trained(wrapped, lambda: wrapped(x).square().mean())


@kind("FSDP2", quick=True)
def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, x = _layers()
    mesh = init_device_mesh("cpu", (4,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    adamw = torch.optim.AdamW(model.parameters(), foreach=False)
    return trained(model, lambda: model(x).square().mean(), adamw)


@kind("tensor parallel", quick=True)
def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    model, x = _layers()
    plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
    adamw = torch.optim.AdamW(model.parameters(), foreach=False)
    return trained(model, lambda: model(x).square().mean(), adamw)


# ---- further ones, that nobody had tried before ----

library(
    "Bart",
    "BartForConditionalGeneration",
    _labelled(),
    **{**IDS, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64},
    **{"decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"max_position_embeddings": 64, "decoder_start_token_id": 2},
)
library(
    "ModernBERT",
    "ModernBertForMaskedLM",
    _labelled(attention_mask=_padded),
    **{**IDS, **HIDDEN, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2},
)
library(
    "Bloom",
    "BloomForCausalLM",
    _labelled(),
    **{**IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False},
)
library(
    "DeepSeek-V3",
    "DeepseekV3ForCausalLM",
    _labelled(),
    **{**LLAMA, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "q_lora_rank": 16},
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"first_k_dense_replace": 1},
)
library(
    "SegFormer",
    "SegformerForSemanticSegmentation",
    lambda: {"pixel_values": _images(64), "labels": torch.randint(0, 3, (2, 64, 64))},
    **{"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 16], "decoder_hidden_size": 16},
    **{"num_attention_heads": [1, 2, 2, 2], "num_labels": 3},
)
library(
    "DINOv2",
    "Dinov2ForImageClassification",
    lambda: {"pixel_values": _images(), "labels": torch.tensor([0, 1])},
    **{**IMAGE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"drop_path_rate": 0.1},
)
library(
    "PatchTST",
    "PatchTSTForPrediction",
    lambda: {"past_values": torch.randn(2, 32, 3), "future_values": torch.randn(2, 8, 3)},
    **{"num_input_channels": 3, "context_length": 32, "prediction_length": 8, "d_model": 32},
    **{"num_hidden_layers": 1, "num_attention_heads": 4, "ffn_dim": 64, "patch_length": 8},
    **{"patch_stride": 8},
)
diffused(
    "UNet2D",
    "UNet2DModel",
    lambda: {"sample": _images(), "timestep": _time()},
    **{"sample_size": 32, "block_out_channels": (8, 16), "norm_num_groups": 4},
    **{"down_block_types": ("DownBlock2D", "AttnDownBlock2D")},
    **{"up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
)
diffused(
    "VQModel",
    "VQModel",
    lambda: {"sample": _images()},
    **{"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4},
    **{"down_block_types": ("DownEncoderBlock2D",) * 2},
    **{"up_block_types": ("UpDecoderBlock2D",) * 2, "num_vq_embeddings": 16},
)


@kind("language model, LSTM both ways")
def both_ways():
    model = nn.ModuleList([nn.Embedding(50, 16), nn.LSTM(16, 24, bidirectional=True)])
    tokens = torch.randint(0, 50, (12, 4))
    return trained(model, lambda: model[1](model[0](tokens))[0].square().mean())


@kind("experts by hand", quick=True)
def experts():
    model = nn.ModuleDict(
        {"router": nn.Linear(16, 3), "experts": nn.ModuleList([_mlp() for _ in range(3)])}
    )
    x = torch.randn(60, 16)

    def loss():
        chosen = model["router"](x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(model["experts"]):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return out.square().mean()

    return trained(model, loss)


@kind("adaptive softmax")
def adaptive_softmax():
    model = nn.AdaptiveLogSoftmaxWithLoss(16, 60, cutoffs=[10, 30])
    x, labels = torch.randn(40, 16), torch.arange(40) % 60
    return trained(model, lambda: model(x, labels).loss)


@kind("attention with weights and padding")
def attention_weights():
    model, x = nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(2, 8, 32)
    padding = torch.zeros(2, 8, dtype=torch.bool)
    padding[1, 5:] = True
    return trained(
        model, lambda: model(x, x, x, key_padding_mask=padding, need_weights=True)[0].mean()
    )


@kind("REINFORCE")
def reinforce():
    model, states = nn.Linear(16, 4), torch.randn(32, 16)

    def loss():
        policy = torch.distributions.Categorical(logits=model(states))
        action = policy.sample()
        reward = (action == 2).float()
        return -(policy.log_prob(action) * (reward - reward.mean())).mean()

    return trained(model, loss)


@kind("skip a step that is not finite", quick=True)
def skip_nan():
    model, x = _mlp(), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if norm < 1e9:
            optimizer.step()

    return step, model, optimizer


@kind("triplets mined in the batch")
def triplets():
    model, x = nn.Linear(16, 8), torch.randn(12, 16)
    labels = torch.arange(12) % 3

    def loss():
        distances = torch.cdist(model(x), model(x))
        same = labels[:, None] == labels[None]
        hardest = (distances * same).amax(1) - (distances + 1e6 * same).amin(1)
        return hardest[hardest > -1].clamp(min=0).mean()

    return trained(model, loss)


@kind("early exit")
def early_exit():
    model, x = nn.ModuleList([_mlp() for _ in range(3)]), torch.randn(8, 16)

    def loss():
        h = x
        for block in model:
            h = block(h)
            if h.softmax(-1).amax().item() > 0.99:
                break
        return h.square().mean()

    return trained(model, loss)


@kind("singular values")
def singular_values():
    model, x = nn.Linear(16, 16), torch.randn(8, 16)
    return trained(
        model, lambda: model(x).square().mean() + torch.linalg.svdvals(model.weight).sum()
    )


@kind("averaged weights, schedule")
def scheduled():
    model, x = _mlp(), torch.randn(8, 16)
    optimizer = torch.optim.NAdam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50)
    average = torch.optim.swa_utils.AveragedModel(model)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)

    return step, model, optimizer


@kind("metrics beside the loss", quick=True)
def metrics():
    model, x, labels = nn.Linear(16, 4), torch.randn(32, 16), torch.arange(32) % 4
    best = {"accuracy": 0.0}

    def loss():
        logits = model(x)
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
        best["accuracy"] = max(best["accuracy"], accuracy)
        confusion = torch.bincount(labels * 4 + logits.argmax(-1), minlength=16).cpu().numpy()
        best["errors"] = confusion.sum() - confusion.reshape(4, 4).trace()
        return F.cross_entropy(logits, labels)

    return trained(model, loss)


@kind("batch from NumPy")
def from_numpy():
    import numpy as np

    model, x = nn.Linear(16, 4), torch.from_numpy(np.ones((8, 16), dtype=np.float32))
    return trained(model, lambda: model(x).square().mean())


@kind("data loader in the step")
def data_loader():
    from torch.utils.data import DataLoader, TensorDataset

    model, rows = _mlp(), TensorDataset(torch.randn(12, 16))
    loader = DataLoader(rows, batch_size=4, shuffle=True)
    return trained(model, lambda: sum(model(x).square().mean() for (x,) in loader))


@kind("ZeRO stage 1")
def zero_one():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, x = _layers()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW)
    return trained(wrapped, lambda: wrapped(x).square().mean(), optimizer)


@kind("sequence parallel")
def sequence_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, parallel

    model, x = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)), torch.randn(2, 8, 64)
    plan = {
        "0": parallel.SequenceParallel(),
        "1": parallel.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    }
    parallel.parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
    adamw = torch.optim.AdamW(model[0].parameters(), foreach=False)
    return trained(model, lambda: model[0](x).to_local().square().mean(), adamw)
