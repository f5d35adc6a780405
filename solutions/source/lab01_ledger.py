# %% [markdown] id="title"
# # Lab 01: the memory ledger of a training step
#
# A training step that fails says "out of memory" and gives one number. In this lab you write the
# ledger behind that number: five functions, each compared with a meter that counts real tensors to
# the byte. The last one takes a model that it has never seen, runs **one forward pass**, and gives
# the peak of the whole training step within 2 %. At the end you apply it to a GPT with 1.56 billion
# parameters, without allocating one byte of it.
#
# **Budget:** 75 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 1.1 | the bytes of the parameters | 2 |
# | 1.2 | the bytes of gradients and optimizer state | 2 |
# | 1.3 | the bytes that autograd saves, layer by layer | 3 |
# | 1.4 | bytes per parameter for seven billion of them | 2 |
# | 1.5 | the peak of a step, from one forward pass | 3 |
#
# Each answer goes into a cell that begins with `# exercise`, and the check stands right below it.
# Helper functions, imports and constants may also stand in cells of your own above it. Where
# a cell says `guess = None`, write a number before you go on.

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
# A GPT of four blocks, AdamW, eight sequences of 64 tokens. The output matrix of this GPT *is* its
# embedding matrix.

# %% id="the-model"
torch.manual_seed(0)
config = GPTConfig(vocab_size=1024, seq_len=64, num_layers=4, num_heads=4, d_model=96)
gpt = GPT(config)
# foreach updates all tensors together. A GPU does so unasked; a CPU has to be told.
adamw = torch.optim.AdamW(gpt.parameters(), foreach=True)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)


def step():
    adamw.zero_grad()
    gpt.loss(tokens).backward()
    adamw.step()


# %% [markdown] id="predict-step"
# **Predict.** How many per cent of the peak are activations?

# %% id="guess-step"
guess = None  # per cent of the peak

# %% id="measure-step"
report = memory.measure(step, model=gpt, optimizer=adamw, label="a small GPT")
share = 100 * report.at_peak["activations"] / report.peak_bytes
print(f"activations: {share:.0f} %{beside(guess, share)}\n{report}")
report.figure()

# %% [markdown] id="read-step"
# Activations are the largest part, and gradients are missing: at the peak, the backward pass has
# hardly begun. Every part of this picture is one of your exercises. The two areas at the bottom are
# 1.1 and 1.2, the ramp is 1.3, and the peak on top of the ramp is 1.5.

# %% [markdown] id="text-1-1"
# ## 1.1 The parameters
#
# Difficulty 1/5 · importance 4/5 · 8 minutes
#
# Write `parameter_bytes`. It must work for any model: parameters of any dtype, some of them frozen,
# some shared by two modules. For this GPT:

# %% id="goal-1-1"
goal = int(report.at_peak["parameters"])  # as digits: here each byte counts
on_file = sum(tensor.nbytes for tensor in gpt.state_dict().values())
print(f"the meter counts {goal}; the state_dict has {on_file - goal} more")

# %% [markdown] id="read-1-1"
# What the model would write to a file, its `state_dict`, is larger by exactly one tensor. Divide
# the difference by four bytes and you can name its shape. Find out which tensor it is before you
# write.


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
# <details><summary>Hint 1: which tensor was too many?</summary>
#
# A state_dict has an entry for every *name*. `gpt.head.weight is gpt.token_embedding.weight` is
# true: two names, one tensor.
# </details>
# <details><summary>Hint 2: where to look for each tensor once</summary>
#
# One of the module's own iterators gives learnable tensors only, and none twice. See
# `help(gpt.parameters)`.
# </details>
# <details><summary>Hint 3: bytes of one tensor</summary>
#
# A tensor knows its number of elements, the size of one element, and the product of both. Nothing
# here needs a table of dtypes.
# </details>

# %% [markdown] id="text-1-2"
# ## 1.2 Gradients and optimizer state
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# Two more things stay: the gradients that the backward pass leaves, and what the optimizer
# remembers from update to update. Which tensors does AdamW keep for a weight of shape (96,) in
# bfloat16?

# %% id="look-at-state"
weight = nn.Parameter(torch.zeros(96, dtype=torch.bfloat16))
weight.grad = torch.zeros_like(weight)
one = torch.optim.AdamW([weight])
one.step()
{name: (tuple(value.shape), value.dtype) for name, value in one.state[weight].items()}

# %% [markdown] id="read-1-2"
# Two averages in the weight's own bfloat16 (many published tables assume float32 here), and a third
# tensor that no table mentions. To be exact to the byte, you need it. The numbers to reach for the
# GPT of this lab:

# %% id="goal-1-2"
end_of_step = report.curve()[-1]
{name: end_of_step[name] for name in ("gradients", "optimizer_state")}


# %% id="answer-1-2"
# exercise 1.2
def gradient_and_state_bytes(model: nn.Module, optimizer: str) -> dict[str, int]:
    """Count what stays in memory after an update, beside the parameters.

    Args:
        model: Any module; some of its parameters may be frozen, shared, or of another
            dtype.
        optimizer: "sgd" (without momentum), "momentum" (SGD with it) or "adamw",
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
# A frozen parameter has `requires_grad=False`. Backward leaves nothing for it, and an optimizer
# skips whatever has no gradient.
# </details>
# <details><summary>Hint 2: states in units of a gradient</summary>
#
# A gradient has the shape and the dtype of its parameter, and so has each tensor that momentum or
# Adam keeps for it. How many are there for each of the three optimizers?
# </details>
# <details><summary>Hint 3: the third tensor</summary>
#
# AdamW counts its updates. `step` has shape () and dtype float32 whatever the weight's dtype is,
# and there is one for each parameter *tensor* that is trained.
# </details>

# %% [markdown] id="text-1-3"
# ## 1.3 What autograd saves
#
# Difficulty 3/5 · importance 5/5 · 20 minutes
#
# Now the ramp. Forward computes tensors, and most are freed at once. Autograd keeps those that a
# backward formula will need. Which ones, depends on the operation. `memory.saved` calls a function
# and lists every tensor that autograd keeps. Here for Linear, ReLU, Linear, on 32 rows of 64
# floats, 256 wide inside:

# %% id="saved-relu"
rows = torch.randn(32, 64)
with_relu = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
relu_saved = memory.saved(lambda: with_relu(rows), params_of=with_relu)
relu_saved

# %% [markdown] id="predict-saved"
# **Predict.** GELU in place of ReLU. By how many KiB does the sum grow? (A tensor of 32 rows of 256
# floats is 32 KiB.)

# %% id="guess-saved"
guess = None  # KiB

# %% id="saved-gelu"
with_gelu = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 16))
gelu_saved = memory.saved(lambda: with_gelu(rows), params_of=with_gelu)
more = (gelu_saved.num_bytes - relu_saved.num_bytes) / 1024
print(f"{more:.0f} KiB more{beside(guess, more)}")
gelu_saved

# %% [markdown] id="read-1-3"
# Two storages for ReLU, three for GELU. The column *made by* says who made a tensor, not who asked
# for it. And the output of the last layer is in neither list.
#
# Ask `memory.saved` about LayerNorm too, in a cell of your own. Then write `chain_saved_bytes`
# without it: to go through the layers is the exercise, and the check refuses the instrument.


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
# | GELU | its input: the slope at x cannot be read off GELU(x) |
# | ReLU | its output: where that is positive the slope is 1, elsewhere 0 |
# | LayerNorm | its input, and two numbers that it computed for each row |
# </details>
# <details><summary>Hint 2: never twice</summary>
#
# Number the tensors: 0 is the input of the chain, 1 what comes out of the first layer, and so on.
# Each layer asks for one of its two neighbours. Collect the numbers in a set, so that two layers
# that ask for the same tensor count once.
# </details>
# <details><summary>Hint 3: sizes</summary>
#
# All dimensions but the last are rows. A tensor has as many floats as rows times its width, and
# only Linear changes the width. Add LayerNorm's mean and inverse deviation: two float32 for each
# row.
# </details>

# %% [markdown] id="text-1-4"
# ## 1.4 Seven billion parameters
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# For a large model the parameters, gradients and states come to one number: bytes *per parameter*.
# Four recipes:
#
# - **plain**: weights, gradients and states in one dtype, PyTorch's optimizers;
# - **autocast**: float32 weights, and `torch.autocast` around forward. The operations run in
#   bfloat16, on copies that are freed within the step;
# - **pure half**: `model.to(torch.bfloat16)` and nothing else;
# - **master copy**: weights and gradients in half precision, and a float32 copy of the weights, on
#   which the optimizer works. The copy's own gradient is made for the update and freed at once.
#
# Count what is there between two steps: weights, gradients, states, and the copy. (Ignore step
# counts: four bytes for a tensor of millions.)


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
# One weight, one gradient, two averages, four bytes each.
# </details>
# <details><summary>Hint 2: autocast</summary>
#
# `layer.weight.dtype` inside an autocast block is still float32, and a gradient has its parameter's
# dtype. What did autocast change that is still there after the step?
# </details>
# <details><summary>Hint 3: the master copy</summary>
#
# The optimizer sees a float32 parameter, so its states are float32. Beside them lie the
# half-precision weight, its gradient, and the copy.
# </details>

# %% [markdown] id="llama"
# Now apply it. Llama-2-7B has exactly 6,738,415,616 parameters.
#
# **Predict.** How many of the five recipes below fit into 80 GiB, before a single activation is
# stored?

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
    rest = total - 2 * weight_bytes  # states, and the copy where there is one
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
# The other three have very different names and one price. Mixed precision as it is usually done
# saves activations and time, and not one byte of these. And what is left free on the large card is
# not all for activations: the update itself needs memory, as 1.5 shows.

# %% [markdown] id="text-1-5"
# ## 1.5 The peak, from one forward pass
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# You have all entries. Which of them are there *at the same time*? Two phases compete for the peak.
# Parameters, buffers and optimizer state are there in both.
#
# - **Backward.** It goes through the saved tensors from the last to the first, and frees each after
#   its use. At each of them there are: all that is still saved; two flowing gradients, the one that
#   arrives and the one that leaves (take both to be as large as the saved tensor); and the
#   gradients of the weights of all layers that have gone backward.
# - **The update.** There are no activations, and all gradients. AdamW (`foreach`) makes temporaries
#   as large as all gradients together; SGD makes none.
#
# You may run `loss_fn` once, inside `memory.saved(loss_fn, params_of=model)`, and use your own
# functions. Its `rows` stand in the order of forward, each with its `num_bytes` and the name of the
# `module` that saved it. You may not call `memory.measure`, `watch` or `predict`, because the check
# compares with them. It asks for five peaks, each within 2 %: a GPT, a U-Net, a VGG, and a wide MLP
# with two different optimizers.
#
# Which gradients of weights are there when the backward pass comes to a row? Those of its module
# and of all modules after it. This function adds them up:


# %% id="given-1-5"
def gradients_left(model: nn.Module) -> dict[str, int]:
    """Give the bytes of gradients there when backward comes to a module, by its name.

    Modules with modules inside have no entry: their own operations stand at no one
        place. A weight
    that two modules share counts at both. The model must run its modules in the order
    in which it declares them.
    """
    leaves = [(name, m) for name, m in model.named_modules() if not [*m.children()]]
    sizes = [
        sum(p.nbytes for p in m.parameters() if p.requires_grad) for _, m in leaves
    ]
    return {name: sum(sizes[place:]) for place, (name, _) in enumerate(leaves)}


# %% [markdown] id="predict-1-5"
# Activations are fullest at the start of the backward pass. Is that where the peak is? Look at the
# last tensors that forward saved:

# %% id="last-saved"
for row in memory.saved(lambda: gpt.loss(tokens), params_of=gpt).rows[-5:]:
    print(f"{row.num_bytes:>9}  made by {row.op or 'no operation'}, {row.shape}")

# %% [markdown] id="read-1-5"
# In this GPT it is. The scores for every word, 512 rows of 1024, are the largest tensor of the step
# and among the last to be saved. So backward meets them first: two gradients of their size flow
# while nothing has been freed yet, and no gradient of a weight is there.
#
# Other models differ. A U-Net saves its largest tensors some layers before its last. A wide MLP on
# a handful of rows saves hardly anything. A VGG has most of its weights in the layer that backward
# comes to first, and most of its activations in the convolutions before that layer. So most
# gradients and most activations are there together. Where are their peaks?


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
        # a block's own row stands at no place: as before
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
# <details><summary>Hint 1: what never leaves</summary>
#
# Parameters, buffers and optimizer state are part of both moments. Add them once, at the end, to
# the larger of the two.
# </details>
# <details><summary>Hint 2: the walk</summary>
#
# Begin with everything saved. Take the rows in reverse. At each: note what is still saved, plus two
# gradients of this row's size, plus what `gradients_left` says of its module. Keep the largest
# note, then subtract the row. Where a row's module has no entry, take the number of the row before.
# A GPT's largest tensor comes at the very beginning of that walk, a U-Net's later.
# </details>
# <details><summary>Hint 3: the update</summary>
#
# For AdamW count the gradients twice, once for themselves and once for the temporaries. For SGD,
# with or without momentum, once.
# </details>

# %% [markdown] id="own-step"
# ## What it is good for
#
# First the step at the beginning of this lab, predicted by your function and counted by the meter:

# %% id="compare-own-step"
own = predict_peak(gpt, lambda: gpt.loss(tokens), "adamw")
f"predicted {Bytes(own)}, counted {report.peak_bytes}"

# %% [markdown] id="large-model"
# Now a model that few machines can hold: the course's GPT with the sizes of GPT-2 XL, four
# sequences of 1024 tokens. (GPT-2 XL as transformers builds it keeps 1.8 times the activations;
# chapter 01b says why.) Under `FakeTensorMode` tensors have a shape, a dtype and no memory. If your
# function looks at nothing else, it works unchanged.
#
# **Predict.** 1.56 billion parameters in float32, AdamW: how many GiB does the step need?

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
# The course's own prediction runs the whole step on fake tensors, backward and update included:


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
# It fits on the largest card only. Parameters and optimizer state alone exceed 16 GiB, and no
# choice of batch changes that. But half of the bar is activations, for a micro-batch of four: that
# half is what this course takes apart.

# %% [markdown] id="gpu"
# ## On a GPU
#
# Never graded, never compared. The same function against CUDA's own allocator, on a larger GPT.
# Expect a few per cent for rounding and workspace.

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
# You can now account for every byte of a training step: what stays, what autograd saves and why,
# and what is there at the same time. Chapter 02 asks when a measurement deserves to be believed,
# and chapter 03 goes on with what autograd saves.
