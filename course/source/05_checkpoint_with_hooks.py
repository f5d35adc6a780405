# %% [markdown] id="title"
# # Checkpointing with hooks
#
# Chapter 04 discarded tensors from the outside: it knew what goes into a block and what comes out,
# and had to be told about everything in between. Autograd knows what is in between. It has a list
# of the tensors that it wants to keep, and for each of them it will ask you, if you like: what
# shall I keep *instead*? And later: may I have it back?
#
# Two answers to these two questions are a checkpoint that changes nothing in the graph. In this
# chapter it grows to sixty lines, mistake by mistake, and then stands beside PyTorch's: gradients
# to the bit, peak to the byte.
#
# **Budget:** 60 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import copy
import itertools
import random
import statistics
import time
import warnings
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers import logging as transformers_logging

from tutorial_lib import data, memory, plots
from tutorial_lib.models.gpt import GPT, MLP, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

transformers_logging.set_verbosity_error()

# %% [markdown] id="bench-text"
# The bench of chapter 04: `through` runs chosen modules through a checkpoint function, `gradients`
# does a seeded forward and backward. The two models have their dropout on.


# %% id="bench"
@contextlib.contextmanager
def through(checkpoint, modules):
    for module in modules:
        module.forward = partial(checkpoint, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def gradients(model, loss):
    model.zero_grad()
    torch.manual_seed(7)
    loss().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def measured(model, loss, checkpoint=None, modules=None, label=""):
    with through(checkpoint, modules or model.blocks) if checkpoint else contextlib.nullcontext():
        return memory.measure(partial(gradients, model, loss), model=model, warmup=0, label=label)


# %% id="models"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=8, dropout=0.1))
tokens = next(data.text_batches(4, 128))  # (batch, sequence) bytes of Python's own source
gpt_loss = partial(gpt.loss, tokens)
unet = UNet(UNetConfig(dropout=0.1))
images, noise = data.image_batch(4, 1, 16), data.image_batch(4, 1, 16, seed=1)
unet_loss = partial(unet.loss, images, torch.tensor([1, 200, 400, 900]), noise)


def equal(checkpoint, model, loss, modules=None):
    expected = gradients(model, loss)
    with through(checkpoint, modules or model.blocks):
        seen = gradients(model, loss)
    return all(torch.equal(seen[name], expected[name]) for name in expected)


# %% [markdown] id="hooks-text"
# ## Two questions
#
# `saved_tensors_hooks(pack, unpack)`: for every tensor that autograd saves, it calls `pack` and
# keeps what that returns; when backward needs the tensor, it calls `unpack` on it. In chapter 03
# the pair was an instrument. It may also lie.
#
# **Predict.** Here `pack` returns a number and lets the tensor go. What is left in memory, and what
# happens in backward?

# %% id="a-lie"
block, x = gpt.blocks[0], torch.randn(4, 128, 128, requires_grad=True)
numbers = itertools.count()
with saved_tensors_hooks(lambda tensor: next(numbers), lambda number: number):
    y = block(x)
try:
    y.sum().backward()
except Exception as error:
    print(f"{type(error).__name__} after {next(numbers)} tensors:", str(error).split(" (")[0])

# %% [markdown] id="a-lie-read"
# Forward was content with twenty-odd numbers, and kept no tensor. Backward then got the last number
# where it wanted the tensor. So the missing half is an `unpack` that *makes* the tensor with that
# number: run the block again, count again, and hand out the one asked for.


# %% id="every-unpack"
def recomputing_each(function, *args, **kwargs):
    numbers = itertools.count()

    def unpack(number):
        again = []

        def pack_again(tensor):
            again.append(tensor.detach())
            return again[-1]

        with torch.enable_grad(), saved_tensors_hooks(pack_again, lambda tensor: tensor):
            function(*args, **kwargs)
        return again[number]

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args, **kwargs)


# %% [markdown] id="predict-every"
# No Function, no inner backward, no ticket, no rule for keywords, masks or tuples: the block is
# called as it is. And it is the *outer* graph that backward walks.
#
# **Predict.** Are the gradients right, with dropout off? How often does each block run in one step?


# %% id="runs"
def runs(blocks, model, loss, checkpoint=None, modules=None):
    around = (
        through(checkpoint, modules or model.blocks) if checkpoint else contextlib.nullcontext()
    )
    calls = dict.fromkeys(range(len(blocks)), 0)

    def count(number, module, args):
        calls[number] += 1

    firsts = [next(m for m in block.modules() if not list(m.children())) for block in blocks]
    handles = [m.register_forward_pre_hook(partial(count, i)) for i, m in enumerate(firsts)]
    with around:
        gradients(model, loss)
    for handle in handles:
        handle.remove()
    return list(calls.values())


unet.eval()
gpt.eval()
{
    "equal, U-Net": equal(recomputing_each, unet, unet_loss),
    "runs, U-Net": runs(unet.blocks, unet, unet_loss, recomputing_each),
    "runs, GPT": runs(gpt.blocks, gpt, gpt_loss, recomputing_each),
}

# %% [markdown] id="every-read"
# Right on the U-Net to the bit, where the Function of chapter 04 was right up to rounding: backward
# adds up the same gradients in the same order, because it walks the same graph. And a block runs
# two dozen times, once for every tensor that backward asks for.
#
# ## Recompute once
#
# The mend: the first question fills a store, the others are answered from it, and each tensor is
# handed out once and forgotten. With it come the surroundings, random state and autocast, as in
# chapter 04.


# %% id="remember"
def remember():
    random_state = torch.get_rng_state()
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextlib.contextmanager
    def as_it_was():
        with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype, enabled=enabled):
            torch.set_rng_state(random_state)
            yield

    return as_it_was


# %% id="recompute-once"
def recomputing_once(function, *args, hand=torch.Tensor.detach, **kwargs):
    as_it_was, numbers, store = remember(), itertools.count(), {}

    def unpack(number):
        if number not in store:
            again = itertools.count()

            def pack_again(tensor):
                place = next(again)
                store[place] = hand(tensor)
                return store[place]

            with torch.enable_grad(), as_it_was(), saved_tensors_hooks(pack_again, lambda t: t):
                function(*args, **kwargs)
        return store.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*args, **kwargs)


# %% id="once-works"
unet.train()
gpt.train()
{
    "equal, GPT": equal(recomputing_once, gpt, gpt_loss),
    "equal, U-Net": equal(recomputing_once, unet, unet_loss),
    "runs, GPT": runs(gpt.blocks, gpt, gpt_loss, recomputing_once),
}

# %% [markdown] id="alias-text"
# ## The hook that keeps the tensor itself
#
# `hand` is `detach`: what goes into the store shares the tensor's memory and has no history. It
# looks like a nicety.
#
# **Predict.** With `hand` returning the tensor itself: are the gradients still right? And the peak?


# %% id="alias"
def itself(tensor):
    return tensor


hoarding = partial(recomputing_once, hand=itself)
peaks = {"none": measured(gpt, gpt_loss).peak_bytes}
for name, checkpoint in {"its alias": recomputing_once, "itself": hoarding}.items():
    peaks[name] = measured(gpt, gpt_loss, checkpoint).peak_bytes
    print(f"{name:<10} equal: {equal(checkpoint, gpt, gpt_loss)}, peak {peaks[name]:>11,} bytes")
f"over the alias's peak: {peaks['itself'] / peaks['its alias'] - 1:+.0%}"

# %% [markdown] id="alias-read"
# Right to the bit, and much of the saving gone. The tensor itself brings its history, `grad_fn`,
# and with it the whole recomputed block. Some operations save their own *output* (normalisations
# their statistics, softmax its result): then the operation keeps the tensor, and the tensor keeps
# the operation. Such a ring is not freed when the last name for it goes, but whenever Python's
# garbage collector next comes by. No test of gradients finds this. A meter does.
#
# ## What is missing
#
# Three things, each first as a measurement. **Early stop.** In its second run the block computes
# its last lines too, which nobody asked for.
#
# **Predict.** A checkpoint around each block: a third more FLOPs? Without dropout, and with?


# %% id="flops"
def flops(model, loss, checkpoint=None, modules=None):
    around = (
        through(checkpoint, modules or model.blocks) if checkpoint else contextlib.nullcontext()
    )
    with around, FlopCounterMode(display=False) as counter:
        gradients(model, loss)
    return counter.get_total_flops()


torch_new = partial(torch_checkpoint, use_reentrant=False)
for dropout in ("off", "on"):
    gpt.train(dropout == "on")
    base = flops(gpt, gpt_loss)
    ratios = [flops(gpt, gpt_loss, each) / base for each in (recomputing_once, torch_new)]
    print(f"dropout {dropout:<4} once: {ratios[0]:.3f}, PyTorch: {ratios[1]:.3f}")

# %% [markdown] id="flops-read"
# Without dropout PyTorch leaves out a third of the extra work: the last linear layer of the MLP,
# whose *output* nobody saved. With dropout the last saved tensor is the mask, and that comes after
# the linear layer, so there is nothing to leave out. "33 % overhead" and "20 %" are both right, of
# different models.
#
# **Nesting.** Two segments of four blocks each under a checkpoint, and in them each block under its
# own. During forward only the segments' inputs should wait.


# %% id="nesting"
nested = GPT(gpt.config)
inner = list(nested.blocks)
outer = [nn.Sequential(*inner[:4]), nn.Sequential(*inner[4:])]
nested.blocks = nn.ModuleList(outer)
nested_loss = partial(nested.loss, tokens)


def waiting(report):
    start = next(tick for tick, phase in report.phase_starts if phase == "backward")
    return report.curve()[start]["activations"]


for name, modules in {"segments": outer, "blocks": inner, "both": inner + outer}.items():
    for who, checkpoint in {"once": recomputing_once, "PyTorch": torch_new}.items():
        report = measured(nested, nested_loss, checkpoint, modules)
        print(f"{name:<9} {who:<8} waiting for backward: {waiting(report) / x.nbytes:.1f} units")

# %% [markdown] id="nesting-read"
# Five units belong to the head and the loss in every row. PyTorch's two segments wait with their
# two inputs, nested or not. Ours, nested, waits with as much as without segments, and computes
# everything three times: each inner checkpoint holds its own input in a closure, out of reach of
# the outer one. So the inputs must be *saved*, as an operation saves its inputs. Then the outer
# checkpoint's hooks are asked about them, like about any other tensor.
#
# **Determinism.** What if the second run computes something else? A block that keeps what it has
# seen, as a key-value cache does:


# %% id="caching"
class Caching(Block):
    def forward(self, x):
        self.cache = torch.cat([self.cache, x], dim=1)
        return super().forward(x + self.cache.square().mean(dim=1, keepdim=True))


def complaint(checkpoint, make_block, lines=1):
    block = make_block(GPTConfig(dropout=0.1))
    block.cache = torch.empty(4, 0, 128)
    try:
        checkpoint(block, torch.ones(4, 128, 128, requires_grad=True)).sum().backward()
    except Exception as error:
        text = str(error).split("\n.")[0].splitlines()
        return "\n".join([f"{type(error).__name__}: {text[0]}", *text[1:lines]])
    return "no complaint"


print(complaint(recomputing_once, Caching))

# %% [markdown] id="caching-read"
# An error from the depths, about a shape, which names neither the block nor the cause, and only
# because shapes happened to clash. All three lacks are mended below.
#
# ## Sixty lines
#
# `Keep` is an operation that saves its inputs and does nothing else. `kept` splits the arguments
# into tensors, which it hands to `Keep`, and the rest. It holds on to `Keep`'s empty output: what
# an operation saved is there for as long as its output lives.


# %% id="keep"
class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ticket, *tensors):
        ctx.save_for_backward(*tensors)
        return ticket.clone()


def kept(*everything):
    flat, structure = tree_flatten(everything)
    places = [place for place, value in enumerate(flat) if torch.is_tensor(value)]
    ticket = torch.empty(0, requires_grad=True)
    keeper = Keep.apply(ticket, *(flat[place] for place in places))
    others = [None if place in places else value for place, value in enumerate(flat)]

    def give_back():
        again = dict(zip(places, keeper.grad_fn.saved_tensors, strict=True))
        filled = [again.get(place, other) for place, other in enumerate(others)]
        return tree_unflatten(filled, structure)

    return give_back


# %% [markdown] id="recompute-text"
# The second run compares what it saves with a note made in the first run, and stops by raising
# `Enough` when the last tensor is there.


# %% id="recompute"
class Enough(Exception):  # noqa: N818, for it is no error
    pass


def describe(tensor):
    made_by = tensor.grad_fn.name() if tensor.grad_fn else "no operation"
    return f"{tuple(tensor.shape)} {tensor.dtype} made by {made_by}"


def recompute(function, inputs, as_it_was, notes, store, describe):
    numbers = itertools.count()

    def pack_again(tensor):
        number, now = next(numbers), describe(tensor)
        if now != notes[number]:
            place = f"saved tensor {number + 1} of {len(notes)}"
            raise RuntimeError(f"{place} was {notes[number]}, and is {now}.")
        store[number] = alias = tensor.detach()
        if number == len(notes) - 1:
            raise Enough
        return alias

    args, kwargs = inputs()
    hooks = saved_tensors_hooks(pack_again, lambda tensor: tensor)
    with contextlib.suppress(Enough), torch.enable_grad(), as_it_was(), hooks:
        function(*args, **kwargs)
    if (seen := next(numbers)) < len(notes):
        raise RuntimeError(f"forward saved {len(notes)} tensors, and the second run {seen}.")


# %% id="checkpoint"
def checkpoint(function, *args, describe=describe, **kwargs):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    inputs, as_it_was = kept(args, kwargs), remember()
    notes, store = [], {}

    def pack(tensor):
        notes.append(describe(tensor))
        return len(notes) - 1

    def unpack(number):
        if number not in store:
            recompute(function, inputs, as_it_was, notes, store, describe)
        return store.pop(number)

    with saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


# %% [markdown] id="predict-sixty"
# **Predict.** The three numbers of the last section, now: FLOPs without dropout, units that wait
# when nested, and the complaint about the caching block.

# %% id="sixty-works"
gpt.eval()
ratio = flops(gpt, gpt_loss, checkpoint) / flops(gpt, gpt_loss)
gpt.train()
report = measured(nested, nested_loss, checkpoint, inner + outer)
print(f"FLOPs x {ratio:.3f}; nested, {waiting(report) / x.nbytes:.1f} units wait")
print(complaint(checkpoint, Caching))

# %% [markdown] id="error-read"
# ## Reading a CheckpointError
#
# That message says which tensor, what it was, what it is, and which operation made it: a
# concatenation that was twice as long the second time. Look for the `cat` in your block and you
# have the cache. PyTorch's own error about the same block:

# %% id="torch-error"
print(complaint(torch_new, Caching, lines=4))

# %% [markdown] id="torch-error-read"
# The same finding, without the operation. Read it from the middle: *position* is the number of the
# saved tensor, counted from 0, *saved* is the first run, *recomputed* the second. If only the
# first axis differs, something was counted twice; if the dtype differs, autocast was lost; if the
# *number* of tensors differs, the code took another branch. With `debug=True` PyTorch prints the
# operations of both runs, hundreds of lines.
#
# What neither sees is a second run with the right shapes and the wrong numbers. This block scales
# its input with a random number of Python's own, which no checkpoint restores.


# %% id="python-random"
class Jittered(Block):
    def forward(self, x):
        return super().forward(x * (0.5 + random.random()))


def describe_values(tensor):
    return f"{describe(tensor)}, sum {tensor.double().sum().item():.3g}"


random.seed(0)
by_value = partial(checkpoint, describe=describe_values)
for name, each in {"PyTorch": torch_new, "shapes": checkpoint, "values": by_value}.items():
    print(f"{name:<8} {complaint(each, Jittered)}")

# %% [markdown] id="python-random-read"
# Notes may hold more than shapes: with a sum in them, the error that PyTorch lets pass is found at
# the first tensor. It costs one reading of every saved tensor; use it to debug, not to train.

# %% [markdown] id="other-hooks-text"
# ## Hooks around, hooks inside
#
# Only the innermost pair of hooks is asked about a tensor. So hooks *around* a checkpoint are asked
# about what the checkpoint itself saves, through `Keep`; hooks *inside* take their tensors away
# from it. `save_on_cpu` is such a pair: it copies each tensor to the host's memory and back.
# (`memory.saved` is another: it counts what a pair around would be asked about.)
#
# **Predict.** Around eight checkpointed blocks: how many tensors would be moved to the host?
# Inside, around each block's MLP: are the MLP's tensors discarded, or moved?


# %% id="hooks-around"
def eight_blocks():
    hidden = x
    for block in gpt.blocks:
        hidden = checkpoint(block, hidden)
    return hidden


def loss_with_offload():
    with save_on_cpu():
        return gpt_loss()


moved = memory.saved(eight_blocks, params_of=gpt)
print(f"around: {moved.num_storages} tensors, {moved.num_bytes / x.nbytes} units")
print("equal:", equal(checkpoint, gpt, loss_with_offload))


# %% id="hooks-inside"
class OffloadedMLP(MLP):
    def forward(self, x):
        with save_on_cpu():
            return super().forward(x)


offloaded = GPT(gpt.config)
for block in offloaded.blocks:
    block.mlp = OffloadedMLP(gpt.config)
offloaded_loss = partial(offloaded.loss, tokens)
report = measured(offloaded, offloaded_loss, checkpoint)
print(f"inside: {waiting(report) / x.nbytes:.0f} units wait")
print("equal:", equal(checkpoint, offloaded, offloaded_loss))

# %% [markdown] id="other-hooks-read"
# Around: the eight inputs and nothing else. Checkpointing composes with offloading into "keep the
# inputs on the host", the most frugal plan there is. Inside: the MLP's tensors are no longer the
# checkpoint's business. They are moved and kept, and the second run computes them for nothing. (On
# this machine host and device are the same memory, so they show as units that wait.) Put offloading
# outside.
#
# ## More than one backward
#
# What the Function form could not know, the graph does. Four things that people do with gradients,
# and the three implementations. Reentrant is PyTorch's Function, as in chapter 04.
#
# **Predict.** In which of the four does the Function form fail, and in which of those silently?

# %% id="backwards"
block = Block(GPTConfig(attention="eager"))  # the fused kernel has no second derivative
weight, head = block.mlp.up.weight, nn.Linear(128, 1)


def by_autograd_grad(checkpoint):
    return torch.autograd.grad(checkpoint(block, x).square().mean(), [x, weight])


def twice(checkpoint):
    loss = checkpoint(block, x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return x.grad, weight.grad


def penalty(checkpoint):
    loss = checkpoint(block, x).square().mean()
    loss.backward(create_graph=True)
    (loss + x.grad.square().sum()).backward()
    return (weight.grad,)


def frozen_input(checkpoint):
    head(checkpoint(block, x.detach())).square().mean().backward()
    return weight.grad, head.weight.grad


# %% id="backwards-table"
def outcome(scenario, checkpoint):
    results = []
    for implementation in (lambda function, *args: function(*args), checkpoint):
        x.grad = None
        block.zero_grad()
        head.zero_grad()
        try:
            results.append(scenario(implementation))
        except RuntimeError as error:
            return type(error).__name__
    if any(gradient is None for gradient in results[1]):
        return "missing"
    return "equal" if all(map(torch.equal, *results)) else "WRONG"


torch_old = partial(torch_checkpoint, use_reentrant=True)
with warnings.catch_warnings(record=True):  # of the old one, and of create_graph's memory
    for scenario in (by_autograd_grad, twice, penalty, frozen_input):
        row = [outcome(scenario, each) for each in (torch_old, torch_new, checkpoint)]
        print("{:<18}reentrant: {:<14}new: {:<8}ours: {}".format(scenario.__name__, *row))

# %% [markdown] id="backwards-read"
# The penalty is the nastiest: the gradient comes out of an inner backward without a graph, so the
# penalty is a constant, has no gradient itself, and training goes on without it. The frozen input
# you know. Where a Function cuts the graph and *another* path leads to the loss, nothing complains.
# Hooks leave the graph alone, and `store.pop` makes a second backward recompute a second time.
#
# ## Side by side
#
# The eight blocks as one chain, dropout on; per block, and in four segments as
# `checkpoint_sequential` has them. Gradients, counted peak, FLOPs (in a run of their own, since the
# counter keeps tensors alive), and how often each of the eight blocks runs.

# %% id="plans"
chain = GPT(gpt.config)
blocks = list(chain.blocks)
chain.blocks = nn.ModuleList([nn.Sequential(*blocks)])
chain_loss = partial(chain.loss, tokens)


def in_segments(forward, x):
    for start in (0, 2, 4):
        x = checkpoint(nn.Sequential(*blocks[start : start + 2]), x)
    return blocks[7](blocks[6](x))


def sequential(forward, x):
    return checkpoint_sequential(blocks, 4, x, use_reentrant=False)


plans = {
    "none": (None, blocks),
    "per block, ours": (checkpoint, blocks),
    "per block, PyTorch": (torch_new, blocks),
    "per block, reentrant": (torch_old, blocks),
    "segments, ours": (in_segments, [chain.blocks[0]]),
    "segments, PyTorch": (sequential, [chain.blocks[0]]),
}


# %% [markdown] id="predict-plans"
# **Predict.** Does ours equal PyTorch's peak? Which rows have a third more FLOPs, and why does one
# pair have less?

# %% id="side-by-side"
base = flops(chain, chain_loss)
for name, (each, modules) in plans.items():
    peak = measured(chain, chain_loss, each, modules).peak_bytes
    ratio = flops(chain, chain_loss, each, modules) / base
    same = equal(each, chain, chain_loss, modules) if each else True
    counts = runs(blocks, chain, chain_loss, each, modules)
    print(f"{name:<21} equal {same!s:<6} peak {peak:>11,}  FLOPs {ratio:.3f}  runs {counts}")

# %% id="side-by-side-unet"
base = flops(unet, unet_loss)
for name, each in {"none": None, "ours": checkpoint, "PyTorch": torch_new}.items():
    peak = measured(unet, unet_loss, each).peak_bytes
    ratio = flops(unet, unet_loss, each) / base
    same = equal(each, unet, unet_loss) if each else True
    print(f"U-Net, {name:<14} equal {same!s:<6} peak {peak:>11,}  FLOPs {ratio:.3f}")

# %% [markdown] id="side-by-side-read"
# Ours and PyTorch's: the same bits, the same bytes, the same FLOPs. The reentrant one holds a
# little more, an output that its Function keeps in hand. In segments the last two blocks run once:
# `checkpoint_sequential` does not checkpoint the last segment, whose backward comes first anyway.
# With *one* segment it therefore checkpoints nothing, and a published benchmark did just that.
# (The U-Net gains little at 16 x 16 pixels; chapter 11 has larger images.)
#
# And the time? That depends on the machine: pairs of steps in turn, and the median ratio.


# %% id="time"
# NBVAL_IGNORE_OUTPUT
def step_seconds(each):
    with through(each, blocks):
        start = time.perf_counter()
        gradients(chain, chain_loss)
        return time.perf_counter() - start


pairs = [(step_seconds(checkpoint), step_seconds(torch_new)) for _ in range(7)]
f"ours / PyTorch's: {statistics.median(ours / theirs for ours, theirs in pairs):.2f}"

# %% [markdown] id="tape-text"
# ## The tape
#
# Four plans of the same model, each picture drawn from a measured step. A row is a tensor of the
# forward, input below and loss above; a bar is its life.
#
# **Predict.** You know the first two from chapter 04. Sketch the third, two segments of four
# blocks, and the fourth: the two segments with a checkpoint around each block in them.

# %% id="tape"
plots.tape(
    {
        "none": measured(nested, nested_loss),
        "per block": measured(nested, nested_loss, checkpoint, inner),
        "two segments": measured(nested, nested_loss, checkpoint, outer),
        "nested": measured(nested, nested_loss, checkpoint, inner + outer),
    }
)

# %% [markdown] id="tape-read"
# A bar left of the line is a tensor that forward made and dropped. Long thin bars are inputs that
# wait. Each hill is a piece of tape written again, and the peak is the waiting bars plus the
# largest hill. Nested, a hill is itself made of thin lines and small hills: fewer bars wait than
# per block, and no hill is larger. The price is in the width, since everything is computed a third
# time. With eight blocks it buys nothing, because the lines are so thin beside one hill; where to
# put the hills is chapter 06.

# %% [markdown] id="library-text"
# ## In a library's model
#
# Advice for transformers models says: switch checkpointing on with `use_reentrant=False`, and set
# `use_cache=False`, which "is required". A small Llama, with each combination of the two:


# %% id="llama"
def small_llama(use_cache):
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 8}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes))
    llama.config.use_cache = use_cache
    return llama, lambda: llama(input_ids=tokens, labels=tokens).loss


def switched(use_cache, use_reentrant):
    llama, loss = small_llama(use_cache)
    llama.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    return llama, loss


# %% id="llama-measure"
expected = gradients(*small_llama(use_cache=False))
with warnings.catch_warnings(record=True):  # newer versions have another name for the switch
    for cache, old in itertools.product((False, True), (False, True)):
        seen = gradients(*switched(cache, old))
        same = all(torch.equal(seen[name], expected[name]) for name in expected)
        step = partial(gradients, *switched(cache, old))
        peak = memory.measure(step, warmup=0).peak_bytes
        print(f"use_cache {cache!s:<6} use_reentrant {old!s:<6} equal {same}, peak {peak:,}")

# %% [markdown] id="llama-by-hand"
# No combination fails: while it checkpoints, the library passes no cache to its layers, and the old
# implementation costs a tensor more and nothing else. So neither setting is "required" here. What
# if nobody takes care of the cache? The same layers through PyTorch's checkpoint by hand, with
# attention written out as two matrix products:

# %% id="llama-by-hand-measure"
for cache in (False, True):
    llama, loss = small_llama(use_cache=cache)
    llama.set_attn_implementation("eager")
    try:
        words = f"equal {equal(torch_new, llama, loss, llama.model.layers)}"
    except RuntimeError as error:
        words = f"RuntimeError: {error}"
    print(f"by hand, use_cache {cache!s:<6} {words}")

# %% [markdown] id="llama-by-hand-read"
# The second run appended its keys to those of the first: 256 for 128 queries, our caching block
# over again. With the fused kernels the outcome depends on the version of the library. Some look at
# the first 128 keys only and give the right gradients, by luck; with others PyTorch's checkpoint
# finds the shapes changed. Where you wrap layers yourself, turn the cache off.

# %% [markdown] id="verify-text"
# ## Trust, and verify
#
# Before you let a checkpoint into a long training: one step with and without, and compare. But
# what? Advice says the losses, the norm of the gradients, or the parameters after the update.
#
# **Predict.** Which of the three notices a checkpoint that forgets the random state?


# %% id="verify"
def one_update(model, batch, checkpoint=None):
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters())
    torch.manual_seed(7)
    with through(checkpoint, twin.blocks) if checkpoint else contextlib.nullcontext():
        loss = twin.loss(*batch)
        loss.backward()
    norm = nn.utils.clip_grad_norm_(twin.parameters(), float("inf"))
    optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in twin.parameters()])
    return {"loss": loss.detach(), "gradient norm": norm, "parameters": flat}


def same_step(model, batch, checkpoint):
    plain, frugal = one_update(model, batch), one_update(model, batch, checkpoint)
    return {name: torch.equal(plain[name], frugal[name]) for name in plain}


# %% id="verify-measure"
forgetful = partial(torch_new, preserve_rng_state=False)
for name, each in {"ours": checkpoint, "forgetful": forgetful}.items():
    print(f"{name:<10}", same_step(gpt, [tokens], each))

# %% [markdown] id="verify-read"
# The loss notices nothing, ever: it is computed by the *first* run, and all that can go wrong is in
# the second. Losses that agree on the first step say that forward is forward. Compare gradients or
# what follows from them, and ask for equal bits; with the graph untouched you will get them.

# %% [markdown] id="summary"
# ## What you can now do
#
# - Answer autograd's two questions, with numbers instead of tensors.
# - Say what each line of a checkpoint is for, because you have measured what happens without it.
# - Read a CheckpointError, and know which errors raise none.
#
# In lab 03, `lab03_my_checkpoint`, you finish the sixty lines: random states of GPUs, tensors freed
# as soon as a partial backward is done with them, backward in several threads, `context_fn` and
# the switches of PyTorch's signature. Its tests are those that PyTorch's own has to pass.
