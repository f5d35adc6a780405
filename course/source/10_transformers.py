# %% [markdown] id="title"
# # Transformers, as published
#
# Six figures, copied from tutorial to tutorial:
#
# | | without | with checkpointing |
# |---|---|---|
# | GPT-2 XL, 32 sequences of 1024 | 40 GB of activations, 60 GB in all | 12 GB, 32 GB in all |
# | BERT-Large, 16 sequences of 512 | 24 GB; as 4 x 4 micro-batches 8 GB | 5 GB |
# | a transformer of 50 layers | 24 GB of activations | 8 GB |
# | Llama 7B | | saves 71 % |
# | ViT-L | | saves 58 % |
# | one real run, 512 sequences | 14949 MB; accumulated 8681 MB | 6775 MB |
#
# None of them says with which attention kernel, which precision, which optimizer. So this chapter
# asks one question of each: *under which conditions would it be true?* You need the models at their
# published sizes, which need no download, and you need to know what the library's one switch for
# checkpointing does to them. It does less than its name says, and once it does more.
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

from tutorial_lib import data, device, memory, plots, recorded, strategies
from tutorial_lib.models.libraries import making_lora
from tutorial_lib.training import Recipe
from tutorial_lib.units import GB, GIB, MIB, Bytes

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # small steps lose more by waiting for a second core than they gain

# %% [markdown] id="switch"
# ## One switch
#
# Every model of transformers has a method that switches checkpointing on. Its name was
# `gradient_checkpointing_enable`; newer versions say `activation_checkpointing_enable` and warn of
# the old name. Both do the same, so let us take the one that is there.


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
# (On the device `meta`, where a model has shapes and no memory, so that even a 7B model is there at
# once.) So far there are no surprises. The segment is the block, each of them, in both towers of
# CLIP. What the switch does not touch is what stands before and after the blocks: embeddings, the
# last norm, the head, the loss.
#
# **Predict.** GPT-2, the smallest, 8 sequences of 1024 tokens, switched on. Twelve inputs of blocks
# are kept. What else, and is it more or less than those twelve together?

# %% id="what-is-left"
with memory.predicting():  # tensors without memory, kernels of a GPU
    loss, model = Recipe("gpt2", 8).make_loss()
    kept = memory.saved(loss, params_of=switch_on(model))
for shape, num_bytes in list(kept.by("shape").items())[:3]:
    print(f"{shape:<20}{num_bytes:>10}")

# %% [markdown] id="read-left"
# One tensor for the loss is several times all that the blocks' inputs take: 50257 logarithms of
# probabilities for each token. With everything kept, nobody sees it; under checkpointing it is what
# is left. A switch for whole models is a switch for blocks.

# %% [markdown] id="swin"
# ### Once it does more
#
# Swin is a vision transformer in four stages, with most of its blocks in the third. In
# transformers, both the stages and the blocks in them are layers that can be checkpointed.
#
# **Predict.** A small Swin: kept whole, switched on, and switched on for the blocks alone. Order
# the three by peak and by FLOPs.


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
# The switch nests: a stage is run again, and inside it each block once more. Nearly a whole forward
# pass is paid for nothing, since the peak is the same without the outer level. No test of the
# gradients can notice, for they are right. Two numbers of one step show it, peak and FLOPs: ask for
# both whenever you switch something on.

# %% [markdown] id="silent"
# ## The switch that does nothing
#
# A small GPT-2 of the library's own, on the source of Python's standard library.

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
# **Predict.** Four peaks: `train()` and `eval()`, each with the switch off and on. Somebody may
# want `eval()` in training, to fine-tune without dropout.

# %% id="measure-eval"
for mode in ("train", "eval"):
    for name, model in {"off": small_gpt2(), "on": switch_on(small_gpt2())}.items():
        getattr(model, mode)()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            print(f"{mode:<6} switch {name:<4} {peak(model)}")
print(*(warning.message for warning in said if warning.category is memory.MeterWarning))

# %% [markdown] id="read-eval"
# In `eval()` the switch is on and nothing is checkpointed: each layer asks `if
# self.gradient_checkpointing and self.training`. The library raises nothing and logs nothing; the
# last line is the meter's. To train without dropout, stay in `train()` and take the dropout out of
# the configuration. The gradients are then those of `eval()`, to the bit:

# %% id="without-dropout"
evaluating = small_gpt2().eval()
no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
training = switch_on(small_gpt2(**no_dropout))
backward(evaluating)
backward(training)
pairs = zip(evaluating.parameters(), training.parameters(), strict=True)
print(all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs), peak(training))

# %% [markdown] id="cache"
# The second setting of every recipe is `use_cache=False`, "required with checkpointing". Chapter 05
# tried all combinations on a Llama. On GPT-2, whose configuration says `True` from the start:

# %% id="measure-cache"
for cache in (True, False):
    for name, change in {"off": nn.Identity(), "on": switch_on}.items():
        model = change(small_gpt2(use_cache=cache))
        print(f"use_cache {cache!s:<6} switch {name:<4} {peak(model)}")

# %% [markdown] id="read-cache"
# The switch turns the cache off by itself, so with it the setting changes nothing. *Without* the
# switch a training step builds a cache that nobody reads. So `use_cache=False` is right in
# training, for another reason than the one that is given.

# %% [markdown] id="frozen"
# ## Frozen inputs: LoRA on a ViT
#
# Chapter 04 found that a checkpoint written as a Function cuts the graph when its input needs no
# gradient. `use_reentrant=True` is that Function. With LoRA the embeddings are frozen, so the first
# block's input needs none. Here peft puts corrections beside every linear layer of a small ViT, and
# trains the head as well.

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
# **Predict.** How many of the trained tensors get a gradient, without the switch, with it in both
# implementations, and after the method that recipes call, `enable_input_require_grads()`? In which
# of the four does the loss fall?

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
# With the old implementation LoRA did not train. The head did, so the loss falls, and a warning
# (PyTorch's: "None of the inputs have requires_grad=True") is all that tells.
# `enable_input_require_grads` hangs a hook on the embeddings whose only work is
# `output.requires_grad_(True)`: the ticket of chapter 04. For models that read text, the library's
# switch does this by itself; for those that read images it does not, as you see.
# `use_reentrant=False`, the library's default today, needs no ticket.

# %% [markdown] id="kernels"
# ## What attention keeps
#
# Now the sizes. `recorded/` holds a few hundred steps of published models, predicted for a GPU's
# kernels; a `Recipe` names one. The first condition that no tutorial states is the attention
# kernel: `eager` writes the scores out, `sdpa` is PyTorch's fused kernel and today's default. Which
# fused kernel depends on the precision: *flash* for 16 bits, *memory-efficient* for float32. (On a
# T4, which is too old for flash, memory-efficient for both.)
#
# **Predict.** By what factor do the activations of a whole model fall from `eager` to `sdpa`? For
# sequences of 1024, 512 and 197 tokens?

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
# A kernel that costs nothing halves the long rows, and is worth as little on a ViT as its sequence
# is short. Each figure in the table on top would have to say which of the two it means; the older
# ones were made before fused kernels were there.

# %% [markdown] id="xl"
# ## GPT-2 XL, 32 sequences: 40 GB?
#
# All six combinations of kernel and precision, with PyTorch's AdamW, in decimal gigabytes as the
# claim has them. (`bf16-amp` is autocast over float32 parameters; `bf16` is everything in bfloat16,
# optimizer states too.)
#
# **Predict.** The claim is 40 GB of activations and 60 GB in all, then 12 and 32. How many of the
# six have the first pair? The second?

# %% id="xl-table"
for attention in ("eager", "sdpa"):
    for precision in ("fp32", "bf16-amp", "bf16"):
        print(f"{attention:<6}{precision:<10}", end="")
        for strategy in ("none", "per-block"):
            report = found("gpt2-xl", 32, 1024, precision=precision, attention=attention,
                           checkpointing=strategy)  # fmt: skip
            kept, whole = report["at_peak"]["activations"] / GB, report["peak_bytes"] / GB
            print(f"{strategy:>12}: {kept:5.1f} GB, {whole:5.1f} in all", end="")
        print()

# %% [markdown] id="read-xl"
# The first pair has no condition. The smallest figure in that column is nearly four times 40 GB,
# and the fused kernel and bfloat16 states are in it already. The second pair has one: with
# everything in bfloat16 it is right within a tenth. So "70 % less" is really above 90 %, and the
# claim undersells what it recommends.
#
# Where might 40 come from? Chapter 01 counts 16 tensors a block, each of batch x sequence x width.
# In *elements*, that is

# %% id="xl-elements"
layers, width = 48, 1600
f"{16 * layers * 32 * 1024 * width / 1e9:.1f} billion"

# %% [markdown] id="read-elements"
# Whoever takes one byte for each has the claim. That is a guess; that the bytes of an element were
# forgotten somewhere is the simplest one.
#
# The tutorial goes on: micro-batches of 8, four of them, checkpointed, "22 GB: fits a consumer GPU"
# (24 GiB). Chapter 08 found the price of accumulation, one set of gradients that stays through the
# peak. A step that pays it, for any recipe:


# %% id="xl-accumulated"
lean = {"precision": "bf16", "checkpointing": "per-block", "accumulation": 2}
memory.MemoryReport.from_json(json.dumps(found("gpt2-xl", 8, 1024, **lean)))

# %% [markdown] id="read-accumulated"
# (Two micro-batches peak like four: from the second one on, the gradients are there.) All in
# bfloat16, it fits with room to spare, and the claim is on the safe side. With float32 parameters,
# as autocast has them, parameters, gradients and two states are 16 bytes for each of the 1.56
# billion, and those alone are

# %% id="xl-floor"
num_parameters = Recipe("gpt2-xl").num_parameters
f"{Bytes(16 * num_parameters)} before the first activation"

# %% [markdown] id="bert"
# ## BERT-Large: 24, 8, 5?
#
# The claim: 16 sequences of 512 need 24 GB, four micro-batches of 4 need 8, checkpointed 5.

# %% id="bert-16"
for attention in ("eager", "sdpa"):
    for precision in ("fp32", "bf16-amp"):
        whole = found("bert-large", 16, 512, precision=precision, attention=attention)
        part = found("bert-large", 4, 512, precision=precision, attention=attention)
        # a window of several micro-batches peaks where one does, with the gradients on top
        window = part["peak_bytes"] + 4 * Recipe("bert-large").num_parameters
        print(f"{attention:<6}{precision:<9} 16 at once {whole['peak_bytes'] / GB:4.1f} GB, "
              f"4 x 4 {window / GB:4.1f} GB")  # fmt: skip

# %% [markdown] id="read-bert"
# 24 GB lies between the rows. 8 GB is a little below the lower ones: it is right for *one*
# micro-batch of 4, without the gradients that wait for the other three.
#
# **Predict.** And 5 GB, checkpointed? 335 million parameters at 16 bytes are 5.4 GB. Which lever
# gets below that floor?

# %% id="bert-5"
for optimizer in ("adamw", "adamw-8bit"):
    report = found("bert-large", 4, 512, optimizer=optimizer, checkpointing="per-block",
                   accumulation=4)  # fmt: skip
    print(f"{optimizer:<12} {report['peak_bytes'] / GB:.1f} GB, peak in {report['peak_phase']}")

# %% [markdown] id="read-5"
# Not checkpointing: only something that shrinks what stays. With 8-bit states (chapter 01's ledger:
# 2 bytes a parameter in place of 8) the claim is met, and bfloat16 throughout would do it too. With
# float32 and AdamW it cannot be, at any micro-batch.

# %% [markdown] id="savings"
# ## "Saves 71 %", "saves 58 %"
#
# A percentage of the whole peak depends on everything. ViT-L, 32 images of 224 x 224:

# %% id="vit"
for micro_batch, attention in ((32, "eager"), (32, "sdpa"), (96, "sdpa")):
    for precision in ("fp32", "bf16-amp"):
        before, after = (
            found("vit-l-16", micro_batch, precision=precision, attention=attention,
                  checkpointing=how)["peak_bytes"] for how in ("none", "per-block")
        )  # fmt: skip
        print(f"{micro_batch} images, {attention:<6}{precision:<9}{Bytes(before):>9} -> "
              f"{Bytes(after)}, saves {1 - after / before:.0%}")  # fmt: skip

# %% [markdown] id="read-vit"
# 58 % is a fair figure for float32, between the two kernels. The same claim says that
# checkpointing lifts the batch from 32 to 96, and that holds: 96 images checkpointed take less
# than 32 did. And the two towers of CLIP, with 64 pairs of image and text:

# %% id="clip"
for strategy in ("none", "per-block", "library-switch"):
    report = found("clip-two-tower", 64, precision="bf16-amp", checkpointing=strategy)
    print(f"{strategy:<15}{Bytes(report['peak_bytes']):>9}, peak in {report['peak_phase']}")

# %% [markdown] id="read-clip"
# Both ways stop at the update, as everywhere that a model is small and its batch too. (To
# accumulate a contrastive loss is another matter; chapter 09 does it.)
#
# Llama-2-7B: "batch 1 to 4, saves 71 %, on 80 GB". Trained in full, all bfloat16, with the fused
# AdamW that needs no copy:

# %% id="llama"
for optimizer in ("adamw-fused", "adamw-8bit"):
    rows = [found("llama-2-7b", 4, 2048, precision="bf16", optimizer=optimizer, checkpointing=how)
            for how in ("none", "per-block")]  # fmt: skip
    before, after = (row["peak_bytes"] for row in rows)
    print(f"{optimizer:<12}{Bytes(before):>9} -> {Bytes(after)}, "
          f"saves {1 - after / before:.0%}")  # fmt: skip
stays = 8 * Recipe("llama-2-7b").num_parameters
f"at most {1 - stays / (80 * GIB):.0%} on a card of 80 GiB with AdamW: {Bytes(stays)} stay"

# %% [markdown] id="read-llama"
# Half of the claim holds: four sequences do not fit on the card, and checkpointed they do. But
# whatever fits without, parameters, gradients and states are most of it, so 71 % is out of reach.
# Is there a condition at all? It would have to take away what stays.
#
# **Predict.** LoRA with peft on the same four sequences: what becomes of the saving?


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
f"{before} -> {after}, saves {1 - after / before:.0%}"

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
# There it is, nearly: 71 % is a figure for *frozen* weights, which the claim does not mention. Read
# the bars from below. LoRA alone takes away states and gradients and leaves a wall of activations;
# checkpointing alone takes the wall and leaves the rest. Together they take a 7B model from a
# data-centre card to a workstation's.

# %% [markdown] id="by-strategy"
# ## A table without a model
#
# The same tutorial ranks strategies, for no model in particular: every block saves 70 % of the
# memory for 50 % more time; every two blocks, 50 and 30; sqrt(n) segments, 60 and 25; attention
# alone, 40 and 15.
#
# **Predict.** GPT-2 Medium, 8 sequences of 1024, autocast: order the four by what they save. And
# which times can you refute without a clock? (One forward is a third of a step's arithmetic.)

# %% id="strategy-table"
claimed = {"per-block": 70, "every-2": 50, "sqrt": 60, "attention-only": 40}


def ramp(strategy):
    report = found("gpt2-medium", 8, precision="bf16-amp", checkpointing=strategy)
    return report["phases"]["backward"] - report["baseline_bytes"]


for strategy, percent in claimed.items():
    print(f"{strategy:<15} claimed {percent} %, predicted {1 - ramp(strategy) / ramp('none'):.0%}")

# %% [markdown] id="read-strategy"
# Three of the four are nearly one number. What is left of the ramp is the head's logits and the
# segment that is being recomputed, and the inputs of blocks, which longer segments save, are the
# small part of it. Attention alone saves a sixth of its claim: a fused kernel has left little there
# to discard. And the times: every block, every two and sqrt(n) run the same blocks once more, so
# they cost the same arithmetic, a third of a step at most. 50, 30 and 25 cannot all be true of
# one model. Which length is best, chapter 06 asks.

# %% [markdown] id="guide"
# ## The run that everybody quotes
#
# 14949 MB, 8681, 6775: these three come with a source, the performance guide in the documentation
# of transformers 4.18. It trains BERT-Large as a classifier on 512 sequences of 512 random tokens,
# in float32, on a V100 of 16 GB, with the Trainer of that time: written-out attention, an AdamW
# that loops over the parameters, gradients set to zero and not dropped. And it reads the memory off
# the *driver*, after noting that CUDA itself takes 1343 MB. All of that can be said to the
# predictor.


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
for name, (theirs, make_step) in guide.items():
    ours = memory.predict(make_step).peak_bytes / MIB + CUDA_ITSELF
    print(f"{name:<20} guide {theirs:>6} MB, predicted {ours:6.0f} MB, {ours / theirs - 1:+.0%}")

# %% [markdown] id="read-guide"
# On another machine, years later, without a GPU. What is left over is always on one side and
# grows with what comes and goes: the driver counts what PyTorch's allocator has *reserved*, its
# cache and its holes included (chapter 02), and the predictor counts tensors. How much of the first
# row's rest is that, and how much the kernels of 2022, this machine cannot tell.
#
# Times of that run: 8.86 samples a second, accumulated 7.75, checkpointed 5.99. So accumulation
# cost an eighth, since a batch of 1 does not fill a V100, and checkpointing made each sample take
# 29 % longer, a little less than the third that one more forward pass adds. Both are ratios of one
# card, one model, one batch.
#
# **Predict.** The same batch of 4, no accumulation, no checkpointing, but with today's defaults of
# the same library: fused attention, fused AdamW, gradients dropped. Where in the guide's list is
# it?

# %% id="guide-today"
today = memory.predict(guide_step(4, attention="sdpa", fused=True)).peak_bytes / MIB + CUDA_ITSELF
f"{today:.0f} MB"

# %% [markdown] id="read-today"
# Below the second row. What accumulation had to do then, the defaults do now, and nobody who copies
# the table would find it.

# %% [markdown] id="own-run"
# ## Your own run: the Trainer
#
# A table that you can trust is one that you made. A GPT-2 of the library, real text (the source of
# Python's standard library, byte by byte), the Trainer, three settings with the same effective
# batch. On a CPU the model is small; on a GPU it is published: GPT-2 on a small one, GPT-2 Medium
# on a large one.

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
# A GPU also wants its 16 bits. bfloat16 is the easy kind, but a T4 has it in software only: PyTorch
# says that it is supported, and it is slow. `device.half_dtype` looks at the hardware, warns, and
# falls back to float16, for which Trainer and Accelerate bring the gradient scaler along. As on a
# T4:

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
# The last two lines are `gradient_checkpointing=True` and `gradient_checkpointing_kwargs`, by the
# name that the installed version has. Time and memory are taken in two runs: the meter would cost
# time. `memory.watch` meters whatever happens inside a `with`, here two updates of the Trainer,
# model, optimizer and all.


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
# **Predict.** Three lines as in the guide: seconds (the median of three runs, in turn, after one to
# warm up), samples a second, peak. On your machine, does
# accumulation cost time? Does checkpointing cost a third?

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
# (These outputs are this machine's, the times more so than the bytes; yours differ.) The mean
# losses of the three runs agree: it is the same training, as chapter 08 demands. The bytes are the
# guide's in small, step by step. Of the times trust nothing but your own: a few rows fill a CPU
# core, and one sequence did not fill a V100, so the price of accumulation is another one on each
# machine.

# %% [markdown] id="accelerate"
# ## The same with Accelerate
#
# Whoever wants to keep their own loop takes Accelerate: `accumulate` divides the loss and lets only
# each fourth `optimizer.step()` through, the last of an epoch included.


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
# The peaks are the Trainer's, nearly: underneath, the Trainer is such a loop. And on a CPU, with
# the same micro-batches, checkpointing changes no bit of what was learned.

# %% [markdown] id="measured"
# ## On a card
#
# The same rows on *emulated* cards: PyTorch's own allocator there, and no kernel ran. (Measured
# ones stand beside them where somebody has handed in what `extra_record_your_gpu` writes.) On a T4
# no fused attention takes bfloat16, so autocast writes the scores out.
#
# How far such figures are from published measurements: companion 10b.

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
# - **GPT-2 XL, 32 x 1024, "40 and 60 GB":** under no kernel and no precision. **"12 and 32 GB"**
#   checkpointed: with everything in bfloat16. **"22 GB"** for 8 x 4: enough in bfloat16, less than
#   what stays under autocast.
# - **BERT-Large, "24, 8, 5 GB":** no row has 24; 8 is one micro-batch without the window's
#   gradients; 5 needs 8-bit states, or bfloat16 throughout.
# - **Fifty layers, "24 to 8 GB":** chapter 01. The first figure has a batch, the second has none.
# - **Llama 7B, "71 %":** nearly, with LoRA; never in full. **ViT-L, "58 %", batch "32 to 96":** in
#   float32, yes.
# - **"70, 50, 60, 40 %" by strategy:** no such order; the first three are alike, and cost alike.
# - **"14949, 8681, 6775 MB":** right, for written-out attention in float32 and a driver's figure.
#   With today's defaults the first is below the second.
# - **`use_reentrant=False`:** the default by now; without it, frozen inputs cost a vision model its
#   gradients. **`use_cache=False`:** the switch does it; useful without the switch.
#
# ## What you can now do
#
# - Ask of a published figure: which kernel, precision, optimizer, batch, and which peak? And try
#   the conditions, on a laptop.
# - Know what a library's switch wraps, from two numbers of one step: peak and FLOPs.
# - Notice a switch that does nothing (`eval()`), too much (nested layers), or cuts the graph: count
#   the gradients, not the loss.
# - Make your own before/after table, with the Trainer or with Accelerate.
#
# Chapter 11 does the same for diffusion U-Nets, where the blocks are no longer alike.
