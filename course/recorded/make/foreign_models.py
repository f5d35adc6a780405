"""Models and steps that nobody here built the instruments for: name -> function that builds a step.

All are small random configurations of published architectures, or ways to train that people use.
`timm`'s are tried where it is installed. foreign.py prints the whole table.
"""

import copy
import functools
import importlib.util
from pathlib import Path

import torch
import yaml
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

KINDS = {}
QUICK = []
SIZES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


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


def squared(model, x, optimizer=None):
    """A plain training step whose loss is the mean square of what the model makes of a batch."""
    return trained(model, lambda: model(x).square().mean(), optimizer)


def ids(batch=2, seq=16, most=90):
    return torch.randint(3, most, (batch, seq))


# ---- transformers ----


def library(name, model_name, batch, *, quick=False, config=""):
    """Register a step of a model of transformers, of its sizes, on a batch that `batch()` makes."""

    @kind(name, quick=quick)
    def build():
        import transformers

        make = getattr(transformers, config or model_name.partition("For")[0] + "Config")
        model = getattr(transformers, model_name)(make(**SIZES[name]))
        inputs = batch()
        return trained(model, lambda: _loss(model(**inputs)))


def _loss(out):
    for name in ("loss", "loss_value", "sample", "last_hidden_state", "logits"):
        if getattr(out, name, None) is not None:
            value = getattr(out, name)
            return value if value.dim() == 0 else value.float().square().mean()
    raise AssertionError(f"no loss in {out}")


def _labelled(**more):
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens, **{k: v() for k, v in more.items()}}


def _padded():
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 10:] = 0
    return mask


def _images(size=32, batch=2):
    return torch.randn(batch, 3, size, size)


def _classes(size=32):
    return {"pixel_values": _images(size), "labels": torch.tensor([0, 1])}


def _speech():
    return {"input_values": torch.randn(2, 2000), "labels": torch.randint(1, 30, (2, 6))}


_with_padding = functools.partial(_labelled, attention_mask=_padded)
_with_ones = functools.partial(_labelled, attention_mask=lambda: torch.ones_like(_padded()))
_boxes = functools.partial(_labelled, bbox=lambda: torch.randint(99, (2, 16, 4)).sort(-1).values)
library("T5", "T5ForConditionalGeneration", _labelled)
library("Llama, padding", "LlamaForCausalLM", _with_padding)
library("Llama, mask of ones", "LlamaForCausalLM", _with_ones, quick=True)
library("Qwen3", "Qwen3ForCausalLM", _labelled)
library("Gemma 3", "Gemma3ForCausalLM", _labelled, config="Gemma3TextConfig")
library("Mixtral, float32", "MixtralForCausalLM", _labelled, quick=True)
library("Mamba", "MambaForCausalLM", _labelled)
library("DeBERTa", "DebertaV2ForMaskedLM", _labelled)
library("Longformer", "LongformerForMaskedLM", _labelled)
library("Swin", "SwinForImageClassification", _classes)
library("ConvNext", "ConvNextForImageClassification", lambda: _classes(64), quick=True)
library("ViT-MAE", "ViTMAEForPreTraining", lambda: {"pixel_values": _images()})
library(
    "Whisper",
    "WhisperForConditionalGeneration",
    lambda: {"input_features": torch.randn(2, 16, 64), "labels": ids()},
)
library("wav2vec2", "Wav2Vec2ForCTC", _speech, quick=True)
library("wav2vec2, LayerDrop", "Wav2Vec2ForCTC", _speech)
library("LayoutLM", "LayoutLMForMaskedLM", _boxes)
library("Bart", "BartForConditionalGeneration", _labelled)
library("ModernBERT", "ModernBertForMaskedLM", _with_padding)
library("Bloom", "BloomForCausalLM", _labelled)
library("DeepSeek-V3", "DeepseekV3ForCausalLM", _labelled)
library(
    "SegFormer",
    "SegformerForSemanticSegmentation",
    lambda: {"pixel_values": _images(64), "labels": torch.randint(0, 3, (2, 64, 64))},
)
library("DINOv2", "Dinov2ForImageClassification", _classes)
library(
    "PatchTST",
    "PatchTSTForPrediction",
    lambda: {"past_values": torch.randn(2, 32, 3), "future_values": torch.randn(2, 8, 3)},
)


@kind("CLIP")
def clip():
    import transformers

    config = transformers.CLIPConfig(
        text_config=SIZES["CLIP, text"], vision_config=SIZES["CLIP, vision"], projection_dim=16
    )
    model = transformers.CLIPModel(config)
    inputs = {"input_ids": ids(), "pixel_values": _images()}
    return trained(model, lambda: model(**inputs, return_loss=True).loss)


@kind("LLaVA")
def llava():
    import transformers

    vision = transformers.CLIPVisionConfig(**SIZES["CLIP, vision"])
    text = transformers.LlamaConfig(**SIZES["_llama"])
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

    backbone = transformers.ResNetConfig(**SIZES["DETR, backbone"])
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, **SIZES["DETR"]
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

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES["_llama"]))
    model = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    )
    tokens = ids()
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


# ---- diffusers ----


def diffused(name, class_name, call):
    """Register a step of a model of diffusers, of its sizes, on what `call()` gives."""

    @kind(name)
    def build():
        import diffusers

        model = getattr(diffusers, class_name)(**SIZES[name])
        inputs = call()
        return trained(model, lambda: _loss(model(**inputs)))


def _time(batch=2):
    return torch.randint(0, 1000, (batch,))


def _noisy(*shape, text, **more):
    """Latents, their times and a text."""
    given = {"hidden_states": torch.randn(shape), "timestep": _time(shape[0])}
    given["encoder_hidden_states"] = torch.randn(shape[0], *text)
    return given | {name: make() for name, make in more.items()}


diffused(
    "DiT",
    "DiTTransformer2DModel",
    lambda: {
        **{"hidden_states": torch.randn(2, 4, 8, 8), "timestep": _time()},
        "class_labels": torch.randint(0, 10, (2,)),
    },
)
diffused(
    "SD3",
    "SD3Transformer2DModel",
    lambda: _noisy(2, 4, 8, 8, text=(6, 32), pooled_projections=lambda: torch.randn(2, 64)),
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
)
diffused("CogVideoX", "CogVideoXTransformer3DModel", lambda: _noisy(1, 5, 4, 8, 8, text=(8, 16)))
diffused("Wan", "WanTransformer3DModel", lambda: _noisy(1, 4, 2, 8, 8, text=(8, 16)))
diffused(
    "LTX",
    "LTXVideoTransformer3DModel",
    lambda: {
        **_noisy(1, 32, 4, text=(8, 32)),
        "encoder_attention_mask": torch.ones(1, 8, dtype=torch.bool),
        **{"num_frames": 2, "height": 4, "width": 4},
    },
)
diffused("AutoencoderKL", "AutoencoderKL", lambda: {"sample": _images(), "sample_posterior": True})
diffused(
    "UNet3D",
    "UNet3DConditionModel",
    lambda: {
        **{"sample": torch.randn(1, 4, 2, 16, 16), "timestep": _time(1)},
        "encoder_hidden_states": torch.randn(1, 4, 32),
    },
)
diffused("UNet2D", "UNet2DModel", lambda: {"sample": _images(), "timestep": _time()})
diffused("VQModel", "VQModel", lambda: {"sample": _images()})


@kind("ControlNet")
def controlnet():
    import diffusers

    sizes, ups = SIZES["ControlNet"], ("UpBlock2D", "CrossAttnUpBlock2D")
    unet = diffusers.UNet2DConditionModel(**sizes, sample_size=16, up_block_types=ups)
    unet.requires_grad_(False)
    control = diffusers.ControlNetModel.from_unet(
        unet, conditioning_embedding_out_channels=(8, 16)
    ).train()
    control.requires_grad_(True)
    x, text, image = torch.randn(1, 4, 16, 16), torch.randn(1, 4, 16), torch.randn(1, 3, 32, 32)
    time = _time(1)

    def loss():
        down, middle = control(x, time, text, controlnet_cond=image, return_dict=False)
        added = {
            "down_block_additional_residuals": down,
            "mid_block_additional_residual": middle,
        }
        return unet(x, time, text, **added).sample.square().mean()

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
    return squared(model, torch.randint(0, 50, (8, 5)))


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
    return squared(model, torch.randn(8, 16))


@kind("compiled")
def compiled():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    model.compile()
    return squared(model, torch.randn(4, 16))


@kind("module hooks")
def hooked():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[1].register_full_backward_hook(lambda module, gin, gout: (gin[0] * 0.5,))
    return squared(model, torch.randn(4, 16))


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
    return squared(model, _images().to(memory_format=torch.channels_last))


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
    model = nn.Embedding(50, 16, sparse=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return squared(model, torch.randint(0, 50, (4, 6)), sgd)


@kind("sparse bags, SGD", quick=True)
def sparse_bags():
    model = nn.EmbeddingBag(50, 16, mode="sum", sparse=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return squared(model, torch.randint(0, 50, (4, 6)), sgd)


@kind("sparse gradients, SparseAdam")
def sparse_adam():
    model = nn.Embedding(50, 16, sparse=True)
    adam = torch.optim.SparseAdam(model.parameters())
    return squared(model, torch.randint(0, 50, (4, 6)), adam)


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
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))
    return squared(model, torch.randn(8, 16), torch.optim.Muon(model.parameters()))


@kind("Adafactor")
def adafactor():
    model = _mlp()
    return squared(model, torch.randn(8, 16), torch.optim.Adafactor(model.parameters()))


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
    return squared(nn.parallel.DistributedDataParallel(model), x)


@kind("FSDP2", quick=True)
def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, x = _layers()
    mesh = init_device_mesh("cpu", (4,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return squared(model, x, torch.optim.AdamW(model.parameters(), foreach=False))


@kind("tensor parallel", quick=True)
def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import parallel

    model, x = _layers()
    plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
    return squared(model, x, torch.optim.AdamW(model.parameters(), foreach=False))


# ---- further ones, that nobody had tried before ----


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

    model = nn.Linear(16, 4)
    return squared(model, torch.from_numpy(np.ones((8, 16), dtype=np.float32)))


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
    return squared(wrapped, x, optimizer)


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
