# %% [markdown] id="title"
# # Measuring honestly
#
# One model, one technique, one instrument that counts every byte: by how much does checkpointing
# lower the peak? In the next ten minutes you will get five answers, from a quarter to two thirds.
# None is a misprint, each is the same on every machine, and each would make a headline.
#
# This chapter reproduces five ways to measure wrongly that stand in published notebooks, finds what
# each of them really measured, and mends it. Then it turns on its own instruments.
#
# **Budget:** 45 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import gc
import json
import os
import pickle
import statistics
import time
import tracemalloc
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import device, memory, plots, strategies
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.recorded import fragmentation, snapshots
from tutorial_lib.units import MIB, Bytes

torch.set_num_threads(1)  # steadier times on a machine that does other things too

# %% [markdown] id="subject"
# ## The subject
#
# Eight blocks, PyTorch's own checkpoint around each. Before anything is measured, make sure that
# the two things to be compared compute the same. This is the check that most benchmarks leave out.

# %% id="same-gradients"
config = GPTConfig(num_layers=8)  # width 128, sequences of 128
tokens = torch.zeros(4, 128, dtype=torch.long)  # (batch, sequence)
model = GPT(config)


def gradients(strategy):
    model.zero_grad()
    with strategies.applied(model, strategy):
        model.loss(tokens).backward()
    return [p.grad.clone() for p in model.parameters()]


all(map(torch.equal, gradients("none"), gradients("per-block")))

# %% [markdown] id="published-text"
# Now a function as you find it in tutorials: reset the peak counter, forward, backward, read the
# counter. There it reads CUDA's counter; here our meter stands in for it and counts the same thing,
# so that the faults are the function's own.


# %% id="published"
def profile_memory(model, strategy):
    # There: torch.cuda.reset_peak_memory_stats()
    with memory.watch(strategy, model=model) as report, strategies.applied(model, strategy):
        loss = model.loss(tokens)
        loss.backward()
    return report  # there: torch.cuda.max_memory_allocated()


def saving(standard, checkpointed):
    return f"{1 - checkpointed.peak_bytes / standard.peak_bytes:.0%}"


# %% [markdown] id="predict-order"
# The tutorial runs it twice on one model: `standard` first, then `checkpointed`.
#
# **Predict.** Swap the two lines, so that `checkpointed` runs first, on a fresh model. What
# changes?

# %% id="two-orders"
savings = {}
model = GPT(config)
standard = profile_memory(model, "none")
checkpointed = profile_memory(model, "per-block")
savings["as published"] = saving(standard, checkpointed)

model = GPT(config)
frugal = profile_memory(model, "per-block")
savings["the other order"] = saving(profile_memory(model, "none"), frugal)
savings

# %% [markdown] id="read-order"
# Two lines swapped, and the technique is suddenly much better. Whoever runs second pays for
# something. The categories say what:

# %% id="leftover-gradients"
bars = {"first run: none": standard.at_peak, "second run: per block": checkpointed.at_peak}
plots.ledger_bars(bars, title="As published, at the peak, counted")

# %% [markdown] id="read-leftover"
# ## Fault 1: what the last run left behind
#
# The second run carries the gradients of the first. They are as large as the parameters, and
# nothing frees them, so the technique under test is charged for the other one's leftovers. The cure
# is one line between the runs:

# %% id="mended-leftovers"
model = GPT(config)
standard = profile_memory(model, "none")
model.zero_grad()
savings["without leftovers"] = saving(standard, profile_memory(model, "per-block"))
savings["without leftovers"]

# %% [markdown] id="predict-kept"
# Gradients are the visible leftovers. Others hang from a name: a list of outputs kept for a plot, a
# notebook's `Out[7]`, a `loss` in the outer scope.
#
# **Predict.** Three steps that keep their logits "for later". What is left behind after the third:
# three tensors of logits, or more?

# %% id="kept"
history = []


def careless_step():
    model.zero_grad()
    logits = model(tokens)
    history.append(logits)  # history.append(logits.detach()) would be enough
    logits.logsumexp(-1).mean().backward()


report = memory.measure(careless_step, model=model, warmup=0, steps=3)
print("left behind:", report.leaked_bytes)
for life in sorted(report.leaks(), key=lambda life: -life.num_bytes)[:4]:
    print(f"  {Bytes(life.num_bytes)} made by {life.op} in {life.module}")
history.clear()

# %% [markdown] id="read-kept"
# Three tensors of logits and little else, because each backward let go of what autograd had saved;
# a step that only evaluates, with no backward, would have kept all of it. `report.leaks()` names
# the operation and the module, so that you know which line to look for. An honest comparison runs
# each variant in a process of its own, or checks that nothing is left.

# %% [markdown] id="no-warmup"
# ## Fault 2: no warm-up
#
# The published function has no optimizer. Most training steps do, and Adam makes its two states in
# the first `step()`.
#
# **Predict.** The same step, measured when it runs for the first time and when it runs for the
# second. Which phase grows, and by how many times the parameters?


# %% id="first-and-steady"
def training(strategy, warmup):
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model.loss(tokens).backward()
        optimizer.step()

    with strategies.applied(model, strategy):
        return memory.measure(step, model=model, optimizer=optimizer, warmup=warmup)


first, steady = training("none", warmup=0), training("none", warmup=1)
P = steady.at_peak["parameters"]
for phase, size in first.phases.items():
    print(f"{phase:<10} first step {size / P:5.2f} P, steady {steady.phases[phase] / P:5.2f} P")

# %% [markdown] id="read-warmup"
# Forward and backward gain 2 P, the update none (there the states exist either way). This is the
# program that survives its first step and dies in its second. It is also a benchmark that is wrong
# by 2 P in *each* of its rows, and a ratio of two wrong rows is wrong in a way nobody can undo.

# %% id="all-savings"
savings["with AdamW, first step"] = saving(first, training("per-block", warmup=0))
frugal = training("per-block", warmup=1)
savings["with AdamW, steady"] = saving(steady, frugal)
moving = [max(moment["activations"] for moment in r.curve()) for r in (steady, frugal)]
savings["of activations alone"] = f"{1 - moving[1] / moving[0]:.0%}"
for question, answer in savings.items():
    print(f"{question:<24} {answer}")

# %% [markdown] id="read-savings"
# Which is right? The first two are wrong: they answer no question at all. The rest are true
# sentences, if the sentence is finished: of the peak of forward and backward, without an optimizer;
# of the very first step; of the peak of a steady step; of what autograd keeps. Only one of them
# tells you whether the job will fit, and it is not the largest one.
#
# ## Fault 3: `tracemalloc`
#
# A well-known notebook reports that checkpointing saves 22 %. A reader who ran it again got a peak
# that was a trace *larger* (rasbt/deeplearning-models, issue 74). The notebook had asked
# `tracemalloc`, which watches Python's own allocator.
#
# **Predict.** Eight million numbers as a PyTorch tensor, then as a NumPy array. How much of each is
# seen?

# %% id="tracemalloc"
tracemalloc.start()
for make in (torch.ones, np.ones):
    before, _ = tracemalloc.get_traced_memory()
    array = make(2**23)
    seen = tracemalloc.get_traced_memory()[0] - before
    print(f"{make.__module__ or 'torch':<6} {seen / array.nbytes:.0%} of {Bytes(array.nbytes)}")
tracemalloc.stop()
del array

# %% [markdown] id="predict-traced"
# NumPy reports its arrays to `tracemalloc`; PyTorch gets its memory in C++ and tells nobody. On a
# GPU it could not work even in principle.
#
# **Predict.** So what does a comparison of two training steps by `tracemalloc` compare?


# %% id="traced-steps"
def traced_peak(strategy):
    gradients(strategy)  # warm
    gc.collect()
    tracemalloc.start()
    gradients(strategy)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


plain, recomputing = traced_peak("none"), traced_peak("per-block")
print(f"seen: less than 1 % of the peak: {max(plain, recomputing) < steady.peak_bytes / 100}")
print(f"the checkpointed step looks larger: {recomputing > plain}")

# %% [markdown] id="read-traced"
# It compares Python objects: frames, closures, the bookkeeping of checkpointing itself. By this
# instrument checkpointing *costs* memory. An instrument needs a positive control: before you
# believe what it says of your change, show that it sees a change whose size you know. Eight million
# float32 numbers are 32 MiB, and it said zero.
#
# ## Fault 4: one segment that checkpoints nothing
#
# The same notebook called `checkpoint_sequential(..., segments=1)`. Others write
# `checkpoint(model, x)`, once, around everything.
#
# **Predict.** For each of the two: does the peak fall? Is the forward run a second time?

# %% id="segments"
blocks = nn.Sequential(*(Block(config) for _ in range(8)))
x = torch.randn(4, 128, 128)  # (batch, sequence, width)
calls = []
blocks[0].register_forward_pre_hook(lambda module, args: calls.append(module))
runs = {
    "none": lambda: blocks(x),
    "checkpoint_sequential, 1": lambda: checkpoint_sequential(blocks, 1, x, use_reentrant=False),
    "checkpoint, around all": lambda: checkpoint(blocks, x, use_reentrant=False),
    "checkpoint_sequential, 8": lambda: checkpoint_sequential(blocks, 8, x, use_reentrant=False),
}


def step(forward):
    blocks.zero_grad()
    calls.clear()
    forward().sum().backward()


# %% id="segments-table"
flops = {}
for name, forward in runs.items():
    report = memory.measure(partial(step, forward), model=blocks, flops=True)
    flops[name] = report.flops
    peak, ratio = report.peak_bytes, report.flops / flops["none"]
    print(f"{name:<25} peak {peak}, FLOPs x{ratio:.2f}, first block runs {len(calls)}x")

# %% [markdown] id="read-segments"
# Row two did nothing at all: `checkpoint_sequential` leaves the last segment alone, and the only
# segment is the last. Row three is worse than nothing: it paid a third more FLOPs for not one byte
# (chapter 04 draws why). Peak memory alone cannot tell the two apart; the count of forward runs
# does. So look at **both sides of the trade**, what you got and what you paid. If a technique that
# costs time costs none here, it is probably not switched on.
#
# ## Fault 5: no synchronise
#
# A GPU works through a queue. Python puts an operation in and goes on, so a clock that is read
# without `torch.cuda.synchronize()` times the putting in. A CPU has no such queue: PyTorch returns
# when the work is done, and this fault cannot be shown with PyTorch on a CPU. The queue itself can.
# Here is one, with one worker behind it. The work is real, and so is the wrong reading.
#
# **Predict.** Twenty products of matrices. By what factor is the unwaited reading too small?

# %% id="queue"
# NBVAL_IGNORE_OUTPUT
a = torch.randn(768, 768)


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


with ThreadPoolExecutor(max_workers=1) as queue:
    submit = partial(map, queue.submit, [torch.mm] * 20, [a] * 20, [a] * 20)
    unwaited = seconds(lambda: list(submit()))
    waited = seconds(lambda: [job.result() for job in list(submit())])
print(f"without waiting {1000 * unwaited:.1f} ms, with {1000 * waited:.1f} ms")

# %% [markdown] id="gpu-queue-text"
# (Your numbers differ, and should.) On a GPU the same two lines, and a question that tutorials get
# the wrong way round: does the *memory* peak need a synchronise? The allocator keeps its books on
# the host, at the moment of the launch, so the peak is final as soon as the last line of Python has
# run. The third line checks that.

# %% id="gpu-queue"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    here = device.pick()
    a = torch.randn(8192, 8192, device=here)

    def products(wait):
        for _ in range(20):
            torch.mm(a, a)
        if wait:
            torch.cuda.synchronize()

    products(wait=True)  # warm
    unwaited, peak = seconds(partial(products, wait=False)), torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    waited = seconds(partial(products, wait=True))
    print(f"without synchronise {1000 * unwaited:.2f} ms, with {1000 * waited:.1f} ms")
    print("peak unchanged by waiting:", peak == torch.cuda.max_memory_allocated())

# %% [markdown] id="times"
# ## Times: in pairs, and by the median
#
# Bytes repeat exactly; times do not. The first run is cold, the machine does other things, and one
# slow run in ten spoils a mean. The control is an **A/A test**: compare a step with *itself*. The
# right answer is 1.00, so all the rest is the error of the method.
#
# **Predict.** Three methods, each used seven times. Which one's answers lie closest together?

# %% id="paired"
# NBVAL_IGNORE_OUTPUT
timed = partial(seconds, lambda: model.loss(tokens[:1]).backward())


def in_blocks(num):
    first, second = [timed() for _ in range(num)], [timed() for _ in range(num)]
    return sum(first) / sum(second)


methods = {
    "each once": lambda: in_blocks(1),
    "ten, then ten, means": lambda: in_blocks(10),
    "ten pairs, median ratio": lambda: statistics.median(in_blocks(1) for _ in range(10)),
}
for name, method in methods.items():
    answers = [method() for _ in range(7)]
    print(f"{name:<24} seven answers from {min(answers):.2f} to {max(answers):.2f}")

# %% [markdown] id="read-paired"
# In a pair, both runs share the machine's mood; the median does not mind the one pair that did not.
# (On a busy machine all three wander: run the cell again.) The spread of an A/A test is the
# smallest difference that you may claim. `memory.measure(...,
# repeats=10)` times a step with a warm-up and gives median and spread.
#
# ## Allocated, reserved, and what the driver says
#
# On a GPU three figures go by the name of "memory used".
#
# - **Allocated:** bytes in tensors, each rounded up to 512. `torch.cuda.memory_allocated`.
# - **Reserved:** what PyTorch's caching allocator has taken from the driver and keeps, whether a
#   tensor lives in it or not. `torch.cuda.memory_reserved`.
# - **The driver's:** all reserved memory of all processes, CUDA's own context and its libraries.
#   `nvidia-smi` shows this one.
#
# Reserved is where memory goes missing: a free piece between two tensors cannot hold a larger one.
# The main rules of the allocator fit into thirty lines, so you can watch it without a GPU. It is a
# simulation: one stream, default options, nothing given back.


# %% id="segment-size"
def segment_bytes(size):
    """What is asked of the driver when no free block fits."""
    if size <= MIB:
        return 2 * MIB  # small blocks have segments of their own
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def reserved(segments):
    return sum(size for blocks in segments for size, _ in blocks)


def allocated(segments):
    return sum(size for blocks in segments for size, owner in blocks if owner is not None)


# %% id="allocate"
def allocate(segments, owner, num_bytes):
    """Take the smallest free block that fits, and split off what is left of it."""
    size = -(-num_bytes // 512) * 512
    small = size <= MIB
    fits = [
        (block[0], number, place)
        for number, blocks in enumerate(segments)
        if (reserved([blocks]) == 2 * MIB) == small
        for place, block in enumerate(blocks)
        if block[1] is None and block[0] >= size
    ]
    if not fits:
        segments.append([(segment_bytes(size), None)])
        return allocate(segments, owner, num_bytes)
    available, number, place = min(fits)
    rest = available - size
    split = rest >= 512 if small else rest > MIB
    new = [(size, owner), (rest, None)] if split else [(available, owner)]
    segments[number][place : place + 1] = new
    return number


# %% id="release"
def release(blocks, owner):
    """Free a block and merge it with free neighbours."""
    merged = []
    for size, holder in blocks:
        holder = None if holder == owner else holder
        if merged and holder is None and merged[-1][1] is None:
            size += merged.pop()[0]
        merged.append((size, holder))
    blocks[:] = merged


def empty_cache(segments):
    """torch.cuda.empty_cache(): give wholly free segments back to the driver."""
    segments[:] = [blocks for blocks in segments if allocated([blocks])]


# %% [markdown] id="predict-holes"
# **Predict.** Thirty tensors of 2 MiB; every second one is freed; the cache is emptied. Half of the
# reserved memory is free. Does a tensor of 4 MiB fit into it?

# %% id="holes"
segments = []
homes = [allocate(segments, owner, 2 * MIB) for owner in range(30)]
for owner in range(0, 30, 2):
    release(segments[homes[owner]], owner)


def show(when):
    figures = Bytes(allocated(segments)), Bytes(reserved(segments))
    print(f"{when:<24} allocated {figures[0]}, reserved {figures[1]}")


show("every second one freed")
empty_cache(segments)
show("after empty_cache()")
allocate(segments, "large", 4 * MIB)
show("one more tensor, 4 MiB")

# %% [markdown] id="read-holes"
# No. There are fifteen holes of 2 MiB, no two of them neighbours, and a new segment is taken. That
# is fragmentation. `empty_cache()` found nothing to give back, since every segment holds a tensor.
# Nor can it save you from an out-of-memory error: the allocator does the same by itself before it
# raises one. Between two benchmarks it is right, and only after the tensors are gone.
#
# Now the real one. `recorded/` holds a run of PyTorch's CUDA build on an *emulated* A100 (README:
# "an emulated card"): the allocator is PyTorch's own, and no kernel ran. GPT-2 is trained on
# batches of eight texts, thirty steps, each text of a batch as long as the others. Every run has
# the same longest batch; the lengths come in different orders.
#
# **Predict.** By what factor can the order of the lengths raise what is *reserved*?

# %% id="guess-orders"
guess = None

# %% id="orders"
emulated = json.loads(fragmentation.PATH.read_text())
GROWING = "expandable_segments:True"
print(emulated["device"], "torch", emulated["torch"])
print(f"{'lengths':<28}{'allocated':>10}{'reserved':>10}   {GROWING}")
for order in emulated["default"]:
    _, most, taken = emulated["default"][order][-1]
    print(
        f"{order:<28}{Bytes(most):>10}{Bytes(taken):>10}{Bytes(emulated[GROWING][order][-1][2]):>13}"
    )

worst = max(curve[-1][2] / curve[-1][1] for curve in emulated["default"].values())
print(f"reserved is up to {worst:.1f} times what is allocated{beside(guess, worst)}")

# %% id="orders-figure"
curves = {
    order: {step: reserved for step, (_, _, reserved) in enumerate(emulated["default"][order], 1)}
    for order in ("ascending", "as drawn", "always 1024")
}
curves |= {f"ascending, {GROWING}": {
    step: reserved for step, (_, _, reserved) in enumerate(emulated[GROWING]["ascending"], 1)
}}  # fmt: skip
plots.growth(curves, xlabel="step", title="GPT-2, reserved, emulated A100", log=False)

# %% [markdown] id="gpu-figures-text"
# A block that was cut for one length is too small for a longer one, and is kept. When lengths
# ascend, every step leaves its pieces behind and takes new ones, until the card is full of memory
# that nobody uses. Then the allocator gives the free segments back, and begins anew: slow, but no
# crash. ([Issue 1529](https://github.com/pytorch/pytorch/issues/1529) of PyTorch describes it.) Two
# cures cost nothing. Begin with the longest batch: much of the loss is gone. Or set
# `PYTORCH_ALLOC_CONF=expandable_segments:True`, so that one segment grows instead: nearly all is.
#
# ## Who holds the peak?
#
# A peak is a number; a timeline is an explanation. Every report has one: each storage with its
# birth, death, operation and module. Who is alive at the fullest moment of the steady step?

# %% id="at-the-peak"
totals = [sum(moment.values()) for moment in steady.curve()]
peak = totals.index(max(totals))
alive = [n for n in steady.timeline if n.born <= peak and (n.died is None or n.died >= peak)]
holders = {}
for life in alive:
    name = f"{life.category}, made by {life.op}" if life.op else life.category
    holders[name] = holders.get(name, 0) + life.num_bytes
for name, size in sorted(holders.items(), key=lambda item: -item[1])[:8]:
    print(f"{Bytes(size):>9}  {name}")

# %% [markdown] id="snapshot-text"
# What the linear layers made (`addmm`) is the largest item, larger than Adam's states. Chapter 03
# finds out which operation asked for it to be kept.
#
# CUDA's allocator keeps such a diary too, if asked: `memory.snapshot(path)` records it around a
# block. The file opens in a web page (pytorch.org/memory_viz), but it is a pickle of plain dicts,
# and ten lines read it here: a list of events, each with an action, an address and a size.
#
# The next one is of GPT-2's step on the emulated A100. The reader's positive control: `predict`
# knows nothing of allocators, and must give the same peak above what was there before the step.


# %% id="read-snapshot"
def held_bytes(trace):
    held, curve = {}, [0]
    for event in trace:
        if event["action"] == "alloc":
            held[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            held.pop(event["addr"], None)  # may have been there before the recording
        curve.append(sum(held.values()))
    return curve


# %% id="snapshot-control"
snapshot = pickle.loads((snapshots.SNAPSHOTS / "gpt2.pickle").read_bytes())
trace = snapshot["device_traces"][0]
predicted = memory.predict(snapshots.RECIPES["gpt2"].make_step)
above = predicted.peak_bytes - predicted.baseline_bytes
print(f"{len(trace)} events, at most {Bytes(max(held_bytes(trace)))} above the start")
print(f"predicted: {Bytes(above)}; the difference: {Bytes(max(held_bytes(trace)) - above)}")

# %% [markdown] id="snapshot-largest-text"
# Each event names a line of Python. Which line's tensors hold most at the end of the trace's peak?

# %% id="snapshot-largest"
curve, held = held_bytes(trace), {}
for event in trace[: curve.index(max(curve))]:
    if event["action"] == "alloc":
        held[event["addr"]] = event
    elif event["action"] == "free_completed":
        held.pop(event["addr"], None)
lines = Counter()
for event in held.values():
    for frame in event["frames"] or [{"filename": "backward", "line": ""}]:
        lines[f"{frame['filename']} {frame['line']}"] += event["size"]
for line, size in lines.most_common(4):
    print(f"{Bytes(size):>9}  {line}")

# %% [markdown] id="gpu-snapshot-text"
# One knows tensors and no allocator, the other the allocator and no tensors; they are a few scalars
# apart. On a GPU of yours: all the figures of this section, measured. `other` is rounding and
# workspace; `memory_summary` is the allocator's own table.

# %% id="gpu-snapshot"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    on_gpu, ids = GPT(config).to(here), tokens.to(here)

    def gpu_step():
        on_gpu.zero_grad()
        on_gpu.loss(ids).backward()

    print(memory.measure(gpu_step, model=on_gpu, label="on this GPU"))
    print(torch.cuda.memory_summary(abbreviated=True))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.pickle"
        with memory.snapshot(path):
            gpu_step()
        trace = pickle.loads(path.read_bytes())["device_traces"][0]
    curve = held_bytes(trace)
    print(f"{len(trace)} events, at most {Bytes(max(curve))} above the start")

# %% [markdown] id="blind"
# ## What this course's counter does not see
#
# The meter counts tensors. Three things escape it.
#
# - **Workspace:** memory that a kernel takes and gives back inside one operation.
# - **Compiled code:** PyTorch runs a compiled model uncompiled while a dispatch mode looks on, and
#   the meter is one. It warns, and counts the model as it was. What fusing saves,
#   `tests/benchmarks/compiled_peak.py` measures, with the profiler as below.
# - **Libraries that allocate by themselves,** such as NCCL's buffers.
#
# How much is it? On a CPU `torch.profiler` records every request to the allocator, workspace
# included. (Its C++ part announces itself on stderr; the first helper keeps that out of the way.)


# %% id="profiled"
@contextlib.contextmanager
def quiet_stderr():
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept), os.close(nowhere)


def profiled_bytes(work):
    with quiet_stderr(), torch.profiler.profile(profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    requests = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(np.cumsum([num_bytes for _, num_bytes in requests]))


# %% [markdown] id="predict-blind"
# **Predict.** A transformer, a convolution with a norm, an LSTM, a sort: where is the counter
# blind?

# %% id="programs"
conv = nn.Sequential(
    *(nn.Conv2d(16, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU()),
    *(nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU()),
)
lstm, numbers = nn.LSTM(64, 128, 2, batch_first=True), torch.randn(2**18)
images, sequences = torch.randn(8, 16, 32, 32), torch.randn(16, 64, 64)
programs = {
    "transformer": (model, lambda: model.loss(tokens).backward()),
    "convolution": (conv, lambda: conv(images).sum().backward()),
    "LSTM": (lstm, lambda: lstm(sequences)[0].sum().backward()),
    "sort": (nn.Identity(), lambda: numbers.sort()),
}


# %% id="both"
def both(module, work):
    """Counted and profiled peak, from the same start: nothing left of a run before."""
    with memory.watch(model=module) as report:
        work()
    module.zero_grad()
    profiled = profiled_bytes(work)
    module.zero_grad()
    return report.peak_bytes - report.baseline_bytes, profiled


# %% id="counter-and-profiler"
# NBVAL_IGNORE_OUTPUT
for name, (module, work) in programs.items():
    module.zero_grad()
    both(module, work)  # warm
    counted, profiled = both(module, work)
    print(f"{name:<12} counted {counted}, profiler {profiled / counted - 1:+.1%}")

# %% [markdown] id="read-blind"
# In a transformer, nothing that matters; its few large operations need no scratch memory on a CPU.
# Convolutions, recurrent layers and a sort do, and the counter is a lower bound for them. The
# kernels of a GPU need other amounts: measure there, and read `counted` beside `peak` in the
# report.
#
# ### Against another counter
#
# PyTorch has a counter of its own, `MemTracker`, private and slower. Both count tensors, so they
# must agree.

# %% id="memtracker"
model = GPT(config)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)


def step():
    optimizer.zero_grad()
    model.loss(tokens).backward()
    optimizer.step()


ours = memory.measure(step, model=model, optimizer=optimizer)
tracker = MemTracker()
tracker.track_external(model, optimizer)
with tracker:
    step()
theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
print(f"peak {ours.peak_bytes}; equal but for the loss, 4 bytes:", end=" ")
print(abs(ours.peak_bytes - theirs) <= 4)

# %% [markdown] id="two-instruments"
# They do. The tracker has let go of the scalar loss at that moment; the meter has not.
#
# ### Two instruments at once
#
# **Predict.** FLOPs and bytes in one go, checkpointed step, to save time. Does the FLOP counter
# change the bytes?

# %% id="flop-counter"
with strategies.applied(model, "per-block"), warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    alone = memory.measure(step, model=model)
    with FlopCounterMode(display=False):
        together = memory.measure(step, model=model)
print(f"forward and backward: {alone.forward_backward_bytes} alone,")
print(f"{together.forward_backward_bytes} under a FLOP counter")
print(*{str(warning.message) for warning in said if warning.category is memory.MeterWarning})

# %% [markdown] id="summary"
# It nearly doubles them: the FLOP counter wraps tensors and keeps them alive past their time, and
# checkpointing, whose point is to let go, suffers most. `memory.measure(..., flops=True)` counts
# FLOPs in a step of its own. The `MeterWarning` is for whoever forgets; a model in `eval()` and a
# compiled one get it too.
#
# ## Verdicts
#
# - **The published `profile_memory`** (reset, step, read) misleads by what it leaves out: it has no
#   optimizer, its second run inherits gradients, its first is cold, and parameters count in both
#   rows of the ratio. The missing synchronise, usually named first, does the peak no harm; it ruins
#   times.
# - **"Watch allocated against reserved, call `empty_cache`":** the first half holds, the difference
#   is fragmentation and cache. `empty_cache` gives back wholly free segments, so between two
#   benchmarks it cleans up, and against fragmentation it does nothing.
#
# ## A list to keep
#
# 1. Do both variants compute the same? Compare gradients before bytes.
# 2. Which peak: forward and backward, or the whole steady step? With the parameters, or without?
# 3. Is anything left from the run before? `report.leaks()`, or a new process.
# 4. Does the instrument see a change of known size?
# 5. What was paid: FLOPs, forward runs, time?
# 6. Times in pairs, median, and an A/A test beside them.
#
# Lab 02, `lab02_measurement_clinic`, hands you benchmarks that break this list. Chapter 03 takes
# the largest item of the peak apart, operation by operation.
