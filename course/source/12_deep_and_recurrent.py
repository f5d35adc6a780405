# %% [markdown] id="title"
# # Deep and recurrent
#
# "Works with any architecture", says a guide to checkpointing. This chapter tests that on three
# extremes: a ResNet with a thousand layers, a network for volumes (3-D images), and a language
# model with 131,072 tokens. Companions add a recurrent network (`12b_back_through_time`) and
# mixtures of experts (`12c_recomputing_what_is_random`, `12d_mixtures_in_bytes`).
#
# For each we ask: does checkpointing save as much as promised, and is the training still the same?
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import itertools
import logging
import random
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import recorded, segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.resnet import Bottleneck, ResNet, ResNetConfig
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # small steps lose by waiting for a second core
logging.getLogger("torch").setLevel(logging.ERROR)  # the compiler warns of context_fn


def checkpoint(function, *args, **options):
    return torch_checkpoint(function, *args, use_reentrant=False, **options)


# %% [markdown] id="thousand-text"
# ## A thousand layers: does $\sqrt n$ help?
#
# Chen et al. (2016, arXiv 1604.06174) popularized checkpointing in deep learning. Their abstract
# promises a 1,000-layer residual network in 7 GB instead of 48 GB, for 30 % more running time.
# Their rule is to cut $n$ blocks into segments of $\sqrt n$ blocks.
#
# `resnet1000` is the ResNet-1001 that He et al. trained on CIFAR-10: 333 blocks of three
# convolutions. The table shows by what factor the predicted peak falls with segments of one block,
# of two, and of $\sqrt n$, compared with a plain training step.

# %% id="thousand-rows"
rows = recorded.load("predicted").rows
key = "resnet1000, batch 16, fp32, adamw"
plain, times_less = rows[key]["report"]["peak_bytes"], {}
ways = {"every block": "per-block", "every two": "every-2", "sqrt(n)": "sqrt"}
for way, strategy in ways.items():
    frugal = rows[f"{key}, {strategy}"]["report"]["peak_bytes"]
    times_less[way] = f"{plain / frugal:.1f}"
pd.DataFrame({"times less": times_less}).T

# %% [markdown] id="thousand-read"
# Segments of $\sqrt n$ blocks divide the peak by more than six; the abstract's factor is nearly
# seven. Segments of one block, which chapter 06 recommends for a transformer, are by far the worst.
#
# Why? A block of this ResNet keeps three times the bytes of its input, as the code below counts. A
# checkpoint must keep the input, so segments of one block divide the memory by three at most.
# Chapter 06's transformer block keeps sixteen times its input, so there the input hardly matters.
#
# If a block keeps $r$ times its input, the best segment has $\sqrt{n / r}$ blocks (chapter 06).
# With $n = 333$ and $r = 3$ that is about ten, not $\sqrt{333} = 18$.
#
# Now we run a thousand layers and count their peak, with four channels instead of sixteen, on
# digits of 8 x 8 pixels.
#
# **Predict.** Compared with a plain step, by what factor does the peak fall with segments of 8
# blocks?

# %% id="guess-thousand"
guess = None  # times less

# %% id="thousand-real"
images, labels = data.digits()


def make_resnet(depth):
    torch.manual_seed(0)
    config = ResNetConfig(in_channels=1, stage_depths=3 * (depth,), base_channels=4)
    return ResNet(config)


def step(model, strategy):
    with segments.applied(model, strategy):
        model.loss(images[:16], labels[:16]).backward()
    model.zero_grad()


x, block = torch.randn(16, 64, 32, 32, requires_grad=True), Bottleneck(64, 16, 1, 0.0)
kept = memory.saved(lambda: block(x), params_of=block)
f"a block keeps {kept.num_bytes / x.nbytes:.2f} times its input"

# %% id="thousand-measured"
thousand, measured, table = make_resnet(111), {}, {}
for name in ("none", "every-8", "sqrt"):
    run = partial(step, thousand, name)
    measured[name] = memory.measure(run, model=thousand, warmup=0, flops=True)
    ratio = measured[name].flops / measured["none"].flops
    table[name] = str(measured[name].peak_bytes), f"{ratio:.2f}"
fell = measured["none"].peak_bytes / measured["every-8"].peak_bytes
print(
    f"{thousand.config.num_layers} layers: {fell:.1f} times less{beside(guess, fell)}"
)
pd.DataFrame(table, index=["peak", "FLOPs, times"]).T

# %% [markdown] id="thousand-measured-read"
# Segments of 8 blocks need less memory than segments of $\sqrt n$, for about the same FLOPs.
#
# ## Is it the same training?
#
# Two ResNets of 110 layers, the *twins*, start with the same weights and train on the same forty
# batches. One twin keeps all activations; the other checkpoints segments of six blocks. The batches
# come from the first 1500 images; the last 297 stay unseen.


# %% id="twins"
def train(model, batches, strategy="none"):
    optimizer, losses = SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for batch in batches:
        with segments.applied(model, strategy):
            loss = model.loss(images[batch], labels[batch])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %% id="train-twins"
twins = {"none": make_resnet(12), "every-6": make_resnet(12)}
generator = torch.Generator().manual_seed(0)
batches = [torch.randint(1500, (32,), generator=generator) for _ in range(40)]
losses = {name: train(model, batches, name) for name, model in twins.items()}
weights = [nn.utils.parameters_to_vector(m.parameters()) for m in twins.values()]
print("every loss equal:  ", losses["none"] == losses["every-6"])
print("every weight equal:", torch.equal(*weights))

# %% [markdown] id="predict-evaluate"
# **Predict.** Now both twins classify the 297 unseen images in `eval()`. How many percentage points
# apart are their accuracies?

# %% id="guess-evaluate"
guess = None  # percentage points


# %% id="evaluate"
# NBVAL_IGNORE_OUTPUT
def percent_right(model):
    found = model.eval()(images[1500:]).argmax(dim=1)
    return 100 * float((found == labels[1500:]).float().mean())


right = {name: percent_right(model) for name, model in twins.items()}
apart = right["every-6"] - right["none"]
print(f"{apart:.0f} points apart{beside(guess, apart)}")
pd.DataFrame({"% right": right}).map("{:.0f}".format)

# %% [markdown] id="evaluate-read"
# The twins have equal weights, but different BatchNorm statistics: the running mean, the running
# variance and the batch counter.
#
# ### Updated twice
#
# ![Forward updates BatchNorm's running mean once. Recomputation in backward updates it a second
# time with the same batch, so it moves 19 % of the way to the batch mean instead of 10 %. The
# gradients stay equal.](figures/12-batchnorm-twice.svg)
#
# In training, BatchNorm normalizes with the batch's mean $\mu$. It also updates a running mean $R$
# with momentum $m$, and only `eval()` uses $R$. Without `torch.compile`, recomputation updates $R$
# again, with the same batch:
#
# $$ R \leftarrow (1 - m)\,R + m\,\mu, \qquad \text{twice:}\quad
# R \leftarrow (1-m)^2 R + \big[1-(1-m)^2\big]\,\mu $$
#
# With $m = 0.1$, two updates equal one with momentum $0.19$. The gradients don't depend on $R$, so
# no training loss shows the difference.
#
# Here the checkpointed twin is more accurate, since its averages follow the changing weights
# faster. But they also cover fewer batches, so they are noisier once training settles. The next
# cells check the formula on one block, after five batches.


# %% id="bench"
def plainly(function, *args, **options):
    return function(*args)


def statistics_after(run, momentum=0.1, context=None):
    torch.manual_seed(0)
    block = Bottleneck(16, 4, stride=1, dropout=0.0)
    for norm in (block.norm_1, block.norm_2, block.norm_3):
        norm.momentum = momentum
    options = {"context_fn": lambda: (nullcontext(), context(block))} if context else {}
    for _ in range(5):
        batch = torch.randn(8, 16, 8, 8, requires_grad=True) + 1
        run(block, batch, **options).square().mean().backward()
    return dict(block.named_buffers())


# %% id="compared"
def compared(seen, wanted):
    names = [name for name in wanted if "running" in name]  # not the counters
    a, b = (torch.cat([buffers[name] for name in names]) for buffers in (seen, wanted))
    distance = float((a - b).norm() / b.norm())
    if distance < 1e-5:
        return "equal to rounding" if distance else "equal"
    return f"off by {distance:.0%}"


# %% id="updated-twice"
plain, twice = (model.state_dict() for model in twins.values())
differing = [name for name in plain if not torch.equal(plain[name], twice[name])]
print("differing:", sorted({name.rpartition(".")[2] for name in differing}))
once, twice = statistics_after(plainly), statistics_after(checkpoint)
print("checkpointed:     ", compared(twice, once))
print("0.1 twice is 0.19:", compared(twice, statistics_after(plainly, momentum=0.19)))

# %% [markdown] id="cures-text"
# ### Three candidates for a cure
#
# **A smaller momentum.** With $m' = 1-\sqrt{1-m}$, two updates equal one with $m$.
#
# **Recompute on copies.** With `context_fn` you give PyTorch two contexts, one around forward and
# one around recomputation. In the second, the block works on copies of its buffers, which are then
# thrown away.
#
# **Switch the statistics off** in the second context. Most people try this first.
#
# The table below shows each cure in a plain block ("kept"), in a checkpointed block, and with
# `torch.compile` around the checkpoint.
#
# **Write.** `on_copies`: with `setattr`, put a clone in place of each buffer. At the end, put the
# original buffers back, even after an error.


# %% id="on-copies"
@contextmanager
def on_copies(block):
    """Within the context, make a block's modules work on copies of their buffers."""
    ### BEGIN SOLUTION
    owned = [(module, name, buffer) for module in block.modules()
             for name, buffer in module.named_buffers(recurse=False)]  # fmt: skip
    for module, name, buffer in owned:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in owned:
            setattr(module, name, buffer)
    ### END SOLUTION


# %% id="check-on-copies"
# @title Check: run this cell
@blanks.check("on_copies", "be a context in which a block's modules use copies")
def works_on_copies():
    block = Bottleneck(16, 4, stride=1, dropout=0.0)
    before = dict(block.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}
    for way in ("", ", after an error too"):
        try:
            with on_copies(block):
                for name, buffer in block.named_buffers():
                    equal = torch.equal(buffer, values[name])
                    assert equal, f"Inside, {name} starts with different numbers."
                block(torch.randn(8, 16, 8, 8))
                for name, buffer in block.named_buffers():
                    moved = not torch.equal(buffer, values[name])
                    assert moved, f"Inside, a forward doesn't change {name}."
                if way:
                    raise ConnectionError
        except ConnectionError:
            pass
        for name, buffer in block.named_buffers():
            own = buffer is before[name]
            assert own, f"{name} is still a copy{way}: put the block's own buffer back."
            equal = torch.equal(buffer, values[name])
            assert equal, f"The block's own {name} was updated{way}, not a copy."


# %% id="cures"
@contextmanager
def switched_off(block):
    norms = block.norm_1, block.norm_2, block.norm_3
    for norm in norms:
        norm.track_running_stats = False
    yield
    for norm in norms:
        norm.track_running_stats = True


def compiled(function, *args, **options):
    run = partial(checkpoint, function, **options)
    return torch.compile(run, backend="aot_eager")(*args)


# %% id="cures-table"
cures = {"no cure": {}, "smaller momentum": {"momentum": 1 - (1 - 0.1) ** 0.5},
         "on copies": {"context": on_copies},
         "switched off": {"context": switched_off}}  # fmt: skip
ways = {"kept": plainly, "checkpointed": checkpoint, "compiled": compiled}


def found(run, **options):
    try:
        seen = statistics_after(run, **options)
    except RuntimeError as error:
        return type(error).__name__
    return f"{compared(seen, once)}, {seen['norm_1.num_batches_tracked']} batches"


pd.DataFrame({way: {name: found(run, **options) for name, options in cures.items()}
              for way, run in ways.items()})  # fmt: skip

# %% [markdown] id="cures-read"
# The number of batches is BatchNorm's own count; five is right. The smaller momentum is right only
# if a block runs exactly twice. In a segment without checkpointing, often the last, it makes the
# statistics wrong, without any error. The copies are right in both cases, to the last bit.
#
# With statistics switched off, the recomputation saves fewer tensors than forward, which also saved
# the running statistics. So PyTorch raises an error.
#
# **With `torch.compile` around the checkpoint you need no cure**: the compiler does not repeat the
# update, unless the checkpoint contains a *graph break*, a place where compiled code returns to
# Python. In compiled code, the smaller momentum makes the statistics wrong, and copies raise an
# error: a compiled checkpoint accepts no such `context_fn`.
#
# The other order, a checkpoint around a compiled block, does repeat the update. To find out which
# case you have, look at `num_batches_tracked`.
#
# So if you don't compile, use copies. The next cell recomputes each block of the twin on copies,
# for five updates.


# %% id="cured-twin"
def checkpoint_on_copies(block, forward, x):
    return checkpoint(forward, x, context_fn=lambda: (nullcontext(), on_copies(block)))


plain, cured = make_resnet(12), make_resnet(12)
for block in cured.blocks:
    block.forward = partial(checkpoint_on_copies, block, block.forward)
print("every loss equal:", train(cured, batches[:5]) == train(plain, batches[:5]))
states = (model.state_dict().values() for model in (plain, cured))
print("weights, statistics, counters equal:", all(map(torch.equal, *states)))

# %% [markdown] id="besides-text"
# ## What else does a forward do?
#
# BatchNorm is one case of a rule. *Recomputation repeats everything that a forward does besides
# computing its output. And anything that a forward reads besides its arguments may have changed
# before the recomputation.*
#
# Here are eight functions around one linear layer. Each does something that real models do. We run
# each plainly and under a checkpoint, and compare the layer's gradients. The ninth case is dropout
# with `preserve_rng_state=False`.
#
# **Predict.** How many of the nine get a wrong gradient under a checkpoint, without any error?

# %% id="guess-besides"
guess = None  # of nine

# %% id="besides"
layer = nn.Linear(8, 8)


def make_functions():
    counter, cache, toss = itertools.count(1), [], random.random

    def with_cache(x):
        cache.append(x)
        return layer(torch.cat(cache)).tanh()

    return {
        "dropout": lambda x: F.dropout(layer(x).tanh(), 0.5),
        "Python's random": lambda x: layer(x * toss()).tanh(),
        "random depth": lambda x: layer(layer(x) if toss() < 0.5 else x).tanh(),
        "branch on the data": lambda x: layer(x).tanh() if x.mean() > 0 else layer(x),
        "temperature by a counter": lambda x: layer(x / next(counter)).tanh(),
        "cache of inputs": with_cache,
        "input changed in place": lambda x: layer(x.mul_(2)).tanh(),
        "the same, input in a list": lambda xs: layer(xs[0].mul_(2)).tanh(),
    }


# %% id="besides-bench"
def layer_gradient(name, run, **options):
    torch.manual_seed(1)
    random.seed(1)
    layer.zero_grad()
    x = torch.ones(4, 8) * torch.arange(8.0)
    argument = [x] if name.endswith("list") else x
    run(make_functions()[name], argument, **options).sum().backward()
    return layer.weight.grad


def outcome(name, **options):
    wanted = layer_gradient(name, plainly)
    try:
        seen = layer_gradient(name, checkpoint, **options)
    except RuntimeError as error:
        return type(error).__name__
    return "equal" if torch.equal(seen, wanted) else "WRONG, no error"


# %% id="besides-table"
seen = {name: outcome(name) for name in make_functions()}
seen["dropout, RNG not restored"] = outcome("dropout", preserve_rng_state=False)
silent = sum(said.startswith("WRONG") for said in seen.values())
print(f"{silent} of {len(seen)} are wrong without an error{beside(guess, silent)}")
pd.DataFrame({"gradient": seen})

# %% [markdown] id="besides-read"
# For the recomputation, PyTorch restores only its own random state, not Python's. A branch on the
# data is safe if the recomputation computes the same bits, as it does here. On a GPU, a kernel may
# add in a different order the second time, so a value close to the branch's threshold may cross it
# (companion 12c).
#
# PyTorch catches a random branch only if the second run saves fewer tensors, or tensors of a
# different shape or dtype: it never compares values. It notices a changed input only if the input
# itself is a positional argument and a PyTorch operation changed it.
#
# So compare gradients once, as chapter 05 does. Pass changing state to the block as an argument.
# Update counters in the training loop, not in `forward`.
#
# ## Volumes: does checkpointing save as much?
#
# The 3-D U-Net of Çiçek et al. (2016) trains on one volume, in float32. Doubling the side means
# eight times the *voxels* (3-D pixels). By what factor do checkpoints around each of its seven
# blocks divide the peak?


# %% id="volumes"
def volume_peak(side, way):
    recipe = Recipe("unet3d", 1, size=side, optimizer="adamw-fused", checkpointing=way)
    return memory.predict(recipe.make_step).peak_bytes


volumes = {}
for side in (64, 128):
    plain, frugal = volume_peak(side, "none"), volume_peak(side, "per-block")
    volumes[f"{side}³ voxels"] = str(plain), str(frugal), f"{plain / frugal:.2f}"
pd.DataFrame(volumes, index=["none", "per block", "times less"]).T

# %% [markdown] id="volumes-where-text"
# Why do these checkpoints save so little? The next table shows each block's share of the saved
# bytes.

# %% id="volumes-where"
saved = Counter()
with memory.predicting():
    loss, unet = Recipe("unet3d", 1, size=128).make_loss()
    for row in memory.saved(loss, params_of=unet).rows:
        saved[".".join(row.module.split(".")[:2])] += row.num_bytes
shares = pd.Series(saved).div(saved.total()).sort_values(ascending=False)
shares.map("{:.0%}".format).to_frame("share of the saved bytes, predicted")

# %% [markdown] id="volumes-read"
# Checkpointing helps where bytes are *spread out* over many segments. The U-Net has nearly three
# quarters of its bytes in two blocks, `up.2` and `down.0`, which work at full resolution. While
# `up.2`, the last block, is recomputed, all of its activations are in memory at once: half of the
# total.
#
# ## Long contexts: what is left?
#
# Take Llama 2 7B, batch 1, everything in bfloat16, with more positions than it was published with.
# Its 32 blocks are equal, so memory is linear in depth. We predict a model of two layers and one of
# three, take the difference as one layer's memory, and extrapolate to 32.
#
# **Predict.** At 131,072 tokens, by what factor does a checkpoint around each block divide the
# peak?

# %% id="guess-context"
guess = None  # times less


# %% id="llama"
@cache
def llama(tokens, strategy, depth):
    choices = {"precision": "bf16", "optimizer": "adamw-fused"}
    sizes = {"max_position_embeddings": tokens, "num_hidden_layers": depth}
    choices |= {"checkpointing": strategy, "overrides": sizes}
    return memory.predict(Recipe("llama-2-7b", 1, tokens, **choices).make_step).at_peak


# %% [markdown] id="write-at-depth"
# **Write.** `at_full_depth`: extrapolate each category to 32 blocks. `llama(tokens, strategy,
# depth)` returns a dict of bytes by category.


# %% id="at-full-depth"
def at_full_depth(tokens, strategy):
    """Return the peak's bytes by category for 32 blocks, from those for 2 and 3."""
    ### BEGIN SOLUTION
    two, three = (llama(tokens, strategy, depth) for depth in (2, 3))
    one_more = {name: three[name] - two[name] for name in two}
    return {name: two[name] + 30 * one_more[name] for name in two}
    ### END SOLUTION


# %% id="check-at-full-depth"
# @title Check: run this cell
@blanks.check("at_full_depth", "return a dict of bytes by category")
def reaches_32_blocks():
    def ten_a_block(tokens, strategy, depth):  # stands in for `llama`
        return {"parameters": 7 + 10 * depth, strategy: tokens * depth}

    with patch.dict(globals(), llama=ten_a_block):
        for tokens, way in ((4, "none"), (6, "per-block")):
            seen = at_full_depth(tokens, way)
            names = sorted(seen)
            assert names == sorted(["parameters", way]), (
                f"The categories are {names}, not `llama`'s."
            )
            found, right = seen["parameters"], 7 + 10 * 32
            blocks = (found - 7) / 10
            wrong = f"7 bytes plus 10 per block: {found} is {blocks:g} blocks, not 32."
            assert found == right, wrong
            wrong = f"32 blocks of {tokens} bytes for {way!r} are not {seen[way]}."
            assert seen[way] == 32 * tokens, wrong


# %% id="context"
ledgers = {}
for tokens, strategy in itertools.product((32_768, 131_072), ("none", "per-block")):
    ledgers[f"{tokens:,} tokens, {strategy}"] = at_full_depth(tokens, strategy)
*_, plain, frugal = (sum(ledger.values()) for ledger in ledgers.values())
context_gain = plain / frugal
print(f"131,072 tokens: {context_gain:.1f} times less{beside(guess, context_gain)}")
voxel_gain = f"128³ voxels {volumes['128³ voxels'][-1]} times less"
print(f"for comparison: {voxel_gain}")
title = "Llama 2 7B by context"
plots.ledger_bars(ledgers, title=title, cards_gib=[80], predicted=list(ledgers))

# %% [markdown] id="context-read"
# Thirty-two equal blocks are the best case for checkpointing.
#
# But with checkpoints, activations and temporaries still take a lot of memory. What is in them?

# %% id="head"
tokens, vocabulary = 131_072, 32_000
left = ledgers["131,072 tokens, per-block"]
sizes = {f"{name} at the peak": left[name] for name in ("activations", "temporary")}
sizes["inputs of the 32 blocks"] = 32 * tokens * 4096 * 2
sizes["one table of scores, float32"] = tokens * vocabulary * 4
pd.DataFrame({"bytes": {name: str(Bytes(size)) for name, size in sizes.items()}})

# %% [markdown] id="head-read"
# Apart from the blocks' inputs, nearly all of these bytes belong to the output head: several
# float32 tables with a score for each of the vocabulary's 32,000 tokens at each of 131,072
# positions. The head is in no block, so no checkpoint around a block helps.
#
# ## Any architecture?
#
# | architecture | does it help? | is it the same training? |
# |---|---|---|
# | ResNet, 1,000 layers | peak divided by five to six | weights yes; statistics only with a cure |
# | LSTM (`12b`) | memory grows with $\sqrt T$ or $\log T$, not $T$ | yes; with truncation no |
# | 3-D U-Net | peak a fifth lower: two blocks keep most | as in the ResNet |
# | video transformer (`11d`) | its blocks are equal: the best case | yes |
# | mixture of experts (`12c`, `12d`) | depends on its blocks | if tokens go to the same experts |
# | long context | peak divided by four to seven; then the head (`10d`) | yes |
#
# For any other model, ask two questions. *Are the bytes spread over many segments?* If so,
# checkpointing helps. *Does a forward do anything besides computing its output, or read anything
# besides its input?* If so, compare more than losses.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict("A18", "holds if", "A block may be checkpointed if its output is "
        "its only effect and it reads only its input. Otherwise training changes, "
        "often without an error.", f"{silent} of {len(seen)} functions give wrong "
        "gradients without an error", "computed", "besides-table",
        held=(sum(said == "equal" for said in seen.values()), len(seen), "functions")),
    claims.Verdict("C16", "shown", "A thousand-layer ResNet fits in several times "
        "less memory, but its BatchNorm statistics need a cure.",
        f"{measured['none'].peak_bytes} against {measured['every-8'].peak_bytes}",
        "counted", "thousand-measured"),
    claims.Verdict("E20", "shown", "Long contexts need several times less memory. A "
        "3-D U-Net with one segment per block gains little, since two of its blocks "
        "hold nearly three quarters of the saved bytes.",
        f"{voxel_gain}, 131,072 tokens {context_gain:.1f} times less", "predicted",
        "context",
        device="CUDA kernels"),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Find out where a network's bytes are, and conclude whether checkpointing helps.
# - Find what a forward does besides computing its output, and keep BatchNorm's statistics right.
# - Predict a deep model from models of two layers and three.
#
# Chapter 13, `13_many_devices`, divides the model over several devices.
