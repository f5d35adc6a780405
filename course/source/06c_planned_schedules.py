# %% [markdown] id="title"
# # Planned schedules
#
# Segments of equal length are one schedule of many. When even the boundaries do not fit, or when
# stages differ as they do in a U-Net, no rule with one number finds the best.
#
# In this chapter you meet two schedules that a search finds: Revolve, for equal stages and few
# boundaries, and a plan for stages that are not equal. The planner turns a budget in bytes into a
# schedule that runs on a real model.
#
# **Budget:** 35 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math

import pandas as pd
import torch

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import planning, segments, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.models.unet import UNet, UNetConfig
from tutorial_lib.units import human_bytes

# %% [markdown] id="revolve-text"
# ## Revolve
#
# Chapter 06 ended with nothing kept: 24 blocks, 300 forwards. Now you may hold $c$
# boundaries at a time, the model's input among them, and the inside of one block. Backward frees
# boundaries, the last ones first. A free place can then hold a new boundary, among the blocks whose
# backward is still to come. What is the smallest number of forwards?
#
# If each block may run *again* $t$ times and $c$ boundaries fit, at most $\binom{c+t}{c}$ blocks
# can be done (Griewank and Walther, 2000). For a fixed $t$ the memory then grows with the $t$-th
# root of the depth only, and for a fixed $c$ the repetitions grow with the $c$-th root. If both may
# grow, both need only $\log n$. Their schedule is called Revolve.
#
# **Predict.** 24 blocks and *two* boundaries, one of them the input. How many block forwards?

# %% id="guess-two"
guess = None  # forwards


# %% id="revolve"
def one_inside_at_a_time(num_blocks, slots):
    large = slots + 3  # so that a second inside never fits
    stage = planning.Stage(
        forward_seconds=1, backward_seconds=1, input_bytes=1, saved_bytes=large
    )
    return planning.solve([stage] * num_blocks, budget_bytes=slots + large + 2)


places = (1, 2, 3, 4, 6, 8)
found = [sum(one_inside_at_a_time(24, slots).forward_executions) for slots in places]
print(f"two boundaries: {found[1]} forwards{beside(guess, found[1])}")
dict(zip(places, found, strict=True))


# %% [markdown] id="write-binomial"
# **Write.** The formula for the forwards of $n$ blocks, $n + t\,n - \binom{c+t}{c+1}$, in which $t$
# is the least number with $\binom{c+t}{c} \ge n$.


# %% id="binomial"
def binomial(num_blocks, slots):
    """Fewest forwards with `slots` boundaries at a time, by the formula."""
    ### BEGIN SOLUTION
    times = 0
    while math.comb(slots + times, slots) < num_blocks:
        times += 1
    return num_blocks + times * num_blocks - math.comb(slots + times, slots + 1)
    ### END SOLUTION


# %% id="check-binomial"
# @title Check: run this cell
@blanks.check("binomial", "return a number of forwards")
def binomial_is_right():
    for num_blocks, slots in ((1, 1), (2, 1), (6, 2), (7, 2), (24, 2), (30, 3), (5, 8)):
        needed = sum(one_inside_at_a_time(num_blocks, slots).forward_executions)
        seen = binomial(num_blocks, slots)
        where = f"{num_blocks} blocks, {slots} boundaries"
        assert seen == needed, f"{where}: the search finds {needed}, and you {seen}."


# %% id="revolve-formula"
formula = [binomial(24, slots) for slots in places]
table = pd.DataFrame({"solved": found, "formula": formula}, index=places)
table.rename_axis("boundaries")

# %% [markdown] id="revolve-read"
# With the input alone there are the 300 forwards of chapter 06. A second boundary brings them down
# to less than half, and with four each block runs about three times. Step through a schedule: watch
# where a boundary is set a second time.

# %% id="stepper"
block = planning.Stage(
    forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=5
)
in_fours = ((0, 1, 2, 3), (4, 5, 6, 7), 8, 9, 10, 11)
every_block = tuple((number,) for number in range(12))
schedules = {
    f"Revolve, {slots} boundaries": one_inside_at_a_time(12, slots) for slots in (3, 2)
}
schedules["the input alone"] = one_inside_at_a_time(12, 1)
schedules["segments of four"] = planning.Plan((block,) * 12, in_fours)
schedules["every block"] = planning.Plan((block,) * 12, every_block)
schedules["no checkpoint"] = planning.Plan((block,) * 12, tuple(range(12)))
events = {name: found.simulation.events for name, found in schedules.items()}
widgets.schedule_stepper(events, unit=1)

# %% [markdown] id="stepper-read"
# Revolve comes from simulations with many time steps, each with a large state. There a boundary for
# each step does not fit. In our transformer the inside is as large as 16 boundaries, so boundaries
# are cheap. What counts is that one inside at a time is in memory. Lab 04 has you write Revolve.

# %% id="verdicts-revolve"
claims.Verdicts(
    claims.Verdict(
        "C11",
        "shown",
        "Dynamic programming finds Revolve's schedules, with the forwards of the "
        "formula.",
        f"equal for {sum(map(int.__eq__, found, formula))} of {len(places)} numbers of "
        "places",
        "counted",
        "revolve-formula",
    ),
)

# %% [markdown] id="stages-that-are-not"
# ## Stages that are not equal
#
# What if each stage is different? In a U-Net the first level's activations are many times as large
# as the last one's, and skips jump from one side to the other.

# %% id="unet"
unet = UNet(UNetConfig(channel_multipliers=(1, 2, 4), blocks_per_level=2))
images, noise = data.image_batch(4, 1, 32), data.image_batch(4, 1, 32, seed=1)


def unet_loss():
    return unet.loss(images, torch.arange(1, 1000, 250), noise)


invented = planning.Speed(float_flops=1e12, bytes_per_second=1e11)
profile = planning.profile(unet, unet_loss, speed=invented)
stages = pd.DataFrame(map(vars, profile.stages), index=profile.names)
table = stages[["input_bytes", "saved_bytes"]].map(human_bytes)
share = stages.forward_seconds / stages.forward_seconds.sum()
table.assign(share_of_forward=share.map("{:.1%}".format))

# %% [markdown] id="unet-read"
# `profile` ran the model once and counted. `saved` differs by a factor of five between blocks, and
# is not in proportion to the time. The seconds are *predicted* from FLOPs and bytes for an invented
# device, so that this page is the same on every machine; without `speed=` they are measured on
# yours.
#
# No rule with one number can be right here. So try every split and keep the cheapest, smallest
# parts first: dynamic programming. In the recursion of Beaumont et al. (2019), there are two
# choices for the first stage. It is *kept*, or it begins a *segment*, which is dropped.
#
# $$ T(s, m) = \min\Big( \underbrace{u_s + T(s{+}1,\, m - \bar a_s)}_{\text{keep stage } s},\;
#    \min_{e} \underbrace{\textstyle\sum_{i=s}^{e-1} f_i + T(e,\, m - a_e) +
#    T_{s..e-1}(m)}_{\text{drop stages } s \text{ to } e-1,\text{ run them again}} \Big) $$
#
# $T(s, m)$ is the time of the stages from $s$ on, in $m$ bytes. Stage $i$ needs $f_i$ seconds
# forward, and $u_i$ forward and backward together. Kept, it holds $\bar a_i$ bytes; the boundary
# before it has $a_i$. A dropped segment costs three things: its first forward; then the stages
# after it, with $a_e$ fewer bytes; then the segment alone, with all $m$ bytes. After the last stage
# $T = 0$. A choice that does not fit costs $\infty$: what it keeps, and what runs meanwhile, must
# fit into $m$. `planning.solve` does that, and lab 04 has you do it. The result is the fastest
# schedule in which a boundary, once kept, stays until its backward. (Without that condition the
# problem is NP-hard.)
#
# **Predict.** With every block checkpointed the forward runs twice, which is at most +33 %. Allow
# half the peak. How many per cent slower is the fastest plan?

# %% id="guess-half"
guess = None  # %

# %% id="plans"
# room for all: nothing is recomputed
everything = planning.solve(profile, budget_bytes=2**40)
half_plan = planning.solve(profile, budget_bytes=everything.peak_bytes // 2)
print(f"{100 * half_plan.overhead:.0f} %{beside(guess, 100 * half_plan.overhead)}")
_, *lines = str(half_plan).splitlines()
print(*lines, sep="\n")

# %% [markdown] id="plans-read"
# Position counts, beside size and time. The plan keeps the last stages, although they are large:
# their backward comes first, so what they hold is freed before any other stage is recomputed. A
# stage kept at the beginning waits for most of the step, so most of those are recomputed. No rule
# with one number finds that.
#
# `apply` runs the plan on the real model. Is the peak the planned one, and are the gradients the
# same bits? (A step is compared with itself first, as chapter 02 asks.) Then: how do plans for
# several budgets compare with the two strategies that need no plan?


# %% id="apply-peak"
def gradients():
    unet.zero_grad()
    unet_loss().backward()
    return [parameter.grad for parameter in unet.parameters()]


def cost():
    report = memory.measure(unet_step, model=unet, warmup=0, flops=True)
    return report.peak_bytes - report.baseline_bytes, report.flops


def unet_step():
    unet_loss().backward()
    unet.zero_grad(set_to_none=False)  # the gradients stay, as zeros


expected = gradients()
print("plain again:", all(map(torch.equal, gradients(), expected)))
planning.apply(unet, half_plan)
print("by the plan:", all(map(torch.equal, gradients(), expected)))
at_half = cost()
print(f"counted peak: {at_half[0] / half_plan.peak_bytes:.0%} of the planned one")

# %% id="tradeoff-figure"
planning.undo(unet)
points = {"plans": [cost(), at_half]}
for share in (0.8, 0.6, 0.4):
    budget = int(everything.peak_bytes * share)
    planning.apply(unet, planning.solve(profile, budget_bytes=budget))
    points["plans"].append(cost())
planning.undo(unet)
for name in ("per-block", "attention-only"):
    with segments.applied(unet, name):
        points[name] = [cost()]

_, without = points["plans"][0]
curves = {
    name: {held: flops / without - 1 for held, flops in costs}
    for name, costs in points.items()
}
title = "U-Net: plans fill the gap between no checkpoint and every block"
plots.tradeoff(curves, title=title)

# %% [markdown] id="tradeoff-read"
# Between "none" and "every block" there is now a plan for every budget. (The planner knows of the
# early stop: `profile` noted for each stage what comes after the last tensor that it saves.)
# Two points lie a little below the line of the plans. There are two reasons. A plan's stages are
# whole blocks, and attention-only cuts inside a block. And the plans are cheapest in predicted
# seconds, while the figure counts FLOPs. Chapter 07 gives the planner a third choice for each
# stage.
#
# Drag the budget: which stages does the plan give up first?

# %% id="plan-explorer"
percents = range(35, 105, 5)
budgets = [everything.peak_bytes * percent // 100 for percent in percents]
widgets.plan_explorer(lambda size: planning.solve(profile, budget_bytes=size), budgets)

# %% [markdown] id="end"
# ## What to remember
#
# | question | answer |
# |---|---|
# | boundaries do not fit | Revolve: the forwards grow slowly while boundaries get fewer |
# | stages are not equal | a plan: profile, solve, apply |
# | which stages a plan keeps | the last ones; for the others neither size nor time alone decides |
#
# Lab 04, `lab04_schedules`, has you build the schedules: the curve of lengths, Revolve, and the
# dynamic program. Chapter 07 goes below the block: which *operations* to keep.
