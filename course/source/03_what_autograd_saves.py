# %% [markdown] id="title"
# # What autograd saves
#
# Write a GELU out with `torch.tanh` instead of calling `F.gelu`: the same function, four times the
# memory. Freeze a linear layer: its input is let go. Freeze a convolution: its input stays. Make a
# ReLU in-place, as every ResNet does "to save memory": not one byte is saved.
#
# Activations are not "the outputs of the layers". They are what backward formulas ask for. This
# chapter counts them: per operation, per layer, over time. Bytes for a GPU are *predicted* here,
# from the kernels that it would take; all others are *counted*.
#
# **Budget:** 55 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from tutorial_lib import claims, memory, plots, strategies
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Attention, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import Bytes, human_bytes

torch.set_num_threads(1)  # small tensors: more threads would wait for each other

# %% [markdown] id="instrument"
# ## An instrument in ten lines
#
# What does autograd keep between forward and backward? It will tell you. Whenever an operation
# wants to keep a tensor for its backward pass, autograd calls a *pack* hook, if there is one, and
# keeps what the hook returns. Ours writes down every tensor that it is given.
#
# There are three ways to add up the list: every tensor; every *storage* once, because many tensors
# are views of one piece of memory; and every storage that is not a parameter. How far apart are the
# three sums for a GPT of this size?


# %% id="by-hand"
def packed(forward):
    tensors = []

    def pack(tensor):
        # the tensor without its graph, or the two form a cycle
        tensors.append(tensor.detach())
        return tensors[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return tensors


sizes = {"num_layers": 12, "num_heads": 4, "d_model": 256}
model = GPT(GPTConfig(vocab_size=1000, seq_len=128, **sizes))
tokens = torch.zeros(8, 128, dtype=torch.long)  # (batch, sequence)
tensors = packed(lambda: model.loss(tokens))

# %% id="three-sums"
sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
activations = sum(size for pointer, size in sizes.items() if pointer not in weights)
sums = {
    f"{len(tensors)} tensors": sum(t.nbytes for t in tensors),
    f"{len(sizes)} storages": sum(sizes.values()),
    "storages without weights": activations,
}
pd.DataFrame({"bytes": {name: f"{Bytes(size)}" for name, size in sums.items()}})

# %% [markdown] id="weights-are-not"
# A linear layer saves its weight too, because the gradient of its input needs it. The weight is in
# memory anyway, so keeping it costs nothing. **Weights are not activations.** A count that includes
# them is most wrong for small batches. `memory.saved` is this instrument with names: which module,
# which operation, which line.

# %% id="saved"
saved = memory.saved(lambda: model.loss(tokens), params_of=model)
print(f"{saved.num_bytes - activations:d} bytes apart")
dict(list(saved.by("shape").items())[:4])

# %% [markdown] id="one-op"
# Half of these bytes have the wide shape of the MLP, 4 x width.
#
# ## One operation at a time
#
# In the next tables the unit is the size of the input. The column "GPU" is predicted: inside
# `memory.predicting()` tensors have a shape and no memory, and operations save what CUDA's kernels
# would.


# %% id="units"
def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def units(make, shape):
    layer, x = make(), torch.rand(shape, requires_grad=True)
    owner = layer if isinstance(layer, nn.Module) else None
    return memory.saved(lambda: layer(x), params_of=owner).num_bytes / x.nbytes


def table(layers, shape):
    rows = {}
    for name, make in layers.items():
        counted = units(make, shape)
        with memory.predicting():
            rows[name] = counted, units(make, shape)
    return pd.DataFrame(rows, index=["CPU", "GPU"]).T.round(2)


# %% [markdown] id="predict-gelu"
# **Predict.** GELU by PyTorch's own function keeps one tensor, its input. How many tensors of that
# size does the same function keep, written out as in `gelu_by_hand`?

# %% id="guess-gelu"
guess = None  # tensors of the size of the input

# %% id="ops"
operations = {
    "x + 1": lambda: lambda x: x + 1,
    "3 * x": lambda: lambda x: 3 * x,
    "x * x": lambda: lambda x: x * x,
    "linear": lambda: nn.Linear(256, 256),
    "relu": lambda: F.relu,
    "gelu": lambda: partial(F.gelu, approximate="tanh"),
    "gelu written by hand": lambda: gelu_by_hand,
    "softmax": lambda: nn.Softmax(-1),
    "layer norm": lambda: nn.LayerNorm(256),
    "dropout": lambda: nn.Dropout(0.1),
    "maximum of each row": lambda: lambda x: x.amax(-1),
    "sort": lambda: lambda x: x.sort(-1).values,
}
kept = table(operations, (8, 128, 256))
by_hand = kept.CPU["gelu written by hand"]
print(f"by hand: {by_hand:.0f}{beside(guess, by_hand)}")
kept.add_suffix(", inputs")  # 1 is as many bytes as the operation's input

# %% [markdown] id="read-ops"
# Each row follows from a backward formula.
#
# - The derivative of a sum is 1, so nothing is kept. A product needs its factors.
# - Linear, GELU and the norm need their **input**. ReLU and softmax need their **output**. A ReLU
#   between two linear layers costs nothing, because the next layer keeps the same tensor as its
#   input. A GELU does cost.
# - Written by hand, GELU is eight operations, and each keeps what *it* needs: four tensors in all.
#   PyTorch's own function keeps its input and computes the rest again in the backward pass.
# - **Dropout on a CPU keeps a mask of floats, on a GPU one of bools**, a quarter of a float32. So a
#   count on a CPU is no prediction for a GPU, unless you ask for the other kernels.
# - Sorting keeps its indices in 64 bits, twice the size of a float32 input.
#
# The same for images:

# %% id="ops-conv"
layers = {
    "convolution 3x3": lambda: nn.Conv2d(32, 32, 3, padding=1),
    "batch norm": lambda: nn.BatchNorm2d(32),
    "group norm": lambda: nn.GroupNorm(8, 32),
    "max pooling": lambda: nn.MaxPool2d(2),
    "mean pooling": lambda: nn.AvgPool2d(2),
    "upsampling": lambda: nn.Upsample(scale_factor=2),
    "conv, norm, relu": lambda: nn.Sequential(
        layers["convolution 3x3"](), nn.BatchNorm2d(32), nn.ReLU()
    ),
}
table(layers, (4, 32, 32, 32))

# %% [markdown] id="read-ops-conv"
# A convolution keeps its input. A norm keeps its own input, which is the convolution's output. A
# ReLU keeps its output. That makes three feature maps for one conv, norm, relu. Each further triple
# adds two, because a ReLU's output is the next convolution's input and is kept once: $2k + 1$ for
# $k$ triples. Max pooling keeps its input and the 64-bit indices of its output. Upsampling keeps
# nothing.
#
# ### What do frozen layers keep?
#
# A linear layer keeps its input for the gradient of its *weight*. Frozen, it has no such gradient.
# Does it let go of its input? Does a convolution, a layer norm, a batch norm in `eval()`?

# %% id="frozen"
frozen = {
    "linear": lambda: nn.Linear(256, 256).requires_grad_(False),
    "layer norm": lambda: nn.LayerNorm(256).requires_grad_(False),
}
frozen_images = {
    "convolution": lambda: nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False),
    "batch norm, eval": lambda: nn.BatchNorm2d(32).requires_grad_(False).eval(),
}
pd.concat([table(frozen, (8, 128, 256)), table(frozen_images, (4, 32, 32, 32))])

# %% [markdown] id="read-frozen"
# The linear layer lets go of its input. The convolution does not: its backward is one kernel for
# all gradients, and PyTorch keeps the input without asking which gradients are wanted. A layer norm
# needs its input for the gradient of that *input*, frozen or not. A batch norm in `eval()` would
# need only its weight and its running variance. It keeps the input all the same, because training
# and `eval()` share one autograd formula. So freezing makes a transformer's linear layers lighter,
# and a stack of convolutions and norms not at all.
#
# ### In place
#
# **Predict.** Six times conv, batch norm, ReLU. By how many feature maps does `inplace=True` lower
# the peak of the step?

# %% id="guess-in-place"
guess = None  # feature maps

# %% id="in-place"
x = torch.randn(4, 64, 32, 32)


def conv_chain(inplace):
    net = nn.Sequential()
    for _ in range(6):
        net.extend([nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU(inplace)])
    saved = memory.saved(lambda: net(x), params_of=net).num_bytes
    report = memory.measure(lambda: net(x).sum().backward(), model=net)
    return pd.Series({"saved": saved, **report.phases}) / x.nbytes


chains = pd.DataFrame({"new tensor": conv_chain(False), "in place": conv_chain(True)}).T
fewer = chains.backward["new tensor"] - chains.backward["in place"]
print(f"the peak falls by {abs(fewer):.0f} feature maps{beside(guess, fewer)}")
chains.round(1)  # in feature maps

# %% [markdown] id="read-in-place"
# By none: the peak is in the backward pass, and it stays. ReLU keeps its output in both cases. The
# batch norm's output, which it overwrites, was kept by nobody; it would have been freed a moment
# later. In-place saves that moment, one temporary in forward. Where the overwritten tensor *is*
# kept, autograd refuses, because the saved tensor's version number has changed:

# %% id="in-place-refused"
try:
    torch.rand(4, requires_grad=True).exp().mul_(2).sum().backward()
except RuntimeError as error:
    print(str(error).split(":")[0])

# %% [markdown] id="attention"
# ## Attention: written out, or fused
#
# Scores have one number for each pair of tokens and head. If the code writes them out, softmax
# keeps them. A fused kernel computes them in tiles. It keeps its inputs, its output and one number
# per row, and computes the scores again in the backward pass: checkpointing, built into a kernel.
#
# A published sentence: "attention scores at 32K tokens in bf16 take 2 GB per layer per sample".
#
# **Predict.** How many GiB do they take for a layer with 32 heads and width 4096, the shape of
# Llama-7B?

# %% id="guess-scores"
guess = None  # GiB


# %% id="attention-bytes"
def attention_saved(seq, kind):
    with memory.predicting():
        shape = GPTConfig(num_heads=32, d_model=4096, seq_len=seq, attention=kind)
        layer = Attention(shape).to(torch.bfloat16)
        x = torch.zeros(1, seq, 4096, dtype=torch.bfloat16, requires_grad=True)
        return memory.saved(lambda: layer(x), params_of=layer)


curves = {"written out": {}, "fused": {}}
for tokens in [1024, 2048, 4096, 8192, 16384, 32768]:
    curves["written out"][tokens] = attention_saved(tokens, "eager").num_bytes
    curves["fused"][tokens] = attention_saved(tokens, "sdpa").num_bytes
title = "Kept by one attention layer"
plots.growth(curves, xlabel="tokens", title=title, predicted=list(curves))

# %% id="scores"
long = attention_saved(32768, "eager")
scores = next(row.num_bytes for row in long.rows if row.shape == (1, 32, 32768, 32768))
print(f"scores of a layer: {Bytes(scores)}{beside(guess, scores / 2**30)}")
print(f"of a head: {Bytes(scores / 32)}")
print(f"fused, all included: {attention_saved(32768, 'sdpa').num_bytes} a layer")

# %% [markdown] id="read-scores"
# The 2 GB are right *per head*. A layer has 32 times as much, and with a fused kernel it does not
# exist. Beside the scores, the written-out version keeps a mask of $T^2$ bools.
#
# ## 34 bytes per element and layer
#
# Can a formula from a paper be right to the byte? The best-known one (Korthikanti et al., 2022,
# equation 1) says what one transformer layer keeps in 16 bits, with batch $b$, sequence $s$, width
# $h$ and $a$ heads:
#
# $$ s b h \left( 34 + 5 \frac{a s}{h} \right) $$
#
# In units of $sbh$: 11 and $5as/h$ in attention, 19 in the MLP, 4 in the two norms. It assumes
# written-out attention, dropout everywhere, everything in 16 bits, and no causal mask. Our block
# was written without the paper in mind:


# %% id="block-saved"
def block_saved(b, s, h, a, *, kernels="cuda", autocast=False):
    sizes = {"num_heads": a, "d_model": h, "seq_len": s}
    dtype = torch.float32 if autocast else torch.bfloat16
    with memory.predicting(kernels):
        shape = GPTConfig(dropout=0.1, attention="eager", **sizes)
        block = Block(shape, causal=False).to(dtype)
        x = torch.zeros(b, s, h, dtype=dtype, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return memory.saved(lambda: block(x), params_of=block)


# %% id="block-parts"
b, s, h, a = 1, 1024, 1024, 16
paper = {"attention": 11 + 5 * a * s / h, "mlp": 19, "norm": 4}
counted = dict.fromkeys(paper, 0)
for row in block_saved(b, s, h, a).rows:
    counted[row.module.split(".")[0].split("_")[0]] += row.num_bytes / (s * b * h)
unit = "bytes an element"
pd.DataFrame({f"paper, {unit}": paper, f"counted, {unit}": counted}).round(3)

# %% [markdown] id="read-parts"
# They agree term by term. The small rest in the norms is their float32 statistics, two numbers a
# row. Now the whole layer at three sizes, the last one GPT-3's, with the kernels of a GPU and of a
# CPU:

# %% id="megatron"
rows = []
for b, s, h, a in [(1, 1024, 1024, 16), (2, 2048, 2048, 16), (1, 2048, 12288, 96)]:
    theory = s * b * h * (34 + 5 * a * s / h)
    on_gpu = block_saved(b, s, h, a).num_bytes
    on_cpu = block_saved(b, s, h, a, kernels="cpu").num_bytes
    off = [f"{on_gpu / theory - 1:+.3%}", f"{on_cpu / theory - 1:+.1%}"]
    rows.append((b, s, h, a, *off))
masks = s * b * h * (a * s / h + 2)  # one on the scores, two on hidden states
print(f"CPU - GPU: {(on_cpu - on_gpu) / masks:.3f} bytes for each element of a mask")
pd.DataFrame(rows, columns=["b", "s", "h", "a", "GPU kernels off", "CPU kernels off"])

# %% [markdown] id="read-megatron"
# Formula and count agree to better than a tenth of a per cent. The CPU is off by a sixth, and the
# first line says why: one byte more for each element of a dropout mask, two for bfloat16 in place
# of one for bool.
#
# The paper's "mixed precision" keeps 16-bit weights. PyTorch's `autocast` is something else:
# float32 weights, cast on the fly.
#
# **Predict.** For the first size the paper says $34 + 5 \cdot 16 = 114$ bytes for each element of
# $sbh$. How many are kept under autocast?

# %% id="guess-autocast"
guess = None  # bytes per element

# %% id="autocast"
b, s, h, a = 1, 1024, 1024, 16
one = block_saved(1, s, h, a, autocast=True).num_bytes
two = block_saved(2, s, h, a, autocast=True).num_bytes
per_element, constant = (two - one) / (s * h), 2 * one - two
print(f"each sample: {per_element:.1f} bytes an element{beside(guess, per_element)}")
print(f"once: {Bytes(constant)}; in 16 bits the weights are {Bytes(2 * 12 * h**2)}")

# %% [markdown] id="read-autocast"
# More, because CUDA's autocast computes softmax and norms in float32, and what they keep is float32
# too. The second line does not grow with the batch: the backward pass needs the weights in the type
# in which the forward pass used them, so the 16-bit *copies* of all weights are kept as well.
#
# ## How long each tensor lives
#
# Bytes are half of the story: a tensor that is gone when the peak comes costs nothing. Forward
# saves first what backward uses last, so "the activations of early layers live longest". Is that
# true? Eight blocks, counted:

# %% id="gpt-lives"
small = GPT(GPTConfig(num_layers=8))
ids = torch.zeros(4, 128, dtype=torch.long)


def step():
    small.zero_grad()
    small.loss(ids).backward()


plain = memory.measure(step, model=small, label="none")
plots.tape({"none": plain})

# %% [markdown] id="predict-lives"
# Each row is a tensor of the forward pass, the input below and the loss on top; a bar is its life.
# The rows draw a triangle: forward writes upward, backward reads downward.
#
# **Predict.** For how many per cent of the step does a tensor of the first block live, on average?

# %% id="guess-lives"
guess = None  # per cent of the step


# %% id="lives"
def lives(report, place):
    """Mean life of each place's activations, weighted by bytes, as a share."""
    end = max(life.died or life.born for life in report.timeline)
    rows = [
        (place(life.module), life.num_bytes, life.num_bytes * (life.died - life.born))
        for life in report.timeline
        if life.category == "activations" and life.died
    ]
    table = pd.DataFrame(rows, columns=["place", "size", "held"])
    sums = table[table.place != ""].groupby("place", sort=False).sum()
    share = (100 * sums.held / sums["size"] / end).round().astype(int)
    return pd.DataFrame({"bytes": sums["size"].map(human_bytes), "life, %": share})


# %% id="lives-of-blocks"
def of_blocks(module):
    return module[: len("blocks.0")] if "blocks" in module else ""


blocks = lives(plain, of_blocks)
first, last = blocks["life, %"].iloc[0], blocks["life, %"].iloc[-1]
print(f"first block: {first} % of the step{beside(guess, first)}")
blocks

# %% [markdown] id="read-lives"
# True, and linear: each block shortens the life by the same amount. (Time is counted in operations
# that allocate, not in seconds; the order is the same.) The first block's bytes are kept about ten
# times as long as the last one's, for one use each. That is the argument for checkpointing. It also
# names the block that gains nothing: the last.
#
# A U-Net's first and last blocks work at full resolution. Where are the bytes that are both many
# and long-lived?

# %% id="unet-lives"
unet = UNet(UNetConfig())
images, times = torch.zeros(4, 1, 32, 32), torch.zeros(4, dtype=torch.long)


def unet_step():
    unet.zero_grad()
    unet.loss(images, times, images).backward()


def level(module):
    levels = ("down.0", "down.1", "down.2", "middle", "up.0", "up.1", "up.2")
    return next((level for level in levels if module.startswith(level)), "")


lives(memory.measure(unet_step, model=unet, label="U-Net"), level)

# %% [markdown] id="read-unet-lives"
# In the blocks of the way down at full resolution (`down.0`). The way up at the same resolution
# holds more bytes, but only for a moment. Both are there when the backward pass begins, so both
# count at the peak. But a checkpoint on the last blocks would discard what is needed next.
#
# ### The same step, checkpointed
#
# What happens to the triangle with a checkpoint around each block? And what to one tensor, the wide
# one that the MLP of block 2 makes?

# %% id="checkpointed-lives"
with strategies.applied(small, "per-block"):
    frugal = memory.measure(step, model=small, label="per-block")
plots.tape({"none": plain, "per-block": frugal})

# %% id="one-tensor"
rows = []
for name, report in {"none": plain, "per-block": frugal}.items():
    backward = next(tick for tick, phase in report.phase_starts if phase == "backward")
    there = (life for life in report.timeline if life.module == "blocks.2.mlp.up")
    for life in there:
        if life.category not in ("parameters", "gradients"):
            until = "backward" if life.died >= backward else "forward"
            rows.append((name, life.category, life.phase, until, life.died - life.born))
columns = ["checkpoints", "category", "from", "until", "operations"]
ticks = pd.DataFrame(rows, columns=columns)
ticks

# %% id="verdicts-lives"
claims.Verdicts(
    claims.Verdict(
        "C03",
        "holds",
        "A checkpointed tensor has two short lives: one in forward, one when backward "
        "needs it.",
        f"{ticks.operations[0]} operations without a checkpoint, "
        f"{ticks.operations[1]} and {ticks.operations[2]} with it",
        "counted",
        "one-tensor",
    ),
    claims.Verdict(
        "D18",
        "holds",
        "The earlier the block, the longer its activations live.",
        f"{first} % of the step in the first block, {last} % in the last",
        "counted",
        "lives-of-blocks",
    ),
)

# %% [markdown] id="read-one-tensor"
# The inside of the triangle is empty now. Without checkpointing the tensor is stored and waits
# through all later blocks. With it, the tensor has two lives. The first ends within a few
# operations of forward. Then, when the gradient arrives at block 2, the block runs again, and the
# tensor is *recomputed*, used and freed. You will write these five steps in chapter 04: store the
# input, discard, trigger, run again, free.
#
# ## By layer type
#
# A published table ranks layers by activation memory: self-attention and cross-attention high,
# feed-forward and convolution medium, norms low. Is that so? Here are GPT-2 and the U-Net of Stable
# Diffusion 1.5 at their real sizes, in bfloat16, with a GPU's kernels, in per cent of what is kept.

# %% id="kinds"
KINDS = {
    "attn2": "cross-attention",
    "attn": "self-attention",
    "mlp": "feed-forward",
    ".ff.": "feed-forward",
    "ln_": "norm",
    "norm": "norm",
    "conv": "convolution",
    "nonlinearity": "convolution",  # the SiLU before each
    "proj_": "convolution",  # 1x1, around the attention
}


def kind(module):
    return next((kind for part, kind in KINDS.items() if part in module), "other")


# %% id="by-kind"
def by_kind(name, attention, **shape):
    with memory.predicting():
        recipe = Recipe(name, precision="bf16", attention=attention, **shape)
        loss, model = recipe.make_loss()
        saved = memory.saved(loss, params_of=model)
    sums = dict.fromkeys([*dict.fromkeys(KINDS.values()), "other"], 0)
    for module, size in saved.by("module").items():
        sums[kind(module)] += size
    return saved, sums


# %% id="kinds-table"
columns = {
    "GPT-2, fused": by_kind("gpt2", "sdpa", seq=1024),
    "GPT-2, written out": by_kind("gpt2", "eager", seq=1024),
    "U-Net, fused": by_kind("sd15-unet", "sdpa"),
    "U-Net, written out": by_kind("sd15-unet", "eager"),
}
shares = pd.DataFrame({name: sums for name, (_, sums) in columns.items()})
shares = (100 * shares / shares.sum()).round().astype(int)
shares

# %% [markdown] id="read-kinds"
# (`other` in GPT-2 is the loss over 50,257 tokens.) The published ranking is that of *written-out
# self-attention*, and of nothing else. With fused kernels, today's default, feed-forward comes
# first in both models, and in the U-Net the "low" norms keep more than self-attention.
# Cross-attention is never high here: thousands of pixels look at 77 tokens, so its scores are
# narrow. A rule such as "checkpoint attention first" is a rule for one kernel.
#
# At which resolution do the U-Net's bytes lie?

# %% id="resolutions"
saved, _ = columns["U-Net, fused"]
sides = [f"{side}x{side}" for side in (64, 32, 16, 8)]
pd.DataFrame({"bytes": {side: f"{saved.by('resolution')[side]}" for side in sides}})

# %% [markdown] id="read-resolutions"
# Each level has a quarter of the pixels, and up to twice the channels. So the bytes fall by two to
# four, and most feature maps live at the top. (These are the four-dimensional tensors; attention
# and feed-forward work on rows of pixels.)
#
# ## Verdicts

# %% id="verdicts"
self_attention = shares.loc["self-attention"]
claims.Verdicts(
    claims.Verdict(
        "D12",
        "wrong",
        "2 GB is the size of the scores of one head, and a fused kernel keeps none.",
        f"{Bytes(scores)} a layer, {Bytes(scores / 32)} a head",
        "predicted",
        "scores",
        device="CUDA kernels",
    ),
    claims.Verdict(
        "E11",
        "holds if",
        "Self-attention ranks high only if its scores are written out; cross-attention "
        "never does.",
        f"self-attention {self_attention.iloc[1]} % written out, "
        f"{self_attention.iloc[0]} % fused",
        "predicted",
        "kinds-table",
        device="CUDA kernels",
    ),
)

# %% [markdown] id="summary"
# ## What you can now do
#
# - Write the instrument, and know the three ways to add up what it sees.
# - Say of an operation whether it keeps input, output, mask or nothing, and on which device.
# - Take a formula from a paper and compare it with a count, term by term.
#
# Chapter 04, `04_checkpoint_from_scratch`, discards the triangle and computes it again.
