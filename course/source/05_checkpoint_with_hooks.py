# %% [markdown] id="title"
# # Checkpointing with hooks
#
# Chapter 04 discarded tensors from outside. It had to be told what goes into a block and what comes
# out. Autograd itself has the list of tensors that it wants to keep. For each of them it asks you
# twice: what should I store in place of this tensor? And later: what was it?
#
# Answer both well, and you have a checkpoint that leaves autograd's graph untouched. You write it
# in this chapter, see what PyTorch's version adds, and verify both.
#
# **Budget:** 75 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import copy
import gc
import itertools
import warnings
import weakref
from collections import Counter
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential

from tutorial_lib import blanks, claims, data, memory, units
from tutorial_lib.instruments import figures, segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

# %% [markdown] id="bench-text"
# First the tools of chapter 04: a seeded forward and backward of a model whose blocks (or other
# modules) are called through a checkpoint function, and the peak of such a step. The two models
# have dropout.


# %% id="gradients"
# @title The tools of chapter 04: run this cell; open it to look
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
# needed a tensor. So `unpack` has to *make* the tensor: run the block again, write down what it
# saves, as chapter 03 did, and return the tensor with that number.
#
# **Write.** First `packed`. It runs `forward()` under hooks of its own: `pack` numbers the tensors
# 0, 1, 2 and so on, puts `alias(tensor)` into a dict under its number, and returns that alias.


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


# %% id="check-packed"
# @title Check: run this cell
@blanks.check("packed", "return a dict from number to alias")
def numbers_what_is_saved():
    x, asked, saved = torch.ones(4, requires_grad=True), [], []

    def forward():
        y = x.exp()  # saves its own output
        saved.append(weakref.ref(y))
        return y * y.sin()  # saves y, and its sine, and y

    def alias(tensor):
        asked.append(tensor.detach())
        return asked[-1]

    with torch.no_grad():
        seen = packed(forward, alias)
    assert isinstance(seen, dict), f"It returned a {type(seen).__name__}, not a dict."
    assert seen, "Nothing is saved: run forward() with gradients on."
    assert sorted(seen) == list(range(4)), f"Keys are {list(seen)}, and not 0 to 3."
    ours = len(asked) == 4 and all(seen[n] is asked[n] for n in range(4))
    assert ours, "Each number needs the alias of its tensor, made by `alias`."
    del seen
    gc.collect()
    alive = saved[0]() is not None
    assert not alive, "A saved tensor stays for ever: pack has to return the alias."


# %% [markdown] id="write-each"
# **Write.** `recomputing_each`, which calls `packed` for each tensor. Below, both `equal` must be
# `True`.


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


# %% id="check-every-unpack"
# @title Check: run this cell
@blanks.check("recomputing_each", "return what the function returns")
def numbers_in_place_of_tensors():
    x, seen = torch.arange(4.0, requires_grad=True), []

    def function(x, power):
        y = x.exp()
        seen.append(weakref.ref(y))
        return y.sin() * y**power

    out = recomputing_each(function, x, power=2)
    kept = seen[0]() is not None
    assert not kept, (
        "After forward autograd still holds a tensor: pack returns a number."
    )
    out.sum().backward()
    runs, saved = len(seen), len(packed(partial(function, x, 2)))
    assert runs == 1 + saved, (
        f"{runs} runs: one in forward, and one for each of {saved} tensors, in unpack."
    )
    twin = x.detach().clone().requires_grad_()
    function(twin, 2).sum().backward()
    assert torch.allclose(x.grad, twin.grad), (
        "The gradient is wrong: is it that number?"
    )


# %% [markdown] id="predict-runs"
# There is no Function, no inner backward and no dummy tensor, and keywords, masks and tuples need
# no code of their own. The block is called as it is, and backward goes through the *outer* graph.
#
# **Predict.** Dropout is off. How many times does each block of the GPT run in one step?

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
# How do we get down to two runs? The first `unpack` fills a store from `packed`. The others take
# their tensors out of it, each once. The RNG state is restored as in chapter 04. (The autocast
# state would be too; this chapter's models do not need it.)
#
# **Write.** `unpack` and the rest of `recomputing_once`. A block must run twice, and the step must
# leave the RNG state that the plain one leaves.


# %% id="recompute-once"
def recomputing_once(function, *args, alias=torch.Tensor.detach, **kwargs):
    """Call the function; the first unpack runs it again and fills `store`.

    Each unpack takes its tensor out of the store.
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


# %% id="check-recompute-once"
# @title Check: run this cell
@blanks.check("recomputing_once", "return what the function returns")
def recomputes_once():
    x, twin = (torch.ones(64, requires_grad=True) for _ in range(2))
    runs, aliases, left = [], [], []

    def function(x, power):
        grown = x.exp()  # saves its own output
        if not runs:
            grown.register_hook(lambda _: left.append(sum(map(is_alive, aliases))))
        runs.append(power)
        y = nn.functional.dropout(grown, 0.5)
        return y.sin() * y**power

    def is_alive(alias):
        return alias() is not None

    def alias(tensor):
        aliases.append(weakref.ref(found := tensor.detach()))
        return found

    rng_state = torch.get_rng_state()
    out = recomputing_once(function, x, power=2, alias=alias)
    assert not aliases, "Forward has made aliases: run `packed` in unpack, not before."
    torch.rand(1)
    before = torch.get_rng_state()
    out.sum().backward()
    assert aliases, "`alias` was never called: hand it to `packed`."
    assert len(runs) == 2, f"The function ran {len(runs)} times, and should run twice."
    kept = torch.equal(torch.get_rng_state(), before)
    assert kept, "Backward has changed the RNG state: put it back with fork_rng."
    assert left[0] <= 1, f"Near the end of backward the store has {left[0]} tensors."
    torch.set_rng_state(rng_state)
    function(twin, 2).sum().backward()
    assert torch.equal(x.grad, twin.grad), "The second run has drawn another mask."


# %% [markdown] id="predict-alias"
# `alias` is `detach`: what goes into the store shares the tensor's memory and has no history. It
# looks like a detail.
#
# **Predict.** With `alias` returning the tensor itself: by how many percent does the peak rise?

# %% id="guess-alias"
guess = None  # %

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
# whole recomputed block: much of the saving is gone. (If your store is a copy of `packed`'s dict,
# the peak rises further.) Some operations, such as softmax, save their own *output*. Then the
# operation holds the tensor and the tensor holds the operation: a reference cycle. Is it freed when
# Python's garbage collector runs? We call the collector after each step, and ask what is left:


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
# Never. Autograd's part of the cycle is C++, where the collector cannot look, so every step leaks
# its recomputed blocks until memory is full. No comparison of gradients finds this. A meter does.
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
_, _, runs = work(nested, partial(nested.loss, tokens), torch_new, plans["nested"])
print("runs of each block, nested, PyTorch's:", *runs)
pd.DataFrame({"ours": ours, "PyTorch's": theirs}).map(waiting).round(1)

# %% [markdown] id="nesting-read"
# Five units in each row belong to the head and the loss. With PyTorch's checkpoint, the nested plan
# holds what two segments hold: their two inputs. With ours it holds the inputs of all eight blocks,
# as if there were no segments: each inner checkpoint holds its input in a closure, where the outer
# one does not see it. The fix: register the arguments with autograd, so that the outer checkpoint's
# pack hook sees them. PyTorch registers tensors that are given by position, and none in a keyword
# or a tuple.
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
# most blocks run forward a third time, as the line above counts: early stop spares only the last
# block of each segment. With eight blocks nesting saves little, since one bar is thin beside one
# triangle. Chapter 06 says how large a segment should be.
#
# ## More than one backward
#
# So far in this chapter each backward was one call of `loss.backward()`, each input needed a
# gradient, and nobody wrote into it. Here are five other uses, on one block. PyTorch's checkpoint
# gets its tensor by position in one column and by keyword in another.
#
# **Predict.** How many of the five does the reentrant one, a Function as in chapter 04, get wrong
# or refuse?

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


def by_keyword(function, x):
    return torch_new(function, x=x)


# %% id="outcome"
# @title Compare a use with the plain one: run this cell; open it to look
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
scenarios += (added_in_place,)
uses = ways | {"PyTorch's, x=": by_keyword}
with warnings.catch_warnings(record=True):  # the reentrant one and create_graph warn
    found = [[outcome(s, way) for way in uses.values()] for s in scenarios]
table = pd.DataFrame(found, [s.__name__ for s in scenarios], list(uses))
failed = sum(table["reentrant"] != "equal")
print(f"reentrant: {failed} of 5{beside(guess, failed)}")
table

# %% [markdown] id="backwards-read"
# The gradient penalty is the worst for the reentrant one. The gradient comes out of an inner
# backward without a graph, so the penalty is a constant, and training goes on without it. The
# frozen input you know from chapter 04.
#
# The last row is the worst for hooks. It writes into a tensor that a checkpoint still needs. Plain
# training is right, because `block(2 * x)` does not save `x`, but the second run reads `x` again. A
# tensor that is given by position is registered with autograd, which notices the write and raises
# an error. By keyword, and in ours, it is in a closure: the gradients are **wrong, and no error
# says so**. So give tensors by position, and write `y = y + ...` around a checkpoint.
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


# %% id="side-by-side-cuda"
def with_cuda_kernels(way):
    def make_step():
        model, batch = GPT(gpt.config), torch.zeros(4, 128, dtype=torch.long)
        return partial(gradients, model, partial(model.loss, batch), way), model, None

    return memory.predict(make_step, warmup=0).peak_bytes


on_gpu = with_cuda_kernels(torch_new) / with_cuda_kernels(plainly)

# %% id="side-by-side-table"
plain, rows = gradients(chain, chain_loss), {}
for name, case in cases.items():
    seen, flops, runs = work(chain, chain_loss, *case)
    rows[name] = equal(seen, plain), peak_bytes(chain, chain_loss, *case), flops, runs
side = pd.DataFrame(rows, ["equal", "peak", "FLOPs", "runs"]).T
side["FLOPs"] = (side["FLOPs"] / side["FLOPs"]["none"]).map("{:.3f}".format)
ours, theirs = side.loc["per block, ours"], side.loc["per block, PyTorch's"]
share = f"{theirs.peak / side.peak['none']:.1%} counted, {on_gpu:.1%} with CUDA kernels"
print(f"PyTorch's peak, of the plain one: {share}")
print(f"ours / PyTorch's: {ours.peak / theirs.peak:.3f}")
side

# %% [markdown] id="side-by-side-read"
# Ours and PyTorch's: the same bits and the same bytes. (With dropout early stop leaves out hardly
# anything.) The reentrant one holds a little more, an output that its Function keeps.
# `checkpoint_sequential` does not checkpoint its last segment, because backward needs it at once.
# With *one* segment it therefore checkpoints nothing: fault 4 of chapter 02.
#
# **The share depends on the kernel.** With dropout, attention on this CPU keeps its scores, which a
# fused kernel on a GPU never does. So the plain step holds less there, and checkpointing frees a
# smaller part of it. The first line above
# predicts that with CUDA kernels.
#
# Libraries have a switch for all this, `gradient_checkpointing_enable()` (from transformers 5.23 on
# `activation_checkpointing_enable()`). Which settings it needs is measured in
# [05b](05b_reading_checkpoint_errors.ipynb).

# %% id="verdicts-side-by-side"
claims.Verdicts(
    claims.Verdict(
        "C05",
        "shown",
        "PyTorch's checkpoint gives the gradients of the plain model; ours reaches its "
        "peak.",
        f"equal to the bit: {theirs.equal}; peak, of plain: {share} (predicted; a "
        "CPU's attention keeps its scores if there is dropout); ours / PyTorch's "
        f"{ours.peak / theirs.peak:.3f}; "
        f"FLOPs x {theirs.FLOPs}",
        "counted",
        "side-by-side-table",
    ),
)

# %% [markdown] id="trust-and-verify"
# ## Trust, and verify
#
# Before a long training, run one step with the checkpoint and one without, and compare. But what?
# Advice says the losses, the norm of the gradients, or the parameters after the update.
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
# follows from them, and buffers: a BatchNorm that runs twice updates its statistics twice (chapter
# 12).
#
# **First compare A with A.** The first row is the plain step against itself. Where it says `True`,
# the rows below ask for equal bits. On a GPU it may say `False`: the backward of fused attention,
# for one, adds in an order that changes from run to run. Then the code allows a checkpoint ten
# times the distance that plain has from itself. (Or switch on
# `torch.use_deterministic_algorithms`.) The distance is a norm over all parameters, because AdamW's
# first update moves each parameter by the learning rate, however small its gradient: the largest
# difference would mislead.
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
        held=(noticed, 3, "comparisons"),
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
