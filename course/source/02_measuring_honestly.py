# %% [markdown] id="title"
# # Measuring honestly
#
# One model, one technique, one instrument that counts every byte: by how much does checkpointing
# lower the peak? In this chapter you get six answers, from a quarter to nine tenths. Each is the
# same on every machine.
#
# You reproduce five ways to measure wrongly that stand in published notebooks, find what each of
# them really measured, and fix it.
#
# **Budget:** 65 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import json
import statistics
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tutorial_lib import claims, memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.instruments.recorded import fragmentation
from tutorial_lib.units import human_bytes

torch.set_num_threads(1)  # steadier times on a machine that does other things too

# %% [markdown] id="subject"
# ## First: do both compute the same?
#
# Here is a GPT of eight blocks, with PyTorch's own checkpoint around each or around none. Are the
# gradients equal? Most benchmarks leave this check out.
#
# > **Compare A with A before A with B.** May we ask for equal *bits*? Only where the same step, run
# > twice, gives the same bits. On a GPU it need not: the backward of fused attention, among others,
# > adds with atomic operations, in an order that changes from run to run. On a CPU the last bit
# > depends on the vector instructions of the machine and on the number of threads. A library's
# > switch can change the operations too: with checkpointing on, transformers' T5 keeps no cache. So
# > run the plain step twice first. If it differs from itself, switch on
# > `torch.use_deterministic_algorithms`, or allow B to differ from A about as much as A differs
# > from itself. Chapter 05 has code for it.
#
# **Write.** `gradients`, four lines. If it is right, the cell below it says `True` twice: A with A,
# A with B.

# %% id="subject-model"
config = GPTConfig(num_layers=8)  # width 128, sequences of 128
tokens = torch.zeros(4, 128, dtype=torch.long)  # (batch, sequence)
model = GPT(config)


# %% id="gradients"
def gradients(strategy):
    """Copies of the gradients of `model.loss(tokens)`; clear earlier gradients first.

    Forward and backward run within `segments.applied(model, strategy)`.
    """
    ### BEGIN SOLUTION
    model.zero_grad()
    with segments.applied(model, strategy):
        model.loss(tokens).backward()
    return [p.grad.clone() for p in model.parameters()]
    ### END SOLUTION


# %% id="same-gradients"
plain = gradients("none")
[all(map(torch.equal, plain, gradients(way))) for way in ("none", "per-block")]

# %% [markdown] id="published-text"
# Now a function as tutorials have it: reset the peak counter, forward, backward, read the counter.
# There it reads CUDA's counter, here our meter. So whatever goes wrong is the fault of the
# function.


# %% id="published"
def profile_memory(model, strategy):
    # there: torch.cuda.reset_peak_memory_stats()
    with memory.watch(model=model) as report, segments.applied(model, strategy):
        loss = model.loss(tokens)
        loss.backward()
    return report  # there: torch.cuda.max_memory_allocated()


def saving(standard, checkpointed):
    return round(100 * (1 - checkpointed.peak_bytes / standard.peak_bytes))


# %% id="as-published"
savings = {}
model = GPT(config)
standard = profile_memory(model, "none")
checkpointed = profile_memory(model, "per-block")
savings["as published"] = saving(standard, checkpointed)
print(f"checkpointing saves {savings['as published']} % of the peak")

# %% [markdown] id="predict-order"
# **Predict.** Swap the two measurements: the checkpointed one first, on a fresh model. How many per
# cent does checkpointing save now?

# %% id="guess-order"
guess = None  # % of the peak

# %% id="two-orders"
model = GPT(config)
frugal = profile_memory(model, "per-block")
swapped = saving(profile_memory(model, "none"), frugal)
savings["the other order"] = swapped
print(f"in the other order it saves {swapped} %{beside(guess, swapped)}")

# %% [markdown] id="read-order"
# Nothing changed but the order, and the saving is larger. So the variant that runs second pays for
# something. The categories show what:

# %% id="leftover-gradients"
first, second = standard.at_peak, checkpointed.at_peak
bars = {"first run: none": first, "second run: per block": second}
plots.ledger_bars(bars, title="As published: the second run carries gradients, counted")

# %% [markdown] id="read-leftover"
# ## Fault 1: what the last run left behind
#
# The second run carries the gradients of the first. They are as large as the parameters, and
# nothing frees them. So the technique under test is charged for the other run's gradients. The cure
# is one line between the runs:

# %% id="mended-leftovers"
model = GPT(config)
standard = profile_memory(model, "none")
model.zero_grad()
savings["without leftovers"] = saving(standard, profile_memory(model, "per-block"))
savings

# %% [markdown] id="kept-text"
# Gradients are the visible leftovers. Others are kept by a name: a list of outputs kept for a plot,
# a notebook's `Out[7]`, a `loss` in the outer scope. Three steps keep their logits "for later".
# What do they leave behind?

# %% id="kept"
history = []


def careless_step():
    model.zero_grad()
    logits = model(tokens)
    history.append(logits)  # history.append(logits.detach()) would be enough
    logits.logsumexp(-1).mean().backward()


report = memory.measure(careless_step, model=model, warmup=0, steps=3)
history.clear()
leaks = pd.DataFrame(report.leaks())[["num_bytes", "op", "module"]]
leaks.assign(num_bytes=leaks.num_bytes.map(human_bytes))

# %% [markdown] id="read-kept"
# Three tensors of logits and no more: each backward pass let go of what autograd had saved. A step
# without a backward pass would have kept all of it, except under `torch.no_grad()`.
# `report.leaks()` names the operation and the module to look for. An honest comparison checks that
# nothing is left, or runs each variant in a process of its own.
#
# ## Fault 2: no warm-up
#
# The published function has no optimizer. Most training steps do, and Adam makes its two states in
# the first `step()`.
#
# **Write.** `training`, with AdamW and `foreach=True`, as a GPU updates.
#
# **Predict.** The same step is measured twice: when it runs first, and when it runs for the second
# time. By how many P (bytes of the parameters) is the peak of the backward pass higher the second
# time?

# %% id="guess-warmup"
guess = None  # P


# %% id="first-and-steady"
def training(strategy, warmup):
    """Measure a whole step of a new `GPT(config)`, within `segments.applied`.

    `memory.measure` takes `warmup`, the number of steps before the measured one.
    """
    ### BEGIN SOLUTION
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model.loss(tokens).backward()
        optimizer.step()

    with segments.applied(model, strategy):
        return memory.measure(step, model=model, optimizer=optimizer, warmup=warmup)
    ### END SOLUTION


# %% id="first-and-steady-phases"
first, steady = training("none", warmup=0), training("none", warmup=1)
P = steady.at_peak["parameters"]
gained = (steady.phases["backward"] - first.phases["backward"]) / P
print(f"backward: {gained:.2f} P more{beside(guess, gained)}")
phases = pd.DataFrame({"first step": first.phases, "steady step": steady.phases}) / P
phases.round(2)  # peaks in P

# %% [markdown] id="read-warmup"
# A job can survive its first step and run out of memory in its second for this reason. And a
# benchmark of Adam without warm-up reads up to 2 P too low. A variant whose peak is the update
# reads right, because the optimizer states are there by then. So the ratio of two variants can be
# wrong too.
#
# ## Six ways to state one saving
#
# In each pair below, the upper bar is the plain step, the lower the checkpointed one, each at its
# peak. Which pair answers "does my job fit?"
#
# ![Six pairs of bars. What the bars hold differs from pair to pair: with the gradients of another
# run, without, with an optimizer in its first and in a steady step, and activations alone. So the
# saving differs too.](figures/02-six-savings.svg)

# %% id="all-savings"
savings["with AdamW, first step"] = saving(first, training("per-block", warmup=0))
frugal = training("per-block", warmup=1)
savings["with AdamW, steady"] = steady_saving = saving(steady, frugal)
waiting = [max(moment["activations"] for moment in r.curve()) for r in (steady, frugal)]
savings["of activations alone"] = round(100 * (1 - waiting[1] / waiting[0]))
pd.DataFrame({"saved, %": savings})

# %% [markdown] id="read-savings"
# The first two are wrong: they answer no question. The other four are correct answers to four
# questions.
#
# | saving | of what? |
# |---|---|
# | without leftovers | the peak of forward and backward, no optimizer |
# | with AdamW, first step | the peak of the very first step |
# | with AdamW, steady | the peak of every later step: **this one tells whether the job fits** |
# | of activations alone | what autograd keeps |
#
# ## Fault 3: `tracemalloc`
#
# A well-known notebook reports that checkpointing saves 22 %. A reader who ran it again got a
# slightly *larger* peak (rasbt/deeplearning-models, issue 74). The notebook had asked
# `tracemalloc`, which watches Python's own allocator.
#
# **Predict.** A PyTorch tensor of eight million float32 numbers is 32 MiB. How many per cent of
# these bytes does `tracemalloc` see?

# %% id="guess-traced"
guess = None  # %

# %% id="tracemalloc"
tracemalloc.start()
seen = {}
for name, make in (("torch", torch.ones), ("numpy", np.ones)):
    before, _ = tracemalloc.get_traced_memory()
    array = make(2**23)
    traced = tracemalloc.get_traced_memory()[0] - before
    seen[name] = round(100 * traced / array.nbytes)
tracemalloc.stop()
del array
print(f"of PyTorch's tensor {seen['torch']} %{beside(guess, seen['torch'])}")
print(f"of NumPy's array {seen['numpy']} %")

# %% [markdown] id="read-tracemalloc"
# NumPy reports its arrays to `tracemalloc`. PyTorch gets its memory in C++ and reports nothing. So
# a comparison of two training steps compares Python objects: frames, closures, the bookkeeping of
# checkpointing itself. For this instrument checkpointing *costs* memory
# ([02b](02b_allocator_and_profilers.ipynb) shows it). Every instrument needs a positive control.
# Before you believe what it says of your change, show that it sees a change whose size you know.
#
# ## Fault 4: one segment
#
# The notebook of fault 3 called `checkpoint_sequential(..., segments=1)`. Others call
# `checkpoint(model, x)`, once, around everything.
#
# **Predict.** Eight blocks, one `checkpoint` around all of them. By how many per cent does the peak
# fall?

# %% id="guess-segments"
guess = None  # %

# %% id="segments"
blocks = nn.Sequential(*(Block(config) for _ in range(8)))
x = torch.randn(4, 128, 128)  # (batch, sequence, width)
segmented = partial(checkpoint_sequential, blocks, input=x, use_reentrant=False)
runs = {
    "none": lambda: blocks(x),
    "checkpoint_sequential, 1": partial(segmented, segments=1),
    "checkpoint, around all": lambda: checkpoint(blocks, x, use_reentrant=False),
    "checkpoint_sequential, 8": partial(segmented, segments=8),
}

# %% id="segments-count"
calls = []
blocks[0].register_forward_pre_hook(lambda module, args: calls.append(module))


def step(forward):
    blocks.zero_grad()
    calls.clear()
    forward().sum().backward()


# %% id="segments-table"
reports, rows = {}, {}
for name, forward in runs.items():
    way = partial(step, forward)
    reports[name] = report = memory.measure(way, model=blocks, flops=True)
    factor = report.flops / reports["none"].flops
    rows[name] = str(report.peak_bytes), f"{factor:.2f}", len(calls)
fallen = saving(reports["none"], reports["checkpoint, around all"])
print(f"around all: the peak falls by {fallen} %{beside(guess, fallen)}")
pd.DataFrame(rows, index=["peak", "FLOPs, times", "runs of the first block"]).T

# %% [markdown] id="read-segments"
# Row two did nothing: `checkpoint_sequential` leaves the last segment alone, and the only segment
# is the last. Row three paid a third more FLOPs for not one byte (chapter 06 says why). Row four
# pays less, mostly because recomputation stops early (chapter 05). Peak memory cannot tell rows two
# and three apart. The count of forward runs does. So look at **both sides of the trade**: what you
# got, and what you paid. If a technique that costs time costs none here, it is probably not
# switched on.
#
# ## Fault 5: no synchronise
#
# A GPU works through a queue. Python puts an operation in and goes on. A clock that is read without
# `torch.cuda.synchronize()` therefore times only the putting in. On a CPU, PyTorch returns when the
# work is done, so PyTorch cannot show this fault here. A queue with one worker behind it can. We
# put in twenty matmuls and read the clock at once. By what factor is the reading too small?

# %% id="queue"
# NBVAL_IGNORE_OUTPUT
a = torch.randn(512, 512)


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def submitted():
    return [queue.submit(torch.mm, a, a) for _ in range(20)]


with ThreadPoolExecutor(max_workers=1) as queue:
    unwaited = seconds(submitted)
    waited = seconds(lambda: wait(submitted()))
print(f"without waiting {1000 * unwaited:.1f} ms, with {1000 * waited:.1f} ms")

# %% [markdown] id="times"
# (Your numbers differ; 02b takes the same two readings on a GPU.) Does the *memory* peak need a
# synchronise too? It does not. The allocator counts on the host when an operation is launched, so
# the peak is final as soon as the last line of Python has run.
#
# ## Times: in pairs, and by the median
#
# Bytes repeat exactly; times do not. The first run is cold, other programs run beside it, and one
# slow run in ten spoils a mean. The control is an **A/A test**: compare a step with *itself*. The
# right ratio is 1.00, so everything else is the error of the method. Each method answers seven
# times; the table has its answers in order of size. Whose answers lie closest together?

# %% id="paired"
# NBVAL_IGNORE_OUTPUT
timed = partial(seconds, lambda: model.loss(tokens[:1, :16]).backward())


def ratio(num):
    first, second = [timed() for _ in range(num)], [timed() for _ in range(num)]
    return sum(first) / sum(second)


methods = {
    "each once": lambda: ratio(1),
    "ten, then ten, means": lambda: ratio(10),
    "ten pairs, median ratio": lambda: statistics.median(ratio(1) for _ in range(10)),
}
answers = {name: sorted(method() for _ in range(7)) for name, method in methods.items()}
pd.DataFrame(answers, index=range(1, 8)).T.round(2)  # from the lowest to the highest

# %% [markdown] id="read-paired"
# The runs of a pair mostly meet the same machine; the median ignores a pair that did not. (On a
# busy machine all three wander: run the cell again.) The distance of the worst answer from 1.00 is
# the smallest difference that you may claim. `memory.measure(..., repeats=10)` times a step with a
# warm-up and gives median and spread.
#
# ## Allocated, reserved, and what the driver says
#
# On a GPU three different figures are called "memory used". Which one is yours?
#
# | figure | what it holds | who says it |
# |---|---|---|
# | allocated | all tensors, each rounded up a little | `torch.cuda.memory_allocated` |
# | reserved | what PyTorch's allocator got from the driver | `torch.cuda.memory_reserved` |
# | the driver's | reserved memory of all processes, plus CUDA's own | `nvidia-smi` |
#
# When a tensor is freed, its block stays reserved, so that the next tensor can use it. But a free
# block of 10 MiB cannot hold a tensor of 12 MiB. Then the allocator gets one more block from the
# driver. Reserved memory that no tensor can use is called *fragmentation*. (Chapter 02b draws a map
# of it.)
#
# How much memory can that cost? We train GPT-2 for thirty steps, each on a batch of eight texts.
# Every run has the same longest batch; lengths and their order differ. The runs are
# *emulated* and were recorded: PyTorch's own allocator, on an A100 that is not there, and no kernel
# ran.
#
# **Predict.** How many times as large as *allocated* does *reserved* get, in the worst order?

# %% id="guess-orders"
guess = None  # times

# %% id="orders"
emulated = json.loads(fragmentation.PATH.read_text())
DEFAULT, GROWING = "default", "expandable_segments:True"
peaks = {}
for order, steps in emulated[DEFAULT].items():
    _, allocated, reserved = steps[-1]
    peaks[order] = allocated, reserved, emulated[GROWING][order][-1][2]
worst = max(reserved / allocated for allocated, reserved, _ in peaks.values())
growing = max(reserved / allocated for allocated, _, reserved in peaks.values())
print(f"up to {worst:.1f} times what is allocated{beside(guess, worst)}")
apart = [reserved > 1.1 * allocated for allocated, reserved, _ in peaks.values()]
print(
    f"a tenth more or above it in {sum(apart)} of {len(apart)} orders; "
    f"with growing segments {growing:.2f} times at most"
)
columns = ["allocated", "reserved", f"reserved, {GROWING}"]
pd.DataFrame(peaks, index=columns).T.map(human_bytes)

# %% id="orders-figure"
curves = {
    order: {step: row[2] for step, row in enumerate(emulated[DEFAULT][order], 1)}
    for order in ("ascending", "as drawn", "always 1024")
}
growing_rows = enumerate(emulated[GROWING]["ascending"], 1)
curves[f"ascending, {GROWING}"] = {step: row[2] for step, row in growing_rows}
plots.growth(
    curves,
    xlabel="step",
    title="GPT-2, reserved, emulated A100: the order of lengths decides",
    log=False,
)

# %% [markdown] id="gpu-figures-text"
# In the worst order each batch is longer than the one before. Then no block of an earlier step is
# large enough, so every step gets new blocks from the driver, and the old ones stay reserved. At
# some step the card is full. The allocator then gives all free blocks back to the driver and starts
# again. That is slow, but training goes on. `empty_cache()` gives the same blocks back, if you call
# it before the card is full. ([Issue 1529](https://github.com/pytorch/pytorch/issues/1529) of
# PyTorch reports this case.)
#
# So a step *needs* its allocated peak at least, and *takes* what was reserved; `nvidia-smi` shows
# what it takes. Between the two, the sizes of free blocks decide: chapter 10b shows how little room
# was enough on an H200. Lab 02 tests both ends with runs on real GPUs.
#
# Two cures cost nothing:
#
# - Begin with the longest batch. Its blocks are large enough for all others, and much of the waste
#   is gone.
# - On Linux, set `PYTORCH_ALLOC_CONF=expandable_segments:True` (older PyTorch:
#   `PYTORCH_CUDA_ALLOC_CONF`). The allocator then makes a block longer instead of getting another
#   one, and nearly all of the waste is gone.
#
# ## What this course's counter does not see
#
# The meter counts tensors. It does not see three things:
#
# - **Workspace.** A kernel may allocate memory and release it again within one operation. Chapter
#   02b measures that on your machine, for a transformer, a convolution, an LSTM and a sort.
# - **Compiled code.** The meter is a dispatch mode: PyTorch calls it for every operation. While one
#   is active, PyTorch runs a compiled model without its compiled code. The meter warns you, and
#   counts the model as if it had not been compiled.
# - **Other allocators.** Some libraries allocate memory without PyTorch, such as NCCL its buffers.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "D17",
        "holds if",
        "Allocated against reserved shows fragmentation; longer batches first or "
        "growing segments cure it, and empty_cache helps only the next run, or others.",
        f"reserved up to {worst:.1f} times allocated, growing segments {growing:.2f}",
        "emulated",
        "orders",
        device="emulated A100",
        held=(sum(apart), len(apart), "orders of the batches"),
    ),
    claims.Verdict(
        "E13",
        "built",
        "Reset, step, read is right after a warm-up, and with no gradients left over.",
        f"saves {savings['as published']} or {swapped} %, steady {steady_saving} %",
        "counted",
        "all-savings",
    ),
)

# %% [markdown] id="summary"
# ## A list to keep
#
# 1. Do both variants compute the same? Compare gradients before bytes, and A with A before that.
# 2. Which peak: forward and backward, or the whole steady step?
# 3. Is anything left from the run before? `report.leaks()`, or a new process.
# 4. Does the instrument see a change of known size?
# 5. What was paid: FLOPs, forward runs, time?
# 6. Times in pairs, median, and an A/A test beside them.
#
# Lab 02, `lab02_measurement_clinic`, gives you benchmarks that break these rules. Chapter 02b,
# `02b_allocator_and_profilers`, is optional: who holds the peak, holes in the allocator, snapshots,
# profilers. Chapter 03 looks at the largest item of the peak, operation by operation.
