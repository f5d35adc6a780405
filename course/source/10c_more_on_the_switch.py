# %% [markdown] id="title"
# # More on the library's switch
#
# This companion of chapter 10 is optional: no lab and no later chapter needs it. It looks at the
# switch on four models where its effect is not what one expects, judges three published figures of
# BERT-Large, and asks which of four strategies saves most.
#
# **Budget:** 40 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import warnings
from functools import partial
from itertools import product

import pandas as pd
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from tutorial_lib import claims, data, memory
from tutorial_lib.instruments import recorded
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.published.libraries import making_lora
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GB

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # with small steps a second core is waited for


def switch_on(model, **options):
    older = getattr(model, "gradient_checkpointing_enable", None)  # before 5.23
    getattr(model, "activation_checkpointing_enable", older)(options or None)
    return model


# %% [markdown] id="swin"
# ## Swin: what if layers that can be checkpointed are nested?
#
# Swin is a vision transformer in four stages. In transformers both its stages and the blocks
# inside them can be checkpointed. We compare the switch on a small Swin with checkpointing the
# blocks alone.
#
# **Predict.** Forward is about a third of a step, and checkpointing repeats it. How many percent
# more FLOPs does the switch cost here?

# %% id="guess-swin"
guess = None  # %


# %% id="swin-model"
SWIN = {"image_size": 64, "patch_size": 2, "num_channels": 1, "num_labels": 10}
SWIN |= {"embed_dim": 32, "depths": (2, 2, 6, 2), "num_heads": (1, 2, 4, 8)}


def small_swin():
    config = transformers.SwinConfig(window_size=4, drop_path_rate=0.0, **SWIN)
    return transformers.SwinForImageClassification(config).train()


# %% id="swin-ways"
def blocks_alone(model):
    for module in switch_on(model).modules():
        if type(module).__name__ == "SwinStage":
            module.gradient_checkpointing = False
    return model


def swin_backward(model):
    model(pixel_values=images, labels=labels).loss.backward()


ways = {"plain": nn.Identity(), "the switch": switch_on, "blocks alone": blocks_alone}

# %% id="swin-measure"
images, labels = (part[:2] for part in data.digits(64))
peaks, flops = {}, {}
for name, change in ways.items():
    model = change(small_swin())
    step = partial(swin_backward, model)
    report = memory.measure(step, model=model, flops=True)
    peaks[name], flops[name] = str(report.peak_bytes), report.flops
more = {name: 100 * (count / flops["plain"] - 1) for name, count in flops.items()}
print(f"the switch: {more['the switch']:.0f} % more{beside(guess, more['the switch'])}")
pd.DataFrame({"peak": peaks, "FLOPs more, %": more}).round(0)

# %% [markdown] id="read-swin"
# The switch checkpoints twice, one level inside the other. Backward runs a stage again, and inside
# it runs each block once more. That costs nearly a whole forward pass and saves nothing: the peak
# is the same without the outer level. No test of gradients can notice, because the gradients are
# right. So whenever you switch something on, look at two numbers of a step: its peak and its FLOPs.
#
# ## LoRA: do the weights still learn?
#
# With `use_reentrant=True`, checkpointing cuts the graph when a segment's input needs no gradient
# (chapter 04). With LoRA the embeddings are frozen, so the first block's input needs none. Here
# peft adds LoRA weights to every linear layer of a small ViT, and trains the head as well.

# %% id="lora-vit"
SHAPE = {"image_size": 32, "patch_size": 4, "num_channels": 1, "num_labels": 10}
SHAPE |= {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
digit_images, digit_labels = (part[:32] for part in data.digits(32))


def lora_vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SHAPE, intermediate_size=256)
    vit = transformers.ViTForImageClassification(config)
    lora = LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"])
    with making_lora():  # peft warns of names, and refuses the torchao that Colab has
        return get_peft_model(vit, lora).train()


# %% id="lora-train"
def train(model):
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(learning, lr=3e-3), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(pixel_values=digit_images, labels=digit_labels).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    reached = sum(p.grad is not None for p in learning)
    return len(learning), reached, losses[-1] < losses[0]


# %% id="lora-variants"
variants = {
    "off": lora_vit(),
    "use_reentrant=False": switch_on(lora_vit(), use_reentrant=False),
    "use_reentrant=True": switch_on(lora_vit(), use_reentrant=True),
    "True, inputs asked": switch_on(lora_vit(), use_reentrant=True),
}
variants["True, inputs asked"].enable_input_require_grads()

# %% [markdown] id="predict-frozen"
# The model is trained in four ways: without the switch; with each setting of `use_reentrant`; and
# with a cure that recipes name, `enable_input_require_grads()`.
#
# **Predict.** 74 tensors are to be trained. How many of them get a gradient with
# `use_reentrant=True`?

# %% id="guess-frozen"
guess = None  # tensors

# %% id="measure-frozen"
table = {}
for name, model in variants.items():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table[name] = train(model)
    table[name] += (any("requires_grad" in str(one.message) for one in said),)
reached = table["use_reentrant=True"][1]
print(f"use_reentrant=True: {reached} tensors{beside(guess, reached)}")
heads = ["to train", "with a gradient", "loss falls", "warned"]
pd.DataFrame.from_dict(table, orient="index", columns=heads)

# %% [markdown] id="read-frozen"
# With `use_reentrant=True` the LoRA weights did not train. The head did, so the loss falls all the
# same. The only sign is one warning: "None of the inputs have requires_grad=True". So count
# the gradients, and do not watch the loss.
#
# The cure of the recipes, `enable_input_require_grads()`, hangs a hook on the embeddings that
# calls `output.requires_grad_(True)`. For text models the library's switch does this by itself. For
# image models it does so only after transformers' own `add_adapter`, not after peft's
# `get_peft_model` as here. `use_reentrant=False`, today's default of the library, needs no cure.
#
# ## Is `use_cache=False` required?
#
# Every recipe sets it, "required with checkpointing". GPT-2's configuration says `True` from the
# start. Here are all four combinations:

# %% id="cache"
SIZES = {"vocab_size": 256, "n_positions": 128, "n_layer": 8, "n_head": 4}
tokens = next(data.text_batches(2, 128))  # (batch, sequence)


def peak(cache, change):
    torch.manual_seed(0)
    config = GPT2Config(**SIZES, n_embd=128, use_cache=cache)
    model = change(AutoModelForCausalLM.from_config(config).train())
    loss = partial(model, input_ids=tokens, labels=tokens)
    return str(memory.measure(lambda: loss().loss.backward(), model=model).peak_bytes)


# %% id="cache-table"
peaks = {}
for cache in (True, False):
    peaks["plain", f"use_cache={cache}"] = peak(cache, nn.Identity())
    peaks["checkpointed", f"use_cache={cache}"] = peak(cache, switch_on)
pd.Series(peaks).unstack(0)

# %% [markdown] id="read-cache"
# The switch turns the cache off by itself, so with the switch the setting changes nothing.
# *Without* the switch a training step builds a cache that nobody reads. So `use_cache=False` is
# right in training, but for another reason than the recipes give.
#
# ## CLIP: two encoders, one peak
#
# CLIP has an encoder for images and one for text. Here are 64 pairs under autocast, predicted for
# the kernels of a GPU and recorded before.

# %% id="clip"
rows, clip = recorded.load("predicted").rows, {}


def found(*choice, **choices):
    recipe = Recipe(*choice, precision="bf16-amp", **choices)
    return rows[recipe.label()]["report"]


for way in ("none", "per-block", "library-switch"):
    report = found("clip-two-tower", 64, checkpointing=way)
    clip[way] = f"{report['peak_bytes'] / 2**30:.2f}", report["peak_phase"]
pd.DataFrame(clip, index=["peak, GiB", "peak in"]).T

# %% [markdown] id="read-clip"
# Both ways of checkpointing stop at the same peak, that of the optimizer's update, which
# checkpointing does not lower.
#
# A single encoder takes both techniques. Here is ViT-B with 32 images: at once, and as 8 x 4 with
# checkpointing. (Of the four micro-batches two were predicted, since the second has the peak of the
# fourth.)

# %% id="vit-both"
vit_b = {
    "32 x 1": found("vit-b-16", 32),
    "8 x 4, checkpointed": found(
        "vit-b-16", 8, checkpointing="per-block", accumulation=2
    ),
}
vit_b = {step: report["peak_bytes"] / GB for step, report in vit_b.items()}
pd.Series(vit_b).round(1).to_frame("peak, GB")

# %% id="verdict-both"
vit_whole, vit_part = vit_b.values()
claims.Verdicts(
    claims.Verdict("A19", "shown", "ViT takes both as it is; Swin's switch checkpoints "
        "twice over, at the price of nearly one more forward. CLIP's loss is another "
        "matter: see lab 07.", f"ViT-B, 32 images: {vit_whole:.1f} GB to "
        f"{vit_part:.1f} GB", "predicted", cell="vit-both", device="CUDA kernels"),
)  # fmt: skip

# %% [markdown] id="bert"
# ## BERT-Large: 24, 8, 5 GB?
#
# Source 1 of chapter 10 claims three steps: 16 sequences of 512 at once take 24 GB, the same 16 as
# 4 x 4 take 8, and 4 x 4 checkpointed 5. It names no kernel, precision or optimizer. A step of 4 x
# 4 peaks where one micro-batch of 4 does, with the gradients on top.


# %% id="bert-16"
def bert_peaks(*batch, **choices):
    peaks = {}
    for kernel, precision in product(("eager", "sdpa"), ("fp32", "bf16-amp")):
        under = {"attention": kernel, "precision": precision} | choices
        row = rows.get(Recipe("bert-large", *batch, **under).label(), {"report": {}})
        peaks[f"{kernel}, {precision}"] = row["report"].get("peak_bytes")
    return pd.Series(peaks, dtype=float) / GB


gradients = 4 * Recipe("bert-large").num_parameters / GB
print(f"AdamW in float32, 16 bytes a parameter: {4 * gradients:.1f} GB")
bert, lean = [], {"checkpointing": "per-block", "accumulation": 4}
for name in ("adamw", "adamw-8bit"):
    steps = {"16 at once": bert_peaks(16, 512, optimizer=name)}
    steps["4 x 4"] = bert_peaks(4, 512, optimizer=name) + gradients
    steps["4 x 4, checkpointed"] = bert_peaks(4, 512, optimizer=name, **lean)
    found_now = pd.DataFrame(steps)
    bert.append(found_now.set_axis([f"{under}, {name}" for under in found_now.index]))
bert = pd.concat(bert)
bert.map(lambda n: "-" if pd.isna(n) else f"{n:.1f}")

# %% [markdown] id="read-bert"
# (A dash was not predicted: there the update is the peak, in each kernel and precision.) With
# 8-bit states, 2 bytes a parameter instead of 8, each of the three figures comes near, and not
# under one condition. 24 GB needs eager attention, with which 4 x 4 needs more than 8. The fused
# kernel brings 4 x 4 below 8, and 16 at once far below 24. With plain AdamW 5 GB is out of reach:
# its 16 bytes a parameter are more than that.

# %% id="verdict-bert"
claims.Verdicts(
    claims.Verdict("A13", "partly", "Each figure is near the truth with 8-bit states, "
        "and not under one condition: 24 GB needs eager attention, 8 GB the fused "
        "kernel.", ", ".join(f"{what} {bert[what].min():.1f} to {bert[what].max():.1f}"
        for what in bert) + " GB", "predicted", cell="bert-16", device="CUDA kernels",
        tried={what: bert[what].dropna() for what in bert}),
)  # fmt: skip

# %% [markdown] id="strategy"
# ## Which strategy saves most?
#
# Source 2 of chapter 10 ranks four strategies, for no model in particular, by the memory that they
# save and the time that they cost. Here is GPT-2 Medium, 8 sequences of 1024: what backward adds
# to memory at its peak, in percent of the plain step.

# %% id="strategy-table"
said = {"per-block": (70, 50), "every-2": (50, 30), "sqrt": (60, 25),
        "attention-only": (40, 15)}  # fmt: skip
added = {}
for way in ("none", *said):
    report = found("gpt2-medium", 8, checkpointing=way)
    added[way] = report["phases"]["backward"] - report["baseline_bytes"]
ranking = pd.DataFrame(said, index=["claimed, %", "claimed time, %"]).T
saved = 100 * (1 - pd.Series(added) / added["none"])
ranking.insert(1, "predicted, %", saved[ranking.index].round().astype(int))
ranking

# %% id="strategy-eager"
eager, recipe = {}, partial(Recipe, "gpt2-medium", 8, precision="bf16-amp")
for way in ("none", "attention-only"):
    step = recipe(attention="eager", checkpointing=way).make_step
    report = memory.predict(step)
    eager[way] = report.phases["backward"] - report.baseline_bytes
f"attention only, eager: {1 - eager['attention-only'] / eager['none']:.0%}"

# %% [markdown] id="read-strategy"
# Three of the four save nearly the same. With every block, and with every two, the peak is the
# loss: logits and their gradients, before any block is recomputed. With sqrt(n) it is a segment of
# several blocks being recomputed, with most gradients there. The inputs of blocks, which longer
# segments save, are a small part. In the table, attention alone saves a sixth of its claim, because
# a fused kernel leaves little there to discard. With eager attention, in the line below the table,
# it saves more than is claimed.
#
# The claimed times do not follow from arithmetic. Every block, every two and sqrt(n) all run the
# same blocks once more, so they add the same arithmetic, at most a third of a step. Chapter 06
# finds the best segment length.

# %% [markdown] id="end"
# ## What you can now do
#
# - Find a switch that nests, from two numbers of one step: peak and FLOPs.
# - Find weights that do not learn, by counting gradients.
#
# Back to the core: chapter 11, `11_diffusion_unets`.
