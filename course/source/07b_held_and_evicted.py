# %% [markdown] id="title"
# # Held and evicted
#
# This companion of chapter 07 is optional: no lab and no later chapter needs it. It's about tensors
# that a checkpoint can't drop, and about dropping tensors without a plan.
#
# **Budget:** 25 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from functools import cache

import pandas as pd

from tutorial_lib import claims, data, memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig

# %% [markdown] id="references-text"
# ## Why did my memory not fall?
#
# A checkpoint can drop a tensor only if nothing else holds it. Training code often holds such a
# tensor in a list of hidden states for a plot, or in a hook's log of activations.
#
# We checkpoint every block. In each run a hook logs one thing per block: the block's output, a
# tensor inside the MLP (the result of `mlp.up`), or the mean of the first norm's output.
#
# **Predict.** The hook keeps the tensor inside each block's MLP, not detached. What is the peak, as
# a percentage of the peak *without* checkpointing?

# %% id="guess-kept"
guess = None  # %


# %% id="references"
def detached(tensor):
    return tensor.detach()


def itself(tensor):
    return tensor


def mean(tensor):
    return tensor.mean().item()


# %% id="with-log"
tokens = next(data.text_batches(2, 128))  # (batch, sequence)
unit = 2 * 128 * 128 * 4  # bytes of a block's input


def with_log(part="", hand=None, strategy="per-block"):
    gpt, log = GPT(GPTConfig(num_layers=8)), []
    for block in gpt.blocks if hand else ():
        module = block.get_submodule(part)
        module.register_forward_hook(lambda module, args, out: log.append(hand(out)))

    def step():
        gpt.zero_grad()
        gpt.loss(tokens).backward()

    with segments.applied(gpt, strategy):
        return memory.measure(step, model=gpt, warmup=0)


# %% id="references-measured"
plain = with_log(strategy="none").peak_bytes
reports = {("nothing", ""): with_log()}
for part, hand in [("", itself), ("mlp.up", detached), ("mlp.up", itself)]:
    reports[part or "block", hand.__name__] = with_log(part, hand)
reports["norm_1", "mean"] = with_log("norm_1", mean)


# %% id="references-table"
def waiting(report):
    backward = next(tick for tick, phase in report.phase_starts if phase == "backward")
    return report.curve()[backward]["activations"] / unit


peaks = {name: 100 * report.peak_bytes / plain for name, report in reports.items()}
inside = peaks["mlp.up", "itself"]
print(f"from inside: {inside:.0f} %{beside(guess, inside)}")
units = {name: f"{waiting(report):.1f}" for name, report in reports.items()}
table = pd.DataFrame({"waiting, units": units, "peak, % of plain": peaks})
table.round().rename_axis(["logged", "kept as"])

# %% [markdown] id="references-read"
# - The **outputs of the blocks** are the boundaries, which wait anyway. The log only keeps them
#   longer than backward would.
# - The **MLP's inner tensors** stay in memory, four units per block. The hook runs in the
#   recomputation too, and logs each tensor again. Without `detach`, these second entries also hold
#   the whole graph of their block.
# - The **mean** of a tensor, a Python number, costs no memory. On a GPU `.item()` makes Python wait
#   for the device, so log only every hundredth step.
#
# `memory.saved` doesn't count logged tensors, since autograd didn't save them. `memory.measure`
# does count them.

# %% [markdown] id="can-it-be-decided"
# ## Can you choose what to drop while the model runs?
#
# The plans in chapters 06c and 07 were made beforehand. A plan doesn't fit a graph that changes
# from step to step, for example if each input is a tree of its own shape. **Dynamic tensor
# rematerialization** (Kirisame et al., 2021) works without a plan. It recomputes a dropped tensor
# when that tensor is needed. When memory is full, it *evicts*, or drops, the tensor with the
# smallest
#
# $$ h = \frac{\text{cost to recompute it}}{\text{bytes} \times \text{time since its last use}} $$
#
# Here is a small case: a chain of equal operations. The cost of a result is one operation for the
# result itself, plus one for each evicted result next to it: those back to the nearest result in
# memory, which must be recomputed first, and those up to the next result in memory, which would be
# recomputed from it.


# %% id="on-demand"
class OnDemand:
    """Results of a chain, at most `room` of them in memory; result 0 is the input."""

    def __init__(self, room):
        self.room, self.clock, self.runs = room, 0, 0
        self.used = {0: 0}  # what is in memory, and when it was last used

    def score(self, place):
        before = max(other for other in self.used if other < place)
        after = min((other for other in self.used if other > place), default=place + 1)
        return (after - before - 1) / (self.clock - self.used[place] + 1)

    def get(self, wanted):
        start = max(place for place in self.used if place <= wanted)
        for place in range(start + 1, wanted + 1):
            if len(self.used) == self.room:
                evictable = self.used.keys() - {0, place - 1}
                del self.used[min(sorted(evictable), key=self.score)]
            self.runs, self.clock = self.runs + 1, self.clock + 1
            self.used[place - 1] = self.used[place] = self.clock


# %% id="on-demand-step"
def forward_and_backward(length, room):
    chain = OnDemand(room)
    for place in range(length, -1, -1):  # the first get is the forward pass
        chain.get(place)
        chain.used.pop(place)
    return chain.runs


# %% [markdown] id="predict-on-demand"
# For comparison, a recursion as in 06c, which knows the whole chain beforehand, finds the best
# plan. It tries each $k$: run forward to result $k$ and keep it, go backward through everything
# after $k$, then through everything before $k$.
#
# **Predict.** A chain has 64 operations, and memory has room for 12 results. What percentage more
# operations does the eviction rule run than the best plan?

# %% id="guess-on-demand"
guess = None  # %


# %% id="on-demand-best"
@cache
def best(length, room):
    if length <= 1:
        return length
    ways = range(1, length + 1) if room >= 3 else ()
    runs = (k + best(length - k, room - 1) + best(k - 1, room) for k in ways)
    return min(runs, default=10**9)


# %% id="on-demand-runs"
runs, planned = forward_and_backward(64, 12), best(64, 12)
more = 100 * (runs / planned - 1)
print(f"evicting: {runs} runs; plan: {planned}; {more:+.0f} %{beside(guess, more)}")

# %% id="on-demand-figure"
rooms = (6, 8, 10, 12, 16, 24, 40, 65)
evicting = {room: forward_and_backward(64, room) for room in rooms}
plots.training_curves(
    {"evicting on demand": evicting, "best plan": {n: best(64, n) for n in rooms}},
    xlabel="results that fit in memory",
    ylabel="runs of an operation",
    title="Forward and backward through a chain of 64 operations",
    dashed=["best plan"],
)

# %% [markdown] id="on-demand-price"
# The rule stays close to the best plan's number of operations. But before each eviction it compares
# all tensors in memory, which isn't counted here. So for a fixed graph, a plan made once is
# cheaper. PyTorch has no eviction mode.
#
# ## Verdicts

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "C21",
        "shown",
        "On a chain, evicting on demand needs no plan, but is close to the best one.",
        f"{runs} runs, {planned} planned: {more:+.0f} %",
        "counted",
        "on-demand-runs",
    ),
    claims.Verdict(
        "E16",
        "partly",
        "The blocks' outputs, which it names, cost little to keep if each block is a "
        "segment. Keeping anything inside a segment, outputs too, undoes the saving.",
        f"peak {peaks['nothing', '']:.0f} % of plain with nothing logged, "
        f"{peaks['block', 'itself']:.0f} % with outputs, {inside:.0f} % with the "
        "inside",
        "counted",
        "references-table",
    ),
)
