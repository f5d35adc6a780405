# %% [markdown] id="title"
# # Other frameworks
#
# Every framework that differentiates keeps tensors for backward, and every large one can drop them
# and make them again. The names differ: checkpoint, remat, recompute. So do the defaults, and so
# does the question who decides: your wrapper, a policy, or a compiler.
#
# In this chapter one model with one set of weights runs in PyTorch, JAX, Flax, Haiku, TensorFlow
# and Keras. You compare gradients, count what waits for backward, and see one framework in which
# the wrapper costs time and frees nothing.
#
# **Budget:** 60 minutes, 2 GiB of memory, no GPU needed.
#
# The frameworks are an extra: `pip install -e ".[frameworks]"` in the course's folder.

# %% id="imports"
import gc
import io
import math
import os
import weakref
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import torch
from IPython import get_ipython
from torch.utils.checkpoint import checkpoint

from tutorial_lib import data, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig

torch.set_num_threads(1)
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # a quiet TensorFlow
os.environ["KERAS_BACKEND"] = "tensorflow"

# %% [markdown] id="needs-text"
# You need not have all of them. A cell that begins with `# needs jax` is left out where JAX is not
# installed, and the first one of a framework says so. The next cell tells Jupyter to do that.


# %% id="needs"
said = set()


def left_out(lines):
    first, *_ = lines or [""]
    names = first.removeprefix("# needs ").strip().split(", ") if "# needs " in first[:8] else []
    missing = {name for name in names if find_spec(name) is None}
    if not missing:
        return lines
    news, _ = missing - said, said.update(missing)
    return [f"print('{name} is not installed: its cells are left out.')\n" for name in sorted(news)]


get_ipython().input_transformers_cleanup.append(left_out)

# %% [markdown] id="model-text"
# ## One model, and what PyTorch keeps
#
# ```text
#            x            boundary         boundary
# tokens ─ embed ─► block 1 ─► block 2 ─► block 3 ─► distance to the next token's vector
#                                │
#                                └ norm, attention, +, norm, MLP, +
# ```
#
# Three blocks of the course's GPT, with attention written out, on the source of Python's own
# library. The other frameworks get its weights as NumPy arrays, matrices as (inputs, outputs). The
# unit of bytes is one block's input.

# %% id="model"
BATCH, SEQ, WIDTH, HEADS = 4, 128, 128, 4
UNIT = BATCH * SEQ * WIDTH * 4  # bytes of a block's input, float32
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=3, d_model=WIDTH, num_heads=HEADS, seq_len=SEQ, attention="eager"))
tokens = next(data.text_batches(BATCH, SEQ + 1))
vectors = gpt.token_embedding(tokens).detach()
positions = gpt.position_embedding.weight.detach()
x, y = (vectors[:, :-1] + positions).numpy(), vectors[:, 1:].numpy()

# %% id="arrays"
PARTS = {"norm_1": "norm_1", "qkv": "attention.qkv", "out": "attention.out",
         "norm_2": "norm_2", "up": "mlp.up", "down": "mlp.down"}  # fmt: skip


def arrays(of):
    """One dictionary a block: a part's name, and its weight and bias."""
    return [
        {
            part: [of(p).numpy().T for p in block.get_submodule(path).parameters()]
            for part, path in PARTS.items()
        }
        for block in gpt.blocks
    ]


weights = arrays(torch.Tensor.detach)


# %% id="torch-loss"
def torch_loss(run_block):
    hidden = torch.from_numpy(x)
    for block in gpt.blocks:
        hidden = run_block(block, hidden)
    return (hidden - torch.from_numpy(y)).square().mean()


CHOICES = {"none": Block.forward, "per block": partial(checkpoint, use_reentrant=False)}
kept = {
    name: memory.saved(partial(torch_loss, run_block), params_of=gpt).num_bytes
    for name, run_block in CHOICES.items()
}
torch_loss(Block.forward).backward()
wanted = arrays(lambda parameter: parameter.grad)
{name: f"{num_bytes / UNIT:.1f} units" for name, num_bytes in kept.items()}

# %% [markdown] id="compare-text"
# Each framework below reports twice: the bytes it keeps without and with its wrapper, and its
# gradients with the wrapper. Those are compared with PyTorch's without: for each weight the largest
# difference, as a share of that weight's largest gradient.


# %% id="compare"
def relative_error(gradients):
    pairs = [
        (np.asarray(ours), theirs)
        for seen, right in zip(gradients, wanted, strict=True)
        for part in PARTS
        for ours, theirs in zip(seen[part], right[part], strict=True)
    ]
    return max(abs(ours - theirs).max() / abs(theirs).max() for ours, theirs in pairs)


rows = {}


def report(framework, kept, gradients):
    rows[framework] = list(kept.values())
    equal = relative_error(gradients) < 1e-5
    amounts = ", ".join(f"{name} {n / UNIT:.1f}" for name, n in kept.items())
    print(f"{framework:<12}kept, units: {amounts};   gradients equal to 1e-5: {equal}")


gpt.zero_grad()
torch_loss(CHOICES["per block"]).backward()
report("PyTorch", kept, arrays(lambda parameter: parameter.grad))

# %% [markdown] id="jax-text"
# ## JAX: a function in, a function out
#
# ```text
# jax.grad(loss)                    loss's gradient, as a new function
# jax.checkpoint(block)             the same block; inside a gradient it keeps its arguments only
# jax.grad(loss with jax.checkpoint(block))
# ```
#
# JAX has no modules and no `.grad`. A model is a function of weights and data. `jax.checkpoint`
# takes a function and returns one; `jax.remat` is another name for it, and both work as
# decorators.

# %% id="jax-block"
# needs jax
import jax
import jax.numpy as jnp


def jax_norm(x, scale, shift):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) + shift


def attend(qkv):
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)  # (batch, heads, seq, seq)
    scores = jnp.where(jnp.tri(SEQ, dtype=bool), scores, -jnp.inf)
    mixed = jax.nn.softmax(scores) @ v
    return mixed.swapaxes(1, 2).reshape(*qkv.shape[:2], WIDTH)


# %% id="jax-model"
# needs jax
def jax_block(w, x):
    def linear(part, x):
        return x @ w[part][0] + w[part][1]

    x = x + linear("out", attend(linear("qkv", jax_norm(x, *w["norm_1"]))))
    return x + linear("down", jax.nn.gelu(linear("up", jax_norm(x, *w["norm_2"]))))


jax_weights, jax_x, jax_y = jax.tree.map(jnp.array, (weights, x, y))


def jax_loss(run_block, w):
    hidden = jax_x
    for block_weights in w:
        hidden = run_block(block_weights, hidden)
    return jnp.square(hidden - jax_y).mean()


# %% [markdown] id="jax-kept-text"
# What waits for backward? `jax.vjp` runs forward and returns the backward pass as an object that
# JAX can open like a list. Its arrays are what JAX calls *residuals*. We count each buffer once and
# leave out the weights, as `memory.saved` does.
#
# **Predict.** PyTorch keeps 61 units without a wrapper. How many does JAX keep, from the same
# formulas?

# %% id="guess-jax"
guess = None


# %% id="jax-kept"
# needs jax
def jax_kept(loss, w):
    _, backward = jax.vjp(loss, w)
    ours = {array.unsafe_buffer_pointer() for array in jax.tree.leaves(w)}
    residuals = [leaf for leaf in jax.tree.leaves(backward) if isinstance(leaf, jax.Array)]
    buffers = {array.unsafe_buffer_pointer(): array.nbytes for array in residuals}
    return sum(num_bytes for place, num_bytes in buffers.items() if place not in ours)


JAX_CHOICES = {"none": jax_block, "per block": jax.checkpoint(jax_block)}
losses = {name: partial(jax_loss, run_block) for name, run_block in JAX_CHOICES.items()}
kept = {name: jax_kept(loss, jax_weights) for name, loss in losses.items()}
report("JAX", kept, jax.grad(losses["per block"])(jax_weights))
print(beside(guess, kept["none"] / UNIT))

# %% [markdown] id="jax-residuals-text"
# More than twice as many. PyTorch's softmax, norm and GELU are single operations with a backward
# written by hand. Ours are made of small ones, and each keeps its own inputs. JAX has an instrument
# that names them, without running anything:

# %% id="jax-residuals"
# needs jax
from collections import Counter

from jax.ad_checkpoint import checkpoint_name, print_saved_residuals


def residuals(function):
    with redirect_stdout(io.StringIO()) as text:
        print_saved_residuals(function, jax_weights[0], jax_x)
    return [line.split(" from ")[0] for line in text.getvalue().splitlines()]


def by_operation(lines):
    return Counter(line for line in lines if line.count("4,128") and "output" in line)


for line, times in by_operation(residuals(jax_block)).most_common():
    print(f"{times} x {line}")
print("per block:", by_operation(residuals(jax.checkpoint(jax_block))) or "no output at all")

# %% [markdown] id="policies-text"
# ### Policies
#
# A *policy* is asked about each residual: keep it, or make it again? Chapter 07 wrote one as a pair
# of dispatch modes. In JAX it is an argument. The `dots` policies keep the results of matrix
# products, and make the rest again. Names work too: mark a tensor in the code, and name it in the
# policy.
#
# **Predict.** How many units wait with `dots_saveable`? (Six products a block, two of them in
# attention. One result is four units wide, one three, and the scores are four.)

# %% id="guess-dots"
guess = None

# %% id="policies"
# needs jax
policies = jax.checkpoint_policies


def marked(w, x):
    return checkpoint_name(jax_block(w, x), "boundary")


POLICIES = {
    "everything_saveable": (jax_block, policies.everything_saveable),
    "dots_saveable": (jax_block, policies.dots_saveable),
    "dots_with_no_batch_dims_saveable": (jax_block, policies.dots_with_no_batch_dims_saveable),
    "nothing_saveable": (jax_block, policies.nothing_saveable),
}
for name, (block, policy) in POLICIES.items():
    loss = partial(jax_loss, jax.checkpoint(block, policy=policy))
    units, error = jax_kept(loss, jax_weights) / UNIT, relative_error(jax.grad(loss)(jax_weights))
    words = beside(guess, units) if name == "dots_saveable" else ""
    print(f"{name:<34}{units:>7.1f} units   equal: {error < 1e-5}{words}")

# %% [markdown] id="policies-read"
# "No batch dims" is JAX's way to say "the linear layers, and not attention's two products", whose
# results are large for the FLOPs they cost: the same line that chapter 07 drew by price.
#
# The same mark can also move a tensor to the host. Here the whole loss is one checkpoint, and the
# blocks' results are the only ones kept: on the device, or in the host's memory.

# %% id="offload"
# needs jax
offload = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["boundary"],
    offload_src="device", offload_dst="pinned_host")  # fmt: skip

for policy in (policies.save_only_these_names("boundary"), offload):
    loss = jax.checkpoint(partial(jax_loss, marked), policy=policy)
    _, backward = jax.vjp(loss, jax_weights)
    large = [leaf for leaf in jax.tree.leaves(backward) if getattr(leaf, "nbytes", 0) == UNIT]
    equal = relative_error(jax.grad(loss)(jax_weights)) < 1e-5
    print(sorted(leaf.sharding.memory_kind for leaf in large), "equal:", equal)

# %% [markdown] id="offload-read"
# JAX calls the second place `pinned_host`. On a CPU both are one memory, so this shows that the
# policy is obeyed, and not what it saves; time and bytes on a GPU were not measured here.
#
# ## Who has the last word? The compiler
#
# ```text
# your function ─► jaxpr: what is kept, what is made again ─► XLA: order, fusion, buffers ─► run
#                  jax.checkpoint decides here                the bytes are decided here
# ```
#
# Residuals are a plan. In practice a step runs under `jax.jit`, and then XLA, JAX's compiler, lays
# out the memory. It reports how much: `memory_analysis().temp_size_in_bytes`, everything but
# arguments and results. That is a *predicted* size, and it depends on XLA's version and on the
# processor; your numbers may differ.
#
# **Predict.** Three blocks, compiled, on a CPU. How many times the bytes of `none` does
# `per block` need?

# %% id="guess-compiled"
guess = None


# %% id="compiled"
# needs jax
# NBVAL_IGNORE_OUTPUT
def compiled(loss, w):
    return jax.jit(jax.grad(loss)).lower(w).compile()


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


programs = {name: compiled(loss, jax_weights) for name, loss in losses.items()}
for name, program in programs.items():
    flops = program.cost_analysis()["flops"]
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units   {flops / 1e9:.2f} GFLOP")
ratio = temporary(programs["per block"]) / temporary(programs["none"])
print(f"ratio {ratio:.2f}{beside(guess, ratio)}")

# %% [markdown] id="compiled-read"
# It recomputes, and frees nothing. JAX asks the compiler to keep the order: around each recomputed
# block it puts an *optimization barrier*, so that the second computation is not moved up and merged
# with the first (`prevent_cse=True`). What becomes of the barriers?

# %% id="barriers"
# needs jax
lowered = jax.jit(jax.grad(losses["per block"])).lower(jax_weights)
handed_over = lowered.as_text().count("optimization_barrier")
left = lowered.compile().as_text().count("opt-barrier")
print(f"barriers handed to the compiler: {handed_over}, left in the program for the CPU: {left}")

# %% [markdown] id="scan-text"
# The CPU compiler drops them. Then nothing makes the recomputation wait for backward. A loop does:
# `jax.lax.scan` runs one block many times over stacked weights, and XLA must reserve the residuals
# of all its rounds. This is also how large JAX models are written, since one block compiles faster
# than a hundred.


# %% id="scan"
# needs jax
# NBVAL_IGNORE_OUTPUT
def scan_loss(run_block, stacked):
    out, _ = jax.lax.scan(lambda x, w: (run_block(w, x), None), jax_x, stacked)
    return jnp.square(out - jax_y).mean()


stack = jax.tree.map(lambda *arrays: jnp.stack(arrays), *jax_weights)
scanned = partial(jax.checkpoint, prevent_cse=False)  # the documentation's advice inside a scan
loops = {"none": jax_block, "per block": scanned(jax_block),
         "dots": scanned(jax_block, policy=policies.dots_saveable)}  # fmt: skip
for name, run_block in loops.items():
    program = compiled(partial(scan_loss, run_block), stack)
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units")
gradient = jax.grad(partial(scan_loss, loops["per block"]))(stack)
per_block = [{part: [array[i] for array in gradient[part]] for part in PARTS} for i in range(3)]
print("gradients equal to 1e-5:", relative_error(per_block) < 1e-5)

# %% [markdown] id="flax-text"
# ## Flax and Haiku: modules around JAX
#
# ```text
# Flax    nn.remat(Block)        a class in, a class out
# Haiku   hk.remat(run_block)    a function that makes its parameters as it runs
#            └──── both end in jax.checkpoint, so policies are the same
# ```
#
# Both libraries make parameters while the function runs. So a plain `jax.checkpoint` cannot wrap a
# part of the model: it must also carry the parameters through. That is what the libraries' own
# versions add. Watch the defaults: epsilon of a norm is 1e-5 in PyTorch and Haiku, 1e-6 in Flax and
# 1e-3 in Keras.

# %% id="flax-block"
# needs jax, flax
import flax.linen as nn


class FlaxBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.Dense(3 * WIDTH, name="qkv")(nn.LayerNorm(1e-5, name="norm_1")(x))
        x = x + nn.Dense(WIDTH, name="out")(attend(h))
        h = nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(1e-5, name="norm_2")(x))
        return x + nn.Dense(WIDTH, name="down")(nn.gelu(h))


class FlaxModel(nn.Module):
    block: type

    @nn.compact
    def __call__(self, x):
        for i in range(3):
            x = self.block(name=str(i))(x)
        return x


# %% id="flax"
# needs jax, flax
def flax_names(part):
    return ("scale" if part.startswith("norm") else "kernel"), "bias"


def flax_loss(block, parameters):
    return jnp.square(FlaxModel(block).apply({"params": parameters}, jax_x) - jax_y).mean()


parameters = {
    str(i): {part: dict(zip(flax_names(part), pair, strict=True)) for part, pair in block.items()}
    for i, block in enumerate(jax_weights)
}
classes = {"none": FlaxBlock, "per block": nn.remat(FlaxBlock)}
losses = {name: partial(flax_loss, block) for name, block in classes.items()}
kept = {name: jax_kept(loss, parameters) for name, loss in losses.items()}
gradient = jax.grad(losses["per block"])(parameters)
back = [{part: [gradient[str(i)][part][name] for name in flax_names(part)] for part in PARTS}
        for i in range(3)]  # fmt: skip
report("Flax", kept, back)

# %% id="haiku-block"
# needs jax, haiku
import haiku as hk


def haiku_block(i, x):
    def linear(part, width, x):
        return hk.Linear(width, name=f"{i}_{part}")(x)

    def norm(part, x):
        return hk.LayerNorm(-1, create_scale=True, create_offset=True, name=f"{i}_{part}")(x)

    x = x + linear("out", WIDTH, attend(linear("qkv", 3 * WIDTH, norm("norm_1", x))))
    h = linear("up", 4 * WIDTH, norm("norm_2", x))
    return x + linear("down", WIDTH, jax.nn.gelu(h))


# %% id="haiku"
# needs jax, haiku
def haiku_names(part):
    return ("scale", "offset") if part.startswith("norm") else ("w", "b")


def haiku_loss(wrapper):
    def loss(x):
        for i in range(3):
            x = wrapper(partial(haiku_block, f"block_{i}"))(x)
        return jnp.square(x - jax_y).mean()

    transformed = hk.without_apply_rng(hk.transform(loss))
    return lambda parameters: transformed.apply(parameters, jax_x)


parameters = {
    f"block_{i}_{part}": dict(zip(haiku_names(part), pair, strict=True))
    for i, block in enumerate(jax_weights)
    for part, pair in block.items()
}
losses = {"none": haiku_loss(lambda block: block), "per block": haiku_loss(hk.remat)}
kept = {name: jax_kept(loss, parameters) for name, loss in losses.items()}
gradient = jax.grad(losses["per block"])(parameters)
back = [{part: [gradient[f"block_{i}_{part}"][name] for name in haiku_names(part)]
         for part in PARTS} for i in range(3)]  # fmt: skip
report("Haiku", kept, back)

# %% [markdown] id="flax-read"
# Their norms are compiled functions of their own, so they keep a little less than ours. Wrapped,
# all three keep the same: only what goes into a block is left, whatever stands inside.
#
# ## TensorFlow: the tape
#
# ```text
# with tf.GradientTape() as tape:      the tape keeps inputs and results of each operation
#     loss = ...                       tf.recompute_grad(f): the tape sees one operation, f
# tape.gradient(loss, variables)       f runs again, under a tape of its own
# ```
#
# TensorFlow's allocator reports a peak on GPUs only (`tf.config.experimental.get_memory_info`). On
# a CPU we count ourselves, as the course's meter does for PyTorch: a callback sees each operation's
# results, and a weak reference tells when one dies. The callback is internal to TensorFlow (its
# debugger uses it), so a later version may not have it.

# %% id="tf-meter"
# needs tensorflow
import tensorflow as tf
from tensorflow.python.framework import op_callbacks


def place(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data  # of the buffer: views share one


class TensorFlowMeter:
    """Bytes of the results that are alive, each buffer once, the variables' own left out."""

    def __init__(self, variables):
        self.alive, self.peak = {}, 0
        self.ours = {place(variable.value()) for variable in variables}

    def __call__(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        for tensor in outputs:
            if tensor.dtype.size and tensor.dtype != tf.resource and place(tensor) not in self.ours:
                size = tensor.dtype.size * math.prod(tensor.shape)
                self.alive[id(tensor)] = place(tensor), size
                weakref.finalize(tensor, self.alive.pop, id(tensor), None)
        self.peak = max(self.peak, self.num_bytes())

    def num_bytes(self):
        return sum(dict(self.alive.values()).values())


# %% id="tf-measured"
# needs tensorflow
def tf_step(loss, variables):
    """Bytes that wait when forward ends, the step's peak, and the gradients."""
    meter = TensorFlowMeter(variables)
    op_callbacks.add_op_callback(meter)
    try:
        with tf.GradientTape() as tape:
            value = loss()
        gc.collect()
        waiting = meter.num_bytes()
        gradients = tape.gradient(value, variables)
    finally:
        op_callbacks.remove_op_callback(meter)
    return waiting, meter.peak, gradients


# %% id="tf-block"
# needs tensorflow
def tf_attend(qkv):
    qkv = tf.reshape(qkv, (-1, SEQ, 3, HEADS, WIDTH // HEADS))
    q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(WIDTH // HEADS)
    scores = tf.where(np.tri(SEQ, dtype=bool), scores, -np.inf)
    mixed = tf.nn.softmax(scores) @ v
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (-1, SEQ, WIDTH))


def tf_norm(x, scale, shift):
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)


def tf_block(w, x):
    def linear(part, x):
        return x @ w[part][0] + w[part][1]

    x = x + linear("out", tf_attend(linear("qkv", tf_norm(x, *w["norm_1"]))))
    h = tf.nn.gelu(linear("up", tf_norm(x, *w["norm_2"])), approximate=True)
    return x + linear("down", h)


# %% id="tf"
# needs tensorflow
tf_weights = [{part: [tf.Variable(array) for array in pair] for part, pair in block.items()}
              for block in weights]  # fmt: skip
variables = [one for block in tf_weights for pair in block.values() for one in pair]


def tf_loss(wrapper):
    hidden = tf.constant(x)
    for w in tf_weights:
        hidden = wrapper(partial(tf_block, w))(hidden)
    return tf.reduce_mean(tf.square(hidden - y))


def in_parts(flat):
    flat = iter(flat)
    return [{part: [next(flat), next(flat)] for part in PARTS} for _ in range(3)]


wrappers = {"none": lambda block: block, "per block": tf.recompute_grad}
steps = {name: tf_step(partial(tf_loss, wrapper), variables) for name, wrapper in wrappers.items()}
kept = {name: step[0] for name, step in steps.items()}
report("TensorFlow", kept, in_parts(steps["per block"][2]))
{name: f"peak {step[1] / UNIT:.1f} units" for name, step in steps.items()}

# %% [markdown] id="tf-read"
# Without a wrapper this tape is the most generous of all: for most operations it keeps inputs and
# results, whether the gradient needs them or not.
#
# A second instrument would be `tf.function`: there a whole graph is built first, and its optimizer
# may drop and fuse. What such a graph holds in memory on a CPU, no public instrument of TensorFlow
# tells. We did not measure it.
#
# ## Keras: a scope
#
# ```text
# with keras.RematScope(mode="full"):       keras.remat(function)
#     layer = Block()                       one function, one segment
# layer(x)                                  ◄─ backend: tf.recompute_grad, jax.checkpoint
#                                                       or torch.utils.checkpoint
# ```
#
# Keras runs on three backends and hands the work to each one's own function; here it is
# TensorFlow's. Its scope has modes: `full` (every layer), `activations`, `larger_than` a size, and
# `list_of_layers` by name.

# %% id="keras-block"
# needs tensorflow, keras
import keras
from keras import layers

WIDTHS = {"qkv": 3 * WIDTH, "out": WIDTH, "up": 4 * WIDTH, "down": WIDTH}


def keras_part(part):
    return layers.Dense(WIDTHS[part]) if part in WIDTHS else layers.LayerNormalization(epsilon=1e-5)


class KerasBlock(layers.Layer):
    def __init__(self, pairs, **kwargs):
        super().__init__(**kwargs)
        self.part = {part: keras_part(part) for part in PARTS}
        for part, (matrix, _) in pairs.items():
            self.part[part].build((BATCH, SEQ, matrix.shape[0]))
            self.part[part].set_weights(pairs[part])

    def call(self, x):
        x = x + self.part["out"](tf_attend(self.part["qkv"](self.part["norm_1"](x))))
        h = self.part["up"](self.part["norm_2"](x))
        return x + self.part["down"](keras.activations.gelu(h, approximate=True))


# %% [markdown] id="predict-keras"
# The documentation of `RematScope` says "This should be used when initializing the layer" and, in
# the next sentence, "Rematerialization applies at execution time, not at creation time". So we try
# both: the scope around making the layers, and around calling them.
#
# **Predict.** With `list_of_layers` naming the three blocks, one of the two frees nothing. How many
# units wait if the scope stands around the *call* only? (Without a scope it is about 200.)

# %% id="guess-keras"
guess = None


# %% id="keras"
# needs tensorflow, keras
NAMES = ["block_0", "block_1", "block_2"]


def keras_step(at_creation=None, at_call=None):
    with keras.RematScope(**at_creation or {"mode": None}):
        blocks = [KerasBlock(pairs, name=n) for pairs, n in zip(weights, NAMES, strict=True)]

    def loss():
        hidden = tf.constant(x)
        with keras.RematScope(**at_call or {"mode": None}):
            for block in blocks:
                hidden = block(hidden)
        return tf.reduce_mean(tf.square(hidden - y))

    variables = [v for b in blocks for part in PARTS for v in b.part[part].trainable_variables]
    return tf_step(loss, [variable.value for variable in variables])


named = {"mode": "list_of_layers", "layer_names": NAMES}
full = {"mode": "full"}
tries = {"no scope": {}, "named, around the call": {"at_call": named},
         "named, around creation": {"at_creation": named},
         "full, around creation": {"at_creation": full}}  # fmt: skip
steps = {name: keras_step(**scopes) for name, scopes in tries.items()}
for name, (waiting, peak, _) in steps.items():
    words = beside(guess, waiting / UNIT) if name.endswith("call") else ""
    print(f"{name:<24}waiting {waiting / UNIT:>6.1f}   peak {peak / UNIT:>6.1f}{words}")

# %% id="keras-report"
# needs tensorflow, keras
best = steps["named, around creation"]
report("Keras", {"none": steps["no scope"][0], "per block": best[0]}, in_parts(best[2]))

# %% [markdown] id="keras-read"
# The scope counts where the layer is *made*; around a call it does nothing and says nothing. `full`
# wraps every layer, and the layers inside the block again: the block's recomputation is itself
# checkpointed, so its peak is lower, and the inner layers run a third time.
#
# ## Side by side
#
# The same model, the same weights, the same gradients. The bytes that wait for backward, by each
# framework's own instrument:

# %% id="side-by-side"
INSTRUMENTS = {
    "PyTorch": ("checkpoint(block, x)", "memory.saved"),
    "JAX": ("jax.checkpoint(block)", "jax.vjp's arrays"),
    "Flax": ("nn.remat(Block)", "jax.vjp's arrays"),
    "Haiku": ("hk.remat(block)", "jax.vjp's arrays"),
    "TensorFlow": ("tf.recompute_grad(block)", "callback and weak references"),
    "Keras": ("RematScope, keras.remat", "callback and weak references"),
}
print(f"{'':<12}{'wrapper':<26}{'instrument':<30}{'none':>6}{'per block':>11}  units")
for framework, (none, per_block) in rows.items():
    words = "{:<26}{:<30}".format(*INSTRUMENTS[framework])
    print(f"{framework:<12}{words}{none / UNIT:>6.1f}{per_block / UNIT:>11.1f}")

# %% id="side-by-side-figure"
plots.growth(
    {name: {0: none, 1: per_block} for name, (none, per_block) in rows.items()},
    xlabel="blocks wrapped: no (0), yes (1)",
    title="Bytes that wait for backward: three blocks, one set of weights",
)

# %% [markdown] id="side-read"
# Without a wrapper the frameworks differ by a factor of four, since they cut the same formulas into
# different operations. With one they agree: what is left are the boundaries. So a saving quoted
# "with checkpointing" says as much about the baseline as about checkpointing.
#
# The numbers are eager: operation by operation. Compiled, a framework fuses the small operations,
# and the first column shrinks. And each instrument has its blind spot: none here sees a kernel's
# workspace, and no step ran on a GPU.
#
# ## Accumulation elsewhere
#
# ```text
# micro-batch 1    micro-batch 2    micro-batch 3        micro-batch 4
# add gradient ──► add gradient ──► add gradient ──► add, divide by 4, update, clear
#                  optimizer called four times, weights change once
# ```
#
# PyTorch adds to `.grad`, and your loop decides when to step (chapter 08). In JAX and Keras the
# *optimizer* counts: `optax.MultiSteps` and `gradient_accumulation_steps` take a gradient each time
# and pass a mean on every $k$-th time. A mean of means is the batch's mean only when all
# micro-batches have one size. We test both with equal parts, two and two of the four sequences, and
# unequal ones, three and one.

# %% id="parts-of-batch"
EQUAL, UNEQUAL = (2, 2), (3, 1)


def micro_batches(sizes):
    """Slices of the batch, and the weight that makes each mean loss count by its rows."""
    starts = np.cumsum([0, *sizes])
    slices = [slice(a, b) for a, b in pairwise(starts)]
    return [(part, len(sizes) * size / BATCH) for part, size in zip(slices, sizes, strict=True)]


# %% [markdown] id="optax-text"
# **Predict.** By how many per cent of its largest number is the worst weight's gradient wrong, when
# micro-batches of three and one sequences count alike?

# %% id="guess-unequal"
guess = None


# %% id="optax"
# needs jax, optax
import optax


def rows_loss(w, part, scale):
    hidden = jax_x[part]
    for block_weights in w:
        hidden = jax_block(block_weights, hidden)
    return scale * jnp.square(hidden - jax_y[part]).mean()


def with_optax(sizes, weighted=False):
    optimizer = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=len(sizes))
    state = optimizer.init(jax_weights)
    for part, weight in micro_batches(sizes):
        gradient = jax.grad(rows_loss)(jax_weights, part, weight if weighted else 1.0)
        updates, state = optimizer.update(gradient, state)  # zeros until the window is full
    return jax.tree.map(jnp.negative, updates), state


# %% id="optax-table"
# needs jax, optax
for sizes, weighted in ((EQUAL, False), (UNEQUAL, False), (UNEQUAL, True)):
    gradient, state = with_optax(sizes, weighted)
    error = relative_error(gradient)
    words = beside(guess, 100 * error) if (sizes, weighted) == (UNEQUAL, False) else ""
    shown = "equal to the big batch" if error < 1e-5 else f"wrong by {error:.0%}"
    print(f"{sizes}, weighted by rows: {weighted!s:<5}  {shown}{words}")
extra = sum(array.nbytes for array in jax.tree.leaves(state.acc_grads))
print("the sum it keeps:", extra / sum(a.nbytes for a in jax.tree.leaves(jax_weights)), "x weights")


# %% id="keras-accumulation"
# needs tensorflow, keras
def with_keras(sizes, weighted=False, lr=1000.0):  # a step that is large beside its rounding
    blocks = [KerasBlock(pairs) for pairs in weights]
    flat = [v for b in blocks for part in PARTS for v in b.part[part].trainable_variables]
    before = [v.numpy() for v in flat]
    optimizer = keras.optimizers.SGD(lr, gradient_accumulation_steps=len(sizes))
    for part, weight in micro_batches(sizes):
        with tf.GradientTape() as tape:
            hidden = x[part]
            for block in blocks:
                hidden = block(hidden)
            loss = keras.losses.MeanSquaredError()(y[part], hidden) * (weight if weighted else 1)
        optimizer.apply(tape.gradient(loss, [v.value for v in flat]), flat)
    return in_parts((old - v.numpy()) / lr for old, v in zip(before, flat, strict=True))


for sizes, weighted in ((EQUAL, False), (UNEQUAL, False), (UNEQUAL, True)):
    error = relative_error(with_keras(sizes, weighted))
    shown = "equal to the big batch" if error < 1e-4 else f"wrong by {error:.0%}"
    print(f"{sizes}, weighted by rows: {weighted!s:<5}  {shown}")

# %% [markdown] id="window-text"
# The rule of chapter 08 holds in all of them: divide by what the whole window counts, not by the
# number of micro-batches. (`MultiSteps` also costs one more copy of the gradients: the ratio above
# is that copy against the weights. PyTorch's `.grad` is that copy.)
#
# One more thing happens in silence. Take six micro-batches an epoch, windows of four, and a
# gradient of 1 each time:


# %% id="windows"
# needs tensorflow, keras
def window_trace(optimizer, epochs=2, micro_batches=6):
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    for epoch in range(1, epochs + 1):
        for _ in range(micro_batches):
            optimizer.apply([tf.ones(1)], [weight])
        sums = [v for v in optimizer.variables if "accumulator" in v.name]
        done, waiting = int(optimizer.iterations), int(sums[0][0])
        print(f"after epoch {epoch}: {done} updates, and a sum of {waiting} gradients waits")


window_trace(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))

# %% [markdown] id="windows-read"
# The second update mixes gradients of both epochs, and a training that ends after epoch 1 loses two
# micro-batches. `iterations` counts updates, so a learning-rate schedule counts in updates too:
# shorten it by the window. `MultiSteps` behaves the same way.
#
# ## Where it comes from
#
# The idea is older than the frameworks. Griewank (1992) and Griewank and Walther's Revolve (2000)
# found the best schedules for a chain, for programs that differentiate other programs. Chen et al.
# (2016) brought segments to deep networks: the $\sqrt n$ of chapter 06. Then the choice became the
# program's: Rotor (Beaumont et al., 2019) by dynamic programming on uneven chains, Checkmate (Jain
# et al., 2019) by integer programming on any graph, dynamic rematerialisation (Kirisame et al.,
# 2021) while it runs. Korthikanti et al. (2022) chose by operation. Compilers now do it between two
# operations: PyTorch's partitioner (chapter 07), and XLA after JAX's plan. The hardware decides
# which one wins: prices in seconds need your machine's speeds, as in chapter 07.
#
# ## Verdicts
#
# - **"`tf.recompute_grad` and Keras' layers"**: both run and free what they should. Keras' scope
#   counts where layers are made.
# - **"`jax.checkpoint` as decorator and function, with policies"**: runs, and the residuals are
#   what the policy says. Compiled for a CPU as a Python loop of blocks it recomputes and frees
#   nothing; inside `scan` it frees.
# - **"Flax and Haiku have their own"**: they do, and keep the same boundaries as JAX.
# - **"The compiler takes part"**: it has the last word. Read its report, not the wrapper's name.
#
# ## What you can now do
#
# - Find the wrapper in a framework that you do not know, and prove with equal gradients that it is
#   one.
# - Ask each framework what it keeps, and say what its instrument cannot see.
# - Check how an accumulating optimizer weighs its micro-batches.
