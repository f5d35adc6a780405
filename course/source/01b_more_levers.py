# %% [markdown] id="title"
# # More levers, and a calculator
#
# This companion of chapter 01 is optional. It answers five questions:
#
# 1. How much memory does a GPT need, for any depth, width and precision?
# 2. What still takes memory when LoRA, 8-bit states or paging have shrunk gradients and states?
# 3. How do 8-bit and 4-bit weights, and an optimizer with one state, change the ledger?
# 4. How do activations grow with the length of a sequence and the size of an image?
# 5. Is a much-copied table of savings right? And has hardware caught up with models?
#
# **Budget:** 65 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import claims, memory, plots
from tutorial_lib.instruments import figures, recorded, widgets
from tutorial_lib.instruments.emulated import CARDS
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GB, Bytes, human_bytes

gpu_adamw = partial(torch.optim.AdamW, foreach=True)  # a GPU's default

# %% [markdown] id="calculator-text"
# ## The memory calculator
#
# The calculator estimates the peak of any GPT from chapter 01's ledger and its formula for
# activations. In that formula a block keeps 16 values for each token and channel, where a GPT of
# width 768 has 768 channels. A value takes 4 bytes in float32 and 2 in bfloat16. Autocast uses both
# types, so we first count what a block keeps under autocast.
#
# **Predict.** Under autocast to bfloat16, how many bytes does a block keep for each token and
# channel, with a GPU's kernels?

# %% id="guess-autocast"
guess = None  # bytes


# %% id="autocast"
def block_saved(batch):
    with memory.predicting():
        block = Block(GPTConfig(num_heads=16, d_model=1024, seq_len=1024))
        x = torch.zeros(batch, 1024, 1024, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            return memory.saved(lambda: block(x), params_of=block).num_bytes


one, two = block_saved(1), block_saved(2)
each, constant = (two - one) / 1024**2, 2 * one - two
print(f"each sample: {each:.1f} bytes{beside(guess, each)}")
print(f"once: {Bytes(constant)}; the weights in 16 bits: {Bytes(2 * 12 * 1024**2)}")

# %% [markdown] id="autocast-read"
# Per token and channel, a block keeps 64 bytes in float32 and 32 in bfloat16. Under autocast it
# keeps 36, because the norms and the tensors between blocks stay in float32.
#
# Autograd also keeps 16-bit *copies* of all weights until the backward pass. Their size (the second
# line above) doesn't depend on the batch. The logits are kept in both dtypes. The next two cells
# are the calculator:

# %% id="calculator-activations"
SHAPES = {  # L, C, V
    "124M": (12, 768, 50257),
    "1.5B": (48, 1600, 50257),
    "7B": (32, 4096, 32000),
    "70B": (80, 8192, 32000),
}
BLOCK = {"float32": 16 * 4, "bf16 autocast": 18 * 2, "bfloat16": 16 * 2}
SCORES = {"float32": 4, "bf16 autocast": 4 + 2, "bfloat16": 2}


def num_weights(layers, width, vocab):
    return 12 * layers * width**2 + vocab * width


def activations(shape, precision, positions, checkpointing):
    layers, width, vocab = shape
    block, scores = BLOCK[precision] * width, SCORES[precision] * vocab
    between = (2 if precision == "bfloat16" else 4) * width
    if checkpointing:
        return positions * (layers * between + max(block - between, scores))
    copies = 2 * num_weights(*shape) if precision == "bf16 autocast" else 0
    return positions * (layers * block + 2 * between + scores) + copies


# %% id="calculator-ledger"
STATES = {"SGD": 0, "SGD + momentum": 1, "AdamW": 2}


def estimate(shape, precision, optimizer, *, micro_batch, seq_len, checkpointing):
    weights = num_weights(*shape) * (2 if precision == "bfloat16" else 4)
    held = {"parameters": weights, "optimizer_state": STATES[optimizer] * weights}
    positions = micro_batch * seq_len
    waiting = activations(shape, precision, positions, checkpointing)
    # gradients of the scores
    flowing = positions * shape[2] * (8 if precision == "float32" else 4)
    copy = weights if optimizer == "AdamW" else 0  # foreach
    if waiting + flowing > weights + copy:  # start of the backward pass
        return held | {"activations": waiting, "temporary": flowing}
    return held | {"gradients": weights, "temporary": copy}  # the update


# %% [markdown] id="calculator-check-text"
# **Predict.** Take four layers of the 1.5B shape, 8 x 1024 tokens, and AdamW under autocast. By
# what percentage does the calculator's peak differ from the peak that `memory.predict` reports?

# %% id="guess-calculator"
guess = None  # %


# %% id="make-wide"
def make_wide(precision):
    sizes = {"num_layers": 4, "d_model": 1600, "num_heads": 25, "seq_len": 1024}
    model = GPT(GPTConfig(vocab_size=50257, **sizes))
    model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    ids = torch.zeros(8, 1024, dtype=torch.long)
    optimizer, autocast = gpu_adamw(model.parameters()), precision == "bf16 autocast"

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model.loss(ids)
        loss.backward()
        optimizer.step()

    return step, model, optimizer


# %% id="calculator-check"
rows, off = [], {}
how = {"micro_batch": 8, "seq_len": 1024, "checkpointing": False}
for precision in BLOCK:
    paper = sum(estimate((4, 1600, 50257), precision, "AdamW", **how).values())
    seen = memory.predict(partial(make_wide, precision)).peak_bytes
    off[precision] = 100 * (paper / seen - 1)
    rows.append((precision, f"{Bytes(paper)}", f"{seen}", f"{off[precision]:+.1f} %"))
autocast = off["bf16 autocast"]
print(f"autocast: {autocast:+.1f} % off{beside(guess, autocast)}")
pd.DataFrame(rows, columns=["precision", "estimate", "predicted", "off"])

# %% [markdown] id="calculator-read"
# Here is the calculator for any shape:

# %% id="calculator"
choices = {"models": SHAPES, "precisions": list(BLOCK), "optimizers": list(STATES)}
widgets.memory_calculator(estimate, precision="bfloat16", seq_len=4096, **choices)

# %% [markdown] id="calculator-questions"
# Answer three questions with it. Which is the largest model that trains in float32 with AdamW on 24
# GiB? Set bfloat16 and a micro-batch of 1: at which sequence length does the 7B model's peak move
# from the update to the backward pass? In which cases does the checkpointing box change nothing?

# %% [markdown] id="lora"
# ## LoRA: almost no gradients and states
#
# LoRA (Hu et al., 2021) freezes the model and trains a low-rank correction to some of its matrices.
# A frozen parameter has no gradient and no optimizer state.


# %% id="lora-layer"
class LoRA(nn.Module):
    def __init__(self, frozen, rank=8):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # the correction starts at zero

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


# %% id="with-lora"
def with_lora(model):
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = LoRA(block.attention.qkv)
        block.mlp.up = LoRA(block.mlp.up)
    return model


# %% [markdown] id="predict-lora"
# **Predict.** With LoRA, gradients and states nearly vanish. By what percentage do the activations
# shrink, now that the backward pass computes no gradients of the frozen weights?

# %% id="guess-lora"
guess = None  # %


# %% id="measure-lora"
def trained(model):
    optimizer = gpu_adamw(model.parameters())

    def step():
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()

    return memory.measure(step, model=model, optimizer=optimizer)


# %% id="lora-activations"
config = GPTConfig(vocab_size=1000, num_layers=12, d_model=256)
ids = torch.zeros(4, 128, dtype=torch.long)
full, lora = trained(GPT(config)), trained(with_lora(GPT(config)))
fallen = 100 * (1 - lora.at_peak["activations"] / full.at_peak["activations"])
print(f"the activations fall by {fallen:.0f} %{beside(guess, fallen)}")
bars = {"all trained": full.at_peak, "LoRA, rank 8": lora.at_peak}
plots.ledger_bars(bars, title="At the peak, counted")

# %% [markdown] id="read-lora"
# Most activations are still needed, because the gradient passes back through every frozen layer on
# its way to the corrections in earlier blocks. To pass it back, the norms, GELU and attention use
# the tensors that they saved. So fine-tuning with LoRA can still run out of memory on long
# sequences. Then checkpointing helps, but a smaller rank doesn't.
#
# ## 8-bit states, and paged states
#
# 8-bit AdamW makes the states smaller. Paged AdamW moves full-size states to the host's memory,
# just enough for forward and backward to fit on the GPU. The next cell predicts both for Llama-2-7B
# with 4 x 2048 tokens, all in bfloat16:

# %% id="paged-table"
table = recorded.load("predicted").rows
llama = Recipe("llama-2-7b", 4, seq=2048, precision="bf16", optimizer="adamw-fused")
rows, paged = {}, {}
for way in ("none", "per-block"):
    recipe = replace(llama, checkpointing=way)
    plain = table[recipe.label()]["report"]
    small = table[replace(recipe, optimizer="adamw-8bit").label()]["report"]
    over = plain["phases"]["backward"] - CARDS["a100"].memory
    paged[way] = min(max(over, 0), plain["at_peak"]["optimizer_state"])
    rows[way] = plain["peak_bytes"], small["peak_bytes"], paged[way]
small = small["at_peak"]
ratio = small["optimizer_state"] / (2 * small["parameters"])  # against bfloat16 states
print(f"8-bit states take {ratio:.2f} times the bytes of bfloat16 states")
columns = ["AdamW, fused", "8-bit AdamW", "to the host, paged on an A100 80 GB"]
pd.DataFrame(rows, index=columns).T.map(human_bytes)

# %% [markdown] id="read-paged"
# Without checkpoints, fused AdamW fits an 80 GB A100 only with paging, which moves the last
# column's bytes to the host and back once per step. With checkpoints, nothing has to move.

# %% id="verdicts-states"
claims.Verdicts(
    claims.Verdict(
        "D08",
        "shown",
        "8-bit AdamW shrinks the states, and paged AdamW moves what does not fit to "
        "the host.",
        f"8-bit states {ratio:.2f} times as large; paged {Bytes(paged['none'])}",
        "predicted",
        "paged-table",
        device="CUDA kernels, A100 80 GB",
    ),
    claims.Verdict(
        "D08",
        "shown",
        "LoRA removes nearly all gradients and states, but keeps most activations.",
        f"peak {full.peak_bytes} to {lora.peak_bytes}, activations {-fallen:.0f} %",
        "counted",
        "lora-activations",
    ),
)

# %% [markdown] id="small-weights"
# ## Weights in 8 and 4 bits
#
# Frozen weights can be stored in fewer than 16 bits. Cut a matrix into blocks of 64 weights. Divide
# each block by its largest magnitude, and store that number as the block's scale. FP8 rounds the
# scaled weights to 8-bit floats. QLoRA (Dettmers et al., 2023) rounds each scaled weight to the
# nearest of 16 levels, spaced like a normal distribution's quantiles, and stores the level's index
# in 4 bits.


# %% id="shrink"
def blocks_of(weight):
    rows = weight.reshape(-1, 64)
    scale = rows.abs().amax(dim=1, keepdim=True)
    return rows / scale, scale


def to_fp8(weight):
    rows, scale = blocks_of(weight)
    return (rows * 448).to(torch.float8_e4m3fn), scale / 448  # 448 is its largest


LEVELS = torch.special.ndtri(torch.linspace(0.02, 0.98, 16))
LEVELS = LEVELS / LEVELS.max()


def to_4_bits(weight):
    rows, scale = blocks_of(weight)
    number = torch.bucketize(rows, (LEVELS[1:] + LEVELS[:-1]) / 2).to(torch.uint8)
    return number[:, ::2] * 16 + number[:, 1::2], scale  # two in a byte


def from_4_bits(pairs, scale):
    number = torch.stack([pairs // 16, pairs % 16], dim=2).flatten(1)
    return LEVELS[number.int()] * scale


# %% id="shrunk-table"
torch.manual_seed(0)
weight, rows = (
    nn.Linear(1024, 1024).weight.detach() + 0.02 * torch.randn(1024, 1024),
    {},
)
fp8, four = to_fp8(weight), to_4_bits(weight)
made = {"bfloat16": ((weight.bfloat16(),), weight.bfloat16().float())}
made["FP8"] = fp8, (fp8[0].float() * fp8[1]).view_as(weight)
made["4 bits"] = four, from_4_bits(*four).view_as(weight)
for name, (parts, back) in made.items():
    bits = 8 * sum(part.nbytes for part in parts) / weight.numel()
    off = float((back - weight).norm() / weight.norm())
    rows[name] = f"{bits:.2f}", f"{off:.1%}"
pd.DataFrame(rows, index=["bits per weight", "off by"]).T

# %% [markdown] id="predict-four"
# The scales are float32 here, which adds half a bit per weight. (QLoRA rounds the scales too, and
# needs 4.13 bits in all.) `F.linear` doesn't accept 4-bit weights, so a layer first restores the
# whole weight matrix in float32.
#
# **Predict.** The input `x` of such a layer needs a gradient. How many bytes does autograd keep for
# the layer's backward pass, as a multiple of the bytes of the 4-bit weight?

# %% id="guess-four"
guess = None  # times


# %% id="four-bit-layer"
def layer(x):
    return nn.functional.linear(x, from_4_bits(*four).view(1024, 1024))


x = torch.randn(8, 1024, requires_grad=True)
naive = memory.saved(lambda: layer(x)).num_bytes
frugal = memory.saved(lambda: checkpoint(layer, x, use_reentrant=False)).num_bytes
held = sum(part.nbytes for part in four)
print(f"{naive / held:.1f} times{beside(guess, naive / held)}")
print(f"checkpointed: {frugal / held:.2f} times")

# %% [markdown] id="read-four"
# Autograd keeps the whole float32 weight, since backward needs it for the gradient of `x`. So
# between forward and backward, 4 bits save nothing. If you checkpoint the layer, only its input is
# kept, and backward restores the weight again.
#
# In a whole model, only the frozen weights of the blocks' linear layers take 8 or 4 bits.
# Everything else stays in 16 bits: embeddings, head, norms, the LoRA matrices and all activations.
# Here is what Llama-2-7B with LoRA holds between steps:

# %% id="ledger-4-bits"
llama_lora = replace(llama, lora_rank=16).make_model("meta")
held = {"linear": 0, "others": 0, "trained": 0}
for name, p in llama_lora.named_parameters():
    kind = "trained" if p.requires_grad else "others"
    linear = kind == "others" and p.ndim == 2 and ".layers." in name
    held["linear" if linear else kind] += p.numel()
ledger = {}
for name, bits in {"bfloat16": 16, "FP8": 8.5, "4 bits": 4.5, "QLoRA": 4.127}.items():
    row = {"weights": held["linear"] * bits / 8, "in 16 bits": 2 * held["others"]}
    row["LoRA, gradient, states"] = 2 * held["trained"] * 4
    ledger[name] = row | {"sum": sum(row.values())}
pd.DataFrame(ledger).T.map(human_bytes)

# %% [markdown] id="one-state"
# *Training* in FP8 is different: it cuts time and activations, not weights (08c). The weights that
# the optimizer updates stay in 16 or 32 bits.
#
# ## One state
#
# Muon (Jordan, 2024) is an optimizer with only one state, the momentum. It's meant for the matrices
# inside the blocks; AdamW still updates embeddings, head, norms and biases. How many bytes of state
# does a GPT then need per byte of weights?


# %% id="muon"
def state_bytes(optimizers):
    states = [s for each in optimizers for s in each.state.values()]
    return sum(t.nbytes for s in states for t in s.values() if torch.is_tensor(t))


def stepped(*optimizers):
    gpt.loss(ids).backward()
    for each in optimizers:
        each.step()
    return state_bytes(optimizers) / sum(p.nbytes for p in gpt.parameters())


gpt, states = GPT(replace(config, num_layers=2)), {}
matrices = [p for p in gpt.blocks.parameters() if p.ndim == 2]
rest = [p for p in gpt.parameters() if all(p is not m for m in matrices)]
states["AdamW"] = stepped(torch.optim.AdamW(gpt.parameters()))
states["Muon, AdamW"] = stepped(torch.optim.Muon(matrices), torch.optim.AdamW(rest))
pd.DataFrame({"states, in P": states}).round(2)

# %% [markdown] id="weight-ways-text"
# Here are six training recipes, in bytes per parameter. Chapter 08c explains the last two rows.

# %% id="weight-ways"
ways = {"float32 weights, AdamW": (4, 4, 8), "all in bfloat16, AdamW": (2, 2, 4)}
ways["float32 weights, Muon"] = 4, 4, 4
ways["float32 weights, 8-bit AdamW"] = 4, 4, 2
ways["bfloat16, 8-bit AdamW, stochastic rounding"] = 2, 2, 2
ways["bfloat16, 8-bit AdamW, Kahan's second number"] = 2 + 2, 2, 2
each = pd.DataFrame(ways, index=["weights", "gradients", "states"]).T
each.assign(sum=each.sum(axis=1))

# %% [markdown] id="long-sequences"
# ## Twice the tokens, four times the scores
#
# In chapter 01's formula, activations grow linearly with the sequence length. How do they grow if
# attention stores its scores, one number per head for each pair of tokens?


# %% id="growth-sequence"
def saved_bytes(seq, attention):
    sizes = {"num_layers": 2, "seq_len": seq, "d_model": 256, "num_heads": 4}
    gpt = GPT(GPTConfig(vocab_size=1000, attention=attention, **sizes))
    ids = torch.zeros(1, seq, dtype=torch.long)
    return memory.saved(lambda: gpt.loss(ids), params_of=gpt).num_bytes


curves = {"scores written out": {}, "fused attention": {}, "formula": {}}
for T in (128, 256, 512, 1024):
    curves["scores written out"][T] = saved_bytes(T, "eager")
    curves["fused attention"][T] = saved_bytes(T, "sdpa")
    curves["formula"][T] = 4 * T * ((16 * 2 + 2) * 256 + 1000)
title = "Activations of 2 blocks, counted (both axes linear)"
plots.growth(curves, xlabel="tokens", title=title, predicted=["formula"], log=False)

# %% [markdown] id="images"
# Fused attention follows the formula's straight line. Stored scores add a term with $T^2$, which
# dominates at long context; chapter 03 counts it.
#
# ## Images: twice the side, four times the bytes
#
# A U-Net keeps feature maps, so its activations grow with the *area* of the image. Do they grow by
# a factor of exactly 4 when the side doubles?

# %% id="growth-resolution"
unet = UNet(UNetConfig())


def unet_bytes(side):
    images, t = torch.zeros(2, 1, side, side), torch.zeros(2, dtype=torch.long)
    return memory.saved(lambda: unet.loss(images, t, images), params_of=unet).num_bytes


sides = {side: unet_bytes(side) for side in (16, 32, 64)}
[round(sides[2 * side] / sides[side], 2) for side in (16, 32)]

# %% [markdown] id="read-resolution"
# The factor is a little more than four, because the scores of the attention at the lowest
# resolution grow with the square of the area.
#
# ## A published table, tested
#
# In a much-copied table about a 50-layer transformer, checkpointing turns 24 GB of activations into
# 8 GB, and a total of 40 GB into 24 GB. The table names no width, batch size or kernels. So we
# choose a width that gives the table's 4 GB of float32 weights, and a batch size at which forward
# adds the table's 24 GB. The rows with `eager` store attention's scores.

# %% id="fifty-table"
a100, fifty = recorded.load("emulated NVIDIA A100-SXM4-80GB").rows, {}
fused = {"micro_batch": 11, "seq": 512}
eager = {"micro_batch": 8, "attention": "eager"}  # it keeps more for a sequence of 512
steps = [(way, fused) for way in ("none", "per-block", "sqrt")]
for way, shape in [*steps, ("none", eager), ("per-block", eager)]:
    label = Recipe("transformer-50", **shape, checkpointing=way).label()
    report, card = table[label]["report"], a100[label]["report"]
    phases, before = report["phases"], report["baseline_bytes"]
    fifty[way if shape is not eager else f"{way}, eager"] = {
        "activations": report["activation_bytes"],
        "forward adds": phases["forward"] - before,
        "a pass adds": max(phases["forward"], phases["backward"]) - before,
        "optimizer": phases["optimizer"],
        "A100": card["peak_bytes"],
    }
fifty = pd.DataFrame(fifty).T / GB  # the last column is emulated, the others predicted
most, total = fifty["activations"], fifty["A100"]
fifty.round(1)

# %% [markdown] id="read-fifty"
# Without checkpointing, we nearly get the table's figures. With it, the table's 8 GB and 24 GB are
# too high. The source's own code puts a checkpoint around each block. That leaves about a tenth of
# the activations, and the update is then the peak. The textbook rule, segments of $\sqrt{50}$
# layers (row `sqrt`), leaves a little more.
#
# ## Has hardware kept up?
#
# The next figure compares the bytes that models need for training, at 16 per parameter, with one
# accelerator's memory in the same years. Parameter counts are from the papers, which the cell
# names.

# %% id="history-figure"
# @title Models and cards by year: run this cell; open it to look
# Radford 2018, Devlin 2018, Radford 2019, Raffel 2019, Brown 2020, Chowdhery 2022,
# Touvron 2023, Grattafiori 2024, DeepSeek-AI 2024; a card's nominal memory
models = [(2018, "GPT", 117e6), (2018, "BERT-Large", 340e6), (2019, "GPT-2", 1.5e9)]
models += [(2019, "T5", 11e9), (2020, "GPT-3", 175e9), (2022, "PaLM", 540e9)]
models += [(2023, "Llama 2", 70e9), (2024, "Llama 3.1", 405e9)]
models += [(2024, "DeepSeek-V3", 671e9)]
cards = [(2018, "V100", 32), (2020, "A100", 80)]
cards += [(2022, "H100", 80), (2024, "H200", 141)]
growth = models[-1][2] / models[0][2], cards[-1][2] / cards[0][2]
after_gpt3 = models[-1][2] / 175e9, cards[-1][2] / cards[1][2]
print(f"2018 to 2024: models {growth[0]:,.0f}-fold, one card {growth[1]:.0f}-fold")
print(f"from 2020 on: {after_gpt3[0]:.1f}-fold and {after_gpt3[1]:.1f}-fold")
figures.models_and_cards(models, cards)

# %% [markdown] id="read-history"
# In six years models grew by more than three orders of magnitude, and a card's memory by less than
# a factor of five (the axis is logarithmic). Nearly all of the gap opened by 2020: since GPT-3, the
# largest published models have grown only about twice as much as a card's memory. But the gap is
# still there.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "C02",
        "shown",
        "From GPT to DeepSeek-V3 models grew a thousand times as much as a card's "
        "memory, and nearly all of that was before 2020.",
        f"models {growth[0]:,.0f}-fold, one card {growth[1]:.0f}-fold; from 2020 on "
        f"{after_gpt3[0]:.1f}-fold and {after_gpt3[1]:.1f}-fold",
        "cited",
        "history-figure",
    ),
    claims.Verdict(
        "E01",
        "partly",
        "Nearly right without checkpointing. With it, a tenth of the activations is "
        "left, and the peak is the update.",
        f"activations {most['none']:.1f}, sqrt {most['sqrt']:.1f}, blocks "
        f"{most['per-block']:.1f} GB; in all {total['none']:.1f}, {total['sqrt']:.1f}, "
        f"{total['per-block']:.1f} GB",
        "emulated",
        "fifty-table",
        device="emulated A100",
        tried={
            f"{part}{way}": column[column.index.str.startswith("none") == (not way)]
            for part, column in (("activations", most), ("in all", total))
            for way in ("", ", checkpointed")
        },
    ),
)

# %% [markdown] id="summary"
# ## What you can now do
#
# - Estimate the peak of a GPT in any precision, and say what autocast adds.
# - Choose between LoRA, 8-bit states and paged states, and say what each leaves in memory.
# - Say what 8-bit and 4-bit weights save, what stays in 16 bits, and why a 4-bit layer recomputes.
# - Ask of a published table: which model, which batch, which kernels?
