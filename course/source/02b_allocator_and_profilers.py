# %% [markdown] id="title"
# # The allocator, and other instruments
#
# This companion of chapter 02 is optional. It answers five questions:
#
# 1. What makes up the peak?
# 2. Why can an allocation fail although twice its size is free?
# 3. How do you read a *snapshot*, the allocator's own record of a step?
# 4. What does a GPU need beyond the tensors?
# 5. What do PyTorch's profiler and counters and Python's `tracemalloc` see, and what do they miss?
#
# **Budget:** 55 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import gc
import json
import os
import pickle
import time
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import claims, device, memory, plots
from tutorial_lib.instruments import recorded, segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.instruments.recorded import fragmentation, snapshots
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import Bytes, human_bytes

torch.set_num_threads(1)

# %% [markdown] id="holders-text"
# ## What makes up the peak?
#
# Which operations made the tensors that are in memory at the peak? A report's timeline says when
# each storage was allocated and released, and which operation and module made it.


# %% id="steady-step"
def step():
    optimizer.zero_grad()
    model.loss(tokens).backward()
    optimizer.step()


config = GPTConfig(num_layers=8)
model, tokens = GPT(config), torch.zeros(4, 128, dtype=torch.long)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
steady = memory.measure(step, model=model, optimizer=optimizer)

# %% id="at-the-peak"
totals = [sum(moment.values()) for moment in steady.curve()]
peak = totals.index(max(totals))
lives = pd.DataFrame(steady.timeline)  # a row for each storage
there = lives[(lives.born <= peak) & ~(lives.died < peak)]
holders = there.groupby(["category", "op"])[["num_bytes"]].sum()
holders.nlargest(6, "num_bytes").map(human_bytes)

# %% [markdown] id="holes-text"
# The linear layers' outputs (`addmm`) take the most, even more than Adam's states. On a GPU the
# allocator can record a similar history, a *memory snapshot*. We read one below.
#
# ## Holes
#
# PyTorch's allocator takes *segments* from the driver and cuts them into *blocks*, one for each
# tensor. Thirty tensors of 2 MiB fill three segments of 20 MiB. Then every second tensor is freed.
#
# ![Three segments of 20 MiB. Every second block of 2 MiB is free, no two free blocks are
# neighbors, and a tensor of 4 MiB gets a fourth segment from the
# driver.](figures/02-holes.svg)
#
# Half of the 60 MiB is free, but a tensor of 4 MiB fits nowhere, because no two free blocks are
# neighbors. So the allocator takes a new segment.
#
# `torch.cuda.empty_cache()` doesn't help: it releases only segments without a tensor, and here
# every segment holds one. It can't prevent an out-of-memory error either, because the allocator
# releases free segments itself before it raises one. It's useful between two benchmarks, once the
# tensors are gone. It also helps when another process or NCCL, the library through which
# GPUs communicate, needs the memory.
#
# On a GPU, "memory used" can mean one of three figures:
#
# | figure | what it holds | who reports it |
# |---|---|---|
# | allocated | all tensors, each rounded up a little | `torch.cuda.memory_allocated` |
# | reserved | what PyTorch's allocator got from the driver | `torch.cuda.memory_reserved` |
# | the driver's | reserved memory of all processes, plus CUDA's own | `nvidia-smi` |
#
# When free memory is reserved but too scattered to use, it's *fragmented*. How much memory can that
# waste?
#
# We compare six runs of GPT-2, each with thirty steps on batches of eight sequences. All runs have
# the same longest batch, but they differ in the other lengths and in the order. The runs were
# *emulated* and recorded: PyTorch's own allocator ran as it would on an A100, but no kernel ran.
#
# **Predict.** Each run has two peaks, *reserved* and *allocated*. What is *reserved* divided by
# *allocated* in the worst order?

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
    f"over a tenth more than allocated in {sum(apart)} of {len(apart)} orders; "
    f"with growing segments at most {growing:.2f} times as much"
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

# %% [markdown] id="orders-read"
# In the worst order each batch is longer than the one before. No block of an earlier step is then
# large enough, so every step gets new blocks from the driver, and the old blocks stay reserved.
# Once the card is full, the allocator gives all free blocks back to the driver and starts again.
# That's slow, but training goes on. (PyTorch's [issue
# 1529](https://github.com/pytorch/pytorch/issues/1529) reports this case.)
#
# So a step can *take* far more than it *needs*. It takes the reserved memory, which `nvidia-smi`
# shows. It needs at least its allocated peak; chapter 10b shows how much more, on an H200.
#
# Two fixes cost nothing:
#
# - Begin with the longest batch. Its blocks are large enough for all later batches, so much of the
#   waste disappears.
# - On Linux, set `PYTORCH_ALLOC_CONF=expandable_segments:True` (older PyTorch:
#   `PYTORCH_CUDA_ALLOC_CONF`). The allocator then extends a segment instead of getting a new one,
#   and nearly all of the waste disappears.
#
# ## A snapshot
#
# The context `memory.snapshot(path)` records what the code inside it requests from PyTorch's
# allocator. You can open the file in a browser, at docs.pytorch.org/memory_viz. It's a pickle of
# plain dicts, so a short function can also read its events. Each event has an action, an address
# and a size.
#
# The next snapshot shows a step of GPT-2 on an emulated A100. We compare its peak with the peak
# from `memory.predict`, which counts only tensors. Both leave out the memory that was in use before
# the step.


# %% id="read-snapshot"
def held_bytes(trace):
    """Return the bytes held after each event of a trace, and what the peak holds."""
    held, curve, fullest = {}, [0], {}
    for event in trace:
        if event["action"] == "alloc":
            held[event["addr"]] = event
        elif event["action"] == "free_completed":
            held.pop(event["addr"], None)  # may have been there before the recording
        curve.append(sum(e["size"] for e in held.values()))
        if curve[-1] == max(curve):
            fullest = dict(held)
    return curve, fullest


# %% id="snapshot-control"
snapshot = pickle.loads((snapshots.SNAPSHOTS / "gpt2.pickle").read_bytes())
trace = snapshot["device_traces"][0]
curve, fullest = held_bytes(trace)
predicted = memory.predict(snapshots.RECIPES["gpt2"].make_step)
above = predicted.peak_bytes - predicted.baseline_bytes
print(f"{len(trace)} events, at most {Bytes(max(curve))} above the start")
print(f"predicted: {Bytes(above)}; the difference: {Bytes(max(curve) - above)}")
explained = {"gpt2": max(curve) - above}
for name in ("gpt2-per-block", "bert-base", "vit-b-16"):
    other = pickle.loads((snapshots.SNAPSHOTS / f"{name}.pickle").read_bytes())
    report = memory.predict(snapshots.RECIPES[name].make_step)
    seen = max(held_bytes(other["device_traces"][0])[0])
    explained[name] = seen - (report.peak_bytes - report.baseline_bytes)
close = [abs(off) < 2**20 for off in explained.values()]
print(f"within one MiB: {sum(close)} of {len(close)} snapshots")

# %% [markdown] id="snapshot-largest-text"
# Each event names the line of Python that asked for the memory. Which line's tensors take the most
# memory at the peak?

# %% id="snapshot-largest"
lines = Counter()
for event in fullest.values():
    for frame in event["frames"] or [{"filename": "backward", "line": ""}]:
        lines[f"{frame['filename']} {frame['line']}"] += event["size"]
pd.Series(dict(lines.most_common(4))).map(human_bytes).to_frame("bytes")

# %% [markdown] id="gpu-snapshot-text"
# The first row is GPT-2's activation function, GELU, which is written out as several operations
# (chapter 03). The snapshot records what the allocator did, and the prediction counts tensors, yet
# the two peaks differ by only a few scalars.
#
# On your own GPU, the next cells measure a small GPT. The report's `other` is rounding and
# workspace.

# %% id="gpu-snapshot"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    here = device.pick()
    on_gpu, ids = GPT(config).to(here), tokens.to(here)
    gpu_step = lambda: (on_gpu.zero_grad(), on_gpu.loss(ids).backward())  # noqa: E731
    print(memory.measure(gpu_step, model=on_gpu, label="on this GPU"))
    print(torch.cuda.memory_summary(abbreviated=True))

# %% id="gpu-snapshot-read"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.pickle"
        with memory.snapshot(path):
            gpu_step()
        gpu_curve, _ = held_bytes(pickle.loads(path.read_bytes())["device_traces"][0])
    print(f"at most {Bytes(max(gpu_curve))} above the start")

# %% [markdown] id="unseen"
# ## Tensors, workspace, blocks, reserve
#
# What does a GPU need beyond the tensors? Its kernels ask for *workspace* while they run. Its
# allocator rounds requests up, and sometimes hands out a larger free block than requested. And it
# keeps freed memory in *reserve*. The next table is *emulated*, for a step of a 50-layer
# transformer. Each row gives the bytes that it adds to the rows above:

# %% id="workspace"
rows = recorded.load("emulated NVIDIA A100-SXM4-80GB").rows
on_card = rows[Recipe("transformer-50", 11, seq=512).label()]["report"]
levels = ["counted_bytes", "requested_bytes", "peak_bytes", "reserved_bytes"]
sizes = pd.Series([on_card[level] for level in levels])
sizes = sizes.diff().fillna(sizes).map(human_bytes)
sizes.index = ["tensors", "+ workspace", "+ larger blocks", "+ reserve"]
sizes.to_frame("emulated A100")

# %% id="verdicts-workspace"
claims.Verdicts(
    claims.Verdict(
        "C01",
        "shown",
        "Besides the tensors, a GPU needs workspace and larger blocks, and keeps a "
        "reserve.",
        ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "emulated",
        "workspace",
        device="emulated A100",
    ),
)

# %% [markdown] id="blind"
# ## Workspace: the counter against the profiler
#
# Workspace is what a kernel allocates and frees inside one operation. Our meter counts tensors, so
# it can't see workspace. On a CPU `torch.profiler` records every request to the allocator,
# workspace included. In which of these four programs does the meter miss something: a transformer,
# a convolution with a norm, an LSTM, a sort?


# %% id="blind-models"
def make_conv(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()


conv = nn.Sequential(*make_conv(16, 64), *make_conv(64, 64))
lstm, numbers = nn.LSTM(64, 128, 2, batch_first=True), torch.randn(2**18)
images, sequences = torch.randn(8, 16, 32, 32), torch.randn(16, 64, 64)

# %% id="programs"
programs = {
    "transformer": (model, lambda: model.loss(tokens).backward()),
    "convolution": (conv, lambda: conv(images).sum().backward()),
    "LSTM": (lstm, lambda: lstm(sequences)[0].sum().backward()),
    "sort": (nn.ParameterList([numbers]), lambda: numbers.sort()),
}


# %% id="quiet"
@contextlib.contextmanager
def quiet_stderr():
    """Hide what the profiler's C++ code prints to stderr."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# %% id="profiled"
def profiled_bytes(work):
    with quiet_stderr(), torch.profiler.profile(profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    memory_events = [event for event in events if event.name() == "[memory]"]
    requests = sorted((event.start_ns(), event.nbytes()) for event in memory_events)
    return max(np.cumsum([num_bytes for _, num_bytes in requests]))


# %% id="both"
def both(module, work):
    """Return the counted and the profiled peak, both without leftover gradients."""
    module.zero_grad()
    with memory.watch(model=module) as report:
        work()
    module.zero_grad()
    return report.peak_bytes - report.baseline_bytes, profiled_bytes(work)


# %% id="counter-and-profiler"
# NBVAL_IGNORE_OUTPUT
rows = {}
for name, (module, work) in programs.items():
    both(module, work)  # warm
    counted, profiled = both(module, work)
    rows[name] = f"{counted}", f"{profiled / counted - 1:+.1%}"
pd.DataFrame(rows, index=["counted", "the profiler sees"]).T

# %% [markdown] id="read-blind"
# In a transformer the meter misses nothing that matters, because on a CPU a transformer's large
# operations need no workspace. Convolutions, recurrent layers and sorts need some, so for them the
# count is a lower bound. A GPU's kernels need other amounts: measure there, and compare `counted`
# with `peak` in the report.
#
# ## Against another counter
#
# PyTorch has a counter of its own, `MemTracker`, in a private module. It counts tensors, as our
# meter does, so the two peaks should agree. Do they?

# %% id="memtracker-peak"
ours = memory.measure(step, model=model, optimizer=optimizer).peak_bytes
tracker = MemTracker()
tracker.track_external(model, optimizer)
with tracker:
    step()
theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
print(f"peak {ours}; equal except for the loss (4 bytes): {abs(ours - theirs) <= 4}")

# %% [markdown] id="two-instruments"
# They agree, up to the 4 bytes of the loss.
#
# ## Two instruments at once
#
# Suppose you count a checkpointed step's FLOPs and bytes in a single run, to save time. Does the
# FLOP counter change the peak of forward and backward?

# %% id="flop-counter"
with (
    segments.applied(model, "per-block"),
    warnings.catch_warnings(record=True) as said,
):
    warnings.simplefilter("always")
    alone = memory.measure(step, model=model).forward_backward_bytes
    with FlopCounterMode(display=False):
        together = memory.measure(step, model=model).forward_backward_bytes
times = together / alone
print(f"{alone} alone, {together} under a FLOP counter")
warned = {str(w.message) for w in said if w.category is memory.MeterWarning}
print(*warned)

# %% [markdown] id="read-together"
# It does: the peak grows by more than half. The FLOP counter keeps tensors alive too long, which
# matters most in a checkpointed step. So `memory.measure(..., flops=True)` counts FLOPs in a
# separate step. If you count both in one run yourself, you get a `MeterWarning`.
#
# ## `tracemalloc` and two training steps
#
# Does `tracemalloc`, which watches Python's own allocator, see an array of eight million numbers?

# %% id="tracemalloc"
tracemalloc.start()
for name, make in (("PyTorch's tensor", torch.ones), ("NumPy's array", np.ones)):
    before, _ = tracemalloc.get_traced_memory()
    array = make(2**23)
    traced = tracemalloc.get_traced_memory()[0] - before
    print(f"of {name} it sees {traced / array.nbytes:.0%}")
tracemalloc.stop()
del array

# %% [markdown] id="traced-text"
# NumPy reports its arrays to `tracemalloc`, and PyTorch reports nothing. So what does `tracemalloc`
# see of a plain step and of a checkpointed one?


# %% id="traced-steps"
def traced_peak(strategy):
    with segments.applied(model, strategy):
        step()  # warm
        gc.collect()
        tracemalloc.start()
        step()
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


plain, recomputing = traced_peak("none"), traced_peak("per-block")
share = max(plain, recomputing) / steady.peak_bytes
print(f"it sees less than 1 % of the peak: {share < 0.01}")
print(f"the checkpointed step looks larger: {recomputing > plain}")

# %% [markdown] id="gpu-queue-text"
# `tracemalloc` sees only each step's Python objects, and a checkpointed step makes more of them.
#
# ## No synchronize, on a GPU
#
# On your own GPU, the next cell times twenty matmuls twice: first without waiting for the GPU, then
# with `torch.cuda.synchronize()`. Its last line says whether waiting changed the peak.


# %% id="gpu-queue"
# NBVAL_IGNORE_OUTPUT
def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def products(a, wait):
    for _ in range(20):
        torch.mm(a, a)
    if wait:
        torch.cuda.synchronize()


if torch.cuda.is_available():
    a = torch.randn(8192, 8192, device=device.pick())
    products(a, wait=True)  # warm
    torch.cuda.reset_peak_memory_stats()
    unwaited = seconds(lambda: products(a, wait=False))
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    waited = seconds(lambda: products(a, wait=True))
    print(f"without synchronize {1000 * unwaited:.2f} ms, with {1000 * waited:.1f} ms")
    print("peak unchanged by waiting:", peak == torch.cuda.max_memory_allocated())

# %% [markdown] id="verdicts-text"
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "D17",
        "holds if",
        "Reserved far above allocated is fragmentation. Begin with the longest batch, "
        "or let segments grow. empty_cache helps only the next run, or others.",
        f"reserved up to {worst:.1f} times allocated, growing segments {growing:.2f}",
        "emulated",
        "orders",
        device="emulated A100",
        held=(sum(apart), len(apart), "orders of the batches"),
    ),
    claims.Verdict(
        "D17",
        "holds if",
        "A snapshot shows which lines make up a peak; empty_cache returns only "
        "segments without a tensor.",
        f"{len(trace)} events, {Bytes(max(curve))} at most, "
        f"{Bytes(abs(max(curve) - above))} from the prediction",
        "emulated",
        "snapshot-control",
        device="emulated A100",
        held=(sum(close), len(close), "snapshots"),
    ),
)

# %% [markdown] id="summary"
# ## What you can now do
#
# - Say why memory can run out while some is free, and what `empty_cache()` changes.
# - Read a snapshot without a GPU, and name the line whose tensors take the most memory at the peak.
# - Check one instrument against another, and run them separately.
