# %% [markdown] id="title"
# # What autograd saves
#
# Write a GELU out with `torch.tanh` instead of calling `F.gelu`: the same function, four times the
# memory. Freeze a linear layer: its input is let go. Freeze a convolution: its input
# stays. Make a ReLU in-place, as every ResNet does "to save memory": not one byte is saved.
#
# Activations are not "the outputs of the layers". They are what backward formulas ask for, and this
# chapter reads the list: per operation, per layer, over time. Bytes for a GPU are *predicted* here,
# from the kernels that it would take; all others are *counted*.
#
# **Budget:** 45 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tutorial_lib import memory, plots, strategies
from tutorial_lib.models.gpt import GPT, Attention, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # small tensors: more threads would wait for each other

# %% [markdown] id="instrument"
# ## An instrument in ten lines
#
# Whenever an operation wants to keep a tensor for its backward, autograd calls a *pack* hook, if
# there is one, and keeps what the hook returns. Ours writes down what passes by.


# %% id="by-hand"
def packed(forward):
    tensors = []

    def pack(tensor):
        tensors.append(tensor.detach())  # the tensor without its graph, or the two form a cycle
        return tensors[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return tensors


config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256)
model = GPT(config)
tokens = torch.zeros(8, 128, dtype=torch.long)  # (batch, sequence)
tensors = packed(lambda: model.loss(tokens))

# %% [markdown] id="predict-three"
# Three ways to add up what came by: every tensor; every *storage* once, since many tensors are
# views of one; and every storage that is not a parameter.
#
# **Predict.** A GPT with 40 MB of parameters. How far apart are the three sums?

# %% id="three-sums"
sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
activations = sum(size for pointer, size in sizes.items() if pointer not in weights)
print(f"{len(tensors)} tensors: {Bytes(sum(t.nbytes for t in tensors))}")
print(f"{len(sizes)} storages: {Bytes(sum(sizes.values()))}")
print(f"without weights: {Bytes(activations)}")

# %% [markdown] id="weights-are-not"
# A linear layer saves its weight, too: the gradient of its input needs it. The weight is there
# anyway, so keeping it costs nothing. **Weights are not activations**, and a count that includes
# them is worst where it matters least, at a batch of one. `memory.saved` is this instrument with
# names: which module, which operation, which line.

# %% id="saved"
saved = memory.saved(lambda: model.loss(tokens), params_of=model)
print(f"{saved.num_bytes - activations:d} bytes apart")
dict(list(saved.by("shape").items())[:4])

# %% [markdown] id="one-op"
# Half of it has the wide shape of the MLP, (batch x sequence, 4 x width).
#
# ## One operation at a time
#
# The unit is the size of the input. The second column has the kernels of a GPU: inside
# `memory.predicting()` tensors have a shape and no memory, and operations save what CUDA's would.


# %% id="units"
def gelu_by_hand(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def units(make, shape):
    layer, x = make(), torch.rand(shape, requires_grad=True)
    owner = layer if isinstance(layer, nn.Module) else None
    return memory.saved(lambda: layer(x), params_of=owner).num_bytes / x.nbytes


def table(layers, shape):
    print(f"{'saved, in inputs':<26} CPU   GPU")
    for name, make in layers.items():
        counted = units(make, shape)
        with memory.predicting():
            predicted = units(make, shape)
        print(f"{name:<24} {counted:5.2f} {predicted:5.2f}")


# %% [markdown] id="predict-ops"
# **Predict.** Which of these keep nothing? Which keeps most? Where do CPU and GPU differ?

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
table(operations, (8, 128, 256))

# %% [markdown] id="read-ops"
# Read the formulas off the table.
#
# - The derivative of a sum is 1: nothing is kept. A product needs its factors.
# - Linear, GELU and the norm need their **input**; ReLU and softmax need their **output**. A ReLU
#   between two linear layers is free, because the next layer keeps the same tensor as its input. A
#   GELU is not.
# - Written by hand, GELU is eight operations, and each keeps what *it* needs: four tensors in all.
#   The built-in one keeps its input and works the rest out again in backward.
# - **Dropout on a CPU keeps a mask of floats, on a GPU one of bools**, a quarter of a float32. So a
#   count on a CPU is no prediction for a GPU, unless you ask for the other kernels.
# - Sorting keeps its indices, in 64 bits, twice as large as what was sorted.
#
# The same for images.

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
# ReLU keeps its output. That makes three feature maps for one conv, norm, relu, and two for each
# further one, since a ReLU's output is the next convolution's input and is kept once. Max pooling
# keeps its input and the 64-bit indices of its output. Upsampling keeps nothing.
#
# ### Who asks for it?
#
# A linear layer keeps its input for the gradient of its *weight*.
#
# **Predict.** Frozen, a linear layer has no such gradient. Does it let go of its input? And a
# convolution, a layer norm, a batch norm in `eval()`?

# %% id="frozen"
frozen = {
    "linear": lambda: nn.Linear(256, 256).requires_grad_(False),
    "layer norm": lambda: nn.LayerNorm(256).requires_grad_(False),
}
frozen_images = {
    "convolution": lambda: nn.Conv2d(32, 32, 3, padding=1).requires_grad_(False),
    "batch norm, eval": lambda: nn.BatchNorm2d(32).requires_grad_(False).eval(),
}
table(frozen, (8, 128, 256))
table(frozen_images, (4, 32, 32, 32))

# %% [markdown] id="read-frozen"
# The linear layer lets go of its input, the convolution does not: its backward is one kernel for
# all gradients, and PyTorch keeps the input without asking which of them are wanted. A layer norm
# needs its input for the gradient of that *input*, frozen or not. A batch norm in `eval()` would
# need only its weight and its running variance, and keeps the input all the same: training and
# `eval()` share one autograd formula. So freezing lightens a transformer's linear layers, and a
# stack of convolutions and norms not at all.
#
# ### In place
#
# **Predict.** Six times conv, batch norm, ReLU. With `inplace=True`, how many feature maps fewer
# are saved? By how many does the peak fall?

# %% id="in-place"
x = torch.randn(4, 64, 32, 32)


def conv_chain(inplace):
    triples = [(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU(inplace)) for _ in range(6)]
    net = nn.Sequential(*(layer for triple in triples for layer in triple))
    kept = memory.saved(lambda: net(x), params_of=net).num_bytes / x.nbytes
    report = memory.measure(lambda: (net.zero_grad(), net(x).sum().backward()), model=net)
    return {"saved": round(kept, 1)} | {p: round(n / x.nbytes, 1) for p, n in report.phases.items()}


print("new tensor:", conv_chain(inplace=False))
print("in place:  ", conv_chain(inplace=True))

# %% [markdown] id="read-in-place"
# None. The peak of the step, in backward, stays. ReLU keeps its output in both cases, and the batch
# norm's output, which it overwrites, was kept by nobody: it would have died a moment later.
# In-place saves that moment, one temporary in forward. Where the overwritten tensor *is* kept,
# autograd refuses, because a saved tensor has a version number:

# %% id="in-place-refused"
try:
    torch.rand(4, requires_grad=True).exp().mul_(2).sum().backward()
except RuntimeError as error:
    print(str(error).split(":")[0])

# %% [markdown] id="attention"
# ## Attention: written out, or fused
#
# Scores have one number for each pair of tokens and head. Written out, softmax keeps them. A fused
# kernel computes them in tiles, keeps its inputs, its output and one number per row, and computes
# the scores again in backward: checkpointing, built into a kernel.
#
# A published sentence: "attention scores at 32K tokens in bf16 take 2 GB per layer per sample".
#
# **Predict.** For a layer with 32 heads and width 4096 (Llama-7B's shape): right, too high, too
# low?


# %% id="attention-bytes"
def attention_saved(seq, kind):
    with memory.predicting():
        shape = GPTConfig(num_heads=32, d_model=4096, seq_len=seq, attention=kind)
        layer = Attention(shape).to(torch.bfloat16)
        x = torch.zeros(1, seq, 4096, dtype=torch.bfloat16, requires_grad=True)
        return memory.saved(lambda: layer(x), params_of=layer)


lengths = [2**power for power in range(10, 16)]
curves = {
    "written out": {t: attention_saved(t, "eager").num_bytes for t in lengths},
    "fused": {t: attention_saved(t, "sdpa").num_bytes for t in lengths},
}
plots.growth(curves, xlabel="tokens", title="Kept by one attention layer", predicted=list(curves))

# %% id="scores"
long = attention_saved(32768, "eager")
scores = next(row for row in long.rows if row.shape == (1, 32, 32768, 32768))
print(f"scores: {scores.num_bytes} a layer, {Bytes(scores.num_bytes / 32)} a head")
print(f"fused: {attention_saved(32768, 'sdpa').num_bytes} a layer, all included")

# %% [markdown] id="read-scores"
# The 2 GB are right *per head*. Per layer they were 32 times too low, and with a fused kernel they
# do not exist. On top of them the written-out version keeps a mask of $T^2$ bools.
#
# ## 34 bytes per element and layer
#
# The best-known formula of the trade (Korthikanti et al., 2022, equation 1) says what one
# transformer layer keeps in 16 bits, with batch $b$, sequence $s$, width $h$ and $a$ heads:
#
# $$ s b h \left( 34 + 5 \frac{a s}{h} \right) $$
#
# In units of $sbh$: 11 and $5as/h$ in attention, 19 in the MLP, 4 in the two norms. It assumes
# written-out attention, dropout everywhere, everything in 16 bits, and no causal mask.
#
# **Predict.** Does our block, written without the paper in mind, agree? To a tenth of a per cent?


# %% id="block-saved"
def block_saved(b, s, h, a, *, kernels="cuda", autocast=False):
    with memory.predicting(kernels):
        shape = GPTConfig(num_heads=a, d_model=h, seq_len=s, dropout=0.1, attention="eager")
        dtype = torch.float32 if autocast else torch.bfloat16
        block = Block(shape, causal=False).to(dtype)
        x = torch.zeros(b, s, h, dtype=dtype, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return memory.saved(lambda: block(x), params_of=block)


b, s, h, a = 1, 1024, 1024, 16
parts = {"attention": 11 + 5 * a * s / h, "mlp": 19, "norm": 4}
rows = block_saved(b, s, h, a).rows
for part, theory in parts.items():
    seen = sum(row.num_bytes for row in rows if row.module.startswith(part)) / (s * b * h)
    print(f"{part:<10} paper {theory:5.1f}, counted {seen:7.3f}")

# %% [markdown] id="read-parts"
# Term by term. The trace in the norms are their float32 statistics, two numbers a row. Now the
# whole layer at three sizes, the last one GPT-3's; and with the kernels of a CPU.

# %% id="megatron"
for b, s, h, a in [(1, 1024, 1024, 16), (2, 2048, 2048, 16), (1, 2048, 12288, 96)]:
    theory = s * b * h * (34 + 5 * a * s / h)
    on_gpu, on_cpu = (block_saved(b, s, h, a, kernels=k).num_bytes for k in ("cuda", "cpu"))
    print(
        f"b, s, h, a = {b}, {s}, {h:>5}, {a}: paper {theory / (s * b * h):.0f}, "
        f"GPU kernels off {on_gpu / theory - 1:+.3%}, CPU kernels {on_cpu / theory - 1:+.1%}"
    )
masks = s * b * h * (a * s / h + 2)  # one on the scores, two on hidden states
print(f"CPU - GPU: {(on_cpu - on_gpu) / masks:.3f} bytes for each element of a mask")

# %% [markdown] id="read-megatron"
# A formula and a count, made by different people in different ways, agree to better than a tenth of
# a per cent. The CPU is off by a sixth, and the last line says why: one byte more for each element
# of a dropout mask, two for bfloat16 in place of one for bool.
#
# The paper's "mixed precision" keeps 16-bit weights. PyTorch's `autocast` is something else:
# float32 weights, cast on the fly.
#
# **Predict.** Under autocast: more than 34, less, or the same?

# %% id="autocast"
b, s, h, a = 1, 1024, 1024, 16
one, two = (block_saved(samples, s, h, a, autocast=True).num_bytes for samples in (1, 2))
per_sample, constant = two - one, 2 * one - two
paper = 34 + 5 * a * s / h
print(f"each sample: {per_sample / (s * h):.1f} bytes an element, in the paper {paper:.0f}")
print(f"once: {Bytes(constant)}, in 16 bits the weights are {Bytes(2 * 12 * h**2)}")

# %% [markdown] id="read-autocast"
# More, twice over. CUDA's autocast computes softmax and norms in float32, and what they keep is
# float32 too. And backward needs the weights in the type in which forward used them, so the 16-bit
# *copies* of all weights are kept until backward. That part does not grow with the batch; it is
# what surprises people who turn autocast on for a large model and a small batch.
#
# ## How long each tensor lives
#
# Bytes are half of the story; a tensor that is gone when the peak comes costs nothing. Forward
# saves first what backward uses last, so "the activations of early layers live longest". Measured,
# for eight blocks:

# %% id="gpt-lives"
small = GPT(GPTConfig(num_layers=8))
ids = torch.zeros(4, 128, dtype=torch.long)


def step():
    small.zero_grad()
    small.loss(ids).backward()


plain = memory.measure(step, model=small, label="none")
plots.tape({"none": plain})

# %% [markdown] id="predict-lives"
# A row is a tensor of the forward, input below, loss on top; a bar is its life. The rows draw a
# triangle: forward writes upward, backward reads downward.
#
# **Predict.** What share of the step does a tensor of the first block live, on average? Of the
# last?


# %% id="lives"
def lives(report, place):
    """Mean life of the activations of each place, weighted by bytes, as a share of the step."""
    end = max(life.died or life.born for life in report.timeline)
    kept = [
        n for n in report.timeline if n.category == "activations" and n.died and place(n.module)
    ]
    held, total = {}, {}
    for life in kept:
        name = place(life.module)
        held[name] = held.get(name, 0) + life.num_bytes * (life.died - life.born) / end
        total[name] = total.get(name, 0) + life.num_bytes
    return {name: (f"{held[name] / total[name]:.0%}", Bytes(total[name])) for name in held}


lives(plain, lambda module: ".".join(module.split(".")[:2]) if "blocks" in module else "")

# %% [markdown] id="read-lives"
# True, and linear: each block shortens the life by the same amount. (Time is counted in operations
# that allocate, not in seconds; the order is the same.) The first block's bytes are kept nine times
# as long as the last one's, for the same use. That is the whole case for checkpointing, and it says
# which block gains nothing from it: the last.
#
# A U-Net is no chain of equals. Its first and its last blocks work at full resolution.
#
# **Predict.** Where are the bytes that are both many and long-lived?

# %% id="unet-lives"
unet = UNet(UNetConfig())
images, times = torch.zeros(4, 1, 32, 32), torch.zeros(4, dtype=torch.long)


def unet_step():
    unet.zero_grad()
    unet.loss(images, times, images).backward()


report = memory.measure(unet_step, model=unet, label="U-Net")
levels = ("down.0", "down.1", "down.2", "middle", "up.0", "up.1", "up.2")
lives(report, lambda module: next((level for level in levels if module.startswith(level)), ""))

# %% [markdown] id="read-unet-lives"
# In the blocks of the way down at full resolution (`down.0`): much, and for most of the step. The
# way up at the same resolution holds more bytes, for a moment. Both are there when backward begins,
# so both count at the peak; but a checkpoint on the last blocks would discard what is needed next.
#
# ### The same step, checkpointed
#
# **Predict.** Around each block now a checkpoint. What happens to the triangle?

# %% id="checkpointed-lives"
with strategies.applied(small, "per-block"):
    frugal = memory.measure(step, model=small, label="per-block")
plots.tape({"none": plain, "per-block": frugal})

# %% [markdown] id="step-through"
# The triangle is hollow. Follow one tensor through it, the wide one that the MLP of block 2 makes:

# %% id="one-tensor"
for name, report in {"none": plain, "per-block": frugal}.items():
    backward = next(tick for tick, phase in report.phase_starts if phase == "backward")
    for life in report.timeline:
        if life.module == "blocks.2.mlp.up" and life.category not in ("parameters", "gradients"):
            last = "backward" if life.died >= backward else "forward"
            print(f"{name:<10} {life.category:<11} {Bytes(life.num_bytes):>8} "
                  f"from {life.phase} to {last}, {life.died - life.born} ticks")  # fmt: skip

# %% [markdown] id="read-one-tensor"
# (A tick is one operation.) Without checkpointing it is stored and waits through all later
# blocks. With it, there are two lives: made and discarded within a few ticks of forward; then, when
# the gradient arrives at block 2, the block is run again, the tensor is *recomputed*, used and
# freed. Storing, discarding, triggering, running again, freeing: you will write these in chapter
# 04.
#
# ## By layer type
#
# A published table ranks layers by activation memory: self-attention and cross-attention high,
# feed-forward and convolution medium, norms low. Here are GPT-2 and the U-Net of Stable Diffusion
# 1.5 at their real sizes, in bfloat16, with a GPU's kernels.

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


# %% [markdown] id="predict-kinds"
# **Predict.** Order the kinds for both models. Does the order depend on the attention kernel?

# %% id="kinds-table"
columns = [
    by_kind("gpt2", "sdpa", seq=1024),
    by_kind("gpt2", "eager", seq=1024),
    by_kind("sd15-unet", "sdpa"),
    by_kind("sd15-unet", "eager"),
]
print(f"{'':<17}GPT-2: fused, written out | U-Net: fused, written out")
for name in columns[0][1]:
    shares = [sums[name] / saved.num_bytes for saved, sums in columns]
    print(f"{name:<17}" + "".join(f"{share:12.0%}" for share in shares))

# %% [markdown] id="read-kinds"
# (`other` in GPT-2 is the loss over 50,257 words.) The ranking is that of *written-out
# self-attention*, and of nothing else. With fused kernels, today's default, feed-forward comes
# first in both models, and in the U-Net the "low" norms keep more than self-attention.
# Cross-attention is never high here: thousands of pixels look at 77 words, and its scores are
# narrow. A rule such as "checkpoint attention first" carries its kernel with it.
#
# In the U-Net, bytes also have a resolution:

# %% id="resolutions"
saved, _ = columns[2]
sides = (f"{side}x{side}" for side in (64, 32, 16, 8))
{side: saved.by("resolution")[side] for side in sides}

# %% [markdown] id="summary"
# Each level has a quarter of the pixels, and up to twice the channels: so the bytes fall by two to
# four, and most feature maps live at the top. (These are the four-dimensional tensors; attention
# and feed-forward work on rows of pixels.)
#
# ## Verdicts
#
# - **"Attention scores at 32K tokens: 2 GB per layer per sample":** per *head*. Times 32 per layer
#   of Llama-7B's shape, and nothing at all with a fused kernel.
# - **"Early layers' activations live longest":** true, linear in depth, by the order of backward.
#   At the moment of the peak, however, all of them are there.
# - **"Forward with storing and discarding, backward with recomputation and freeing":** drawn from a
#   measured step, one tensor followed through it.
# - **"Self- and cross-attention high, feed-forward and convolution medium, norm low":** true of
#   written-out self-attention alone.
#
# ## What you can now do
#
# - Write the instrument, and know the three ways to add up what it sees.
# - Say of an operation whether it keeps input, output, mask or nothing, and on which device.
# - Take a formula from a paper and hold it against a count, term by term.
#
# Chapter 04, `04_checkpoint_from_scratch`, throws the triangle away and computes it again.
