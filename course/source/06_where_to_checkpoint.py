# %% [markdown] id="title"
# # Where to checkpoint
#
# "Put a checkpoint every $\sqrt n$ layers." Many tutorials say so, and most don't say why. For a
# transformer of typical depth the rule is wrong: it costs more memory and more FLOPs than a
# checkpoint around every block.
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
# Take a model of twelve equal blocks, cut into three **segments** of four, of which the first two
# are checkpointed. (In the code, a tuple of blocks is a checkpointed segment, and a number by
# itself is a block that keeps everything.) The picture is a *schedule*: a row for each block, and
# time runs to the right. A triangle pointing up is a block's forward, one pointing down is its
# backward, and a hollow one is a forward that runs again.

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
# 1. its **boundary** (gray), the input of its first block, waits from forward until its backward;
# 2. its **inside** (pink) is in memory while the segment goes backward, and is freed before the
#    next segment's turn.
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
# With $n$ blocks in segments of $s$ blocks there are $n/s$ boundaries, and one inside at a time:
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
# **Write.** $m(s)$ in bytes. Its lowest value must be $2a\sqrt{nr}$, as above.


# %% id="on-paper"
def on_paper(segment, num_blocks, ratio):
    """Bytes held for backward, on paper; a block's input has `x.nbytes`."""
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
    assert lowest == 8, f"{lowest:g} a for n = 16, r = 1, s = 4, and not 2 a sqrt(16)."
    pairs = on_paper(2, 24, 16) / x.nbytes
    assert pairs == 44, (
        f"12 boundaries and 2 r, for r = 16, are 44 a and not {pairs:g} a."
    )
    fives = on_paper(5, 24, 1) / x.nbytes
    assert fives == 9.8, (
        f"24/5 boundaries and 5 r, for r = 1, are 9.8 a, not {fives:g} a."
    )


# %% id="formula"
def is_best(length, n, k):  # within 5 % of the best whole length
    best = min(on_paper(s, n, k) for s in range(1, n + 1))
    return on_paper(length, n, k) <= 1.05 * best


grid = [(n, k) for n in (12, 24, 32, 48, 80, 126) for k in (1, 2, 4, 8, 16, 34)]
roots = sum(is_best(n**0.5, n, k) for n, k in grid)
print(f"sqrt(n) blocks need least, within 5 %, in {roots} of {len(grid)} depths and r")
lengths = (1, 2, 4, 5, 8, 24)
curves = {f"r = {k}": {s: on_paper(s, 24, k) for s in lengths} for k in (1, 4, 16)}
title = "24 blocks on paper: the larger r, the shorter the best segment"
plots.growth(curves, xlabel="blocks in a segment", title=title, predicted=list(curves))

# %% [markdown] id="formula-read"
# For $r = 1$ the lowest point is at segments of five blocks, near $\sqrt{24}$. For $r = 16$ the
# curve only rises, so **a checkpoint around every block** needs the least memory.
#
# A length is a whole number. Segments of two need less memory than single blocks if $n/2 + 2r < n +
# r$, that is, if $n > 2r$. Segments of three need less than segments of two if $n > 6r$. With all
# tensors in one dtype $r$ is 16, so these limits are 32 and 96 blocks. Under bf16 autocast, the
# usual setting, most of the inside is in bfloat16, but boundaries stay in float32, so $r$ is 9 and
# the limits are 18 and 54 blocks. The rest of this chapter is in float32.
#
# A model also has logits. With a vocabulary of $V$ and a width of $C$, the logits and their
# gradient take as much memory as $2V/C$ block inputs. They are in memory before the blocks'
# backward begins, together with all boundaries. So if they are larger than one inside, they set the
# peak. Move the sliders.

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
    "title": "On paper, in inputs of a block",
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
            *plots.formulas(words="'best: ' + datum.least.s + ' in a segment, peak ' "
                "+ datum.least.peak + ', FLOPs +' "
                "+ format(datum.least.more, '.0f') + ' %'")],
         "mark": {"type": "text", "x": 8, "y": 10, "align": "left",
                  "fontWeight": "bold"},
         "encoding": {"text": {"field": "words"}}},
    ],
}  # fmt: skip
figure

# %% [markdown] id="predict-sqrt"
# **Predict.** Our GPT has 24 blocks. `sqrt` makes five segments of about five blocks. How many
# times the activation memory of `per-block`, segments of one, will it need?

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
print(f"peaks, of plain: {of_plain['per-block']:.0%} with one a block, "
      f"{of_plain['every-24']:.0%} with one around all")  # fmt: skip
title = "GPT of 24 blocks: single blocks hold the least, recomputed tensors included"
figure = plots.growth(
    both, xlabel="blocks in a segment", title=title, predicted=["on paper"]
)
figure.mark(curve[5], None if guess is None else guess * curve[1])

# %% [markdown] id="measured-read"
# The counted curve rises like the formula's. It's higher, since the formula leaves out the logits,
# their gradient, and temporary tensors. The last point is one checkpoint around all 24 blocks. It
# saves nothing here: the whole inside comes back at once, for a third more arithmetic. But a script
# that reads memory right after forward reports a success, because this model then holds next to
# nothing.
#
# A single checkpoint does save memory in two cases:
#
# - The logits are large, and the checkpoint is around all blocks but not around head and loss. Then
#   the blocks' activations and the logits are never in memory together.
# - Your loop writes `out = model(...)` and `out.loss.backward()`, so the plain step holds
#   `out.logits` through backward. A checkpoint that includes the loss and returns only the loss
#   frees them. (So does `del out.logits`, at no cost.)
#
# Do deeper models need segments of two, as the formula says? In the next table the unit is a
# block's input. *Whole step* is a step's peak, weights and gradients included, with
# `set_to_none=True`. *Gradients stay* is that peak with gradients in memory from the start, as in
# accumulation from the second micro-batch on. The third model has few blocks, but a large
# vocabulary.

# %% id="deeper"
# @title Three models, two lengths: run this cell; open it to look
rows, models = {}, {"24 blocks": gpt, "48 blocks": GPT(GPTConfig(num_layers=48))}
models["12 blocks, V = 4096"] = GPT(GPTConfig(vocab_size=4096, num_layers=12))
for name, model in models.items():
    for way in ("per-block", "every-2"):
        held, whole = held_for_backward(way, model), measured(way, model).peak_bytes
        stay = measured(way, model, keep_gradients=True).peak_bytes
        model.zero_grad()
        sizes = (held, whole, stay)
        rows[name, way] = [f"{size / x.nbytes:.1f}" for size in sizes]
columns = ["activations", "whole step", "gradients stay"]
print(f"equal at 2 r = {2 * r:.0f} blocks")
pd.DataFrame(rows, index=columns).T.rename_axis(["model", "segments"])

# %% [markdown] id="deeper-read"
# For activations the formula is right, and for the whole step too if gradients stay: single blocks
# need less memory in the model of 24 blocks, segments of two in the model of 48. But if gradients
# are set to `None`, single blocks need less for both models' whole step.
#
# Why? As backward goes on, boundaries are freed and gradients are added. A block of width $h$ has
# about $12h^2$ weights, and its boundary has $h$ elements for each token. So with fewer than $12h$
# tokens in a micro-batch (all one dtype), the gradients grow faster than the boundaries shrink, and
# the peak comes at the end of backward. No boundary is left then, so single blocks win, because
# they rebuild the fewest activations at once. From $24h$ tokens on, the limit is $2r$ blocks;
# between $12h$ and $24h$ it's higher.
#
# In the third model the logits and their gradient are larger than the insides of two blocks, so the
# peak comes before any segment is recomputed. There, segments of two save a few boundaries and
# little memory. Lower the logits first: chapter 10d computes them in chunks.
#
# The rule for a transformer: **checkpoint every block; beyond $2r$ blocks try segments of two.**
# They help where boundaries dominate the peak: many tokens, frozen weights, or gradients that stay.
# Measure $r$ for your block and your dtypes.
#
# **Predict.** A Llama block has a gated MLP: three matrices in place of two, and an elementwise
# product of two wide tensors. What is its $r$ in pure bfloat16?

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
print(f"weights frozen, LoRA beside them: r = {ratios['LoRA']:.1f}")

# %% [markdown] id="modern-read"
# Companion [06b](06b_common_advice.ipynb) has a case of $r = 1$: a chain of sines, whose memory in
# $\sqrt n$ segments grows with the square root of the depth.

# %% id="verdicts-length"
claims.Verdicts(
    claims.Verdict(
        "A06",
        "holds if",
        "Every sqrt(n) layers is best where a layer keeps its input alone, not in a "
        "transformer.",
        f"r = {r:.0f}: {sqrt_ratio:.1f} times the memory of one around each block",
        "counted",
        "measured-sqrt",
        held=(roots, len(grid), "depths and r"),
    ),
    claims.Verdict(
        "E03",
        "holds if",
        "The best number of segments is sqrt(n r), which is sqrt(n) for r = 1 alone.",
        f"best length: {best['r = 1']} for r = 1 on paper, {best['counted']} counted",
        "counted",
        "measured-figure",
        held=(roots, len(grid), "depths and r"),
    ),
    claims.Verdict(
        "A07",
        "built",
        "One around each block cuts the peak. One around the whole model does only "
        "where the logits are large. With the loss inside it never does, unless the "
        "loop held the logits before and now holds the loss alone.",
        f"peak {of_plain['per-block']:.0%} of plain with one a block, "
        f"{of_plain['every-24']:.0%} with one around all",
        "counted",
        "measured-figure",
    ),
)

# %% [markdown] id="what-does-it-cost"
# ## What does it cost?
#
# Some tutorials derive the price like this: there are $k$ segments, each recomputes $n/k$ blocks,
# so the overhead is $k \cdot (n/k) / n = 1$, "but in practice only 30 %". The 1 is right, but it
# means one more *forward*. A linear layer's forward is one matmul, and its backward is two, for the
# gradients of its input and its weight. So forward is a third of a step, and one more forward adds
# a third. Here is the count:

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
# @title Counted, beside what a source says: run this cell; open it to look
before = held_for_backward("none")
saves = {way: 100 * (1 - held_for_backward(way) / before) for way in ways}
said = {"per-block": "70 / 50", "every-2": "50 / 30", "sqrt": "60 / 25"}
said["attention-only"] = "40 / 15"
columns = {
    "memory saved, %": saves,
    "FLOPs more, %": adds,
    "a source says, % / %": said,
}
pd.DataFrame(columns).loc[list(ways)].round(1).fillna("")

# %% [markdown] id="flops-read"
# With long segments the price is nearly a third. (Embedding and head are not recomputed.) With one
# block per segment it's much lower, because PyTorch stops a recomputation as soon as backward has
# what it needs, and backward doesn't need the output of a segment's last matmul. That matmul, the
# second half of the MLP, is a third of the arithmetic of a block's linear layers. So if every
# segment is checkpointed, the shortest segments cost the fewest FLOPs, and for our GPT $\sqrt n$
# loses in both memory and FLOPs. But if a block ends in dropout, or in a norm as BERT's does, its
# last matmul has to run again.
#
# **The price is a third only if a layer's backward is two matmuls.** It's higher where backward is
# one: in a frozen linear layer, whose weight needs no gradient, and in a first layer, whose input
# (the data) needs none. Frozen layers *before* the first that trains have no backward at all. Begin
# a segment after them, because a segment that mixes frozen and trained layers recomputes the frozen
# ones too.
#
# **Predict.** Llama's weights are frozen, and each linear layer has LoRA matrices. By what
# percentage do checkpoints around every block raise a step's FLOPs?

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
# The *last* segment need not be checkpointed: backward begins with it, so its inside would be
# dropped and recomputed immediately. If you keep it, the price falls to $\frac13 (1 - \frac1k)$,
# and on paper the peak stays the same. But a model has a head and a loss after its last block, and
# then the kept inside is in memory together with the logits and their gradient:

# %% id="last-free"
all_four = planning.Plan(blocks, ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)))
but_the_last = planning.Plan(blocks, ((0, 1, 2), (3, 4, 5), (6, 7, 8), 9, 10, 11))
for name, run in (("all four", all_four), ("all but the last", but_the_last)):
    print(f"{name}: peak {run.peak_bytes} units, time {run.overhead:+.1%}")
models["4 blocks, V = 1024"] = GPT(GPTConfig(vocab_size=1024, num_layers=4))
for name, model in models.items():
    every, kept = (held_for_backward(w, model) for w in ("per-block", "all-but-last"))
    print(f"{name}, head and loss too: {kept / every - 1:+.0%}")

# %% [markdown] id="last-measured-read"
# If the last block is recomputed, its inside comes back after the logits are freed. If it isn't,
# inside and logits are in memory at once, which costs most when they are about equally large. So
# leave the last block without a checkpoint only if you have measured that it's free.

# %% id="verdicts-price"
tried = {"more arithmetic": adds | adapted}
claims.Verdicts(
    claims.Verdict("A05", "holds if", "Where every layer passes a gradient on, one "
        "more forward is at most a third of a step if all weights train, at most half "
        "if they are frozen; other layers can add more. Early stop makes it less.",
        f"{adds['per-block']:.0f} to {max(adds.values()):.0f} % more FLOPs, "
        f"{adapted['Llama, LoRA']:.0f} % with LoRA", "counted", "flops-lora",
        tried=tried),
    claims.Verdict("D05", "holds if", "A third is the limit of long segments if all "
        "weights train and no layer reads the data; with one block to a segment early "
        "stop saves a good part, unless the block ends in dropout or a norm. A GPU's "
        "seconds follow only where it is busy: else the CPU's launches decide.",
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
# Could we keep no boundary at all, only the model's input? To go backward through block 24 we run
# blocks 1 to 24; for block 23, blocks 1 to 23, and so on.
#
# **Predict.** How many block forwards do 24 blocks take in all, the first pass included?

# %% id="guess-nothing"
guess = None  # forwards

# %% [markdown] id="write-nothing"
# **Write.** The plan, as nested tuples: a number is a block that is kept when its turn comes, a
# tuple is a segment that runs again. One block makes `(0,)`, two `((0,), 1)`, three
# `(((0,), 1), 2)`.


# %% id="nothing-kept-plan"
def nothing_kept(num_blocks):
    """Plan of two parts: a segment, and the last block. The segment is planned alike.

    For two blocks that is `((0,), 1)`.
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
        assert repr(seen) == plan, f"{num_blocks} blocks make {plan}, and not {seen!r}."
    runs = sum(planning.Plan((block,) * 24, nothing_kept(24)).forward_executions)
    assert runs == 24 * 25 // 2, (
        f"24 blocks run {runs} times, and not 1 + 2 + ... + 24."
    )


# %% id="nothing-kept"
lazy = planning.Plan((block,) * 24, nothing_kept(24))
runs = sum(lazy.forward_executions)
print(f"{runs} forwards of 24 blocks, {runs / 24:.1f} of each; peak {lazy.peak_bytes} "
      f"units{beside(guess, runs)}")  # fmt: skip

# %% [markdown] id="nothing-read"
# The count is $n(n + 1)/2$: it grows with the square of the depth. A few boundaries in the right
# places avoid most of these forwards, and chapter 06c finds them.

# %% id="verdicts-nothing"
claims.Verdicts(
    claims.Verdict(
        "B06",
        "holds",
        "With nothing kept, the number of forwards grows with the square of the depth.",
        f"{runs} forwards of 24 blocks, {runs / 24:.1f} of each",
        "counted",
        "nothing-kept",
    ),
)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** There are 96 blocks with $r = 6$. How many blocks should a segment have, and what does the
# model hold then, in units of a block's input?
#
# <details><summary>Answer</summary>
#
# $s^* = \sqrt{96/6} = 4$. There are 24 boundaries, and an inside of $6 \cdot 4 = 24$ units: 48 in
# all, $2\sqrt{96 \cdot 6}$.
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
# **3.** Of 24 blocks, all but the last are checkpointed, and nothing stops early. By what
# percentage do the FLOPs of the blocks rise?
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
# | a block keeps only its input ($r = 1$) | segments of $\sqrt n$ |
# | price in FLOPs | up to a third of a step, or half with frozen weights; more in a first layer |
# | what lowers the price | early stop (short segments); a kept last segment (small head) |
# | nothing kept | a quadratic number of forwards |
#
# Companion [06b](06b_common_advice.ipynb) shows where $\sqrt n$ is right, and tests more advice.
# Chapter 06c, `06c_planned_schedules`, plans unequal stages.
