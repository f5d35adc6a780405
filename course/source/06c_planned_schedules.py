# %% [markdown] id="title"
# # Planned schedules
#
# Chapter 06 cut a chain of equal blocks into equal segments. That's no longer best if there's no
# room for all boundaries, or if the blocks differ. In this chapter you write a planner of a dozen
# lines. It finds the best of all schedules that hold each boundary until its block's backward.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
import sys
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, claims, memory, plots
from tutorial_lib.instruments import figures, planning, segments, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.units import GIB, human_bytes

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

torch.set_num_threads(1)  # small tensors: more threads would wait for each other

# %% [markdown] id="puzzle-text"
# ## A puzzle
#
# There are twelve blocks, 0 to 11. Backward goes from block 11 to block 0, and there's memory for
# only three boundaries, in three **slots**. (A boundary is the input of one block.) One slot always
# holds block 0's input; the other two are yours. Before a block's backward, forward runs again up
# to that block, from the nearest boundary. The goal is to need few block forwards.
#
# Your list names the blocks whose inputs you want to keep, most important first. When forward runs
# past listed blocks, it stores their inputs in the free slots. If it passes more listed blocks than
# there are free slots, it stores only the most important ones. After a block's own backward, its
# slot is free again.
#
# **Move the sliders**, one for each entry of the list. (Where you see no sliders, edit the list in
# the cell and run it again.) Get below 45 block forwards, the 12 of the first pass included. The
# best list takes 33. If you don't find it in five minutes, read on.

# %% id="puzzle"
# @title The puzzle with sliders: run this cell; open it to edit the list
figures.boundary_puzzle([6])

# %% [markdown] id="puzzle-read"
# In the figure, a column is one run, from the nearest boundary up to the block whose backward comes
# next. A tall staircase means that a boundary is missing.
#
# <details><summary>One of the best lists</summary>
#
# `[4, 8, 1, 2, 5]`. The first two entries fill the free slots in the first pass. With only two
# entries you get to 38 at best. The other three use slots that backward has freed.
# </details>
#
# A program can find that list with only one decision for each block: keep or drop.
#
# ## Keep or drop
#
# Now let blocks differ. Running block $i$ forward costs `forward[i]`, and its input takes
# `inputs[i]` units of memory. If the block is *kept*, the tensors for its backward take `saved[i]`
# units, its output included. The first block's input is in memory anyway.
#
# The *room* is the memory that a schedule may use. A schedule begins in one of two ways. It keeps
# block 0, or it drops a segment that begins at block 0 and ends before the last block. Here are
# three examples for blocks 0 to 11. Each bar is the room: first what is held, then what is left for
# the next blocks.
#
# ```text
# keep 0        | saved[0]  | best of 1 to 11 |
# drop 0 to 3   | inputs[4] | best of 4 to 11 |  then  | best of 0 to 3 |
# drop 0 to 8   | inputs[9] | best of 9 to 11 |  then  | best of 0 to 8 |
# ```
#
# When the later blocks are done, a dropped segment has the whole room. Each of its blocks runs
# forward once more, and some may run yet again. The *cost* of a schedule is the sum of `forward`
# over all such runs. So the cost of each way follows from the costs of the cheapest schedules of
# shorter parts. That's the recursion of Beaumont et al. (2019). `@cache` stores each answer,
# because the same parts recur.
#
# A schedule has chapter 06's form: a number is a block that's kept, a tuple is a segment that runs
# again, with its own schedule inside. `((0,), 1)` drops block 0 and keeps block 1.
#
# **Write.** The body of `best`. First return the two easy cases: a room below 0, and a part without
# blocks. Then list all ways as pairs of cost and schedule. Choose by cost alone, with
# `min(ways, key=lambda way: way[0])`, because schedules can't be compared.


# %% id="chain"
block = planning.Stage(  # for the checks below
    forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=5
)


class Chain(NamedTuple):
    forward: tuple  # cost of each block's forward
    inputs: tuple  # units of memory of its input
    saved: tuple  # units of memory if it is kept


# %% id="best"
@cache
def best(chain, start, end, room):
    """Find the cheapest way to go backward from block `end` to block `start`.

    Returns:
        The cost, `forward` summed over all blocks that run again, once for each rerun;
        and a schedule of these blocks. If the room is negative, or no schedule fits,
        that's `(math.inf, ())`; without blocks (`start > end`), `(0, ())`.
    """
    ### BEGIN SOLUTION
    if room < 0:
        return math.inf, ()
    if start > end:
        return 0, ()
    cost, rest = best(chain, start + 1, end, room - chain.saved[start])
    ways = [(cost, (start, *rest))]
    for split in range(start + 1, end + 1):
        first = sum(chain.forward[start:split])
        later, rest = best(chain, split, end, room - chain.inputs[split])
        again, segment = best(chain, start, split - 1, room)
        ways.append((first + later + again, (segment, *rest)))
    return min(ways, key=lambda way: way[0])
    ### END SOLUTION


# %% id="check-best"
# @title Check: run this cell
@blanks.check("best", "return a cost and a schedule, nested tuples of block numbers")
def best_is_the_least():
    two = Chain((1, 1), (1, 1), (4, 4))
    for chain, room, needed, why in (
        (two, 8, 0, "Two blocks save 4 each. In a room of 8 both are kept"),
        (two, 7, 1, "Two blocks save 4 each. In a room of 7 one is dropped"),
        (
            two,
            4,
            math.inf,
            "A boundary of 1 and a block that saves 4 exceed a room of 4",
        ),
        (Chain((7, 2), (1, 1), (4, 4)), 7, 7, "The dropped block's forward takes 7"),
        (Chain((1, 1), (1, 1), (5, 1)), 5, 1, "A segment has the whole room, here 5"),
        (Chain((1, 1), (9, 1), (4, 4)), 5, 1, "Only inputs[split] is held, here 1"),
    ):
        seen, _ = best(chain, 0, 1, room)
        assert seen == needed, f"{why}: {needed} must run again, but you have {seen}."
    for saved in ((4, 4), (2, 9, 4, 4, 7, 3), (6, 5, 4, 3, 2, 2), (3,) * 9, (7,) * 12):
        ones, last = (1,) * len(saved), len(saved) - 1
        stages = tuple(replace(block, saved_bytes=units) for units in saved)
        for room in (max(saved) + 2, max(saved) + 4, sum(saved) - 3, sum(saved)):
            # the gradient of an output and the chain's input come on top of the room
            plan = planning.solve(stages, budget_bytes=room + 2)
            needed = sum(plan.forward_executions) - len(saved)
            seen, tree = best(Chain(ones, ones, saved), 0, last, room)
            where = f"Blocks that save {saved}, room {room}"
            assert seen == needed, (
                f"{where}: {needed} extra forwards are enough, but you have {seen}."
            )
            yours = planning.Plan(stages, tree)
            assert yours.peak_bytes - 2 <= room, (
                f"{where}: your schedule {tree} takes {yours.peak_bytes - 2} units."
            )
            runs = sum(yours.forward_executions) - len(saved)
            assert runs == seen, (
                f"{where}: {tree} runs {runs} forwards again, but you say {seen}."
            )


# %% [markdown] id="rules-text"
# ## The rules are special cases
#
# Chapter 06's rules cut equal segments and keep the last one, so they need room for the boundaries
# and one inside. The table compares your plans with three rules: segments of four (twelve blocks,
# $r = 5$), $\sqrt n$ (sixteen blocks, $r = 1$), and every block (24 blocks, $r = 16$). The column
# `yours` is how many forwards your plan runs again in the rule's room. The last column is the least
# room in which your plan needs no more of them than the rule.


# %% id="rules"
# @title The rules beside your plans: run this cell; open it to look
def rule(num_blocks, saved, length):  # segments of `length` blocks, the last one kept
    starts = range(0, num_blocks, length)
    return len(starts) - 1 + saved * length, starts[-1]  # room, forwards again


def equal_blocks(num_blocks, saved):
    ones = (1,) * num_blocks
    return Chain(ones, ones, (saved,) * num_blocks)


def beside_yours(num_blocks, saved, length):
    whole = equal_blocks(num_blocks, saved), 0, num_blocks - 1
    room, runs = rule(num_blocks, saved, length)
    least = next(m for m in count(1) if best(*whole, m)[0] <= runs)
    return room, runs, best(*whole, room)[0], least


columns = ["room", "rule runs again", "yours", "least room for the rule's reruns"]
rules = {
    "12 blocks in fours": (12, 5, 4),
    "sqrt(16)": (16, 1, 4),
    "24 blocks": (24, 16, 1),
}
rows = {name: beside_yours(*sizes) for name, sizes in rules.items()}
pd.DataFrame(rows, index=columns).T

# %% [markdown] id="rules-read"
# - *In fours*: your plan can't improve on the rule, in room or in forwards.
# - $\sqrt n$: you save one forward, because keeping a block with $r = 1$ takes no more than keeping
#   its boundary.
# - *Every block*: your plan needs less room for the same number of forwards. The first segments run
#   again when few boundaries are left, so they can be longer.
#
# Revolve (Griewank and Walther, 2000) is an algorithm for the puzzle with $c$ slots, where only one
# block's inside fits at a time. If each block may run *again* at most $t$ times, Revolve can handle
# up to $\binom{c+t}{c}$ blocks. For $n$ blocks, take the smallest $t$ that is enough. Revolve then
# needs $n + t\,n - \binom{c+t}{c+1}$ forwards in all.


# %% id="revolve"
def one_inside_at_a_time(num_blocks, slots):
    """Make your plan with room for one inside and `slots` inputs, its own included."""
    large = slots + 3  # so that a second inside never fits
    return best(equal_blocks(num_blocks, large), 0, num_blocks - 1, slots + large)


print(f"the puzzle: {12 + one_inside_at_a_time(12, 3)[0]} forwards")


# %% id="revolve-formula"
# @title 24 blocks by your planner and by the formula: run this cell; open it to look
def binomial(num_blocks, slots):
    """Return the fewest forwards with `slots` boundaries at a time, by the formula."""
    times = next(t for t in count() if math.comb(slots + t, slots) >= num_blocks)
    return num_blocks + times * num_blocks - math.comb(slots + times, slots + 1)


places = (1, 2, 3, 4, 6, 8)
found = [24 + one_inside_at_a_time(24, slots)[0] for slots in places]
formula = [binomial(24, slots) for slots in places]
table = pd.DataFrame({"yours": found, "formula": formula}, index=places)
table.rename_axis("slots").T

# %% [markdown] id="stepper-text"
# The next cell prints your plan for twelve blocks in 22 units, the room of the rule "in fours".
# It's the rule's own plan. Step through Revolve's schedules, and watch where a freed slot is used
# again.

# %% id="stepper"
# @title Your schedules of 12 blocks, step by step: run this cell; open it to look
print("in fours:", best(equal_blocks(12, 5), 0, 11, 22)[1])
events = {}
for slots in (3, 2, 1):
    plan = planning.Plan((block,) * 12, one_inside_at_a_time(12, slots)[1])
    events[f"Revolve, {slots} slots"] = plan.simulation.events
widgets.schedule_stepper(events, unit=1)

# %% id="verdicts-revolve"
claims.Verdicts(
    claims.Verdict(
        "C11",
        "shown",
        "Dynamic programming finds Revolve's schedules, with as many forwards as in "
        "the formula.",
        f"equal for {sum(map(int.__eq__, found, formula))} of {len(places)} numbers of "
        "slots",
        "counted",
        "revolve-formula",
    ),
)

# %% [markdown] id="halves-text"
# ## Cut inside the block
#
# For equal blocks the simple rules are hard to beat. But a transformer block has two halves,
# attention and an MLP, and only one tensor passes from one half to the next. So a model of six
# blocks is also a chain of twelve stages that are *not* equal.
#
# **Write.** `in_halves`. Wrap each block's two halves in `Half`, and return all halves in order.


# %% id="half"
class Half(nn.Module):
    def __init__(self, norm, inner):
        super().__init__()
        self.norm, self.inner = norm, inner

    def forward(self, x):
        return x + self.inner(self.norm(x))


# %% id="in-halves"
def in_halves(blocks):
    """Return an `nn.ModuleList` of the blocks' halves, in the order they run in.

    A block has `norm_1` and `attention`, then `norm_2` and `mlp`.
    """
    ### BEGIN SOLUTION
    halves = []
    for block in blocks:
        halves.append(Half(block.norm_1, block.attention))
        halves.append(Half(block.norm_2, block.mlp))
    return nn.ModuleList(halves)
    ### END SOLUTION


# %% id="check-in-halves"
# @title Check: run this cell
@blanks.check("in_halves", "return an nn.ModuleList of halves")
def halves_compute_the_same():
    torch.manual_seed(0)
    blocks, x = GPT(GPTConfig(num_layers=3)).blocks, torch.randn(1, 8, 128)
    found, expected = in_halves(blocks), x
    kind = type(found).__name__
    assert isinstance(found, nn.ModuleList), (
        f"You return a {kind}, but an nn.ModuleList is needed."
    )
    assert len(found) == 6, f"3 blocks have 6 halves, not {len(found)}."
    for number, each in enumerate(blocks):
        expected = each(expected)
        for half in found[2 * number : 2 * number + 2]:
            x = half(x)
        assert torch.equal(x, expected), (
            f"After block {number} the output is different."
        )
    lost = set(blocks.parameters()) - set(found.parameters())
    assert not lost, f"{len(lost)} parameters of the blocks are in no half: a norm's?"


# %% id="profile"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=6))
fine = deepcopy(gpt)
fine.blocks = in_halves(fine.blocks)
tokens = torch.randint(256, (2, 128))
arithmetic = planning.Speed(bytes_per_second=1e30)  # count FLOPs only
profile = planning.profile(fine, lambda: fine.loss(tokens), speed=arithmetic)
stages = pd.DataFrame(map(vars, profile.stages), index=profile.names)
unit, second = stages.input_bytes.iloc[1], stages.forward_seconds.iloc[1]
table = stages[["input_bytes", "saved_bytes"]] / unit
table.assign(forward=stages.forward_seconds / second)[:4].round(2)

# %% [markdown] id="profile-read"
# In units of a boundary, attention keeps 6 and an MLP keeps 10, and their forward FLOPs have a
# ratio of 3 to 4. So checkpointing attention frees fewer bytes for each FLOP that runs again. Stage
# 0 is the embedding, and stage 13 is the head with the loss; both are always kept.
#
# The room in `best` doesn't count short-lived tensors, such as gradients between two stages. So the
# next cell plans for many rooms, and `planning.Plan` gives each plan's whole `peak_bytes` and
# `seconds`.

# %% id="plan-within"
# All 14 stages; no room is counted for what the first and the last save.
units = Chain((1, *(3, 4) * 6, 1), (1,) * 14, (0, *(6, 10) * 6, 0))
trees = [best(units, 0, 13, room)[1] for room in range(14, 97)]
plans = [planning.Plan(profile.stages, tree) for tree in trees]


def plan_within(num_bytes):  # the fastest of your plans that fits
    fitting = [plan for plan in plans if plan.peak_bytes <= num_bytes]
    return min(fitting, key=lambda plan: plan.seconds)


# %% [markdown] id="predict-plan"
# Two simple rules cut inside a block too: checkpoint only the attention of each block, or only the
# MLP. For each rule, chapter 06's included, we pick your fastest plan that needs no more bytes, and
# run both.
#
# **Predict.** Checkpointing every block costs 23 % more FLOPs than the plain step. Your plan gets
# the same bytes. By what percentage does it raise the plain step's FLOPs?

# %% id="guess-plan"
guess = None  # %


# %% id="cost"
# @title How a step is measured, plain and by a plan: run this cell; open it to look
def cost(model, *batch):
    def step():
        model.loss(*batch).backward()
        model.zero_grad(set_to_none=False)  # the gradients stay, as zeros

    step()  # from here on there are gradients
    report = memory.measure(step, model=model, warmup=0, flops=True)
    return report.peak_bytes - report.baseline_bytes, report.flops


def cost_planned(model, profile, tree, *batch):
    whole = planning.solve(profile, budget_bytes=2**40)  # everything is kept
    planning.apply(model, replace(whole, tree=tree))
    try:
        return cost(model, *batch)
    finally:
        planning.undo(model)


# %% id="by-rule"
by_rule, planned = {}, {}
for name in ("none", "per-block", "attention-only", "mlp-only", "every-2"):
    with segments.applied(gpt, name):
        by_rule[name] = cost(gpt, tokens)
    tree = plan_within(by_rule[name][0]).tree
    planned[name] = cost_planned(fine, profile, tree, tokens)

# %% id="tradeoff-figure"
# @title Each rule, and your plan in its bytes: run this cell; open it to look
base = by_rule["none"][1]
price = 100 * (planned["per-block"][1] / base - 1)
print(f"in the bytes of every block: {price:.0f} %{beside(guess, price)}")
points = {name: {peak: flops / base - 1} for name, (peak, flops) in by_rule.items()}
yours = {peak: flops / base - 1 for peak, flops in planned.values()}
title = "six blocks in halves: bytes and FLOPs, counted"
plots.tradeoff({"your plans": yours, **points}, title=title)

# %% [markdown] id="tradeoff-read"
# Your plan needs fewer FLOPs than each rule that recomputes, and no more bytes. It can treat the
# first block's MLP differently from the last one's, which no rule can. Companion
# [07c](07c_side_by_side.ipynb) adds a choice between keeping and dropping a stage: keep only the
# results of its matmuls.
#
# `planning.solve` is your recursion in bytes. Drag the budget: as it shrinks, the plan drops MLPs
# first, but never the last one. The last MLP's backward comes first, so dropping it would free
# nothing.

# %% id="plan-explorer"
largest = by_rule["none"][0]
budgets = [largest * percent // 100 for percent in range(25, 105, 5)]
widgets.plan_explorer(lambda size: planning.solve(profile, budget_bytes=size), budgets)

# %% [markdown] id="only-the-plan"
# ## A model that only the plan fits
#
# ViT-H/14 trains on images of 2,688 x 2,688 pixels. A single image has 36,865 tokens, and the batch
# is already one image, so a smaller batch can't help. The model, 32 blocks of width 1280, has 679
# million parameters. With gradients and AdamW's states, they take 10 GiB in float32. A 16 GiB card
# has about 15 GiB usable, so 5 are left.
#
# **Predict.** How many GiB does the step need on top of these 10, with every block checkpointed?

# %% id="guess-vit"
guess = None  # GiB


# %% id="vit-chain"
# @title ViT-H/14 as a chain of 66 stages: run this cell; open it to look
def vit(num_layers, **sizes):
    model = ViT(ViTConfig(num_layers=num_layers, num_heads=16, **sizes))
    model.blocks = in_halves(model.blocks)
    return model


with memory.predicting():  # no memory; all blocks are alike, so two are enough
    two = vit(2, d_model=1280, image_size=2688, patch_size=14, in_channels=3)
    image, label = torch.empty(1, 3, 2688, 2688), torch.zeros(1, dtype=torch.long)
    seen = planning.profile(two, lambda: two.loss(image, label), speed=planning.Speed())
first, *halves, last = seen.stages
chain = (first, *halves[:2] * 32, last)


# %% id="vit-predicted"
pairs = [(at, at + 1) for at in range(1, 65, 2)]
fours = [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
trees = {"per-block": pairs, "every-2": fours, "each half": [*zip(range(1, 65))]}
vit_plans = {n: planning.Plan(chain, (0, *tree, 65)) for n, tree in trees.items()}
vit_plans["plan"] = planning.solve(chain, budget_bytes=5 * GIB)
gib = vit_plans["per-block"].peak_bytes / GIB
print(f"every block: {gib:.1f} GiB{beside(guess, gib)}")
rows = [
    (human_bytes(p.peak_bytes), f"{p.overhead:+.0%} time") for p in vit_plans.values()
]
pd.DataFrame(rows, index=vit_plans, columns=["predicted", "price"])

# %% [markdown] id="vit-read"
# No rule fits 5 GiB: short segments have too many boundaries, and long segments have too large an
# inside. The plan nests segments and cuts some inside a block. It takes more time, since most
# halves run three times. (All of this is predicted, for CUDA kernels and an A100's speed.)
#
# `planning.apply(model, plan)` makes training follow a plan, and `planning.undo(model)` removes it.
#
# ## Your run
#
# With chapter 05's checkpoints, `train.py`'s update takes 12 of a card's 16 GiB. With the rest you
# can recompute less. The table has four ways to run a block of width $C$. *Units more* is memory on
# top of the first way's, in units of the block's input. *Runs again* is recomputed arithmetic, in
# units of $C^2$ FLOPs per token. (A checkpoint's last matmul isn't included, thanks to early stop.)
#
# | way | a checkpoint around | units more | runs again |
# |---|---|---|---|
# | `block` | the block | 0 | 20 |
# | `halves` | each half (attention, MLP) | 1 | 18 |
# | `mlp` | the MLP's half | 6 | 8 |
# | `kept` | nothing | 15 | 0 |
#
# **Write.** `cheapest`. It's simpler than `best`, because each way is about a single block. Try
# each way for the first block, and let `cheapest` choose for the others.

# %% id="ways"
WAYS = {"block": (0, 20), "halves": (1, 18), "mlp": (6, 8), "kept": (15, 0)}


# %% id="cheapest"
@cache
def cheapest(num_blocks, room):
    """Return the least that must run again, and a tuple with each block's way.

    All blocks together add at most `room` units. Without blocks it's `(0, ())`.
    """
    if num_blocks == 0:
        return 0, ()
    ### BEGIN SOLUTION
    plans = []
    for way, (units, runs) in WAYS.items():
        if units <= room:
            others, ways = cheapest(num_blocks - 1, room - units)
            plans.append((runs + others, (way, *ways)))
    return min(plans)
    ### END SOLUTION


# %% id="check-cheapest"
# @title Check: run this cell
@blanks.check("cheapest", "return a number and a tuple of names")
def cheapest_is_the_least():
    assert cheapest(0, 5) == (0, ()), f"Without blocks: (0, ()), not {cheapest(0, 5)}."
    runs, _ = cheapest(1, 15)
    assert runs == 0, f"`kept` fills a room of 15 exactly: 0 runs again, not {runs}."
    for num_blocks, room in ((1, 0), (2, 1), (2, 6), (2, 15), (3, 7), (3, 36), (4, 60)):
        runs, ways = cheapest(num_blocks, room)
        where = f"{num_blocks} blocks, room {room}"
        assert len(ways) == num_blocks, f"{where}: your plan has {len(ways)} ways."
        units, total = (sum(WAYS[way][part] for way in ways) for part in (0, 1))
        assert units <= room, f"{where}: {ways} takes {units} units."
        assert runs == total, f"{where}: {ways} runs {total} again, but you say {runs}."
        plans = (
            [*zip(*plan, strict=True)]
            for plan in product(WAYS.values(), repeat=num_blocks)
        )
        least = min(sum(again) for units, again in plans if sum(units) <= room)
        assert runs == least, (
            f"{where}: {least} is enough, but yours runs {runs} again."
        )


# %% id="plans"
unit = train.BATCH * 1024 * 1024 * 4  # bytes: tokens, and 1024 numbers of 4 bytes each
spare = 15 * GIB - your_run.peak_bytes("05")  # leaves 1 GiB for the GPU's context
PLANS = {24: cheapest(24, spare // unit)[1], 3: cheapest(3, 7)[1]}  # 3: the twin's
{way: PLANS[24].count(way) for way in WAYS}


# %% id="hidden-of"
# @title `hidden_of` by your plan: run this cell; open it to look
def by_way(block, way, x):
    """Run a block, with checkpoints by its way."""

    def attention(x):
        return x + block.attention(block.norm_1(x))

    def mlp(x):
        return x + block.mlp(block.norm_2(x))

    recomputed = partial(checkpoint, use_reentrant=False)
    if way == "block":
        return recomputed(block, x)
    x = recomputed(attention, x) if way == "halves" else attention(x)
    return mlp(x) if way == "kept" else recomputed(mlp, x)


def hidden_of(model, tokens):
    """Return the last norm's output for each token; run each block as planned."""
    x = train.embedded(model, tokens)
    for block, way in zip(model.blocks, PLANS[len(model.blocks)], strict=True):
        x = by_way(block, way, x)
    return model.norm(x)


# %% id="apply"
your_run.apply("06c", hidden_of=hidden_of)

# %% [markdown] id="your-run-read"
# The plan keeps no block whole. The way `mlp` takes 6 units and saves 12 of the 20 that run again.
# The way `kept` takes 9 units on top of that, and saves only the other 8.
#
# ## On paper
#
# 1. A hundred blocks with $r = 1$ are cut into ten equal segments, and the last segment is kept.
#    How many units of room do they need, and how many forwards run again?
# 2. With three slots and at most four repetitions of each block, how many blocks can Revolve
#    handle, and with how many forwards in all?
# 3. Three blocks have `forward` (1, 5, 1), `inputs` (1, 1, 1) and `saved` (2, 6, 3). With 8 units
#    of room, what is the least cost, the sum of `forward` over all that runs again?
#
# <details><summary>Answers</summary>
#
# 1. Nine boundaries besides the input take 9 units, and one segment's inside takes 10: 19 units. 90
#    forwards run again.
# 2. $\binom{7}{3} = 35$ blocks, in $35 + 4 \cdot 35 - \binom{7}{4} = 140$ forwards.
# 3. Keep block 0 and drop block 1, at a cost of 5. Dropping both 0 and 1 would cost 6.
# </details>
#
# ## What to remember
#
# | question | answer |
# |---|---|
# | how a planner works | keep or drop, cheapest way for each part and room, every answer cached |
# | equal segments, every block, Revolve | special cases of that planner |
# | boundaries don't fit | nested segments: fewer boundaries, at the price of more forwards |
# | stages aren't equal | a plan: profile, solve, apply |
#
# Lab 04, `lab04_schedules`, has you plan to the byte and run any schedule. Chapter 07 goes below
# the block: which *operations* to keep.
