# %% [markdown] id="title"
# # Which lever first: rules of thumb
#
# Chapter 14 pulls six levers on one model. Does their order suit other models too? In this
# companion you try an order on 17 models, and predict which lever a new model needs first. Then you
# test the promise that checkpointing and accumulation allow models "four to ten times larger". No
# lab and no later chapter needs this companion.
#
# **Budget:** 65 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from dataclasses import replace
from functools import cache
from statistics import median
from unittest.mock import patch

import numpy as np
import pandas as pd

from tutorial_lib import blanks, claims, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import figures, planning, recorded, widgets
from tutorial_lib.instruments.recorded.rows import SIZES, Row
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB, Bytes

pd.set_option("display.max_colwidth", None)  # show answers whole

# %% [markdown] id="peaks-text"
# ## A step has two peaks
#
# The first peak comes while the model runs: at the end of forward, or early in backward, when all
# activations are in memory. The second comes in the update. No activation is left then, but all
# gradients are in memory, and the optimizer may allocate temporaries. The higher of the two peaks
# must fit on the card.
#
# We recorded predictions of both peaks for 17 models, in float32, at usual batch sizes.

# %% id="report-of"
rows = recorded.load("predicted").rows
MODELS = [model for model in SIZES if model not in ("llama-2-7b", "resnet1000")]


def report_of(model, step):
    recipe = replace(Recipe(model, **SIZES[model]), **step)
    return rows[Row(recipe).key]["report"]


def two_peaks(model, step):
    phases = report_of(model, step)["phases"]
    return max(phases["forward"], phases["backward"]), phases["optimizer"]


# %% id="two-peaks"
peaks = {model: two_peaks(model, {}) for model in MODELS}
higher = [model for model, (passes, update) in peaks.items() if update > passes]
SHOWN = ("bert-base", "vit-l-16", "gpt2-medium", "transformer-50", "sd15-unet",
         "sd21-unet", "sdxl-unet", "lstm")  # fmt: skip
figures.two_peaks(
    {model: peaks[model] for model in SHOWN}, cards_gib=plots.CARDS_GIB,
    title=f"The update peaks higher for {len(higher)} of {len(MODELS)} models",
)  # fmt: skip

# %% [markdown] id="peaks-read"
# A lever lowers one of the two, or both:
#
# | lever | the peak while the model runs | the update's peak |
# |---|---|---|
# | autocast | mostly lower | the same |
# | fused kernels | the same, or lower (attention) | lower: no temporaries |
# | a smaller micro-batch | lower, unless earlier micro-batches' gradients take more | the same |
# | checkpoints | lower, or the same | the same |
# | 8-bit states | lower: smaller states | lower |
# | LoRA, or sharding (13) | lower | lower |
#
# So look at both peaks first. If the update alone doesn't fit, a checkpoint or a smaller
# micro-batch can't help.
#
# ## One order
#
# Among the levers that help, the cheapest comes first. The notebook `tonight` uses this order:

# %% id="order"
pd.DataFrame({"what it costs": planning.ORDER})

# %% [markdown] id="order-read"
# Should a smaller micro-batch come before checkpoints? A tutorial says so: "start with gradient
# accumulation", and "add checkpointing if still hitting memory limits". Both levers lower the same
# peak, and neither changes the training if no layer mixes samples (09). So the faster one should
# come first, and people have published times for both.
#
# **Predict.** The InternLM team trained a 7B model on eight 80 GiB GPUs, with 8 samples per GPU in
# each update. One run kept all activations, and accumulated over four micro-batches of two samples.
# The other run used checkpoints, and ran all eight samples at once. By what percentage did the
# checkpointed run take longer?

# %% id="guess-order"
guess = None  # percent

# %% id="order-settled"
published = pd.read_csv(FOLDER / "published_times.csv").set_index("id")


def price(name):
    """Return how much longer a published pair's second run took; both are rates."""
    pair = published.loc[name]
    return pair["without"] / pair["with"] - 1


checkpointed = {n: price(f"internlm-7b-{n}-or-accumulate") for n in (8, 64, 1024)}
print(f"on 8 GPUs: {checkpointed[8]:+.0%}{beside(guess, 100 * checkpointed[8])}")
bert = {
    way: price(f"bert-large-v100-{way}") for way in ("accumulation", "checkpointing")
}
settled = {f"InternLM 7B, {n} GPUs: 8 x 1 checkpointed, not 2 x 4": f"{p:+.0%}"
           for n, p in checkpointed.items()}  # fmt: skip
settled |= {f"BERT-Large, V100: {way}": f"{p:+.0%}" for way, p in bert.items()}
pd.DataFrame({"more time (measured, by the sources)": settled})

# %% [markdown] id="settled-read"
# Accumulation is cheaper for both models, so the tutorial is right, with two exceptions. The first
# exception is a GPU that isn't filled: it finishes its work faster than the CPU can launch more. On
# such a GPU, half a micro-batch takes as long as a whole one, so accumulation isn't cheap either.
# If your GPU isn't filled, measure the time with each of the two levers.

# %% [markdown] id="filled-read"
# With micro-batches too small to fill the GPU, accumulation costs time. That's why the order above
# has the micro-batch twice: first reduce it to the size that just fills the GPU, and after the
# checkpoints, to one sample.
#
# The second exception is sharding over a slow link, where each micro-batch sends the weights again.
# There, checkpoints come first (chapter 14).
#
# ## How far each lever reaches
#
# On the recorded models, we pull the levers one after the other, like climbing a ladder. Each rung
# adds one lever and keeps the earlier ones. The rung "smaller micro-batch" runs one sample at a
# time.

# %% id="rungs"
TWICE = "one sample at a time"  # the smaller micro-batch again
RUNGS = ["as it is", *(name for name in planning.ORDER if name != TWICE)]
half = {"precision": "bf16-amp"}
fused = half | {"optimizer": "adamw-fused"}
FRUGAL = {"checkpointing": "per-block"}


def window(model, step):  # the second micro-batch peaks as the last one
    return step | {
        "micro_batch": 1,
        "accumulation": min(2, SIZES[model]["micro_batch"]),
    }


def steps(model):
    alone = window(model, fused)
    checkpointed = alone | FRUGAL
    return (
        {},
        half,
        fused,
        alone,
        checkpointed,
        checkpointed | {"optimizer": "adamw-8bit"},
    )


# %% [markdown] id="write-first-rung"
# **Write.** `first_rung`. `steps(model)` returns six training steps in order, one for each rung,
# and `report_of(model, step)["peak_bytes"]` is a step's peak.


# %% id="first-fit"
def first_rung(model, budget_bytes):
    """Return the number of the first step with a peak below the budget; 6 if none."""
    ### BEGIN SOLUTION
    peaks = [report_of(model, step)["peak_bytes"] for step in steps(model)]
    fitting = [rung for rung, peak in enumerate(peaks) if peak < budget_bytes]
    return min(fitting, default=len(peaks))
    ### END SOLUTION


# %% id="check-first-fit"
# @title Check: run this cell
@blanks.check("first_rung", "return the number of a rung")
def finds_the_first_that_fits():
    # They stand in for a model's: the peak of its passes, and the update's.
    pairs = [(50, 30), (40, 40), (30, 45), (45, 20), (20, 20), (10, 5)]
    peaks = [max(pair) for pair in pairs]

    def report(model, step):
        passes, update = step
        phases = {"forward": passes - 1, "backward": passes, "optimizer": update}
        return {"peak_bytes": max(step), "phases": phases}

    with patch.dict(globals(), report_of=report, steps=lambda model: pairs):
        for budget, right in ((60, 0), (42, 1), (35, 4), (15, 5), (5, 6)):
            seen = first_rung("a model", budget)
            said = (
                f"{peaks} under {budget}: you find {seen!r}, but the rung is {right}."
            )
            assert seen == right, said


# %% [markdown] id="guess-fit-text"
# **Predict.** There are 17 models and three cards, of 16, 24 and 80 GiB. How many of the 51 pairs
# fit without any lever?

# %% id="guess-fit"
guess = None  # pairs of 51

# %% id="ladder"
found = {
    model: {gib: first_rung(model, gib * GIB) for gib in plots.CARDS_GIB}
    for model in MODELS
}
plain = sum(rung == 0 for cards in found.values() for rung in cards.values())
print(f"{plain} of {3 * len(MODELS)} pairs fit as they are{beside(guess, plain)}")
pd.DataFrame(found).T.map(lambda rung: RUNGS[rung]).rename(columns="{} GiB".format)

# %% [markdown] id="ladder-read"
# *LoRA* means that none of the six steps fits. Which lever a model needs depends on what fills the
# card: activations, or weights and states. Now try some levers yourself:

# %% id="calculator"
widgets.published_calculator(rows, micro_batch=8, card_gib=24)

# %% [markdown] id="rule-text"
# ## The first lever of a model that is not in the table
#
# Two numbers give a first guess, both as shares of the card's memory:
#
# - **states**: 16 bytes for each parameter (weights, gradients, AdamW's two states; chapter 01);
# - **batch**: what the whole batch adds while the model runs, in float32.
#
# The two peaks follow from these numbers (chapters 01 to 08):
#
# - Of the 16 bytes, weights take 4, gradients 4 and AdamW's states 8. In 8 bits, the states take 2.
# - When the activations reach their maximum, the only gradients in memory are those of earlier
#   micro-batches.
# - From the second rung on, autocast keeps a 16-bit copy of the weights while the model runs.
# - In the update all gradients are in memory, and PyTorch's default AdamW needs temporaries of 4
#   more bytes per parameter. The fused and the 8-bit versions need none.
#
# Two more shares depend on the model. `cast` is the share of `batch` that remains with autocast.
# `kept` is the share of one sample's bytes that remains with autocast and checkpoints together.
#
# **Write.** `on_paper`, which returns the higher of the two peaks on each of six rungs, as a share
# of the card. The rungs are: as it is, autocast, fused AdamW, one sample at a time, checkpoints,
# and 8-bit states.


# %% id="on-paper"
def on_paper(states, batch, samples, cast, kept):
    """Return the peaks on the six rungs, as shares of the card.

    Args:
        states: Share of 16 bytes for each parameter.
        batch: Share of what all samples add in float32.
        samples: The number of samples.
        cast: The part of `batch` that autocast leaves.
        kept: The part of one sample's share that autocast and checkpoints leave.
    """
    ### BEGIN SOLUTION
    held, waiting = states * 12 / 16, states * 4 / 16 * (samples > 1)
    copies, sample = states * 2 / 16, batch / samples
    cast_batch = held + copies + cast * batch
    checkpointed = copies + waiting + kept * sample
    return (
        max(held + batch, states * 20 / 16),
        max(cast_batch, states * 20 / 16),
        max(cast_batch, states),
        max(held + copies + waiting + cast * sample, states),
        max(held + checkpointed, states),
        max(states * 6 / 16 + checkpointed, states * 10 / 16),
    )
    ### END SOLUTION


# %% id="check-on-paper"
# @title Check: run this cell
@blanks.check("on_paper", "return the peaks on the six rungs")
def is_right_on_paper():
    by_hand = {  # states, batch, samples, cast, kept
        (0.8, 0, 8, 1, 1): (1, 1, 0.8, 0.9, 0.9, 0.6),
        (0.8, 0, 1, 1, 1): (1, 1, 0.8, 0.8, 0.8, 0.5),
        (0, 1.6, 8, 0.5, 0.25): (1.6, 0.8, 0.8, 0.1, 0.05, 0.05),
        (0.4, 0.8, 4, 0.5, 0.25): (1.1, 0.75, 0.75, 0.55, 0.5, 0.35),
    }
    for given, right in by_hand.items():
        for rung, seen, peak in zip(RUNGS, on_paper(*given), right, strict=False):
            wrong = f"on_paper{given}, {rung!r}: {seen:.2f} should be {peak:.2f}."
            assert abs(seen - peak) < 1e-6, wrong
        assert len(on_paper(*given)) == 6, "There must be a peak for each of six rungs."


# %% [markdown] id="judge-text"
# We test the rule on models that it hasn't seen: for each model, `cast` and `kept` are medians over
# the 16 other models. We try each model on cards of seven sizes.


# %% id="shares"
def added(model, step, *phases):  # what running the model adds to what it held
    report = report_of(model, step)
    return max(report["phases"][p] for p in phases) - report["baseline_bytes"]


def sizes_of(model):
    """Return the bytes of states and batch, and the number of samples."""
    states = 4 * report_of(model, {})["at_peak"]["parameters"]
    batch = added(model, {}, "forward", "backward")
    return states, batch, SIZES[model]["micro_batch"]


def parts(model):
    """Return the parts `cast` and `kept` for `on_paper`, without the copies."""
    states, batch, samples = sizes_of(model)
    lone = added(model, half | FRUGAL | {"micro_batch": 1}, "forward")
    cast = added(model, half, "forward", "backward")
    copies = states * 2 / 16
    return (cast - copies) / batch, (lone - copies) / (batch / samples)


# %% id="ruled"
def ruled(model, budget_bytes):
    """Return the first rung that fits on paper, using the other models' medians."""
    others = [parts(other) for other in MODELS if other != model]
    cast, kept = map(median, zip(*others, strict=True))
    states, batch, samples = sizes_of(model)
    shares = states / budget_bytes, batch / budget_bytes
    peaks = on_paper(*shares, samples, cast, kept)
    return next((rung for rung, peak in enumerate(peaks) if peak < 1), len(peaks))


# %% [markdown] id="guess-rule-text"
# **Predict.** In some pairs of a model and a card, the model needs a lever to fit. For what
# percentage of these pairs does the rule name the right rung?

# %% id="guess-rule"
guess = None  # percent

# %% id="judged"
CARDS = (8, 12, 16, 24, 40, 48, 80)
pairs = [(model, gib) for model in MODELS for gib in CARDS]
needed = {pair: first_rung(pair[0], pair[1] * GIB) for pair in pairs}
told = {pair: ruled(pair[0], pair[1] * GIB) for pair in pairs}
right = [pair for pair in pairs if told[pair] == needed[pair]]
needy = [pair for pair in pairs if needed[pair] > 0]
of_needy = len(set(right) & set(needy))
share = 100 * of_needy / len(needy)
print(f"right in {len(right)} of {len(pairs)} pairs, with each model left out in turn;")
print(f"in {of_needy} of the {len(needy)} that need a lever{beside(guess, share)}")
missed = {f"{pair[0]}, {pair[1]} GiB": (RUNGS[told[pair]], RUNGS[needed[pair]])
          for pair in pairs if pair not in right}  # fmt: skip
pd.DataFrame(missed, index=["on paper", "needed"]).T

# %% [markdown] id="judged-read"
# Most of the wrong answers are for language models. Their logits stay in float32 under autocast, so
# autocast saves a smaller share of their batch (chapter 10d). So take the rule's answer as a first
# guess, and check it with `memory.predict`, which takes seconds.
#
# In words, the rule says:
#
# - A large batch whose states leave room on the card needs autocast, then a smaller micro-batch,
#   then a checkpoint around each block.
# - States that nearly fill the card need fused kernels first, then 8-bit states. A checkpoint alone
#   doesn't help.
# - States that don't fit even in 8 bits need bfloat16 throughout, more devices, or fewer trained
#   weights.

# %% [markdown] id="plans-text"
# ## The planner on real models
#
# The planner tries many plans. It keeps weights and states in float32. Of the plans that fit, it
# chooses the one with the shortest predicted time. The table below has its recorded answers for 64
# samples per update. This command computes one of them:
#
# ```bash
# python -m tutorial_lib plan gpt2-xl --budget 24GiB --effective-batch 64
# ```
#
# **Predict.** Llama 2 has 6.7 billion parameters. On an 80 GiB card its states don't fit in
# float32, and 8-bit states may not fit either. In bfloat16 everything fits, if you run one sequence
# of 4,096 tokens at a time. By what percentage does recomputation lengthen that plan's step?

# %% id="guess-plan"
guess = None  # percent

# %% id="plans"
plans = pd.read_csv(FOLDER / "plans.csv").set_index(["model", "budget_gib"])
llama = plans.loc["llama-2-7b", 80]
extra = llama.overhead
print(f"Llama 2 7B in 80 GiB: {extra:+.1%} time{beside(guess, 100 * extra)}")


def in_words(plan):
    if np.isnan(plan.peak_bytes):
        return f"nothing; float32 states need {Bytes(plan.smallest_bytes)}"
    batch = f"{plan.micro_batch:.0f} x {plan.accumulation:.0f}"
    extra = f"{abs(plan.overhead):.0%} more time"
    words = f"{batch}: {Bytes(int(plan.peak_bytes))}, {extra}"
    return words if pd.isna(plan.changes) else f"{words}; only with {plan.changes}"


plans.apply(in_words, axis=1).unstack().rename(columns="{} GiB".format)

# %% [markdown] id="plans-read"
# - Each entry begins with micro-batch x accumulation steps. A tenth of the card is left free (10b).
# - The planner's plans cost less than the rung "checkpoint each block": they recompute only as much
#   as the memory requires, and the cheapest stages first.
# - Where an entry says "only with", weights and states don't fit in float32. The planner
#   shows what would fit, but uses it only if you ask for it, since it changes the training.

# %% [markdown] id="larger-text"
# ## "Four to ten times larger"
#
# A common promise about checkpointing and accumulation is: "Both techniques together let you train
# models four to ten times larger." We test it with GPT-2's layers of width 768, autocast, and
# updates of 16 sequences of 1,024 tokens. How many layers fit in 16 GiB? Each layer adds the same
# number of bytes, so the peak is a straight line in the number of layers. Two predictions give the
# line.

# %% id="lines"
WAYS = {
    "neither": {"micro_batch": 16},
    # the second one peaks like the 16th
    "accumulation": {"micro_batch": 1, "accumulation": 2},
    "checkpointing": {"micro_batch": 16, "checkpointing": "per-block"},
    "both": {"micro_batch": 1, "accumulation": 2, "checkpointing": "per-block"},
}


def gpt(layers, width=768, seq=1024, **choices):
    shape = {"n_layer": layers, "n_embd": width, "n_head": width // 64}
    shape["n_positions"] = seq
    return Recipe("gpt2", **choices, **fused, seq=seq, overrides=shape)


@cache
def peak(layers, width=768, **choices):
    return memory.predict(gpt(layers, width, **choices).make_step).peak_bytes


# %% id="depth"
BUDGET = 16 * GIB


def deepest(**choices):
    """Return how many layers fit: the peak grows linearly with their number."""
    four, eight = peak(4, **choices), peak(8, **choices)
    slope = (eight - four) / 4
    return int((BUDGET - eight) // slope) + 8


# %% [markdown] id="guess-larger-text"
# **Predict.** With both techniques, how many times as many layers fit in 16 GiB as with neither?

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
# With both levers, far more than ten times as many layers fit, because the update is large. Without
# a lever, all 16 sequences are in memory at once, and their activations leave room for only a few
# layers. So the factor should be lower for a smaller update.

# %% id="by-batch"
one = {"micro_batch": 1}  # an update of one sample has nothing to accumulate
single = {seq: deepest(**one, **FRUGAL, seq=seq) / deepest(**one, seq=seq)
          for seq in (1024, 16384)}  # fmt: skip
factors = {1: single[1024]}
factors |= {n: depths["both"] / deepest(micro_batch=n) for n in (2, 4, 8, 16)}
larger = {f"{n} x 1024 tokens": times for n, times in factors.items()}
larger["1 x 16384 tokens"] = single[16384]
pd.Series(larger).map("{:.1f}".format).to_frame("times as deep")

# %% [markdown] id="by-batch-read"
# So no single factor is right for these techniques. The factor grows with the number of samples in
# an update and with their length.


# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "A17", "holds if", "How much larger a model can be depends on the number of "
        "samples in an update and their length: both techniques gain as either grows.",
        f"{factors[1]:.1f} to {factors[16]:.1f} times as deep for 1 to 16 sequences of "
        f"1,024 tokens per update, {single[16384]:.1f} times for one of 16,384",
        "predicted", "by-batch", device="CUDA kernels",
        tried={"larger": larger}),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Find out which of a step's two peaks is too high, and which lever comes first.
# - Say why accumulation comes before checkpoints, and when it doesn't.
# - Let the planner choose, and read its plan.
# - Say what "ten times larger" depends on.
