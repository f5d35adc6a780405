# %% [markdown] id="title"
# # Where memory goes
#
# Ask what a model of seven billion parameters needs to train, and you get a sum: 14 GB of
# parameters in bfloat16, 14 GB of gradients, 56 GB of Adam states in float32, so 84 GB and "a bit
# for activations". Each of these figures is right in some program. In PyTorch as most people write
# it, the three never occur together, and the bit for activations can be larger than all three.
#
# In this chapter you take the sum apart with a meter and put it together again on paper.
#
# **Budget:** 45 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from tutorial_lib import device, memory, plots, recorded, strategies, widgets
from tutorial_lib.emulated import CARDS
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import GB, Bytes

# %% [markdown] id="residents"
# ## What stays: bytes per parameter
#
# Three things stay from one step to the next, or nearly: the parameters, a gradient for each, and
# what the optimizer remembers about each. All three are proportional to the number of parameters,
# so one small model tells the price per parameter for every model. The batch is tiny here, to keep
# the activations out of the picture.


# %% id="make-step"
def make_step(model, make_optimizer, tokens, precision="float32"):
    model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    optimizer = make_optimizer(model.parameters())
    autocast = precision == "bf16 autocast"

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model.loss(tokens)
        loss.backward()
        optimizer.step()

    return step, model, optimizer


# %% id="bytes-per-parameter"
config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256)
few_tokens = torch.zeros(1, 8, dtype=torch.long)


def bytes_per_parameter(make_optimizer, precision):
    step, model, optimizer = make_step(GPT(GPTConfig()), make_optimizer, few_tokens, precision)
    held = memory.measure(step, model=model, optimizer=optimizer).at_peak
    count = sum(p.numel() for p in model.parameters())
    return {name: held[name] / count for name in ("parameters", "gradients", "optimizer_state")}


# %% [markdown] id="predict-residents"
# **Predict.** The plainest recipe, float32 and SGD, is 4 bytes for the parameter and 4 for its
# gradient. What is it for AdamW in float32? Under bfloat16 autocast? With the whole model in
# bfloat16? Three numbers.

# %% id="measure-residents"
recipes = {
    "SGD, float32": (torch.optim.SGD, "float32"),
    "SGD + momentum, float32": (partial(torch.optim.SGD, momentum=0.9), "float32"),
    "AdamW, float32": (torch.optim.AdamW, "float32"),
    "AdamW, bf16 autocast": (torch.optim.AdamW, "bf16 autocast"),
    "AdamW, all bfloat16": (torch.optim.AdamW, "bfloat16"),
    "Adafactor, float32": (torch.optim.Adafactor, "float32"),
}
per_parameter = {name: bytes_per_parameter(*recipe) for name, recipe in recipes.items()}
plots.ledger_bars(per_parameter, title="Bytes per parameter that stay, counted")

# %% [markdown] id="read-residents"
# Three readings, each against a belief that costs people days.
#
# - **Autocast saves nothing here.** It computes in bfloat16; what it *keeps* (parameters,
#   gradients, states) stays float32. Sixteen bytes either way.
# - **All bfloat16 means all.** PyTorch's AdamW keeps its two states in the type of the parameter.
#   So 14 GB of bfloat16 parameters bring 28 GB of states, not 56. The 56 belong to float32
#   states, and those come with float32 parameters or with an extra float32 master copy: again 16
#   bytes.
# - **"Optimizer states take 2 to 8 times the parameters"** mixes a multiple with bytes. In
#   multiples:

# %% id="verdict-states"
for name, held in per_parameter.items():
    print(f"{name:<24} states / parameters = {held['optimizer_state'] / held['parameters']:.2f}")

# %% [markdown] id="next-levers"
# Adafactor gets near zero by keeping, for a matrix, one number per row and one per column (Shazeer
# and Stern, 2018). Two levers that need another library, by count:
#
# | lever | states, bytes per parameter | what it does |
# |---|---|---|
# | 8-bit AdamW (Dettmers et al., 2022) | 2, and 8 per block of 256 | states of one byte |
# | paged AdamW | as without paging | keeps them on the host while the GPU is full |
#
# The fourth lever leaves the optimizer alone and trains fewer parameters.

# %% [markdown] id="lora"
# ### LoRA: almost nothing left to remember
#
# LoRA (Hu et al., 2021) freezes the model and trains a correction of low rank beside each chosen
# matrix. A frozen parameter has no gradient and no state.


# %% id="lora-layer"
class LoRA(nn.Module):
    def __init__(self, frozen, rank=8):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # the correction starts at nothing

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


# %% id="lora-model"
def with_lora(model):
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = LoRA(block.attention.qkv)
        block.mlp.up = LoRA(block.mlp.up)
    return model


# %% [markdown] id="predict-lora"
# **Predict.** A real batch now, 8 sequences of 128 tokens. Gradients and states all but vanish. Do
# the activations vanish with them? Backward no longer needs the gradient of the frozen weights.

# %% id="measure-lora"
tokens = torch.zeros(8, 128, dtype=torch.long)
gpu_adamw = partial(torch.optim.AdamW, foreach=True)  # a GPU's default
reports = {}
for name, model in {"all trained": GPT(config), "LoRA, rank 8": with_lora(GPT(config))}.items():
    step, model, optimizer = make_step(model, gpu_adamw, tokens)
    reports[name] = memory.measure(step, model=model, optimizer=optimizer, label=name)
plots.ledger_bars({n: r.at_peak for n, r in reports.items()}, title="At the peak, counted")

# %% [markdown] id="read-lora"
# The states are gone and most activations are still there: the signal has to travel back through
# every frozen layer to reach the corrections. Fine-tuning with LoRA on long sequences still runs
# out of memory, and then checkpointing is the lever, not a smaller rank.

# %% [markdown] id="activations"
# ## What comes and goes: activations
#
# An activation is kept for a reason: some operation needs its input or its output to compute a
# gradient. `memory.saved` lists what autograd keeps in one block of our GPT. The unit is the tensor
# that travels between blocks, (batch, sequence, width), here 1 MiB.
#
# **Predict.** How many such units does one block keep?

# %% id="saved-block"
block = GPT(config).blocks[0]
x = torch.randn(8, 128, config.d_model, requires_grad=True)  # (batch, sequence, width)
saved = memory.saved(lambda: block(x), params_of=block)
saved

# %% id="saved-units"
saved.num_bytes / x.nbytes

# %% [markdown] id="read-saved"
# Sixteen, and a little for the norms' statistics. Count them in the table: each norm keeps its
# input and each linear layer its input; the fused attention keeps queries, keys, values and its
# output; the MLP, four times as wide, keeps the input of GELU (4) and its output (4). More than
# half of a transformer's activations stand in the MLP, around one pointwise function.
#
# So here is a theory of activations, with batch $B$, sequence $T$, width $C$, vocabulary $V$ and
# $L$ layers, in float32:
#
# $$ A \approx 4 \, (16 L + 2) \, B T C + 4 \, B T V $$
#
# The 2 are the last norm and the head, the last term is the softmax over the vocabulary. Count
# against theory, one factor at a time:


# %% id="theory"
def activation_bytes(layers, batch, seq, width, vocab=1000):
    return 4 * (16 * layers + 2) * batch * seq * width + 4 * batch * seq * vocab


def counted_bytes(layers, batch, seq, width, attention="sdpa"):
    sizes = {"num_layers": layers, "seq_len": seq, "d_model": width, "num_heads": width // 64}
    model = GPT(GPTConfig(vocab_size=1000, attention=attention, **sizes))
    ids = torch.zeros(batch, seq, dtype=torch.long)
    return memory.saved(lambda: model.loss(ids), params_of=model).num_bytes


# %% id="theory-against-count"
for shape in [(12, 8, 128, 256), (24, 8, 128, 256), (12, 16, 128, 256), (12, 8, 256, 256),
              (12, 8, 128, 512)]:  # fmt: skip
    theory, count = activation_bytes(*shape), counted_bytes(*shape)
    print(f"L, B, T, C = {shape!s:<20} {count:>9}, theory off {theory / count - 1:+.2%}")

# %% [markdown] id="read-theory"
# One formula for depth, batch, sequence and width, right to a quarter of a per cent. It is linear
# in each of the four. It holds for *this* block: another block has another number for the 16, and
# you know how to count it. Published figures of this kind (34 bytes per element and layer in 16
# bits, Korthikanti et al., 2022) come from the same table, with dropout masks in it.
#
# ### Where linear ends: written-out attention
#
# **Predict.** Attention that writes its scores out keeps them, one number for each pair of tokens
# and head. What does that do to the curve over the sequence length?

# %% id="growth-sequence"
lengths = (64, 128, 256, 512)
curves = {
    "scores written out, counted": {t: counted_bytes(4, 2, t, 256, "eager") for t in lengths},
    "fused attention, counted": {t: counted_bytes(4, 2, t, 256) for t in lengths},
    "theory, 16 units a block": {t: activation_bytes(4, 2, t, 256) for t in lengths},
}
theory = ["theory, 16 units a block"]
plots.growth(curves, xlabel="sequence length", title="Activations of 4 blocks", predicted=theory)

# %% [markdown] id="read-sequence"
# Fused attention follows the straight line of the theory, dash upon dash. Written-out scores bend
# away: a term with $T^2$. At the lengths of a small laptop example the bend looks harmless. It is
# the term that decides at long context, and chapter 03 counts it.
#
# ### Images: twice the side, four times the bytes
#
# A U-Net keeps feature maps, so its activations follow the *area* of the image. For each doubling
# of the side they grow by this factor:

# %% id="growth-resolution"
unet = UNet(UNetConfig())


def unet_bytes(side):
    images, t = torch.zeros(2, 1, side, side), torch.zeros(2, dtype=torch.long)
    noise = torch.zeros_like(images)
    return memory.saved(lambda: unet.loss(images, t, noise), params_of=unet).num_bytes


sides = {side: unet_bytes(side) for side in (16, 32, 64)}
[round(sides[2 * side] / sides[side], 2) for side in (16, 32)]

# %% [markdown] id="read-resolution"
# Times four, and a trace more: the attention at the lowest level is beginning to bend as well.

# %% [markdown] id="the-peak"
# ## When is the peak?
#
# In a GPT two moments compete for the peak. At the start of backward all activations are there and
# no gradients of weights. In the update all gradients are there and no activations, yet AdamW on a
# GPU computes for all parameters at once (`foreach`) and holds one more copy of them. (A network
# whose last layers hold most of the weights, such as a VGG, has a third: in the middle of backward
# both are there. Lab 01 comes to it.)
#
# **Predict.** Small batch, large batch: which moment wins where? And what does checkpointing change
# when the update has won?


# %% id="peak"
gpt = GPT(config)
adamw = gpu_adamw(gpt.parameters())


def peak(micro_batch, strategy="none", accumulation_steps=1):
    ids = torch.zeros(micro_batch, 128, dtype=torch.long)

    def step():
        adamw.zero_grad()
        for _ in range(accumulation_steps):
            (gpt.loss(ids) / accumulation_steps).backward()
        adamw.step()

    with strategies.applied(gpt, strategy):
        return memory.measure(step, model=gpt, optimizer=adamw, warmup=0).peak_bytes


peak(1)  # the first step makes the optimizer's state, so that the others need no warm-up

# %% id="batch-sweep"
batches = (1, 2, 4, 8, 16)
curves = {name: {b: peak(b, name) for b in batches} for name in ("none", "per-block")}
plots.growth(curves, xlabel="micro-batch", title="Peak of the whole step, by checkpointing")

# %% [markdown] id="read-sweep"
# Both curves lie on the same floor, five times the parameters, and the floor is the update:
# parameters, gradients, two states, one temporary copy. Only where the ramp of activations rises
# above the floor can checkpointing lower anything, and it can lower it to the floor, no further.
#
# Checkpointing is no panacea. Category by category, before and after, at a batch of 16:

# %% id="panacea"
step, model, optimizer = make_step(GPT(config), gpu_adamw, torch.zeros(16, 128, dtype=torch.long))
before = memory.measure(step, model=model, optimizer=optimizer)
with strategies.applied(model, "per-block"):
    after = memory.measure(step, model=model, optimizer=optimizer, warmup=0)
plots.ledger_bars({"without": before.at_peak, "per-block checkpointing": after.at_peak})

# %% [markdown] id="read-panacea"
# The parameters and the states are the same bars. (The gradients appear in the second bar because
# its peak comes later in the step.)

# %% [markdown] id="batches"
# ## Micro-batch and effective batch
#
# Three batch sizes are in use, and only one of them is a quantity of memory. A GPU holds a
# *micro-batch*. After some *accumulation steps*, on some number of GPUs, one update has seen the
# product of the three, the *effective batch*. Move the sliders: the filled squares are in memory.

# %% id="explorer"
widgets.batch_explorer(micro_batch=8, accumulation_steps=4, num_gpus=2)

# %% [markdown] id="predict-accumulation"
# **Predict.** The effective batch is 16 in the first three rows below and 32 in the last. Which
# rows have the same peak?

# %% id="accumulation-table"
P = before.at_peak["parameters"]
in_p = {}
for micro_batch, steps in [(16, 1), (8, 2), (4, 4), (4, 8)]:
    in_p[micro_batch, steps] = peak(micro_batch, accumulation_steps=steps) / P
    print(f"micro-batch {micro_batch:>2} x {steps} steps: peak {in_p[micro_batch, steps]:.2f} P")

# %% [markdown] id="read-accumulation"
# The last two agree: twice the accumulation steps cost not one byte. The micro-batch alone
# moves the peak, with one honest constant: from the second micro-batch on, the gradients of the
# first are alive while the activations of the next build up, and that is one P that a single batch
# does not pay. Compare 8 x 2 with what the sweep above gave for a plain batch of 8:

# %% id="gradient-constant"
round(in_p[8, 2] - curves["none"][8] / P, 2)

# %% [markdown] id="read-constant"
# More GPUs change nothing on each of them, as long as each holds a whole model; chapter 13 measures
# that with real processes.

# %% [markdown] id="unseen"
# ## What the meter does not see
#
# The meter counts tensors. A GPU's allocator hands out blocks of 512 bytes, kernels ask for
# *workspace* between their first and last line (a matrix library keeps tens of MiB of it), and what
# was freed is kept in *reserve* in pieces that may not fit the next request. Rounding can be
# counted without a GPU: every storage of a step, rounded up.

# %% id="rounding"
lives = before.timeline
exact = sum(life.num_bytes for life in lives)
rounded = sum(-(-life.num_bytes // 512) * 512 for life in lives)
f"{len(lives)} storages in one step; rounding adds {rounded / exact - 1:.2%}"

# %% [markdown] id="workspace"
# Rounding is noise. Workspace and reserve are not, and no arithmetic gives them. `other` in a
# report from a GPU is workspace and rounding together; `reserved` is what the driver says is gone.
# Nor does a card offer what its name says:

# %% id="cards"
for card in CARDS.values():
    print(f"{card.name:<24}{Bytes(card.memory):>9}, compute capability {card.capability}")
t4 = recorded.load("emulated Tesla T4").rows["gpt2, batch 8, fp32, adamw, per-block"]["report"]
print(f"GPT-2 on an emulated T4: {Bytes(t4['peak_bytes'])} allocated, "
      f"{Bytes(t4['reserved_bytes'])} reserved")  # fmt: skip

# %% [markdown] id="read-cards"
# A T4 is sold with 16 GB and reports less; CUDA's context takes some hundred MiB of that. Compute
# capability below 8.0 means no bfloat16 in hardware, and no flash attention.

# %% id="on-the-gpu"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    here = device.pick()
    step, model, optimizer = make_step(GPT(config).to(here), gpu_adamw, tokens.to(here))
    print(memory.measure(step, model=model, optimizer=optimizer, label="on this GPU"))

# %% [markdown] id="seven-billion"
# ## Seven billion parameters, on paper
#
# Llama-2-7B, from its published configuration, built on the `meta` device: shapes without memory.

# %% id="llama-count"
llama = Recipe("llama-2-7b").make_model("meta")
N = sum(p.numel() for p in llama.parameters())
f"{N:,} parameters"


# %% [markdown] id="ledger-text"
# First what stays. The table from the top of the chapter, as a function:

# %% id="ledger"
STATES = {"SGD": 0, "SGD + momentum": 1, "AdamW": 2}


def ledger(num_parameters, precision, optimizer):
    width = 2 if precision == "bfloat16" else 4
    return {
        "parameters": num_parameters * width,
        "gradients": num_parameters * width,
        "optimizer_state": num_parameters * width * STATES[optimizer],
    }


# %% id="ledger-7b"
options = ("bfloat16", "float32")
on_paper = {f"AdamW, {precision}": ledger(N, precision, "AdamW") for precision in options}
plots.ledger_bars(on_paper, title="Llama-2-7B: what stays", cards_gib=plots.CARDS_GIB)

# %% [markdown] id="verdict-7b"
# In decimal gigabytes, as the sum at the top of the chapter has them:

# %% id="verdict-7b-numbers"
for name, held in on_paper.items():
    gigabytes = {category: round(size / GB, 1) for category, size in held.items()}
    print(f"{name}: {gigabytes}, together {sum(held.values()) / GB:.1f} GB")

# %% [markdown] id="read-verdict-7b"
# So "14 + 56 + 14" takes its first and last figure from one row and its middle figure from the
# other. Either all is bfloat16 and a card of 80 GiB has room to spare, or the states are float32,
# and then something of 4 bytes per parameter stands beside them and 80 GiB are not enough.
#
# Now what comes and goes. Activations are linear in depth, so two small models give the line. Both
# are predicted on fake tensors, with the kernels that a GPU would take: one sequence of 4096
# tokens, everything in bfloat16.

# %% id="llama-step"
llama_step = Recipe("llama-2-7b", 1, seq=4096, precision="bf16")  # a step, by its choices
llama_step.as_data()


# %% id="predicted-steps"
def activations(report):
    return max(moment["activations"] for moment in report.curve())


def predicted(recipe, **changes):
    return memory.predict(replace(recipe, **changes).make_step, label=recipe.label())


# %% [markdown] id="predict-llama"
# **Predict.** You have 50 GiB of parameters, gradients and states. Are the activations of a single
# sequence of 4096 tokens nearer to 1 GiB, to 10, or to 100?

# %% id="two-points"
small = [predicted(llama_step, overrides={"num_hidden_layers": layers}) for layers in (1, 2)]
one, two = map(activations, small)
paper = one + 31 * (two - one)
f"on paper: {Bytes(paper)} of activations"

# %% id="whole-llama"
whole = predicted(llama_step)
print(f"theory off by {paper / activations(whole) - 1:+.3%}")
whole.figure()

# %% [markdown] id="read-llama"
# The line through two toy models hits the 32-layer model exactly: every block keeps the same. Now
# look at the right end of the picture. The update, with its temporary copy, tops the activations of
# a whole 4096-token sequence. What happens if you checkpoint? And if AdamW is *fused*, one kernel
# that needs no copy? The course keeps a table of such predictions, hundreds of them, made with the
# command `python -m tutorial_lib record --predict`.

# %% id="llama-levers"
table = recorded.load("predicted").rows


def from_table(recipe, **changes):
    return table[replace(recipe, **changes).label()]["report"]


levers = {
    "plain": {},
    "checkpointed": {"checkpointing": "per-block"},
    "fused AdamW": {"optimizer": "adamw-fused"},
    "both": {"checkpointing": "per-block", "optimizer": "adamw-fused"},
}
title = "Llama-2-7B, 1 x 4096, all bfloat16, predicted for CUDA kernels"
ledgers = {name: from_table(llama_step, **changes)["at_peak"] for name, changes in levers.items()}
plots.ledger_bars(ledgers, title=title, cards_gib=plots.CARDS_GIB, predicted=list(levers))

# %% [markdown] id="read-levers"
# Checkpointing alone: not one byte off the peak. The fused optimizer alone: next to nothing. Both:
# a fifth. Each lever lowers one of two towers, and the peak is the taller tower. That is why
# advice of the form "technique X saves Y per cent" cannot be true of all models, and why the first
# thing to ask of a number is: which peak?

# %% [markdown] id="calculator-text"
# ## The memory calculator
#
# The ledger and the theory of activations, joined: a GPT-like model, its residents by the ledger,
# its activations by $16$ units a block (checkpointed: one unit a block, and one block's 16 while it
# is computed again). It is an estimate by formula, with the update's temporary copy as the other
# tower.

# %% id="calculator-ledger"
SHAPES = {"124M": (12, 768), "1.5B": (48, 1600), "7B": (32, 4096), "70B": (80, 8192)}  # L, C


def estimate(shape, precision, optimizer, *, micro_batch, seq_len, checkpointing):
    layers, width = shape
    held = ledger(12 * layers * width**2, precision, optimizer)  # 12 C^2 weights in a block
    units = layers + 16 if checkpointing else 16 * layers
    element = 4 if precision == "float32" else 2
    held["activations"] = units * micro_batch * seq_len * width * element
    copy = held["parameters"] if optimizer == "AdamW" else 0  # foreach, a GPU's default
    if held["activations"] > held["gradients"] + copy:
        return held | {"gradients": 0}  # the peak is at the start of backward
    return held | {"activations": 0, "temporary": copy}


# %% id="calculator"
precisions = ("float32", "bf16 autocast", "bfloat16")
choices = {"models": SHAPES, "precisions": precisions, "optimizers": list(STATES)}
widgets.memory_calculator(estimate, precision="bfloat16", seq_len=4096, **choices)

# %% [markdown] id="calculator-questions"
# Three questions for the sliders. Which is the largest model that trains in float32 with AdamW on
# 24 GiB? At which sequence length does the 7B model's peak move from the update to the ramp? Where
# does the check mark at checkpointing change nothing at all?

# %% [markdown] id="fifty-layers"
# ## A published table, settled
#
# A much-copied table says of a transformer with 50 layers: weights 4 GB, gradients 4, states 8,
# activations 24 and, checkpointed, 8; in all 40 and then 24. Nothing says which width, batch or
# kernels. Here is a 50-layer model with 4 GB of float32 weights, and the batch whose activations,
# nearly all that forward adds, are the table's 24 GB.

# %% id="fifty-table"
fifty = Recipe("transformer-50", 11, seq=512)
for strategy in ("none", "per-block", "sqrt"):
    report = from_table(fifty, checkpointing=strategy)
    tops = [report["phases"][phase] / GB for phase in ("forward", "backward", "optimizer")]
    ramp = tops[0] - report["baseline_bytes"] / GB
    print(f"{strategy:<10} forward adds {ramp:4.1f} GB; backward peaks at {tops[1]:.1f}, "
          f"update at {tops[2]:.1f}")  # fmt: skip

# %% [markdown] id="read-fifty"
# The row without checkpointing exists: this batch has it, and the total is near the table's. The
# other row is wrong on both counts. Checkpointing leaves far less than 8 GB of activations, and the
# total stops falling at the update, where activations no longer count. Compare the last two lines,
# too. "Every square root of n layers", the rule in every textbook, keeps much less in forward than
# per-block checkpointing does, and its backward peaks *higher*. Chapter 06 finds out why.

# %% [markdown] id="history"
# ## Why the subject will not go away
#
# Models in bytes of plain training (16 per parameter) against the memory of one accelerator.
# Parameters as their papers give them (GPT: Radford 2018; BERT: Devlin 2018; GPT-2: Radford 2019;
# T5: Raffel 2019; GPT-3: Brown 2020; PaLM: Chowdhery 2022; Llama 2: Touvron 2023; Llama 3.1:
# Grattafiori 2024; DeepSeek-V3: DeepSeek-AI 2024). Memory as in NVIDIA's data sheets of P100, V100,
# A100, H100, H200 and B200.

# %% id="history-figure"
models = [(2018, "GPT", 117e6), (2018, "BERT-Large", 340e6), (2019, "GPT-2", 1.5e9),
          (2019, "T5", 11e9), (2020, "GPT-3", 175e9),
          (2022, "PaLM", 540e9), (2023, "Llama 2", 70e9), (2024, "Llama 3.1", 405e9),
          (2024, "DeepSeek-V3", 671e9)]  # fmt: skip
cards = [(2016, "P100", 16), (2018, "V100", 32), (2020, "A100", 40), (2021, "A100", 80),
         (2022, "H100", 80), (2024, "H200", 141), (2025, "B200", 180)]  # fmt: skip
plots.models_and_cards(models, cards)

# %% [markdown] id="read-history"
# Three orders of magnitude on one side, one on the other, in the same years. Hardware did not
# close the gap and is not about to; arithmetic like yours does, together with the machinery of
# chapter 13.

# %% [markdown] id="summary"
# ## What you can now do
#
# - Write what stays as bytes per parameter, and refuse sums that mix two recipes.
# - Count one block's activations and know the whole model's, linear in depth, batch and sequence.
# - Ask of every saving: which of the two towers does it lower, and which is the taller one?
#
# Lab 01, `lab01_ledger`, asks for all three, to the byte. Chapter 02 shows five published ways to
# measure these things wrongly.
