# %% [markdown] id="title"
# # Sixteen bits, eight bits, and what is too small for them
#
# This companion of chapter 08 is optional: no lab and no later chapter needs it. It answers four
# questions:
#
# 1. When do you need a `GradScaler`, and what does it change with bfloat16?
# 2. What does a sum of 256 gradients lose in 16 bits?
# 3. Why can a model stop learning when its weights are bfloat16?
# 4. How much memory do 8-bit floats (FP8) save in training, and how can a checkpoint spoil the
#    gradient?
#
# **Budget:** 65 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.checks import CheckError, assert_same_training
from tutorial_lib.guesses import beside
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.units import GB

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="underflow-text"
# ## Mixed precision
#
# float16 has no number between 0 and 6e-8. Late in training, gradients are small. To imitate that,
# we divide a small ViT's gradient by 1000.
#
# **Predict.** What percentage of the result's nonzero entries become zero in float16?

# %% id="guess-underflow"
guess = None  # %

# %% id="vit"
images, labels = data.digits()


def make_vit(dtype=torch.float32):
    torch.manual_seed(0)
    return ViT(ViTConfig(num_layers=2, d_model=32)).to(dtype)


def gradient(model, x, y):
    gradients = torch.autograd.grad(model.loss(x, y), [*model.parameters()])
    return torch.cat([each.flatten() for each in gradients])


# %% id="underflow"
small = gradient(make_vit(), images[:64], labels[:64]) / 1000
small = small[small != 0]
casts = {"float16": small.half(), "float16, scaled by 65536": (small * 65536).half(),
         "bfloat16": small.bfloat16()}  # fmt: skip
lost = {name: 100 * (cast == 0).double().mean().item() for name, cast in casts.items()}
print(f"float16 loses {lost['float16']:.1f} %{beside(guess, lost['float16'])}")
pd.DataFrame({"lost, %": lost}).round(1)

# %% [markdown] id="scaler"
# A `GradScaler` multiplies the loss by its *scale*, so that hardly any gradient falls below
# float16's smallest number. Before the update it divides the sum of the gradients by the scale.
#
# bfloat16 has float32's range of exponents, so it loses nothing. Yet a popular example accumulates
# in bfloat16 with a `GradScaler`. **What does the scaler change there?** The cell below compares
# training with and without it, and ignores the scaler's own state:


# %% id="bfloat16-scaler"
def autocast_update(model, optimizer, scaler, dtype=torch.bfloat16):
    optimizer.zero_grad()
    for x, y in zip(images[:64].chunk(4), labels[:64].chunk(4), strict=True):
        with torch.autocast("cpu", dtype):
            loss = model.loss(x, y) / 4
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def unscaled(model, optimizer, scaler):
    autocast_update(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))


def make_scaled(scale=65536.0):
    model, scaler = make_vit(), torch.amp.GradScaler("cpu", init_scale=scale)
    return model, SGD(model.parameters(), lr=0.05), scaler


same = {"bitwise": True, "ignore": ["other state"]}
assert_same_training(unscaled, autocast_update, make=make_scaled, **same)
try:
    odd = partial(make_scaled, scale=1000.0)
    assert_same_training(unscaled, autocast_update, make=odd, **same)
except CheckError:
    print("not the same bits with a scale of 1000")

# %% [markdown] id="overflow-text"
# With the default scale the bits are the same, because the scaler multiplies by a power of two and
# later divides by it. 1000 isn't a power of two, so multiplying and dividing by it both round.
# float16 does need the scaler. What happens if its scale is too large?

# %% id="overflow"
model, optimizer, scaler = make_scaled(scale=2.0**40)
before = nn.utils.parameters_to_vector(model.parameters()).detach()
autocast_update(model, optimizer, scaler, torch.float16)
moved = not torch.equal(before, nn.utils.parameters_to_vector(model.parameters()))
f"parameters moved: {moved}; scale: 2**40, then 2**{math.log2(scaler.get_scale()):.0f}"

# %% [markdown] id="low-precision"
# After an overflow in *one* micro-batch, the scaler skips the whole window's update and halves the
# scale. All micro-batches of a window add to one `.grad`, so the scale must not change within a
# window: call `step()` and `update()` once, at the window's end.
#
# ### Adding in bfloat16
#
# When the whole model is in bfloat16, so is `.grad`, with 8 bits of mantissa. We add the gradients
# of 256 micro-batches. The gradients are computed in float32; only their sum is kept in bfloat16,
# float16 or float32.
#
# **Predict.** How large is the norm of the bfloat16 sum's error, in % of the norm of the same sum
# in float64?

# %% id="guess-low"
guess = None  # %

# %% id="accumulate-low"
# NBVAL_IGNORE_OUTPUT
model, exact = make_vit(), 0.0
errors = {"bfloat16": {}, "float16": {}, "float32": {}}
sums = dict.fromkeys(errors, 0.0)
for place in range(1, 257):
    rows = slice(7 * (place - 1), 7 * place)
    flat = gradient(model, images[rows], labels[rows])
    exact = exact + flat.double()
    for name in sums:
        sums[name] = sums[name] + flat.to(getattr(torch, name))
        if place > 1 and place.bit_count() == 1:  # after 2, 4, 8, ... micro-batches
            off = sums[name].double() - exact
            errors[name][place] = float(off.norm() / exact.norm())
low = 100 * errors["bfloat16"][256]
print(f"bfloat16, 256 micro-batches: {low:.1f} %{beside(guess, low)}")
plots.training_curves(
    errors, xlabel="micro-batches", ylabel="relative error of the sum", log="xy",
    title="Sum of gradients in three types (both axes logarithmic)",
)  # fmt: skip

# %% [markdown] id="low-weights"
# Once the sum has grown large, adding a small gradient to its 8 bits changes little or nothing. The
# fix is a float32 sum. In your own loop, use a hook on each parameter:
#
# ```python
# def add_in_float32(p):
#     sums[p] += p.grad.float()
#     p.grad = None
# trained = [p for p in model.parameters() if p.requires_grad]
# sums = {p: torch.zeros_like(p, dtype=torch.float32) for p in trained}
# hooks = [p.register_post_accumulate_grad_hook(add_in_float32) for p in trained]
# # before clipping and optimizer.step(): p.grad = sums[p].to(p.dtype) for each p
# # after it: p.grad = None and sums[p].zero_() for each p
# ```
#
# ### Weights in bfloat16
#
# A bfloat16 weight loses small updates in the same way. Near 0.1, bfloat16 numbers are 0.0005
# apart. AdamW's first updates are about as large as the learning rate. At a rate of 0.0001, an
# update is less than half of that distance. So a weight near 0.1 rounds back to its old value.
#
# The optimizer below updates a temporary float32 copy of each weight, `exact`. There are three ways
# to write it back into the bfloat16 model:
#
# - *nearest*: round to the nearest number, as `optimizer.step()` does with a bfloat16 model;
# - *stochastic*: round up or down at random, so that the mean stays right (add random bits below
#   the last kept bit, then truncate);
# - *Kahan*: round, and store the rounding error in a second bfloat16, to add it at the next update
#   (Zamirai et al., 2020).


# %% id="write-back"
def nearest(exact, rest):
    return exact.bfloat16()


def stochastic(exact, rest):
    noise = torch.randint_like(exact, 2**16, dtype=torch.int32)
    bits = exact.view(torch.int32) + noise & -(2**16)
    return bits.view(torch.float32).bfloat16()


def kahan(exact, rest):
    rounded = exact.bfloat16()
    rest.copy_(exact - rounded)
    return rounded


# %% id="write-all"
def write_all(weights, exact, rest, optimizer, write):
    """Update the float32 copies and write them back; return the share that stays."""
    for w, whole, r in zip(weights, exact, rest, strict=True):
        whole.copy_(w.float() + r.float())
        whole.grad, w.grad = w.grad.float(), None
    optimizer.step()
    new = [write(whole, r) for whole, r in zip(exact, rest, strict=True)]
    stay = sum(int((w == one).sum()) for w, one in zip(weights, new, strict=True))
    for w, one in zip(weights, new, strict=True):
        w.copy_(one)
    return stay / sum(w.numel() for w in weights)


# %% id="train-low"
def train_low(dtype, write, epochs=25):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)
    weights = list((net := nn.Sequential(*layers).to(dtype)).parameters())
    rest = [torch.zeros_like(w) for w in weights]
    exact = [torch.zeros(w.shape) for w in weights]
    optimizer, curve = AdamW(exact, lr=5e-5), dict.fromkeys(range(epochs), 0.0)
    for epoch in curve:
        for rows in torch.arange(1024).split(64):
            logits = net(images[rows].to(dtype)).float()
            loss = F.cross_entropy(logits, labels[rows])
            loss.backward()
            curve[epoch] += loss.item() / 16
            with torch.no_grad():
                stay = write_all(weights, exact, rest, optimizer, write)
    return curve, stay


# %% [markdown] id="predict-stay"
# A small network learns digits with AdamW at a learning rate of 0.00005, as in fine-tuning. In all
# runs AdamW's states are float32, and the gradients have the weights' type.
#
# **Predict.** With rounding to nearest, what percentage of the weights does the last update leave
# unchanged?

# %% id="guess-stay"
guess = None  # %

# %% id="stalled"
# NBVAL_IGNORE_OUTPUT
low, runs, stays = torch.bfloat16, {}, {}
ways = {"float32": (torch.float32, lambda exact, rest: exact)}
ways |= {
    f"bfloat16, {way.__name__}": (low, way) for way in (nearest, stochastic, kahan)
}
for name, way in ways.items():
    runs[name], stays[name] = train_low(*way)
stay = 100 * stays["bfloat16, nearest"]
print(f"nearest: {stay:.0f} % stay{beside(guess, stay)}")
plots.training_curves(
    runs, xlabel="epochs", ylabel="loss", dashed=["bfloat16, kahan"],
    title="Digits: one optimizer, four ways to keep the weights",
)  # fmt: skip

# %% [markdown] id="read-stalled"
# With rounding to nearest, the loss stalls, because most updates are lost. Stochastic rounding and
# Kahan match float32. Stochastic rounding takes no extra memory, but makes each run depend on the
# random state. Kahan adds a 2-byte remainder to each weight.
#
# Float32 weights under autocast avoid all this. But transformers 5 loads weights in their file's
# type, often bfloat16, and `bf16=True` doesn't change that. Load with `dtype=torch.float32`, and
# check `next(model.parameters()).dtype`.

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict("D02", "built", "The scaler steps once per update, and only "
        "float16 needs it: with bfloat16, a power-of-two scale such as the default "
        "changes no bit of a finite update.",
        f"{lost['float16']:.1f} % of small gradients lost in float16, "
        f"{lost['bfloat16']:.1f} % in bfloat16", "computed", "underflow"),
)  # fmt: skip

# %% [markdown] id="fp8-text"
# ## Matmuls in eight bits
#
# FP8 training rounds the inputs of a matmul to 8-bit floats, and saves the rounded copies for
# backward. The weights that the optimizer updates keep their type. The type `float8_e4m3fn` has 3
# bits after the binary point, and its largest number is 448. So each tensor gets a *scale*, chosen
# so that the tensor's largest number becomes 448. The tensor is divided by its scale before
# rounding, and multiplied by it afterwards.
#
# A CPU can store FP8 tensors but can't multiply them. Here we multiply in bfloat16 or float32, so
# you see FP8's memory but not its speed.


# %% id="to-fp8"
FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


def to_fp8(x, scale):
    """Round `x / scale` to FP8; values that are too large become the largest."""
    return (x / scale).clamp(-LARGEST, LARGEST).to(FP8)


def scale_of(x):
    """Return the scale that maps the largest value of `x` to FP8's largest."""
    return x.detach().abs().amax().clamp(min=1e-12) / LARGEST


# %% [markdown] id="in-fp8-text"
# **Write.** The rest of `InFP8`. Forward multiplies the *rounded* `x`, that is
# `eight.to(x.dtype) * scale`, by `weight.T`. It saves the FP8 copy (`eight`) and the weight.
#
# In backward, `slope` is the gradient with respect to the output. Return the three gradients:
# `slope @ weight` for `x`, `slope.T @ x` for the weight (with the rounded `x` again), and `None`
# for the scale.


# %% id="in-fp8"
class InFP8(torch.autograd.Function):
    """A linear layer on `(tokens, width)` rows that keeps them in FP8."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        eight = to_fp8(x, scale)
        ctx.scale = scale
        ### BEGIN SOLUTION
        ctx.save_for_backward(eight, weight)
        return (eight.to(x.dtype) * scale) @ weight.T
        ### END SOLUTION

    @staticmethod
    def backward(ctx, slope):
        eight, weight = ctx.saved_tensors
        ### BEGIN SOLUTION
        x = eight.to(slope.dtype) * ctx.scale
        return slope @ weight, slope.T @ x, None
        ### END SOLUTION


# %% id="check-in-fp8"
# @title Check: run this cell
@blanks.check("InFP8", "return a result, and the gradients of rows and weight")
def keeps_eight_bits():
    torch.manual_seed(0)
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(3, 4)
    weight, slope, scale = (
        weight.requires_grad_(),
        torch.randn(6, 3),
        torch.tensor(0.01),
    )
    rounded = to_fp8(x.detach(), scale).float() * scale
    with memory.watch() as report:
        y = InFP8.apply(x * 1, weight, scale)
    assert torch.allclose(y, rounded @ weight.T), (
        "The result isn't computed from the rounded rows."
    )
    kept = [str(one.dtype) for one in y.grad_fn.saved_tensors]
    assert kept == ["torch.float8_e4m3fn", "torch.float32"], f"You saved {kept}."
    waits = sum(one.num_bytes for one in report.timeline if one.born and not one.died)
    waits -= y.nbytes
    assert waits <= x.numel(), (
        f"{waits} bytes wait for backward, but the FP8 copy has only {x.numel()}: keep "
        "nothing else on ctx."
    )
    of_x, of_weight = torch.autograd.grad(y, (x, weight), slope)
    assert torch.allclose(of_x, slope @ weight), "The gradient of the rows is wrong."
    times = (of_weight * (slope.T @ rounded)).sum() / (slope.T @ rounded).square().sum()
    assert torch.allclose(of_weight, slope.T @ rounded, atol=1e-6), (
        f"The weight's gradient is {times:.3g} times the one from the rounded rows."
    )


# %% [markdown] id="block-text"
# How much memory does FP8 save? The next cell defines a block of nanochat, a small open GPT
# trainer, whose model has 26 of them and processes 16 sequences of 2048 tokens at a time. The
# block's argument `linear` is the function that does each matmul. With `fused`, one matmul computes
# queries, keys and values.
#
# **Predict.** An FP8 number takes half the bytes of a bfloat16 number. With three separate matmuls
# for queries, keys and values, by what percentage do the blocks' saved bytes fall from bfloat16 to
# FP8?

# %% id="guess-fp8"
guess = None  # %


# %% id="nanochat"
class NanoBlock(nn.Module):
    def __init__(self, width, heads, linear, fused):
        super().__init__()
        self.heads, self.linear = heads, linear
        rows = [3 * width] if fused else 3 * [width]
        self.qkv = nn.ParameterList(torch.empty(n, width) for n in rows)
        self.out = nn.Parameter(torch.empty(width, width))
        self.up = nn.Parameter(torch.empty(4 * width, width))
        self.down = nn.Parameter(torch.empty(width, 4 * width))

    def forward(self, x):  # (batch, tokens, width)
        normed = F.rms_norm(x, x.shape[-1:])
        qkv = [self.linear(normed, weight) for weight in self.qkv]
        q, k, v = qkv if len(qkv) == 3 else qkv[0].chunk(3, dim=-1)
        heads = [y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.linear(y.transpose(1, 2).flatten(2), self.out)
        hidden = self.linear(F.rms_norm(x, x.shape[-1:]), self.up).relu().square()
        return x + self.linear(hidden, self.down)


def in_fp8(x, weight):
    y = InFP8.apply(x.flatten(0, -2), weight, scale_of(x))
    return y.view(*x.shape[:-1], -1)


# %% id="saved"
def saved_by(linear, fused=False, batch=16, tokens=2048, width=1664, depth=26):
    """Predict what all blocks save, by dtype, in GB."""
    with memory.predicting():
        block = NanoBlock(width, 13, linear, fused).bfloat16()
        x = torch.randn(batch, tokens, width, dtype=torch.bfloat16, requires_grad=True)
        found = memory.saved(lambda: block(x), params_of=block).by("dtype")
    return {kind: depth * size / GB for kind, size in found.items()}


table = {"bfloat16": saved_by(F.linear), "FP8": saved_by(in_fp8)}
table["FP8, fused"] = saved_by(in_fp8, fused=True)
table = pd.DataFrame(table).T.fillna(0)[["bfloat16", "float8_e4m3fn"]]
table["both"] = table.sum(axis=1)
table["less than bfloat16"] = table["both"].iloc[0] - table["both"]
share = 100 * table["less than bfloat16"].iloc[1] / table["both"].iloc[0]
print(f"less by {share:.0f} %{beside(guess, share)}")
print("GB in 26 blocks, predicted")
table.round(1)

# %% [markdown] id="saved-read"
# The saved bytes shrink by far less than half. The bars show the bytes that one block saves per
# token and unit of width:
#
# ![Three bars. In bfloat16 a block saves 32 bytes for each token and unit of width. In FP8 it saves
# 29. With one matmul for q, k and v it saves 27.](figures/08c-fp8-saved.svg)
#
# - Queries, keys, values and the norms' inputs don't go into a linear layer, so they stay in 16
#   bits. Attention's result is saved twice: in 16 bits for attention's own backward, and as the
#   next layer's FP8 copy.
# - The matmuls for `q`, `k` and `v` have the same input. In 16 bits they share *one* saved tensor.
#   In FP8 each matmul saves its own copy, so with one fused matmul there are two fewer copies.
#
# ### Scales from earlier steps
#
# A tensor's maximum is known only once the whole tensor has been computed. *Delayed scaling* takes
# the scale from earlier steps, so that rounding needs no second pass over the tensor. Each forward
# stores its own tensor's scale for the next step. **What happens if a checkpoint runs this forward
# twice?**


# %% id="delayed"
class Delayed(nn.Module):
    """A linear layer in FP8 that takes its scale from the previous call."""

    def __init__(self, width, delayed):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.delayed = delayed
        self.register_buffer("scale", torch.tensor(0.01))

    def forward(self, x):
        now = scale_of(x)
        scale = self.scale.clone() if self.delayed else now
        self.scale.copy_(now)
        return InFP8.apply(x, self.weight, scale)


def gradient_of(delayed, checkpointed):
    torch.manual_seed(0)
    layers = nn.Sequential(Delayed(32, delayed), nn.GELU(), Delayed(32, delayed))
    layers(torch.randn(64, 32))  # an earlier step, which leaves its scales
    x = torch.randn(64, 32, requires_grad=True)
    y = checkpoint(layers, x, use_reentrant=False) if checkpointed else layers(x)
    return torch.autograd.grad(y.square().sum(), layers[0].weight)[0]


off = {}
for delayed in (False, True):
    plain, again = (
        gradient_of(delayed, checkpointed) for checkpointed in (False, True)
    )
    error = ((again - plain).norm() / plain.norm()).item()
    off["delayed" if delayed else "of this tensor"] = f"{100 * error:.0f} %"
pd.Series(off).to_frame("gradient off, checkpointed")

# %% [markdown] id="delayed-read"
# A delayed scale isn't the same in both forwards: the second forward rounds with the scale that the
# first one stored, so backward uses different numbers from the first forward. No error is raised.
# This is case 36 of the gallery (`14b_gallery`), which also has the fix: recompute with the scale
# that the first forward used.

# %% [markdown] id="summary"
# ## What you can now do
#
# - Say when a `GradScaler` is needed, and keep the sum of gradients in float32.
# - Keep weights in bfloat16 without losing small updates.
# - Say, layer by layer, why FP8 training shrinks the saved bytes by less than half.
