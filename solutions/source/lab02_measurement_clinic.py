# %% [markdown] id="title"
# # Lab 02: the measurement clinic
#
# You fix three benchmarks that measure wrongly, build two meters that PyTorch doesn't
# have, and profile a transformer.
#
# **Budget:** 100 minutes, 1 GiB of memory, no GPU needed. Exercise 2.7 is optional if
# you aren't graded.
#
# | exercise | you write | points |
# |---|---|---|
# | 2.1 | the seconds of a step | 2 |
# | 2.2 | how much slower one step is than another | 2 |
# | 2.3 | the peak of a steady step | 2 |
# | 2.4 | the bytes that autograd saves, by your own hooks | 3 |
# | 2.5 | a leak detector | 3 |
# | 2.6 | forward peak, backward peak, samples per second | 3 |
# | 2.7 | the smallest card on which a step runs | 2 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. The checks refuse an answer that uses the course's own meters or creates a
# `PretendGPU`, the machine described below.

# %% id="imports"
import gc
import itertools
import statistics
import time
import weakref
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tutorial_lib import checks, claims, memory
from tutorial_lib.instruments import segments
from tutorial_lib.checks.lab02 import PretendGPU
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.units import MIB, Bytes

torch.set_num_threads(1)  # the models are small: more threads only disturb each other

# %% [markdown] id="the-machine"
# ## The machine
#
# Real seconds differ from machine to machine, so you measure on a `PretendGPU`. It
# counts real bytes on your CPU, but its clock, `now()`, follows a script. Like a GPU,
# it has a queue: `launch` returns after 20 µs, and the work continues while Python runs
# ahead.
#
# ## 2.1 The seconds of a step
#
# Difficulty 1/5 · importance 5/5 · 8 minutes
#
# The next cell's benchmark starts the clock, launches five steps, and divides the time
# by five. On an idle, warm machine, a step takes 0.25 s; `SLOWNESS` has a factor for
# each launch.

# %% id="patient-2-1"
# cold, cold, fine, fine, fine, slowed by another program, fine
SLOWNESS = [30, 4, 1.0, 1.04, 1.02, 8, 1.06]


def seconds_per_step(gpu, *, wait, repeats=5):
    start = gpu.now()
    for _ in range(repeats):
        gpu.launch(0.25)
    if wait:
        gpu.synchronize()
    return (gpu.now() - start) / repeats


# %% [markdown] id="predict-2-1"
# **Predict.** How many seconds per step does the benchmark report with `wait=True`?

# %% id="guess-2-1"
guess = None  # seconds

# %% id="measure-2-1"
at_once = seconds_per_step(PretendGPU(slowness=SLOWNESS), wait=False)
waited = seconds_per_step(PretendGPU(slowness=SLOWNESS), wait=True)
print(f"pretended seconds without waiting: {at_once:.5f}")
print(f"pretended seconds with waiting: {waited:.2f}{beside(guess, waited)}")


# %% [markdown] id="goal-2-1"
# With `wait=True` the mean includes the two cold steps. So write `step_seconds`, with a
# warm-up and a median. For two warm-up steps and five timed steps, the number to reach
# is **0.26 s**.


# %% id="answer-2-1"
# exercise 2.1
def step_seconds(
    step: Callable[[], object], gpu, clock, *, warmup: int, repeats: int
) -> float:
    """Time a step.

    Args:
        step: Launches one step's work.
        gpu: Its `synchronize()` waits until all launched work is done.
        clock: A function that returns the time in seconds.
        warmup: How many steps must have finished before the first timed step.
        repeats: How many steps to time, each on its own.

    Returns:
        The median of the timed steps, in seconds.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(repeats):
        gpu.synchronize()
        start = clock()
        step()
        gpu.synchronize()
        seconds.append(clock() - start)
    return statistics.median(seconds)
    ### END SOLUTION


# %% id="check-2-1"
# check 2.1 (2 points)
checks.lab02.step_seconds(step_seconds)

# %% id="mended-2-1"
idle = PretendGPU(slowness=SLOWNESS)
mended = step_seconds(lambda: idle.launch(0.25), idle, idle.now, warmup=2, repeats=5)
print(f"pretended seconds: {mended:.2f}")

# %% [markdown] id="hints-2-1"
# <details><summary>Hint 1: where to wait</summary>
#
# Synchronize before you start the clock, so that no earlier work is in the queue, and
# again before you read it.
# </details>
# <details><summary>Hint 2: what to keep</summary>
#
# Keep each timed step's seconds in a list.
# </details>
# <details><summary>Hint 3: the median</summary>
#
# Use `statistics.median`.
# </details>

# %% [markdown] id="text-2-2"
# ## 2.2 How much slower?
#
# Difficulty 2/5 · importance 5/5 · 8 minutes
#
# Here the *other* step really takes 1.25 times as long as the *plain* one. But after
# seven launches the pretend GPU gets hot, and every step takes 2.2 times as long as
# before. The benchmark runs seven plain steps, then seven others, and divides the
# others' average time by the plain steps' average time.
#
# **Predict.** According to this benchmark, how many times as long as the plain step
# does the other step take?

# %% id="guess-2-2"
guess = None  # times


# %% id="measure-2-2"
def ratio_of_averages(plain, other, gpu, clock, repeats=7):
    averages = []
    for step in (plain, other):
        start = clock()
        for _ in range(repeats):
            step()
        gpu.synchronize()
        averages.append((clock() - start) / repeats)
    return averages[1] / averages[0]


hot = PretendGPU(slowness=[1.0] * 7 + [2.2])
steps = (lambda: hot.launch(0.24)), (lambda: hot.launch(0.30))
ratio = ratio_of_averages(*steps, hot, hot.now)
print(f"{ratio:.2f} times{beside(guess, ratio)}")


# %% [markdown] id="read-2-2"
# All *other* steps ran on a hot machine, so medians wouldn't help. Write `slowdown`,
# which runs the two steps *in turn*. The number to reach is 1.25.


# %% id="answer-2-2"
# exercise 2.2
def slowdown(
    plain: Callable[[], object],
    other: Callable[[], object],
    gpu,
    clock,
    *,
    repeats: int,
) -> float:
    """Return how many times as long `other` takes as `plain`.

    Args:
        plain: Launches one step's work.
        other: Launches the work of the step to compare with it.
        gpu: As in 2.1.
        clock: As in 2.1.
        repeats: How many pairs to time, in turn, after one untimed run of each.

    Returns:
        The median over the pairs of the ratio within a pair.
    """
    ### BEGIN SOLUTION
    plain()
    other()
    ratios = []
    for _ in range(repeats):
        first = step_seconds(plain, gpu, clock, warmup=0, repeats=1)
        second = step_seconds(other, gpu, clock, warmup=0, repeats=1)
        ratios.append(second / first)
    return statistics.median(ratios)
    ### END SOLUTION


# %% id="check-2-2"
# check 2.2 (2 points)
checks.lab02.slowdown(slowdown)

# %% id="mended-2-2"
hot = PretendGPU(slowness=[1.0] * 7 + [2.2])
print(f"{slowdown(*steps, hot, hot.now, repeats=7):.2f} times")

# %% [markdown] id="hints-2-2"
# <details><summary>Hint 1: the order</summary>
#
# Run plain, other, plain, other, and so on.
# </details>
# <details><summary>Hint 2: one step, timed</summary>
#
# With which `warmup` and `repeats` does your `step_seconds` time one step?
# </details>
# <details><summary>Hint 3: divide first</summary>
#
# Compute each pair's ratio, and then the median of the ratios.
# </details>

# %% [markdown] id="text-2-3"
# ## 2.3 The peak of a steady step
#
# Difficulty 2/5 · importance 5/5 · 8 minutes
#
# `PretendGPU(gpt)` counts the bytes of the model and of all that is allocated inside
# its `with` block. `profile_memory` measures a step on four sequences, on eight, and on
# the first four again. Which of the three numbers is right?

# %% id="the-model"
torch.manual_seed(0)
config = GPTConfig(vocab_size=512, seq_len=64, num_layers=12, num_heads=4, d_model=96)
gpt = GPT(config)
adamw = torch.optim.AdamW(gpt.parameters(), foreach=False)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)


def train_on(batch):
    adamw.zero_grad()
    gpt.loss(batch).backward()
    adamw.step()


def profile_memory(step, gpu):
    step()
    return gpu.max_memory_allocated()


# %% id="measure-2-3"
counted = PretendGPU(gpt)
with counted:
    four = profile_memory(lambda: train_on(tokens[:4]), counted)
    eight = profile_memory(lambda: train_on(tokens), counted)
    four_again = profile_memory(lambda: train_on(tokens[:4]), counted)
[Bytes(size) for size in (four, eight, four_again)]

# %% [markdown] id="read-2-3"
# None of them is right. The last two are equal, because the peak wasn't reset in
# between. The first lacks AdamW's state, which doesn't exist yet in the first backward.
# And all three include what is in memory anyway, between two steps.
#
# Write `steady_peak` for a *steady* step, one that isn't the first. For four sequences
# the number to reach is:

# %% id="goal-2-3"
report = memory.measure(lambda: train_on(tokens[:4]), model=gpt, optimizer=adamw)
report.peak_bytes - report.baseline_bytes


# %% id="answer-2-3"
# exercise 2.3
def steady_peak(step: Callable[[], object], gpu, *, warmup: int) -> int:
    """Measure by how much a steady training step's peak exceeds the memory before it.

    Args:
        step: Does one full training step.
        gpu: Like torch.cuda, has `memory_allocated()` (the bytes now),
            `max_memory_allocated()` (the most since the last reset) and
            `reset_peak_memory_stats()`.
        warmup: How many steps to run before the measured one.

    Returns:
        Bytes.
    """
    ### BEGIN SOLUTION
    for _ in range(warmup):
        step()
    there_before = gpu.memory_allocated()
    gpu.reset_peak_memory_stats()
    step()
    return gpu.max_memory_allocated() - there_before
    ### END SOLUTION


# %% id="check-2-3"
# check 2.3 (2 points)
checks.lab02.steady_peak(steady_peak)

# %% [markdown] id="hints-2-3"
# <details><summary>Hint 1: three readings</summary>
#
# Read what is allocated, reset the peak, and read the peak after the step.
# </details>
# <details><summary>Hint 2: the reset</summary>
#
# Reset after the warm-up.
# </details>
# <details><summary>Hint 3: the bytes before the step</summary>
#
# Read them after the warm-up.
# </details>

# %% id="mended-2-3"
with counted:
    peaks = [
        steady_peak(lambda n=n: train_on(tokens[:n]), counted, warmup=1)
        for n in (4, 8, 4)
    ]
[Bytes(size) for size in peaks]

# %% [markdown] id="text-2-4"
# ## 2.4 What autograd saves
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# Inside `saved_tensors_hooks(pack, unpack)` autograd calls `pack` for each tensor that
# it saves in forward, keeps what `pack` returns, and calls `unpack` when backward needs
# the tensor. The next cell runs a linear layer and a softmax, and multiplies the two
# halves of the result. Autograd saves four tensors.
#
# **Predict.** How many *storages* (blocks of memory) do the four tensors use?

# %% id="guess-2-4"
guess = None  # storages

# %% id="measure-2-4"
linear, rows = nn.Linear(64, 128), torch.randn(32, 64)
packed = []


def show(tensor):
    packed.append(tensor.detach())
    whole = tensor.untyped_storage().nbytes()
    print(tuple(tensor.shape), "shows", tensor.nbytes, "of", whole)
    return tensor


with torch.autograd.graph.saved_tensors_hooks(show, lambda tensor: tensor):
    left, right = linear(rows).softmax(dim=-1).chunk(2, dim=-1)
    product = left * right
behind = len({tensor.untyped_storage() for tensor in packed})
print(f"{behind} storages{beside(guess, behind)}")

# %% [markdown] id="read-2-4"
# The softmax's result and its two halves share one block of memory. All views of one
# block have the same `tensor.untyped_storage()`.
#
# Write `activation_bytes`, which adds up the bytes of the saved storages. Weights and
# buffers don't count, whatever shape they are saved in. Leave nothing alive afterwards.
# For the transformer on eight sequences the number to reach is:

# %% id="goal-2-4"
int(memory.saved(lambda: gpt.loss(tokens), params_of=gpt).num_bytes)


# %% id="answer-2-4"
# exercise 2.4
def activation_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Count the bytes that autograd keeps between forward and backward.

    Args:
        forward: Runs the model on one batch. Run no backward.
        model: Its parameters and buffers do not count.

    Returns:
        Bytes of all storages of saved tensors, each counted once. None is kept alive.
    """
    ### BEGIN SOLUTION
    resident = {t.untyped_storage() for t in [*model.parameters(), *model.buffers()]}
    saved = set()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(tensor.untyped_storage())
        return tensor.detach()  # the tensor itself would hold the graph that holds it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in saved - resident)
    ### END SOLUTION


# %% id="check-2-4"
# check 2.4 (3 points)
checks.lab02.activation_bytes(activation_bytes)

# %% id="mended-2-4"
activation_bytes(lambda: gpt.loss(tokens), gpt)

# %% [markdown] id="hints-2-4"
# <details><summary>Hint 1: each storage once</summary>
#
# Storages can be members of a set. `storage.nbytes()` gives their bytes.
# </details>
# <details><summary>Hint 2: weights in disguise</summary>
#
# A Linear saves the transpose of its weight: another tensor, but the same storage. So
# compare storages here too.
# </details>
# <details><summary>Hint 3: what pack may return</summary>
#
# If `pack` returns a tensor with a `grad_fn`, tensor and graph may keep each other
# alive. So return `tensor.detach()`.
# </details>

# %% [markdown] id="text-2-5"
# ## 2.5 A leak detector
#
# Difficulty 3/5 · importance 4/5 · 25 minutes
#
# A step trains on four sequences. Then it computes a validation loss on four others,
# and appends this loss, a tensor of four bytes, to a list.
#
# **Predict.** By how many MiB does memory grow with each step?

# %% id="guess-2-5"
guess = None  # MiB


# %% id="measure-2-5"
validation_losses = []


def train_and_validate():
    train_on(tokens[:4])
    validation_losses.append(gpt.loss(tokens[4:]))


with counted:
    train_and_validate()  # the first one is a warm-up
    held = [counted.memory_allocated()]
    for _ in range(3):
        train_and_validate()
        held.append(counted.memory_allocated())
grown = [Bytes(after - before) for before, after in itertools.pairwise(held)]
print(f"each step: {grown}{beside(guess, grown[-1] / MIB)}")


# %% [markdown] id="read-2-5"
# Each loss keeps its graph, and the graph keeps every tensor that it saved for a
# backward pass that never comes.
#
# Many such tensors never were Python objects. So `Births`, a dispatch mode (chapter
# 02), tracks each storage that an operation creates, in a weak dictionary, which
# forgets a storage that is freed:


# %% id="given-2-5"
def tensors_in(tree) -> list[Tensor]:
    """List the tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Births(TorchDispatchMode):
    """Track every storage that an operation makes, without keeping it alive."""

    def __init__(self):
        super().__init__()
        self.made_by = weakref.WeakKeyDictionary()  # from storage to operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for storage in made(tensors_in((args, kwargs)), tensors_in(out)):
            self.made_by.setdefault(storage, func.overloadpacket.__name__)
        return out


# %% [markdown] id="task-2-5"
# First write `made`, which returns the storages that an operation allocated. Then write
# `find_leaks`. It lists every storage that the step created and that is still alive
# after the step, except gradients and optimizer state. Reference cycles aren't leaks,
# so let Python's garbage collector run before you list.
#
# The goal: for `train_and_validate`, the listed sizes add up to the growth per step
# counted above.


# %% id="answer-2-5"
# exercise 2.5
def made(arguments: list[Tensor], results: list[Tensor]) -> set:
    """Return the storages, `tensor.untyped_storage()`, that an operation allocated."""
    ### BEGIN SOLUTION
    known = {tensor.untyped_storage() for tensor in arguments}
    return {tensor.untyped_storage() for tensor in results} - known
    ### END SOLUTION


def find_leaks(step, model: nn.Module, optimizer) -> list[tuple[str, int]]:
    """List the storages that a step made and left in memory.

    Args:
        step: Does one training step, and may return its loss. Call it once.
        model: Its gradients are not leaks.
        optimizer: Its state, `optimizer.state`, is not a leak.

    Returns:
        For each storage, the operation that made it, such as "addmm", and its bytes.
    """
    ### BEGIN SOLUTION
    with Births() as births:
        step()
    gc.collect()
    gradients = [parameter.grad for parameter in model.parameters()]
    meant = tensors_in([gradients, list(optimizer.state.values())])
    meant = {tensor.untyped_storage() for tensor in meant}
    left = [(op, s) for s, op in births.made_by.items() if s not in meant]
    return [(op, storage.nbytes()) for op, storage in left]
    ### END SOLUTION


# %% id="check-2-5"
# check 2.5 (3 points)
checks.lab02.find_leaks(find_leaks)

# %% [markdown] id="hints-2-5"
# <details><summary>Hint 1: made here, or only passed on?</summary>
#
# A result that shares its storage with an argument is a view, or was changed in place.
# Its storage existed before.
# </details>
# <details><summary>Hint 2: what is still there</summary>
#
# After a garbage collection, the weak dictionary has only storages that are still
# alive.
# </details>
# <details><summary>Hint 3: what is meant to stay</summary>
#
# Exclude each `parameter.grad`, and the tensors in `optimizer.state`, which has a dict
# for each parameter. Compare storages, not tensors.
# </details>
#
# Examine the step, then its fixed version:

# %% id="examine-patient"
leaks = sorted(find_leaks(train_and_validate, gpt, adamw), key=lambda leak: leak[1])
listed = [(op, Bytes(size)) for op, size in leaks[-3:]]
print(Bytes(sum(size for _, size in leaks)), listed)
validation_losses.clear()


# %% id="cure-patient"
def train_and_validate_cured():
    train_on(tokens[:4])
    with torch.no_grad():
        validation_losses.append(gpt.loss(tokens[4:]))


find_leaks(train_and_validate_cured, gpt, adamw)


# %% [markdown] id="read-patient"
# Appending `loss.item()` or `loss.detach()` would stop the leak too, but only `no_grad`
# also saves memory *while* the validation runs.

# %% [markdown] id="text-2-6"
# ## 2.6 The profile
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# Write `profile_step`, which returns a steady step's forward peak, backward peak and
# samples per second. Unlike in 2.3, these peaks are *total* bytes, parameters and
# optimizer state included. Compute samples per second from the median time of whole
# steps. The peaks to reach are the first two numbers here:

# %% id="goal-2-6"
report = memory.measure(lambda: train_on(tokens), model=gpt, optimizer=adamw)
{phase: int(size) for phase, size in report.phases.items()}


# %% id="answer-2-6"
# exercise 2.6
def profile_step(
    loss_fn: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    gpu,
    clock,
    *,
    num_samples: int,
    repeats: int,
) -> dict[str, float]:
    """Profile a training step: zero_grad, forward, backward, update.

    Args:
        loss_fn: Runs forward on a batch of `num_samples` and returns the loss.
        optimizer: Updates the model's parameters.
        gpu: As in 2.1 and 2.3.
        clock: As in 2.1.
        repeats: How many steps to time, after one warm-up step.

    Returns:
        "forward_bytes" and "backward_bytes", the most that was allocated during these
        phases of a steady step, and "samples_per_second".
    """
    ### BEGIN SOLUTION
    peaks = {}

    def one_step() -> None:
        optimizer.zero_grad()
        gpu.reset_peak_memory_stats()
        loss = loss_fn()
        peaks["forward_bytes"] = gpu.max_memory_allocated()
        gpu.reset_peak_memory_stats()
        loss.backward()
        peaks["backward_bytes"] = gpu.max_memory_allocated()
        optimizer.step()

    seconds = step_seconds(one_step, gpu, clock, warmup=1, repeats=repeats)
    return {**peaks, "samples_per_second": num_samples / seconds}
    ### END SOLUTION


# %% id="check-2-6"
# check 2.6 (3 points)
checks.lab02.profile_step(profile_step)

# %% [markdown] id="hints-2-6"
# <details><summary>Hint 1: a step with readings in it</summary>
#
# Write the four parts of a step as an inner function. Reset the peak before forward and
# before backward, and read it after each.
# </details>
# <details><summary>Hint 2: from the inner function to the result</summary>
#
# The inner function writes its readings into a dictionary outside.
# </details>
# <details><summary>Hint 3: samples per second</summary>
#
# Time the inner function with your own `step_seconds`.
# </details>

# %% [markdown] id="profile-text"
# Under `segments.applied(gpt, "per-block")` each block keeps only its input and runs
# again in backward.
#
# **Predict.** By what percentage does checkpointing lower the backward peak?

# %% id="guess-2-6"
guess = None  # percent


# %% id="profile-table"
def profile(strategy, ids):
    with segments.applied(gpt, strategy), counted:
        loss_fn, options = (
            lambda: gpt.loss(ids),
            {"num_samples": len(ids), "repeats": 1},
        )
        return profile_step(loss_fn, adamw, counted, time.perf_counter, **options)


table = pd.DataFrame(
    {strategy: profile(strategy, tokens) for strategy in ("none", "per-block")}
)
table = table.drop("samples_per_second").T.astype(int)
saved = 100 * (1 - table.loc["per-block"] / table.loc["none"])
in_words = table.map(lambda size: str(Bytes(size)))
peaks = {phase: " to ".join(column) for phase, column in in_words.items()}
print(f"forward {peaks['forward_bytes']}, backward {peaks['backward_bytes']}")
lower = saved["backward_bytes"]
print(f"backward: {lower:.0f} % less{beside(guess, lower)}")
short = [profile(way, tokens[:1, :8])["backward_bytes"] for way in table.index]
print(f"backward of 8 tokens: {100 * (1 - short[1] / short[0]):.1f} % less")
table


# %% id="draw-checkpointed"
with segments.applied(gpt, "per-block"):
    checkpointed = memory.measure(
        lambda: train_on(tokens), model=gpt, optimizer=adamw, label="per block"
    )
checkpointed.figure()

# %% [markdown] id="read-profile"
# With checkpointing, forward keeps little more than twelve block inputs, and backward
# recomputes one block at a time.
#
# In a step on 8 tokens, backward adds little but gradients (last printed line).
#
# What is the price in time? Your functions can measure it on this machine.

# %% id="real-seconds"
# NBVAL_IGNORE_OUTPUT


def checkpointed_step():
    with segments.applied(gpt, "per-block"):
        train_on(tokens)


options = {"gpu": torch.cpu, "clock": time.perf_counter, "repeats": 7}
seconds = step_seconds(lambda: train_on(tokens), warmup=1, **options)
ratio = slowdown(lambda: train_on(tokens), checkpointed_step, **options)
rates = len(tokens) / seconds, len(tokens) / (ratio * seconds)
print(f"samples per second: {rates[0]:.1f} plain, {rates[1]:.1f} checkpointed")
print(f"a checkpointed step takes {ratio:.2f} times as long")


# %% [markdown] id="text-2-7"
# ## 2.7 Optional: needs and takes
#
# Difficulty 2/5 · importance 5/5 · 6 minutes
#
# A step without a memory limit *takes* more than it *needs* (chapters 02 and 02b).
# `nvidia-smi` shows what the step takes, plus CUDA's *context*, the memory that CUDA
# needs for itself. The authors of the [xMem paper](https://arxiv.org/abs/2510.21048)
# ran training loops of image models twice on real GPUs: uncapped, and with a cap on
# PyTorch's memory. In many capped runs, the cap was below what `nvidia-smi` had shown
# for the uncapped run.
#
# **Predict.** What percentage of those capped runs succeeded?

# %% id="guess-2-7"
guess = None  # percent

# %% id="measure-2-7"
runs = pd.read_csv(FOLDER / "fits.csv")
runs = runs[runs.model.str.isalnum()]  # image models only
runs = runs.rename(columns={"ground_nvml_bytes": "seen in nvidia-smi"})
capped = {}
for number in ("seen in nvidia-smi", "reserved", "allocated"):
    below = runs[runs.cap < runs[number]]
    capped[number] = {"capped below it": len(below), "of them ran": below.ran.sum()}
number, ran = capped["seen in nvidia-smi"].values()
print(f"{100 * ran / number:.0f} % ended well{beside(guess, 100 * ran / number)}")
pd.DataFrame(capped).T

# %% [markdown] id="read-2-7"
# *Reserved* and *allocated* are peaks of PyTorch's allocator, emulated by us.
# *Reserved* includes memory that the allocator keeps cached. No run succeeded with a
# cap below *allocated*, so this number can rule out a cap.
#
# Write `smallest_card`, which returns the memory of the smallest card that isn't ruled
# out. PyTorch can't use the part of a card's memory that CUDA's context holds.


# %% id="answer-2-7"
# exercise 2.7
def smallest_card(run: dict[str, int], cards: list[tuple[int, int]]) -> int:
    """Choose the smallest card on which a training step may run.

    Args:
        run: Bytes of its uncapped run: "allocated" and "reserved", the allocator's
            peaks, and "seen", what nvidia-smi showed.
        cards: For each card, its memory and how much of that CUDA's context holds, in
            bytes. In any order.

    Returns:
        The memory of the smallest card that is not ruled out; 0 if all are.
    """
    ### BEGIN SOLUTION
    room = {memory: memory - context for memory, context in cards}
    enough = [memory for memory in room if room[memory] >= run["allocated"]]
    return min(enough, default=0)
    ### END SOLUTION


# %% id="check-2-7"
# check 2.7 (2 points)
checks.lab02.smallest_card(smallest_card)

# %% [markdown] id="hints-2-7"
# <details><summary>Hint 1: which number</summary>
#
# Which of the three numbers has no cached memory in it?
# </details>
# <details><summary>Hint 2: how much is available</summary>
#
# The card's memory minus the context.
# </details>
# <details><summary>Hint 3: no card</summary>
#
# `min(..., default=0)` accepts an empty list.
# </details>

# %% [markdown] id="gpu-text"
# ## On a GPU
#
# This part isn't graded. `torch.cuda` replaces the `PretendGPU`.

# %% id="gpu-profile"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    large = GPTConfig(
        vocab_size=8192, seq_len=512, num_layers=12, num_heads=8, d_model=512
    )
    model = GPT(large).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, large.vocab_size, (8, large.seq_len), device="cuda")
    tools, options = (torch.cuda, time.perf_counter), {"num_samples": 8, "repeats": 5}
    for strategy in ("none", "per-block"):
        with segments.applied(model, strategy):
            result = profile_step(
                lambda: model.loss(words), optimizer, *tools, **options
            )
        print(strategy, *(Bytes(result[phase]) for phase in list(result)[:2]))
        print(f"  {result['samples_per_second']:.1f} samples/s")
    print(f"reserved by now: {Bytes(torch.cuda.memory_reserved())}")


# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "E17",
        "built",
        "Checkpointing lowers the peaks of forward and backward as far as they are "
        "activations, and takes longer.",
        f"forward {peaks['forward_bytes']}, backward {peaks['backward_bytes']}; with 8 "
        f"tokens backward by {100 * (1 - short[1] / short[0]):.1f} %",
        "counted",
        "profile-table",
    ),
)
