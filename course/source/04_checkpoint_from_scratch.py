# %% [markdown] id="title"
# # Checkpointing from scratch
#
# PyTorch's `checkpoint.py` is well over a thousand lines long. The idea takes ten lines. Most of
# the other lines are there because somebody's gradients were wrong.
#
# In this chapter you write the ten lines. They discard fifteen sixteenths of what a transformer
# block keeps for backward. Then you break them in six ways, fix all six, and compare the result
# with PyTorch's two implementations.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import gc
import warnings
import weakref
from functools import partial
from itertools import compress

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

# %% [markdown] id="idea"
# ## Discard, and recompute
#
# ![In forward the block runs with gradients off and only its input x is kept. In backward a
# detached copy of x goes through the block again with gradients on, an inner backward runs through
# that second graph, and its gradient of x goes back to the outer
# graph.](figures/discard_and_recompute.svg)
#
# Backward through a block needs tensors that the block's forward computed (chapter 03), and all of
# them can be computed again from the block's input. So keep only the input. In backward, run the
# block again with gradients on. This builds a second graph. Run an *inner* backward through it.
#
# You write this as an `autograd.Function`. PyTorch runs its `forward` with gradients off, so
# autograd saves only what you pass to `save_for_backward`.
#
# The second run starts from a *detached* input: `detach` returns a tensor with the same memory but
# no history. The inner backward stops there and leaves the gradient in `x.grad`. Your `backward`
# returns `x.grad` to the outer graph.
#
# **Write.** Both bodies, in three lines and five. What `forward` puts on `ctx` is still there in
# `backward`; `ctx.saved_tensors` is a tuple. After the check we count what is kept for backward, in
# units of the bytes of `x`.


# %% id="ten-lines"
class TenLines(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        """Return `function(x)`. Keep the function and x, and nothing else."""
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """Run again, with gradients on. Return None and the gradient of x."""
        ### BEGIN SOLUTION
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(grad)
        return None, x.grad  # one for each argument of forward
        ### END SOLUTION


# %% id="check-ten-lines"
# @title Check: run this cell
@blanks.check("TenLines", "return `function(x)`, then None and the gradient of x")
def ten_lines():
    runs, grad = [], torch.randn(8, 4)
    x, weight = (torch.randn(n, 4, requires_grad=True) for n in (8, 4))
    twin = x.detach().clone().requires_grad_()

    def function(x):
        runs.append(torch.is_grad_enabled())
        return F.gelu(F.gelu(x @ weight) @ weight)

    kept = memory.saved(lambda: TenLines.apply(function, x)).num_bytes / x.nbytes
    assert kept, "Autograd keeps nothing: pass x to ctx.save_for_backward."
    assert kept == 1, (
        f"Autograd keeps {kept:g} units: keep x, 1 unit, and nothing else."
    )
    y, expected = TenLines.apply(function, x), function(twin)
    assert torch.equal(y, expected), "The output differs from function(x)'s."
    assert not any(map(torch.is_tensor, vars(y.grad_fn).values())), (
        "ctx holds a tensor besides the saved one: keep only x."
    )
    runs.clear()
    weight.grad = torch.zeros(4, 4)
    y.backward(grad)
    assert runs == [True], "Backward must run the function once, with gradients on."
    of_x, of_weight = torch.autograd.grad(expected, (twin, weight), grad)
    assert x.grad is not None, (
        "x has no gradient: did the second run's x require one, and do you return it?"
    )
    assert not torch.equal(x.grad, 2 * of_x), "The gradient is doubled: detach x."
    assert torch.equal(x.grad, of_x), "The gradient of x is wrong: is `grad` used?"
    assert torch.equal(weight.grad, of_weight), (
        "The function's weights need their gradient too: call backward, not grad."
    )


# %% id="block"
block = Block(GPTConfig())  # width 128, sequence 128
x = torch.randn(8, 128, 128, requires_grad=True)  # (batch, sequence, width)

# %% id="saved"
plain = memory.saved(lambda: block(x), params_of=block)
frugal = memory.saved(lambda: TenLines.apply(block, x), params_of=block)
{
    "plain": round(plain.num_bytes / x.nbytes, 2),
    "ten lines": frugal.num_bytes / x.nbytes,
}

# %% [markdown] id="bench-text"
# The ten lines keep only one unit, the block's input. The price is one more forward of the block.
#
# ## Are the gradients right?
#
# Inside the context `segments.called_through(checkpoint, modules)`, each of the modules is called
# through `checkpoint`. `compare` computes the model's gradients with and without the checkpoints,
# from the same seed. It says whether the two sets of gradients are equal **bit for bit**, and
# whether the RNG (random number generator) ends in the same state. It doesn't look at buffers: if a
# BatchNorm updates its statistics twice, `compare` still says "equal" (chapter 12).


# %% id="compare"
# @title The comparison: run this cell; open it to look
def gradients(model, loss):
    model.zero_grad()
    torch.manual_seed(7)
    loss().backward()
    return [p.grad for p in model.parameters() if p.requires_grad]


def compare(checkpoint, model, loss):
    expected, rng_state = gradients(model, loss), torch.get_rng_state()
    try:
        with segments.called_through(checkpoint, model.blocks):
            seen = gradients(model, loss)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}".split(" (")[0].splitlines()[0]
    if missing := sum(gradient is None for gradient in seen):
        return f"{missing} of {len(seen)} gradients are missing"
    close = partial(torch.allclose, rtol=1e-3, atol=1e-6)
    if not all(map(close, seen, expected)):
        return "they differ"
    if not torch.equal(torch.get_rng_state(), rng_state):
        return "right gradients, but the RNG state was not restored"
    same = all(map(torch.equal, seen, expected))
    return "equal, bit for bit" if same else "equal up to rounding"


# %% id="gpt"
torch.manual_seed(0)
tokens = next(data.text_batches(4, 128))  # (batch, sequence) bytes of Python's source
gpt = GPT(GPTConfig(num_layers=8))
compare(TenLines.apply, gpt, lambda: gpt.loss(tokens))

# %% [markdown] id="predict-peak"
# **Predict.** Each block kept 16 units and now keeps 1. By what percentage does the *peak* of
# forward and backward fall? The peak also includes parameters and gradients.

# %% id="guess-peak"
guess = None  # %


# %% id="measured"
# @title Measure a step: run this cell; open it to look
def measured(model, loss, checkpoint=None, modules=()):
    step = partial(gradients, model, loss)  # no optimizer: every step is like the first
    with segments.called_through(checkpoint, modules):
        return memory.measure(step, model=model, warmup=0)


# %% id="measure-gpt"
plain = measured(gpt, lambda: gpt.loss(tokens))
frugal = measured(gpt, lambda: gpt.loss(tokens), TenLines.apply, gpt.blocks)
fall = 100 * (1 - frugal.peak_bytes / plain.peak_bytes)
print(f"the peak falls by {fall:.0f} %{beside(guess, fall)}")
bars = {"none": plain.at_peak, "per block, ten lines": frugal.at_peak}
title = "Peak of forward and backward, counted: activations are nearly gone"
figure = plots.ledger_bars(bars, title=title)
expected = None if guess is None else plain.peak_bytes * (1 - guess / 100)
figure.mark(frugal.peak_bytes, expected)

# %% [markdown] id="read-peak"
# The peak is at the end of backward now, when the gradients are there and the other blocks' inputs
# are freed. What is left of the activations belongs to *one* recomputed block, the pink part.
#
# ## Six ways to break it
#
# ### 1. Dropout
#
# A model of four blocks has dropout 0.1. From the same seed, are its gradients the same with and
# without the ten lines?

# %% id="dropout-fails"
gpt = GPT(GPTConfig(num_layers=4, dropout=0.1))
gpt_loss = partial(gpt.loss, tokens)
compare(TenLines.apply, gpt, gpt_loss)

# %% [markdown] id="dropout-why"
# The gradients differ, and no error is raised. The second forward drew another dropout mask, so
# backward sent gradients through elements that the first forward had dropped. The loss is right,
# but its gradients are wrong.
#
# **The fix:** save the RNG's state before the first forward. Load it before the second forward, and
# afterwards restore the state that you replaced.
#
# ### 2. Autocast
#
# In mixed precision, forward runs under autocast, and backward runs outside it. Each block's second
# forward is part of backward, so it runs outside autocast too.

# %% id="autocast-fails"
no_dropout = GPT(GPTConfig(num_layers=4))


def mixed_loss():
    with torch.autocast("cpu", torch.bfloat16):
        return no_dropout.loss(tokens)


inside = GPT(no_dropout.config)  # for later: blocks that enter autocast themselves
for block in inside.blocks:
    block.forward = torch.autocast("cpu", torch.bfloat16)(block.forward)

compare(TenLines.apply, no_dropout, mixed_loss)

# %% [markdown] id="autocast-why"
# No error is raised, because the tensors between blocks are float32 with and without autocast. But
# the second forward multiplies in float32, so the gradients belong to a float32 block that the
# first forward never ran.
#
# **The fix:** remember the autocast state too. `remember()` is called before the first forward. It
# notes both states, the RNG's and autocast's, and returns `as_it_was`, which makes the context for
# the second forward.
#
# **Write.** The context `as_it_was`. Use `torch.set_rng_state`, `torch.autocast("cpu", dtype,
# enabled=...)`, and `torch.random.fork_rng(devices=[])`, which restores the RNG state on exit.


# %% id="remember"
def remember():
    rng_state = torch.get_rng_state()  # on a GPU: the states of its devices too
    # on a GPU: "cuda" in place of "cpu", here and in as_it_was
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextlib.contextmanager
    def as_it_was():
        ### BEGIN SOLUTION
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(rng_state)
            with torch.autocast("cpu", dtype, enabled=enabled):
                yield
        ### END SOLUTION

    return as_it_was


# %% id="check-remember"
# @title Check: run this cell
@blanks.check("remember", "return a function that makes the context `as_it_was`")
def remembers():
    as_it_was, first, _ = remember(), torch.rand(4), torch.rand(4)
    before = torch.get_rng_state()
    with as_it_was():
        assert torch.equal(torch.rand(4), first), (
            "Inside, the old RNG state is not set."
        )
    same = torch.equal(torch.get_rng_state(), before)
    assert same, "Afterwards the RNG state differs: restore it with fork_rng."
    for then, dtype in ((True, torch.bfloat16), (True, torch.float16), (False, None)):
        with torch.autocast("cpu", dtype, enabled=then):
            as_it_was = remember()
        with torch.autocast("cpu", torch.bfloat16, enabled=not then), as_it_was():
            on, seen = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        assert on == then, f"Autocast: {then} in forward, {on} in the second run."
        assert dtype in (None, seen), f"Autocast: {dtype} in forward, then {seen}."


# %% [markdown] id="closure-text"
# ### 3. A second tensor
#
# A block of a diffusion U-Net takes two tensors, `block(x, time)`, but our Function takes only one.
# The quick fix is a closure over `time`. Does that work?


# %% id="closure-fails"
def closure(function, x, time):
    return TenLines.apply(lambda x: function(x, time), x)


unet = UNet(UNetConfig(dropout=0.0))
images, noise = data.image_batch(4, 1, 16), data.image_batch(4, 1, 16, seed=1)
times = torch.tensor([1, 200, 400, 900])
unet_loss = partial(unet.loss, images, times, noise)
print(compare(closure, unet, unet_loss))

# %% [markdown] id="closure-why"
# All blocks share `time`, which was never detached and so still belongs to the outer graph. The
# inner backward of one block ran on through `time` into the embedding that made it, and freed that
# part of the graph. The inner backward of the next block needed that part again.
#
# ![Left: two blocks take the time embedding's result t from a closure. The inner backward of block
# 2 runs on through t and frees the embedding's graph. Block 1's inner backward needs it again: an
# error. Right: t is an argument, each block has a detached t, and the outer graph adds up both
# gradients.](figures/04-shared-time.svg)
#
# **The fix:** pass every tensor as an argument of `apply`, so that it can be detached. A Function
# doesn't see tensors in a closure, in keyword arguments or in a tuple. So flatten all arguments
# into a list, and rebuild them inside.
#
# ### 4. An argument that isn't a tensor
#
# In libraries, blocks also take a mask, a flag or a layer number. For those, the Function must
# first take more than one argument.
#
# **Write.** `ManyArguments`: like `TenLines`, but for any number of tensors.


# %% id="many-arguments"
class ManyArguments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        """Return `function(*args)`. Keep the function and the args, nothing else."""
        ### BEGIN SOLUTION
        ctx.function = function
        ctx.save_for_backward(*args)
        return function(*args)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        """Run again, with gradients on. Return None and each argument's gradient."""
        ### BEGIN SOLUTION
        args = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            ctx.function(*args).backward(grad)
        return None, *(tensor.grad for tensor in args)
        ### END SOLUTION


# %% id="check-many-arguments"
# @title Check: run this cell
@blanks.check("ManyArguments", "return None, then the gradient of each argument")
def takes_many():
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    weight, runs = torch.randn(4, 4, requires_grad=True), []

    def function(x, y, z):
        runs.append(torch.is_grad_enabled())
        return F.gelu(x @ weight) * y - z.square()

    kept = int(memory.saved(lambda: ManyArguments.apply(function, *args)).num_bytes)
    assert kept == 3 * 64, f"Autograd keeps {kept} bytes: the three arguments have 192."
    right, grad = function(*args), torch.randn(4, 4)
    out = ManyArguments.apply(function, *args)
    assert torch.equal(out, right), "The output differs from function(*args)'s."
    runs.clear()
    weight.grad = torch.zeros(4, 4)
    out.backward(grad)
    assert runs == [True], "Backward must run the function once, with gradients on."
    *wanted, of_weight = torch.autograd.grad(right, (*args, weight), grad)
    for number, (arg, true) in enumerate(zip(args, wanted, strict=True), 1):
        said = f"Argument {number} has no gradient: is one required, and returned?"
        assert arg.grad is not None, said
        said = f"Argument {number}'s gradient is doubled: detach it."
        assert not torch.allclose(arg.grad, 2 * true, atol=1e-5), said
        said = f"Argument {number}'s gradient is wrong: is `grad` used?"
        assert torch.allclose(arg.grad, true, atol=1e-5), said
    said = "The function's weights need their gradient too: call backward, not grad."
    assert torch.allclose(weight.grad, of_weight, atol=1e-5), said


# %% id="others-fail"
def with_second(second, checkpoint, function, x):
    return checkpoint(lambda x, by: function(x) * by, x, second)


mask = torch.ones(128, 1, dtype=torch.bool)
for second in (1.0, mask):
    print(compare(partial(with_second, second, ManyArguments.apply), gpt, gpt_loss))

# %% [markdown] id="others-why"
# A number cannot be saved for backward, and a boolean mask cannot need a gradient.
#
# **The fix:** pass only the tensors to `save_for_backward`, and keep the other arguments in a list.
# Let a detached input require a gradient only if the original did.
#
# ### 5. An input without a gradient
#
# Suppose the embeddings are frozen, as is common in fine-tuning, and the blocks should
# train.
#
# **Predict.** The model has 51 gradients to compute. With the ten lines, how many are missing?

# %% id="guess-missing"
guess = None  # gradients

# %% id="frozen-fails"
frozen = GPT(GPTConfig(num_layers=4, tie_weights=False))
frozen.token_embedding.requires_grad_(False)
frozen.position_embedding.requires_grad_(False)
frozen_loss = partial(frozen.loss, tokens)
with segments.called_through(TenLines.apply, frozen.blocks):
    seen = gradients(frozen, frozen_loss)
missing = sum(gradient is None for gradient in seen)
print(f"{missing} of {len(seen)} are missing{beside(guess, missing)}")

# %% [markdown] id="frozen-why"
# Only the last norm and the head get gradients, so the blocks don't learn. A Function's output
# requires a gradient only if one of its *arguments* does. Here the only tensor among the arguments
# is `x`, which comes from frozen embeddings. The blocks' parameters aren't arguments: they are
# inside `function`.
#
# **The fix:** pass one more argument, a *dummy tensor*, which is empty and requires a gradient.
#
# ### 6. Several outputs
#
# This block returns three outputs: its result, a penalty on large activations, and None. What does
# the Function do with three?


# %% id="outputs-fail"
class Penalised(Block):
    def forward(self, x):
        y = super().forward(x)
        return y, y.square().mean(), None


def penalised_loss():
    x, penalties = penalised.token_embedding(tokens), []
    for block in penalised.blocks:
        x, penalty, _ = block(x)
        penalties.append(penalty)
    logits = penalised.head(penalised.norm(x)).flatten(0, 1)
    return F.cross_entropy(logits, tokens.roll(-1).flatten()) + 1e-2 * sum(penalties)


penalised = GPT(GPTConfig(num_layers=4, dropout=0.1))
penalised.blocks = nn.ModuleList(Penalised(penalised.config) for _ in range(4))
penalised.position_embedding.requires_grad_(False)  # this loss doesn't use it
print(compare(TenLines.apply, penalised, penalised_loss))

# %% [markdown] id="outputs-why"
# Autograd calls `backward` with one gradient for each output, even for an output that is None.
#
# **The fix:** send all gradients through the second graph *at once*, with
# `torch.autograd.backward`, because the first of two separate calls would free the graph. Leave out
# each output that requires no gradient.
#
# A Function doesn't look into a dict or a nested list: tensors inside get no gradient, and no error
# is raised. So flatten the outputs as well.
#
# ## All six fixed
#
# First comes the Function, `Discard`. It runs a function that takes tensors and returns a tuple.
# Around it, `checkpoint` flattens arguments and outputs with PyTorch's `tree_flatten`.
#
# **Write.** `backward` of `Discard`, with the fixes of 1, 2, 4 and 6. (The *dummy tensor* of 5
# comes from `checkpoint`, below.)


# %% id="discard"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *tensors):
        ctx.function, ctx.as_it_was = function, remember()
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx, *grads):
        """Return None for `function`, and a gradient or None for each tensor.

        `function` returns a tuple. Leave out outputs that aren't tensors or need no
        gradient, and their `grads`.
        """
        ### BEGIN SOLUTION
        saved = ctx.saved_tensors
        tensors = [t.detach().requires_grad_(t.requires_grad) for t in saved]
        with torch.enable_grad(), ctx.as_it_was():
            outputs = ctx.function(*tensors)
        used = [torch.is_tensor(out) and out.requires_grad for out in outputs]
        torch.autograd.backward(
            list(compress(outputs, used)), list(compress(grads, used))
        )
        return None, *(tensor.grad for tensor in tensors)
        ### END SOLUTION


# %% id="check-discard"
# @title Check: run this cell
@blanks.check(
    "Discard",
    "send gradients only to outputs that require one, and to return None, then a "
    "gradient or None for each tensor",
)
def discards():
    x, weight = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    frozen, mask = torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool)

    def function(x, mask, dropped=0.0):
        y = F.dropout(x @ weight, dropped) * mask
        return y, None, y.square().sum(), mask.sum()

    def seen(call, x, dropped=0.0):
        weight.grad = x.grad = None
        torch.manual_seed(0)
        y, _, penalty, _ = call(partial(function, dropped=dropped), x, mask)
        (y.sum() + 2 * penalty).backward()
        return [x.grad, weight.grad]

    def apply(function, *tensors):
        dummy = torch.empty(0, requires_grad=True)
        return Discard.apply(lambda _, *rest: function(*rest), dummy, *tensors)

    def right(*choices):
        pairs = zip(*(seen(way, *choices) for way in (apply, directly)), strict=True)
        close = partial(torch.allclose, atol=1e-4)
        return all(a is b or (a is not None and close(a, b)) for a, b in pairs)

    def directly(function, *tensors):
        return function(*tensors)

    of_x = seen(apply, x)[0]
    assert of_x is not None, (
        "x has no gradient: is requires_grad_ or enable_grad missing?"
    )
    doubled = torch.allclose(of_x, 2 * seen(directly, x)[0], atol=1e-4)
    assert not doubled, "x's gradient is doubled: detach the saved tensors."
    assert right(x), (
        "Two outputs: send all gradients through the graph at once, each to its output."
    )
    assert right(frozen), (
        "A frozen input gets None, but the weights still get their gradient."
    )
    assert right(x, 0.5), (
        "With dropout the gradients differ: run under ctx.as_it_was()."
    )


# %% [markdown] id="write-apart"
# `tree_flatten` takes apart a *nest*, any nested structure of tuples, lists and dicts. It returns
# the list of leaves (None counts as a leaf) and the structure's *form*. `tree_unflatten(leaves,
# form)` rebuilds the structure.
#
# **Write.** `apart`, for the arguments. The graph keeps the function `together` as long as the loss
# exists, so `together` must not hold the tensors, or they would stay in memory just as long.


# %% id="apart"
def apart(nest):
    """Return the tensors of a nest, and `together`.

    `together(tensors)` returns a nest of the same form, with these tensors in place of
    the old ones, and everything else as it was. It holds no tensor itself.
    """
    ### BEGIN SOLUTION
    leaves, form = tree_flatten(nest)
    places = [place for place, leaf in enumerate(leaves) if torch.is_tensor(leaf)]
    others = [None if place in places else leaf for place, leaf in enumerate(leaves)]

    def together(tensors):
        again = list(others)
        for place, tensor in zip(places, tensors, strict=True):
            again[place] = tensor
        return tree_unflatten(again, form)

    return [leaves[place] for place in places], together
    ### END SOLUTION


# %% id="check-apart"
# @title Check: run this cell
@blanks.check("apart", "return the tensors of a nest, and a function")
def takes_apart():
    x, mask = torch.randn(3), torch.ones(3, dtype=torch.bool)
    nest = (2.0, x, (mask, "name")), {"flag": True, "none": None, "time": x}
    tensors, together = apart(nest)
    names = ["x" if one is x else "mask" for one in tensors]
    right = ["x", "mask", "x"]
    assert names == right, f"The nest's tensors are {right}, but it found {names}."
    for _ in range(2):
        new = [torch.zeros(1), torch.zeros(2), torch.zeros(3)]
        wanted = (2.0, new[0], (new[1], "name"))
        wanted = wanted, {"flag": True, "none": None, "time": new[2]}
        (mine, form), (true, true_form) = map(tree_flatten, (together(new), wanted))
        assert form == true_form, f"`together` builds {form}, not {true_form}."
        for place, (one, other) in enumerate(zip(mine, true, strict=True)):
            said = f"Leaf {place} of the new nest is {one!r}, but should be {other!r}."
            assert one is other, said

    x, new = torch.randn(3), torch.zeros(3)
    tensors, together = apart((x, 1))
    together([new])
    alive, tensors = [weakref.ref(x), weakref.ref(new)], None
    del x, new
    gc.collect()
    held = [
        name
        for name, one in zip(("old", "new"), alive, strict=True)
        if one() is not None
    ]
    assert not held, f"`together` holds the {' and the '.join(held)} tensor."


# %% [markdown] id="write-checkpoint"
# **Write.** The rest of `checkpoint`. In `run`,
#
# - rebuild the arguments around the tensors, and call the function with them;
# - flatten what it returns into `outputs` and `form`;
# - return `known(outputs)`. The next cell's `known` refuses outputs that might hide a tensor.
#
# Below `run`, apply `Discard` to `run`, a dummy tensor and the tensors. Then rebuild the outputs in
# their form.


# %% id="known"
# @title Outputs that may leave: run this cell; open it to look
def known(outputs):
    """Return the outputs as a tuple; refuse any that might hide a tensor."""
    kinds = torch.Tensor, int, float, str, type(None)
    if odd := [out for out in outputs if not isinstance(out, kinds)]:
        raise TypeError(f"a tensor inside {odd[0]!r} would get no gradient")
    return tuple(outputs)


# %% id="checkpoint"
def checkpoint(function, *args, **kwargs):
    """Return what `function(*args, **kwargs)` returns, computed through `Discard`."""
    tensors, together = apart((args, kwargs))
    form = None  # of the outputs

    def run(dummy, *tensors):
        nonlocal form
        ### BEGIN SOLUTION
        args, kwargs = together(tensors)
        outputs, form = tree_flatten(function(*args, **kwargs))
        return known(outputs)
        ### END SOLUTION

    ### BEGIN SOLUTION
    outputs = Discard.apply(run, torch.empty(0, requires_grad=True), *tensors)
    return tree_unflatten(outputs, form)
    ### END SOLUTION


# %% id="check-checkpoint"
# @title Check: run this cell
@blanks.check(
    "checkpoint",
    "return `known(outputs)` from `run`, to apply `Discard` to `run`, a dummy tensor "
    "and each tensor, and to rebuild the outputs in their form",
)
def calls_as_it_was_called():
    x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    weight, seen = torch.randn(4, 4, requires_grad=True), []

    def function(scale, x, pair, *, flag, time):
        seen.append((scale, pair[1], flag))
        out = (x @ weight) * scale + pair[0] * time
        return {"out": out, "more": [out.square(), (None, 3)]}

    def run(call):
        x.grad = y.grad = weight.grad = None
        time = y.exp()  # shared by two calls
        first = call(function, 2.0, x, (y, "name"), flag=True, time=time)
        found = call(function, 2.0, first["out"], (y, "name"), flag=True, time=time)
        (found["out"].sum() + found["more"][0].sum()).backward()
        return found, [x.grad, y.grad, weight.grad]

    found, wanted = run(lambda function, *args, **kwargs: function(*args, **kwargs))
    seen[1:] = []
    again, grads = run(checkpoint)
    times = len(seen) - 1
    said = f"The function got {seen[-1]}, not {seen[0]}: scale, name and flag."
    assert seen[-1] == seen[0], said
    assert torch.equal(again["out"], found["out"]), "The output is different."
    assert again["more"][1] == (None, 3), f"(None, 3) came out as {again['more'][1]}."
    for name, mine, true in zip("xyw", grads, wanted, strict=True):
        near = mine is not None and torch.allclose(mine, true, rtol=1e-3)
        assert near, f"The gradient of {name} is missing or wrong."
    assert times == 4, f"Two calls run the function {times} times, not 2 + 2."
    y, _ = checkpoint(lambda x, y: (x @ weight, 0), torch.ones(4, 4), None)
    assert y.requires_grad, "The output needs no gradient: is the dummy tensor missing?"
    let_through = False
    with contextlib.suppress(TypeError):
        checkpoint(lambda x: (x, slice(2)), x)
        let_through = True
    assert not let_through, "An output of an unknown class gets through: use `known`."


# %% id="implementations"
implementations = {"ten lines": TenLines.apply, "ours, fixed": checkpoint}
implementations["reentrant"] = partial(torch_checkpoint, use_reentrant=True)
implementations["with hooks"] = partial(torch_checkpoint, use_reentrant=False)

# %% [markdown] id="table-text"
# How does your `checkpoint` compare with PyTorch's two implementations? The old one,
# `use_reentrant=True`, is a Function like yours: *reentrant* means that a backward runs inside a
# backward. The new one, `use_reentrant=False`, is built with hooks (chapter 05). The twelve cases
# are the six above, some in several forms.
#
# **Predict.** In how many of the twelve cases does the reentrant implementation get the gradients
# right?

# %% id="guess-reentrant"
guess = None  # of twelve


# %% id="ways"
# @title How a block is called in each case: run this cell; open it to look
def directly(checkpoint, function, *args):
    return checkpoint(function, *args)


def by_keyword(checkpoint, function, x, time):
    return checkpoint(function, x, time=time)


def in_a_tuple(checkpoint, function, *pair):
    return checkpoint(lambda both: function(*both), pair)


def in_a_dict(checkpoint, function, x):
    return checkpoint(lambda x: {"all": function(x)}, x)["all"]


def nested(checkpoint, function, x):
    def run(x):
        y, *others = function(x)
        return y, others

    y, others = checkpoint(run, x)
    return y, *others


# %% id="cases"
# @title The twelve cases: run this cell; open it to look
cases = {
    "1 dropout": (directly, gpt, gpt_loss),
    "2 autocast around": (directly, no_dropout, mixed_loss),
    "2 autocast inside": (directly, inside, partial(inside.loss, tokens)),
    "3 two tensors": (directly, unet, unet_loss),
    "3 a keyword": (by_keyword, unet, unet_loss),
    "3 a tuple": (in_a_tuple, unet, unet_loss),
    "4 a number": (partial(with_second, 1.0), gpt, gpt_loss),
    "4 a mask": (partial(with_second, mask), gpt, gpt_loss),
    "5 frozen input": (directly, frozen, frozen_loss),
    "6 several outputs": (directly, penalised, penalised_loss),
    "6 in a dict": (in_a_dict, penalised, penalised_loss),
    "6 a list within": (nested, penalised, penalised_loss),
}


# %% id="table"
def outcomes(call):
    runs = ((row, partial(way, call), *of) for row, (way, *of) in cases.items())
    return {row: compare(*run).partition(":")[0] for row, *run in runs}


with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    table = pd.DataFrame({name: outcomes(way) for name, way in implementations.items()})
said = {str(warning.message).partition(".")[0] for warning in heard}
print({message for message in said if "requires_grad" in message})
right = table.map(lambda words: words.startswith("equal"))
passed = right["reentrant"].sum()
print(f"reentrant: {passed} of {len(right)} are right{beside(guess, passed)}")
table

# %% [markdown] id="table-read"
# The reentrant implementation refuses keywords, and loses gradients in three cases, with a warning
# at best. With a list inside the outputs it gives **wrong gradients and no error**.
#
# On the U-Net, the implementation with hooks is right *bit for bit*, yours only up to rounding.
# Some blocks' outputs go to a skip connection and to the next block, which uses its input twice.
# Your Function adds the next block's two gradients first; plain backward adds the three in another
# order. In floating point, $(a + b) + c$ is not always $a + (b + c)$.
#
# The autocast rows test a common piece of advice: "With mixed precision, enter autocast *inside*
# the checkpointed function". If you follow it, even the ten lines are right, because the second
# forward enters autocast itself. If autocast surrounds the whole model instead, the checkpoint has
# to restore it, as yours and PyTorch's do.

# %% id="verdicts-fixed"
dropout, around = (right.loc[row] for row in ("1 dropout", "2 autocast around"))
restored = f"{dropout.sum()} of {len(dropout)} checkpoints right with dropout"
autocast = f"{around.sum()} of {len(around)} with autocast around them"
claims.Verdicts(
    claims.Verdict(
        "C04",
        "shown",
        "Without the forward's RNG state, dropout gives wrong gradients and no error.",
        restored,
        "computed",
        "table",
    ),
    claims.Verdict(
        "C15",
        "shown",
        "Keywords, tuples, masks, and outputs in a tuple, list or dict take a few "
        "lines each, and their gradients are right.",
        f"{right['ours, fixed'].sum()} of {len(right)} cases have the right gradients",
        "computed",
        "table",
    ),
    claims.Verdict(
        "E15",
        "holds if",
        "This is needed only if the checkpoint doesn't restore the outer autocast.",
        autocast,
        "computed",
        "table",
        held=(int((~around).sum()), len(around), "checkpoints"),
    ),
)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A block's input takes 4 MiB, and the block keeps 64 MiB for backward, its input included. A
# model has 24 such blocks. How much do the activations take at the end of forward, plain and with
# the ten lines around each block? With the ten lines, how much do they take at most during
# backward?
#
# <details><summary>Answer</summary>
#
# Plain, they take $24 \cdot 64$ MiB, or 1.5 GiB. With the ten lines, only the 24 inputs are kept:
# 96 MiB. Backward peaks when the last block is recomputed. Its other 60 MiB join the inputs' 96
# MiB: 156 MiB in all.
# </details>
#
# **2.** A checkpoint doesn't save the RNG state, and dropout drops a tenth of the elements. For
# what share of the elements do the two forwards' masks agree?
#
# <details><summary>Answer</summary>
#
# Both masks keep an element in $0.9 \cdot 0.9$ of cases and drop it in $0.1 \cdot 0.1$, so they
# agree for 82 %.
# </details>
#
# **3.** A model calls the same block twice, both times through the ten lines. How many times does
# the block run forward in one step? Is the gradient of its weights right?
#
# <details><summary>Answer</summary>
#
# The block runs four times, twice for each call. The gradient is right: each inner backward adds
# its part to `.grad`.
# </details>

# %% [markdown] id="end"
# ## What you can now do
#
# - Write checkpointing in ten lines. About forty more restore the RNG and autocast states, and
#   flatten arguments and outputs.
# - Say why you should compare gradients bit for bit: three of the six failures gave wrong or
#   missing gradients and no error.
