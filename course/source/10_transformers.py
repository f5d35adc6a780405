# %% [markdown] id="title"
# # Transformers, as published
#
# To train a published transformer in less memory, an engineer sets these lines:
#
# ```python
# model = AutoModelForCausalLM.from_config(config)  # from_pretrained: with trained weights
# model.gradient_checkpointing_enable({"use_reentrant": False})
#
# TrainingArguments(..., gradient_checkpointing=True, per_device_train_batch_size=4,
#                   gradient_accumulation_steps=4)  # the Trainer does the rest
#
# accelerator = Accelerator(gradient_accumulation_steps=4)  # or: your own loop
# with accelerator.accumulate(model):
#     ...
# ```
#
# (The newest versions say `activation_checkpointing`; both names do the same.) What the second
# line does is shown in *One switch* and the two sections after it. The last sections run the
# Trainer and Accelerate. Between them stand the claims, six figures that are copied from tutorial
# to tutorial:
#
# | | without | with checkpointing | source |
# |---|---|---|---|
# | GPT-2 XL, 32 sequences of 1024 | activations 40 GB, in all 60 GB | 12 GB, 32 GB | [1] |
# | BERT-Large, 16 sequences of 512 | 24 GB; as 4 x 4 micro-batches 8 GB | 5 GB | [1] |
# | a transformer of 50 layers | 24 GB of activations | 8 GB | [2] |
# | Llama 7B | | saves 71 % | [2] |
# | ViT-L | | saves 58 % | [2] |
# | BERT-Large, 512 sequences | 14949 MB; accumulated 8681 MB | 6775 MB | [3] |
#
# [1] "Gradient Checkpointing vs Gradient Accumulation: Memory Optimization Techniques", without
# author or measurement. [2] "Gradient Checkpointing" in
# [Gaurav14cs17/GenAI](https://github.com/Gaurav14cs17/GenAI), folder
# `08_systems_and_optimization`. [3] The [performance guide of transformers
# 4.18](https://huggingface.co/docs/transformers/v4.18.0/en/performance).
#
# Sources 1 and 2 name no attention kernel, precision or optimizer. So this chapter asks of each
# figure: *under which conditions would it be true?*
#
# **Budget:** 60 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import json
import statistics
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from unittest import mock

import torch
import transformers
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from tutorial_lib import claims, data, device, memory, plots, recorded, strategies
from tutorial_lib.models.libraries import making_lora
from tutorial_lib.training import Recipe
from tutorial_lib.units import GB, GIB, MIB, Bytes

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # small steps lose more by waiting for a second core than they gain

# %% [markdown] id="switch"
# ## One switch: what does it wrap?
#
# Every model of transformers has a method that switches checkpointing on. Newer versions call it
# `activation_checkpointing_enable` and warn of the old name `gradient_checkpointing_enable`.
# `switch_on` calls the one that is installed. The models are built on the device `meta`, where a
# tensor has a shape and no memory.


# %% id="switch-on"
def switch_on(model, **options):
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)(options or None)
    return model


def wrapped(model):
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    return Counter(type(layer).__name__ for layer in layers if layer.gradient_checkpointing)


names = ("gpt2", "gpt2-xl", "bert-large", "llama-2-7b", "vit-l-16", "clip-two-tower")
for name in names:
    [(layer, number)] = wrapped(switch_on(Recipe(name).make_model("meta"))).items()
    print(f"{name:<15} {number} x {layer}")

# %% [markdown] id="read-switch"
# Each block is one segment, in both encoders of CLIP too. The switch does not touch what stands
# before and after the blocks: embeddings, last norm, head, loss.
#
# **Predict.** Take the smallest GPT-2, 8 sequences of 1024 tokens, with the switch on. It keeps
# the inputs of 12 blocks. How many times their bytes does the largest tensor take that is kept for
# the loss?

# %% id="what-is-left"
with memory.predicting():  # tensors without memory, kernels of a GPU
    loss, model = Recipe("gpt2", 8).make_loss()
    kept = memory.saved(loss, params_of=switch_on(model))
for shape, num_bytes in list(kept.by("shape").items())[:3]:
    print(f"{shape:<20}{num_bytes:>10}")

# %% [markdown] id="read-left"
# The loss alone keeps several times what all inputs of blocks take: for each token, 50257
# logarithms of probabilities. Without checkpointing nobody notices this tensor. With it, this
# tensor is the largest that is left, because the switch wraps blocks and not the loss.

# %% [markdown] id="swin"
# ### Swin: the switch wraps too much
#
# Swin is a vision transformer in four stages. In transformers both its stages and the blocks
# inside them are layers that can be checkpointed. What does the switch cost on a small Swin,
# compared with checkpointing the blocks alone?


# %% id="swin-model"
def small_swin():
    sizes = {"embed_dim": 32, "depths": (2, 2, 6, 2), "num_heads": (1, 2, 4, 8), "window_size": 4}
    of_images = {"image_size": 64, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    config = transformers.SwinConfig(drop_path_rate=0.0, **sizes, **of_images)
    return transformers.SwinForImageClassification(config).train()


def blocks_alone(model):
    for module in switch_on(model).modules():
        if type(module).__name__ == "SwinStage":
            module.gradient_checkpointing = False
    return model


# %% id="swin-measure"
images, labels = data.digits(64)


def swin_backward(model):
    model(pixel_values=images[:2], labels=labels[:2]).loss.backward()


reports = {}
for name, change in {"kept": nn.Identity(), "switch": switch_on, "blocks": blocks_alone}.items():
    model = change(small_swin())
    reports[name] = memory.measure(partial(swin_backward, model), model=model, flops=True)
    flops = reports[name].flops / reports["kept"].flops
    print(f"{name:<7} peak {reports[name].peak_bytes}, FLOPs x {flops:.2f}")

# %% [markdown] id="read-swin"
# The switch nests. Backward runs a stage again, and inside it runs each block once more. That
# costs nearly a whole forward pass and saves nothing: the peak is the same without the outer
# level. No test of gradients can notice, because the gradients are right. So whenever you switch
# something on, look at two numbers of a step: its peak and its FLOPs.

# %% [markdown] id="silent"
# ## Does the switch do anything?
#
# Now a small GPT-2 of the library's own, on the source of Python's standard library.

# %% id="small-gpt2"
sizes = {"vocab_size": 256, "n_positions": 128, "n_layer": 8, "n_head": 4, "n_embd": 128}
tokens = next(data.text_batches(2, 128))  # (batch, sequence)


def small_gpt2(**choices):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **choices})).train()


def backward(model):
    model.zero_grad()
    torch.manual_seed(1)  # the same dropout each time
    model(input_ids=tokens, labels=tokens).loss.backward()


def peak(model):
    return memory.measure(partial(backward, model), model=model).peak_bytes


# %% [markdown] id="predict-eval"
# **Predict.** To fine-tune without dropout, somebody trains in `eval()`. What share of the peak
# does the switch save there, in per cent?

# %% id="measure-eval"
for mode in ("train", "eval"):
    for name, model in {"off": small_gpt2(), "on": switch_on(small_gpt2())}.items():
        getattr(model, mode)()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            print(f"{mode:<6} switch {name:<4} {peak(model)}")
print(*(warning.message for warning in said if warning.category is memory.MeterWarning))

# %% [markdown] id="read-eval"
# In `eval()` the switch is on and nothing is checkpointed, because each layer asks `if
# self.gradient_checkpointing and self.training`. The library raises nothing and logs nothing. The
# last line above is a warning of this course's meter.
#
# To train without dropout, stay in `train()` and set dropout to 0 in the configuration. The
# gradients are then those of `eval()`, to the bit:

# %% id="without-dropout"
evaluating = small_gpt2().eval()
no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
training = switch_on(small_gpt2(**no_dropout))
backward(evaluating)
backward(training)
pairs = zip(evaluating.parameters(), training.parameters(), strict=True)
print(all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs), peak(training))

# %% [markdown] id="cache"
# Every recipe also sets `use_cache=False`, "required with checkpointing". Is it? GPT-2's
# configuration says `True` from the start:

# %% id="measure-cache"
for cache in (True, False):
    for name, change in {"off": nn.Identity(), "on": switch_on}.items():
        model = change(small_gpt2(use_cache=cache))
        print(f"use_cache {cache!s:<6} switch {name:<4} {peak(model)}")

# %% [markdown] id="read-cache"
# The switch turns the cache off by itself, so with the switch the setting changes nothing.
# *Without* the switch a training step builds a cache that nobody reads. So `use_cache=False` is
# right in training, but for another reason than the recipes give.

# %% [markdown] id="frozen"
# ## Frozen inputs: does LoRA still train?
#
# With `use_reentrant=True`, checkpointing cuts the graph when a segment's input needs no gradient
# (chapter 04). With LoRA the embeddings are frozen, so the first block's input needs none. Here
# peft adds LoRA weights to every linear layer of a small ViT, and trains the head as well.

# %% id="lora-vit"
shape = {"image_size": 32, "patch_size": 4, "num_channels": 1, "num_labels": 10}
shape |= {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
          "intermediate_size": 256}  # fmt: skip
digit_images, digit_labels = (part[:32] for part in data.digits(32))


def lora_vit():
    torch.manual_seed(0)
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**shape))
    lora = LoraConfig(r=8, target_modules="all-linear", modules_to_save=["classifier"])
    with making_lora():  # peft warns of names, and refuses the torchao that Colab has
        return get_peft_model(vit, lora).train()


# %% id="lora-train"
def trained(model, updates=6):
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=3e-3)
    losses = []
    for _ in range(updates):
        optimizer.zero_grad()
        loss = model(pixel_values=digit_images, labels=digit_labels).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    reached = sum(p.grad is not None for p in learning)
    return f"{reached:>3} of {len(learning)} tensors get a gradient", losses[-1] < losses[0]


# %% [markdown] id="predict-frozen"
# **Predict.** 74 tensors are to be trained. How many of them get a gradient with
# `use_reentrant=True`?

# %% id="measure-frozen"
variants = {"off": lora_vit()}
for reentrant in (False, True):
    variants[f"use_reentrant={reentrant}"] = switch_on(lora_vit(), use_reentrant=reentrant)
variants["True, inputs asked"] = switch_on(lora_vit(), use_reentrant=True)
variants["True, inputs asked"].enable_input_require_grads()
for name, model in variants.items():
    with warnings.catch_warnings(record=True) as said:
        reached, falls = trained(model)
    warned = any("requires_grad" in str(warning.message) for warning in said)
    print(f"{name:<20} {reached}, loss falls: {falls}, warned: {warned}")

# %% [markdown] id="read-frozen"
# With `use_reentrant=True` the LoRA weights did not train. The head did, so the loss falls all the
# same, and one warning ("None of the inputs have requires_grad=True") is all that tells.
#
# The cure of the recipes, `enable_input_require_grads()`, hangs a hook on the embeddings that
# calls `output.requires_grad_(True)`. For text models the library's switch does this by itself;
# for image models it does not, as you see. `use_reentrant=False`, today's default of the library,
# needs no cure.

# %% [markdown] id="kernels"
# ## How much does attention keep?
#
# Now the published sizes. `recorded/` holds predictions for GPU kernels, and a `Recipe` names one.
# The first condition that sources 1 and 2 leave out is the attention kernel. `eager` writes the
# scores out. `sdpa` is PyTorch's fused attention and today's default: *flash* in 16 bits,
# *memory-efficient* in float32. (A T4 is too old for flash.)

# %% id="kernel-table"
table = recorded.load("predicted")


def found(*choice, **choices):
    return table.rows[Recipe(*choice, **choices).label()]["report"]


for model in (("gpt2-xl", 8), ("bert-large", 16, 512), ("vit-l-16", 32)):
    for precision in ("fp32", "bf16-amp"):
        eager, fused = (found(*model, precision=precision, attention=kind)["at_peak"]["activations"]
                        for kind in ("eager", "sdpa"))  # fmt: skip
        print(f"{model[0]:<12}{precision:<10}{Bytes(eager):>9} -> {Bytes(fused)}")

# %% [markdown] id="read-kernels"
# The fused kernel costs nothing. It halves the activations of the long sequences, and saves less
# on a ViT, whose sequences are short. A published figure means one kernel or the other; the older
# ones were made before fused kernels existed.

# %% [markdown] id="xl"
# ## GPT-2 XL, 32 sequences: 40 GB?
#
# Six combinations of kernel and precision with PyTorch's AdamW, in decimal gigabytes like the
# claim. `bf16-amp` is autocast over float32 parameters. `bf16` is everything in bfloat16,
# optimizer states too.
#
# **Predict.** The claim is 40 GB of activations and 60 GB in all without checkpointing. In how
# many of the six combinations does that hold?

# %% id="xl-table"
xl = {}
for attention in ("eager", "sdpa"):
    for precision in ("fp32", "bf16-amp", "bf16"):
        print(f"{attention:<6}{precision:<10}", end="")
        for strategy in ("none", "per-block"):
            report = found("gpt2-xl", 32, 1024, precision=precision, attention=attention,
                           checkpointing=strategy)  # fmt: skip
            kept, whole = report["at_peak"]["activations"] / GB, report["peak_bytes"] / GB
            xl[attention, precision, strategy] = kept, whole
            print(f"{strategy:>12}: {kept:5.1f} GB, {whole:5.1f} in all", end="")
        print()

# %% [markdown] id="read-xl"
# No combination gives 40 and 60 GB: the smallest activations are nearly four times 40 GB, and that
# row already has the fused kernel and bfloat16 throughout. The checkpointed pair, 12 and 32 GB, is
# right within a tenth when everything is in bfloat16. So checkpointing saves over 90 % of the
# activations here, more than the 70 % that the source promises.
#
# Where might 40 come from? Chapter 01 counts 16 tensors a block, each of batch x sequence x width.
# In *elements*, that is

# %% id="xl-elements"
layers, width = 48, 1600
f"{16 * layers * 32 * 1024 * width / 1e9:.1f} billion"

# %% [markdown] id="read-elements"
# With one byte an element this is the claimed number. That is a guess: somebody forgot to multiply
# by the bytes of an element.
#
# Source 1 goes on: four micro-batches of 8, checkpointed, "22 GB: fits a consumer GPU" (24 GiB).
# Accumulation keeps one set of gradients through the peak (chapter 08). The same step, predicted:


# %% id="xl-accumulated"
lean = {"precision": "bf16", "checkpointing": "per-block", "accumulation": 2}
memory.MemoryReport.from_json(json.dumps(found("gpt2-xl", 8, 1024, **lean)))

# %% [markdown] id="read-accumulated"
# (Two micro-batches peak like four, because the gradients are there from the second one on.) With
# everything in bfloat16 the step fits with room to spare, so the claim is on the safe side. With
# float32 parameters it cannot fit. Parameters, gradients and two states take 16 bytes for each of
# the 1.56 billion parameters, and those alone are

# %% id="xl-floor"
num_parameters = Recipe("gpt2-xl").num_parameters
f"{Bytes(16 * num_parameters)} before the first activation"

# %% [markdown] id="bert"
# ## BERT-Large: 24, 8, 5 GB?
#
# Source 1 says: 16 sequences of 512 need 24 GB, four micro-batches of 4 need 8, and with
# checkpointing 5.

# %% id="bert-16"
bert = {}
for attention in ("eager", "sdpa"):
    for precision in ("fp32", "bf16-amp"):
        whole = found("bert-large", 16, 512, precision=precision, attention=attention)
        part = found("bert-large", 4, 512, precision=precision, attention=attention)
        # a window of several micro-batches peaks where one does, with the gradients on top
        window = part["peak_bytes"] + 4 * Recipe("bert-large").num_parameters
        bert[attention, precision] = whole["peak_bytes"] / GB, window / GB
        print(f"{attention:<6}{precision:<9} 16 at once {whole['peak_bytes'] / GB:4.1f} GB, "
              f"4 x 4 {window / GB:4.1f} GB")  # fmt: skip

# %% [markdown] id="read-bert"
# For 16 at once, 24 GB is none of the four predictions; it lies between two of them. For 4 x 4,
# 8 GB is a little below the lowest. It is what *one* micro-batch of 4 needs, without the
# gradients that wait for the other three.
#
# And 5 GB with checkpointing? 335 million parameters at 16 bytes are 5.4 GB already. What can get
# below that floor?

# %% id="bert-5"
five = {}
for optimizer in ("adamw", "adamw-8bit"):
    report = found("bert-large", 4, 512, optimizer=optimizer, checkpointing="per-block",
                   accumulation=4)  # fmt: skip
    five[optimizer] = report["peak_bytes"] / GB
    print(f"{optimizer:<12} {five[optimizer]:.1f} GB, peak in {report['peak_phase']}")

# %% [markdown] id="read-5"
# Checkpointing cannot; only a smaller optimizer state can, or smaller parameters. With 8-bit
# states (2 bytes a parameter instead of 8) the claim holds. With float32 and plain AdamW no
# micro-batch is small enough.

# %% [markdown] id="savings"
# ## "Saves 71 %", "saves 58 %": of what?
#
# A share of the whole peak depends on kernel, precision, batch and optimizer. ViT-L, 32 images of
# 224 x 224:

# %% id="vit"
vit = {}
for micro_batch, attention in ((32, "eager"), (32, "sdpa"), (96, "sdpa")):
    for precision in ("fp32", "bf16-amp"):
        before, after = (
            found("vit-l-16", micro_batch, precision=precision, attention=attention,
                  checkpointing=how)["peak_bytes"] for how in ("none", "per-block")
        )  # fmt: skip
        vit[micro_batch, attention, precision] = before, after
        print(f"{micro_batch} images, {attention:<6}{precision:<9}{Bytes(before):>9} -> "
              f"{Bytes(after)}, saves {1 - after / before:.0%}")  # fmt: skip

# %% id="vit-both"
several = Recipe("vit-b-16", 8, precision="bf16-amp", checkpointing="per-block", accumulation=2)
whole = found("vit-b-16", 32, precision="bf16-amp")["peak_bytes"]
both = memory.predict(several.make_step).peak_bytes
print(f"ViT-B, 32 images: {Bytes(whole)}; as 4 x 8, checkpointed: {Bytes(both)}")

# %% [markdown] id="read-vit"
# 58 % is a fair figure for float32: it lies between the two kernels. Source 2 also says that
# checkpointing lifts the batch from 32 to 96. That holds: 96 images checkpointed take less than 32
# did without. The last line uses both techniques at once on a smaller ViT.
#
# CLIP has two encoders, here with 64 pairs of image and text:

# %% id="clip"
for strategy in ("none", "per-block", "library-switch"):
    report = found("clip-two-tower", 64, precision="bf16-amp", checkpointing=strategy)
    print(f"{strategy:<15}{Bytes(report['peak_bytes']):>9}, peak in {report['peak_phase']}")

# %% [markdown] id="read-clip"
# Both ways of checkpointing stop at the same peak, that of the optimizer's update, which
# checkpointing does not lower. (Accumulating a contrastive loss needs cached gradients: chapter
# 09.)
#
# Llama-2-7B: "batch 1 to 4, saves 71 %, on 80 GB". Here it is trained in full, all in bfloat16,
# with fused AdamW:

# %% id="llama"
llama = {}
for optimizer in ("adamw-fused", "adamw-8bit"):
    rows = [found("llama-2-7b", 4, 2048, precision="bf16", optimizer=optimizer, checkpointing=how)
            for how in ("none", "per-block")]  # fmt: skip
    before, after = llama[optimizer] = [row["peak_bytes"] for row in rows]
    print(f"{optimizer:<12}{Bytes(before):>9} -> {Bytes(after)}, "
          f"saves {1 - after / before:.0%}")  # fmt: skip
stays = 8 * Recipe("llama-2-7b").num_parameters
f"at most {1 - stays / (80 * GIB):.0%} on a card of 80 GiB with AdamW: {Bytes(stays)} stay"

# %% [markdown] id="read-llama"
# Half of the claim holds: four sequences do not fit on the card, and checkpointed they do. But
# parameters, gradients and states are most of whatever fits, so 71 % is out of reach. A condition
# under which it is true must remove those.
#
# **Predict.** LoRA with peft on the same four sequences: how many per cent of the peak does
# checkpointing save?


# %% id="llama-lora"
def lora_step(strategy):
    def make_step():
        loss, base = Recipe("llama-2-7b", 4, seq=2048, precision="bf16").make_loss()
        with making_lora():
            model = get_peft_model(base, LoraConfig(r=16, target_modules=["q_proj", "v_proj"]))
        learning = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learning, fused=True)

        def step():
            with strategies.applied(base, strategy):
                loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, optimizer

    return make_step


# %% id="llama-lora-predicted"
lora = {how: memory.predict(lora_step(how), warmup=0) for how in ("none", "library-switch")}
before, after = (report.peak_bytes for report in lora.values())
lora_saves = 1 - after / before
f"{before} -> {after}, saves {lora_saves:.0%}"

# %% id="llama-figure"
full = {name: found("llama-2-7b", 4, 2048, precision="bf16", optimizer=optimizer,
                   checkpointing=how)["at_peak"]
        for name, (optimizer, how) in {"AdamW": ("adamw-fused", "none"),
                                       "checkpointed": ("adamw-fused", "per-block"),
                                       "8-bit AdamW, checkpointed": ("adamw-8bit", "per-block")
                                       }.items()}  # fmt: skip
bars = {**full, "LoRA": lora["none"].at_peak, "LoRA, checkpointed": lora["library-switch"].at_peak}
title = "Llama-2-7B, 4 x 2048, bfloat16, predicted for CUDA kernels"
plots.ledger_bars(bars, title=title, cards_gib=plots.CARDS_GIB, predicted=list(bars))

# %% [markdown] id="read-lora"
# So 71 % is nearly right for *frozen* weights, which the source does not mention. LoRA alone
# removes states and gradients, and activations remain. Checkpointing alone removes activations,
# and the rest remains. Both together take a 7B model from a data-center card to a workstation's.

# %% [markdown] id="by-strategy"
# ## Which strategy saves most?
#
# Source 2 ranks four strategies, for no model in particular. Every block: saves 70 % of the memory
# for 50 % more time. Every two blocks: 50 and 30. Segments of sqrt(n): 60 and 25. Attention alone:
# 40 and 15. Here is GPT-2 Medium, 8 sequences of 1024, autocast:

# %% id="strategy-table"
claimed = {"per-block": 70, "every-2": 50, "sqrt": 60, "attention-only": 40}


def ramp(strategy):
    report = found("gpt2-medium", 8, precision="bf16-amp", checkpointing=strategy)
    return report["phases"]["backward"] - report["baseline_bytes"]


for strategy, percent in claimed.items():
    print(f"{strategy:<15} claimed {percent} %, predicted {1 - ramp(strategy) / ramp('none'):.0%}")

# %% [markdown] id="read-strategy"
# Three of the four save nearly the same. What remains of the activations' peak is the head's
# logits and the segment that is being recomputed. The inputs of blocks, which longer segments
# save, are a small part. Attention alone saves a sixth of its claim, because a fused kernel leaves
# little there to discard.
#
# The claimed times contradict each other. Every block, every two and sqrt(n) all run the same
# blocks once more, so they add the same arithmetic, at most a third of a step. They cannot cost
# 50, 30 and 25 % on one model. Chapter 06 finds the best segment length.

# %% [markdown] id="guide"
# ## The one run with a source
#
# 14949, 8681 and 6775 MB come from source 3. It trains BERT-Large as a classifier on 512 sequences
# of 512 random tokens, in float32, on a V100 of 16 GB, with the Trainer of that time. That Trainer
# used written-out attention, an AdamW that loops over the parameters, and gradients set to zero,
# not to None. The guide reads the memory from the driver, and notes that CUDA itself takes 1343
# MB. All of that can be given to the predictor:


# %% id="guide-step"
def guide_step(micro_batch, strategy="none", attention="eager", **adamw):
    def make_step():
        config = transformers.BertConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096, attn_implementation=attention,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), **(adamw or {"foreach": False}))
        ids = torch.zeros(micro_batch, 512, dtype=torch.long)

        def step():
            with strategies.applied(model, strategy):
                model(input_ids=ids, labels=ids[:, 0]).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(adamw))  # zeros stay: one micro-batch is like four

        return step, model, optimizer

    return make_step


# %% id="guide-predicted"
CUDA_ITSELF = 1343  # MB, as the guide measured it
guide = {"batch 4": (14949, guide_step(4)), "1 x 4": (8681, guide_step(1)),
         "1 x 4, checkpointed": (6775, guide_step(1, "library-switch"))}  # fmt: skip
off = {}
for name, (theirs, make_step) in guide.items():
    ours = memory.predict(make_step).peak_bytes / MIB + CUDA_ITSELF
    off[name] = ours / theirs - 1
    print(f"{name:<20} guide {theirs:>6} MB, predicted {ours:6.0f} MB, {ours / theirs - 1:+.0%}")

# %% [markdown] id="read-guide"
# These predictions were made years later and without a GPU. They are all too low, and most where
# activations are largest. The driver counts what PyTorch's allocator has *reserved*, with its
# cache and its holes (chapter 02); the predictor counts tensors.
#
# The guide's times: 8.86 samples a second, accumulated 7.75, checkpointed 5.99. Accumulation cost
# an eighth, because a batch of 1 does not fill a V100. Checkpointing made each sample take 29 %
# longer, a little less than the third that one more forward adds.
#
# Where in that list is today's default, with batch 4, no accumulation and no checkpointing, but
# fused attention, fused AdamW and gradients set to None?

# %% id="guide-today"
today = memory.predict(guide_step(4, attention="sdpa", fused=True)).peak_bytes / MIB + CUDA_ITSELF
f"{today:.0f} MB"

# %% [markdown] id="read-today"
# It lies below the second row. Today's defaults alone save what accumulation had to save in 2022,
# and the copied table cannot tell you that.

# %% [markdown] id="own-run"
# ## Your own run: the Trainer
#
# Now make such a table yourself: a GPT-2, real text byte by byte (the source of Python's standard
# library), the Trainer, and three settings with the same effective batch. On a CPU the model is
# small. On a small GPU it is GPT-2, on a large one GPT-2 Medium.

# %% id="run-sizes"
where = device.pick()
name, choices, seq, batch_size = device.pick_by_tier(
    cpu=("gpt2", {**sizes, "n_layer": 4, "n_embd": 96}, 64, 16),
    small_gpu=("gpt2", {}, 512, 8),
    large_gpu=("gpt2-medium", {}, 1024, 8),
)
choices |= no_dropout  # so that three runs can be compared
text = data.encode(data.text()).unfold(0, seq, seq)[: 2 * batch_size]  # (rows, sequence)
rows = [{"input_ids": row, "labels": row} for row in text]


def new_model():
    torch.manual_seed(0)
    return Recipe(name, overrides=choices).make_model(where)


# %% [markdown] id="half"
# On a GPU you also want 16 bits. A T4 only emulates bfloat16: PyTorch says it is supported, and it
# is slow. `device.half_dtype` asks the hardware, warns, and falls back to float16. Trainer and
# Accelerate then add the gradient scaler. The next cell pretends to be a T4:

# %% id="half-on-t4"
with (
    mock.patch("torch.cuda.is_bf16_supported", return_value=False),
    warnings.catch_warnings(record=True) as said,
):
    warnings.simplefilter("always")
    print(device.half_dtype("cuda"))
print(*(warning.message for warning in said if issubclass(warning.category, UserWarning)))

# %% id="names"
half = device.half_dtype(where) if torch.cuda.is_available() else None
switch = "activation" if hasattr(TrainingArguments, "activation_checkpointing") else "gradient"


# %% id="trainer-settings"
def arguments(folder, micro_batch, checkpointed):
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=batch_size // micro_batch,
        bf16=half is torch.bfloat16,
        fp16=half is torch.float16,
        num_train_epochs=1,
        learning_rate=2e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **{f"{switch}_checkpointing": checkpointed},
        **{f"{switch}_checkpointing_kwargs": {"use_reentrant": False}},
    )


# %% [markdown] id="watching"
# The last two arguments are `gradient_checkpointing=True` and its `kwargs`, under the name that
# the installed version has.
#
# Time and memory are taken in separate runs, since the meter costs time. `memory.watch` meters
# whatever runs inside its `with` block, here two updates of the Trainer.


# %% id="run-trainer"
def run_trainer(micro_batch, checkpointed):
    with tempfile.TemporaryDirectory() as folder:
        chosen = arguments(folder, micro_batch, checkpointed)
        trainer = Trainer(model=new_model(), args=chosen, train_dataset=rows)
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer.train().metrics


def metered(run, *setting):
    with memory.watch() as report:
        run(*setting)
    return report


quarter = batch_size // 4
settings = {f"{batch_size} at once": (batch_size, False), f"{quarter} x 4": (quarter, False),
            f"{quarter} x 4, checkpointed": (quarter, True)}  # fmt: skip

# %% [markdown] id="predict-own"
# Each row shows seconds (median of three runs, taken in turn, after one to warm up), samples a
# second, and the peak. On your machine, does accumulation cost time? Does checkpointing cost a
# third?

# %% id="own-table"
# NBVAL_IGNORE_OUTPUT
print(f"Trainer, {name}, {device.describe(where)}, torch {torch.__version__}, "
      f"transformers {transformers.__version__}")  # fmt: skip
rounds = [[run_trainer(*setting) for setting in settings.values()] for _ in range(4)]
reports = {}
for (label, setting), *runs in zip(settings.items(), *rounds[1:], strict=True):  # one to warm up
    seconds = statistics.median(ran["train_runtime"] for ran in runs)
    reports[label] = metered(run_trainer, *setting)
    loss, highest = runs[0]["train_loss"], reports[label].peak_bytes
    print(f"{label:<22}{seconds:6.2f} s{len(rows) / seconds:7.1f} samples/s, "
          f"loss {loss:.3f}, peak {highest}")  # fmt: skip

# %% id="own-figure"
# NBVAL_IGNORE_OUTPUT
ledgers = {label: report.at_peak for label, report in reports.items()}
plots.ledger_bars(ledgers, title=f"Trainer, {name}, {device.describe(where)}")

# %% [markdown] id="read-own"
# (These outputs are one machine's; yours differ, in times most.) The mean losses of the three runs
# agree, so it is the same training. The peaks fall step by step as the guide's do. What
# accumulation costs depends on whether a micro-batch fills the machine.

# %% [markdown] id="accelerate"
# ## Your own loop: Accelerate
#
# With Accelerate you keep your own loop. `accumulate` divides the loss, and lets
# `optimizer.step()` through only at every fourth micro-batch and at the end of an epoch.


# %% id="accelerate-loop"
def run_accelerate(micro_batch, checkpointed):
    accelerator = Accelerator(
        gradient_accumulation_steps=batch_size // micro_batch,
        mixed_precision={torch.bfloat16: "bf16", torch.float16: "fp16", None: "no"}[half],
        cpu=not torch.cuda.is_available(),
    )
    model = switch_on(new_model(), use_reentrant=False) if checkpointed else new_model()
    loader = torch.utils.data.DataLoader(rows, batch_size=micro_batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    start = time.perf_counter()
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, nn.utils.parameters_to_vector(model.parameters()).detach()


# %% id="accelerate-table"
# NBVAL_IGNORE_OUTPUT
rounds = [[run_accelerate(*setting) for setting in settings.values()] for _ in range(4)]
for (label, setting), *runs in zip(settings.items(), *rounds[1:], strict=True):
    seconds = statistics.median(seconds for seconds, _ in runs)
    peak_bytes = metered(run_accelerate, *setting).peak_bytes
    print(f"{label:<22}{seconds:6.2f} s{len(rows) / seconds:7.1f} samples/s, "
          f"peak {peak_bytes}")  # fmt: skip
_, accumulated, checkpointed = (weights for _, weights in rounds[0])
print("checkpointed, the same weights to the bit:", torch.equal(accumulated, checkpointed))

# %% [markdown] id="read-accelerate"
# The peaks are nearly the Trainer's, because the Trainer is such a loop underneath. On a CPU, with
# the same micro-batches, checkpointing changes no bit of the learned weights.

# %% [markdown] id="measured"
# ## What do GPUs say?
#
# The same rows on *emulated* cards: PyTorch's own allocator, and no kernel ran. Measured ones
# stand beside them where somebody has handed in what `extra_record_your_gpu` writes. On a T4 no
# fused attention takes bfloat16, so autocast writes the scores out there.
#
# Companion 10b compares such predictions with published measurements.

# %% id="measured-rows"
gpus = [recorded.load(f"emulated {name}") for name in ("NVIDIA A100-SXM4-80GB", "Tesla T4")]
gpus += recorded.measured()
names = [gpu.device.removeprefix("emulated ").partition(",")[0] for gpu in gpus]
print(f"{'':<60}{'predicted':>10}" + "".join(f"{name[:11]:>15}" for name in names))
for key, row in table.rows.items():
    if not {"A13", "E01"} & set(row["claims"]):
        continue
    print(f"{key:<60}{Bytes(row['report']['peak_bytes']):>10}", end="")
    for gpu in gpus:
        seen = gpu.rows.get(key, {})
        peak = seen.get("report", {}).get("peak_bytes")
        print(f"{Bytes(peak) if peak else seen.get('status', '-'):>15}", end="")
    print()

# %% [markdown] id="summary"
# ## Verdicts
#
# For GPT-2 XL with 8 x 4, "22 GB" is enough in bfloat16, and not enough under autocast. Chapter 01
# settles the transformer of 50 layers, chapter 06 the ranking of strategies.

# %% id="verdicts"
smallest = min(kept for (_, _, way), (kept, _) in xl.items() if way == "none")
lean_kept, lean_whole = xl["sdpa", "bf16", "per-block"]
at_once, windows = zip(*bert.values(), strict=True)
full_saves = max(1 - after / before for before, after in llama.values())
kinds = ("eager", "sdpa")
vit_saves = [1 - vit[32, kind, "fp32"][1] / vit[32, kind, "fp32"][0] for kind in kinds]
predicted = {"how": "predicted", "device": "CUDA kernels"}
claims.Verdicts(
    claims.Verdict(
        "A12", "wrong",
        "Without checkpointing no kernel and no precision gets by with 40 GB of activations; the "
        "second pair, 12 and 32 GB, is nearly right with everything in bfloat16.",
        f"at least {smallest:.0f} GB of activations; checkpointed {lean_kept:.1f} of "
        f"{lean_whole:.1f} GB", cell="xl-table", **predicted,
    ),
    claims.Verdict(
        "A13", "holds if",
        "8 GB are one micro-batch without the window's gradients, 5 GB need 8-bit states, and no "
        "kernel and precision that we tried gives 24 GB.",
        f"{min(at_once):.1f} to {max(at_once):.1f} GB at once, {min(windows):.1f} GB as 4 x 4, "
        f"{five['adamw-8bit']:.1f} GB with 8-bit states", cell="bert-5", **predicted,
    ),
    claims.Verdict(
        "A19", "holds if",
        "Vision transformers take both techniques as they are; a contrastive loss needs cached "
        "gradients, since plain accumulation compares fewer pairs.",
        f"ViT-B, 32 images: {Bytes(whole)} to {Bytes(both)}", cell="vit-both", **predicted,
    ),
    claims.Verdict(
        "B01", "holds if",
        "The published drop is right for written-out attention in float32, read off the driver.",
        f"the two rows again, by tensors: {off['batch 4']:+.0%} and {off['1 x 4']:+.0%}",
        cell="guide-predicted", **predicted,
    ),
    claims.Verdict(
        "B02", "holds if",
        "Right under the same conditions as the row before it.",
        f"{off['1 x 4, checkpointed']:+.0%}", cell="guide-predicted", **predicted,
    ),
    claims.Verdict(
        "E08", "holds if",
        "71 % is nearly reached with frozen weights (LoRA); in full training the states stay.",
        f"LoRA saves {lora_saves:.0%}, full training at most {full_saves:.0%}",
        cell="llama-lora-predicted", **predicted,
    ),
    claims.Verdict(
        "E09", "holds if",
        "58 % lies between the two attention kernels in float32, and 96 images then take less than "
        "32 did.",
        f"{min(vit_saves):.0%} and {max(vit_saves):.0%}", cell="vit", **predicted,
    ),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Ask of a published figure: which kernel, precision, optimizer and batch, and which peak? And
#   try those conditions on a laptop.
# - Find what a library's switch wraps, from two numbers of one step: peak and FLOPs.
# - Notice a switch that does nothing (`eval()`), that nests, or that cuts the graph: count the
#   gradients, do not watch the loss.
# - Make your own before/after table, with the Trainer or with Accelerate.
#
# Chapter 11 does the same for diffusion U-Nets, whose blocks are not alike.
