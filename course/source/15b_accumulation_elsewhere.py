# %% [markdown] id="title"
# # Accumulation elsewhere
#
# This companion of chapter 15 is optional: no lab and no later chapter needs it. It answers four
# questions:
#
# 1. In JAX and Keras, does accumulation give the gradient of the whole batch?
# 2. Does a learning-rate schedule count micro-batches or updates?
# 3. Can a policy move a tensor to the host?
# 4. How do you checkpoint in JAX's module libraries?
#
# **Budget:** 50 minutes, 2 GiB of memory, no GPU needed.
#
# To install the frameworks, run `pip install -e ".[frameworks]"` in the course's folder. A cell
# that begins with `# needs jax` is skipped if you don't have JAX.

# %% id="imports"
from collections import Counter
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import torch
from torch.nn import functional as F

from tutorial_lib import claims, data
from tutorial_lib.instruments import frameworks
from tutorial_lib.guesses import beside

torch.set_num_threads(1)
frameworks.leave_out_cells("jax", "optax", "flax", "haiku", "tensorflow", "keras")

# %% [markdown] id="model-text"
# ## Does accumulation give the gradient of the whole batch?
#
# ```text
# micro-batch 1    micro-batch 2    micro-batch 3        micro-batch 4
# add gradient ──► add gradient ──► add gradient ──► add, divide by 4, update, clear
#                  optimizer called four times, weights change once
# ```
#
# PyTorch adds to `.grad`, and your loop decides when to step (chapter 08). In JAX and Keras the
# *optimizer* counts the micro-batches. You pass each gradient to `optax.MultiSteps`, or to a Keras
# optimizer with `gradient_accumulation_steps`. After every $k$ gradients the optimizer makes one
# update with the mean of these gradients.
#
# A mean of means is the batch's mean only if all micro-batches have the same size. So we split 32
# images equally, into 16 and 16, and unequally, into 24 and 8. The model is a residual network on
# handwritten digits. The reference is PyTorch's gradient of the whole batch.

# %% id="model"
images, labels = data.digits()
x, y = images[:32].flatten(1).numpy(), labels[:32].numpy()  # (32, 64), (32,)
WIDTH = x.shape[1]
random = np.random.default_rng(0)
weights = [random.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32) for _ in range(3)]
weights.append(random.normal(0, 0.1, (WIDTH, 10)).astype(np.float32))
EQUAL, UNEQUAL = (16, 16), (24, 8)


# %% id="reference"
def torch_loss(w):
    hidden = torch.from_numpy(x)
    for matrix in w[:-1]:
        hidden = hidden + torch.tanh(hidden @ matrix)
    return F.cross_entropy(hidden @ w[-1], torch.from_numpy(y))


leaves = [torch.from_numpy(w).requires_grad_() for w in weights]
wanted = [
    gradient.numpy() for gradient in torch.autograd.grad(torch_loss(leaves), leaves)
]


def relative_error(gradients):
    pairs = zip(map(np.asarray, gradients), wanted, strict=True)
    return np.max([abs(ours - right).max() / abs(right).max() for ours, right in pairs])


# %% id="parts"
def micro_batches(sizes):
    """Return the batch's slices, each with the weight that its mean loss gets."""
    slices = (slice(a, b) for a, b in pairwise(np.cumsum([0, *sizes])))
    return [(part, len(sizes) * (part.stop - part.start) / 32) for part in slices]


def show(gradients_of):
    for sizes, weighted in ((EQUAL, False), (UNEQUAL, False), (UNEQUAL, True)):
        error = relative_error(gradients_of(sizes, weighted))
        words = "equal to the big batch" if error < 1e-4 else f"wrong by {error:.0%}"
        is_asked = (sizes, weighted) == (UNEQUAL, False)
        mark = beside(guess, 100 * error) if is_asked else ""
        print(f"{sizes}, weighted by rows: {weighted!s:<5}  {words}{mark}")


# %% [markdown] id="optax-text"
# **Predict.** Micro-batches of 24 and 8 images count equally in the mean. How wrong is the
# gradient? For each weight matrix, take the largest error in its gradient, as a percentage of the
# largest entry in the right gradient. Then give the largest of these percentages.

# %% id="guess-unequal"
guess = None

# %% id="optax-model"
# needs jax, optax
import jax
import jax.numpy as jnp
import optax

jax_weights = list(map(jnp.array, weights))


def block(w, hidden):
    return hidden + jnp.tanh(hidden @ w)


def jax_loss(w, part, scale=1.0):
    hidden = jnp.array(x[part])
    for matrix in w[:-1]:
        hidden = block(matrix, hidden)
    losses = optax.softmax_cross_entropy_with_integer_labels(hidden @ w[-1], y[part])
    return scale * losses.mean()


# %% id="optax"
# needs jax, optax
def with_optax(sizes, weighted):
    optimizer = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=len(sizes))
    state = optimizer.init(jax_weights)
    for part, weight in micro_batches(sizes):
        gradient = jax.grad(jax_loss)(jax_weights, part, weight if weighted else 1.0)
        # zeros until the window is full
        updates, state = optimizer.update(gradient, state)
    return jax.tree.map(jnp.negative, updates)


show(with_optax)
state = optax.MultiSteps(optax.sgd(1.0), 2).init(jax_weights)
extra = sum(array.nbytes for array in jax.tree.leaves(state.acc_grads))
print("the sum it keeps:", extra / sum(w.nbytes for w in weights), "x weights")


# %% id="keras"
# needs tensorflow, keras
tf = frameworks.import_tensorflow()
import keras


def with_keras(sizes, weighted, lr=1000.0):  # a step that is large beside its rounding
    matrices = [keras.Variable(w) for w in weights]
    optimizer = keras.optimizers.SGD(lr, gradient_accumulation_steps=len(sizes))
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for part, weight in micro_batches(sizes):
        with tf.GradientTape() as tape:
            hidden = tf.constant(x[part])
            for matrix in matrices[:-1]:
                hidden = hidden + tf.tanh(hidden @ matrix.value)
            loss = cross_entropy(y[part], hidden @ matrices[-1].value)
            loss = loss * (weight if weighted else 1)
        optimizer.apply(tape.gradient(loss, [m.value for m in matrices]), matrices)
    return [
        (old - new.numpy()) / lr for old, new in zip(weights, matrices, strict=True)
    ]


show(with_keras)

# %% [markdown] id="window-text"
# The rule of chapter 08 holds in both libraries: divide by the number of samples in the window, not
# by the number of micro-batches. `MultiSteps` keeps the accumulated gradient in its state, as
# PyTorch does in `.grad`. `MultiSteps` keeps it in float32, even if the weights are in 16 bits
# (optax 0.2.8).
#
# ## What counts as a step?
#
# ```text
# epoch 1   1 2 3 4   5 6│    six micro-batches an epoch, windows of four
# epoch 2            │1 2   3 4 5 6    the second window takes two of each
# ```
#
# A window may continue into the next epoch. And the learning-rate schedule may count micro-batches
# or updates as its steps. In our test, every micro-batch's gradient is 1, and the learning rate
# falls evenly from 1 to 0 in twelve of the schedule's steps.
#
# **Predict.** After epoch 1, one update is done and two micro-batches wait. What learning rate does
# Keras report?

# %% id="guess-rate"
guess = None


# %% id="windows"
# needs tensorflow, keras
schedule = keras.optimizers.schedules.PolynomialDecay(
    1.0, decay_steps=12, end_learning_rate=0.0
)
optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=4)
weight = keras.Variable([1.0])
for epoch in (1, 2):
    for _ in range(6):
        optimizer.apply([tf.ones(1)], [weight])
    (waiting,) = (int(v[0]) for v in optimizer.variables if "accumulator" in v.name)
    done, rate = int(optimizer.iterations), float(optimizer.learning_rate)
    words = f"{done} updates, sum of {waiting} waits, learning rate {rate:.2f}"
    print(f"Keras, epoch {epoch}: {words}{beside(guess, rate) if epoch == 1 else ''}")

# %% id="optax-windows"
# needs jax, optax
optimizer = optax.MultiSteps(
    optax.sgd(optax.linear_schedule(1.0, 0.0, 12)), every_k_schedule=4
)
state = optimizer.init(jnp.ones(1))
for epoch in (1, 2):
    for _ in range(6):
        _, state = optimizer.update(jnp.ones(1), state)
    done, waiting = int(state.gradient_step), int(state.mini_step)
    rate = 1 - int(optax.tree_utils.tree_get(state, "count")) / 12
    words = f"{done} updates, mean of {waiting} waits, learning rate {rate:.2f}"
    print(f"optax, epoch {epoch}: {words}")

# %% [markdown] id="windows-read"
# In both libraries, the second update mixes gradients of two epochs, and a run that ends after
# epoch 1 loses two micro-batches. But the schedules differ: Keras' schedule counts micro-batches,
# and a schedule inside `MultiSteps` counts updates. So with windows of four, Keras' schedule must
# be four times as long for the same effect.
#
# **With `MultiSteps`, one infinite gradient ruins the run.** Until the window is full, the weights
# must not change, so `MultiSteps` multiplies each update by 0. But 0 times infinity is NaN, so the
# weights become NaN at once (optax 0.2.8). Put `optax.apply_if_finite` around `MultiSteps`, not
# inside it.
#
# ## Can a policy move a tensor to the host?
#
# ```text
# forward    block ─► boundary ── copy ──► host        (named in the code: checkpoint_name)
# backward   block ◄─ boundary ◄─ copy ─── host
# ```
#
# In JAX you name a tensor in the code and list the name in the policy. Here the whole loss is one
# checkpoint that keeps only the blocks' results, on the device or on the host.

# %% id="offload"
# needs jax, optax
from jax.ad_checkpoint import checkpoint_name

policies = jax.checkpoint_policies
offload = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["boundary"],
    offload_src="device", offload_dst="pinned_host")  # fmt: skip


def marked_loss(w):
    hidden = jnp.array(x)
    for matrix in w[:-1]:
        hidden = checkpoint_name(block(matrix, hidden), "boundary")
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ w[-1], y).mean()


# %% id="offload-places"
# needs jax, optax
for policy in (policies.save_only_these_names("boundary"), offload):
    loss = jax.checkpoint(partial(marked_loss), policy=policy)
    _, backward = jax.vjp(loss, jax_weights)
    leaves = [leaf for leaf in jax.tree.leaves(backward) if isinstance(leaf, jax.Array)]
    places = Counter(
        leaf.sharding.memory_kind for leaf in leaves if leaf.shape == x.shape
    )
    equal = relative_error(jax.grad(loss)(jax_weights)) < 1e-4
    print(f"kept, of a boundary's shape: {dict(places)}   equal: {equal}")

# %% [markdown] id="offload-read"
# The three blocks' results have moved to what JAX calls `pinned_host`. On a CPU, device and host
# share one memory, so this shows only that JAX follows the policy.
#
# Two policies have similar names, and only one of them recomputes a value that you name. To
# recompute a value named `wide`, use `save_any_names_but_these("wide")`. With
# `save_anything_except_these_names("wide")`, JAX still keeps it (JAX 0.10.2).
#
# ## Module libraries: Flax NNX, Linen and Haiku
#
# ```text
# NNX     nnx.remat(Block.__call__)    a module holds its parameters, as in PyTorch
# Linen   nn.remat(Block)              a class in, a class out
# Haiku   hk.remat(run_block)          a function that makes its parameters as it runs
#            └──── all end in jax.checkpoint, so policies are the same
# ```
#
# JAX expects functions without side effects, but a module holds state. So NNX, Flax's current
# library, has its own wrappers (`nnx.jit`, `nnx.grad`, `nnx.remat`). They split a module into its
# layout and its state, call JAX's function on these, and join them again. A plain `jax.checkpoint`
# also accepts a function that calls an NNX module, but it silently loses every change of state:
# dropout draws the same mask in each step, and BatchNorm's running mean never changes (Flax
# 0.12.8).
#
# With `nnx.scan` the order matters. `nnx.scan(nnx.remat(block))` keeps only each block's input, but
# `nnx.remat(nnx.scan(block))` saves no memory. Its backward first repeats the whole scan, and then
# all blocks' activations are in memory at once (Flax 0.12.8).
#
# Linen and Haiku create parameters while the function runs, so a plain `jax.checkpoint` can't wrap
# a part of the model. Use the libraries' own wrappers, which pass the parameters through. As in
# chapter 15, we count what a compiled forward returns for backward, in units of one block's input.

# %% id="nnx-block"
# needs jax, optax, flax
from flax import nnx


class NNXBlock(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.dense(x))


class NNXModel(nnx.Module):
    def __init__(self, run_block, rngs):
        blocks = [NNXBlock(rngs) for _ in range(3)]
        self.blocks = getattr(nnx, "List", list)(blocks)  # a list before flax 0.12
        self.head = nnx.Linear(WIDTH, 10, use_bias=False, rngs=rngs)
        self.run_block = run_block

    def __call__(self, x):
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.head(x)


# %% id="nnx-model"
# needs jax, optax, flax
def nnx_model(run_block):  # with two functions, as the other libraries' models have
    layout, state = nnx.split(NNXModel(run_block, nnx.Rngs(0)))
    return SimpleNamespace(
        init=lambda key, x: state, apply=lambda w, x: nnx.merge(layout, w)(x)
    )


# %% id="linen"
# needs jax, optax, flax
import flax.linen as nn


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + jnp.tanh(nn.Dense(WIDTH, use_bias=False)(x))


def linen_model(block):
    return nn.Sequential([*(block() for _ in range(3)), nn.Dense(10, use_bias=False)])


# %% id="haiku"
# needs jax, optax, haiku
import haiku as hk


def haiku_block(i, x):
    return x + jnp.tanh(hk.Linear(WIDTH, with_bias=False, name=f"block_{i}")(x))


def haiku_model(wrapper):
    def model(x):
        for i in range(3):
            x = wrapper(partial(haiku_block, i))(x)
        return hk.Linear(10, with_bias=False, name="head")(x)

    return hk.without_apply_rng(hk.transform(model))


# %% id="modules"
# needs jax, optax, flax, haiku
def module_loss(model, w):
    logits = model.apply(w, jnp.array(x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


models = {
    "NNX": (nnx_model(NNXBlock.__call__), nnx_model(nnx.remat(NNXBlock.__call__))),
    "Linen": (linen_model(LinenBlock), linen_model(nn.remat(LinenBlock))),
    "Haiku": (haiku_model(lambda block: block), haiku_model(hk.remat)),
}
waits = {}
for library, pair in models.items():
    form = jax.tree.structure(pair[0].init(jax.random.key(0), x))
    loaded = jax.tree.unflatten(form, jax_weights)  # all in the order of their names
    losses = [partial(module_loss, model) for model in pair]
    kept = [jax.tree.leaves(jax.jit(partial(jax.vjp, f))(loaded)[1]) for f in losses]
    waits[library] = [sum(leaf.shape == x.shape for leaf in leaves) for leaves in kept]
    error = relative_error(jax.tree.leaves(jax.grad(losses[1])(loaded)))
    print(f"{library}: units {waits[library]}   equal: {error < 1e-4}")

# %% id="verdicts"
# needs jax, optax, flax, haiku
words = ", ".join(f"{library} {a} → {b}" for library, (a, b) in waits.items())
claims.Verdicts(
    claims.Verdict(
        "C08", "shown", "Flax and Haiku have their own wrappers, which end up calling "
        "jax.checkpoint and keep only inputs.", f"units that wait: {words}",
        "counted", "modules"),
)  # fmt: skip

# %% [markdown] id="names-text"
# ## What does each library call it?
#
# For five ideas of the course, the next cell lists the names in each library that you have
# installed.

# %% id="names"
IDEAS = {
    "run again in backward": """torch.utils.checkpoint.checkpoint jax.checkpoint
        jax.remat flax.linen.remat flax.nnx.remat haiku.remat
        tensorflow.recompute_grad keras.remat""",
    "choose by operation": """jax.checkpoint_policies.dots_saveable
        torch.utils.checkpoint.create_selective_checkpoint_contexts""",
    "move to the host": """torch.autograd.graph.save_on_cpu
        jax.checkpoint_policies.save_and_offload_only_these_names""",
    "see what waits": """tutorial_lib.memory.saved
        jax.ad_checkpoint.print_saved_residuals""",
    "accumulate": "torch.Tensor.grad optax.MultiSteps keras.optimizers.Optimizer",
}
for idea, names in IDEAS.items():
    there = [name for name in names.split() if find_spec(name.split(".")[0])]
    print(f"{idea:<24}" + f"\n{'':<24}".join(there))
    assert all(map(resolve_name, there))
