# %% [markdown] id="title"
# # Measuring honestly
#
# By how much does checkpointing lower the peak? For a single model, this chapter gets six answers,
# from a quarter to nine tenths.
#
# First you write the meter, in five small steps. Then you reproduce five mistakes in measuring, all
# found in published notebooks.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import sys
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tutorial_lib
from tutorial_lib import blanks, claims, memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.units import human_bytes

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

torch.set_num_threads(1)  # sums in one order, and no waiting for a busy core

# %% [markdown] id="meter-text"
# ## Build the meter
#
# ### 1. See every tensor
#
# While a `TorchDispatchMode` is active, PyTorch calls its method `__torch_dispatch__` in place of
# every operation of forward, backward and the optimizer. The method has to run the operation
# itself, so it sees what goes in and what comes out.
#
# **Write.** The body of `__torch_dispatch__`. It passes each tensor to the method `see`, which only
# prints for now.


# %% id="tensors-in"
def tensors_in(value):
    """Return the tensors in lists, tuples and dicts, however deeply nested."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# %% id="operations"
class Operations(TorchDispatchMode):
    """Run each operation, and show `see` the tensors that go in and come out."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """Run `operation(*args, **kwargs)` and return its result; `kwargs` may be None.

        Before it runs, call `self.see(tensor, "inputs")` for each tensor in its
        arguments, `kwargs` included. Afterwards, call `self.see(tensor, "made")` for
        each tensor in its result.
        """
        ### BEGIN SOLUTION
        for tensor in tensors_in((args, kwargs)):
            self.see(tensor, "inputs")
        result = operation(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self.see(tensor, "made")
        return result
        ### END SOLUTION

    def see(self, tensor, category):
        print(f"{category:7}{list(tensor.shape)}")


# %% id="check-operations"
# @title Check: run this cell
@blanks.check("Operations", "run the operation and return its result")
def operations_are_seen():
    class Seen(Operations):
        def __init__(self):
            super().__init__()
            self.told = []

        def see(self, tensor, category):
            self.told.append((category, tensor))

    def told(work):
        with Seen() as mode:
            result = work()
        return result, mode.told

    x, y = torch.ones(2, 3), torch.ones(2, 3)
    total, seen = told(lambda: torch.add(x, y, alpha=2))
    assert total is not None, "The result of an operation is lost: return it."
    assert total.sum() == 18, (
        "torch.add(x, y, alpha=2) adds y once: where did alpha go?"
    )
    words = [category for category, _ in seen]
    assert words.count("inputs") == 2, (
        f"x + y has two tensors as arguments, but `see` was told of {words}."
    )
    assert words == ["inputs", "inputs", "made"], (
        f"x + y: show the arguments first, then the result, not {words}."
    )
    _, seen = told(lambda: torch._foreach_add([x, y], 1))
    sizes = [getattr(tensor, "shape", type(tensor)) for _, tensor in seen]
    assert sizes == [(2, 3)] * 4, (
        "Some operations take and return lists: `see` needs the tensors in them, "
        f"but got {sizes}."
    )
    out = torch.empty(2, 3)
    _, seen = told(lambda: torch.add(x, y, out=out))
    assert ("inputs", id(out)) in [(category, id(t)) for category, t in seen], (
        "Tensors in kwargs are inputs too: `out=` was not shown."
    )
    told(lambda: x.add_(1))
    assert x.sum() == 12, "`x.add_(1)` ran twice: run it once, and keep its result."


# %% id="operations-seen"
a = torch.ones(512, 512)  # 1 MiB
with Operations():
    (a.T @ a).relu_()

# %% [markdown] id="storages-text"
# The list shows seven tensors of 1 MiB, but there are only two pieces of memory (*storages*). `a`
# and its transpose, a *view*, share the first. The product has the second, and `relu_` changes it
# in place. So the meter must count storages rather than tensors.
#
# ### 2. Each storage once, until it's freed
#
# PyTorch frees a storage, `tensor.untyped_storage()`, when its last tensor is gone. How does the
# meter notice? If the meter kept a reference of its own, the storage would never be freed. A *weak*
# reference doesn't keep the storage alive: `weakref.finalize(storage, function, *args)` calls
# `function(*args)` when the storage is freed.
#
# **Write.** `see`. You need `storage.nbytes()`, `storage._cdata` (an integer that identifies a
# storage while it's alive), `weakref.finalize`, and `self.alive.pop`.


# %% id="record"
@dataclass
class Record:
    num_bytes: int
    category: str


# %% id="storages"
class Storages(Operations):
    """Keep a record of each storage that is alive."""

    def __init__(self):
        super().__init__()
        self.alive = {}  # from a storage's _cdata to its Record

    def see(self, tensor, category):
        """If the tensor's storage has no record in `self.alive` yet, make one.

        An existing record stays as it is. When the storage is freed, its record must
        disappear from `self.alive`.
        """
        ### BEGIN SOLUTION
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = Record(storage.nbytes(), category)
            weakref.finalize(storage, self.alive.pop, key)
        ### END SOLUTION

    def alive_bytes(self):
        return sum(record.num_bytes for record in self.alive.values())


# %% id="check-storages"
# @title Check: run this cell
@blanks.check("Storages", "keep a Record for each storage in `self.alive`")
def storages_are_counted():
    seen = Storages()

    def bytes_now(tensor, category="inputs"):
        seen.see(tensor, category)
        return seen.alive_bytes()

    base = torch.ones(100)
    row = base[10:20]
    first = bytes_now(row)
    assert first == 400, (
        f"A view of 40 bytes keeps its storage's 400 bytes alive, not {first} bytes."
    )
    again = bytes_now(base, "made")
    assert again == 400, f"Two tensors of one storage are 400 bytes, not {again}."
    found = [record.category for record in seen.alive.values()]
    assert found == ["inputs"], f"A record seen first as inputs must not say {found}."
    del base
    left = seen.alive_bytes()
    assert left == 400, (
        f"A view is left, so its storage is too, but {left} bytes are counted."
    )
    failed = []
    with patch("sys.unraisablehook", lambda of: failed.append(of.exc_type.__name__)):
        del row
    assert not failed, f"The storage is freed, but a finalizer raises {failed[0]}."
    left = seen.alive_bytes()
    assert left == 0, f"The last tensor is gone, but {left} bytes are still counted."
    whole = torch.ones(7, dtype=torch.float64)
    part = whole.detach()[:2]
    assert bytes_now(whole) == 56, "Seven float64 numbers are 56 bytes."
    del whole
    left = seen.alive_bytes()
    assert left == 56, f"{part.nbytes} bytes of a storage are left, but {left} counted."


# %% [markdown] id="peak-text"
# ### 3. The peak, and its moment
#
# Memory grows only when an operation makes a storage, so it's enough to check the total after each
# operation.
#
# **Write.** The rest of `__torch_dispatch__`, and `by_category`, which adds up the bytes of the
# records in `at_peak`, by category. The given first line runs the operation with your code from
# step 1.


# %% id="peak"
class Peak(Storages):
    """Remember the moment at which the most bytes were alive."""

    peak_bytes = 0
    peak_at = None  # the operation that reached this peak
    at_peak = ()  # the records alive then, in a list of its own

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        """If more bytes are alive now than ever before, update all three attributes."""
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        ### BEGIN SOLUTION
        alive = self.alive_bytes()
        if alive > self.peak_bytes:
            self.peak_bytes, self.peak_at = alive, operation
            self.at_peak = list(self.alive.values())
        return result
        ### END SOLUTION

    def by_category(self):
        """Return a Counter of the bytes at the peak, by category."""
        ### BEGIN SOLUTION
        totals = Counter()
        for record in self.at_peak:
            totals[record.category] += record.num_bytes
        return totals
        ### END SOLUTION


# %% id="check-peak"
# @title Check: run this cell
@blanks.check("Peak", "note the peak, and return the operation's result")
def the_peak_is_noted():
    x = torch.ones(1000)
    with Peak() as seen:
        y = x + 1
        assert torch.is_tensor(y), "The result of an operation is lost: return it."
        z = y * 2
        del y, z
        x.sum()
    peak = seen.peak_bytes
    assert peak == 12000, f"x, y and z of 4000 bytes are 12000 at the peak, not {peak}."
    held = sum(record.num_bytes for record in seen.at_peak)
    assert held == 12000, f"`at_peak` holds {held} bytes: it changed after the peak."
    assert {*map(id, seen.at_peak)} & {*map(id, seen.alive.values())}, (
        "`at_peak` holds copies: step 4 will change the records themselves."
    )
    by_category = seen.by_category()
    assert by_category == {"inputs": 4000, "made": 8000}, (
        f"The peak has 4000 bytes of inputs and 8000 made, not {dict(by_category)}."
    )
    assert isinstance(by_category, Counter), "`by_category` must return a Counter."
    name = getattr(seen.peak_at, "overloadpacket", seen.peak_at)
    assert name is torch.ops.aten.mul, f"The peak is after `y * 2`, not after {name}."
    with seen:
        torch.ones(10)
    assert seen.peak_bytes == 12000, "A later, smaller step lowered the peak."


# %% id="gpt"
config = GPTConfig(num_layers=8)  # width 128, sequences of 128
tokens = torch.zeros(4, 128, dtype=torch.long)  # (batch, sequence)
model = GPT(config)
with Peak() as seen:
    model.loss(tokens).backward()
print(f"{human_bytes(seen.peak_bytes)}, after {seen.peak_at}")

# %% [markdown] id="categories-text"
# ### 4. What is it?
#
# Some storages can be looked up: parameters and gradients in the model, states in the optimizer. A
# storage made while autograd is recording (`torch.is_grad_enabled()`) counts as an activation. A
# storage made in backward or in the optimizer, where recording is off, counts as temporary. That's
# wrong for a new gradient, which is made in backward. So a second method, `know`, corrects the
# gradient's record after the step. This corrects `at_peak` too, because it holds the same record.
#
# **Write.** Both bodies. In `see`, change the category, then call `super().see`. In `know`, some
# gradients may be None: `tensors_in` skips them.


# %% id="meter"
class Meter(Peak):
    """Sort the storages into categories."""

    def see(self, tensor, category):
        """Keep a record, as before; but "made" becomes "activations" or "temporary"."""
        ### BEGIN SOLUTION
        if category == "made":
            category = "activations" if torch.is_grad_enabled() else "temporary"
        super().see(tensor, category)
        ### END SOLUTION

    def know(self, model, optimizer=None):
        """Set the category of everything that is known, whether seen before or not."""
        known = {
            "parameters": list(model.parameters()),
            "gradients": [parameter.grad for parameter in model.parameters()],
            "optimizer_state": list(optimizer.state.values()) if optimizer else [],
        }
        ### BEGIN SOLUTION
        for category, values in known.items():
            for tensor in tensors_in(values):
                self.see(tensor, category)
                self.alive[tensor.untyped_storage()._cdata].category = category
        ### END SOLUTION


# %% id="check-meter"
# @title Check: run this cell
@blanks.check("Meter", "set each record's category")
def categories_are_right():
    layer = nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
    x = torch.ones(5, 100)
    meter = Meter()
    meter.know(layer)
    known = meter.alive_bytes()
    assert known == 40000, f"A layer of 40000 bytes is known, but {known} are counted."
    with meter:
        hidden = layer(x)
        hidden.sin().sum().backward()

    def named(tensor):
        return meter.alive[tensor.untyped_storage()._cdata].category

    assert named(layer.weight) == "parameters", (
        f"The weight is {named(layer.weight)!r}, but should be 'parameters'."
    )
    assert named(x) == "inputs", f"The layer's input is {named(x)!r}, not 'inputs'."
    assert named(hidden) == "activations", f"Forward's output is {named(hidden)!r}."
    grad = layer.weight.grad
    assert named(grad) == "temporary", f"A new gradient is {named(grad)!r}."
    optimizer.step()
    meter.know(layer, optimizer)
    assert named(grad) == "gradients", f"After `know`, the gradient is {named(grad)!r}."
    state = optimizer.state[layer.weight]["momentum_buffer"]
    assert named(state) == "optimizer_state", f"SGD's momentum is {named(state)!r}."
    at_peak = meter.by_category()
    assert at_peak.get("gradients") == 40000, (
        f"The peak's records don't include the gradient: {at_peak}."
    )


# %% [markdown] id="metered-text"
# ### 5. One step
#
# **Write.** `metered`. Call `know` twice. Before the step, it registers all parameters and states,
# even those that the step never uses. After the step, it finds the new gradients.


# %% id="metered"
def metered(step, model, optimizer=None):
    """Return a new `Meter` that has watched `step()` and knows model and optimizer."""
    ### BEGIN SOLUTION
    meter = Meter()
    meter.know(model, optimizer)
    with meter:
        step()
    meter.know(model, optimizer)
    return meter
    ### END SOLUTION


# %% id="check-metered"
# @title Check: run this cell
@blanks.check("metered", "return the meter")
def a_step_is_metered():
    layer = nn.Linear(4, 4, bias=False)  # 64 bytes, its gradient and momentum too
    optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
    ran = []

    def step():
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        ran.append(1)

    meter = metered(step, layer, optimizer)
    assert isinstance(meter, Meter), (
        f"`metered` must return a Meter, not a {type(meter).__name__}."
    )
    assert len(ran) == 1, f"The step ran {len(ran)} times, but should run once."
    assert meter.peak_bytes, "The meter saw nothing: the step ran outside it."
    found = Counter(record.category for record in meter.alive.values())
    for category in ("parameters", "gradients", "optimizer_state"):
        assert found[category] == 1, f"After the step, the meter knows no {category}."
    known = []

    class Sleeping(nn.Linear):
        def parameters(self, recurse=True):
            known.append(len(ran))
            return super().parameters(recurse)

    layer = Sleeping(4, 4, bias=False)
    ran.clear()
    metered(lambda: ran.append(1), layer)
    assert set(known) == {0, 1}, "Call `know` both before and after the step."


# %% [markdown] id="equal-text"
# ## Is it right?
#
# Compare your meter with the course's own, `memory.measure`, on four training steps: with and
# without checkpoints, with and without AdamW.
#
# **Write.** `step_of`.


# %% id="step-of"
def step_of(model, optimizer=None):
    """Return a function without arguments that trains `model` once on `tokens`.

    It clears the gradients first, so that the new ones are still there at its end. Then
    come `model.loss(tokens)`, its backward, and the update if there is an optimizer.
    """

    ### BEGIN SOLUTION
    def step():
        model.zero_grad()
        model.loss(tokens).backward()
        if optimizer:
            optimizer.step()

    return step
    ### END SOLUTION


# %% id="check-step-of"
# @title Check: run this cell
@blanks.check("step_of", "return a function that trains the model once")
def a_step_trains_once():
    other = GPT(GPTConfig(num_layers=1))
    weight = next(other.parameters())
    step_of(other)()
    assert weight.grad is not None, (
        "The step left no gradients: clear them first, not last."
    )
    first, held = weight.grad.norm(), []
    other.register_forward_pre_hook(lambda *_: held.append(weight.grad is not None))
    step_of(other)()
    times = weight.grad.norm() / first
    assert times < 1.5, (
        f"The second step's gradients are {times:.1f} times the first's: clear them."
    )
    assert not any(held), "The old gradients are there in forward: clear them first."
    before = weight.detach().clone()
    step_of(other, torch.optim.SGD(other.parameters(), lr=1.0))()
    moved = (before - weight).norm() / weight.grad.norm()
    assert abs(moved - 1) < 1e-3, (
        f"SGD at rate 1 moves by the gradient, but yours by {moved:.2f} times it."
    )


# %% id="equal"
reports = {}
for strategy in ("none", "per-block"):
    for end in ("backward", "AdamW"):
        model = GPT(config)
        adamw = torch.optim.AdamW(model.parameters(), foreach=True)  # as a GPU updates
        optimizer = adamw if end == "AdamW" else None
        step = step_of(model, optimizer)
        with segments.applied(model, strategy):
            step()
            yours = metered(step, model, optimizer).by_category()
            theirs = memory.measure(step, model=model, optimizer=optimizer).at_peak
        course = Counter(theirs)
        course["activations"] += course.pop("recomputed")
        assert yours == course, f"{strategy}: yours {yours}, the course's {course}"
        reports[f"{strategy}, to {end}"] = yours
print("Your meter and the course's agree, to the byte.")
plots.ledger_bars(
    reports, title="Peaks of one step by category, by your meter, counted"
)

# %% [markdown] id="library-adds"
# The course's own meter has one more category, `recomputed`, for what a checkpoint's second run
# makes. It also names the operation and module, reads CUDA's allocator, and works on tensors
# without memory (`memory.predict`).
#
# Both meters count only tensors. They miss a kernel's workspace and the allocator's free blocks. So
# a step *needs* at least the counted peak, and *takes* more in `nvidia-smi`
# ([02b](02b_allocator_and_profilers.ipynb) has figures).
#
# ## Do both variants compute the same thing?
#
# Before you compare the bytes of two variants of a step, compare their gradients.
#
# > **Compare A with A before A with B.** Expect equal *bits* from A and B only if two runs of A
# > give equal bits. On a GPU they may differ, because some kernels add in an order that changes
# > from run to run. In that case, switch on `torch.use_deterministic_algorithms`, or accept that
# > B differs from A by about as much as two runs of A differ.

# %% [markdown] id="published-text"
# Now for the mistakes. Tutorials use the following function. It resets PyTorch's peak counter, runs
# forward and backward, and reads the counter. Instead of the counter, we use your meter.


# %% id="published"
def profile_memory(model, strategy):
    # there: torch.cuda.reset_peak_memory_stats()
    with segments.applied(model, strategy):
        return metered(lambda: model.loss(tokens).backward(), model)
    # there: torch.cuda.max_memory_allocated()


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
# **Predict.** Swap the two measurements: on a fresh model, run the checkpointed step first. What
# percentage of the peak does checkpointing save now?

# %% id="guess-order"
guess = None  # % of the peak

# %% id="two-orders"
model = GPT(config)
frugal = profile_memory(model, "per-block")
swapped = saving(profile_memory(model, "none"), frugal)
savings["the other order"] = swapped
print(f"in the other order it saves {swapped} %{beside(guess, swapped)}")

# %% [markdown] id="read-order"
# So whichever variant runs second holds something extra. Your categories show what:

# %% id="leftover-gradients"
first, second = standard.by_category(), checkpointed.by_category()
bars = {"first run: none": first, "second run: per block": second}
plots.ledger_bars(bars, title="As published: the second run carries gradients, counted")

# %% [markdown] id="read-leftover"
# ## Fault 1: what the last run left behind
#
# During the second run, the gradients of the first are still in memory. They're as large as the
# parameters. One line between the runs frees them:

# %% id="mended-leftovers"
model = GPT(config)
standard = profile_memory(model, "none")
model.zero_grad()
savings["without leftovers"] = saving(standard, profile_memory(model, "per-block"))
savings

# %% [markdown] id="kept-text"
# `memory.measure(step, steps=3).leaks()` finds other leftovers, such as outputs kept in a list.
#
# ## Fault 2: no warm-up
#
# The published function has no optimizer. Most training steps have one, and Adam makes its two
# states in its first `step()`. From here on we use the course's meter, which first runs `warmup`
# steps, then measures one.
#
# **Predict.** We measure the first and the second run of the same step. By how many P (the bytes of
# the parameters) is the peak of backward higher in the second run?

# %% id="guess-warmup"
guess = None  # P


# %% id="first-and-steady"
def training(strategy, warmup):
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    step = step_of(model, optimizer)
    with segments.applied(model, strategy):
        return memory.measure(step, model=model, optimizer=optimizer, warmup=warmup)


# %% id="first-and-steady-phases"
first, steady = training("none", warmup=0), training("none", warmup=1)
P = steady.at_peak["parameters"]
gained = (steady.phases["backward"] - first.phases["backward"]) / P
print(f"backward: {gained:.2f} P more{beside(guess, gained)}")
phases = pd.DataFrame({"first step": first.phases, "steady step": steady.phases}) / P
phases.round(2)  # peaks in P

# %% [markdown] id="read-warmup"
# So a job can survive its first step and run out of memory in its second. A benchmark of Adam
# without warm-up reads up to 2 P too low.
#
# ## Six ways to state one saving
#
# In each pair below, the upper bar is the plain step and the lower bar the checkpointed step, each
# at its peak. Which pair answers "does my job fit?"
#
# ![Six pairs of bars. What the bars hold differs from pair to pair: leftover gradients or none,
# AdamW in its first or a steady step, or activations alone. So the saving differs
# too.](figures/02-six-savings.svg)

# %% id="all-savings"
savings["with AdamW, first step"] = saving(first, training("per-block", warmup=0))
frugal = training("per-block", warmup=1)
savings["with AdamW, steady"] = steady_saving = saving(steady, frugal)
waiting = [max(moment["activations"] for moment in r.curve()) for r in (steady, frugal)]
savings["of activations alone"] = round(100 * (1 - waiting[1] / waiting[0]))
pd.DataFrame({"saved, %": savings})

# %% [markdown] id="read-savings"
# The first two are wrong, because one run held leftovers. The other four are correct answers to
# four different questions. **Whether your job fits depends on the peak of the steady step.**
#
# ## Fault 3: an instrument that does not see tensors
#
# A well-known notebook reports that checkpointing saves 22 %. A reader who reran it found the
# checkpointed peak slightly *larger*. The notebook had used `tracemalloc`, which sees only what
# Python's own allocator hands out; PyTorch gets its memory in C++
# ([02b](02b_allocator_and_profilers.ipynb) repeats the mistake). So test every instrument on a
# change of known size.
#
# ## Fault 4: one segment
#
# The same notebook called `checkpoint_sequential(..., segments=1)`. Others call `checkpoint(model,
# x)` once, around the whole model. What does each of the two save, and what does it cost?

# %% id="segments"
blocks = nn.Sequential(*(Block(config) for _ in range(8)))
x = torch.randn(4, 128, 128)  # (batch, sequence, width)
segmented = partial(checkpoint_sequential, blocks, input=x, use_reentrant=False)
runs = {
    "none": lambda: blocks(x),
    "checkpoint_sequential, 1": partial(segmented, segments=1),
    "checkpoint, around all": lambda: checkpoint(blocks, x, use_reentrant=False),
}
rows = {}
for name, forward in runs.items():
    way = partial(lambda run: run().sum().backward(), forward)
    report = memory.measure(way, model=blocks, flops=True)
    rows[name] = str(report.peak_bytes), f"{report.flops / 1e9:.2f}"
pd.DataFrame(rows, index=["peak", "billion FLOPs"]).T

# %% [markdown] id="read-segments"
# `checkpoint_sequential` never checkpoints the last segment, so with one segment it does nothing
# (row two). A checkpoint around everything costs a third more FLOPs and doesn't save a byte (row
# three; chapter 06 says why). So look at **both sides of the trade**, what you got and what you
# paid.
#
# ## Fault 5: a clock that does not wait
#
# Python only enqueues an operation for the GPU, and moves on. Without `torch.cuda.synchronize()`, a
# clock times only the queueing. The *memory* peak needs no synchronization: the allocator counts on
# the host, when an operation is launched.
#
# Bytes repeat exactly, but times don't. So time two variants in pairs, and take the median of the
# pairs' ratios. Then compare a step with *itself* in the same way (an **A/A test**). If that median
# is 1.01, a difference of 1 % between the two variants is noise.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "E13",
        "built",
        "Reset, step, read is right after a warm-up and with no gradients left over.",
        f"saves {savings['as published']} or {swapped} %, steady {steady_saving} %",
        "counted",
        "all-savings",
    ),
)

# %% [markdown] id="your-run-text"
# ## Your run
#
# `course/train/train.py` trains a GPT of GPT-2 medium's shape on text, as most people would write
# it: in float32, with 12 sequences of 1024 tokens per update. In later chapters you rewrite its
# functions. First meter a small twin of this GPT: `train.make(train.TWIN)` returns model and
# optimizer, and `train.update(model, optimizer, tokens)` does an update.
#
# **Write.** `metered_twin`. The first update makes AdamW's states, so meter the second.


# %% id="metered-twin"
def metered_twin():
    """Return your `Meter` of the twin's second update on the tokens `your_run.ROWS`."""
    ### BEGIN SOLUTION
    model, optimizer = train.make(train.TWIN)
    step = partial(train.update, model, optimizer, your_run.ROWS)
    step()
    return metered(step, model, optimizer)
    ### END SOLUTION


# %% id="check-metered-twin"
# @title Check: run this cell
@blanks.check("metered_twin", "return your meter")
def twin_is_metered():
    model, optimizer = train.make(train.TWIN)
    step = partial(train.update, model, optimizer, your_run.ROWS)
    right = memory.measure(step, model=model, optimizer=optimizer).peak_bytes
    with patch.object(train, "MEDIUM", GPTConfig(num_layers=1)):  # too large here
        meter = metered_twin()
    kind = type(meter).__name__
    assert isinstance(meter, Meter), f"Return a Meter, not a value of type {kind}."
    assert meter.by_category()["optimizer_state"], (
        "The peak has no optimizer states: it's the first update's, or the meter "
        "doesn't know the optimizer."
    )
    seen = meter.peak_bytes
    assert seen == right, f"The peak is {int(right)} bytes, but yours is {int(seen)}."


# %% [markdown] id="apply-text"
# The next cell predicts the memory of the full-size update. From FLOPs and memory traffic it also
# predicts the update's seconds on three cards. (On the newer two, `train.py` multiplies float32
# matrices in TF32, a faster format.) If you have a GPU, the cell also measures memory and seconds
# there. Which card is large enough?

# %% id="apply"
your_run.apply("02")

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A loop doesn't free its gradients before forward. Its plain step peaks at 9 GiB, of which
# 2.5 GiB are old gradients; its checkpointed step peaks at 6 GiB. A benchmark runs the plain step
# first, with no gradients left over, then the checkpointed step. What saving does it report?
#
# <details><summary>Answer</summary>
#
# It reads 6.5 and 6 GiB, and reports 8 %. In the loop the saving is a third.
# </details>
#
# **2.** A model has 500 MiB of float32 weights and is trained with Adam. How much higher is the
# peak of backward in the second step than in the first?
#
# <details><summary>Answer</summary>
#
# It's 1000 MiB higher, because the first update makes the two states.
# </details>
#
# **3.** The ratios of three A/A pairs are 1.02, 0.99 and 1.01, and those of three A/B pairs 1.02,
# 1.01 and 1.03. What may you claim?
#
# <details><summary>Answer</summary>
#
# The medians are 1.01 and 1.02. A differs from itself by 1 %, so a difference of 2 % is hardly more
# than noise: take more pairs first.
# </details>

# %% [markdown] id="summary"
# ## A list to keep
#
# 1. Do both variants compute the same thing? Compare A with A, then the gradients, then the bytes.
# 2. Which peak: forward and backward, or the whole steady step?
# 3. Is anything left from the run before? Use `report.leaks()`, or a new process.
# 4. Does the instrument see a change of known size?
# 5. What did you pay in FLOPs and time?
# 6. Did you time in pairs, take the median, and run an A/A test?
#
# Lab 02, `lab02_measurement_clinic`, gives you benchmarks that break these rules. Chapter 03 looks
# at the largest item, the activations, operation by operation.
