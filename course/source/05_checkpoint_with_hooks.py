# %% [markdown] id="title"
# # Checkpointing with hooks
#
# Chapter 04 discarded tensors from outside. It had to be told what goes into a block and what comes
# out. Autograd itself has the list of tensors that it wants to keep. For each of them it asks
# you twice: what should I store in place of this tensor? And later: what was it?
#
# Answer both well, and you have a checkpoint that leaves autograd's graph untouched. You write it
# in this chapter, measure what PyTorch's has on top, and verify both.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import copy
import gc
import itertools
import warnings
from collections import Counter
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential

from tutorial_lib import claims, data, memory, units
from tutorial_lib.instruments import figures, segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

# %% [markdown] id="bench-text"
# First the tools of chapter 04: a seeded forward and backward of a model, whose blocks (or other
# modules) are called through a checkpoint function, and the peak of such a step. The two models
# have dropout.


# %% id="gradients"
def plainly(function, *args, **kwargs):
    return function(*args, **kwargs)


def gradients(model, loss, checkpoint=plainly, modules=None):
    model.zero_grad()
    torch.manual_seed(7)
    with segments.called_through(checkpoint, modules or model.blocks):
        loss().backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


def equal(seen, expected):
    return all(map(torch.equal, seen, expected))


def peak_bytes(model, loss, checkpoint=plainly, modules=None):
    model.zero_grad()  # gradients of an earlier run that we keep are not this step's
    step = partial(gradients, model, loss, checkpoint, modules)
    return memory.measure(step, model=model, warmup=0).peak_bytes


# %% id="models"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=8, dropout=0.1))
tokens = next(data.text_batches(4, 128))  # (batch, sequence) bytes of Python's source
gpt_loss = partial(gpt.loss, tokens)
unet = UNet(UNetConfig(dropout=0.1))
images, noise = data.image_batch(4, 1, 16), data.image_batch(4, 1, 16, seed=1)
unet_loss = partial(unet.loss, images, torch.tensor([1, 200, 400, 900]), noise)

# %% [markdown] id="hooks-text"
# ## Two questions
#
# ![In forward each operation of the block hands its saved tensor to pack, which keeps a number. In
# backward the first unpack runs the block once more and fills a store with detached tensors, and
# each is handed out once.](figures/pack_and_unpack.svg)
#
# The hooks are `saved_tensors_hooks(pack, unpack)`. For every tensor that autograd saves, it calls
# `pack` and keeps what that returns. When backward needs the tensor, it calls `unpack` with that.
# In chapter 03 the pair only counted. Here `pack` returns a number and lets the tensor go, and
# `unpack` does nothing useful yet. What happens?

# %% id="a-lie"
block, x = gpt.blocks[0], torch.randn(4, 128, 128, requires_grad=True)
numbers = itertools.count()
with saved_tensors_hooks(lambda tensor: next(numbers), lambda number: number):
    y = block(x)
try:
    y.sum().backward()
except TypeError as error:
    print(f"TypeError after {next(numbers)} tensors: {str(error).split(' (')[0]}")

# %% [markdown] id="a-lie-read"
# Forward ran: autograd kept a number for each tensor, and no tensor. Backward got a number where it
# needed a tensor. So `unpack` has to *make* the tensor: run the block again, write down
# what it saves, as chapter 03 did, and return the tensor with that number.
#
# **Write.** `packed`, whose dict begins `{0: alias(first), 1: ...}`, then `recomputing_each`, which
# calls it. Below, both `equal` must be `True`.


# %% id="packed"
def packed(forward, alias=torch.Tensor.detach):
    """Tensors that `forward()` saves, run with gradients on.

    Returns:
        A dict from number to alias. `pack` returns the alias that it puts there.
    """
    ### BEGIN SOLUTION
    tensors = {}

    def pack(tensor):
        number = len(tensors)
        tensors[number] = alias(tensor)
        return tensors[number]

    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return tensors
    ### END SOLUTION


# %% id="every-unpack"
def recomputing_each(function, *args, **kwargs):
    """Call the function; autograd keeps numbers, and each unpack runs it again."""
    ### BEGIN SOLUTION
    numbers = itertools.count()

    def unpack(number):
        return packed(partial(function, *args, **kwargs))[number]

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args, **kwargs)
    ### END SOLUTION


# %% [markdown] id="predict-runs"
# There is no Function, no inner backward, no dummy tensor, and no rule for keywords, masks or
# tuples. The block is called as it is, and backward goes through the *outer* graph.
#
# **Predict.** Dropout is off. How often does each block of the GPT run in one step?

# %% id="guess-runs"
guess = None  # runs


# %% id="work"
def work(model, loss, checkpoint=plainly, modules=None):
    runs = Counter()
    count = register_module_forward_pre_hook(lambda module, _: runs.update([module]))
    with memory.flop_counter() as counter:
        seen = gradients(model, loss, checkpoint, modules)
    count.remove()
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    return seen, counter.get_total_flops(), [runs[block.norm_1] for block in blocks]


# %% id="runs"
unet.eval()
gpt.eval()
seen, _, runs = work(gpt, gpt_loss, recomputing_each)
print("GPT equal:", equal(seen, gradients(gpt, gpt_loss)))
same = equal(gradients(unet, unet_loss, recomputing_each), gradients(unet, unet_loss))
print("U-Net equal:", same)
print(f"{runs[0]} runs of a block{beside(guess, runs[0])}")

# %% [markdown] id="every-read"
# The U-Net is right to the bit, where chapter 04's Function was right up to rounding. Backward goes
# through the same graph, so it adds up the same gradients in the same order. But a block runs once
# for every tensor that backward asks for.
#
# ## Recompute once
#
# How do we get down to two runs? The first `unpack` takes `packed`'s dict itself as the store. The
# others take their tensors out of it, each once. The RNG state is restored as in chapter 04. (The
# autocast state would be too; this chapter's models do not need it.)
#
# **Write.** `unpack` and the rest of `recomputing_once`. A block must run twice. With dropout on,
# the gradients must be equal, and the step must leave the RNG state that the plain one leaves.


# %% id="recompute-once"
def recomputing_once(function, *args, alias=torch.Tensor.detach, **kwargs):
    """Call the function; the first unpack runs it again and fills `store`.

    The store is `packed`'s dict. Each unpack takes its tensor out of it.
    """
    numbers, store, rng_state = itertools.count(), {}, torch.get_rng_state()

    ### BEGIN SOLUTION
    def unpack(number):
        nonlocal store
        if number not in store:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(rng_state)
                store = packed(partial(function, *args, **kwargs), alias)
        return store.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args, **kwargs)
    ### END SOLUTION


# %% [markdown] id="predict-alias"
# `alias` is `detach`: what goes into the store shares the tensor's memory and has no history. It
# looks like a detail.
#
# **Predict.** With `alias` returning the tensor itself: by how many per cent does the peak rise?

# %% id="guess-alias"
guess = None  # per cent

# %% id="alias"
gpt.train()
expected, rng_state = gradients(gpt, gpt_loss), torch.get_rng_state()
history = partial(recomputing_once, alias=lambda tensor: tensor)
ways = {"detach": recomputing_once, "itself": history}
for name, way in ways.items():
    seen, _, runs = work(gpt, gpt_loss, way)
    assert torch.equal(torch.get_rng_state(), rng_state), "put the RNG state back"
    print(f"{name}: equal {equal(seen, expected)}, {runs[0]} runs of a block")
rise = peak_bytes(gpt, gpt_loss, history) / peak_bytes(gpt, gpt_loss, recomputing_once)
rise = 100 * (rise - 1)
print(f"itself: {rise:+.0f} % of the peak{beside(guess, rise)}")

# %% [markdown] id="alias-read"
# Both are right to the bit. But the tensor itself brings its history, `grad_fn`, and with it the
# whole recomputed block: much of the saving is gone. Some operations save their own *output*, as
# softmax does. Then the operation holds the tensor and the tensor holds the operation: a reference
# cycle. Is it freed when Python's garbage collector runs? We call the collector after each step,
# and ask what is left:


# %% id="alias-leak"
def left_bytes(way, steps):
    with memory.watch("steps", model=gpt) as report:
        for _ in range(steps):
            gradients(gpt, gpt_loss, way)
            gc.collect()
    return report.curve()[-1]["recomputed"]


left = {name: [left_bytes(way, n) for n in (1, 2, 4)] for name, way in ways.items()}
pd.DataFrame(left, ["1 step", "2 steps", "4 steps"]).map(units.human_bytes)

# %% [markdown] id="alias-leak-read"
# Never. Autograd's part of the cycle is C++, where the collector cannot look, so every step leaves
# its recomputed blocks behind: a leak, until memory is full. No comparison of gradients finds this.
# A meter does.
#
# ## What PyTorch's checkpoint has on top
#
# Is one extra run of each block a third more work? We count FLOPs, with and without dropout, as
# multiples of the plain step's:

# %% id="flops"
torch_new = partial(torch_checkpoint, use_reentrant=False)
ways = {"plain": plainly, "ours": recomputing_once, "PyTorch's": torch_new}
ratios = {}
for dropout in ("off", "on"):
    gpt.train(dropout == "on")
    flops = {name: work(gpt, gpt_loss, way)[1] for name, way in ways.items()}
    ratios[f"dropout {dropout}"] = pd.Series(flops) / flops["plain"]
pd.DataFrame(ratios).T.round(3)

# %% [markdown] id="flops-read"
# **Early stop.** Without dropout, PyTorch's leaves out over a quarter of the extra work. It stops
# the second run as soon as the last saved tensor is there, and the last linear layer of the MLP
# comes after that. With dropout, the last saved tensor is the mask, which comes after the linear
# layer. So "33 %" and "20 to 25 %" are both right, of different models.
#
# **Nesting.** Checkpoint two segments of four blocks, and each block inside them once more. What
# waits for backward? In units of one block's input:

# %% id="nesting"
nested = GPT(gpt.config)
inner = list(nested.blocks)
outer = [nn.Sequential(*inner[:4]), nn.Sequential(*inner[4:])]
nested.blocks = nn.ModuleList(outer)
plans = {"two segments": outer, "per block": inner, "nested": inner + outer}


def measured(checkpoint=plainly, modules=()):
    step = partial(gradients, nested, partial(nested.loss, tokens), checkpoint, modules)
    return memory.measure(step, model=nested, warmup=0)


# %% id="nesting-table"
def waiting(report):
    start = next(tick for tick, phase in report.phase_starts if phase == "backward")
    return report.curve()[start]["activations"] / x.nbytes


ours = {name: measured(recomputing_once, modules) for name, modules in plans.items()}
theirs = {name: measured(torch_new, modules) for name, modules in plans.items()}
pd.DataFrame({"ours": ours, "PyTorch's": theirs}).map(waiting).round(1)

# %% [markdown] id="nesting-read"
# Five units in each row belong to the head and the loss. With PyTorch's checkpoint, the nested plan
# holds what two segments hold: their two inputs. With ours it holds the inputs of all eight blocks,
# as if there were no segments. The reason: each of our inner checkpoints holds its input in a
# closure, where the outer checkpoint does not see it. The fix: register the arguments with
# autograd, so that the outer checkpoint's pack hook sees them. (PyTorch registers tensors that are
# given by position, and none in a keyword or a tuple.)
#
# **A check.** PyTorch's also raises a `CheckpointError` where the second run saves fewer tensors,
# or one of another shape, dtype or device. It notices more tensors only with `early_stop=False`,
# since otherwise it has stopped by then. It does not compare values: a recomputation with other
# numbers passes. The optional `05b_reading_checkpoint_errors` reads such errors. In lab 03 you
# write all three: early stop, saved arguments, and the check.
#
# ## The saved tensors over time
#
# What do these plans look like in time? A row is a tensor of the forward, input below and loss
# above. A bar is its life.

# %% id="lifetimes"
figures.lifetimes({"none": measured(), **theirs})

# %% [markdown] id="lifetimes-read"
# Long thin bars are inputs that wait. Each pink triangle is a segment that is recomputed. The peak
# is the waiting bars plus the largest triangle. In the nested plan a triangle is itself made of
# thin bars and small triangles: fewer bars wait than per block, and the triangles are as small. But
# every block runs forward a third time. With eight blocks nesting saves little, since one bar is
# thin beside one triangle. Chapter 06 says how large a segment should be.
#
# ## More than one backward
#
# So far in this chapter each backward was one call of `loss.backward()`, and each input needed a
# gradient. Here are four other uses, on one block, with PyTorch's two implementations and ours.
#
# **Predict.** How many of the four does the reentrant one, a Function as in chapter 04, get wrong?

# %% id="guess-backwards"
guess = None  # of 4

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


# %% id="outcome"
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
torch_old = partial(torch_checkpoint, use_reentrant=True)
ways = {"reentrant": torch_old, "PyTorch's": torch_new, "ours": recomputing_once}
scenarios = (by_autograd_grad, backward_twice, gradient_penalty, frozen_input)
with warnings.catch_warnings(record=True):  # the reentrant one and create_graph warn
    found = [[outcome(s, way) for way in ways.values()] for s in scenarios]
table = pd.DataFrame(found, [s.__name__ for s in scenarios], list(ways))
failed = sum(table["reentrant"] != "equal")
print(f"reentrant: {failed} of 4{beside(guess, failed)}")
table

# %% [markdown] id="backwards-read"
# The gradient penalty is the worst. The gradient comes out of an inner backward without a graph, so
# the penalty is a constant, and training goes on without it. No error says so. The frozen input you
# know from chapter 04.
#
# ## Side by side
#
# Does our short version reach PyTorch's numbers? Eight blocks, dropout on: a checkpoint around each
# block, and `checkpoint_sequential` with four segments.

# %% id="side-by-side"
chain = GPT(gpt.config)
blocks = list(chain.blocks)
chain.blocks = nn.ModuleList([nn.Sequential(*blocks)])
chain_loss = partial(chain.loss, tokens)


def sequential(forward, x):
    return checkpoint_sequential(blocks, 4, x, use_reentrant=False)


cases = {"none": (plainly, blocks), "checkpoint_sequential": (sequential, chain.blocks)}
cases |= {f"per block, {name}": (way, blocks) for name, way in ways.items()}

# %% id="side-by-side-table"
plain, rows = gradients(chain, chain_loss), {}
for name, case in cases.items():
    seen, flops, runs = work(chain, chain_loss, *case)
    rows[name] = equal(seen, plain), peak_bytes(chain, chain_loss, *case), flops, runs
side = pd.DataFrame(rows, ["equal", "peak", "FLOPs", "runs"]).T
side["FLOPs"] = (side["FLOPs"] / side["FLOPs"]["none"]).map("{:.3f}".format)
side

# %% [markdown] id="side-by-side-read"
# Ours and PyTorch's: the same bits and the same bytes. (With dropout early stop leaves out hardly
# anything.) The reentrant one holds a little more, an output that its Function keeps.
# `checkpoint_sequential` does not checkpoint its last segment, since that one's backward comes
# first anyway. With *one* segment it therefore checkpoints nothing: fault 4 of chapter 02.
#
# Libraries have a switch for all this, `gradient_checkpointing_enable()` (from transformers 5.23 on
# `activation_checkpointing_enable()`). Which settings it needs is measured in
# [05b](05b_reading_checkpoint_errors.ipynb).

# %% id="verdicts-side-by-side"
ours, theirs = side.loc["per block, ours"], side.loc["per block, PyTorch's"]
claims.Verdicts(
    claims.Verdict(
        "C05",
        "shown",
        "PyTorch's checkpoint gives the gradients of the plain model; ours reaches its "
        "peak.",
        f"equal to the bit: {theirs.equal}; peak {theirs.peak / side.peak['none']:.1%} "
        f"of plain, ours / PyTorch's {ours.peak / theirs.peak:.3f}; "
        f"FLOPs x {theirs.FLOPs}",
        "counted",
        "side-by-side-table",
    ),
)

# %% [markdown] id="trust-and-verify"
# ## Trust, and verify
#
# Before a long training, run one step with the checkpoint and one without, and compare. But compare
# what? Advice says the losses, the norm of the gradients, or the parameters after the update.
#
# **Predict.** A checkpoint forgets the RNG state. In how many of these three does it show?

# %% id="guess-verify"
guess = None  # of 3


# %% id="verify"
def one_update(model, batch, checkpoint=plainly):
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters())
    torch.manual_seed(7)
    with segments.called_through(checkpoint, twin.blocks):
        loss = twin.loss(*batch)
        loss.backward()
    norm = nn.utils.clip_grad_norm_(twin.parameters(), float("inf"))
    optimizer.step()
    parameters = nn.utils.parameters_to_vector(twin.parameters())
    return {"loss": loss, "gradient norm": norm, "parameters": parameters}


# %% id="verify-measure"
plain = one_update(gpt, [tokens])


def apart(way):
    """How far an update with this checkpoint is from the plain one, by part."""
    seen = one_update(gpt, [tokens], way)
    return {name: (seen[name] - plain[name]).norm().item() for name in plain}


# A with A: a right checkpoint may differ about as much as plain from itself
again = [apart(plainly) for _ in range(2)]
allowed = {name: 10 * max(each[name] for each in again) for name in plain}
verified = {"none again, equal bits": {name: not allowed[name] for name in plain}}
forgetful = partial(torch_new, preserve_rng_state=False)
for name, way in {"ours": recomputing_once, "forgetful": forgetful}.items():
    verified[name] = {part: far <= allowed[part] for part, far in apart(way).items()}
noticed = sum(not same for same in verified["forgetful"].values())
print(f"{noticed} of 3 notice{beside(guess, noticed)}")
pd.DataFrame(verified).T.map(str)

# %% [markdown] id="verify-read"
# In one step the loss cannot show a wrong *second* run, since the first one computes it. (It does
# show a wrapper that changes the first run, such as a seed by hand.) Compare gradients, or what
# follows from them, and buffers: a BatchNorm that runs twice updates its statistics twice
# (chapter 12).
#
# **First compare A with A.** The first row is the plain step against itself. Where it says `True`,
# the rows below ask for equal bits. On a GPU it may say `False`: the backward of fused attention,
# for one, adds in an order that changes from run to run. Then the code allows a checkpoint ten
# times the distance that plain has from itself. (Or switch on
# `torch.use_deterministic_algorithms`.) The distance is a norm over all parameters. The largest
# difference would mislead: AdamW's first update moves each by the learning rate, however small its
# gradient.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "D16",
        "holds if",
        "Compare gradients or parameters: the loss of a step cannot notice a wrong "
        "second run.",
        f"{noticed} of 3 notice, the loss: {not verified['forgetful']['loss']}",
        "computed",
        "verify-measure",
    ),
)

# %% [markdown] id="summary"
# ## What you can now do
#
# - Answer autograd's two questions with numbers instead of tensors, and recompute once.
# - Say what early stop, saved arguments and `detach` are for, because you measured what happens
#   without them.
# - Verify a checkpoint with one step.
#
# In lab 03, `lab03_my_checkpoint`, you write the rest: RNG states of GPUs, arguments that autograd
# keeps, early stop, partial and repeated backwards, and the check. At its end yours takes the place
# of PyTorch's.
