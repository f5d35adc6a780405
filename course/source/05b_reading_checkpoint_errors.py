# %% [markdown] id="title"
# # Reading a CheckpointError
#
# This companion of chapter 05 is optional: no lab and no later chapter needs it. It's about
# checkpoints that raise an error, or should.
#
# **Budget:** 40 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import itertools
import random
import warnings
from functools import partial

import pandas as pd
import torch
import transformers
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from tutorial_lib import claims, data, memory
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, MLP, Block, GPTConfig

# %% [markdown] id="caching-text"
# ## What does the error say?
#
# This block appends its input to a cache, as a language model does with keys and values. The cache
# survives the first run, so in the second run it already holds the first run's input.


# %% id="caching"
class Caching(Block):
    def forward(self, x):
        self.cache = torch.cat([self.cache, x], dim=1)
        return super().forward(x + self.cache.square().mean(dim=1, keepdim=True))


# %% id="complaint"
def complaint(block):
    x = torch.ones(4, 128, 128, requires_grad=True)
    try:
        checkpoint(block, x, use_reentrant=False).sum().backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no complaint"


# %% id="torch-error"
caching = Caching(GPTConfig(dropout=0.1))
caching.cache = torch.empty(4, 0, 128)
print("\n".join(complaint(caching).split("\n.")[0].splitlines()[:4]))

# %% [markdown] id="torch-error-read"
# *Position* is the number of the saved tensor, counted from 0. *Saved metadata* is from the first
# run, *recomputed metadata* from the second. The difference tells you what to look for:
#
# | what differs | look for |
# |---|---|
# | one axis of a shape | something that is appended to, or counted, twice |
# | the dtype | autocast that was on in one run only |
# | fewer tensors than before | a branch that depends on a counter, a cache, a random number |
# | the device | a tensor that was moved between the runs |
#
# With `debug=True` PyTorch prints the operations of both runs. Look for the first difference.
#
# ## What raises no error?
#
# PyTorch compares shapes, dtypes and devices. If the second run saves an extra tensor, PyTorch
# notices only with `early_stop=False`: otherwise it stops before that tensor. This block scales its
# input by a random number from Python's generator, whose state checkpoints don't restore.


# %% id="python-random"
class Jittered(Block):
    def forward(self, x):
        return super().forward(x * (0.5 + random.random()))


def same_twice(function, *args):
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        with torch.no_grad():
            outputs.append(function(*args))
    return torch.equal(*outputs)


# %% id="python-random-twice"
jittered, plain = Jittered(GPTConfig(dropout=0.1)), Block(GPTConfig(dropout=0.1))
random.seed(0)
print("checkpoint:", complaint(jittered))
x = torch.ones(4, 128, 128)
twice = {"plain": same_twice(plain, x), "jittered": same_twice(jittered, x)}
print("same twice:", twice)

# %% [markdown] id="python-random-read"
# The shapes are right, but the gradients are wrong. A test of two forwards finds this: run the
# function twice from the same PyTorch seed, and compare the outputs bit for bit. That test misses
# whatever changes *between* forward and backward, so also compare gradients with the plain step's.
#
# ## Other hooks around and inside
#
# Autograd passes a saved tensor only to the *innermost* pair of hooks. So hooks around a checkpoint
# get only what the checkpoint itself saves: the tensors passed to it by position. They don't see
# tensors in keyword arguments or tuples, which are kept in a closure. Hooks inside a checkpoint get
# tensors that it would otherwise drop.
#
# `save_on_cpu` is a pair of hooks that copies each saved tensor to the host's memory and back.
#
# **Predict.** How many tensors does `save_on_cpu` move if you put it around eight checkpointed
# blocks?

# %% id="guess-moved"
guess = None  # tensors

# %% id="hooks-around"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=8, dropout=0.1))
tokens = next(data.text_batches(4, 128))  # (batch, sequence)
x = torch.randn(4, 128, 128, requires_grad=True)


def eight_blocks():
    hidden = x
    for block in gpt.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return hidden


moved = memory.saved(eight_blocks, params_of=gpt)
num_moved = sum(row.num_bytes > 0 for row in moved.rows)  # PyTorch 2.11 adds empty ones
print(f"around: {num_moved} tensors{beside(guess, num_moved)}")
print(f"{moved.num_bytes / x.nbytes:.0f} units")

# %% [markdown] id="hooks-inside-text"
# Around the checkpoints, the hooks move only the eight inputs. What if they are inside, around each
# block's MLP? We count what waits for backward, in units of one block's input. (On a CPU, host and
# device are one memory, so a moved tensor still counts.)


# %% id="hooks-inside"
class OffloadedMLP(MLP):
    def forward(self, x):
        with save_on_cpu():
            return super().forward(x)


offloaded = GPT(gpt.config)
for block in offloaded.blocks:
    block.mlp = OffloadedMLP(gpt.config)


# %% id="waiting"
def waiting(model):
    with segments.applied(model, "per-block"):
        step = lambda: model.loss(tokens).backward()  # noqa: E731
        report = memory.measure(step, model=model, warmup=0)
    start = next(tick for tick, phase in report.phase_starts if phase == "backward")
    return report.curve()[start]["activations"] / x.nbytes


units = {"per block": waiting(gpt), "offload inside": waiting(offloaded)}
pd.DataFrame({"units that wait": units}).map("{:.1f}".format)

# %% [markdown] id="other-hooks-read"
# With the hooks inside, the MLP's tensors are moved and kept, and the second run recomputes them
# for nothing. So put offloading outside the checkpoint.
#
# ## More than one backward
#
# Chapter 05 always called `loss.backward()` once. Here are five other uses: `torch.autograd.grad`,
# two backwards, a gradient penalty, a frozen input, and a write in place. We try each with the
# reentrant checkpoint (a Function, as in chapter 04) and with the one built on hooks. The latter
# gets its tensor once by position and once by keyword.
#
# **Predict.** How many of the five uses does the reentrant checkpoint get wrong or refuse?

# %% id="guess-backwards"
guess = None  # of 5

# %% id="backwards"
block = Block(GPTConfig(attention="eager"))  # the fused kernel has no second derivative
weight, head = block.mlp.up.weight, nn.Linear(128, 1)


def by_autograd_grad(checkpoint):
    return torch.autograd.grad(checkpoint(block, x).square().mean(), [x, weight])


def backward_twice(checkpoint):
    loss = checkpoint(block, x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, weight.grad


def gradient_penalty(checkpoint):
    loss = checkpoint(block, x).square().mean()
    loss.backward(create_graph=True)
    (loss + x.grad.square().sum()).backward()
    return (weight.grad,)


def frozen_input(checkpoint):
    head(checkpoint(block, x.detach())).square().mean().backward()
    return weight.grad, head.weight.grad


def added_in_place(checkpoint):
    y = 1 * x
    y += checkpoint(lambda x: block(2 * x), y)  # 2 * x does not save x
    y.square().mean().backward()
    return x.grad, weight.grad


def by_position(function, x):
    return checkpoint(function, x, use_reentrant=False)


def by_keyword(function, x):
    return checkpoint(function, x=x, use_reentrant=False)


def plainly(function, x):
    return function(x)


# %% id="outcome"
# @title Compare a use with the plain one: run this cell; open it to look
def equal(seen, expected):
    return all(map(torch.equal, seen, expected))


def results(scenario, checkpoint):
    for tensor in (x, *block.parameters(), *head.parameters()):
        tensor.grad = None
    return scenario(checkpoint)


def outcome(scenario, checkpoint):
    expected = results(scenario, plainly)
    try:
        seen = results(scenario, checkpoint)
    except RuntimeError as error:
        return type(error).__name__
    if any(gradient is None for gradient in seen):
        return "missing"
    return "equal" if equal(seen, expected) else "WRONG"


# %% id="backwards-table"
reentrant = partial(checkpoint, use_reentrant=True)
uses = {"reentrant": reentrant, "by position": by_position, "by keyword": by_keyword}
scenarios = (by_autograd_grad, backward_twice, gradient_penalty, frozen_input)
scenarios += (added_in_place,)
with warnings.catch_warnings(record=True):  # the reentrant one and create_graph warn
    found = [[outcome(s, way) for way in uses.values()] for s in scenarios]
table = pd.DataFrame(found, [s.__name__ for s in scenarios], list(uses))
failed = sum(table["reentrant"] != "equal")
print(f"reentrant: {failed} of 5{beside(guess, failed)}")
table

# %% [markdown] id="backwards-read"
# The gradient penalty is the reentrant checkpoint's worst case. That checkpoint's inner backward
# builds no graph, so the penalty is a constant for autograd. Training then ignores the penalty, and
# no error is raised.
#
# The last row is the worst case for checkpoints with hooks: `y += ...` overwrites a tensor that a
# checkpoint still needs. The plain step is right, because `block(2 * x)` doesn't save `x`. But the
# checkpoint's second run reads `x` again. If you passed `x` by position, autograd notices the write
# and raises an error. If you passed it by keyword, it's only in a closure: the gradients are
# **wrong, and no error is raised**. So pass tensors by position, and near a checkpoint write `y = y
# + ...` instead of `y += ...`.
#
# ## In a library's model
#
# To generate text, a model keeps keys and values of earlier tokens in a *cache*. Common advice for
# `transformers` models is to call `gradient_checkpointing_enable()` with `use_reentrant=False`, and
# to set `use_cache=False`, because both are said to be required. Are they? We try all four
# combinations on a small Llama:

# %% id="llama"
transformers.logging.set_verbosity_error()


def small_llama(use_cache, **options):
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
    sizes |= {"vocab_size": 256, "num_attention_heads": 4}
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **options))
    llama.config.use_cache = use_cache
    llama.blocks = list(llama.model.layers)
    return llama, lambda: llama(input_ids=tokens, labels=tokens).loss


# %% id="llama-gradients"
def gradients(model, loss, checkpoint=None, modules=()):
    model.zero_grad()
    torch.manual_seed(7)
    with segments.called_through(checkpoint, modules):
        loss().backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


# %% id="llama-table"
def switched_on(use_cache, use_reentrant):
    llama, loss = small_llama(use_cache)
    older = getattr(llama, "gradient_checkpointing_enable", None)  # before 5.23
    switch = getattr(llama, "activation_checkpointing_enable", older)
    switch({"use_reentrant": use_reentrant})
    report = memory.measure(partial(gradients, llama, loss), warmup=0)
    return equal(gradients(llama, loss), expected), report.peak_bytes


expected, rows = gradients(*small_llama(use_cache=False)), {}
for setting in itertools.product([False, True], repeat=2):
    rows[setting] = switched_on(*setting)
llama_table = pd.DataFrame(rows, index=["equal", "peak"]).T
llama_table.rename_axis(["use_cache", "use_reentrant"])

# %% [markdown] id="llama-by-hand"
# All four work, since the library passes no cache to its layers while it checkpoints. So neither
# setting is required. But what if you put PyTorch's checkpoint around the same layers by hand? Then
# nothing turns the cache off.

# %% id="llama-by-hand-measure"
by_hand, by_torch = {}, partial(checkpoint, use_reentrant=False)
for cache in (False, True):
    llama, loss = small_llama(cache, attn_implementation="eager")
    try:
        same = equal(
            gradients(llama, loss, by_torch, llama.blocks), gradients(llama, loss)
        )
        by_hand[cache] = f"equal {same}"
    except RuntimeError as error:
        by_hand[cache] = f"RuntimeError: {error}"
    print(f"by hand, use_cache={cache}: {by_hand[cache]}")
right = f"{llama_table['equal'].sum()} of {len(llama_table)} combinations equal"
print(f"by the switch: {right}")

# %% [markdown] id="end"
# With the cache on, the second run appended its keys to the first run's, so there were 256 keys for
# 128 queries.

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "D06",
        "built",
        "The switch works with any of these settings; use_cache=False matters for "
        "layers that you wrap yourself.",
        f"{right}; by hand with the cache: {by_hand[True].partition(':')[0]}",
        "computed",
        "llama-by-hand-measure",
    ),
)

# %% [markdown] id="what-to-remember"
# ## What to remember
#
# - A `CheckpointError` gives the saved tensor's number. What differs (axis, dtype, count) tells you
#   what to look for.
# - Wrong numbers of the right shape raise no error. Compare two runs from the same RNG state, and
#   one step's gradients with the plain step's.
# - Pass tensors by position, and don't overwrite a tensor that a checkpoint still needs.
# - The innermost hooks win: offload around a checkpoint, not inside it.
# - A library's switch skips the cache for you. If you wrap layers yourself, turn the cache off.
