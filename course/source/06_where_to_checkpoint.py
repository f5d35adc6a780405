# %% [markdown] id="title"
# # Where to checkpoint
#
# "Put a checkpoint every $\sqrt n$ layers." Every tutorial says it, and most do not say why. For a
# transformer it is wrong: it costs more memory than the simplest choice and saves no time.
#
# In this chapter you derive where checkpoints belong, measure it, and meet three schedules:
# segments of equal length, Revolve, and a plan for stages that are not equal. At the end a planner
# turns a budget in bytes into a schedule that runs on a real model.
#
# **Budget:** 60 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import math
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tutorial_lib import data, memory, plan, plots, recorded, strategies, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.units import Bytes

# %% [markdown] id="two-costs-text"
# ## Two costs
#
# A model of twelve equal blocks, cut into three **segments** of four. The first two are
# checkpointed. The picture is a *tape*: a row for each block, and time runs to the right. A
# triangle that points up is a block's forward, one that points down its backward. A hollow one is
# a forward that runs again.

# %% id="first-tape"
block = {"forward_seconds": 1, "backward_seconds": 2, "input_bytes": 1, "saved_bytes": 5}
blocks = [plan.Stage(**block)] * 12
in_threes = plan.simulate(blocks, ((0, 1, 2, 3), (4, 5, 6, 7), 8, 9, 10, 11))
plots.schedule(in_threes.events, title="three segments of four", unit=1)

# %% [markdown] id="first-tape-read"
# A checkpointed segment costs memory twice:
#
# 1. its **boundary** (grey), the input of its first block, waits from forward until its backward;
# 2. its **inside** (purple) is there while the segment goes backward, and is gone before the next
#    segment's turn.
#
# Short segments have many boundaries and little inside. Long segments have few boundaries and much
# inside. The best length lies between, and depends on one number: how much a block keeps, compared
# with its input.

# %% [markdown] id="ratio-text"
# ## One number of a block
#
# Call a block's input $a$ bytes, and everything it keeps for backward $r \cdot a$ bytes.
#
# **Predict.** What is $r$ for a transformer block: attention, an MLP four times as wide, two
# norms? Write a number in place of `None`.

# %% id="guess-ratio"
guess = None

# %% id="ratio"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=24))
tokens = next(data.text_batches(4, 128))  # (batch, sequence)
x = torch.randn(4, 128, 128, requires_grad=True)  # a block's input
kept = memory.saved(lambda: gpt.blocks[0](x), params_of=gpt)
r = kept.num_bytes / x.nbytes
print(f"r = {r:.1f}{beside(guess, r)}")

# %% [markdown] id="formula-text"
# With $n$ blocks in segments of $s$ there are $n/s$ boundaries, and one inside at a time:
#
# $$ m(s) = \underbrace{\frac{n}{s}\,a}_{\text{boundaries}} +
#    \underbrace{r\,a\,s}_{\text{one inside}} $$
#
# The two terms are equal at the minimum, where
#
# $$ s^* = \sqrt{n / r} \qquad\text{or}\qquad k^* = \sqrt{n\,r} \text{ segments,}\qquad
#    m(s^*) = 2a\sqrt{n\,r} $$
#
# (Chen et al., 2016). The famous $\sqrt n$ is the case $r = 1$: a block that keeps its input and
# nothing else.


# %% id="formula"
def on_paper(segment, num_blocks, ratio, input_bytes=x.nbytes):
    return input_bytes * (num_blocks / segment + ratio * segment)


lengths = [1, 2, 3, 4, 6, 8, 12, 24]
curves = {f"r = {ratio}": {s: on_paper(s, 24, ratio) for s in lengths} for ratio in (1, 4, 16)}
plots.growth(
    curves,
    xlabel="blocks in a segment",
    title="24 blocks on paper (both axes logarithmic)",
    predicted=list(curves),
)

# %% [markdown] id="formula-read"
# For $r = 1$ the valley is at five blocks, which is $\sqrt{24}$. For $r = 16$ there is no valley:
# every block by itself is best. Even at $n = 48$ the formula gives $\sqrt{48 / 16} = 1.7$ blocks.
# So for a transformer of common depth the rule is: **checkpoint every block**.
#
# **Predict.** Our GPT has 24 blocks. `sqrt` makes five segments of about five blocks. How many
# times the activation memory of `per-block` will it need?

# %% id="guess-sqrt"
guess = None


# %% id="measured"
def step(model, loss, strategy):
    with strategies.applied(model, strategy):
        loss().backward()
    model.zero_grad()


def measured(strategy, **options):
    run = partial(step, gpt, partial(gpt.loss, tokens), strategy)
    return memory.measure(run, model=gpt, warmup=0, **options)


def held_for_backward(report):
    return report.peak_bytes - report.at_peak["parameters"] - report.at_peak["inputs"]


names = {s: "per-block" if s == 1 else f"every-{s}" for s in lengths}
curve = {s: held_for_backward(measured(name)) for s, name in names.items()}
ratio = held_for_backward(measured("sqrt")) / curve[1]
print(f"sqrt needs {ratio:.1f} times the memory of per-block{beside(guess, ratio)}")

# %% id="measured-figure"
static = {"on paper": {s: on_paper(s, 24, r) for s in lengths}, "counted": curve}
plots.growth(
    static,
    xlabel="blocks in a segment",
    title="GPT of 24 blocks: all but its parameters, at the peak",
    predicted=["on paper"],
)

# %% [markdown] id="measured-read"
# Paper and meter rise together. The meter stands above by what the formula leaves out: the logits
# and their gradient, and the gradients of the weights, which late segments find in memory.
#
# The last point, one segment of 24 blocks, is one checkpoint around the whole model. It saves
# nothing: the whole inside comes back at once.
#
# ## What it costs
#
# Some tutorials derive the price like this: there are $k = n/s$ segments, each recomputes $s$
# blocks, so the overhead is $(L/k) \cdot k / L = 1$, "but in practice only 30 %". The fraction is
# right, and it is a fraction of the *forward*: every block runs forward once more, whatever $s$
# is. A backward is two products where a forward is one (chapter 03), so one more forward makes a
# step of three parts into one of four.
#
# **Predict.** A third more, says the argument. By how many per cent do the FLOPs of our GPT's step
# really rise when every block is checkpointed by itself?

# %% id="guess-flops"
guess = None

# %% id="flops"
ways = ("none", "per-block", "every-2", "every-4", "sqrt", "mlp-only", "attention-only")
reports = {way: measured(way, flops=True) for way in ways}
plain = reports["none"]
for way, report in reports.items():
    left = held_for_backward(report) / held_for_backward(plain)
    print(f"{way:<16}memory {left - 1:+5.0%}   FLOPs {report.flops / plain.flops - 1:+6.1%}")
more = 100 * (reports["per-block"].flops / plain.flops - 1)
print(f"per-block: {more:.0f} %{beside(guess, more)}")

# %% [markdown] id="flops-read"
# With long segments it is nearly a third. (Embedding and head are not recomputed.) With one block
# to a segment it is much less: PyTorch stops a recomputation as soon as backward has what it
# needs, and the last product of a segment saves nothing that backward needs. That product, the
# second half of the MLP, is a third of a block's arithmetic. So the shortest segments are cheapest
# in time as well, and the folklore loses twice.
#
# One segment need not be checkpointed at all. Backward begins with the *last* one, so its inside
# is kept for no time. Leave it out, and the price falls to $\frac13 (1 - \frac1k)$.


# %% id="last-free"
def all_but_last(num_blocks, segment):
    starts = range(0, num_blocks - segment, segment)
    return (*(tuple(range(at, at + segment)) for at in starts), *range(num_blocks)[-segment:])


for name, tree in {
    "all four": tuple(tuple(range(at, at + 3)) for at in range(0, 12, 3)),
    "all but the last": all_but_last(12, 3),
}.items():
    run = plan.Plan(tuple(blocks), tree)
    print(f"{name:<17} peak {run.peak_bytes} units, time {run.overhead:+.1%}")

# %% [markdown] id="price-in-seconds"
# Seconds are another matter. Where kernels wait for memory or for Python, a third more arithmetic
# is less than a third more time; where a slow loader is part of the step, too. So "20 to 30 %" is
# a fact about somebody's machine. Chapter 05 timed this GPT, and chapter 02 says how to time
# yours.
#
# ## Nothing kept
#
# Could we keep no boundary at all, only the input? To go backward through block 12 we run blocks 1
# to 12; for block 11 we run 1 to 11, and so on.
#
# **Predict.** 24 blocks: how many block forwards in all, the first pass included?

# %% id="guess-nothing"
guess = None


# %% id="nothing-kept"
def nothing_kept(num_blocks):  # the last block is kept, all before it are one segment, and so on
    *before, last = range(num_blocks)
    return (nothing_kept(num_blocks - 1), last) if before else (last,)


lazy = plan.Plan((plan.Stage(**block),) * 24, nothing_kept(24))
runs = sum(lazy.forward_executions)
print(f"{runs} forwards, peak {lazy.peak_bytes} units{beside(guess, runs)}")

# %% [markdown] id="nothing-read"
# That is $n(n + 1)/2$: the number of forwards grows with the square of the depth. Nobody trains
# like that, and nobody has to: a few boundaries in the right places make most of it unnecessary.
#
# ## Revolve
#
# You may hold $c$ boundaries at a time, the model's input among them, and the inside of one block.
# When a boundary has done its work, its place is free for another one: in the part that is still to
# come. What is the smallest number of forwards?
#
# With $t$ forwards of each block and $c$ boundaries at most $\binom{c+t}{c}$ blocks can be done
# (Griewank and Walther, 2000). Put differently: for a fixed number of repetitions the memory grows
# with a *root* of the depth, and for a fixed memory the number of repetitions does. With memory
# and repetitions both free to grow, both need only $\log n$. Their schedule is called Revolve.


# %% id="revolve"
def one_inside_at_a_time(num_blocks, slots):
    inside = slots + 3  # so large that a second one never fits
    stage = plan.Stage(forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=inside)
    return plan.solve([stage] * num_blocks, budget_bytes=slots + inside + 2)


def binomial(num_blocks, slots):
    times = next(t for t in range(num_blocks) if math.comb(slots + t, slots) >= num_blocks)
    return num_blocks + times * num_blocks - math.comb(slots + times, slots + 1)


for slots in (1, 2, 3, 4, 6, 8):
    found = sum(one_inside_at_a_time(24, slots).forward_executions)
    print(f"{slots} boundaries: {found:>3} forwards, the formula says {binomial(24, slots)}")

# %% [markdown] id="revolve-read"
# With the input alone there are 300 forwards, as before. A second boundary brings them down to less
# than half, and with four each block runs about three times. Step through a schedule: watch where a
# boundary is set a second time.

# %% id="stepper"
schedules = {
    "Revolve, 3 boundaries": one_inside_at_a_time(12, 3),
    "Revolve, 2 boundaries": one_inside_at_a_time(12, 2),
    "nothing kept": plan.Plan((plan.Stage(**block),) * 12, nothing_kept(12)),
    "segments of four": plan.Plan(tuple(blocks), ((0, 1, 2, 3), (4, 5, 6, 7), 8, 9, 10, 11)),
}
widgets.schedule_stepper({name: each.simulation.events for name, each in schedules.items()}, unit=1)

# %% [markdown] id="stepper-read"
# Revolve comes from simulations of weather and flow: there a state is a gigabyte, and the inside
# of a time step is not much more ($r$ near 1). In a transformer the inside is 16 boundaries large,
# so what counts there is to have one inside at a time, and boundaries are cheap. Lab 04 has you
# write Revolve.
#
# ## Stages that are not equal
#
# In a U-Net the first level's activations are many times as large as the last one's, and skips
# jump from one side to the other. No rule with one number can be right. What is left is to ask for
# each split what it costs, smallest parts first: dynamic programming. The recursion is (Beaumont
# et al., 2019): the first stages are either *kept*, or they are a *segment* up to some boundary.
#
# $$ T(s, m) = \min\Big( \underbrace{u_s + T(s{+}1,\, m - \bar a_s)}_{\text{keep stage } s},\;
#    \min_{e} \underbrace{\textstyle\sum_{i=s}^{e-1} f_i + T(e,\, m - a_e) +
#    T_{s..e}(m)}_{\text{drop stages } s \text{ to } e,\text{ run them again}} \Big) $$
#
# for the time of the stages from $s$ on in $m$ bytes. `plan.solve` does that, and lab 04 has you
# do it. The library also does what goes around it: find a model's stages, measure them, run the
# plan.

# %% id="unet"
torch.manual_seed(0)
unet = UNet(UNetConfig(channel_multipliers=(1, 2, 4), blocks_per_level=2))
images, noise = data.image_batch(8, 1, 32), data.image_batch(8, 1, 32, seed=1)
unet_loss = partial(unet.loss, images, torch.arange(1, 1000, 125), noise)
invented = plan.Speed(float_flops=1e12, bytes_per_second=1e11)
profile = plan.profile(unet, unet_loss, speed=invented)
total = sum(stage.forward_seconds for stage in profile.stages)
print(f"{'stage':<10}{'input':>10}{'saved':>10}{'of forward time':>17}")
for name, stage in zip(profile.names, profile.stages, strict=True):
    share = stage.forward_seconds / total
    print(f"{name:<10}{Bytes(stage.input_bytes):>10}{Bytes(stage.saved_bytes):>10}{share:>17.1%}")

# %% [markdown] id="unet-read"
# `profile` ran the model once and counted. `saved` differs by a factor of five between stages, and
# is not in proportion to the time. The seconds are *predicted* from FLOPs and bytes for an
# invented device, so that this page is the same on every machine; without `speed=` they are
# measured on yours.
#
# **Predict.** With every block checkpointed the forward runs twice, which is at most +33 %. How
# many per cent of time does the cheapest plan add that holds half of what the step holds without
# any?

# %% id="guess-half"
guess = None

# %% id="plans"
everything = plan.solve(profile, budget_bytes=2**40)  # room for all: nothing is recomputed
half = plan.solve(profile, budget_bytes=everything.peak_bytes // 2)
print(f"{100 * half.overhead:.0f} %{beside(guess, 100 * half.overhead)}")
for item in half.tree:
    names = [profile.names[index] for index in (item if isinstance(item, tuple) else (item,))]
    print("recomputed" if isinstance(item, tuple) else "kept      ", *names)

# %% [markdown] id="plans-read"
# A plan keeps what is small and slow, and recomputes what is large and fast. No rule with one
# number finds that. `apply` runs it on the real model; gradients are the same bits.


# %% id="apply"
def unet_step():
    unet_loss().backward()


def above_the_start(report):
    return report.peak_bytes - report.baseline_bytes


unet_step()
before = [parameter.grad.clone() for parameter in unet.parameters()]
plan.apply(unet, half)
unet.zero_grad()
unet_step()
same = all(map(torch.equal, before, (parameter.grad for parameter in unet.parameters())))
held = above_the_start(memory.measure(lambda: (unet_step(), unet.zero_grad(False)), model=unet))
print(f"same gradients: {same}; counted peak {held / half.peak_bytes:.0%} of the planned one")


# %% id="tradeoff"
def cost(run):
    report = memory.measure(run, model=unet, flops=True)
    return above_the_start(report), report.flops


plan.undo(unet)
run = lambda: (unet_step(), unet.zero_grad(False))  # noqa: E731  gradients stay, as zeros
_, plain_flops = cost(run)
curves = {"plans": {}}
for share in (1.0, 0.8, 0.6, 0.5, 0.4):
    plan.apply(unet, plan.solve(profile, budget_bytes=int(everything.peak_bytes * share)))
    held, flops = cost(run)
    curves["plans"][held] = flops / plain_flops - 1
plan.undo(unet)
for name in ("per-block", "attention-only"):
    with strategies.applied(unet, name):
        held, flops = cost(run)
    curves[name] = {held: flops / plain_flops - 1}
plots.tradeoff(curves, title="U-Net: what a step holds above its model, and FLOPs recomputed")

# %% [markdown] id="tradeoff-read"
# Between "none" and "every block" there was nothing; now there is every budget. (The planner knows
# of the early stop: `profile` noted for each stage what comes after the last tensor that it saves.)
#
# Two points lie a little below the line. These stages are whole blocks, and attention-only cuts
# inside one; and the plans were made for predicted seconds, while the figure counts FLOPs. Chapter
# 07 gives the planner a third choice for each stage, and then no other way lies below its line.
#
# ## A bug in many tutorials
#
# Segments are often written by hand, as a loop that wraps each part of the model in a function.
# Here is the usual code. It runs, the loss is finite, and it falls.


# %% id="late-binding"
def in_segments(blocks, x, length):
    for start in range(0, len(blocks), length):
        segment = blocks[start : start + length]

        def run(x):
            for layer in segment:  # noqa: B023  this is the bug
                x = layer(x)
            return x

        x = checkpoint(run, x, use_reentrant=False)
    return x


layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8))
x = torch.randn(4, 16, requires_grad=True)


def gradients(forward):
    layers.zero_grad()
    forward(x).square().sum().backward()
    return [parameter.grad for parameter in layers.parameters()]


right = gradients(nn.Sequential(*layers))
seen = gradients(lambda x: in_segments(layers, x, length=4))
[None if g is None else torch.equal(g, r) for g, r in zip(seen, right, strict=True)][::2]

# %% [markdown] id="late-binding-read"
# The gradients of the first four layers are wrong. `run` does not remember its segment; it looks
# the name `segment` up when it is called. In forward that is right. In backward the loop has ended,
# and every recomputation runs the *last* segment: the first layers' backward gets another segment's
# tensors. PyTorch cannot notice, since both segments have equal shapes.
#
# The mend is to hand the segment over as an argument: its value is then fixed at the call.


# %% id="mended"
def in_bound_segments(blocks, x, length):
    for start in range(0, len(blocks), length):
        segment = nn.Sequential(*blocks[start : start + length])
        x = checkpoint(segment, x, use_reentrant=False)
    return x


seen = gradients(lambda x: in_bound_segments(layers, x, length=4))
chain = nn.Sequential(*layers)
library = gradients(lambda x: checkpoint_sequential(chain, 2, x, use_reentrant=False))
[all(map(torch.equal, each, right)) for each in (seen, library)]

# %% [markdown] id="folklore-text"
# ## Three more sayings
#
# **"It does little for shallow networks."** Here is what per-block saves of a step's peak,
# weights, gradients and optimizer included, for GPTs of growing depth.


# %% id="shallow"
def saved_at(depth):
    torch.manual_seed(0)
    model = GPT(GPTConfig(num_layers=depth))
    optimizer = torch.optim.AdamW(model.parameters())

    def train(strategy):
        step(model, partial(model.loss, tokens), strategy)
        optimizer.step()

    peaks = [memory.measure(partial(train, way), model=model, optimizer=optimizer).peak_bytes
             for way in ("per-block", "none")]  # fmt: skip
    return 1 - peaks[0] / peaks[1]


{depth: f"{saved_at(depth):.0%}" for depth in (1, 2, 4, 8, 16)}

# %% [markdown] id="shallow-read"
# One block saves next to nothing: its inside comes back whole. From four blocks on the saving is
# there. What matters is the number of blocks, and how much of the peak was activations.
#
# **"Checkpoint only the first and the last 8 of 32 layers: the highest leverage."** Sixteen of 32
# equal blocks, chosen in four ways, on paper:


# %% id="which-sixteen"
def choosing(chosen):
    tree = tuple((index,) if index in chosen else index for index in range(32))
    return plan.Plan((plan.Stage(**block),) * 32, tree)


choices = {
    "first 16": range(16),
    "last 16": range(16, 32),
    "first and last 8": [*range(8), *range(24, 32)],
    "every second": range(0, 32, 2),
}
for name, chosen in choices.items():
    run = choosing(set(chosen))
    print(f"{name:<17} peak {run.peak_bytes} units, {sum(run.forward_executions)} forwards")

# %% [markdown] id="which-sixteen-read"
# All four cost the same time, and their peaks hardly differ: for equal layers it hardly matters
# *which* sixteen. The first sixteen are a little better, because the peak comes when backward
# begins, and a late block that is recomputed then adds its inside on top.
#
# **"Checkpointing saves 50 to 80 % of the activations."** Chapter 10 has predictions for published
# models, each with and without. Here is what per-block saves of the bytes that forward and backward
# add.


# %% id="pairs"
def added_by_the_pass(report):  # what forward and backward add to what was there
    phases = report["phases"]
    return max(phases["forward"], phases["backward"]) - report["baseline_bytes"]


added = {}
for row in recorded.load("predicted").rows.values():
    if "report" in row:
        way, rest = row["recipe"]["checkpointing"], {**row["recipe"], "checkpointing": ""}
        added.setdefault(str(rest), {})[way] = added_by_the_pass(row["report"])
pairs = [pair for pair in added.values() if {"none", "per-block"} <= pair.keys()]
shares = sorted(1 - pair["per-block"] / pair["none"] for pair in pairs)
print(f"{len(pairs)} pairs, {sum(0.5 <= share <= 0.8 for share in shares)} in the range;")
print(f"smallest {shares[0]:.0%}, median {shares[len(shares) // 2]:.0%}, largest {shares[-1]:.0%}")

# %% [markdown] id="pairs-read"
# So the range describes part of the models. What is saved is a property of model, batch and
# attention kernel, and no number stands for all.
#
# ## What to remember
#
# | question | answer |
# |---|---|
# | how long a segment | where boundaries and inside are equal: $s = \sqrt{n/r}$ blocks |
# | transformers | every block: $r$ is about 16 |
# | $r = 1$ (recurrent, physics) | segments of $\sqrt n$; below that Revolve |
# | price | one more forward, a third of a step; less by the early stop and the last segment |
# | nothing kept | a quadratic number of forwards |
# | unequal stages | a plan: profile, solve, apply |
#
# Lab 04 has you build the schedules. Chapter 07 goes below the block: which *operations* to keep.
