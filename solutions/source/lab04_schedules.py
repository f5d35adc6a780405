# %% [markdown] id="title"
# # Lab 04: schedules
#
# You write a planner that finds the fastest checkpointing schedule within a budget in
# bytes.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed. Read chapters 06 and 06c
# first.
#
# | exercise | you write | points |
# |---|---|---|
# | 4.1 | peak and time of equal segments | 2 |
# | 4.2 | a runner for any schedule | 3 |
# | 4.3 | Revolve's fewest forwards | 2 |
# | 4.4 | Revolve's schedule | 3 |
# | 4.5 | a chain's smallest budget | 3 |
# | 4.6 | the fastest schedule within a budget | 4 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. The checks refuse `planning.solve` and `floor_bytes`. The check of 4.1 also
# refuses `planning.simulate` and the results of a `planning.Plan`, and that of 4.2
# `planning.apply`.

# %% id="imports"
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, claims, device, memory, plots
from tutorial_lib.instruments import figures, planning, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.units import Bytes, human_bytes

# %% [markdown] id="trees-text"
# ## Schedules are trees
#
# A schedule is a **tree**: a tuple of numbers and tuples. A number is a stage that is
# *kept*: all that its backward needs stays in memory. A tuple inside the tree is a
# *segment*: only its input stays in memory, and its stages run again for their
# backward. Segments may be nested.
#
# The next cell draws three schedules. Triangles point up for forwards (hollow if they
# run again) and down for backwards.

# %% id="three-trees"
unequal = [
    planning.Stage(
        forward_seconds=1, backward_seconds=2, input_bytes=a, saved_bytes=saved
    )
    for a, saved in [(4, 20), (4, 16), (3, 12), (2, 8), (1, 6), (1, 4)]
]
trees = {
    "all kept": (0, 1, 2, 3, 4, 5),
    "segments of two": ((0, 1), (2, 3), 4, 5),
    "a segment in a segment": (((0, 1), 2, 3), 4, 5),
}
events = {name: planning.simulate(unequal, tree).events for name, tree in trees.items()}
widgets.schedule_stepper(events, unit=1)

# %% [markdown] id="moments-text"
# ## What a stage holds while it runs
#
# The next cells have two functions. Each returns the most bytes that one stage, or
# several in a row, hold while they run, *without the input of the first of these
# stages*:
#
# - `kept_needs` is for one **kept** stage.
# - `dropped_needs` is for **dropped** stages: a segment's stages while they run without
#   keeping anything for backward.
#
# Both functions take `end`, the last stage of the part that runs. When a segment runs
# *again*, they count the gradient of `end`'s output. In the first forward, `end` is the
# chain's last stage.
#
# While later stages run, a kept stage holds its `saved_bytes`, which include its output
# but not its input. `help(planning.Stage)` explains the other fields.


# %% id="given-waiting"
def output_bytes(stages, index):
    if index + 1 < len(stages):
        return stages[index + 1].input_bytes
    stage = stages[index]
    return stage.input_bytes if stage.output_bytes is None else stage.output_bytes


def waiting_bytes(stages, end):
    """Return the bytes of the gradient that waits while a part runs up to `end`."""
    return 0 if end + 1 == len(stages) else output_bytes(stages, end)


# %% id="given-needs"
def kept_needs(stages, index, end):
    """Return what a kept stage needs besides its input, in a part up to `end`."""
    stage, output = stages[index], output_bytes(stages, index)
    saving = stage.saved_bytes + stage.kept_temporary_bytes
    forward = max(saving, output + stage.forward_temporary_bytes)
    held = stage.saved_bytes - stage.handed_on_bytes
    backward = held + output + stage.backward_temporary_bytes
    return max(forward + waiting_bytes(stages, end), backward)


def dropped_needs(stages, start, stop, end):
    """Return what dropping stages `start` to `stop - 1` needs besides its input."""
    most = 0
    for index in range(start, stop):
        own_input = stages[index].input_bytes if index > start else 0
        temporary = stages[index].forward_temporary_bytes
        most = max(most, own_input + output_bytes(stages, index) + temporary)
    return most + waiting_bytes(stages, end)


# %% [markdown] id="layers-text"
# Our model has 32 blocks, the last of which includes the loss.


# %% id="given-layers"
class MeanSquare(nn.Module):
    def forward(self, x):
        return x.square().mean()


def block(width=32, wide=128, out=32):
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, out))


def make_layers(widths):  # widths: of each block's input, its middle and its output
    torch.manual_seed(0)
    blocks = [block(*three) for three in widths]
    return nn.Sequential(*blocks[:-1], nn.Sequential(blocks[-1], MeanSquare()))


# %% id="given-chain"
def chain_of(layers, x):
    found = planning.profile(
        layers, lambda: layers(x), stages=list(layers), speed=planning.Speed()
    )
    # PyTorch stops a recomputation a little early; this lab leaves that out
    stages = [replace(stage, early_stop_seconds=0.0) for stage in found.stages]
    *first, last = stages[1:-1]  # without what comes before and after the layers
    return [*first, replace(last, output_bytes=stages[-1].input_bytes)]


torch.set_num_threads(1)
x = torch.randn(512, 32)
equal_layers = make_layers([(32, 128, 32)] * 32)
equal = chain_of(equal_layers, x)
print(f"input {Bytes(equal[1].input_bytes)}, saved {Bytes(equal[1].saved_bytes)}")


# %% id="segments-figure"
def segments(num_stages, length):
    starts = range(0, num_stages, length)
    *before, last = [tuple(range(at, min(at + length, num_stages))) for at in starts]
    return (*before, *last)


# %% id="segments-drawn"
run = planning.simulate(unequal, segments(6, 2))
backwards = [i for i, event in enumerate(run.events, 1) if event.kind == "backward"]
figures.schedule(
    run.events, step=backwards[2], title="the middle segment goes backward", unit=1
)

# %% [markdown] id="text-4-1"
# ## 4.1 Segments of equal length
#
# Difficulty 2/5 · importance 4/5 · 15 minutes
#
# Cut a chain into segments of `length` stages. Checkpoint every segment except the
# last, whose backward comes first. Write `segments_cost`, which returns a step's peak
# in bytes, and its seconds.
#
# Your numbers must equal those of `planning.simulate`, the peak to the byte. Go through
# the segments from left to right, and add up their inputs. During a segment's backward,
# its own input and those of the earlier segments are in memory. The later segments'
# inputs are already freed.


# %% id="answer-4-1"
# exercise 4.1
def segments_cost(stages: list[planning.Stage], length: int) -> tuple[int, float]:
    """Return peak and time of a step in segments of one length, the last one kept.

    Args:
        stages: The chain.
        length: Stages in a segment; the last segment may have fewer.

    Returns:
        The most bytes held at once, and the seconds of all forwards and backwards.
    """
    ### BEGIN SOLUTION
    last, held, peak = len(stages) - 1, 0, 0
    seconds = sum(stage.forward_seconds + stage.backward_seconds for stage in stages)
    for start in range(0, len(stages), length):
        end = min(start + length, len(stages)) - 1
        held += stages[start].input_bytes
        if end < last:
            seconds += sum(stage.forward_seconds for stage in stages[start : end + 1])
        inside = 0
        for index in range(start, end + 1):
            peak = max(peak, held + inside + kept_needs(stages, index, end))
            inside += stages[index].saved_bytes
    return peak, seconds
    ### END SOLUTION


# %% id="check-4-1"
# check 4.1 (2 points)
checks.lab04.segments_cost(segments_cost)

# %% [markdown] id="hints-4-1"
# <details><summary>Hint 1: two loops</summary>
#
# Loop over `range(0, len(stages), length)`, and in it over the segment's stages.
# </details>
# <details><summary>Hint 2: a segment's backward</summary>
#
# While stage `index` runs, memory holds the inputs of this and the earlier segments,
# what the segment's earlier stages saved, and `kept_needs(stages, index, end)`. Here
# `end` is the segment's last stage.
# </details>
# <details><summary>Hint 3: the first forward</summary>
#
# In the first forward, a segment never needs more than when it runs again, so leave the
# first forward out of the peak. For the time, count the forward seconds of every
# segment but the last twice.
# </details>
#
# **Predict.** For our 32 equal blocks, which segment length, 1, 2, 4 or 8, has the
# smallest peak? (One block saves nine times its input.)

# %% id="guess-interval"
guess = None  # blocks

# %% id="intervals-on-paper"
lengths = (1, 2, 4, 8)
plain_seconds = sum(stage.forward_seconds + stage.backward_seconds for stage in equal)
on_paper = {length: segments_cost(equal, length) for length in lengths}
best_length = min(lengths, key=lambda length: on_paper[length][0])
print(f"least memory: segments of {best_length}{beside(guess, best_length)}")
table = {
    length: {"peak": human_bytes(peak), "time": f"{seconds / plain_seconds - 1:+.1%}"}
    for length, (peak, seconds) in on_paper.items()
}
pd.DataFrame(table).T.rename_axis("segments of")

# %% [markdown] id="read-intervals"
# Longer segments take less time, because the last segment, which isn't recomputed, gets
# longer. So the sweet spot is the length with the lowest peak, or a slightly larger
# length.
#
# ## 4.2 Run a tree
#
# Difficulty 3/5 · importance 5/5 · 10 minutes
#
# Write `run_tree`, which runs any tree on real layers. You may nest PyTorch's
# checkpoint. The goals:
#
# - the gradients equal those without checkpoints **to the last bit**, dropout included;
# - each layer runs as often as the tree says;
# - the counted peak is within 3 % of the peak that `planning.simulate` computes for the
#   tree.


# %% id="answer-4-2"
# exercise 4.2
def run_tree(layers: nn.Sequential, tree: tuple, x: torch.Tensor) -> torch.Tensor:
    """Run layers one after the other, as a tree says.

    Args:
        layers: All layers; a number in the tree is an index into them.
        tree: A number is a layer that runs plainly; a tuple is a checkpoint around what
            is in it.
        x: Input of the tree's first layer. The batch itself needs no gradient.

    Returns:
        The output of the tree's last layer.
    """
    ### BEGIN SOLUTION
    for item in tree:
        if isinstance(item, int):
            x = layers[item](x)
        else:
            x = checkpoint(run_tree, layers, item, x, use_reentrant=False)
    return x
    ### END SOLUTION


# %% id="check-4-2"
# check 4.2 (3 points)
checks.lab04.run_tree(run_tree)

# %% [markdown] id="hints-4-2"
# <details><summary>Hint 1: the shape</summary>
#
# Loop over the tree's items. `isinstance(item, int)` tells a layer from a segment.
# </details>
# <details><summary>Hint 2: the inside of a segment</summary>
#
# A segment is a tree as well, so your function can run it.
# </details>
# <details><summary>Hint 3: the call</summary>
#
# Call `checkpoint(function, *arguments, use_reentrant=False)`. Pass the segment as an
# argument: a `lambda` would look up the loop's variable after the loop.
# </details>
#
# Now count the peaks of real steps:


# %% id="given-counted"
def counted_peak(layers, tree, x):
    def step():
        run_tree(layers, tree, x).backward()

    step()  # from the second step on, the parameters' gradients are there already
    with memory.watch(model=layers) as report:
        step()
    return report.peak_bytes - report.baseline_bytes


@cache
def counted_segments(length):
    return counted_peak(equal_layers, segments(32, length), x)


counted = {length: counted_segments(length) for length in lengths}
paper = {length: segments_cost(equal, length)[0] for length in lengths}
sizes = {length: human_bytes(size) for length, size in counted.items()}
price = f"{on_paper[best_length][1] / plain_seconds - 1:+.0%} time"
print(f"least at segments of {best_length}, for {price}; counted: {sizes}")
plots.growth(
    {"on paper": paper, "counted": counted},
    xlabel="stages in a segment",
    title="32 equal blocks: peak of a step",
    predicted=["on paper"],
)


# %% id="sweet-spot"
def point(length):
    return {
        counted_segments(length): segments_cost(equal, length)[1] / plain_seconds - 1
    }


plots.tradeoff(
    {f"segments of {length}": point(length) for length in lengths},
    title="memory against extra time: the sweet spot is at the lower left",
)

# %% [markdown] id="read-sweet-spot"
# ## 4.3 Revolve: the fewest forwards
#
# Difficulty 1/5 · importance 3/5 · 8 minutes
#
# Revolve (chapter 06c) limits memory in another way: only *one* stage may be kept at a
# time, and there are $c$ **places** (06c's slots). A place holds one tensor that a
# stage passes to the next, or the chain's input.
#
# Take $n$ stages whose input is in one of $c$ places, and run the first $k$. The later
# part has $n - k$ stages and the other $c - 1$ places, one of them for its own input.
# After its backward, the first part has $k$ stages and $c$ places. So `fewest_forwards`
# returns:
#
# $$ F(n, c) = \min_{1 \le k < n} \Big( k + F(n - k,\, c - 1) + F(k,\, c) \Big) $$
#
# A single stage needs one forward, and no place for its input: $F(1, c) = 1$, even for
# $c = 0$. Without a place, several stages can't go backward: $F(n, 0) = \infty$ for
# $n > 1$.
#
# **Predict.** A plain step of 32 stages takes 32 forwards. How many does Revolve need
# with 4 places?

# %% id="guess-revolve"
guess = None  # forwards


# %% id="answer-4-3"
# exercise 4.3
def fewest_forwards(num_stages: int, num_places: int) -> int:
    """Return the fewest forwards that take a chain backward, one stage kept at a time.

    Args:
        num_stages: Stages of the chain, at least 1.
        num_places: Tensors between stages that may be held at once, including the
            chain's input; at least 1.

    Returns:
        Forwards in all: each stage's first one, and all that run again.
    """

    ### BEGIN SOLUTION
    @cache
    def fewest(n, c):
        if n == 1:
            return 1
        if c == 0:
            return math.inf
        return min(k + fewest(n - k, c - 1) + fewest(k, c) for k in range(1, n))

    return fewest(num_stages, num_places)
    ### END SOLUTION


# %% id="check-4-3"
# check 4.3 (2 points)
checks.lab04.fewest_forwards(fewest_forwards)

# %% [markdown] id="hints-4-3"
# <details><summary>Hint 1: the recursion is the program</summary>
#
# Write an inner function of `n` and `c`.
# </details>
# <details><summary>Hint 2: it takes forever</summary>
#
# `functools.cache` stores each answer.
# </details>
# <details><summary>Hint 3: by hand</summary>
#
# For three stages and two places, k = 1 gives 1 + F(2, 1) + F(1, 2) = 1 + 3 + 1.
# </details>

# %% id="revolve-numbers"
few = fewest_forwards(32, 4)
print(f"4 places: {few} forwards{beside(guess, few)}")
for places in (1, 2, 4, 8, 16, 32):
    print(
        f"{places:>2} places: {fewest_forwards(32, places) / 32:.1f} forwards a stage"
    )

# %% [markdown] id="text-4-4"
# ## 4.4 Revolve's schedule
#
# Difficulty 3/5 · importance 4/5 · 10 minutes
#
# Write `revolve_tree`, which builds a tree with the fewest forwards of 4.3. The tree's
# first $k$ stages are a segment, whose inside is a schedule with $c$ places. The stages
# after the segment are a schedule with $c - 1$ places.
#
# For four stages and one place the tree is `((((0,), 1), 2), 3)`.


# %% id="answer-4-4"
# exercise 4.4
def revolve_tree(num_stages: int, num_places: int) -> tuple:
    """Return the tree with the fewest forwards, one stage kept at a time.

    Args:
        num_stages: Stages of the chain, at least 1.
        num_places: As in 4.3.

    Returns:
        The tree. Every tuple in it has segments first and one number last.
    """

    ### BEGIN SOLUTION
    @cache
    def fewest(n, c):
        if n == 1 or c == 0:
            return (1, 0) if n == 1 else (math.inf, 1)
        ways = [(k + fewest(n - k, c - 1)[0] + fewest(k, c)[0], k) for k in range(1, n)]
        return min(ways)

    def tree(start, n, c):
        if n == 1:
            return (start,)
        k = fewest(n, c)[1]
        return (tree(start, k, c), *tree(start + k, n - k, c - 1))

    return tree(0, num_stages, num_places)
    ### END SOLUTION


# %% id="check-4-4"
# check 4.4 (3 points)
checks.lab04.revolve_tree(revolve_tree)

# %% [markdown] id="hints-4-4"
# <details><summary>Hint 1: which k</summary>
#
# If 4.3's inner function compares pairs `(forwards, k)`, its `min` also tells you the
# k.
# </details>
# <details><summary>Hint 2: a second recursion</summary>
#
# `tree(start, n, c)` returns the tree of n stages from `start` on. For one stage the
# tree is `(start,)`.
# </details>
# <details><summary>Hint 3: putting it together</summary>
#
# The later items follow the segment: `(segment, *later)`.
# </details>
#
# **Predict.** On the 32 real blocks, how large is Revolve's peak with 4 places, as a
# fraction of the peak with segments of two?

# %% id="guess-share"
guess = None  # fraction, as in 0.5

# %% id="revolve-real"
shares, table = {}, {}
for places in (16, 8, 4, 2):
    tree = revolve_tree(32, places)
    shares[places] = counted_peak(equal_layers, tree, x) / counted_segments(2)
    extra = planning.Plan(tuple(equal), tree).overhead
    row = {"of segments of two": f"{shares[places]:.2f}", "time": f"{extra:+.0%}"}
    table[places] = row
print(f"4 places: {shares[4]:.2f}{beside(guess, shares[4])}")
pd.DataFrame(table).T.rename_axis("places")

# %% [markdown] id="read-revolve-real"
# Revolve needs less memory than segments of two, but more time: it never keeps two
# blocks at once, even if there is memory for both. (The table's times are relative to a
# plain step.)
#
# ## 4.5 The smallest budget
#
# Difficulty 3/5 · importance 3/5 · 15 minutes
#
# Write `smallest_budget`, which returns the smallest peak of all trees of a chain. Take
# the part of the chain from `start` to `end`, whose input is already in memory. The
# part can begin in two ways:
#
# - **keep** stage `start`. While it runs, it takes `kept_needs(stages, start, end)`.
#   While the rest (the stages after `start`) runs, memory holds what `start` saved and
#   what the rest needs.
# - **drop** stages `start` to `split - 1` as a segment, for any `split` in the part.
#   While they run, they take `dropped_needs(stages, start, split, end)`. While the rest
#   (from `split` on) runs, memory holds the input of stage `split` and what the rest
#   needs. Then stages `start` to `split - 1` run again, as a part of their own, with
#   nothing else in memory.
#
# A way needs as many bytes as its *largest* moment. The part needs as many as its
# *smallest* way. A part of one stage can only be kept.
#
# **Predict.** In the chain below, blocks get narrower. How large is the smallest
# possible peak, as a fraction of the peak with everything kept?

# %% id="guess-floor"
guess = None  # fraction, as in 0.5

# %% id="given-narrowing"
widths = [64, 64, 48, 48, 32, 32, 24, 24, 16, 16]
narrowing_layers = make_layers([(a, 8 * a, b) for a, b in pairwise(widths)])
wide_x = torch.randn(512, 64)
narrowing = chain_of(narrowing_layers, wide_x)
everything = planning.simulate(narrowing, tuple(range(9))).peak_bytes
[f"{Bytes(stage.saved_bytes)}" for stage in narrowing]


# %% id="answer-4-5"
# exercise 4.5
def smallest_budget(stages: list[planning.Stage]) -> int:
    """Return the smallest peak that any tree of a chain has.

    Args:
        stages: The chain, of unequal stages.

    Returns:
        Bytes, including the chain's own input.
    """

    ### BEGIN SOLUTION
    @cache
    def needs(start, end):
        later = stages[start].saved_bytes + needs(start + 1, end) if start < end else 0
        ways = [max(kept_needs(stages, start, end), later)]
        for split in range(start + 1, end + 1):
            dropping = dropped_needs(stages, start, split, end)
            rest = stages[split].input_bytes + needs(split, end)
            ways.append(max(dropping, rest, needs(start, split - 1)))
        return min(ways)

    return stages[0].input_bytes + needs(0, len(stages) - 1)
    ### END SOLUTION


# %% id="check-4-5"
# check 4.5 (3 points)
checks.lab04.smallest_budget(smallest_budget)

# %% [markdown] id="hints-4-5"
# <details><summary>Hint 1: the recursion</summary>
#
# Write an inner function `needs(start, end)` with `@cache`.
# </details>
# <details><summary>Hint 2: one way</summary>
#
# For *keep*: the `max` of `kept_needs(...)` and, if there is a rest, `saved_bytes` of
# `start` plus `needs(start + 1, end)`. For *drop*: the `max` of three terms for each
# split.
# </details>
# <details><summary>Hint 3: what is outside</summary>
#
# Add the chain's own input once, at the end.
# </details>

# %% id="floor-share"
floor = smallest_budget(narrowing)
share = floor / everything
print(f"{Bytes(floor)} of {Bytes(everything)}: {share:.2f}{beside(guess, share)}")

# %% [markdown] id="read-floor"
# ## 4.6 The fastest schedule within a budget
#
# Difficulty 3/5 · importance 5/5 · 20 minutes
#
# Write `fastest_tree`. A part can begin in the same two ways as in 4.5, but now the
# part has `room`: the bytes that it may use in addition to its input. A way is possible
# only if its `kept_needs` or `dropped_needs` fits into the room, and if its rest and
# its segment's inside are possible in theirs. Choose the possible way with the least
# *extra time*, the seconds of all forwards that run again, in the rest and the inside
# too.
#
# The rest of the part gets less room: the part's room minus what the way keeps in
# memory. A segment's inside gets the whole room again, because by then the rest has
# been freed.
#
# The goal: your tree never exceeds the budget, and takes no more time than that of
# `planning.solve`. If no tree fits the budget, raise a `ValueError` that names the
# smallest budget in bytes.


# %% id="answer-4-6"
# exercise 4.6
def fastest_tree(stages: list[planning.Stage], budget_bytes: int) -> tuple:
    """Return the fastest tree whose peak fits a budget, the chain's own input included.

    Raises:
        ValueError: When no tree fits; the message names the smallest budget, in bytes.
    """
    ### BEGIN SOLUTION
    floor = smallest_budget(stages)
    if budget_bytes < floor:
        raise ValueError(f"{budget_bytes} bytes are too few: at least {floor} bytes.")

    @cache
    def fastest(start, end, room):
        ways = [(math.inf, ())]  # extra seconds and tree, if nothing fits
        if kept_needs(stages, start, end) <= room:
            if start == end:
                return 0.0, (start,)
            seconds, rest = fastest(start + 1, end, room - stages[start].saved_bytes)
            ways.append((seconds, (start, *rest)))
        for split in range(start + 1, end + 1):
            if dropped_needs(stages, start, split, end) <= room:
                later, rest = fastest(split, end, room - stages[split].input_bytes)
                again, inside = fastest(start, split - 1, room)
                seconds = sum(stage.forward_seconds for stage in stages[start:split])
                ways.append((seconds + later + again, (inside, *rest)))
        return min(ways, key=lambda way: way[0])

    return fastest(0, len(stages) - 1, budget_bytes - stages[0].input_bytes)[1]
    ### END SOLUTION


# %% id="check-4-6"
# check 4.6 (4 points)
checks.lab04.fastest_tree(fastest_tree)

# %% [markdown] id="hints-4-6"
# <details><summary>Hint 1: time and tree together</summary>
#
# An inner `fastest(start, end, room)` with `@cache` returns the extra seconds and the
# tree, or `(math.inf, ())`. Give `min` a `key`, because trees can't be compared.
# </details>
# <details><summary>Hint 2: room</summary>
#
# After a kept stage, subtract its `saved_bytes`; after a segment, the input of stage
# `split`.
# </details>
# <details><summary>Hint 3: the tree</summary>
#
# *Keep*: `(start, *rest)`. *Drop*: `(inside, *rest)`. Check the budget first.
# </details>
#
# **Predict.** The budget is half the peak with everything kept. By what percentage is
# the fastest step longer than a plain one?

# %% id="guess-half"
guess = None  # percent


# %% id="plans"
def budget_of(share):
    return max(smallest_budget(narrowing), int(share * everything))


def planned(share):
    return planning.Plan(tuple(narrowing), fastest_tree(narrowing, budget_of(share)))


half = planned(0.5)
print(half.tree)
print(f"{half.overhead:+.1%}{beside(guess, 100 * half.overhead)}")


# %% id="plans-counted"
@cache
def counted_plan(share):
    return counted_peak(narrowing_layers, planned(share).tree, wide_x)


shares = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
largest = max(
    abs(counted_plan(share) / planned(share).peak_bytes - 1) for share in shares
)
print(f"{len(shares)} plans, counted against predicted: off by {largest:.1%} at most")
assert largest < 0.03

# %% id="plans-figure"
in_equal_segments = [
    planning.Plan(tuple(narrowing), segments(9, length)) for length in (1, 2, 3, 4)
]
plots.tradeoff(
    {
        "your planner": {
            counted_plan(share): planned(share).overhead for share in shares
        },
        "equal segments": {p.peak_bytes: p.overhead for p in in_equal_segments},
    },
    title="nine unequal blocks: memory against extra time",
)

# %% [markdown] id="read-plans"
# ## On a GPU
#
# This part is never graded.


# %% id="gpu"
# NBVAL_IGNORE_OUTPUT
def gpu_plan(share, num_rows):
    layers, rows = narrowing_layers.cuda(), torch.randn(num_rows, 64, device="cuda")
    stages = chain_of(layers, rows)
    most = planning.simulate(stages, tuple(range(9))).peak_bytes
    budget = max(smallest_budget(stages), int(share * most))
    tree = fastest_tree(stages, budget)
    report = memory.measure(
        lambda: run_tree(layers, tree, rows).backward(), model=layers
    )
    return budget, report.peak_bytes


num_rows = device.pick_by_tier(cpu=512, small_gpu=65536, large_gpu=524288)
if torch.cuda.is_available():
    for share in (0.5, 0.7, 1.0):
        budget, peak = gpu_plan(share, num_rows)
        print(f"budget {Bytes(budget)}, peak with weights and batch {Bytes(peak)}")
    narrowing_layers.cpu()

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "E18",
        "built",
        "Of the intervals 1, 2, 4 and 8, the sweet spot is the valley of memory, or "
        "just after it.",
        f"least memory at segments of {best_length}: {sizes[best_length]} for {price}; "
        f"{sizes[1]} at 1, {sizes[8]} at 8",
        "counted",
        "given-counted",
    ),
)

# %% [markdown] id="end"
# `planning.apply` runs a plan on any model.
