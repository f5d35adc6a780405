# %% [markdown] id="title"
# # Putting it together
#
# A model does not fit. Which lever do you pull first, and how far do all of them reach? In this
# chapter the course's numbers answer. You build a decision tree from the recorded models, see what
# the planner does with real ones, settle "four to ten times larger", and find out from a snapshot
# why a run died.
#
# **Budget:** 60 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import pickle
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from tutorial_lib import claims, memory, plots
from tutorial_lib.instruments import figures, recorded, widgets
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.recorded.rows import SIZES, Row
from tutorial_lib.instruments.recorded.snapshots import SNAPSHOTS
from tutorial_lib.instruments.recorded.store import FOLDER
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB, Bytes

pd.set_option("display.max_colwidth", None)  # show answers whole

# %% [markdown] id="ladder-text"
# ## Which lever first?
#
# Order the levers by what they cost. A lever lower in this list is pulled only when those above it
# are not enough.
#
# | rung | lever | what it costs |
# |---|---|---|
# | 0 | none: float32, the whole batch at once | nothing |
# | 1 | bfloat16 autocast | a few digits |
# | 2 | a checkpoint around each block | up to one more forward |
# | 3 | one sample at a time, accumulated | a GPU that is less busy (chapter 08) |
# | 4 | optimizer states in 8 bits | a slightly different update |
# | 5 | several devices, or fewer trained weights | another setup |
#
# The recordings hold the predicted peak of 17 models on each rung.

# %% id="rungs"
RUNGS = ("as it is", "autocast", "checkpoint each block", "one sample at a time",
         "8-bit states", "devices or LoRA")  # fmt: skip
half = {"precision": "bf16-amp"}
frugal = half | {"checkpointing": "per-block"}
lone = frugal | {"micro_batch": 1}
STEPS = ({}, half, frugal, lone, lone | {"optimizer": "adamw-8bit"})
rows = recorded.load("predicted").rows

# %% id="report-of"
MODELS = [model for model in SIZES if model not in ("llama-2-7b", "resnet1000")]


def report_of(model, step):
    recipe = replace(Recipe(model, **SIZES[model]), **step)
    return rows[Row(recipe).key]["report"]


# %% [markdown] id="write-first-rung"
# **Write.** `first_rung`, from the `peak_bytes` of `report_of(model, step)` for the five `STEPS`. A
# larger card must never ask for a higher rung.


# %% id="first-fit"
def first_rung(model, budget_bytes):
    """Number of the first step whose peak is below the budget; 5 where none is."""
    ### BEGIN SOLUTION
    peaks = [report_of(model, step)["peak_bytes"] for step in STEPS]
    fitting = [rung for rung, peak in enumerate(peaks) if peak < budget_bytes]
    return min(fitting, default=len(STEPS))
    ### END SOLUTION


# %% [markdown] id="guess-fit-text"
# **Predict.** That makes 17 models and three cards of 16, 24 and 80 GiB. How many of the 51 pairs
# fit as they are, without any lever?

# %% id="guess-fit"
guess = None  # pairs of 51

# %% id="ladder"
found = {
    model: {gib: first_rung(model, gib * GIB) for gib in plots.CARDS_GIB}
    for model in MODELS
}
for model, rung in found.items():
    assert rung[16] >= rung[24] >= rung[80], f"{model}: a larger card asks for more"
plain = sum(rung == 0 for cards in found.values() for rung in cards.values())
print(f"{plain} of {3 * len(MODELS)} pairs fit as they are{beside(guess, plain)}")
pd.DataFrame(found).T.map(lambda rung: RUNGS[rung]).rename(columns="{} GiB".format)

# %% [markdown] id="ladder-read"
# Read along a line: a larger card asks for fewer levers. Read down a column: the levers differ by
# *what* a model holds. Where weights and states nearly fill the card, only smaller states or more
# devices help; where activations do, a checkpoint is enough.
#
# A tutorial (source 1 of chapter 10) has rungs 2 and 3 the other way round: "Start with gradient
# accumulation", and "add checkpointing if still hitting memory limits". Which pairs that do not fit
# under autocast does each of the two rescue *alone*?


# %% id="order"
def peak_of(model, step):  # the gradients of the first micro-batch wait for the others
    report = report_of(model, step)
    waiting = report["at_peak"]["parameters"] if "micro_batch" in step else 0
    *passes, update = (
        report["phases"][p] for p in ("forward", "backward", "optimizer")
    )
    return max(max(passes) + waiting, update)


# %% id="order-rescued"
alone = {"under autocast": half, "checkpoints alone": frugal}
alone["one sample at a time alone"] = half | {"micro_batch": 1}
rescued = {
    name: {(m, gib) for m in MODELS for gib in found[m] if peak_of(m, step) < gib * GIB}
    for name, step in alone.items()
}
base, *others = rescued.values()
print(f"do not fit under autocast: {3 * len(MODELS) - len(base)} of {3 * len(MODELS)}")
checkpoints, samples = (other - base for other in others)
print(f"rescued by checkpoints alone: {len(checkpoints)}, by samples: {len(samples)}")
print(f"checkpoints rescue all that samples do: {checkpoints >= samples}")

# %% [markdown] id="order-read"
# On these models checkpoints rescue a little more, because the gradients of a window wait beside
# the activations. What the order decides is mostly the price. A smaller micro-batch adds no FLOPs,
# and a checkpoint adds up to a third: the tutorial's order is the cheaper one while the smaller
# micro-batch still fills the GPU. At one sample it seldom does, so here checkpoints come first.
# Best is a part of both: accumulate down to the smallest micro-batch that fills the GPU, then
# checkpoint. Pull the levers yourself:

# %% id="calculator"
widgets.published_calculator(rows, micro_batch=8, card_gib=24)

# %% [markdown] id="tree-text"
# ## The tree that these numbers give
#
# For a model that is not in the table, two questions give a first guess. Both answers are shares of
# the card's memory, and chapter 01's ledger gives them:
#
# - **states**: 16 bytes for each parameter;
# - **batch**: what forward adds for the whole batch, in float32.
#
# A decision tree is fitted to the 51 pairs. It sees these two shares and learns the first rung that
# fits.


# %% id="shares"
def added(report):  # what the pass adds to what was there before it
    return max(report["phases"].values()) - report["baseline_bytes"]


def shares(model, budget_bytes):
    plain = report_of(model, {})
    states = 4 * plain["at_peak"]["parameters"]
    return states / budget_bytes, added(plain) / budget_bytes


pairs = [(model, gib) for model in MODELS for gib in plots.CARDS_GIB]
questions = np.array([shares(model, gib * GIB) for model, gib in pairs])
answers = [found[model][gib] for model, gib in pairs]

# %% id="tree"
tree = DecisionTreeClassifier(max_leaf_nodes=7, random_state=0).fit(questions, answers)
right = tree.score(questions, answers)
print(f"the tree names the first rung that fits in {right:.0%} of these pairs")
one_out = {"groups": [model for model, _ in pairs], "cv": LeaveOneGroupOut()}
unseen = cross_val_predict(tree, questions, answers, **one_out) == answers
print(f"fitted without a model, in {unseen.mean():.0%} of that model's pairs;")
lever = np.array(answers) > 0
print(f"{unseen[lever].sum()} of {lever.sum()} where a lever is needed")
figures.decision_tree(tree, ["states", "batch"], RUNGS)

# %% [markdown] id="tree-read"
# The first line above is what the tree remembers of its own pairs. The others are what you may
# expect for a model of your own: fitted without a model, the tree misses most of the pairs that
# need a lever. Take its answer as the first thing to try, and `memory.predict` it.
#
# Start at the top with your own two shares. The tree is fitted to numbers, so its thresholds are a
# little odd: each lies halfway between two models. It says:
#
# - A small batch beside small states needs no lever.
# - A large batch beside states that leave room: autocast, then a checkpoint around each block.
# - States that nearly fill the card: no checkpoint helps. Make the states smaller first.
# - States larger than the card, in 8 bits too: more devices, or fewer trained weights.
#
# ## The planner on real models
#
# The ladder has five rungs; the planner has many more. For each micro-batch, precision and
# optimizer it solves for the checkpoints that fit, and answers with the fastest. These are its
# answers for 64 samples an update, recorded by `python tests/benchmarks/plan_pairs.py`. One of them
# you can have with
#
# ```bash
# python -m tutorial_lib plan sdxl-unet --budget 24GiB --effective-batch 64
# ```
#
# **Predict.** SDXL's U-Net has 2.57 billion parameters. On a card of 16 GiB the planner takes 16
# bits throughout, 8-bit states, and one image at a time. It then has to checkpoint. How many
# percent more FLOPs does its plan cost?

# %% id="guess-plan"
guess = None  # percent

# %% id="plans"
plans = pd.read_csv(FOLDER / "plans.csv").set_index(["model", "budget_gib"])
sdxl = plans.loc["sdxl-unet", 16]
print(f"SDXL in 16 GiB: {sdxl.overhead:+.1%} FLOPs{beside(guess, 100 * sdxl.overhead)}")


def in_words(plan):
    if np.isnan(plan.peak_bytes):
        return f"nothing fits; the smallest is {Bytes(plan.smallest_bytes)}"
    batch = f"{plan.micro_batch:.0f} x {plan.accumulation:.0f}"
    extra = f"{abs(plan.overhead):.0%} more FLOPs"
    choices = f"{batch}, {plan.precision}, {plan.optimizer}"
    return f"{choices}: {Bytes(int(plan.peak_bytes))}, {extra}"


plans.apply(in_words, axis=1).unstack().rename(columns="{} GiB".format)

# %% [markdown] id="plans-read"
# Four things to see:
#
# - The planner checkpoints only where it has to. With states in 8 bits and weights in 16, all but
#   one of these need no recomputation at all: first lower what stays, then recompute.
# - Weights in 16 bits have a price that FLOPs do not show. bfloat16 rounds away any update that is
#   smaller than 1/512 of its weight, so the model may learn less than with float32 weights.
# - It does not fill the card for the sake of it. A larger micro-batch has the same arithmetic, and
#   the planner's clock, which counts FLOPs and bytes, sees little gain. A real GPU may.
# - Llama 2 7B in full training fits 80 GiB and neither of the smaller cards. The planner says so,
#   and how much it would take: that is the tree's last leaf, devices or LoRA.

# %% [markdown] id="larger-text"
# ## "Four to ten times larger"
#
# "Both techniques together let you train models four to ten times larger." Larger in what? We take
# GPT-2's layers of width 768, an update of 16 sequences of 1,024 tokens, autocast, and 16 GiB, and
# ask how many layers fit. A layer adds the same bytes each time, so the peak is a straight line in
# the number of layers: two predictions draw it, and a third shows how straight it is.

# %% id="lines"
LEAN = {"precision": "bf16-amp", "optimizer": "adamw-fused"}
WAYS = {
    "neither": {"micro_batch": 16},
    # the second one peaks as the 16th
    "accumulation": {"micro_batch": 1, "accumulation": 2},
    "checkpointing": {"micro_batch": 16, "checkpointing": "per-block"},
    "both": {"micro_batch": 1, "accumulation": 2, "checkpointing": "per-block"},
}


def gpt(layers, width=768, **choices):
    shape = {"n_layer": layers, "n_embd": width, "n_head": width // 64}
    return Recipe("gpt2", **choices, **LEAN, overrides=shape)


@cache
def peak(layers, width=768, **choices):
    return memory.predict(gpt(layers, width, **choices).make_step).peak_bytes


# %% id="depth"
BUDGET = 16 * GIB


def deepest(**choices):
    """How many layers fit: the peak is a straight line in their number."""
    four, eight = peak(4, **choices), peak(8, **choices)
    slope = (eight - four) / 4
    return int((BUDGET - eight) // slope) + 8


four, six, eight = (peak(layers, **WAYS["both"]) for layers in (4, 6, 8))
print(f"at six layers the line is off by {2 * six / (four + eight) - 1:+.2%}")

# %% [markdown] id="guess-larger-text"
# **Predict.** Both together, against neither: how many times as many layers fit in 16 GiB?

# %% id="guess-larger"
guess = None  # times

# %% id="depths"
depths = {way: deepest(**choices) for way, choices in WAYS.items()}
sizes = {way: gpt(layers, **WAYS[way]).num_parameters for way, layers in depths.items()}
deeper = {way: layers / depths["neither"] for way, layers in depths.items()}
times = deeper["both"]
print(f"both against neither: {times:.1f} times{beside(guess, times)}")
table = pd.DataFrame({"layers": depths})
table["times as deep"] = pd.Series(deeper).map("{:.1f}".format)
table["parameters"] = [f"{count / 1e6:.0f} M" for count in sizes.values()]
table

# %% [markdown] id="depths-read"
# Far more than ten times. The reason is the update: without a lever, all 16 sequences are in memory
# at once, and their activations leave room for a few layers only. With both levers nearly all of
# the 16 GiB is weights and states. So the factor should fall when the update is smaller.

# %% id="by-batch"
factors = {n: depths["both"] / deepest(micro_batch=n) for n in (1, 2, 4, 8, 16)}
by_batch = {n: f"{times:.1f}" for n, times in factors.items()}
pd.DataFrame({"times as deep": by_batch}).T

# %% [markdown] id="by-batch-read"
# Here is the condition of the claim. The factor is not a property of the techniques: it grows with
# the number of samples in an update. At one sample an update, both techniques together add less
# than twice the depth, since weights and states fill the card whatever you do.
#
# *Wider* models meet the same wall. Weights grow with the square of the width, activations only
# with the width.


# %% id="widths"
def widest(layers=6, **choices):
    """Find the widest model that fits; the peak is a parabola in the width."""
    at = (256, 512, 1024)
    curve = np.polyfit(at, [peak(layers, width, **choices) for width in at], 2)
    return 64 * int(max(np.roots(curve - [0, 0, BUDGET]).real) // 64)


plain, both = widest(**WAYS["neither"]), widest(**WAYS["both"])
wider = gpt(6, both).num_parameters / gpt(6, plain).num_parameters
print(f"six layers: width {plain} or {both}, {wider:.1f} times the parameters")

# %% [markdown] id="triage-text"
# ## Why did it die?
#
# Three runs ended in `OutOfMemoryError` on an emulated T4. Their messages look alike: some
# megabytes were wanted, and 14 GiB were in use. The message does not say *who* used them. The
# allocator's snapshot does: it has every allocation, with the line of Python that asked for it.
#
# On your own GPU, put `with memory.snapshot("died.pickle"):` around the loop; without a GPU,
# `python -m tutorial_lib emulate --card t4 --snapshot died.pickle -- python train.py`.
#
# **Write.** The replay. An event is a dict. Its `action` is `alloc` when a block is handed out,
# `oom` when memory ran out, and else the block's end; `addr` is where the block lies. An address
# may be handed out again. All that is alive in the end must be the 14 GiB of the message.


# %% id="alive"
def alive(name):
    """Replay a snapshot until memory ran out, and give what was alive then."""
    snapshot = pickle.loads((SNAPSHOTS / f"{name}.pickle").read_bytes())
    ### BEGIN SOLUTION
    living = {}
    for event in snapshot["device_traces"][0]:
        if event["action"] == "oom":
            return list(living.values())
        if event["action"] == "alloc":
            living[event["addr"]] = event
        else:
            living.pop(event["addr"], None)
    ### END SOLUTION
    raise ValueError(f"{name} did not run out of memory")


# %% id="line-of"
alive_bytes = sum(event["size"] for event in alive("oom_2"))
assert round(alive_bytes / GIB) == 14, f"{alive_bytes / GIB:.1f} GiB are alive"


def line_of(event):
    frames = event["frames"]
    return "{filename}:{line}".format(**frames[0]) if frames else "(backward)"


# %% id="by-line"
def by_line(name, top=5):
    """Who held the memory: bytes and number of tensors, by line of Python."""
    size, count = Counter(), Counter()
    for event in alive(name):
        size[line_of(event)] += event["size"]
        count[line_of(event)] += 1
    table = {line: (f"{n / GIB:.2f}", count[line]) for line, n in size.most_common(top)}
    return pd.DataFrame(table, index=["GiB", "tensors"]).T


by_line("oom_1")

# %% [markdown] id="first-read"
# **The first run** trains GPT-2 medium, four sequences at a time. The two largest lines are the
# activation function and the linear layers of the blocks: tensors that wait for backward. The
# weights (`modeling_utils.py`, `cuda`) are small beside them, and no optimizer state exists yet.
# The diagnosis is *activations*. The ladder's answer is a checkpoint around each block, and then
# fewer samples at a time.
#
# **Predict.** The second run trains well and dies later. GPT-2 has 12 blocks, and each runs the
# line `activations.py:66` several times in a forward pass. How many forward passes are alive?

# %% id="guess-alive"
guess = None  # forward passes

# %% id="second"
first, second = (Counter(map(line_of, alive(name))) for name in ("oom_1", "oom_2"))
line = "transformers/activations.py:66"
per_block = first[line] // 24  # GPT-2 medium has 24 blocks, and one pass was alive
passes = second[line] / per_block / 12
print(f"{passes:.1f} forward passes are alive{beside(guess, passes)}")
by_line("oom_2")

# %% [markdown] id="second-read"
# Training holds one pass at a time. Several at once mean that something keeps the graphs of passes
# that are over. Here is the script:

# %% id="second-script"
print("".join((SNAPSHOTS / "oom_2.py").read_text().partition("total = 0")[1:]))

# %% [markdown] id="third-text"
# The validation loop sums losses that still have their graphs, so that no pass is ever freed.
# `with torch.no_grad():` around it, or `loss.item()`, is the cure. A smaller batch only dies later.
#
# **The third run** has one short sequence and a checkpoint around every block.

# %% id="third"
by_line("oom_3")

# %% [markdown] id="third-read"
# Nearly everything was asked for by line 14 of the script itself, and the rest are weights and
# gradients of the same size. Look the line up:

# %% id="third-script"
print((SNAPSHOTS / "oom_3.py").read_text().splitlines()[13].strip())

# %% [markdown] id="third-cure"
# The first update makes AdamW's states, two for each weight, and its `foreach` form makes
# temporaries beside them. No checkpoint and no smaller batch touches that. The cures are
# `fused=True`, 8-bit states, or states divided over devices.
#
# Now go through the three runs in time. At which moment could you have known?

# %% id="triage"
runs = {}
for name in ("oom_1", "oom_2", "oom_3"):
    snapshot = pickle.loads((SNAPSHOTS / f"{name}.pickle").read_bytes())
    runs[name] = snapshot["device_traces"][0]
widgets.snapshot_triage(runs)

# %% [markdown] id="triage-read"
# | what is alive when it dies | diagnosis | cure |
# |---|---|---|
# | lines of the model, once for each block | activations | checkpoints, then fewer samples |
# | the same lines, several passes | a graph that is kept | `no_grad`, `.item()`, `detach` |
# | `optimizer.step`, weights, gradients | states | fused or 8-bit AdamW, LoRA, FSDP |
# | little, *reserved* far above it | fragmentation (02b) | `expandable_segments`, equal lengths |

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "A17", "holds if", "How much larger a model may be is decided by the samples "
        "in an update: the more there are, the more both techniques gain.",
        f"{factors[1]:.1f} to {factors[16]:.1f} times as deep for 1 to 16 samples an "
        "update", "predicted", "by-batch", device="CUDA kernels",
        tried={"larger": {f"{n} samples": times for n, times in factors.items()}}),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Ask two things of a model, and know which lever comes first.
# - Have a planner choose, and read what it chose.
# - Say what "ten times larger" depends on.
# - Find from a snapshot who held the memory when a run died.
#
# Lab 09 hands you ten runs that fail: two die of memory, one warns, and seven say nothing.
