# %% [markdown] id="title"
# # Checkpointing from scratch
#
# The file in which PyTorch keeps its checkpointing is well over a thousand lines long. The idea in
# it takes ten. Nearly all the rest is there because somebody's gradients were wrong.
#
# In this chapter you write the ten lines, see them throw away fifteen sixteenths of a transformer
# block, and then break them in six ways with models that people really train. Each failure is
# mended in about three lines. At the end stand three pieces of advice that you will meet on the
# web, each put to the meter.
#
# **Budget:** 50 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import warnings
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import data, memory, plots
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig

# %% [markdown] id="idea"
# ## Discard, and compute again
#
# Backward through a block needs tensors that the block's forward computed. Chapter 03 counted them.
# But all of them follow from the block's input, so it is enough to keep that: when backward comes,
# run the block once more, this time with autograd watching, and go backward through what it built.
#
# An `autograd.Function` is the place for it. Its `forward` runs with gradients off, so nothing in
# it is saved, except what you hand to `save_for_backward`.


# %% id="ten-lines"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        y.backward(grad)
        return None, x.grad  # one for each argument of forward


ten_lines = Discard.apply  # later versions are compared with this one

# %% [markdown] id="predict-loud"
# `detach` makes the copy of `x` a stranger to the graph it came from: the inner backward stops
# there, and hands its gradient back to the outer one.
#
# **Predict.** A block of our GPT, with a print in it. How many lines will you see, and in which of
# them are gradients on?

# %% id="loud-block"
config = GPTConfig(num_layers=8)  # width 128, sequence 128
block = Block(config)
x = torch.randn(8, 128, 128, requires_grad=True)  # (batch, sequence, width)


def loud(x):
    print("the block runs, gradients", "on" if torch.is_grad_enabled() else "off")
    return block(x)


y = Discard.apply(loud, x)
print("backward begins")
y.sum().backward()

# %% [markdown] id="predict-saved"
# That is the whole trade: one more run of the block. What did it buy?
#
# **Predict.** In units of `x`, a plain block keeps 16 (chapter 01). And this one?

# %% id="saved"
plain = memory.saved(lambda: block(x), params_of=block)
frugal = memory.saved(lambda: Discard.apply(block, x), params_of=block)
{"plain": round(plain.num_bytes / x.nbytes, 2), "discarded": frugal.num_bytes / x.nbytes}

# %% [markdown] id="bench-text"
# One: its input, which is the output of the block before it, and so had to be there anyway.
#
# ### A bench for the whole chapter
#
# Two tools. `through` lets chosen modules of a model run through any checkpoint function, for a
# while. `verdict` compares all gradients of a model with and without it, **bit for bit**: the same
# operations on the same numbers must give the same bits, so there is no tolerance to argue about.


# %% id="bench"
@contextlib.contextmanager
def through(checkpoint, modules):
    for module in modules:
        module.forward = partial(checkpoint, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward  # the class's own is back


def gradients(model, loss):
    model.zero_grad()
    torch.manual_seed(7)
    loss().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


# %% id="verdict"
def verdict(checkpoint, model, loss, modules=None):
    expected = gradients(model, loss)
    try:
        with through(checkpoint, modules or model.blocks):
            seen = gradients(model, loss)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).split(' (')[0].splitlines()[0]}"
    if missing := sum(gradient is None for gradient in seen.values()):
        return f"{missing} of {len(seen)} gradients are missing"
    if all(torch.equal(seen[name], expected[name]) for name in seen):
        return "equal, bit for bit"
    close = all(torch.allclose(seen[n], expected[n], rtol=1e-3, atol=1e-6) for n in seen)
    return "equal up to rounding" if close else "gradients differ"


# %% id="gpt"
torch.manual_seed(0)
tokens = next(data.text_batches(4, 128))  # (batch, sequence) bytes of Python's own source
gpt = GPT(config)
verdict(Discard.apply, gpt, lambda: gpt.loss(tokens))

# %% [markdown] id="predict-gpt"
# Ten lines, and all gradients of an eight-block GPT are right to the last bit.
#
# **Predict.** Each block kept 16 units and now keeps 1. By how much does the *peak* of forward and
# backward fall?


# %% id="measure-gpt"
def measured(model, loss, checkpoint=None, label="", modules=None):
    with through(checkpoint, modules or model.blocks) if checkpoint else contextlib.nullcontext():
        step = partial(gradients, model, loss)  # no optimizer: the first step is like any other
        return memory.measure(step, model=model, label=label, warmup=0)


plain = measured(gpt, lambda: gpt.loss(tokens), label="none")
frugal = measured(gpt, lambda: gpt.loss(tokens), Discard.apply, label="per block")
bars = {"none": plain.at_peak, "per block, ten lines": frugal.at_peak}
plots.ledger_bars(bars, title="Peak of forward and backward, counted")

# %% [markdown] id="read-gpt"
# To less than half, parameters and gradients included. What is left of the activations is mostly
# *one* block, computed again: the pink bar. That part is the subject of chapter 06; remember that
# it is there, because below it will be everything.
#
# Now break it.

# %% [markdown] id="dropout-text"
# ## 1. Dropout
#
# **Predict.** The same model, with dropout 0.1. `verdict` seeds both runs alike. Equal, different,
# or an error?

# %% id="dropout-fails"
gpt = GPT(GPTConfig(num_layers=8, dropout=0.1))
loss = partial(gpt.loss, tokens)
verdict(Discard.apply, gpt, loss)

# %% [markdown] id="dropout-why"
# Different, and nothing said so. The second run of a block drew a second mask: forward dropped some
# units and backward sent gradients through others. The loss is right, the training is not. It is
# the classic bug of home-made checkpoints (openai/guided-diffusion, issue 167, for one).
#
# The mend: remember the state of the random generator before the first run, set it for the second,
# and put back what was there. `fork_rng` does the putting back.


# %% id="dropout-mend"
def remember():
    random_state = torch.get_rng_state()

    @contextlib.contextmanager
    def as_it_was():
        with torch.random.fork_rng(devices=[]):  # on a GPU: its devices, and their states too
            torch.set_rng_state(random_state)
            yield

    return as_it_was


# %% [markdown] id="dropout-mend-text"
# In the ten lines, two places change: `remember` before the first run, `as_it_was` around the
# second.


# %% id="dropout-passes"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function, ctx.as_it_was = function, remember()
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.as_it_was():
            y = ctx.function(x)
        y.backward(grad)
        return None, x.grad


verdict(Discard.apply, gpt, loss)

# %% [markdown] id="autocast-text"
# ## 2. Autocast
#
# Mixed precision as the manuals have it: forward under autocast, backward outside. The second run
# of each block happens *in* backward.
#
# **Predict.** Which dtype will the matrix products of the second run have? Does anything complain?


# %% id="autocast-fails"
def mixed_loss():
    with torch.autocast("cpu", torch.bfloat16):
        return gpt.loss(tokens)


verdict(Discard.apply, gpt, mixed_loss)

# %% [markdown] id="autocast-why"
# Float32, and nothing complains: the residual stream between blocks is float32 in both runs, so all
# shapes and dtypes fit. Backward goes through a block that forward never computed, and pays float32
# prices for it. Autocast is surroundings, as the random state is. Three more lines.


# %% id="autocast-mend"
remember_random = remember


def remember():
    random_as_it_was = remember_random()
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextlib.contextmanager
    def as_it_was():
        with random_as_it_was(), torch.autocast("cpu", dtype, enabled=enabled):
            yield

    return as_it_was


verdict(Discard.apply, gpt, mixed_loss)

# %% [markdown] id="autocast-inside-text"
# A widespread recipe says that with mixed precision `autocast` has to be entered *inside* the
# checkpointed function. Here is a model that does so, and all four combinations.


# %% id="autocast-inside"
class Inside(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.block(x)


inside = GPT(config)
inside.blocks = nn.ModuleList(map(Inside, inside.blocks))
for name, checkpoint in {"ten lines": ten_lines, "mended": Discard.apply}.items():
    around = verdict(checkpoint, gpt, mixed_loss)
    within = verdict(checkpoint, inside, partial(inside.loss, tokens))
    print(f"{name:<10} autocast around the model: {around:<20} inside the block: {within}")

# %% [markdown] id="autocast-inside-read"
# Inside, the function carries its own autocast along, so even the ten lines are right. Around the
# model, the implementation has to bring it back, and one that does is right in both places. So the
# recipe is a way round a bad checkpoint. PyTorch's is not one, as the table below will show.

# %% [markdown] id="arguments-text"
# ## 3. Several arguments, tuples, keywords
#
# A block of a diffusion U-Net takes two tensors, `block(x, time)`. Our Function takes one.

# %% id="unet"
unet = UNet(UNetConfig(dropout=0.1))
images, noise = data.image_batch(4, 1, 16), data.image_batch(4, 1, 16, seed=1)
times = torch.tensor([1, 200, 400, 900])
unet_loss = partial(unet.loss, images, times, noise)
verdict(Discard.apply, unet, unet_loss)

# %% [markdown] id="closure-text"
# An error, at least. The quick way out is a closure that brings the second argument along.
#
# **Predict.** Does this work? Where does the time embedding come from, and who else uses it?


# %% id="closure-fails"
def captured(function, x, time):
    return Discard.apply(lambda x: function(x, time), x)


verdict(captured, unet, unet_loss)

# %% [markdown] id="closure-why"
# `time` slipped in through the closure and was never detached, so it still hangs in the outer
# graph. The *inner* backward of the first block walked out through it, through the embedding that
# all blocks share, and freed that graph behind it. The next block found it gone.
#
# A Function sees only the tensors in its own argument list: none in a closure, none in a keyword,
# none in a tuple. So everything must be laid out flat, and put together again inside. PyTorch
# flattens nested structures with `tree_flatten`; the underscore in its module's name says that it
# may move one day.


# %% id="arguments-mend"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        ctx.function, ctx.as_it_was = function, remember()
        ctx.save_for_backward(*args)
        return function(*args)

    @staticmethod
    def backward(ctx, grad):
        args = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad(), ctx.as_it_was():
            y = ctx.function(*args)
        y.backward(grad)
        return None, *(tensor.grad for tensor in args)


# %% id="arguments-pass"
def checkpoint(function, *args, **kwargs):
    flat, structure = tree_flatten((args, kwargs))

    def run(*flat):
        args, kwargs = tree_unflatten(list(flat), structure)
        return function(*args, **kwargs)

    return Discard.apply(run, *flat)


def by_keyword(function, x, time):
    return checkpoint(function, x, time=time)


def in_a_tuple(function, x, time):
    return checkpoint(lambda pair: function(*pair), (x, time))


[verdict(call, unet, unet_loss) for call in (checkpoint, by_keyword, in_a_tuple)]

# %% [markdown] id="rounding-text"
# Equal up to rounding, and not to the bit. The time embedding goes into seven blocks and a block's
# output into several places, so their gradients are sums. Plain backward adds one use at a time;
# ours adds up a block's uses first, and $(a + b) + c$ is not $a + (b + c)$ in floating point.
# Nothing is wrong, yet it shows that the graph is no longer the one of the plain model. Keep that
# in mind for chapter 05.

# %% [markdown] id="others-text"
# ## 4. Arguments that are no tensors, and tensors without a gradient
#
# Blocks of real libraries are called with a mask, a flag, a layer number. Ours, with two of them:


# %% id="others-fail"
class Scaled(Block):
    def forward(self, x, keep=None, gain=1.0):
        y = gain * super().forward(x)
        return y if keep is None else y * keep


def with_a_number(function, x):
    return checkpoint(function, x, None, 1.0)


def with_a_mask(function, x):
    return checkpoint(function, x, torch.ones(128, 1, dtype=torch.bool))


gpt.blocks = nn.ModuleList(Scaled(gpt.config) for _ in range(8))
[verdict(call, gpt, loss) for call in (with_a_number, with_a_mask)]

# %% [markdown] id="others-why"
# The number cannot be saved for backward, and the mask cannot have a gradient. So: tensors go to
# `save_for_backward`, everything else waits on `ctx`, and each tensor asks for a gradient in the
# second run if it did in the first.
#
# (Why not keep everything on `ctx`, tensors too? Because `save_for_backward` notes each tensor's
# version, and refuses one that was changed in place in between. Plain references would give wrong
# gradients instead.)


# %% id="others-mend"
def sort_out(ctx, args):
    ctx.places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]
    ctx.others = [None if place in ctx.places else arg for place, arg in enumerate(args)]
    ctx.save_for_backward(*(args[place] for place in ctx.places))


def strangers(ctx):
    args = list(ctx.others)
    for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
        args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
    return args


# %% id="others-pass"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        ctx.function, ctx.as_it_was = function, remember()
        sort_out(ctx, args)
        return function(*args)

    @staticmethod
    def backward(ctx, grad):
        args = strangers(ctx)
        with torch.enable_grad(), ctx.as_it_was():
            y = ctx.function(*args)
        y.backward(grad)
        return None, *(arg.grad if torch.is_tensor(arg) else None for arg in args)


[verdict(call, gpt, loss) for call in (with_a_number, with_a_mask)]

# %% [markdown] id="frozen-text"
# ## 5. Inputs without a gradient
#
# Fine-tuning with frozen embeddings, which is what LoRA users do. The blocks are trained.
#
# **Predict.** What do the blocks' parameters get?

# %% id="frozen-fails"
frozen = GPT(GPTConfig(num_layers=4, dropout=0.1, tie_weights=False))
frozen.token_embedding.requires_grad_(False)
frozen.position_embedding.requires_grad_(False)
frozen_loss = partial(frozen.loss, tokens)
verdict(checkpoint, frozen, frozen_loss)

# %% [markdown] id="frozen-why"
# Nothing. All 48 gradients in the blocks are missing; what has one is the last norm and the head.
# Training runs without an error, and the blocks do not learn. A Function's output needs a gradient
# only if one of its *arguments* does, and the parameters are no arguments: they are hidden in the
# function.
#
# The mend is a ticket: an empty tensor that needs a gradient, handed in beside the real arguments.


# %% id="frozen-mend"
def checkpoint(function, *args, **kwargs):
    flat, structure = tree_flatten((args, kwargs))

    def run(ticket, *flat):
        args, kwargs = tree_unflatten(list(flat), structure)
        return function(*args, **kwargs)

    return Discard.apply(run, torch.empty(0, requires_grad=True), *flat)


verdict(checkpoint, frozen, frozen_loss)

# %% [markdown] id="outputs-text"
# ## 6. Several outputs
#
# A block that returns its result and a penalty on large activations, as mixture-of-experts blocks
# do with their balancing loss.


# %% id="outputs-fail"
class Penalised(Block):
    def forward(self, x):
        y = super().forward(x)
        return y, y.square().mean(), None  # None: where others return attention weights


def penalised_loss():
    x, penalties = gpt.token_embedding(tokens), []
    for block in gpt.blocks:
        x, penalty, _ = block(x)
        penalties.append(penalty)
    logits = gpt.head(gpt.norm(x)).flatten(0, 1)
    return F.cross_entropy(logits, tokens.roll(-1).flatten()) + 1e-2 * sum(penalties)


gpt.blocks = nn.ModuleList(Penalised(gpt.config) for _ in range(8))
gpt.position_embedding.requires_grad_(False)  # this loss does without
verdict(checkpoint, gpt, penalised_loss)

# %% [markdown] id="outputs-why"
# Autograd calls backward with one gradient for each output. They all have to be sent through the
# second run *at once*, with `torch.autograd.backward`; one after the other would need the graph
# twice. An output that needs no gradient is left out.


# %% id="outputs-mend"
class Discard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        ctx.function, ctx.as_it_was = function, remember()
        sort_out(ctx, args)
        return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        args = strangers(ctx)
        with torch.enable_grad(), ctx.as_it_was():
            y = ctx.function(*args)
        outputs = zip(y if isinstance(y, tuple) else (y,), grads, strict=True)
        needed = [(out, grad) for out, grad in outputs if getattr(out, "requires_grad", False)]
        torch.autograd.backward(*zip(*needed, strict=True))
        return None, *(arg.grad if torch.is_tensor(arg) else None for arg in args)


verdict(checkpoint, gpt, penalised_loss)

# %% [markdown] id="table-text"
# ## The bench, complete
#
# About fifty lines by now. On the bench beside it, PyTorch's two implementations: the old one,
# `use_reentrant=True`, is a Function like ours, with a backward inside a backward, hence the name;
# the new one, `use_reentrant=False`, is built differently, and chapter 05 builds it.
#
# **Predict.** Which of the six rows will the old one not pass?

# %% id="table-implementations"
implementations = {
    "ten lines": ten_lines,
    "fifty lines": checkpoint,
    "PyTorch, reentrant": partial(torch_checkpoint, use_reentrant=True),
    "PyTorch, the new one": partial(torch_checkpoint, use_reentrant=False),
}
gpt = GPT(GPTConfig(num_layers=4, dropout=0.1))
gpt_loss = partial(gpt.loss, tokens)


def table(checkpoint):
    yield "dropout", verdict(checkpoint, gpt, gpt_loss)
    yield "autocast", verdict(checkpoint, gpt, mixed_loss)
    yield "two arguments", verdict(checkpoint, unet, unet_loss)
    yield "a keyword", verdict(lambda f, x, t: checkpoint(f, x, time=t), unet, unet_loss)
    yield "a tuple", verdict(lambda f, *xt: checkpoint(lambda p: f(*p), xt), unet, unet_loss)
    yield "frozen input", verdict(checkpoint, frozen, frozen_loss)


# %% id="table"
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    for name, implementation in implementations.items():
        print(name)
        for row, words in table(implementation):
            print(f"  {row:<14}{words.partition(':')[0]}")
messages = {str(warning.message).partition(".")[0] for warning in heard}
{message for message in messages if "requires_grad" in message}

# %% [markdown] id="table-read"
# The old one fails the last three, two of them with no more than a warning while gradients are
# missing. It is the code behind every call that leaves `use_reentrant` out. Ours passes all six,
# and the new one does something that ours cannot: it is equal on the U-Net *bit for bit*. Dropout,
# and autocast around the model, are right in both.
#
# ## Three pieces of advice, measured
#
# ### "Wrap the model: `checkpoint(model, x)`"
#
# One line, all blocks at once. **Predict** three peaks of forward and backward, with no
# checkpoint the unit: one checkpoint a block, and one around the whole model.

# %% id="whole-model"
gpt = GPT(GPTConfig(num_layers=8, dropout=0.1))
loss = partial(gpt.loss, tokens)
reports = {
    "none": measured(gpt, loss),
    "one a block": measured(gpt, loss, checkpoint),
    "one around the model": measured(gpt, loss, checkpoint, modules=[gpt]),
}
plots.tape(reports)

# %% [markdown] id="whole-model-read"
# How to read it: a row is a tensor of the forward, input below, loss on top; a bar is its life.
# Without checkpointing each tensor waits for its turn in backward. With one checkpoint a block only
# the thin lines wait, and small hills are computed again, one at a time. With one around the model
# nothing waits, and then the *whole* hill is built up again at once.

# %% id="whole-model-numbers"
for name, report in reports.items():
    phases = ", ".join(f"{phase} {size}" for phase, size in report.phases.items())
    print(f"{name:<21} peak by phase: {phases}")

# %% [markdown] id="whole-model-verdict"
# The forward line looks like a triumph, and a script that reads memory after the forward will
# report one. The peak is where it was, a little above even. And the price is a full second forward:

# %% id="whole-model-flops"
with FlopCounterMode(display=False) as plain:
    gradients(gpt, loss)
with through(checkpoint, [gpt]), FlopCounterMode(display=False) as wrapped:
    gradients(gpt, loss)
round(wrapped.get_total_flops() / plain.get_total_flops(), 3)

# %% [markdown] id="seed-text"
# A third more work for nothing. What is recomputed as one has to fit as one; cut the model up.
#
# ### "Dropout inside a checkpoint is wrong: set a seed by hand"
#
# In this recipe every block calls `torch.manual_seed` itself, so that both runs draw the same mask.
# You have seen that it is not needed. Is it harmful? Count the different dropout masks of four
# blocks over four steps, and a random number drawn after each step, as a data loader would.


# %% id="seed-blocks"
class SelfSeeded(Block):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x)


def randomness(make_block):
    model = GPT(GPTConfig(num_layers=4, dropout=0.1))
    model.blocks = nn.ModuleList(make_block(model.config) for _ in range(4))
    masks, draws = set(), set()

    def look(module, args, out):
        masks.add((out == 0).numpy().tobytes())

    for block in model.blocks:
        block.mlp.dropout.register_forward_hook(look)
    with through(checkpoint, model.blocks):
        for _ in range(4):
            model.loss(tokens).backward()
            draws.add(torch.rand(()).item())
    return {"masks": len(masks), "draws": len(draws)}


# %% [markdown] id="predict-seed"
# **Predict** two numbers for each: state restored by `checkpoint`, and seeded by hand.

# %% id="seed-measure"
{"restored": randomness(Block), "seeded by hand": randomness(SelfSeeded)}

# %% [markdown] id="seed-read"
# Sixteen masks, or one: the same units of every block are dropped at every step of the training,
# which is no dropout but a smaller model. And the generator is wound back for everyone: whatever is
# drawn after the step is the same after each step, the next batch included. All the gradients
# are "right".
#
# ### "Keeping a list of the outputs defeats checkpointing"
#
# **Predict.** A forward that appends each block's output to a list. Is the memory of checkpointing
# lost? And if each block appends a tensor from its *inside*?

# %% id="kept"
kept = []


def keep(module, args, out):
    kept.append(out)


def kept_peak(part, implementation):
    model = GPT(GPTConfig(num_layers=8, dropout=0.1))
    for block in model.blocks:
        block.get_submodule(part).register_forward_hook(keep)

    def forward():
        kept.clear()
        return model.loss(tokens)

    return measured(model, forward, implementation).peak_bytes


# %% id="kept-measure"
base = reports["none"].peak_bytes
rows = {"nothing": reports["one a block"].peak_bytes / base}
rows["outputs of the blocks"] = kept_peak("", checkpoint) / base
rows["from inside, fifty lines"] = kept_peak("mlp.up", checkpoint) / base
rows["from inside, PyTorch's"] = kept_peak("mlp.up", implementations["PyTorch, the new one"]) / base
kept.clear()
{name: f"{ratio:.0%}" for name, ratio in rows.items()}

# %% [markdown] id="kept-read"
# The peak, with no checkpointing as 100 %. A list of block *outputs* costs next to nothing, since
# each is the next block's input and is kept anyway; it merely lives a little longer. The advice is
# wrong about the example that it comes with.
#
# A tensor from the *inside* is another matter. The hook runs in the second run too, and then the
# list holds a tensor with a whole recomputed block hanging from it. Under PyTorch's implementation
# no backward ever goes through that second graph to free it, and the peak ends *above* that of no
# checkpointing. Hooks that log activations do this. Collect numbers, or `out.detach()`, and only
# in the first run.

# %% [markdown] id="limits"
# ## What you have, and what is missing
#
# - Ten lines discard and recompute. The other forty restore what surrounds a forward (random
#   state, autocast) and find what goes in and out of it (structures, masks, tickets, outputs).
# - What is recomputed as one comes back as one, so where to cut is the question (chapter 06).
# - A wrong checkpoint is silent. Half of the failures above gave wrong or missing gradients and
#   no error. Compare gradients, bit for bit.
#
# One nuisance went through the whole chapter: a Function knows only what it is *told*. It needs a
# ticket, a flattener, a rule for each kind of argument, and a second backward inside the first.
# Chapter 05 asks autograd itself which tensors it wanted to keep. Half of this chapter's code then
# has nothing left to do.
