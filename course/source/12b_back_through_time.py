# %% [markdown] id="title"
# # Back through time
#
# This companion of chapter 12 is optional: no lab and no later chapter needs it. A recurrent
# network is like a deep network with one layer per time step. The layers share weights, but each
# has its own activations, and sequences have hundreds of steps. This companion answers two
# questions:
#
# 1. Can memory grow only with the logarithm of the number of steps?
# 2. Usually, people save memory with truncated backpropagation. Is that still the same training?
#
# **Budget:** 40 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import statistics
import time
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import claims, memory, plots
from tutorial_lib.guesses import beside

torch.set_num_threads(1)  # small steps lose by waiting for a second core


def checkpoint(function, *args, **options):
    return torch_checkpoint(function, *args, use_reentrant=False, **options)


# %% [markdown] id="halving-text"
# ## Can memory grow with $\log T$?
#
# ![Each level of halving checkpoints the left half of eight steps and cuts the right half again.
# While backward is in the last step, three states wait. The steps run 4, 3, 3, 2, 3, 2, 2 and 1
# times.](figures/12-halving.svg)
#
# You can cut the $T$ steps into segments of $\sqrt T$, as chapter 06 does with blocks. Chen et al.
# (2016) also propose *halving*, for $O(\log T)$ memory: cut the sequence in the middle, checkpoint
# the left half, and do the same within each half. While backward is in the last step, only the
# inputs of $\log_2 T$ left halves are in memory.
#
# The price is recomputation. On each of the $\log_2 T$ levels, half of the steps are in a left
# half, and these run one more time. So on average a step runs $1 + \frac12 \log_2 T$ times.


# %% id="segments"
def unrolled(cell, xs, state):
    for x in xs:
        state = cell(x, state)
    return state


def segments(cell, xs, state):
    size = round(len(xs) ** 0.5)
    for start in range(0, len(xs), size):
        state = checkpoint(unrolled, cell, xs[start : start + size], state)
    return state


def halving(cell, xs, state):
    if len(xs) == 1:
        return unrolled(cell, xs, state)
    middle = len(xs) // 2
    state = checkpoint(halving, cell, xs[:middle], state)
    return halving(cell, xs[middle:], state)


# %% [markdown] id="units-text"
# We count by how much one forward and backward pass through a plain `nn.LSTMCell` raises the peak.
# One unit is the bytes of one hidden state. In the tables, the average number of runs per step is
# in parentheses.


# %% id="units"
def make_step(read, length, width=64):
    torch.manual_seed(0)
    cell = nn.LSTMCell(2, width)
    xs, zeros = torch.randn(32, length, 2).unbind(dim=1), torch.zeros(32, width)

    def step():
        read(cell, xs, (zeros, zeros))[0].square().mean().backward()
        cell.zero_grad()

    return step, cell


# %% id="count-units"
UNIT = 32 * 64 * 4  # bytes of one hidden state


def units(read, length):
    (step, cell), runs = make_step(read, length), []
    cell.register_forward_pre_hook(lambda module, args: runs.append(1))
    report = memory.measure(step, model=cell, warmup=0)
    return (report.peak_bytes - report.baseline_bytes) / UNIT, len(runs) / length


def as_text(row):
    return {f"T = {n}": f"{peak:.1f} ({runs:g})" for n, (peak, runs) in row.items()}


# %% [markdown] id="predict-log"
# **Predict.** From 64 steps to 256, by how many units does the peak of `halving` grow?

# %% id="guess-log"
guess = None  # units

# %% id="log-table"
LENGTHS = (16, 64, 256)
plans = {"everything kept": unrolled, "segments": segments, "halving": halving}
table = {name: {n: units(read, n) for n in LENGTHS} for name, read in plans.items()}
grown = table["halving"][256][0] - table["halving"][64][0]
print(f"halving grows by {grown:g} units{beside(guess, grown)}")
texts = {name: as_text(row) for name, row in table.items()}
pd.DataFrame(texts).T.rename_axis("units (runs)")

# %% [markdown] id="log-read"
# The number of runs per step is as computed above: 3, 4 and 5. But the memory of `halving` isn't
# logarithmic. It grows by one unit per step, and soon exceeds the memory of plain segments. Every
# gradient is right, so only the memory shows that something is wrong.
#
# One tensor too many per step stays in memory. Why? `checkpoint` tracks only tensors that are
# arguments themselves, but an LSTM's state is a tuple of two tensors, `h` and `c`. An inner
# checkpoint keeps a reference to the tuple, so the outer checkpoint can't free the tuple's tensors.
# Instead, pass `h` and `c` as two arguments:


# %% id="flat-state"
def flat_halving(cell, xs, h, c):
    if len(xs) == 1:
        return unrolled(cell, xs, (h, c))
    middle = len(xs) // 2
    h, c = checkpoint(flat_halving, cell, xs[:middle], h, c)
    return flat_halving(cell, xs[middle:], h, c)


def halving_flat(cell, xs, state):
    return flat_halving(cell, xs, *state)


# %% id="flat-table"
row = table["halving, flat"] = {n: units(halving_flat, n) for n in LENGTHS}
of_256 = {name: f"{row[256][0]:.1f}" for name, row in table.items()}
print("256 steps, units:", ", ".join(f"{name} {size}" for name, size in of_256.items()))
pd.DataFrame({"halving, flat": as_text(row)}).T.rename_axis("units (runs)")

# %% [markdown] id="flat-read"
# Now the memory is logarithmic. A sequence four times as long has two more levels, each with an `h`
# and a `c`, so it needs only four more units.

# %% id="log-figure"
curves = {}
for name, row in table.items():
    curves[name] = {n: peak * UNIT for n, (peak, _) in row.items()}
title = "An LSTM over time: peak of forward and backward"
plots.growth(curves, xlabel="steps", title=title)

# %% [markdown] id="price-text"
# ### What does it cost?
#
# A step that runs $k$ times costs $k$ forwards and one backward, instead of one of each. We count
# the FLOPs of 16 steps of an LSTM cell of width 1,024, and measure the time on your machine. At
# this width, matmuls take most of the time.

# %% id="log-flops"
wide, flops = {}, {}
for read in (unrolled, segments, halving_flat):
    step = wide[read.__name__] = make_step(read, 16, width=1024)[0]
    with FlopCounterMode(display=False) as counter:
        step()
    flops[read.__name__] = counter.get_total_flops()
more = {name: f"{count / flops['unrolled']:.2f}" for name, count in flops.items()}
pd.DataFrame({"FLOPs, times": more})


# %% id="log-time"
# NBVAL_IGNORE_OUTPUT
def seconds(name):
    start = time.perf_counter()
    wide[name]()
    return time.perf_counter() - start


for name in ("segments", "halving_flat"):
    ratios = [seconds(name) / seconds("unrolled") for _ in range(3)]
    print(f"{name:<13} {statistics.median(ratios):.1f} times as long")

# %% [markdown] id="price-read"
# Usually you would use segments, and halving only if nothing else fits. With the same number of
# states in memory, Revolve needs fewer runs than halving (chapter 06c).
#
# On a GPU nobody unrolls a recurrent network cell by cell: `nn.LSTM` runs many steps in one cuDNN
# call and keeps its intermediates in one buffer. So split a long sequence over several calls, and
# put a checkpoint around each call.

# %% [markdown] id="truncated-text"
# ## Is truncated backpropagation the same?
#
# Many people use *truncated* backpropagation instead. They `detach` the state every $K$ steps, so
# that gradients flow only within one window of $K$ steps. Then memory does not grow with the
# length, and nothing is recomputed. What is lost?
#
# Here is a task that shows it. The network reads fifty numbers, each +1 or -1. One of the first ten
# is marked. After the last number, the network must output the sign of the marked number.
#
# The network must remember for up to fifty steps, so we initialize the gates to make the state's
# elements last for 1 to 49 steps (Tallec and Ollivier, 2018).

# %% id="task"
STEPS, WIDTH, WINDOW = 50, 32, 10


def sequences(batch, generator):
    values = torch.randint(2, (batch, STEPS), generator=generator) * 2.0 - 1
    marked = torch.randint(10, (batch,), generator=generator)
    marks = F.one_hot(marked, STEPS).float()
    answers = (values * marks).sum(1).gt(0).long()
    return torch.stack([values, marks], dim=2).unbind(dim=1), answers


# %% id="reader"
def make_reader():
    torch.manual_seed(0)
    reader = nn.ModuleDict({"cell": nn.LSTMCell(2, WIDTH), "head": nn.Linear(WIDTH, 2)})
    with torch.no_grad():
        memory_length = torch.empty(WIDTH).uniform_(1, STEPS - 1).log()
        nn.init.zeros_(reader["cell"].bias_hh)
        reader["cell"].bias_ih[:WIDTH] = -memory_length  # write
        reader["cell"].bias_ih[WIDTH : 2 * WIDTH] = memory_length  # keep
    return reader


# %% [markdown] id="ways-text"
# We compare three ways: whole, checkpointed and truncated. They differ only in how they treat each
# window of ten steps:


# %% id="ways"
def task_loss(way, reader, xs, answers):
    h = c = torch.zeros(len(answers), WIDTH)
    for start in range(0, STEPS, WINDOW):
        window = xs[start : start + WINDOW]
        if way == "truncated":
            h, c = h.detach(), c.detach()
        if way == "checkpointed":
            h, c = checkpoint(unrolled, reader["cell"], window, (h, c))
        else:
            h, c = unrolled(reader["cell"], window, (h, c))
    return F.cross_entropy(reader["head"](h), answers)


# %% [markdown] id="predict-truncated"
# We compute the gradient of one batch in all three ways.
#
# **Predict.** How far is the truncated gradient from the true gradient, as a percentage of the true
# gradient's norm?

# %% id="guess-truncated"
guess = None  # %


# %% id="first-gradient"
def first_step(way):
    reader.zero_grad()
    task_loss(way, reader, xs, answers).backward()


reader, peaks, gradients = make_reader(), {}, {}
xs, answers = sequences(32, torch.Generator().manual_seed(1))
for way in ("whole", "checkpointed", "truncated"):
    report = memory.measure(partial(first_step, way), model=reader, warmup=0)
    peaks[way] = str(report.peak_bytes)
    gradients[way] = torch.cat([p.grad.flatten() for p in reader["cell"].parameters()])

# %% id="gradient-table"
true = gradients["whole"]
print("checkpointed equal:", torch.equal(gradients["checkpointed"], true))
off = 100 * float((gradients["truncated"] - true).norm() / true.norm())
print(f"truncated: off by {off:.0f} % of the true length{beside(guess, off)}")
pd.DataFrame({"peak": peaks})

# %% [markdown] id="gradient-read"
# Checkpointing needs hardly more memory than truncation, since all it keeps in addition is the
# state at the start of each window. Its gradient is the true gradient, to the last bit.
#
# The truncated gradient has only the part from the last ten steps, which never contain a mark. Can
# a network still learn the task? We train with checkpoints and with truncation, for 120 updates
# with Adam on the same batches:

# %% id="train-readers"
# NBVAL_IGNORE_OUTPUT
history = {}
for way in ("checkpointed", "truncated"):
    reader, generator = make_reader(), torch.Generator().manual_seed(0)
    optimizer, history[way] = Adam(reader.parameters(), lr=1e-2), {}
    for update in range(1, 121):
        loss = task_loss(way, reader, *sequences(32, generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history[way][update] = loss.item()
title = "Which of fifty numbers was marked? (0.69 is guessing)"
plots.training_curves(history, xlabel="updates", ylabel="loss", title=title)

# %% [markdown] id="train-read"
# With truncation, the loss stays at the logarithm of two, the loss of guessing. No gradient tells
# the cell to store the marked number when it appears. With checkpoints, the network guesses for
# half of the training, and then learns the task.
#
# Truncation is fine if a short horizon is enough, as it often is for text. But it isn't the same
# training. Checkpoints over time keep the training the same, at the cost of one more forward.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict("C17", "shown", "Over a long sequence, segments need memory for the "
        "square root of the steps, and halving for their logarithm if the state is "
        "passed flat. Truncation trains differently.", "256 steps: "
        f"{of_256['everything kept']}, {of_256['segments']} and "
        f"{of_256['halving, flat']} units", "counted", "flat-table"),
)  # fmt: skip
