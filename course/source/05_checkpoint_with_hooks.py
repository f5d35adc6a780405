# %% [markdown] id="title"
# # Checkpointing with hooks
#
# Chapter 04's checkpoint worked from outside, so it had to be told what goes into a block and what
# comes out. But autograd already knows which tensors it keeps. For each of them it can ask you two
# questions: what should I store in place of this tensor? And later: what was the tensor?
#
# If you answer both, you have a checkpoint that leaves autograd's graph untouched.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import copy
import gc
import itertools
import sys
import weakref
from collections import Counter
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tutorial_lib
from tutorial_lib import blanks, claims, data, memory, units
from tutorial_lib.instruments import figures, recorded, segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

# %% [markdown] id="bench-text"
# `gradients` runs forward and backward from a fixed seed, and calls the given modules (by default
# the model's blocks) through a checkpoint function. `peak_bytes` counts the peak of such a run.


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
    model.zero_grad()  # kept gradients of an earlier run are not this step's
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
# You set the two hooks with `saved_tensors_hooks(pack, unpack)`. Autograd calls `pack(tensor)` and
# keeps the result in place of the tensor. When backward needs the tensor, autograd passes that
# result to `unpack`. Here both hooks return a number. What happens?

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
# Backward needed a tensor, but got a number. So `unpack` has to *make* the tensor: run the block
# again, record what it saves, as chapter 03 did, and return the tensor with that number.
#
# **Write.** First `packed`, which runs `forward()` under hooks of its own and returns a dict. Its
# `pack` numbers the tensors 0, 1, 2 and so on. It puts `alias(tensor)` into the dict under the
# tensor's number, and returns the same alias to autograd.


# %% id="packed"
def packed(forward, alias=torch.Tensor.detach):
    """Run `forward()` with gradients on, and collect the tensors that it saves.

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
    assert sorted(seen) == list(range(4)), f"The keys are {list(seen)}, not 0 to 3."
    ours = len(asked) == 4 and all(seen[n] is asked[n] for n in range(4))
    assert ours, "Each number needs the alias of its tensor, made by `alias`."
    del seen
    gc.collect()
    alive = saved[0]() is not None
    assert not alive, "A saved tensor is never freed: pack must return the alias."


# %% [markdown] id="write-each"
# **Write.** `recomputing_each`. Its `pack` returns a number. Each `unpack` gets such a number,
# calls `packed`, and returns the tensor with that number. The gradients of the GPT and of the U-Net
# must equal the plain step's.


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
        "After forward, autograd still holds a tensor: pack must return a number."
    )
    out.sum().backward()
    runs, saved = len(seen), len(packed(partial(function, x, 2)))
    assert runs == 1 + saved, (
        f"{runs} runs, not 1 in forward and 1 in unpack for each of {saved} tensors."
    )
    twin = x.detach().clone().requires_grad_()
    function(twin, 2).sum().backward()
    assert torch.allclose(x.grad, twin.grad), (
        "The gradient is wrong: does unpack return that number's tensor?"
    )


# %% [markdown] id="predict-runs"
# This checkpoint passes all arguments on as they are, so keywords, masks and tuples need no special
# code.
#
# **Predict.** Dropout is off. How many times does each block of the GPT run in one step?

# %% id="guess-runs"
guess = None  # runs


# %% id="work"
# @title FLOPs and runs of each block: run this cell; open it to look
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
# Backward goes through the same graph as in the plain step, so it adds up the same gradients in the
# same order. Even the U-Net's gradients are right to the bit. But a block runs again for every
# tensor that backward asks for.
#
# ## Recompute once
#
# The first `unpack` fills a store from `packed`, and each `unpack` then removes its tensor from the
# store. The RNG state is restored as in chapter 04.
#
# **Write.** `unpack` and the rest of `recomputing_once`. A block must run twice in all, and the
# step must leave the RNG in the same state as the plain step.


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
    assert len(runs) == 2, f"The function ran {len(runs)} times, but should run twice."
    kept = torch.equal(torch.get_rng_state(), before)
    assert kept, "Backward has changed the RNG state: restore it with fork_rng."
    assert left[0] <= 1, f"Late in backward the store still has {left[0]} tensors."
    torch.set_rng_state(rng_state)
    function(twin, 2).sum().backward()
    assert torch.equal(x.grad, twin.grad), "The second run drew a different mask."


# %% [markdown] id="alias-text"
# Why does `alias` detach? Otherwise each stored tensor would keep its `grad_fn`, and with that the
# whole recomputed block. Some operations, such as softmax, save their own *output*. Then the
# operation holds the tensor and the tensor holds the operation: a reference cycle. Does Python's
# garbage collector free such a cycle? We call the collector after each step, and count what is
# left. In the column `itself`, the store holds the tensors themselves, not detached.

# %% id="alias-leak"
gpt.train()
history = partial(recomputing_once, alias=lambda tensor: tensor)


def left_bytes(way, steps):
    with memory.watch("steps", model=gpt) as report:
        for _ in range(steps):
            gradients(gpt, gpt_loss, way)
            gc.collect()
    return report.curve()[-1]["recomputed"]


ways = {"detach": recomputing_once, "itself": history}
left = {name: [left_bytes(way, n) for n in (1, 2, 4)] for name, way in ways.items()}
pd.DataFrame(left, ["1 step", "2 steps", "4 steps"]).map(units.human_bytes)

# %% [markdown] id="alias-leak-read"
# The collector doesn't free the cycle, because it can't look into autograd's C++ part. So every
# step leaks its recomputed blocks. The gradients are right to the last bit, so only a memory meter
# shows this leak.
#
# ## What PyTorch's checkpoint adds
#
# Does one extra run of each block add a third to the step's work? We count FLOPs, with and without
# dropout, as multiples of the plain step's FLOPs:

# %% id="flops"
torch_new = partial(checkpoint, use_reentrant=False)
ways = {"plain": plainly, "ours": recomputing_once, "PyTorch's": torch_new}
ratios = {}
for dropout in ("off", "on"):
    gpt.train(dropout == "on")
    flops = {name: work(gpt, gpt_loss, way)[1] for name, way in ways.items()}
    ratios[f"dropout {dropout}"] = pd.Series(flops) / flops["plain"]
pd.DataFrame(ratios).T.round(3)

# %% id="seconds"
own = pd.read_csv(recorded.FOLDER / "own_times.csv")
medium = own[own["step"].str.startswith("gpt2-medium")].set_index("card")
medium[["flops_price", "roofline_price", "measured_price"]]  # % more

# %% [markdown] id="flops-read"
# The second table shows how much longer a step of GPT-2 medium takes with each block checkpointed,
# in %. The first column predicts that from FLOPs alone, the second (`roofline`) from FLOPs and
# memory traffic, and the third is measured.
#
# **Early stop.** PyTorch stops a recomputation as soon as the last saved tensor is there. Without
# dropout, that tensor is the input of the MLP's last linear layer. So the layer itself doesn't run
# again, which avoids over a quarter of the extra work. With dropout, the last saved tensor is the
# mask, which comes after that layer. So both published figures, "33 % more work" and "20 to 25 %",
# can be right.
#
# To leave somebody else's function early, you need an exception. `packed` calls `alias` for each
# saved tensor, so `alias` can raise it.
#
# **Write.** `first_saved`. It calls `packed` with an `alias` of your own, which raises `Enough`
# (defined below) when there are `count` tensors. Catch it with `contextlib.suppress(Enough)`.


# %% id="enough"
class Enough(Exception):  # noqa: N818 - it says what it is
    """Raised to leave a function once its last saved tensor is there."""


# %% id="first-saved"
def first_saved(forward, count):
    """Return the first `count` tensors that `forward()` saves, detached; then stop.

    Returns:
        A dict from number to tensor; all of them if there are fewer than `count`.
    """
    ### BEGIN SOLUTION
    tensors = {}

    def alias(tensor):
        kept = tensors[len(tensors)] = tensor.detach()
        if len(tensors) == count:
            raise Enough
        return kept

    with contextlib.suppress(Enough):
        packed(forward, alias)
    return tensors
    ### END SOLUTION


# %% id="check-first-saved"
# @title Check: run this cell
@blanks.check("first_saved", "return a dict from number to tensor")
def stops_early():
    x, ran, saved = torch.ones(4, requires_grad=True), [], []

    def forward():
        y = x.exp()  # saves its own output
        saved.append(weakref.ref(y))
        ran.append("exp")
        z = y.sin()  # saves y again
        ran.append("sin")
        ran.append((z * z).dtype)  # saves z twice

    seen = first_saved(forward, 2)
    kind = type(seen).__name__
    assert isinstance(seen, dict), f"It returned a {kind}, not a dict."
    late = ran[1:]
    assert not late, f"count=2: forward ran on after the second tensor: {late}."
    assert sorted(seen) == [0, 1], f"For count=2, keys are {list(seen)}, not 0 and 1."
    assert torch.equal(seen[1], x.exp()), "Number 1 isn't the second saved tensor."
    del seen
    gc.collect()
    assert saved[0]() is None, "A tensor is never freed: put detached ones in the dict."
    fewer = sorted(first_saved(forward, 9))
    assert fewer == [0, 1, 2, 3], f"For 4 tensors and count=9, keys are {fewer}."
    try:
        first_saved(lambda: {}["lost"], 2)
    except KeyError:
        return
    raise AssertionError("An error raised by forward is lost: suppress only Enough.")


# %% [markdown] id="nesting-text"
# **Nesting.** Checkpoint two segments of four blocks, and inside them each block again. How much
# waits for backward, in units of one block's input?

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
# holds only the inputs of its two segments. With ours it holds the inputs of all eight blocks. Each
# of our inner checkpoints holds its input in a closure, where the outer checkpoint doesn't see it.
#
# **Saved arguments.** The fix is to register the arguments with autograd, so that the outer
# checkpoint's pack hook gets them. `Register.apply` below saves its tensors and returns an empty
# `output`; `output.grad_fn.saved_tensors` gives the tensors back. So keep a reference to `output`:
# once it's gone, PyTorch up to 2.12 frees the saved tensors. As in chapter 04, a dummy tensor makes
# sure that there is a `grad_fn`.
#
# **Write.** `registered`. It returns a function that brings all of `args` back, in order. That
# function must not itself hold any tensor of `args`, so it asks autograd for them.


# %% id="register"
class Register(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dummy, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


# %% id="registered"
def registered(*args):
    """Register the tensors among `args` with autograd.

    Returns:
        A function without arguments. It returns a list like `args`, in the same order:
        the tensors as autograd kept them, and everything else as it was.
    """
    ### BEGIN SOLUTION
    tensors = [arg for arg in args if torch.is_tensor(arg)]
    others = [None if torch.is_tensor(arg) else arg for arg in args]
    places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]
    output = Register.apply(torch.empty(0, requires_grad=True), *tensors)

    def bring_back():
        found = dict(zip(places, output.grad_fn.saved_tensors, strict=True))
        return [found.get(place, other) for place, other in enumerate(others)]

    return bring_back
    ### END SOLUTION


# %% id="check-registered"
# @title Check: run this cell
@blanks.check("registered", "return a function that brings all arguments back")
def registers():
    x, mask, moved = torch.arange(4.0), torch.ones(4, dtype=torch.bool), []

    def pack(tensor):
        moved.append(tensor.tolist())
        return len(moved) - 1

    with saved_tensors_hooks(pack, lambda number: torch.tensor(moved[number])):
        bring_back = registered(x, 3, mask)
    asked = f"The outer pack hook sees {len(moved)} tensors, but should see 2"
    assert len(moved) == 2, f"{asked}: x and the mask."
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None, "x is still alive: besides autograd, your closure holds it."
    seen = bring_back()
    assert len(seen) == 3, f"3 arguments went in, but {len(seen)} came back."
    kinds = [type(one).__name__ for one in seen]
    assert kinds == ["Tensor", "int", "Tensor"], f"x, 3, mask came back as {kinds}."
    right = seen[0].tolist() == [0, 1, 2, 3] and seen[1] == 3 and seen[2].all()
    assert right, "An argument came back with a wrong value or in a wrong position."


# %% [markdown] id="write-less"
# **Write.** The rest of `recomputing_less`. Its `unpack` is like `recomputing_once`'s, but it gets
# the arguments from `bring_back()` and stops early with `first_saved`.


# %% id="recompute-less"
def recomputing_less(function, *args, **kwargs):
    """Do as `recomputing_once`, but stop early, and let autograd keep `args`."""
    numbers, store, rng_state = [], {}, torch.get_rng_state()
    bring_back = registered(*args)

    def pack(tensor):
        numbers.append(len(numbers))
        return numbers[-1]

    def unpack(number):
        nonlocal store
        ### BEGIN SOLUTION
        if number not in store:
            again = partial(function, *bring_back(), **kwargs)
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(rng_state)
                store = first_saved(again, len(numbers))
        return store.pop(number)
        ### END SOLUTION

    with saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


# %% id="check-recompute-less"
# @title Check: run this cell
@blanks.check("recomputing_less", "return a tensor for each number, in unpack")
def recomputes_less():
    x, twin = (torch.ones(64, requires_grad=True) for _ in range(2))
    reached = []

    def function(x, power):
        reached.append("start")
        y = nn.functional.dropout(x.exp(), 0.5)
        z = (y.sin() * y**power).exp()  # saves its output, the last tensor
        reached.append("end")
        return z + 1

    state = torch.get_rng_state()
    out = recomputing_less(function, 1 * x, power=2)
    torch.rand(1)
    before = torch.get_rng_state()
    out.sum().backward()
    runs, ends = reached.count("start"), reached.count("end")
    assert runs == 2, f"The function began {runs} times, but should begin twice."
    assert ends == 1, "The second run went on after its last tensor: use first_saved."
    kept = torch.equal(torch.get_rng_state(), before)
    assert kept, "Backward has changed the RNG state: restore it with fork_rng."
    torch.set_rng_state(state)
    function(1 * twin, 2).sum().backward()
    assert torch.equal(x.grad, twin.grad), "The second run drew a different mask."
    middle = 1 * x  # no operation has saved it
    out = recomputing_less(function, middle, power=2)
    middle.add_(1)
    try:
        out.sum().backward()
    except RuntimeError:
        return
    raise AssertionError(
        "The argument was overwritten, but backward still used it: call bring_back()."
    )


# %% id="less-waits"
less = measured(recomputing_less, plans["nested"])
print(f"nested: ours {waiting(less):.1f}, PyTorch's {waiting(theirs['nested']):.1f}")

# %% [markdown] id="less-read"
# Now ours holds no more than PyTorch's.
#
# **A check.** PyTorch's checkpoint also raises a `CheckpointError` if the second run saves fewer
# tensors than the first, or a tensor of another shape, dtype or device. It doesn't compare values,
# so a recomputation with different numbers passes (companion `05b_reading_checkpoint_errors`).
#
# ## The saved tensors over time
#
# Each row of the next figure is a tensor of the forward pass, with the input at the bottom and the
# loss at the top.

# %% id="lifetimes"
figures.lifetimes({"none": measured(), **theirs})

# %% [markdown] id="lifetimes-read"
# Long thin bars are inputs that wait, and each pink triangle is a recomputed segment. At any moment
# of backward, memory holds the waiting inputs and one triangle. The nested plan has fewer waiting
# bars than the per-block plan, and its triangles are no larger. But most of its blocks run three
# times.
#
# ## Side by side
#
# On eight blocks with dropout, we compare three checkpoint functions around each block, and
# `checkpoint_sequential` with four segments.

# %% id="side-by-side"
# @title The cases: run this cell; open it to look
chain = GPT(gpt.config)
blocks = list(chain.blocks)
chain.blocks = nn.ModuleList([nn.Sequential(*blocks)])
chain_loss = partial(chain.loss, tokens)


def sequential(forward, x):
    return checkpoint_sequential(blocks, 4, x, use_reentrant=False)


ways = {"reentrant": partial(checkpoint, use_reentrant=True)}
ways |= {"PyTorch's": torch_new, "ours": recomputing_less}
cases = {"none": (plainly, blocks), "checkpoint_sequential": (sequential, chain.blocks)}
cases |= {f"per block, {name}": (way, blocks) for name, way in ways.items()}


# %% id="side-by-side-table"
plain, rows = gradients(chain, chain_loss), {}
for name, case in cases.items():
    seen, flops, runs = work(chain, chain_loss, *case)
    rows[name] = equal(seen, plain), peak_bytes(chain, chain_loss, *case), flops, runs
side = pd.DataFrame(rows, ["equal", "peak", "FLOPs", "runs"]).T
for column in ("peak", "FLOPs"):
    side[column] = (side[column] / side[column]["none"]).map("{:.3f}".format)
side

# %% [markdown] id="side-by-side-read"
# Ours matches PyTorch's in every bit and every byte. The reentrant checkpoint peaks a little
# higher, because it also holds the recomputed block's output. `checkpoint_sequential` does not
# checkpoint its last segment, because backward needs that segment immediately. With *one* segment
# it therefore checkpoints nothing.

# %% id="verdicts-side-by-side"
ours, theirs = side.loc["per block, ours"], side.loc["per block, PyTorch's"]
claims.Verdicts(
    claims.Verdict(
        "C05",
        "shown",
        "PyTorch's checkpoint gives the plain model's gradients; ours has the same "
        "peak.",
        f"equal to the bit: {theirs.equal}; peak, times plain: {theirs.peak}, ours "
        f"{ours.peak} (a CPU's attention keeps its scores if there is dropout); "
        f"FLOPs x {theirs.FLOPs}",
        "counted",
        "side-by-side-table",
    ),
)

# %% [markdown] id="trust-and-verify"
# ## Trust, and verify
#
# Before a long run, take one step with the checkpoint and one without. Should you compare the loss,
# the gradients' norm, or the updated parameters?
#
# **Predict.** A checkpoint forgets the RNG state. How many of these three show the mistake?

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
plain, verified = one_update(gpt, [tokens]), {}
forgetful = partial(torch_new, preserve_rng_state=False)
ways = {"none again": plainly, "ours": recomputing_less, "forgetful": forgetful}
for name, way in ways.items():
    seen = one_update(gpt, [tokens], way)
    verified[name] = {part: torch.equal(seen[part], plain[part]) for part in plain}
noticed = sum(not same for same in verified["forgetful"].values())
print(f"{noticed} of 3 show it{beside(guess, noticed)}")
pd.DataFrame(verified).T.map(str)

# %% [markdown] id="verify-read"
# The loss is computed from each block's first run, so it can't show a wrong *second* run. Compare
# gradients, or what follows from them.  The row `none again` repeats the plain step. If it says
# `False`, as it may on a GPU, compare with a tolerance.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "D16",
        "holds if",
        "Compare gradients or parameters: the loss of one step can't show a wrong "
        "second run.",
        f"{noticed} of 3 show it, the loss: {not verified['forgetful']['loss']}",
        "computed",
        "verify-measure",
        held=(noticed, 3, "comparisons"),
    ),
)

# %% [markdown] id="your-run-text"
# ## Your run
#
# An update of `course/train/train.py` (chapter 02) needs a 32 GiB card. Chapter by chapter you
# rewrite its functions until 8 GiB is enough. Here's the first function:
#
# ```python
# def hidden_of(model, tokens):
#     x = embedded(model, tokens)
#     for block in model.blocks:
#         x = block(x)
#     return model.norm(x)
# ```
#
# **Write.** `hidden_of` with PyTorch's `checkpoint(..., use_reentrant=False)` around each block.
# Call the script's own function as `train.embedded`.


# %% id="hidden-of"
def hidden_of(model, tokens):
    """Return the last norm's output for each token; keep only each block's input."""
    ### BEGIN SOLUTION
    x = train.embedded(model, tokens)
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return model.norm(x)
    ### END SOLUTION


# %% id="check-hidden-of"
# @title Check: run this cell
@blanks.check("hidden_of", "return the last norm's output for each token")
def checkpoints_each_block():
    (model, _), ran = train.make(train.TWIN), []
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, n=number: ran.append(n))
    seen, wanted = (of(model, your_run.ROWS) for of in (hidden_of, train.hidden_of))
    assert seen.shape == wanted.shape, f"The result's shape is {[*seen.shape]}."
    assert torch.equal(seen, wanted), "The result is not the script's."
    ran.clear()
    seen.square().sum().backward()
    assert ran, "Backward runs no block again: nothing is checkpointed."
    assert ran == [2, 1, 0], (
        f"Backward runs the blocks {ran} again; with a checkpoint each it's 2, 1, 0."
    )


# %% [markdown] id="apply-text"
# The next cell trains a small twin of the model with and without your function. It predicts the
# memory and FLOPs of the full-size update, and measures it if there's a GPU. To put your function
# into a script as well, add `to="my_train.py"`.

# %% id="apply"
your_run.apply("05", hidden_of=hidden_of)

# %% [markdown] id="on-paper"
# ## On paper
#
# **1.** A block makes its last saved tensor in the last tenth of its forward's FLOPs. What share of
# that forward can early stop skip?
#
# <details><summary>Answer</summary>
#
# Less than a tenth: what comes after that tensor. If the block ends in dropout, early stop skips
# nothing, because the last operation makes the saved mask.
# </details>
#
# **2.** How many GiB do the inputs of 24 blocks take in float32, at 12 x 1024 tokens of width 1024?
#
# <details><summary>Answer</summary>
#
# One takes $12 \cdot 2^{20} \cdot 4$ bytes, or 48 MiB, and 24 take 1.125 GiB.
# </details>
#
# **3.** `pack` returns the number 7 for an 8 MiB tensor. A logging list also holds the tensor. How
# much memory does the hook free?
#
# <details><summary>Answer</summary>
#
# None. Autograd releases the tensor, but the list still holds it.
# </details>
#
# ## What you can now do
#
# - Answer autograd's two questions with numbers instead of tensors, and recompute once.
# - Say what early stop, saved arguments and `detach` are for.
# - Verify a checkpoint with one step.
#
# In lab 03, `lab03_my_checkpoint`, you write the rest.
