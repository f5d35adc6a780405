# %% [markdown] id="title"
# # Other frameworks
#
# Every framework that differentiates keeps tensors for backward, and every large one can drop them
# and compute them again. The names differ: checkpoint, remat, recompute. So do the defaults. And so
# does the part that decides: your wrapper, a policy, or a compiler.
#
# In this chapter one model with one set of weights runs in PyTorch, JAX, Flax, Haiku, TensorFlow
# and Keras. You compare gradients, count what waits for backward, and see one framework in which
# the wrapper costs time and frees nothing.
#
# **Budget:** 60 minutes, 3 GiB of memory, no GPU needed.
#
# The frameworks are an extra: `pip install -e ".[frameworks]"` in the course's folder. You need not
# install all of them: a cell that begins with `# needs jax` is left out where JAX is not installed.
# The companion [15b](15b_accumulation_elsewhere.ipynb) shows offload, and accumulation in optax and
# Keras.

# %% id="imports"
import gc
import io
import math
import os
import weakref
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec

import numpy as np
import pandas as pd
import torch
from IPython import get_ipython
from torch.utils.checkpoint import checkpoint

from tutorial_lib import claims, data, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig

torch.set_num_threads(1)
# a quiet TensorFlow
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
os.environ["KERAS_BACKEND"] = "tensorflow"

# %% id="needs"
frameworks = ("jax", "flax", "haiku", "tensorflow", "keras")
missing = [name for name in frameworks if find_spec(name) is None]
for name in missing:
    print(f"{name} is not installed: its cells are left out.")


def left_out(lines):  # Jupyter asks it for the lines to run
    needs = lines[0] if lines and lines[0].startswith("# needs ") else ""
    return ["pass\n"] if any(name in needs for name in missing) else lines


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
sizes = {"num_layers": 3, "d_model": WIDTH, "num_heads": HEADS, "seq_len": SEQ}
torch.manual_seed(0)
gpt = GPT(GPTConfig(**sizes, attention="eager"))
tokens = next(data.text_batches(BATCH, SEQ + 1))
vectors = gpt.token_embedding(tokens).detach()
positions = gpt.position_embedding.weight.detach()
x, y = (vectors[:, :-1] + positions).numpy(), vectors[:, 1:].numpy()

# %% id="arrays"
PARTS = {"norm_1": "norm_1", "qkv": "attention.qkv", "out": "attention.out",
         "norm_2": "norm_2", "up": "mlp.up", "down": "mlp.down"}  # fmt: skip


def arrays(of):
    """One dictionary a block: a part's name, and its weight and bias."""

    def pair(block, path):
        return [of(p).numpy().T for p in block.get_submodule(path).parameters()]

    return [{part: pair(block, path) for part, path in PARTS.items()}
            for block in gpt.blocks]  # fmt: skip


weights = arrays(torch.Tensor.detach)


# %% id="torch-loss"
def torch_loss(run_block):
    hidden = torch.from_numpy(x)
    for block in gpt.blocks:
        hidden = run_block(block, hidden)
    return (hidden - torch.from_numpy(y)).square().mean()


def torch_step(run_block):
    gpt.zero_grad()
    torch_loss(run_block).backward()


CHOICES = {"none": Block.forward, "per block": partial(checkpoint, use_reentrant=False)}

# %% id="torch-step"
kept, peaks = {}, {}  # the peak: all that the step adds to the weights
for name, run_block in CHOICES.items():
    loss = partial(torch_loss, run_block)
    kept[name] = memory.saved(loss, params_of=gpt).num_bytes
    measured = memory.measure(partial(torch_step, run_block), model=gpt)
    peaks[name] = measured.peak_bytes - measured.at_peak["parameters"]
torch_step(Block.forward)
wanted = arrays(lambda parameter: parameter.grad)
units = {"kept": kept, "peak": peaks}
pd.DataFrame(units).div(UNIT).round(1)  # in units

# %% [markdown] id="compare-text"
# Each framework below reports the bytes it keeps, without and with its wrapper, and its gradients
# with the wrapper. We compare those with PyTorch's without: for each weight the largest difference,
# as a share of that weight's largest gradient.


# %% id="compare"
def relative_error(gradients):
    errors = []
    for seen, right in zip(gradients, wanted, strict=True):
        for part in right:
            for ours, theirs in zip(seen[part], right[part], strict=True):
                off = abs(np.asarray(ours) - theirs).max() / abs(theirs).max()
                errors.append(off)
    return np.max(errors)  # unlike Python's max, it lets no NaN pass


rows = {}


def report(framework, kept, gradients, peaks=None):
    rows[framework] = kept, peaks or {}
    equal = relative_error(gradients) < 1e-5
    amounts = ", ".join(f"{name} {n / UNIT:.1f}" for name, n in kept.items())
    print(f"{framework:<12}kept, units: {amounts};   gradients equal to 1e-5: {equal}")


torch_step(CHOICES["per block"])
report("PyTorch", kept, arrays(lambda parameter: parameter.grad), peaks)

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
# takes a function and returns one, so it also works as a decorator. `jax.remat` is another name for
# it.

# %% id="jax-block"
# needs jax
import jax
import jax.numpy as jnp


def jax_norm(x, scale, shift):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) + shift


def attend(qkv):
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    # (batch, heads, seq, seq)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)
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
# **Predict.** PyTorch's number without a wrapper stands above. How many units does JAX keep, from
# the same formulas?

# %% id="guess-jax"
guess = None


# %% id="jax-kept"
# needs jax
def jax_kept(loss, w):
    _, backward = jax.vjp(loss, w)
    ours = {array.unsafe_buffer_pointer() for array in jax.tree.leaves(w)}
    leaves = [leaf for leaf in jax.tree.leaves(backward) if isinstance(leaf, jax.Array)]
    buffers = {array.unsafe_buffer_pointer(): array.nbytes for array in leaves}
    return sum(num_bytes for place, num_bytes in buffers.items() if place not in ours)


JAX_CHOICES = {"none": jax_block, "per block": jax.checkpoint(jax_block)}
losses = {name: partial(jax_loss, run_block) for name, run_block in JAX_CHOICES.items()}
kept = {name: jax_kept(loss, jax_weights) for name, loss in losses.items()}
report("JAX", kept, jax.grad(losses["per block"])(jax_weights))
ratio = kept["none"] / rows["PyTorch"][0]["none"]
print(f"{ratio:.1f} times PyTorch's{beside(guess, kept['none'] / UNIT)}")

# %% [markdown] id="jax-residuals-text"
# PyTorch's softmax, norm and GELU are single operations with a backward written by hand. Ours are
# made of small ones, and each keeps its own inputs. JAX can list these residuals without running
# anything. Here is one block's list, without its arguments:

# %% id="jax-residuals"
# needs jax
from collections import Counter

from jax.ad_checkpoint import print_saved_residuals


def kept_outputs(function):
    with redirect_stdout(io.StringIO()) as text:
        print_saved_residuals(function, jax_weights[0], jax_x)
    lines = [line.split(" from ")[0] for line in text.getvalue().splitlines()]
    return Counter(line for line in lines if line.count("4,128") and "output" in line)


for line, times in kept_outputs(jax_block).most_common():
    print(f"{times} x {line}")
print("per block:", kept_outputs(jax.checkpoint(jax_block)) or "no output at all")

# %% [markdown] id="policies-text"
# ### Policies
#
# A *policy* is asked about each residual: keep it, or make it again? Chapter 07 wrote one as a pair
# of dispatch modes. In JAX it is an argument. The `dots` policies keep the results of matrix
# products, and make the rest again. Names work too: mark a tensor in the code, and name it in the
# policy.
#
# **Predict.** How many units wait with `dots_saveable`? (In order, the results of a block's six
# products take 3, 4, 1, 1, 4 and 1 units.)

# %% id="guess-dots"
guess = None

# %% id="policies"
# needs jax
policies, policy_units = jax.checkpoint_policies, {}
POLICIES = ("everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable",
            "nothing_saveable")  # fmt: skip
for name in POLICIES:
    loss = partial(jax_loss, jax.checkpoint(jax_block, policy=getattr(policies, name)))
    error = relative_error(jax.grad(loss)(jax_weights))
    units = policy_units[name] = jax_kept(loss, jax_weights) / UNIT
    words = beside(guess, units) if name == "dots_saveable" else ""
    print(f"{name:<34}{units:>7.1f} units   equal: {error < 1e-5}{words}")

# %% [markdown] id="policies-read"
# "No batch dims" is JAX's way to say "the linear layers, and not attention's two products". Those
# two have results that are large for the FLOPs they cost. Chapter 07 drew the same line by price.
#
# ## Who decides in the end? The compiler
#
# ```text
# your function ─► jaxpr: what is kept, what is made again ─► XLA: order, fusion, buffers ─► run
#                  jax.checkpoint decides here                the bytes are decided here
# ```
#
# Residuals are a plan. In practice a step runs under `jax.jit`. Then XLA, JAX's compiler, lays out
# the memory. It reports how much: `memory_analysis().temp_size_in_bytes`, everything but arguments
# and results. That is a *predicted* size. It depends on XLA's version and on the processor, so your
# numbers may differ.
#
# JAX asks the compiler to keep the plan's order. Around each recomputed block it puts an
# *optimization barrier*, so that the second computation is not moved up and merged with the first
# (`prevent_cse=True`). We count the barriers before and after compilation.
#
# **Predict.** Three blocks, compiled, on a CPU. How many times the bytes of `none` does
# `per block` need?

# %% id="guess-compiled"
guess = None


# %% id="barriers"
# needs jax
# NBVAL_IGNORE_OUTPUT
def lowered(loss, w):
    return jax.jit(jax.grad(loss)).lower(w)


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


plans = {name: lowered(loss, jax_weights) for name, loss in losses.items()}
programs = {name: plan.compile() for name, plan in plans.items()}
for name, program in programs.items():
    gflop = program.cost_analysis()["flops"] / 1e9
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units   {gflop:.2f} GFLOP")
ratio = temporary(programs["per block"]) / temporary(programs["none"])
print(f"ratio {ratio:.2f}{beside(guess, ratio)}")
handed_over = plans["per block"].as_text().count("optimization_barrier")
left = programs["per block"].as_text().count("opt-barrier")
print(f"barriers handed to the compiler: {handed_over}, left in its program: {left}")

# %% [markdown] id="scan-text"
# `per block` recomputes, and frees nothing. The CPU compiler drops the barriers, and then nothing
# makes the recomputation wait for backward. (We did not prove that this is the whole reason.) A
# loop makes it wait: `jax.lax.scan` runs one block many times over stacked weights, and XLA must
# reserve the residuals of all its rounds. Large JAX models use it anyway, because one block
# compiles faster than a hundred.


# %% id="scan"
# needs jax
# NBVAL_IGNORE_OUTPUT
def scan_loss(run_block, stacked):
    out, _ = jax.lax.scan(lambda x, w: (run_block(w, x), None), jax_x, stacked)
    return jnp.square(out - jax_y).mean()


stack = jax.tree.map(lambda *arrays: jnp.stack(arrays), *jax_weights)
# the documentation's advice inside a scan
scanned = partial(jax.checkpoint, prevent_cse=False)
loops = {"none": jax_block, "per block": scanned(jax_block),
         "dots": scanned(jax_block, policy=policies.dots_saveable)}  # fmt: skip
for name, run_block in loops.items():
    program = lowered(partial(scan_loss, run_block), stack).compile()
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units")
gradient = jax.grad(partial(scan_loss, loops["per block"]))(stack)
per_block = [jax.tree.map(lambda array, i=i: array[i], gradient) for i in range(3)]
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
# part of the model: a wrapper must also carry the parameters through, and the libraries' own do.
# Watch the defaults, or gradients differ: epsilon of a norm is 1e-5 in PyTorch and Haiku, 1e-6 in
# Flax and 1e-3 in Keras.

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


def named(block, names):
    return {part: dict(zip(names(part), pair, strict=True))
            for part, pair in block.items()}  # fmt: skip


def in_pairs(block, names):
    return {part: [block[part][name] for name in names(part)] for part in PARTS}


def flax_loss(block, parameters):
    hidden = FlaxModel(block).apply({"params": parameters}, jax_x)
    return jnp.square(hidden - jax_y).mean()


parameters = {str(i): named(block, flax_names) for i, block in enumerate(jax_weights)}
classes = {"none": FlaxBlock, "per block": nn.remat(FlaxBlock)}
losses = {name: partial(flax_loss, block) for name, block in classes.items()}
kept = {name: jax_kept(loss, parameters) for name, loss in losses.items()}
gradient = jax.grad(losses["per block"])(parameters)
report("Flax", kept, [in_pairs(gradient[str(i)], flax_names) for i in range(3)])

# %% id="haiku-block"
# needs jax, haiku
import haiku as hk


def haiku_block(i, x):
    def linear(part, width, x):
        return hk.Linear(width, name=f"block_{i}_{part}")(x)

    def norm(part, x):
        scale_and_shift = {"create_scale": True, "create_offset": True}
        return hk.LayerNorm(-1, **scale_and_shift, name=f"block_{i}_{part}")(x)

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
            x = wrapper(partial(haiku_block, i))(x)
        return jnp.square(x - jax_y).mean()

    transformed = hk.without_apply_rng(hk.transform(loss))
    return lambda parameters: transformed.apply(parameters, jax_x)


parameters = {f"block_{i}_{part}": pair for i, block in enumerate(jax_weights)
              for part, pair in named(block, haiku_names).items()}  # fmt: skip
losses = {"none": haiku_loss(lambda block: block), "per block": haiku_loss(hk.remat)}
kept = {name: jax_kept(loss, parameters) for name, loss in losses.items()}
gradient = jax.grad(losses["per block"])(parameters)
blocks = [{part: gradient[f"block_{i}_{part}"] for part in PARTS} for i in range(3)]
report("Haiku", kept, [in_pairs(block, haiku_names) for block in blocks])

# %% [markdown] id="flax-read"
# Their norms are written differently from ours, so they keep another amount without a wrapper.
# Wrapped, all three keep the same: only what goes into a block is left, whatever stands inside.
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
errors = os.dup(2)  # TensorFlow's import writes there that it found no GPU drivers
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

_ = os.dup2(errors, 2)


def place(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data  # of the buffer: views share one


class TensorFlowMeter:
    """Bytes of the results that are alive, each buffer once, without the variables."""

    def __init__(self, variables):
        self.alive, self.peak, self.products = {}, 0, 0
        self.ours = {place(variable.value()) for variable in variables}

    def __call__(self, op_type, inputs, attrs, outputs, op_name=None, graph=None):
        self.products += "MatMul" in str(op_type)
        for tensor in outputs:
            if tensor.dtype.size and tensor.dtype != tf.resource:
                size = tensor.dtype.size * math.prod(tensor.shape)
                self.alive[id(tensor)] = place(tensor), size
                weakref.finalize(tensor, self.alive.pop, id(tensor), None)
        self.peak = max(self.peak, self.num_bytes())

    def num_bytes(self):
        buffers = dict(self.alive.values())
        return sum(size for place, size in buffers.items() if place not in self.ours)


# %% id="tf-measured"
# needs tensorflow
def tf_step(loss, variables):
    """Bytes that wait when forward ends, the meter with the peak, and the gradients."""
    meter = TensorFlowMeter(tf.nest.flatten(variables))
    op_callbacks.add_op_callback(meter)
    try:
        with tf.GradientTape() as tape:
            value = loss()
        gc.collect()
        waiting = meter.num_bytes()
        gradients = tape.gradient(value, variables)
    finally:
        op_callbacks.remove_op_callback(meter)
    return waiting, meter, gradients


def tf_report(framework, steps):
    kept = {name: waiting for name, (waiting, _, _) in steps.items()}
    peaks = {name: meter.peak for name, (_, meter, _) in steps.items()}
    report(framework, kept, steps["per block"][2], peaks)


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
variables = [
    {part: [tf.Variable(array) for array in pair] for part, pair in block.items()}
    for block in weights
]


def tf_loss(wrapper):
    hidden = tf.constant(x)
    for w in variables:
        hidden = wrapper(partial(tf_block, w))(hidden)
    return tf.reduce_mean(tf.square(hidden - y))


wrappers, steps = {"none": lambda block: block, "per block": tf.recompute_grad}, {}
for name, wrapper in wrappers.items():
    steps[name] = tf_step(partial(tf_loss, wrapper), variables)
tf_report("TensorFlow", steps)
{name: f"peak {meter.peak / UNIT:.1f} units" for name, (_, meter, _) in steps.items()}

# %% [markdown] id="tf-read"
# Without a wrapper this tape keeps most of all: for most operations inputs and results, whether the
# gradient needs them or not.
#
# `tf.function` builds a whole graph first, and TensorFlow's graph optimizer may drop and fuse
# operations. No public instrument of TensorFlow tells what such a graph holds on a CPU, so we did
# not measure it.
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


class KerasBlock(layers.Layer):
    def __init__(self, pairs, **kwargs):
        super().__init__(**kwargs)
        self.part = {}
        for part, (weight, bias) in pairs.items():
            norm = layers.LayerNormalization(epsilon=1e-5)
            self.part[part] = layers.Dense(len(bias)) if weight.ndim == 2 else norm
            self.part[part].build((BATCH, SEQ, len(weight)))
            self.part[part].set_weights([weight, bias])

    def call(self, x):
        x = x + self.part["out"](tf_attend(self.part["qkv"](self.part["norm_1"](x))))
        h = self.part["up"](self.part["norm_2"](x))
        return x + self.part["down"](keras.activations.gelu(h, approximate=True))

    def pairs(self):
        return {part: [v.value for v in layer.trainable_variables]
                for part, layer in self.part.items()}  # fmt: skip


# %% id="keras-step"
# needs tensorflow, keras
NAMES = ["block_0", "block_1", "block_2"]
NO_SCOPE = {"mode": None}


def keras_step(at_creation=NO_SCOPE, at_call=NO_SCOPE):
    with keras.RematScope(**at_creation):
        blocks = [KerasBlock(w, name=n) for w, n in zip(weights, NAMES, strict=True)]

    def loss():
        hidden = tf.constant(x)
        with keras.RematScope(**at_call):
            for block in blocks:
                hidden = block(hidden)
        return tf.reduce_mean(tf.square(hidden - y))

    return tf_step(loss, [block.pairs() for block in blocks])


# %% [markdown] id="predict-keras"
# The documentation of `RematScope` says "This should be used when initializing the layer" and, in
# the next sentence, "Rematerialization applies at execution time, not at creation time". So we try
# both: the scope around making the layers, and around calling them.
#
# **Predict.** With `list_of_layers` naming the three blocks, one of the two frees nothing. How many
# units wait if the scope stands around the *call* only?

# %% id="guess-keras"
guess = None


# %% id="keras"
# needs tensorflow, keras
named_blocks, full = {"mode": "list_of_layers", "layer_names": NAMES}, {"mode": "full"}
steps = {
    "no scope": keras_step(),
    "named, around the call": keras_step(at_call=named_blocks),
    "named, around creation": keras_step(at_creation=named_blocks),
    "full, around creation": keras_step(at_creation=full),
}
waiting = steps["named, around the call"][0] / UNIT
print(f"named, around the call: {waiting:.1f} units wait{beside(guess, waiting)}")
chosen = {"none": "no scope", "per block": "named, around creation"}
tf_report("Keras", {name: steps[scope] for name, scope in chosen.items()})
heads, table = ["waiting, units", "peak, units", "products"], {}
for name, (waiting, meter, _) in steps.items():
    table[name] = f"{waiting / UNIT:.1f}", f"{meter.peak / UNIT:.1f}", meter.products
pd.DataFrame.from_dict(table, orient="index", columns=heads)

# %% [markdown] id="keras-read"
# The scope counts where the layer is *made*. Around a call it does nothing and says nothing. `full`
# wraps every layer, and the layers inside the block again: the block's recomputation is itself
# checkpointed. So its peak is lower, and the dense layers' products run a third time.
#
# ## Side by side
#
# The same model, the same weights, the same gradients. *Waiting* is what is kept for backward.
# *Peak* is all that a step adds to the weights, where an instrument can count it operation by
# operation. JAX reports it for compiled programs only; those numbers stand above.

# %% id="side-by-side"
WRAPPERS = {
    "PyTorch": ("checkpoint(block, x)", "memory.saved, memory.measure"),
    "JAX": ("jax.checkpoint(block)", "jax.vjp's arrays"),
    "Flax": ("nn.remat(Block)", "jax.vjp's arrays"),
    "Haiku": ("hk.remat(block)", "jax.vjp's arrays"),
    "TensorFlow": ("tf.recompute_grad(block)", "callback, weak references"),
    "Keras": ("keras.RematScope", "callback, weak references"),
}
table = {}
for framework, amounts in rows.items():
    shown = [" → ".join(f"{n / UNIT:.1f}" for n in one.values()) for one in amounts]
    table[framework] = [*WRAPPERS[framework], shown[0], shown[1] or "not seen"]
heads = ["wrapper", "instrument", "waiting, units", "peak, units"]
pd.DataFrame.from_dict(table, orient="index", columns=heads)

# %% id="side-by-side-figure"
bars = {}
for framework, (kept, _) in rows.items():
    for name, num_bytes in kept.items():
        bars[f"{framework}, {name}"] = {"activations": num_bytes}
title = "Bytes that wait for backward: three blocks, one set of weights"
plots.ledger_bars(bars, title=title)

# %% [markdown] id="side-read"
# Without a wrapper the frameworks differ by several times, because they cut the same formulas into
# different operations. With one they agree: the boundaries are left, and in TensorFlow one tensor
# of the loss. So a saving quoted "with checkpointing" says as much about the baseline as about
# checkpointing.
#
# These numbers are eager: operation by operation. A compiler fuses the small operations. And each
# instrument is blind to something: none here sees a kernel's workspace, and no step ran on a GPU.
#
# ## Where does it come from?
#
# ```text
# 1992  Griewank             checkpointing for programs that differentiate other programs
# 2000  Revolve              the best schedule for a chain (Griewank and Walther)
# 2016  Chen et al.          deep networks: the √n segments of chapter 06
# 2019  Rotor, Checkmate     dynamic and integer programming choose (Beaumont; Jain)
# 2021  DTR                  choose while the program runs (Kirisame et al.; 07b)
# 2022  Korthikanti et al.   choose by operation (chapter 07)
#       compilers            PyTorch's partitioner (chapter 07), XLA after JAX's plan
# ```
#
# Which choice is best depends on the hardware: chapter 07 compared the speeds of four cards.

# %% id="verdicts"
# needs jax, flax, haiku, tensorflow, keras
fell = {framework: " → ".join(f"{n / UNIT:.1f}" for n in kept.values())
        for framework, (kept, _) in rows.items()}  # fmt: skip
policy = {name.removesuffix("_saveable"): n for name, n in policy_units.items()}
claims.Verdicts(
    claims.Verdict(
        "C06", "holds if", "Both wrappers run and free what they should, if Keras' "
        "scope stands where the layers are made.", "units that wait: tf.recompute_grad "
        f"{fell['TensorFlow']}, Keras {fell['Keras']}", "counted", "side-by-side"),
    claims.Verdict(
        "C07", "holds if", "jax.checkpoint keeps what its policy says; whether the "
        "compiled program needs less memory is up to the compiler.",
        f"units that wait: {policy['everything']:.0f} of everything, "
        f"{policy['dots']:.0f} of products, {policy['nothing']:.0f} of boundaries "
        "alone", "counted", "policies"),
    claims.Verdict(
        "C08", "holds", "Flax and Haiku have wrappers of their own, which end in "
        "jax.checkpoint and keep the same boundaries.", f"units that wait: Flax "
        f"{fell['Flax']}, Haiku {fell['Haiku']}, JAX {fell['JAX']}",
        "counted", "side-by-side"),
    claims.Verdict(
        "C22", "holds", "Compilers take part in the choice, and may undo it: read the "
        "compiler's report, not the wrapper's name.", f"{handed_over} barriers handed "
        f"to XLA, {left} left in the CPU's program", "counted", "barriers"),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Find the wrapper in a framework that you do not know, and prove with equal gradients that it is
#   one.
# - Ask each framework what it keeps, and say what its instrument cannot see.
# - Tell a plan (residuals, a policy) from what a compiler makes of it.
