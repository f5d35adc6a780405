# %% [markdown] id="title"
# # Where to checkpoint
#
# "Put a checkpoint every $\sqrt n$ layers." Many tutorials say so. For a transformer of typical
# depth the rule is wrong: it takes more memory and more FLOPs than a checkpoint around every block.
#
# In this chapter you derive how long a segment should be and what it costs, and measure both.
#
# **Budget:** 50 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from functools import cache

import pandas as pd
import torch

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import figures, planning, segments
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.instruments.training import Recipe

# %% [markdown] id="two-costs-text"
# ## Two costs
#
# Take a model of twelve equal blocks, cut into three **segments** of four. The first two segments
# are checkpointed. (In the code, a tuple of blocks is a checkpointed segment, and a number by
# itself is a block that keeps everything.) The figure is a *schedule*, with a row for each block
# and time to the right. A triangle pointing up is a block's forward, and one pointing down is its
# backward. A hollow triangle is a forward that runs again.

# %% id="first-schedule"
block = planning.Stage(
    forward_seconds=1, backward_seconds=2, input_bytes=1, saved_bytes=5
)
blocks = (block,) * 12
in_threes = planning.Plan(blocks, ((0, 1, 2, 3), (4, 5, 6, 7), 8, 9, 10, 11))
figures.schedule(in_threes.simulation.events, title="three segments of four", unit=1)

# %% [markdown] id="first-schedule-read"
# A checkpointed segment costs memory twice:
#
# 1. its **boundary** (gray), the input of its first block, waits from forward until the segment's
#    backward;
# 2. its **inside** (pink), what its blocks keep for backward, is in memory while the segment goes
#    backward, and is freed before the next segment's turn.
#
# ![Twelve blocks in three segments of four. The boundaries of the first two segments wait. The
# inside of the second segment, which goes backward now, is the only inside in
# memory.](figures/segments_and_boundaries.svg)
#
# ## How long a segment?
#
# The best length depends on one number, the ratio $r$: a block whose input takes $a$ bytes keeps $r
# \cdot a$ bytes for backward. For our transformer block $r$ is the sixteen units of chapter 01:

# %% id="ratio"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=24))
x = torch.randn(2, 128, 128, requires_grad=True)  # a block's input
kept = memory.saved(lambda: gpt.blocks[0](x), params_of=gpt)
r = kept.num_bytes / x.nbytes
with memory.predicting(), torch.autocast("cpu", torch.bfloat16):  # no memory
    one, many = Block(gpt.config), torch.empty(256, 128, 128, requires_grad=True)
    mixed = memory.saved(lambda: one(many), params_of=one).num_bytes / many.nbytes
print(f"r = {r:.1f}, under bf16 autocast {mixed:.1f}")

# %% [markdown] id="formula-text"
# With $n$ blocks in segments of $s$ blocks there are $n/s$ boundaries, and one inside at a time. So
# the memory held for backward is
#
# $$ m(s) = \underbrace{\frac{n}{s}\,a}_{\text{boundaries}} +
#    \underbrace{r\,a\,s}_{\text{one inside}} $$
#
# The two terms are equal at the minimum, where
#
# $$ s^* = \sqrt{n / r} \qquad\text{or}\qquad k^* = \sqrt{n\,r} \text{ segments,}\qquad
#    m(s^*) = 2a\sqrt{n\,r} $$
#
# The famous $\sqrt n$ is the case $r = 1$, a block that keeps its input and nothing else (Chen et
# al., 2016). The formula with $r$ is our own.
#
# **Write.** `on_paper`, which returns $m(s)$ in bytes, with `x.nbytes` for $a$. Its lowest value
# must be $2a\sqrt{nr}$.


# %% id="on-paper"
def on_paper(segment, num_blocks, ratio):
    """Return the bytes held for backward, on paper; a block's input has `x.nbytes`."""
    ### BEGIN SOLUTION
    boundaries = num_blocks / segment
    inside = ratio * segment
    return x.nbytes * (boundaries + inside)
    ### END SOLUTION


# %% id="check-on-paper"
# @title Check: run this cell
@blanks.check("on_paper", "return a number of bytes")
def on_paper_is_right():
    lowest = on_paper(4, 16, 1) / x.nbytes
    assert lowest == 8, f"For n = 16, r = 1, s = 4: {lowest:g} a, not 2 a sqrt(16)."
    pairs = on_paper(2, 24, 16) / x.nbytes
    assert pairs == 44, f"For r = 16, 12 boundaries and 2 r are 44 a, not {pairs:g} a."
    fives = on_paper(5, 24, 1) / x.nbytes
    assert fives == 9.8, (
        f"For r = 1, 24/5 boundaries and 5 r are 9.8 a, not {fives:g} a."
    )


# %% id="formula"
def is_best(length, n, k):  # within 5 % of the best whole length
    best = min(on_paper(s, n, k) for s in range(1, n + 1))
    return on_paper(length, n, k) <= 1.05 * best


grid = [(n, k) for n in (12, 24, 32, 48, 80, 126) for k in (1, 2, 4, 8, 16, 34)]
roots = sum(is_best(n**0.5, n, k) for n, k in grid)
print(f"sqrt(n) blocks: within 5 % of the best for {roots} of {len(grid)} pairs n, r")
lengths = (1, 2, 4, 5, 8, 24)
curves = {f"r = {k}": {s: on_paper(s, 24, k) for s in lengths} for k in (1, 4, 16)}
title = "24 blocks on paper: the larger r, the shorter the best segment"
plots.growth(curves, xlabel="blocks in a segment", title=title, predicted=list(curves))

# %% [markdown] id="formula-read"
# For $r = 1$ the lowest point is at segments of five blocks, near $\sqrt{24}$. For $r = 16$ the
# curve only rises, so **a checkpoint around every block** needs the least memory. The line above
# the figure tries other depths and other $r$: segments of $\sqrt n$ blocks are rarely near the
# best.
#
# A length is a whole number. Segments of two need less memory than single blocks if $n/2 + 2r < n +
# r$, that is, if $n > 2r$. In float32, which the rest of this chapter uses, $r$ is 16, so this
# limit is 32 blocks.
#
# Under bf16 autocast, the usual setting, boundaries stay in float32, but most of the inside is in
# bfloat16. That lowers $r$ to 9, and the limit to 18 blocks.
#
# A model also has logits. With a vocabulary of $V$ and a width of $C$, the logits and their
# gradient take as much memory as $2V/C$ block inputs. Both are in memory just before the blocks'
# backward begins, together with all boundaries. So if they are larger than one inside, they set the
# peak.

# %% id="slider"
# @title Segments with sliders, on paper: run this cell; open it to look
figure = plots.growth(
    {
        "boundaries and one inside": {s: on_paper(s, 24, 4) for s in lengths},
        "boundaries": {s: on_paper(s, 24, 0) for s in lengths},
    },
    xlabel="blocks in a segment",
    title="24 blocks with r = 4, on paper",
    log=False,
)
kinds = ["boundaries", "one inside", "logits and gradient"]
figure.moving = {
    "title": "On paper, in units of a block's input",
    "params": [
        plots.slider("n", "blocks, n", 24, range(4, 129, 4)),
        plots.slider("r", "r", 4, range(1, 41)),
        plots.slider("v", "V / C", 8, range(201)),
    ],
    "data": {"sequence": {"start": 1, "stop": 129, "as": "s"}},
    "transform": [{"filter": "datum.s <= n"}, *plots.formulas(
        k="ceil(n / datum.s)", inside="r * datum.s",
        peak="datum.k + max(datum.inside, 2 * v)",
        more="100 * n / (3 * (n + v / 12))")],
    "layer": [
        {"transform": [
            *plots.formulas(**{kinds[0]: "datum.k",
                kinds[1]: "datum.inside >= 2 * v ? datum.inside : 0",
                kinds[2]: "datum.inside < 2 * v ? 2 * v : 0"}),
            {"fold": kinds, "as": ["part", "inputs"]}],
         "mark": "bar",
         "encoding": {
            "x": {"field": "s", "type": "quantitative", "title": "blocks in a segment"},
            "y": {"field": "inputs", "type": "quantitative",
                  "title": "held at the peak"},
            "color": {"field": "part", "type": "nominal", "title": None, "sort": kinds},
            "order": {"field": "part"}}},
        {"transform": [
            {"aggregate": [{"op": "argmin", "field": "peak", "as": "least"}]},
            *plots.formulas(words="'best: ' + datum.least.s + ' per segment, peak ' "
                "+ datum.least.peak + ', FLOPs +' "
                "+ format(datum.least.more, '.0f') + ' %'")],
         "mark": {"type": "text", "x": 8, "y": 10, "align": "left",
                  "fontWeight": "bold"},
         "encoding": {"text": {"field": "words"}}},
    ],
}  # fmt: skip
figure

# %% [markdown] id="predict-sqrt"
# **Predict.** Our GPT has 24 blocks. The strategy `sqrt` makes five segments of about five blocks;
# `per-block` makes segments of one. How many times as much activation memory does `sqrt` need as
# `per-block`?

# %% id="guess-sqrt"
guess = None  # times the memory

# %% id="measured-sqrt"
tokens = next(data.text_batches(2, 128))  # (batch, sequence)


@cache
def measured(strategy, model=gpt, keep_gradients=False):
    def step():
        model.loss(tokens).backward()
        model.zero_grad(set_to_none=not keep_gradients)

    warmup, flops = int(keep_gradients), model is gpt
    with segments.applied(model, strategy):
        return memory.measure(step, model=model, warmup=warmup, flops=flops)


def held_for_backward(strategy, model=gpt):
    curve = pd.DataFrame(measured(strategy, model).curve())
    return int(curve[["activations", "recomputed", "temporary"]].sum(axis=1).max())


sqrt_ratio = held_for_backward("sqrt") / held_for_backward("per-block")
print(f"r = {r:.0f}: sqrt needs {sqrt_ratio:.1f} times the memory"
      f"{beside(guess, sqrt_ratio)}")  # fmt: skip

# %% id="measured-figure"
# @title On paper and counted, by length: run this cell; open it to look
names = {s: "per-block" if s == 1 else f"every-{s}" for s in lengths}
curve = {s: held_for_backward(name) for s, name in names.items()}
both = {"on paper": {s: on_paper(s, 24, r) for s in lengths}, "counted": curve}
best = {way: min(curve, key=curve.get) for way, curve in (curves | both).items()}
plain = measured("none").peak_bytes
of_plain = {way: measured(way).peak_bytes / plain for way in ("per-block", "every-24")}
print(f"best length, r = 1 on paper: {best['r = 1']}; counted: {best['counted']}")
print(f"peaks relative to plain: {of_plain['per-block']:.0%} per block, "
      f"{of_plain['every-24']:.0%} with one around all")  # fmt: skip
title = "GPT of 24 blocks: single blocks hold the least, recomputed tensors included"
figure = plots.growth(
    both, xlabel="blocks in a segment", title=title, predicted=["on paper"]
)
figure.mark(curve[5], None if guess is None else guess * curve[1])

# %% [markdown] id="measured-read"
# The counted curve rises like the formula's. It's higher: the formula leaves out logits and
# temporary tensors.
#
# The last point is one checkpoint around all 24 blocks. It costs a third more arithmetic and saves
# nothing here: in backward the whole inside comes back at once. A script that reads memory after
# forward would miss that. With large logits one checkpoint does help, if head and loss are outside:
# activations and logits are then never in memory together.
#
# Do deeper models need segments of two, as the formula says? The next table gives three peaks, in
# units of a block's input. *Activations* leaves out weights and their gradients. *Whole step*
# includes both, with gradients set to `None` before the step. *Gradients stay* is the same peak
# with gradients in memory from the start, as when you accumulate over several batches.

# %% id="deeper"
# @title Two models, two lengths: run this cell; open it to look
rows, models = {}, {"24 blocks": gpt, "48 blocks": GPT(GPTConfig(num_layers=48))}
for name, model in models.items():
    for way in ("per-block", "every-2"):
        held, whole = held_for_backward(way, model), measured(way, model).peak_bytes
        stay = measured(way, model, keep_gradients=True).peak_bytes
        model.zero_grad()
        sizes = (held, whole, stay)
        rows[name, way] = [f"{size / x.nbytes:.1f}" for size in sizes]
columns = ["activations", "whole step", "gradients stay"]
print(f"single blocks and pairs: equal at 2 r = {2 * r:.0f} blocks")
pd.DataFrame(rows, index=columns).T.rename_axis(["model", "segments"])

# %% [markdown] id="deeper-read"
# The formula is right for activations, and for the whole step if gradients stay: single blocks need
# less memory in the model of 24 blocks, and segments of two in the model of 48. But if gradients
# are set to `None`, single blocks give both models the lower whole-step peak.
#
# Why? As backward goes on, boundaries are freed and gradients are added. A block of width $h$ has
# about $12h^2$ weights, and its boundary $h$ elements per token. So with fewer than $12h$ tokens in
# a batch, gradients grow faster than boundaries shrink. Then the peak comes at the end of backward,
# when no boundary is left. Single blocks win there, because they rebuild the fewest activations at
# once.
#
# The rule for a transformer: **checkpoint every block; beyond $2r$ blocks try segments of two.**
# Segments of two help where boundaries dominate the peak: with many tokens, frozen weights, or
# gradients that stay.
#
# **Predict.** A Llama block has a gated MLP: three matrices in place of two, and an elementwise
# product of two wide tensors. What is its $r$ if the whole model is in bfloat16?

# %% id="guess-llama"
guess = None  # times the input


# %% id="modern"
def llama(**choices):
    short = {"num_hidden_layers": 8}
    recipe = Recipe("llama-2-7b", 1, 2048, precision="bf16", overrides=short, **choices)
    return recipe.make_loss()


ratios = {}
for name, choices in {"all weights": {}, "LoRA": {"lora_rank": 16}}.items():
    with memory.predicting():  # a GPU's kernels, and no memory
        loss, model = llama(**choices)
        inside = memory.saved(loss, params_of=model).by("module")
    of_one = sum(size for part, size in inside.items() if "layers.4" in part)
    ratios[name] = of_one / (2048 * 4096 * 2)
print(f"r = {ratios['all weights']:.1f}{beside(guess, ratios['all weights'])}")
print(f"frozen weights with LoRA: r = {ratios['LoRA']:.1f}")

# %% [markdown] id="modern-read"
# Llama's $r$ is larger than our block's for two reasons. Its norms, written out in Python, keep
# three units each instead of one, and its gated MLP keeps more wide tensors. The second line is for
# *LoRA*, which freezes the model and trains two small matrices beside each linear layer. There,
# frozen norms keep two units.
#
# Companion [06b](06b_common_advice.ipynb) has a case of $r = 1$, where segments of $\sqrt n$ blocks
# are best, and tests more advice.

# %% id="verdicts-length"
claims.Verdicts(
    claims.Verdict(
        "A06",
        "holds if",
        "Every sqrt(n) layers is best if a layer keeps only its input, not in a "
        "transformer.",
        f"r = {r:.0f}: sqrt takes {sqrt_ratio:.1f} times the memory of per-block",
        "counted",
        "measured-sqrt",
        held=(roots, len(grid), "pairs of n and r"),
    ),
    claims.Verdict(
        "E03",
        "holds if",
        "The best number of segments is sqrt(n r), which is sqrt(n) only for r = 1.",
        f"best length: {best['r = 1']} for r = 1 on paper, {best['counted']} counted",
        "counted",
        "measured-figure",
        held=(roots, len(grid), "pairs of n and r"),
    ),
    claims.Verdict(
        "A07",
        "built",
        "A checkpoint around each block cuts the peak. One around the whole model does "
        "so only if the logits are large. If it includes the loss it never does, "
        "unless the loop held the logits before, and now holds only the loss.",
        f"peak {of_plain['per-block']:.0%} of plain with one per block, "
        f"{of_plain['every-24']:.0%} with one around all",
        "counted",
        "measured-figure",
    ),
)

# %% [markdown] id="what-does-it-cost"
# ## What does it cost?
#
# Some tutorials derive the price like this: $k$ segments recompute $n/k$ blocks each, so the
# overhead is $k \cdot (n/k) / n = 1$, "but in practice only 30 %". The 1 is right, but it means one
# more *forward*, not one more step. A linear layer's forward is one matmul, and its backward is
# two: one for the gradient of its input, one for its weight's. So forward is a third of a step.
# Here is the count:

# %% id="flops"
plain = measured("none").flops
with memory.flop_counter() as forward:
    gpt.loss(tokens)
forward_share = forward.get_total_flops() / plain
ways = ("per-block", "every-2", "every-4", "sqrt", "mlp-only", "attention-only")
adds = {way: 100 * (measured(way).flops / plain - 1) for way in ways}
print(f"forward: {forward_share:.1%} of a step; in fours {adds['every-4']:.0f} % more")
print(f"per-block: {adds['per-block']:.0f} % more")

# %% id="flops-table"
# @title Counted, by strategy: run this cell; open it to look
before = held_for_backward("none")
saves = {way: 100 * (1 - held_for_backward(way) / before) for way in ways}
columns = {"memory saved, %": saves, "more FLOPs, %": adds}
pd.DataFrame(columns).loc[list(ways)].round(1)

# %% [markdown] id="flops-read"
# With long segments the price is nearly a third: all of forward runs again except embedding and
# head. With one block per segment it's lower, thanks to early stop: backward doesn't need the
# output of a segment's last matmul, so PyTorch doesn't recompute that matmul (unless dropout or a
# norm follows it). In our block, that matmul is the second half of the MLP, a third of the
# arithmetic of the linear layers. So the shortest segments cost the fewest FLOPs, and for our GPT
# $\sqrt n$ loses in both memory and FLOPs.
#
# **The price is a third only if a layer's backward is two matmuls.** It's higher where backward is
# only one. That's so in a frozen linear layer, and in the first layer, whose input is the data.
#
# **Predict.** Llama's weights are frozen, and each linear layer has LoRA's two small matrices. By
# what percentage do checkpoints around every block raise a step's FLOPs?

# %% id="guess-lora"
guess = None  # %


# %% id="flops-lora"
def llama_flops(way, **choices):
    with memory.predicting(), memory.flop_counter() as counter:
        loss, model = llama(**choices)
        with segments.applied(model, way):
            loss().backward()
    return counter.get_total_flops()


adapted = {}
for name, choices in {"all weights": {}, "LoRA": {"lora_rank": 16}}.items():
    more = llama_flops("per-block", **choices) / llama_flops("none", **choices) - 1
    adapted[f"Llama, {name}"] = 100 * more
print(f"all weights: {adapted['Llama, all weights']:+.0f} %")
print(f"LoRA: {adapted['Llama, LoRA']:+.0f} %{beside(guess, adapted['Llama, LoRA'])}")
adds |= {way: 100 * (measured(way).flops / plain - 1) for way in names.values()}
own = pd.read_csv(FOLDER / "own_times.csv")
more = own.set_index(own.card + ": " + own.step).measured_price
seconds = f"seconds, measured on an H200 and an H100: +{more.min():.0f} to "
seconds += f"+{more.max():.0f} %"
print(f"GPT: +{adds['per-block']:.0f} % per block, +{adds['every-4']:.0f} % in fours, "
      f"+{max(adds.values()):.0f} % in one segment; {seconds}")  # fmt: skip

# %% [markdown] id="last-read"
# With frozen weights, a layer's backward is about one matmul, so one more forward adds nearly half
# a step. The measured seconds differ much more than the FLOPs: on a GPU that isn't kept busy, the
# CPU's time decides, for launches and for the checkpoint's Python.
#
# The *last* segment need not be checkpointed: backward begins with it, so its inside would be
# dropped and recomputed immediately. If you keep its inside, the price of $k$ segments falls to
# $\frac13 (1 - \frac1k)$, and on paper the peak stays the same. But a model has a head and a loss
# after its last block. Then the kept inside is in memory together with the logits and their
# gradient:

# %% id="last-free"
all_four = planning.Plan(blocks, ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)))
but_the_last = planning.Plan(blocks, ((0, 1, 2), (3, 4, 5), (6, 7, 8), 9, 10, 11))
for name, run in (("all four", all_four), ("all but the last", but_the_last)):
    print(f"{name}: peak {run.peak_bytes} units, time {run.overhead:+.1%}")
models["12 blocks, V = 4096"] = GPT(GPTConfig(vocab_size=4096, num_layers=12))
models["4 blocks, V = 1024"] = GPT(GPTConfig(vocab_size=1024, num_layers=4))
for name, model in models.items():
    every, kept = (held_for_backward(w, model) for w in ("per-block", "all-but-last"))
    print(f"{name}, with head and loss: {kept / every - 1:+.0%}")

# %% [markdown] id="last-measured-read"
# If the last block is checkpointed, its inside comes back after the logits are freed. If not,
# inside and logits are in memory at once. So measure before you leave the last block without a
# checkpoint.

# %% id="verdicts-price"
tried = {"more arithmetic": adds | adapted}
claims.Verdicts(
    claims.Verdict("A05", "holds if", "If every layer passes a gradient on, one more "
        "forward is at most a third of a step if all weights train, and at most half "
        "if they are frozen. Other layers can add more. Early stop lowers the price.",
        f"{adds['per-block']:.0f} to {max(adds.values()):.0f} % more FLOPs, "
        f"{adapted['Llama, LoRA']:.0f} % with LoRA", "counted", "flops-lora",
        tried=tried),
    claims.Verdict("D05", "holds if", "Long segments cost at most a third more if all "
        "weights train and no layer reads the data. With one block per segment, early "
        "stop saves a good part, unless the block ends in dropout or a norm. A GPU's "
        "seconds follow only if it's busy; otherwise the CPU's time decides.",
        f"FLOPs +{adds['per-block']:.0f} % per block, +{adds['every-24']:.0f} % in one "
        f"segment; {seconds}", "counted", "flops-lora",
        tried=tried | {"more, in practice": adds | adapted | more.to_dict()}),
    claims.Verdict("E04", "holds if", "The whole forward runs again, and forward is a "
        "third of a step.", f"forward {forward_share:.1%} of a step, "
        f"{adds['every-4']:.0f} % more FLOPs in fours", "counted", "flops",
        tried=tried),
)  # fmt: skip

# %% [markdown] id="nothing-text"
# ## Nothing kept
#
# Could we keep only the model's input? To go backward through block 24 we run blocks 1 to 24; for
# block 23, blocks 1 to 23, and so on.
#
# **Predict.** How many block forwards do 24 blocks take in all, the first pass included?

# %% id="guess-nothing"
guess = None  # forwards

# %% [markdown] id="write-nothing"
# **Write.** `nothing_kept`, which returns the plan as nested tuples. A number is a block that keeps
# its inside when its segment runs. A tuple is a segment that keeps only its boundary, and runs
# again. The plan for one block is `(0,)`, for two `((0,), 1)`, for three `(((0,), 1), 2)`.


# %% id="nothing-kept-plan"
def nothing_kept(num_blocks):
    """Return a plan of two parts: a segment, planned in the same way; the last block.

    For two blocks that's `((0,), 1)`.
    """
    ### BEGIN SOLUTION
    if num_blocks == 1:
        return (0,)
    return nothing_kept(num_blocks - 1), num_blocks - 1
    ### END SOLUTION


# %% id="check-nothing-kept-plan"
# @title Check: run this cell
@blanks.check("nothing_kept", "return nested tuples of block numbers")
def nothing_is_kept():
    for num_blocks, plan in ((1, "(0,)"), (2, "((0,), 1)"), (3, "(((0,), 1), 2)")):
        seen = nothing_kept(num_blocks)
        assert repr(seen) == plan, f"{num_blocks} blocks make {plan}, not {seen!r}."
    runs = sum(planning.Plan((block,) * 24, nothing_kept(24)).forward_executions)
    assert runs == 24 * 25 // 2, f"24 blocks run {runs} times, not 1 + 2 + ... + 24."


# %% id="nothing-kept"
lazy = planning.Plan((block,) * 24, nothing_kept(24))
runs = sum(lazy.forward_executions)
print(f"{runs} forwards of 24 blocks, {runs / 24:.1f} each; peak {lazy.peak_bytes} "
      f"units{beside(guess, runs)}")  # fmt: skip

# %% [markdown] id="nothing-read"
# The count is $n(n + 1)/2$: it grows with the square of the depth.

# %% id="verdicts-nothing"
claims.Verdicts(
    claims.Verdict(
        "B06",
        "holds",
        "With nothing kept, the number of forwards grows with the square of the depth.",
        f"{runs} forwards of 24 blocks, {runs / 24:.1f} each",
        "counted",
        "nothing-kept",
    ),
)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** There are 96 blocks with $r = 6$. How many blocks should a segment have, and how much is
# then held for backward, in units of a block's input?
#
# <details><summary>Answer</summary>
#
# $s^* = \sqrt{96/6} = 4$. There are 24 boundaries, and an inside of $6 \cdot 4 = 24$ units. That's
# 48 in all, as $2\sqrt{96 \cdot 6}$ says.
# </details>
#
# **2.** There are 48 blocks with $r = 12$. Which needs less memory: a checkpoint around each block,
# or around each pair?
#
# <details><summary>Answer</summary>
#
# Single blocks hold $48 + 12 = 60$ units, pairs $24 + 24 = 48$. Pairs need less, since 48 is more
# than $2r$.
# </details>
#
# **3.** A model has 24 blocks. You checkpoint each block except the last, without early stop. By
# what percentage do the blocks' FLOPs rise?
#
# <details><summary>Answer</summary>
#
# By $\frac13 (1 - \frac1{24})$, 31.9 %.
# </details>

# %% [markdown] id="end"
# ## What to remember
#
# | question | answer |
# |---|---|
# | how long a segment | $s = \sqrt{n/r}$ blocks: boundaries and inside take the same memory |
# | transformers | every block; beyond $2r$ blocks pairs, if activations make the peak |
# | price in FLOPs | up to a third of a step, or half with frozen weights; more in a first layer |
#
# Chapter 06c, `06c_planned_schedules`, plans unequal stages.
