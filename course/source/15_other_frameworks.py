# %% [markdown] id="title"
# # Appendix: other frameworks
#
# Every framework that computes gradients keeps tensors for backward. The large frameworks can also
# recompute these tensors.
#
# Here the same model, with the same weights, runs in PyTorch, JAX, TensorFlow and Keras. You
# compare gradients, count the bytes kept for backward, and see what JAX's compiler, XLA, does with
# a checkpoint.
#
# **Budget:** 70 minutes, 3 GiB of memory, no GPU needed.
#
# To install the frameworks, run `pip install -e ".[frameworks]"` in the course's folder. A cell
# that begins with `# needs jax` is skipped if you don't have JAX. The companion
# [15b](15b_accumulation_elsewhere.ipynb) covers accumulation in optax and Keras, offloading, and
# JAX's module libraries: Flax NNX, Linen, Haiku.

# %% id="imports"
import math
from functools import partial
from operator import itemgetter
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from IPython.display import display
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import frameworks
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig

torch.set_num_threads(1)
frameworks.leave_out_cells("jax", "tensorflow", "keras")

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
# The model is three blocks of the course's GPT, with eager attention. The loss is the mean squared
# distance between the model's output and the next token's vector. The other frameworks get the
# weights as NumPy arrays, with matrices of shape (inputs, outputs). One *unit* is the size of one
# block's input.
#
# In each framework, we compare the gradients of the checkpointed model to PyTorch's. The error of a
# weight's gradient is its largest difference from PyTorch's gradient, as a share of the largest
# entry in PyTorch's.

# %% id="model"
BATCH, SEQ, WIDTH, HEADS = 4, 128, 128, 4
UNIT = BATCH * SEQ * WIDTH * 4  # bytes of a block's input, float32
sizes = {"num_layers": 3, "d_model": WIDTH, "num_heads": HEADS, "seq_len": SEQ}
torch.manual_seed(0)
gpt = GPT(GPTConfig(**sizes, attention="eager"))
vectors = gpt.token_embedding(next(data.text_batches(BATCH, SEQ + 1))).detach()
x = (vectors[:, :-1] + gpt.position_embedding.weight.detach()).numpy()
y = vectors[:, 1:].numpy()

# %% id="arrays"
LAYERS = ("mlp.down", "norm_1", "norm_2", "attention.out", "attention.qkv", "mlp.up")


def arrays(
    of,
):  # for each block and layer: the bias, and the weight as (inputs, outputs)
    def pair(layer):
        return [of(layer.bias).numpy(), of(layer.weight).numpy().T]

    return [{name.split(".")[-1]: pair(block.get_submodule(name)) for name in LAYERS}
            for block in gpt.blocks]  # fmt: skip


def linear(w, layer, x):  # in JAX and in TensorFlow
    return x @ w[layer][1] + w[layer][0]


# %% id="torch-loss"
def torch_loss(run_block):
    hidden = torch.from_numpy(x)
    for block in gpt.blocks:
        hidden = run_block(block, hidden)
    return (hidden - torch.from_numpy(y)).square().mean()


def torch_step(run_block):
    gpt.zero_grad()
    torch_loss(run_block).backward()


# %% id="flat"
def flat(blocks):
    return [array for block in blocks for pair in block.values() for array in pair]


# %% [markdown] id="write-compare"
# **Write.** `relative_error`, which compares the list `gradients` with the global list `wanted`,
# and returns the largest of the weights' errors. `np.asarray` accepts any framework's array. Use
# NumPy's `max`, since Python's may miss a NaN. If a gradient is missing, raise a `ValueError`.


# %% id="compare"
def relative_error(gradients):
    """Return the largest difference from `wanted`, over each array's largest value."""
    ### BEGIN SOLUTION
    pairs = zip(map(np.asarray, gradients), wanted, strict=True)
    errors = [abs(ours - right).max() / abs(right).max() for ours, right in pairs]
    return np.max(errors)
    ### END SOLUTION


# %% id="check-compare"
# @title Check: run this cell
@blanks.check("relative_error", "return the largest relative error, as a number")
def finds_the_worst_weight():
    known = [np.array([1.0, 2.0]), np.array([[-4.0]])]
    with patch.dict(globals(), wanted=known):
        for first, last, right in (
            ([1.0, 2.0], -4.0, 0), ([1.0, 2.0], -3.0, 0.25), ([1.0, 2.0], -5.0, 0.25),
            ([1.5, 2.0], -4.0, 0.25), ([1.0, 0.0], -5.0, 1), ([1.0, 2.0], 4.0, 2),
        ):  # fmt: skip
            seen = relative_error([np.array(first), torch.tensor([[last]])])
            assert abs(seen - right) < 1e-6, (
                f"Wanted: [1, 2], [[-4]]. For {first} and [[{last}]], the error is "
                f"{right}, not {seen}."
            )
        for gradients in (
            [known[0], np.array([[np.nan]])],
            [known[0] * np.nan, known[1]],
        ):
            seen = relative_error(gradients)
            assert not seen < 1, f"A gradient is nan, but the largest error is {seen}."
        try:
            seen = relative_error(known[:1])
        except ValueError:
            return
        raise AssertionError(f"One of two gradients is missing, but you get {seen}.")


# %% id="report"
rows = {}


def report(framework, kept, gradients, peaks=None):
    rows[framework] = kept, peaks or {}
    equal = relative_error(gradients) < 1e-5
    amounts = ", ".join(f"{name} {size / UNIT:.1f}" for name, size in kept.items())
    print(f"{framework:<12}kept, units: {amounts};   gradients equal to 1e-5: {equal}")


# %% id="torch-step"
CHOICES = {"none": Block.forward, "per block": partial(checkpoint, use_reentrant=False)}
weights, gradients = arrays(torch.Tensor.detach), {}
kept, peaks = {}, {}  # the peak: all that the step adds to the weights
for name, run_block in CHOICES.items():
    kept[name] = memory.saved(partial(torch_loss, run_block), params_of=gpt).num_bytes
    measured = memory.measure(partial(torch_step, run_block), model=gpt)
    peaks[name] = measured.peak_bytes - measured.at_peak["parameters"]
    gradients[name] = flat(arrays(lambda parameter: parameter.grad.clone()))
wanted = gradients["none"]
report("PyTorch", kept, gradients["per block"], peaks)
pd.DataFrame({"kept": kept, "peak": peaks}).div(UNIT).round(1)  # in units

# %% [markdown] id="jax-text"
# ## JAX: a function in, a function out
#
# ```text
# jax.grad(loss)                    loss's gradient, as a new function
# jax.checkpoint(block)             the same block; inside a gradient it keeps its arguments only
# ```
#
# JAX has no modules and no `.grad`: a model is a function of weights and data. `jax.checkpoint`,
# also called `jax.remat`, takes a function and returns one.
#
# What does JAX keep for backward? `jax.vjp` runs forward and also returns the backward pass, an
# object that holds the *residuals*: the arrays that backward reads. Since steps are usually
# compiled, by `jax.jit`, we compile forward too, and count the residuals that it returns.
#
# **Predict.** PyTorch's softmax, norm and GELU are single operations, with a backward written by
# hand. In JAX each of the three is made of small operations, and each small operation keeps its own
# inputs, compiled or not. Without a wrapper, by what factor does JAX keep more bytes than PyTorch?

# %% id="guess-jax"
guess = None  # times

# %% id="jax-attend"
# needs jax
import jax
import jax.numpy as jnp


def attend(qkv):
    q, k, v = qkv.reshape(*qkv.shape[:2], 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)  # (B, H, T, T)
    mixed = jax.nn.softmax(jnp.where(jnp.tri(SEQ, dtype=bool), scores, -jnp.inf)) @ v
    return mixed.swapaxes(1, 2).reshape(*qkv.shape[:2], WIDTH)


# %% id="jax-norm"
# needs jax
def jax_norm(x, shift, scale):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) + shift


# %% [markdown] id="write-jax-block"
# **Write.** `jax_block`, in three lines, with the operations in the order of the drawing at the
# top. `linear(w, "qkv", x)` runs a layer (`qkv`, `out`, `up`, `down`), `attend` goes between `qkv`
# and `out`, `jax_norm(x, *w["norm_1"])` is a norm, and `jax.nn.gelu` is the GELU between `up` and
# `down`. The output must equal PyTorch's.


# %% id="jax-block"
# needs jax
def jax_block(w, x):
    """Run one block with its weights `w`."""
    ### BEGIN SOLUTION
    x = x + linear(w, "out", attend(linear(w, "qkv", jax_norm(x, *w["norm_1"]))))
    h = jax.nn.gelu(linear(w, "up", jax_norm(x, *w["norm_2"])))
    return x + linear(w, "down", h)
    ### END SOLUTION


# %% id="check-jax-block"
# needs jax
# @title Check: run this cell
@blanks.check("jax_block", "return an array shaped like x")
def runs_as_pytorch_does():
    torch.manual_seed(0)
    drawn = GPT(GPTConfig(**sizes | {"num_layers": 1}, attention="eager"))
    for weight in drawn.parameters():  # otherwise biases are 0, all norms alike
        nn.init.normal_(weight, std=0.2)
    (block,) = drawn.blocks
    down = block.mlp.down.weight.clone()
    for part, factor in (("With attention alone", 0), ("With attention and MLP", 1)):
        block.mlp.down.weight.data = factor * down
        with patch.dict(globals(), gpt=drawn), torch.no_grad():
            right = block(torch.from_numpy(x)).numpy()
            weights = jax.tree.map(jnp.array, arrays(torch.Tensor.detach)[0])
        seen = np.asarray(jax_block(weights, jnp.array(x)))
        assert seen.shape == x.shape, f"x is {x.shape}, but you return {seen.shape}."
        off = np.linalg.norm(seen - right) / np.linalg.norm(right)
        assert off < 1e-5, f"{part}, you are {off:.2%} away from PyTorch's result."


# %% id="jax-loss"
# needs jax
jax_weights, jax_x, jax_y = jax.tree.map(jnp.array, (weights, x, y))


def jax_model(run_block, w, x):
    for block_weights in w:
        x = run_block(block_weights, x)
    return x


def jax_loss(model, w):
    return jnp.square(model(w, jax_x) - jax_y).mean()


# %% [markdown] id="write-jax-kept"
# **Write.** `jax_kept`, the bytes of all residuals. A compiled forward is
# `jax.jit(partial(jax.vjp, loss))`, where `loss` is `partial(jax_loss, model)`. Called with the
# weights, it returns the loss and the backward pass, whose leaves (`jax.tree.leaves`) are the
# residuals. Some are weights, which are in memory anyway, so leave out arrays with fewer than three
# axes. With the wrapper, 4 units must remain: the inputs of three blocks, and the distances that
# the loss squares.


# %% id="jax-kept"
# needs jax
def jax_kept(model, w):
    """Return the bytes that a compiled forward keeps for backward, without weights."""
    ### BEGIN SOLUTION
    forward = jax.jit(partial(jax.vjp, partial(jax_loss, model)))
    leaves = jax.tree.leaves(forward(w)[1])
    return sum(leaf.nbytes for leaf in leaves if leaf.ndim > 2)
    ### END SOLUTION


# %% id="check-jax-kept"
# needs jax
# @title Check: run this cell
@blanks.check("jax_kept", "return a number of bytes")
def counts_what_waits():
    def waves(w, x):  # for backward: a cosine, and the distances of the loss
        return jnp.sin(x + w)

    wrapped = partial(jax_model, jax.checkpoint(jax_block))
    for name, model, w, right in (
        ("a sine", waves, jnp.ones(WIDTH), 2),
        ("three wrapped blocks", wrapped, jax_weights, 4),
    ):
        seen = jax_kept(model, w)
        assert seen == right * UNIT, (
            f"For {name}, {right} units wait: {right * UNIT} bytes, not {seen}."
        )


# %% id="jax"
# needs jax
BLOCKS = {"none": jax_block, "per block": jax.checkpoint(jax_block)}
models = {name: partial(jax_model, run_block) for name, run_block in BLOCKS.items()}
kept = {name: jax_kept(model, jax_weights) for name, model in models.items()}
gradients = jax.grad(partial(jax_loss, models["per block"]))(jax_weights)
report("JAX", kept, jax.tree.leaves(gradients))
ratio = kept["none"] / rows["PyTorch"][0]["none"]
print(f"{ratio:.1f} times PyTorch's{beside(guess, ratio)}")


# %% [markdown] id="policies-text"
# ### Policies
#
# A *policy* says for each residual whether it's kept or recomputed, as in chapter 07. In JAX it is
# an argument of `jax.checkpoint`. The `dots` policies keep the results of matmuls and recompute
# everything else. You can also choose tensors by name (15b).
#
# **Predict.** In order, the results of a block's six matmuls take 3, 4, 1, 1, 4 and 1 units. With
# the plain wrapper, the three blocks and the loss keep 4 units for backward. How many units do they
# keep with `dots_saveable`?

# %% id="guess-dots"
guess = None

# %% id="policies"
# needs jax
POLICIES = ("everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable",
            "nothing_saveable")  # fmt: skip
policy_units = {}
for name in POLICIES:
    policy = getattr(jax.checkpoint_policies, name)
    model = partial(jax_model, jax.checkpoint(jax_block, policy=policy))
    gradients = jax.grad(partial(jax_loss, model))(jax_weights)
    equal = relative_error(jax.tree.leaves(gradients)) < 1e-5
    units = policy_units[name] = jax_kept(model, jax_weights) / UNIT
    words = beside(guess, units) if name == "dots_saveable" else ""
    print(f"{name:<34}{units:>7.1f} units   equal: {equal}{words}")

# %% [markdown] id="policies-read"
# In each block the last matmul's result is only added to `x`, so no gradient needs it. That leaves
# 13 of the 14 units for each of the three blocks, plus the 4 units of the plain wrapper. The policy
# with `no_batch_dims` also recomputes attention's two matmuls, whose results are large but cheap.
#
# ## What does the compiler keep?
#
# ```text
# your function ─► jaxpr: what is kept, what is recomputed ─► XLA: order, fusion, buffers ─► run
#                  jax.checkpoint acts here                  the bytes are fixed here
# ```
#
# In practice, forward and backward are usually compiled together, as *one* program. Then JAX's
# choice of residuals is only a plan, and XLA determines what is in memory. For example, it may fuse
# small operations, so that their results are never written. `memory_analysis().temp_size_in_bytes`
# predicts the bytes of everything except arguments and results. Your numbers may differ, because
# they depend on XLA's version and on the processor.
#
# JAX asks the compiler to follow the plan. Around each recomputed block it puts an *optimization
# barrier* (`prevent_cse=True`). The barrier should stop XLA from noticing that the recomputation
# equals the first run, and from keeping the first run's results instead.
#
# **Predict.** The three blocks are compiled for a CPU. Divide the bytes that `per block` needs by
# the bytes that `none` needs. What do you get?

# %% id="guess-compiled"
guess = None


# %% id="barriers"
# needs jax
# NBVAL_IGNORE_OUTPUT
def lowered(model, w):
    return jax.jit(jax.grad(partial(jax_loss, model))).lower(w)


def temporary(program):
    return program.memory_analysis().temp_size_in_bytes


plans = {name: lowered(model, jax_weights) for name, model in models.items()}
programs = {name: plan.compile() for name, plan in plans.items()}
for name, program in programs.items():
    gflop = program.cost_analysis()["flops"] / 1e9
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units   {gflop:.2f} GFLOP")
    rows["JAX"][1][name] = temporary(program)
ratio = temporary(programs["per block"]) / temporary(programs["none"])
print(f"ratio {ratio:.2f}{beside(guess, ratio)}")
handed_over = plans["per block"].as_text().count("optimization_barrier")
left = programs["per block"].as_text().count("opt-barrier")
print(f"barriers handed to the compiler: {handed_over}, left in its program: {left}")

# %% [markdown] id="scan-text"
# On the CPU, `per block` needs more FLOPs, so it does recompute blocks, but it saves no memory (JAX
# 0.10.2). This backend drops the barriers, so the recomputation may run long before backward needs
# it.
#
# A loop does save memory. `jax.lax.scan` runs one block over stacked weights. Its backward is a
# second loop, and only that loop recomputes.


# %% id="scan"
# needs jax
# NBVAL_IGNORE_OUTPUT
def scan_model(run_block, stacked, x):
    return jax.lax.scan(lambda x, w: (run_block(w, x), None), x, stacked)[0]


stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *jax_weights)
# the documentation's advice inside a scan
scanned = partial(jax.checkpoint, prevent_cse=False)
dots = jax.checkpoint_policies.dots_saveable
loops = {"none": jax_block, "per block": scanned(jax_block),
         "dots": scanned(jax_block, policy=dots)}  # fmt: skip
for name, run_block in loops.items():
    program = lowered(partial(scan_model, run_block), stacked).compile()
    print(f"{name:<10}{temporary(program) / UNIT:>6.1f} units")
loss = partial(jax_loss, partial(scan_model, loops["per block"]))
of_all = jax.grad(loss)(stacked)
of_each = [jax.tree.map(itemgetter(block), of_all) for block in range(3)]
print("gradients equal to 1e-5:", relative_error(jax.tree.leaves(of_each)) < 1e-5)

# %% [markdown] id="tf-text"
# ## TensorFlow: the tape
#
# ```text
# with tf.GradientTape() as tape:      the tape keeps inputs and results of each operation
#     loss = ...                       tf.recompute_grad(f): the tape sees one operation, f
# tape.gradient(loss, variables)       f runs again, under a tape of its own
# ```
#
# TensorFlow's allocator reports a peak only on GPUs. On a CPU we count with
# `frameworks.tensorflow_step`: a callback sees each operation's results, and a weak reference tells
# when a result is freed.

# %% id="tf-attend"
# needs tensorflow
tf = frameworks.import_tensorflow()


def tf_attend(qkv):
    qkv = tf.reshape(qkv, (-1, SEQ, 3, HEADS, WIDTH // HEADS))
    q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(WIDTH // HEADS)
    mixed = tf.nn.softmax(tf.where(np.tri(SEQ, dtype=bool), scores, -np.inf)) @ v
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (-1, SEQ, WIDTH))


# %% id="tf-block"
# needs tensorflow
def tf_norm(x, shift, scale):
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)


def tf_block(w, x):
    x = x + linear(w, "out", tf_attend(linear(w, "qkv", tf_norm(x, *w["norm_1"]))))
    h = tf.nn.gelu(linear(w, "up", tf_norm(x, *w["norm_2"])), approximate=True)
    return x + linear(w, "down", h)


def tf_loss(run_blocks):
    hidden = tf.constant(x)
    for run_block in run_blocks:
        hidden = run_block(hidden)
    return tf.reduce_mean(tf.square(hidden - y))


def tf_report(framework, steps):
    kept = {name: step.waiting_bytes for name, step in steps.items()}
    peaks = {name: step.peak_bytes for name, step in steps.items()}
    report(framework, kept, steps["per block"].gradients, peaks)


# %% id="tf"
# needs tensorflow
variables, steps = tf.nest.map_structure(tf.Variable, weights), {}
for name, wrapper in (("none", lambda block: block), ("per block", tf.recompute_grad)):
    blocks = [wrapper(partial(tf_block, w)) for w in variables]
    steps[name] = frameworks.tensorflow_step(partial(tf_loss, blocks), variables)
tf_report("TensorFlow", steps)

# %% [markdown] id="tf-read"
# Without a wrapper, the tape keeps most operations' inputs and results, even those that backward
# doesn't need.
#
# `tf.recompute_grad` doesn't replay random numbers. In eager mode dropout draws a different mask in
# the recomputation, so gradients are silently wrong (TensorFlow 2.21).
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
# Keras runs on three backends and calls the backend's own checkpoint function, here TensorFlow's.
# The scope's mode says which layers are checkpointed: with `full` all of them, and with
# `list_of_layers` only those that you name.
#
# `RematScope`'s documentation contradicts itself on where the scope must be. We try both: creating
# the layers inside the scope, and calling them inside it.
#
# **Predict.** `list_of_layers` names the three blocks. How many units are kept for backward if the
# layers are only *called* inside the scope?

# %% id="guess-keras"
guess = None

# %% id="keras-block"
# needs tensorflow, keras
import keras
from keras import layers


class KerasBlock(layers.Layer):
    def __init__(self, weights, **kwargs):
        super().__init__(**kwargs)
        self.part = {}
        for part, (bias, weight) in weights.items():
            norm = layers.LayerNormalization(epsilon=1e-5)
            self.part[part] = layers.Dense(len(bias)) if weight.ndim == 2 else norm
            self.part[part].build((BATCH, SEQ, len(weight)))
            self.part[part].set_weights([weight, bias])

    def call(self, x):
        x = x + self.part["out"](tf_attend(self.part["qkv"](self.part["norm_1"](x))))
        h = self.part["up"](self.part["norm_2"](x))
        return x + self.part["down"](keras.activations.gelu(h, approximate=True))


# %% id="keras-step"
# needs tensorflow, keras
NAMES = ["block_0", "block_1", "block_2"]
NO_SCOPE = {"mode": None}


def keras_step(at_creation=NO_SCOPE, at_call=NO_SCOPE):
    with keras.RematScope(**at_creation):
        blocks = [KerasBlock(w, name=n) for w, n in zip(weights, NAMES, strict=True)]

    def loss():
        with keras.RematScope(**at_call):
            return tf_loss(blocks)

    parts = [part for block in blocks for part in block.part.values()]
    variables = [v.value for part in parts for v in reversed(part.trainable_variables)]
    return frameworks.tensorflow_step(loss, variables)


# %% id="keras"
# needs tensorflow, keras
named = {"mode": "list_of_layers", "layer_names": NAMES}
steps = {
    "no scope": keras_step(),
    "named, around the call": keras_step(at_call=named),
    "named, around creation": keras_step(at_creation=named),
    "full, around creation": keras_step(at_creation={"mode": "full"}),
}
waiting = steps["named, around the call"].waiting_bytes / UNIT
print(f"named, around the call: {waiting:.1f} units wait{beside(guess, waiting)}")
chosen = {"none": "no scope", "per block": "named, around creation"}
tf_report("Keras", {name: steps[scope] for name, scope in chosen.items()})
table = pd.DataFrame([vars(step) for step in steps.values()], index=list(steps))
sizes = table[["waiting_bytes", "peak_bytes"]].div(UNIT).round(1)
sizes.set_axis(["waiting, units", "peak, units"], axis=1).join(table["matmuls"])

# %% [markdown] id="keras-read"
# The scope takes effect where the layer is *created*. Around a call it silently does nothing.
# `full` also checkpoints the layers inside each block. The peak falls, but the dense layers'
# matmuls run three times.
#
# ## Side by side
#
# *Waiting* is what is kept for backward. *Peak* is the most that a step holds at once, without the
# weights. (JAX's peak is XLA's prediction for one CPU program, whose small operations it fuses.)

# %% id="side-by-side"
# NBVAL_IGNORE_OUTPUT
WRAPPERS = {
    "PyTorch": ("checkpoint(block, x)", "memory.saved, memory.measure"),
    "JAX": ("jax.checkpoint(block)", "jax.vjp's arrays; XLA"),
    "TensorFlow": ("tf.recompute_grad(block)", "callback, weak references"),
    "Keras": ("keras.RematScope", "callback, weak references"),
}
table, bars = {}, {}
for framework, amounts in rows.items():
    shown = [" → ".join(f"{n / UNIT:.1f}" for n in one.values()) for one in amounts]
    table[framework] = [*WRAPPERS[framework], *shown]
    for name, num_bytes in amounts[0].items():
        bars[f"{framework}, {name}"] = {"activations": num_bytes}
heads = ["wrapper", "instrument", "waiting, units", "peak, units"]
display(pd.DataFrame.from_dict(table, orient="index", columns=heads))
plots.ledger_bars(bars, title="Bytes that wait for backward: three blocks")

# %% [markdown] id="end"
# Without a wrapper, the frameworks keep very different numbers of bytes, because they split the
# same formulas into different operations. With a wrapper they keep nearly the same, because little
# more than the boundaries is kept.

# %% id="verdicts"
# needs jax, tensorflow, keras
fell = {framework: " → ".join(f"{n / UNIT:.1f}" for n in kept.values())
        for framework, (kept, _) in rows.items()}  # fmt: skip
policy = {name.removesuffix("_saveable"): n for name, n in policy_units.items()}
claims.Verdicts(
    claims.Verdict(
        "C06", "shown", "Both wrappers run and free what they should, if Keras' "
        "scope is around the layers' creation.", "units that wait: tf.recompute_grad "
        f"{fell['TensorFlow']}, Keras {fell['Keras']}", "counted", "side-by-side"),
    claims.Verdict(
        "C07", "shown", "jax.checkpoint keeps what its policy says; whether the "
        "compiled program needs less memory is up to the compiler.",
        f"units that wait: {policy['everything']:.1f} with everything saved, "
        f"{policy['dots']:.1f} with matmuls, {policy['nothing']:.1f} with only "
        "boundaries", "counted", "policies"),
    claims.Verdict(
        "C22", "shown", "Compilers take part in the choice and may undo it: trust the "
        "compiler's report, not the wrapper's name.", f"{handed_over} barriers handed "
        f"to XLA, {left} left in its program for the CPU", "counted", "barriers"),
)  # fmt: skip

# %% [markdown] id="summary"
# ## What you can now do
#
# - Find the checkpoint wrapper in a framework you don't know, and test that it doesn't change the
#   gradients.
# - Ask each framework what it keeps, and say what its report leaves out.
# - Distinguish a plan (residuals, a policy) from what the compiler does with it.
