# %% [markdown] id="title"
# # Lab 04: schedules
#
# A training does not fit. In this lab you write a planner that makes it fit. You give it a model as
# a chain of stages, and a budget in bytes. It answers with the fastest schedule within the budget.
# You run that schedule on real layers, and the peak is the one that your planner predicted.
#
# **Budget:** 80 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 4.1 | peak and time of segments of one length, from a chain's numbers | 2 |
# | 4.2 | a runner: any schedule, on real layers | 3 |
# | 4.3 | the fewest forwards with a fixed number of boundaries: Revolve | 2 |
# | 4.4 | Revolve's schedule | 3 |
# | 4.5 | the smallest budget that a chain can be trained in | 3 |
# | 4.6 | the fastest schedule within a budget | 4 |
#
# Each answer goes into a cell that begins with `# exercise`. Helper functions, imports and
# constants may also stand in cells of your own above it. The checks refuse `plan.solve`,
# the library's own planner, and in 4.1 `plan.simulate` too. Chapter 06 leads up to this lab.

# %% id="imports"
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, claims, device, memory, plan, plots, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.units import Bytes, human_bytes

# %% [markdown] id="trees-text"
# ## Schedules are trees
#
# A schedule is a **tree** of tuples and numbers. A number is a stage that is *kept*: what its
# backward needs stays. A tuple is a *segment*: only its input stays, and its stages run again when
# their backward comes. Segments may lie inside segments.
#
# Here are three schedules of the same six stages. Move the slider: a triangle that points up is a
# forward, a hollow one a forward that runs again, and one that points down is a backward.

# %% id="three-trees"
unequal = [
    plan.Stage(forward_seconds=1, backward_seconds=2, input_bytes=a, saved_bytes=saved)
    for a, saved in [(4, 20), (4, 16), (3, 12), (2, 8), (1, 6), (1, 4)]
]
trees = {
    "all kept": (0, 1, 2, 3, 4, 5),
    "segments of two": ((0, 1), (2, 3), 4, 5),
    "a segment in a segment": (((0, 1), 2, 3), 4, 5),
}
events = {name: plan.simulate(unequal, tree).events for name, tree in trees.items()}
widgets.schedule_stepper(events, unit=1)

# %% [markdown] id="moments-text"
# ## What a stage holds while it runs
#
# `plan.Stage` has the seconds and bytes of a stage. Two functions give what it holds at most,
# *besides its own input*. Use them in all exercises.
#
# - `kept_needs`: a stage that is **kept** holds most when its forward ends, or when its backward
#   runs: all it saved, the gradient of its output, and temporary tensors.
# - `dropped_needs`: stages that are **dropped** hold an input, an output and temporary tensors,
#   one stage after the other.
#
# A forward that runs *again* runs in the middle of backward, while the gradient of the segment's
# output is waiting. That is why both ask for `end`, the last stage of the part that runs. Only a
# part that ends with the chain's last stage runs before there is any gradient.


# %% id="given-waiting"
def output_bytes(stages, index):
    is_last = index + 1 == len(stages)
    own = stages[index].output_bytes
    return (own or 0) if is_last else stages[index + 1].input_bytes


def waiting_bytes(stages, end):
    """Give the bytes of the gradient that waits while a part up to `end` runs."""
    return 0 if end + 1 == len(stages) else output_bytes(stages, end)


def kept_needs(stages, index, end):
    """Give what a kept stage needs besides its input, in a part up to `end`."""
    stage, output = stages[index], output_bytes(stages, index)
    dropping = output + stage.forward_temporary_bytes
    forward = max(stage.saved_bytes + stage.kept_temporary_bytes, dropping)
    backward = (
        stage.saved_bytes
        - stage.handed_on_bytes
        + output
        + stage.backward_temporary_bytes
    )
    return max(forward + waiting_bytes(stages, end), backward)


def dropped_needs(stages, start, stop, end):
    """Give what dropping stages `start` to `stop - 1` needs besides its input."""
    most = 0
    for index in range(start, stop):
        own_input = stages[index].input_bytes if index > start else 0
        temporary = stages[index].forward_temporary_bytes
        most = max(most, own_input + output_bytes(stages, index) + temporary)
    return most + waiting_bytes(stages, end)


# %% [markdown] id="layers-text"
# Numbers of a real model: 32 blocks, the last with the loss. `plan.profile` counts the bytes of
# each block. Its seconds are predicted from FLOPs and bytes, so they are the same on every
# machine.


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


def chain_of(layers, x):
    found = plan.profile(
        layers, lambda: layers(x), stages=list(layers), speed=plan.Speed()
    )
    # PyTorch stops a recomputation a little early; this lab leaves that out
    stages = [replace(stage, early_stop_seconds=0.0) for stage in found.stages]
    *first, last = stages[1:-1]  # without what lies before and after the layers
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


run = plan.simulate(unequal, segments(6, 2))
backwards = [i for i, event in enumerate(run.events, 1) if event.kind == "backward"]
plots.schedule(
    run.events, step=backwards[2], title="the middle segment goes backward", unit=1
)

# %% [markdown] id="text-4-1"
# ## 4.1 Segments of one length
#
# Difficulty 2/5 · importance 4/5 · 12 minutes
#
# Cut a chain into segments of `length` stages. All are checkpointed but the last, which is kept:
# its backward comes first. The last one is shorter where the length does not divide the number of
# stages. What is the peak, and how long does a step take? The figure above shows what is held while
# the middle segment of three goes backward.
#
# The numbers to reach are those of `plan.simulate`, to the byte. Go through the segments from
# left to right and keep in a variable what is **held** for each of them: the inputs of all
# segments up to this one. Later boundaries are free by then.


# %% id="answer-4-1"
# exercise 4.1
def segments_cost(stages: list[plan.Stage], length: int) -> tuple[int, float]:
    """Give peak and time of a step in segments of one length, the last one kept.

    Args:
        stages: The chain.
        length: Stages in a segment; the last segment may have fewer.

    Returns:
        The most bytes held at once, and the seconds of all forwards and backwards.
    """
    ### BEGIN SOLUTION
    last = len(stages) - 1
    seconds = sum(stage.forward_seconds + stage.backward_seconds for stage in stages)
    held = peak = 0
    for start in range(0, len(stages), length):
        end = min(start + length, len(stages)) - 1
        held += stages[start].input_bytes
        if end < last:
            peak = max(peak, held + dropped_needs(stages, start, end + 1, last))
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
# The outer loop is over the segments' first stages, `range(0, len(stages), length)`. The inner
# loop is over the stages of a segment, in order, and adds up what they save.
# </details>
# <details><summary>Hint 2: what is held when</summary>
#
# When stage `index` of a segment runs, three things are there: the boundaries up to this
# segment's own, what the segment's earlier stages saved, and `kept_needs(stages, index, end)`,
# where `end` is the segment's last stage.
# </details>
# <details><summary>Hint 3: the first forward</summary>
#
# A segment that is not the last one is dropped in the first forward: the boundaries and
# `dropped_needs(stages, start, end + 1, len(stages) - 1)` are held. Its forward seconds count
# twice.
# </details>

# %% [markdown] id="predict-intervals"
# **Predict.** For our 32 equal blocks, which of the lengths 1, 2, 4 and 8 has the smallest peak?
# (One block saves nine times its input.)

# %% id="guess-interval"
guess_length = None  # blocks

# %% id="intervals-on-paper"
lengths = (1, 2, 4, 8)
plain_seconds = sum(stage.forward_seconds + stage.backward_seconds for stage in equal)
on_paper = {length: segments_cost(equal, length) for length in lengths}
best_length = min(lengths, key=lambda length: on_paper[length][0])
print(f"least memory: segments of {best_length}{beside(guess_length, best_length)}")
table = {
    length: {"peak": human_bytes(peak), "time": f"{seconds / plain_seconds - 1:+.1%}"}
    for length, (peak, seconds) in on_paper.items()
}
pd.DataFrame(table).T.rename_axis("segments of")

# %% [markdown] id="read-intervals"
# Memory has a valley, near $\sqrt{32 / 9}$. Time goes down all the way: the longer the segments,
# the longer the last one, which costs nothing. Left of the valley you pay more memory *and* more
# time. So the sweet spot is the valley, or a little to the right of it.
#
# All this is paper. Does it come true?
#
# ## 4.2 Run a tree
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# Write the function that runs any tree on real layers. It is short, because PyTorch's checkpoint
# may be nested.
#
# The numbers to reach: gradients equal to those without checkpoints, **to the last bit**, dropout
# included; each layer runs as often as the plan says; the counted peak is within 3 % of the planned
# one. One trap: a `lambda` in a loop looks up the loop's variable when it is *called*, and a
# segment is called again long after the loop has ended.


# %% id="answer-4-2"
# exercise 4.2
def run_tree(layers: nn.Sequential, tree: tuple, x: torch.Tensor) -> torch.Tensor:
    """Run layers one after the other, as a tree says.

    Args:
        layers: As many as the whole tree has numbers; a number is an index into them.
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
# A loop over the items of the tree. `isinstance(item, int)` tells a layer from a segment.
# </details>
# <details><summary>Hint 2: the inside of a segment</summary>
#
# A segment is a tree as well, so it is run by the function that you are writing.
# </details>
# <details><summary>Hint 3: the call</summary>
#
# `checkpoint(function, *arguments, use_reentrant=False)` calls `function(*arguments)` now and
# again in backward. Hand the segment over as an argument, and no `lambda` is needed.
# </details>

# %% [markdown] id="measure-intervals-text"
# Now the same four lengths in real memory. `memory.watch` counts the bytes of all tensors; what
# was there before the step is subtracted.


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
    title="memory against extra time: the sweet spot lies to the left and below",
)

# %% [markdown] id="read-sweet-spot"
# Segments of two need less memory *and* less time than single blocks. The other lengths are a
# choice.
#
# ## 4.3 Revolve: the fewest forwards
#
# Difficulty 3/5 · importance 3/5 · 10 minutes
#
# Now memory is scarcer. There are $c$ **places** for boundaries, one of them always for the chain's
# input, and only *one* stage may be kept at a time. (The input of the stage that runs takes no
# place.) So a stage can go backward only right after its own forward. How often must forwards run?
#
# Say a part has $n$ stages and $c$ places, one of which holds its input. Run $k$ stages and put
# what comes out into a place. Now the later part has $n - k$ stages and $c - 1$ places. When it
# is done, those places are free again, and the first part has $k$ stages and $c$ places:
#
# $$ F(n, c) = \min_{1 \le k < n} \Big( k + F(n - k,\, c - 1) + F(k,\, c) \Big),
#    \qquad F(1, c) = 1 $$
#
# Without a place, $c = 0$, only a single stage can be done: $F(n, 0) = \infty$ for $n > 1$.

# %% [markdown] id="predict-revolve"
# **Predict.** 32 stages: a plain step runs 32 forwards. How many are needed with 4 places?

# %% id="guess-revolve"
guess_forwards = None  # forwards


# %% id="answer-4-3"
# exercise 4.3
def fewest_forwards(num_stages: int, num_places: int) -> int:
    """Give the fewest forwards that take a chain backward, one stage kept at a time.

    Args:
        num_stages: Stages of the chain, from 1 on.
        num_places: Boundaries that may be held at once, the chain's input among them;
            from 1 on.

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
# A function of `n` and `c` inside yours: two cases that need no recursion, then a `min` over `k`.
# </details>
# <details><summary>Hint 2: it never ends</summary>
#
# Without a memory, the same parts are solved over and over. `functools.cache` on the inner
# function keeps each answer.
# </details>
# <details><summary>Hint 3: one value by hand</summary>
#
# Three stages, two places: k = 1 gives 1 + F(2, 1) + F(1, 2) = 1 + 3 + 1 = 5.
# </details>

# %% id="revolve-numbers"
few = fewest_forwards(32, 4)
print(f"4 places: {few} forwards{beside(guess_forwards, few)}")
for places in (1, 2, 4, 8, 16, 32):
    print(
        f"{places:>2} places: {fewest_forwards(32, places) / 32:.1f} forwards a stage"
    )

# %% [markdown] id="text-4-4"
# ## 4.4 Revolve's schedule
#
# Difficulty 3/5 · importance 4/5 · 10 minutes
#
# A number says what is possible. Now the tree that does it. The recursion says how: the first $k$
# stages are a segment, and their inside is a schedule with $c$ places; what follows is a schedule
# with $c - 1$ places.
#
# The numbers to reach: as many forwards as 4.3 says, one stage kept at a time, and no more than
# $c$ places taken. For four stages and one place the tree is `((((0,), 1), 2), 3)`.


# %% id="answer-4-4"
# exercise 4.4
def revolve_tree(num_stages: int, num_places: int) -> tuple:
    """Give the tree with the fewest forwards, one stage kept at a time.

    Args:
        num_stages: Stages of the chain, from 1 on.
        num_places: Boundaries that may be held at once, the chain's input among them;
            from 1 on.

    Returns:
        The tree. Every tuple in it, and the tree itself, has segments first and one
        number last.
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
# 4.3 takes the `min` of numbers. With pairs `(forwards, k)` the `min` says which k it was. (Copy
# what you need from 4.3 into this cell.)
# </details>
# <details><summary>Hint 2: a second recursion</summary>
#
# `tree(start, n, c)` gives the tree of n stages that begin with stage `start`. One stage alone is
# `(start,)`.
# </details>
# <details><summary>Hint 3: putting it together</summary>
#
# The segment is one item of the result, the later part's items follow it side by side: `(segment,
# *later)`.
# </details>

# %% [markdown] id="predict-revolve-real"
# Now on the 32 real blocks.
#
# **Predict.** Segments of two were the best of the equal lengths. What share of their peak does
# Revolve need with 4 places? (A block saves nine times its input.)

# %% id="guess-share"
guess_share = None  # share, as 0.5

# %% id="revolve-real"
shares, table = {}, {}
for places in (16, 8, 4, 2):
    tree = revolve_tree(32, places)
    shares[places] = counted_peak(equal_layers, tree, x) / counted_segments(2)
    extra = plan.Plan(tuple(equal), tree).overhead
    table[places] = {
        "of segments of two": f"{shares[places]:.0%}",
        "time": f"{extra:+.0%}",
    }
print(f"4 places: {shares[4]:.0%}{beside(guess_share, shares[4])}")
pd.DataFrame(table).T.rename_axis("places")

# %% [markdown] id="read-revolve-real"
# Memory falls far below what segments can do, and the step gets longer. Revolve runs every block at
# least twice, because it never keeps two at once, even where there is room.
#
# So two questions are left. What is the *least* memory that a chain needs? And what is the
# *fastest* schedule for the memory that you have? For stages that are not equal, too.
#
# ## 4.5 The smallest budget
#
# Difficulty 4/5 · importance 3/5 · 15 minutes
#
# Unequal stages, real bytes. Take a part of the chain, stages `start` to `end`, whose input is
# held already. There are two kinds of ways to begin:
#
# - **keep** stage `start`. While it runs, `kept_needs(stages, start, end)` must fit. While the
#   rest runs, what `start` saved is held, and the rest needs what it needs.
# - **drop** stages `start` to `split - 1` as a segment, for any `split` in the part. While they
#   are dropped, `dropped_needs(stages, start, split, end)` must fit. While the rest runs, the
#   boundary is held: the input of stage `split`. When the segment's turn comes, its inside is a
#   part of its own, `start` to `split - 1`, and nothing else is held.
#
# A way needs the *largest* of its moments; the part needs the *smallest* of all ways. A part of a
# single stage can only be kept. Chains of ten stages have more than a million trees, so trying
# all of them is no answer.

# %% [markdown] id="predict-floor"
# Here is a chain whose blocks get narrower. **Predict.** All kept, it needs a certain peak. What
# share of that peak is the smallest possible?

# %% id="guess-floor"
guess_floor = None  # share, as 0.5

# %% id="given-narrowing"
widths = [64, 64, 48, 48, 32, 32, 24, 24, 16, 16]
narrowing_layers = make_layers([(a, 8 * a, b) for a, b in pairwise(widths)])
wide_x = torch.randn(512, 64)
narrowing = chain_of(narrowing_layers, wide_x)
everything = plan.simulate(narrowing, tuple(range(9))).peak_bytes
[f"{Bytes(stage.saved_bytes)}" for stage in narrowing]


# %% id="answer-4-5"
# exercise 4.5
def smallest_budget(stages: list[plan.Stage]) -> int:
    """Give the smallest peak that any tree of a chain has.

    Args:
        stages: The chain, of unequal stages.

    Returns:
        Bytes, the chain's own input among them.
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
# An inner function `needs(start, end)` with `@cache`. It makes a list of ways and returns its
# `min`.
# </details>
# <details><summary>Hint 2: one way</summary>
#
# To keep: the `max` of `kept_needs(...)` and, where there is a rest, `saved_bytes` of `start`
# plus `needs(start + 1, end)`. To drop, for each split: the `max` of three terms.
# </details>
# <details><summary>Hint 3: what is outside</summary>
#
# The part's own input is in none of these numbers. The whole chain's input is added once, at the
# end.
# </details>

# %% id="floor-share"
floor = smallest_budget(narrowing)
share = floor / everything
print(f"{Bytes(floor)} of {Bytes(everything)}: {share:.0%}{beside(guess_floor, share)}")

# %% [markdown] id="read-floor"
# Nothing goes below: the first block alone, with all that its backward holds, takes most of it.
# To get lower, one would need finer stages or a smaller micro-batch.
#
# ## 4.6 The fastest schedule within a budget
#
# Difficulty 5/5 · importance 5/5 · 20 minutes
#
# The same ways, another question. Now `room` is given, the bytes that a part may use besides its
# input, and you look for the least *extra time*: forwards that run again. A way is possible only
# if its moment fits into the room; the rest then has less room, and a segment's inside has all of
# it.
#
# $$ T(s, e, m) = \min\Big( \underbrace{T(s{+}1, e, m - \bar a_s)}_{\text{keep } s},\;
#    \min_{p} \underbrace{\textstyle\sum_{i=s}^{p-1} f_i + T(p, e, m - a_p) + T(s, p{-}1, m)}
#    _{\text{drop } s \text{ to } p - 1} \Big) $$
#
# Give the tree, not the time. The numbers to reach: never over the budget, and as fast as
# `plan.solve`. A budget that no tree fits into is a `ValueError` that names the smallest budget
# in bytes.


# %% id="answer-4-6"
# exercise 4.6
def fastest_tree(stages: list[plan.Stage], budget_bytes: int) -> tuple:
    """Give the fastest tree whose peak fits a budget.

    Args:
        stages: The chain, of up to ten unequal stages.
        budget_bytes: For all that is held at once, the chain's own input among it.

    Returns:
        The tree.

    Raises:
        ValueError: When no tree fits; the message has the smallest budget, in bytes.
    """
    ### BEGIN SOLUTION
    floor = smallest_budget(stages)
    if budget_bytes < floor:
        raise ValueError(
            f"budget_bytes (={budget_bytes}) is too small: this chain needs at least "
            f"{floor} bytes. Try finer stages or a smaller micro-batch."
        )

    @cache
    def fastest(start, end, room):
        """Give extra seconds and tree; infinite seconds where nothing fits."""
        ways = [(math.inf, ())]
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
# Let the inner function `fastest(start, end, room)` return a pair, extra seconds and tree. Where
# nothing fits it returns `(math.inf, ())`: a sum with infinity is never the minimum.
# </details>
# <details><summary>Hint 2: room</summary>
#
# After a kept stage the rest has `room - saved_bytes`. After a segment it has `room` minus the
# input of stage `split`. The segment's inside has `room` again. `@cache` over the three arguments
# makes it quick.
# </details>
# <details><summary>Hint 3: the tree</summary>
#
# To keep: `(start, *rest)`. To drop: `(inside, *rest)`, since the inside is one item, a tuple.
# The refusal comes first, from `smallest_budget(stages)`.
# </details>

# %% [markdown] id="predict-plans-text"
# Now everything together: budgets from the smallest to the largest, each planned, run and
# counted.
#
# **Predict.** With half of the memory of "all kept", how many per cent is a step longer?

# %% id="guess-half"
guess_half = None  # per cent


# %% id="plans"
def budget_of(share):
    return max(smallest_budget(narrowing), int(share * everything))


def planned(share):
    return plan.Plan(tuple(narrowing), fastest_tree(narrowing, budget_of(share)))


half = planned(0.5)
print(half.tree)
print(f"{half.overhead:+.1%}{beside(guess_half, 100 * half.overhead)}")


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
    plan.Plan(tuple(narrowing), segments(9, length)) for length in (1, 2, 3, 4)
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
# Every point of the lower curve is a schedule that runs, and its peak was known before it ran.
# Where the equal segments stand, your planner is faster with the same memory.
#
# It is exact, and meant for short chains: a part is solved for every room that occurs. Solvers for
# long chains, `plan.solve` too, round bytes up to slots.
#
# ## On a GPU
#
# Optional, and never graded: profile, plan and run on the GPU itself, with a larger batch. The
# seconds are measured there, so the trees may differ.


# %% id="gpu"
# NBVAL_IGNORE_OUTPUT
def gpu_plan(share, num_rows):
    layers, rows = narrowing_layers.cuda(), torch.randn(num_rows, 64, device="cuda")
    stages = chain_of(layers, rows)
    most = plan.simulate(stages, tuple(range(9))).peak_bytes
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
        "holds",
        "Of the intervals 1, 2, 4 and 8, the sweet spot is the valley of memory, or "
        "just after it.",
        f"least memory at segments of {best_length}: "
        f"{human_bytes(counted_segments(best_length))} for "
        f"{on_paper[best_length][1] / plain_seconds - 1:+.0%} time; "
        f"{human_bytes(counted_segments(1))} at 1, {human_bytes(counted_segments(8))} "
        "at 8",
        "counted",
        "given-counted",
    ),
)

# %% [markdown] id="end"
# ## What you can now do
#
# - Say from a chain's numbers what a schedule costs, in bytes and in seconds, before it runs.
# - Run any schedule on real layers: a tree of checkpoints, gradients equal to the bit.
# - Find the fewest forwards for so many boundaries, the smallest budget of a chain, and the
#   fastest schedule in between. All three are one recursion: keep, or drop up to a boundary.
#
# The library does the rest: `plan.profile` finds the stages of a model, U-Nets with skips included,
# and `plan.apply` runs the plan on it. Chapter 07 looks inside a stage.
