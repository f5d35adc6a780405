# %% [markdown] id="title"
# # Lab 01: the memory ledger of a training step
#
# You write five functions that explain a step's memory, and compare each with a meter
# that counts real tensors to the byte. The last function predicts the peak of a
# training step within 2 %, from **one forward pass**. You apply it to a GPT with 1.56
# billion parameters, without allocating a byte.
#
# **Budget:** 85 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 1.1 | the bytes of the parameters | 2 |
# | 1.2 | the bytes of gradients and optimizer state | 2 |
# | 1.3 | the bytes that autograd saves, layer by layer | 3 |
# | 1.4 | bytes per parameter, for a model of seven billion | 2 |
# | 1.5 | the peak of a step, from one forward pass | 3 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. In each `guess = None`, replace `None` with a number before you go on.

# %% id="imports"
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tutorial_lib import checks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import GIB, Bytes

# %% [markdown] id="the-step"
# ## The step to explain
#
# The step trains a GPT of four blocks with AdamW, on eight sequences of 64 tokens.

# %% id="the-model"
torch.manual_seed(0)
config = GPTConfig(vocab_size=1024, seq_len=64, num_layers=4, num_heads=4, d_model=96)
gpt = GPT(config)
# foreach updates all tensors together: the default on a GPU, but not on a CPU
adamw = torch.optim.AdamW(gpt.parameters(), foreach=True)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)


def step():
    adamw.zero_grad()
    gpt.loss(tokens).backward()
    adamw.step()


# %% [markdown] id="predict-step"
# **Predict.** What percentage of the step's peak memory is activations?

# %% id="guess-step"
guess = None  # percent of the peak

# %% id="measure-step"
report = memory.measure(step, model=gpt, optimizer=adamw, label="a small GPT")
share = 100 * report.at_peak["activations"] / report.peak_bytes
print(f"activations: {share:.0f} %{beside(guess, share)}\n{report}")
report.figure()

# %% [markdown] id="read-step"
# There are no gradients yet, because at the peak backward has hardly begun.

# %% [markdown] id="text-1-1"
# ## 1.1 The parameters
#
# Difficulty 1/5 · importance 4/5 · 8 minutes
#
# Write `parameter_bytes`, which works for any model. Its parameters may have any dtype,
# be frozen, or be shared by two modules. For this GPT the number to reach is:

# %% id="goal-1-1"
goal = int(report.at_peak["parameters"])  # as digits: here each byte counts
on_file = sum(tensor.nbytes for tensor in gpt.state_dict().values())
print(f"the meter counts {goal}; the state_dict has {on_file - goal} more")

# %% [markdown] id="read-1-1"
# The model's `state_dict` has exactly one float32 tensor more than the meter counts.
# Divide the difference by four to get its number of elements. Which tensor is it?


# %% id="answer-1-1"
# exercise 1.1
def parameter_bytes(model: nn.Module) -> int:
    """Count the bytes of a model's parameters.

    Args:
        model: Any module. Frozen parameters count as well; a tensor that several
            modules share counts once; buffers do not count.

    Returns:
        Bytes, exactly.
    """
    ### BEGIN SOLUTION
    return sum(parameter.nbytes for parameter in model.parameters())
    ### END SOLUTION


# %% id="check-1-1"
# check 1.1 (2 points)
checks.lab01.parameter_bytes(parameter_bytes)

# %% [markdown] id="hints-1-1"
# <details><summary>Hint 1: which tensor was counted twice?</summary>
#
# A state_dict has an entry for every *name*. In this GPT the output matrix
# `gpt.head.weight` is also the embedding matrix, so one tensor has two names.
# </details>
# <details><summary>Hint 2: what lists each tensor once</summary>
#
# Unlike `state_dict()`, `gpt.parameters()` yields a shared tensor once.
# </details>
# <details><summary>Hint 3: bytes of one tensor</summary>
#
# One attribute of a tensor is its number of elements times the size of one element.
# </details>

# %% [markdown] id="text-1-2"
# ## 1.2 Gradients and optimizer state
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# Two more things stay in memory after a step: the gradients, and what the optimizer
# keeps from update to update. Which tensors does AdamW keep for a weight of shape (96,)
# in bfloat16?

# %% id="look-at-state"
weight = nn.Parameter(torch.zeros(96, dtype=torch.bfloat16))
weight.grad = torch.zeros_like(weight)
one = torch.optim.AdamW([weight])
one.step()
{name: (tuple(value.shape), value.dtype) for name, value in one.state[weight].items()}

# %% [markdown] id="read-1-2"
# AdamW keeps two averages in the weight's own bfloat16, and a third tensor that
# published tables leave out. Write `gradient_and_state_bytes`. For AdamW's state, count
# all three tensors. For the GPT with AdamW, the numbers to reach are:

# %% id="goal-1-2"
end_of_step = report.curve()[-1]
{name: end_of_step[name] for name in ("gradients", "optimizer_state")}


# %% id="answer-1-2"
# exercise 1.2
def gradient_and_state_bytes(model: nn.Module, optimizer: str) -> dict[str, int]:
    """Count what stays in memory after an update, besides the parameters.

    Args:
        model: Any module; some of its parameters may be frozen, shared, or of another
            dtype.
        optimizer: "sgd" (without momentum), "momentum" (SGD with momentum) or "adamw",
            PyTorch's own.

    Returns:
        Bytes under the keys "gradients" and "optimizer_state".
    """
    ### BEGIN SOLUTION
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = sum(parameter.nbytes for parameter in trained)
    step_counts = 4 * len(trained)  # one float32 scalar for each parameter tensor
    states = {"sgd": 0, "momentum": gradients, "adamw": 2 * gradients + step_counts}
    return {"gradients": gradients, "optimizer_state": states[optimizer]}
    ### END SOLUTION


# %% id="check-1-2"
# check 1.2 (2 points)
checks.lab01.gradient_and_state_bytes(gradient_and_state_bytes)

# %% [markdown] id="hints-1-2"
# <details><summary>Hint 1: who gets a gradient?</summary>
#
# A frozen parameter has `requires_grad=False`. Backward computes no gradient for it,
# and the optimizer skips it.
# </details>
# <details><summary>Hint 2: optimizer states in units of a gradient</summary>
#
# Each gradient has the shape and dtype of its parameter. So does each average that an
# optimizer keeps.
# </details>
# <details><summary>Hint 3: the third tensor</summary>
#
# AdamW counts its updates: for each trained parameter *tensor*, it keeps one float32
# `step` of shape ().
# </details>

# %% [markdown] id="text-1-3"
# ## 1.3 What autograd saves
#
# Difficulty 3/5 · importance 5/5 · 20 minutes
#
# Now compute the activations: the tensors that autograd saves in forward, because a
# backward formula will need them. `memory.saved` calls a function and lists the tensors
# that were saved. Here is its list for Linear, ReLU, Linear:

# %% id="saved-relu"
rows = torch.randn(32, 64)
with_relu = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
relu_saved = memory.saved(lambda: with_relu(rows), params_of=with_relu)
relu_saved

# %% [markdown] id="predict-saved"
# **Predict.** GELU replaces ReLU. By how many KiB do the saved bytes grow? (A tensor of
# 32 rows of 256 floats takes 32 KiB.)

# %% id="guess-saved"
guess = None  # KiB

# %% id="saved-gelu"
with_gelu = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 16))
gelu_saved = memory.saved(lambda: with_gelu(rows), params_of=with_gelu)
more = (gelu_saved.num_bytes - relu_saved.num_bytes) / 1024
print(f"{more:.0f} KiB more{beside(guess, more)}")
gelu_saved

# %% [markdown] id="read-1-3"
# The chain with ReLU keeps two storages (blocks of memory), the chain with GELU three.
# The column *module* names the layer that saved a tensor, and *made by* the operation
# that made it. The last layer's output is in neither list.
#
# Try `memory.saved` on LayerNorm too, in your own cell. Then write `chain_saved_bytes`,
# which computes the total without `memory.saved` or hooks. For Linear, GELU, Linear the
# number to reach is the total above, to the byte.


# %% id="answer-1-3"
# exercise 1.3
def chain_saved_bytes(chain: nn.Sequential, input_shape: tuple[int, ...]) -> int:
    """Count the bytes that autograd saves when a chain of layers runs forward.

    Args:
        chain: Any sequence of nn.Linear, nn.LayerNorm (over the last dimension),
            nn.ReLU and nn.GELU, float32, all trainable. The first layer is a Linear.
        input_shape: Shape of the input, as in (batch, features) or (batch, sequence,
            features). The input itself needs no gradient.

    Returns:
        Bytes of all saved tensors. One storage counts once; the weights do not count.
    """
    ### BEGIN SOLUTION
    *positions, width = input_shape
    num_rows = torch.Size(positions).numel()
    widths, kept, statistics = [width], set(), 0
    for place, layer in enumerate(chain):
        # tensor number `place` goes into this layer, the next one comes out of it
        kept.add(place + 1 if isinstance(layer, nn.ReLU) else place)
        statistics += 2 * num_rows if isinstance(layer, nn.LayerNorm) else 0
        widths.append(
            layer.out_features if isinstance(layer, nn.Linear) else widths[-1]
        )
    return 4 * (num_rows * sum(widths[place] for place in kept) + statistics)
    ### END SOLUTION


# %% id="check-1-3"
# check 1.3 (3 points)
checks.lab01.chain_saved_bytes(chain_saved_bytes)

# %% [markdown] id="hints-1-3"
# <details><summary>Hint 1: what does each backward need?</summary>
#
# | layer | its backward needs |
# |---|---|
# | Linear | its input, for the gradient of the weight |
# | GELU | its input: the slope at x can't be computed from GELU(x) |
# | ReLU | its output: where it is positive the slope is 1, elsewhere 0 |
# | LayerNorm | its input, and two numbers that it computed for each row |
# </details>
# <details><summary>Hint 2: never twice</summary>
#
# Number the tensors, from 0 for the chain's input. Collect the numbers in a set, so
# that a tensor that two layers keep counts once.
# </details>
# <details><summary>Hint 3: sizes</summary>
#
# The number of rows is the product of all dimensions but the last. A tensor has rows
# times width floats, and only Linear changes the width. For each LayerNorm add two
# float32 numbers per row: the mean and the inverse of the standard deviation.
# </details>

# %% [markdown] id="text-1-4"
# ## 1.4 Seven billion parameters
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# For a large model, the memory of parameters, gradients and optimizer state is usually
# given as one number: bytes *per parameter*. The number depends on the recipe:
#
# - **plain**: weights, gradients and optimizer states in float32, or all in float64;
# - **autocast**: float32 weights. Under `torch.autocast`, operations in forward use
#   bfloat16 copies of the weights, which are freed within the step;
# - **pure half**: everything in half precision, as after `model.to(torch.bfloat16)`;
# - **master copy**: weights and gradients in half precision. The optimizer updates a
#   float32 copy of the weights. The copy's own gradient is freed after the update.
#
# Write `bytes_per_parameter`, which counts what is in memory between two steps,
# gradients included. Leave out AdamW's step counts.


# %% id="answer-1-4"
# exercise 1.4
def bytes_per_parameter(
    weights: torch.dtype,
    optimizer: str,
    *,
    autocast: bool = False,
    master_copy: bool = False,
) -> int:
    """Count the bytes that one trained parameter takes between two steps.

    Args:
        weights: Dtype of the model's parameters, as in torch.bfloat16.
        optimizer: "sgd", "momentum" or "adamw".
        autocast: Whether forward runs under torch.autocast; `weights` is float32 then.
        master_copy: Whether the optimizer works on a float32 copy of half-precision
            weights.

    Returns:
        Bytes for weight, gradient, optimizer state and copy.
    """
    ### BEGIN SOLUTION
    num_states = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer]
    weight_and_gradient = 2 * weights.itemsize
    if master_copy:
        return weight_and_gradient + 4 * (1 + num_states)
    # autocast leaves nothing behind
    return weight_and_gradient + num_states * weights.itemsize
    ### END SOLUTION


# %% id="check-1-4"
# check 1.4 (2 points)
checks.lab01.bytes_per_parameter(bytes_per_parameter)

# %% [markdown] id="hints-1-4"
# <details><summary>Hint 1: begin with float32 and AdamW</summary>
#
# The total is 16: one weight, one gradient, two averages, four bytes each.
# </details>
# <details><summary>Hint 2: autocast</summary>
#
# Inside an autocast block `layer.weight.dtype` is still float32, and a gradient has its
# parameter's dtype. After the step, is anything in bfloat16 left?
# </details>
# <details><summary>Hint 3: the master copy</summary>
#
# The optimizer updates a float32 tensor, so its optimizer states are float32. Add the
# half-precision weight, its gradient, and the copy.
# </details>

# %% [markdown] id="llama"
# Llama-2-7B has exactly 6,738,415,616 parameters.
#
# **Predict.** How many of the five `RECIPES` in the next cells fit into 80 GiB, before
# a single activation is stored?

# %% id="guess-llama"
guess = None  # recipes

# %% id="llama-recipes"
LLAMA_2_7B = 6_738_415_616


RECIPES = {
    "float32, AdamW": (torch.float32, "adamw", {}),
    "autocast, AdamW": (torch.float32, "adamw", {"autocast": True}),
    "bfloat16 and copy, AdamW": (torch.bfloat16, "adamw", {"master_copy": True}),
    "bfloat16, AdamW": (torch.bfloat16, "adamw", {}),
    "bfloat16, SGD": (torch.bfloat16, "sgd", {}),
}


def llama_ledger(weights, optimizer, switches):
    weight_bytes = LLAMA_2_7B * weights.itemsize
    total = LLAMA_2_7B * bytes_per_parameter(weights, optimizer, **switches)
    rest = total - 2 * weight_bytes  # optimizer states, and the copy if there is one
    return {
        "parameters": weight_bytes,
        "gradients": weight_bytes,
        "optimizer_state": rest,
    }


# %% id="llama-bars"
bars = {name: llama_ledger(*recipe) for name, recipe in RECIPES.items()}
fits = sum(sum(bar.values()) <= 80 * GIB for bar in bars.values())
print(f"{fits} of {len(bars)} fit into 80 GiB{beside(guess, fits)}")
plots.ledger_bars(bars, title="Llama-2-7B between two steps", cards_gib=(16, 24, 80))

# %% [markdown] id="read-llama"
# The three recipes that don't fit take the same number of bytes. Autocast and master
# copies make activations smaller and steps faster.

# %% [markdown] id="text-1-5"
# ## 1.5 The peak, from one forward pass
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# The peak depends on what is in memory *at the same time*. Parameters, buffers and
# optimizer state are always there. Two phases compete for the peak:
#
# - **Backward.** It uses the saved tensors from the last to the first, and frees each
#   tensor after its use. While it uses one, memory holds three things:
#   - (a) this tensor, and all tensors that were saved before it;
#   - (b) two activation gradients, one coming in and one going out. Assume that each is
#     as large as the saved tensor;
#   - (c) the weights' gradients of the module that saved the tensor, and of all modules
#     after it in forward.
# - **The update.** The saved tensors are gone, and all gradients are in memory. AdamW
#   (`foreach`) makes temporaries as large as all gradients together. SGD, with or
#   without momentum, makes none.
#
# Write `predict_peak`. You may use your earlier functions, and run `loss_fn` once,
# inside `memory.saved(loss_fn, params_of=model)`. The result's `rows`, one per saved
# tensor, are in the order of forward. A row has `num_bytes` and `module`, the name of
# the module that saved the tensor.
#
# The check wants five peaks within 2 % of the meter's, and refuses `memory.measure`,
# `watch` and `predict`.
#
# `gradients_left` adds up (c) for each module:


# %% id="given-1-5"
def gradients_left(model: nn.Module) -> dict[str, int]:
    """Return, by module name, the gradients' bytes once backward reaches the module.

    Modules that contain modules have no entry: reaching them adds no gradients.
    The model must run its modules in the order in which it declares them.
    """
    leaves = [(name, m) for name, m in model.named_modules() if not [*m.children()]]
    sizes = [
        sum(p.nbytes for p in m.parameters() if p.requires_grad) for _, m in leaves
    ]
    return {name: sum(sizes[place:]) for place, (name, _) in enumerate(leaves)}


# %% id="answer-1-5"
# exercise 1.5
def predict_peak(
    model: nn.Module, loss_fn: Callable[[], Tensor], optimizer: str
) -> int:
    """Predict the peak memory of a steady training step from one forward pass.

    Args:
        model: Runs its modules in the order in which it declares them.
        loss_fn: Runs the model forward on one batch and returns the loss.
        optimizer: "sgd", "momentum" or "adamw", with foreach=True.

    Returns:
        Bytes at the fullest moment of forward, backward and update.
    """
    ### BEGIN SOLUTION
    rows = memory.saved(loss_fn, params_of=model).rows
    after = gradient_and_state_bytes(model, optimizer)
    fixed = parameter_bytes(model) + sum(b.nbytes for b in model.buffers())
    fixed += after["optimizer_state"]
    still_saved = sum(row.num_bytes for row in rows)
    in_backward, left, left_by = 0, 0, gradients_left(model)
    for row in reversed(rows):
        # a module that contains modules has no entry: keep the previous row's number
        left = left_by.get(row.module, left)
        in_backward = max(in_backward, still_saved + left + 2 * row.num_bytes)
        still_saved -= row.num_bytes
    in_update = after["gradients"] * (2 if optimizer == "adamw" else 1)
    return fixed + max(in_backward, in_update)
    ### END SOLUTION


# %% id="check-1-5"
# check 1.5 (3 points)
checks.lab01.predict_peak(predict_peak)

# %% [markdown] id="hints-1-5"
# <details><summary>Hint 1: what always stays</summary>
#
# Parameters, buffers and optimizer state are part of both phases: add them to the
# larger phase.
# </details>
# <details><summary>Hint 2: the walk</summary>
#
# Begin with everything saved and take the rows in reverse. At each row, add up (a), (b)
# and (c), keep the largest sum, then subtract the row from what is saved. If
# `gradients_left` has no entry for a row's module, use the number that you used for the
# row before.
# </details>
# <details><summary>Hint 3: the update</summary>
#
# For AdamW count the gradients twice, once for themselves and once for the temporaries.
# </details>

# %% [markdown] id="own-step"
# ## Use your prediction
#
# First apply `predict_peak` to this lab's own step:

# %% id="compare-own-step"
own = predict_peak(gpt, lambda: gpt.loss(tokens), "adamw")
f"predicted {Bytes(own)}, counted {report.peak_bytes}"

# %% [markdown] id="large-model"
# Next, take the course's GPT with the sizes of GPT-2 XL, on four sequences of 1024
# tokens. Your function works unchanged under `FakeTensorMode`, where tensors have a
# shape and a dtype but no memory.
#
# **Predict.** With 1.56 billion parameters in float32 and AdamW, how many GiB is the
# step's peak?

# %% id="guess-large"
guess = None  # GiB

# %% id="predict-large"
from torch._subclasses.fake_tensor import FakeTensorMode

XL = GPTConfig(
    vocab_size=50257, seq_len=1024, num_layers=48, num_heads=25, d_model=1600
)


def predict_xl():
    with FakeTensorMode():
        model, words = GPT(XL), torch.zeros(4, XL.seq_len, dtype=torch.long)
        return predict_peak(model, lambda: model.loss(words), "adamw")


large_peak = predict_xl()
print(f"{Bytes(large_peak)}{beside(guess, large_peak / GIB)}")


# %% [markdown] id="judge-large"
# Is that right? The course's `memory.predict` runs the whole step on fake tensors,
# including backward and update:


# %% id="judge-xl"
def make_xl_step():
    model, words = GPT(XL), torch.zeros(4, XL.seq_len, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def xl_step():
        optimizer.zero_grad()
        model.loss(words).backward()
        optimizer.step()

    return xl_step, model, optimizer


judged = memory.predict(make_xl_step, kernels="cpu", label="1.56 billion, 4 x 1024")
print(judged)
plots.ledger_bars({judged.label: judged.at_peak}, cards_gib=(16, 24, 80))

# %% [markdown] id="read-xl"
# Half of the peak is activations, which checkpointing can reduce.

# %% [markdown] id="gpu"
# ## On a GPU
#
# This part is never graded. Expect a small difference: the allocator rounds sizes up,
# and kernels need workspace, which your function doesn't count.

# %% id="gpu-peak"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    large = GPTConfig(
        vocab_size=8192, seq_len=256, num_layers=8, num_heads=8, d_model=512
    )
    model = GPT(large).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    words = torch.randint(0, large.vocab_size, (8, large.seq_len), device="cuda")

    def gpu_step():
        optimizer.zero_grad()
        model.loss(words).backward()
        optimizer.step()

    predicted = predict_peak(model, lambda: model.loss(words), "adamw")
    measured = memory.measure(gpu_step, model=model, optimizer=optimizer).peak_bytes
    print(f"predicted {Bytes(predicted)}, measured {measured}")

# %% [markdown] id="end"
# Chapter 02 asks when you can trust a measurement.
