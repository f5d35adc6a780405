# %% [markdown] id="title"
# # The claims court
#
# This course began with five documents, A to E, and a list of 85 things that they say. Some are
# claims, some are published measurements, and some are only topics or code examples. They
# contradict each other, and some of them are wrong. Each has been settled in a chapter or a lab, by
# a number that a cell computed. Here they all stand, each with its verdict and the cell to look at.
# But first: your own ten.
#
# **Budget:** 20 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from collections import Counter

import numpy as np
import pandas as pd

from tutorial_lib import claims, guesses
from tutorial_lib.plots.base import new_figure

pd.set_option("display.max_colwidth", None)  # show questions whole

# %% [markdown] id="ask"
# ## The ten questions again
#
# You answered them in chapter 00. Answer once more, from what you know now, before you go on.

# %% [markdown] id="answer-text"
# Run the cell and press your choices, or write a letter in place of each `None`, as in `1: "b"`.
# They stay in `my_answers.json` beside this notebook.

# %% id="my-answers"
answers = {1: None, 2: None, 3: None, 4: None, 5: None}
answers |= {6: None, 7: None, 8: None, 9: None, 10: None}
guesses.keep("after", answers)

# %% [markdown] id="before-and-after-text"
# The right letters, beside yours from before the course and from today:

# %% id="before-and-after"
asked = pd.DataFrame(guesses.questions(), index=range(1, 11))
mine = pd.DataFrame(
    guesses.kept(), index=map(str, asked.index), columns=["before", "after"]
)
mine.index = asked.index
for when, letters in mine.items():
    if letters.notna().any():
        print(f"{when} the course: {(letters == asked.answer).sum()} of 10")
asked[["question", "answer", "claim"]].join(mine.fillna(""))

# %% [markdown] id="court-text"
# ## The words, and the count
#
# The words of the court are defined once, for all chapters. A claim that names a figure was tried
# under many conditions: kernels, precisions, optimizers, ways to checkpoint, and those of the
# source itself. The values then decide the word: if a verdict contradicts its numbers, the chapter
# does not build. If one sentence of a source gives several figures, one condition must
# give them all. A source's
# "this batch fits" is a lower bound: it is right if ours is as large or larger.

# %% id="words"
pd.Series(claims.WORDS, name="means").to_frame()

# %% [markdown] id="how-text"
# *Counted* bytes are those of tensors, exact on every machine. *Predicted* ones are those of a
# GPU's kernels, worked out without running them. *Emulated* ones come from PyTorch's own CUDA
# allocator, while no kernel ran. *Measured* ones come from a real device. *Computed* are other
# values, such as a gradient or an accuracy, and *cited* ones stand in a source that the chapter
# names. No number in the table is typed: each is in the output of the cell that the link names.

# %% id="tally"
court = claims.court()
print(court.headline)
kinds = claims.claims("kind")
table = {kind: Counter() for kind in ("claim", "number", "code", "topic")}
for claim, word in {verdict.claim: verdict.verdict for verdict in court}.items():
    table[kinds[claim]][word] += 1
pd.DataFrame(table).reindex(list(claims.WORDS)).fillna(0).astype(int).replace(0, "")

# %% [markdown] id="picture-text"
# ## Every figure, beside what we found
#
# One line is one figure of a source. The bar at 1 is the figure, or its range, widened by the error
# that is allowed. Each tick is what one condition gave, divided by the figure. Ticks on the bar
# make the figure true. Those at the edge of the picture lie beyond it. (Of E02's batch we only
# asked whether three times as many samples fit, so its ticks stand at the figure itself.)

# %% id="picture"
lines = [(v, f) for v in court if v.tried for f in claims.figures(v.claim)]
figure, axes = new_figure("Found by claimed (logarithmic)", height=0.18 * len(lines))
for y, (verdict, said) in enumerate(lines):
    middle = said["low"] if np.isinf(said["high"]) else (said["low"] + said["high"]) / 2
    bar = (np.array([said["low"], said["high"]]) / middle * [0.95, 1.05]).clip(0.1, 8)
    axes.plot(bar, [y, y], color="tab:orange", lw=5, alpha=0.5, solid_capstyle="butt")
    found = np.array([*verdict.tried[said["part"]].values()]) / middle
    axes.plot(found.clip(0.1, 8), [y] * len(found), "|", color="black", markersize=7)
names = [
    f"{verdict.claim} {said['part']} ({verdict.verdict})" for verdict, said in lines
]
axes.set_yticks(range(len(lines)), names, fontsize=7)
axes.set(xscale="log", xlim=(0.09, 9), ylim=(len(lines), -1))
ratios = (0.1, 0.2, 0.5, 1, 2, 5)
axes.set_xticks(ratios, map(str, ratios))
axes.minorticks_off()
figure.alt = (
    f"{len(lines)} figures of sources, each with what was found by what it says."
)
figure

# %% [markdown] id="quotes-text"
# And the words of the sources, with their places:

# %% id="quotes"
quoted = {(v.claim, said["quote"]): (said["place"], v.verdict) for v, said in lines}
rows = [(quote, *rest, claim) for (claim, quote), rest in quoted.items()]
columns = ["the source says", "where", "verdict", ""]
pd.DataFrame(rows, columns=columns).set_index("the source says")

# %% [markdown] id="court-table-text"
# ## The verdicts

# %% id="court"
court

# %% [markdown] id="doubt"
# ## The most open to doubt
#
# - **E06**, the largest batches and the share of SD 2.1. The source names neither pixels nor kernel
#   nor optimizer. With the latents of its own code we found its share, with 8-bit states. Its
#   batches of 4 and 12 count as right because they fit. But far larger ones fit, too: whoever reads
#   4 and 12 as the largest would say *partly*.
# - **A13**, BERT-Large in 24, 8 and 5 GB. Each figure is near the truth under a condition of its
#   own, and the three stand in one sentence. Whoever allows each its own condition would say *holds
#   if*.
# - **B01 and B02**, two figures each of BERT-Large, read off a driver in 2022. The driver counts
#   memory that the allocator kept and did not use, and we can only guess how much that was. So the
#   levels are near, and the drops between them are not. B01's loss of speed is not judged at all:
#   accumulation adds no FLOPs, and what else it costs only a GPU can say.
# - **D11 and D13**, whose words depend on how you read the source. D11 promises memory "at the
#   cost of proportionally more recomputation", and we count that as a figure. Whoever leaves it
#   out would say *holds if*. D13 speaks of 32 layers. Whoever allows no U-Net would say *wrong*.
#
# A measurement on a GPU would settle the third. One claim is not judged whole, either: D15's
# warm-up "in samples". The run of 09b needs no warm-up, so it cannot say in what to count one.

# %% [markdown] id="lessons"
# ## What the verdicts have in common
#
# - **A percentage needs its "of what".** Of the activations, of the peak, of what the card
#   reserved: one technique on one model saves a different share of each.
# - **A number needs its kernel.** Fused attention has no scores to save. In chapter 11 one call
#   saves a smaller share with it than with eager attention.
# - **Where is the peak?** A lever that lowers another moment changes nothing.
# - **"The same training" is a claim too.** Batch statistics, random numbers, ragged losses and
#   contrastive losses each break it in silence.
#
# ## Where the ideas come from
#
# The five documents: A, *Gradient Checkpointing vs Gradient Accumulation: Memory Optimization
# Techniques*; B, *Gradient Accumulation and Gradient Checkpointing*; C, an outline, *Gradient
# Checkpointing in Large Model Training*; D, *Gradient Accumulation and Gradient Checkpointing
# Explained*; E, the chapter *Gradient Checkpointing* of a course on generative models. And the
# papers:
#
# - Griewank (1992), *Achieving logarithmic growth of temporal and spatial complexity in reverse
#   automatic differentiation*; Griewank and Walther (2000), *Algorithm 799: revolve*: the binomial
#   schedules of chapter 06c.
# - Chen, Xu, Zhang and Guestrin (2016), *Training deep nets with sublinear memory cost*: the square
#   root for neural networks.
# - Gruslys et al. (2016), *Memory-efficient backpropagation through time*: the schedules for
#   recurrent networks.
# - Jain et al. (2020), *Checkmate*; Beaumont et al. (2019), *Optimal checkpointing for
#   heterogeneous chains*: plans for unequal layers.
# - Kirisame et al. (2021), *Dynamic tensor rematerialization*: eviction while the model runs.
# - Korthikanti et al. (2022), *Reducing activation recomputation in large transformer models*: the
#   bytes of a transformer's layer, and selective recomputation.
# - Gao et al. (2021), *Scaling deep contrastive learning batch size under memory limited setup*:
#   cached gradients.
# - Goyal et al. (2017), *Accurate, large minibatch SGD*; Hoffer et al. (2017), *Train longer,
#   generalize better*; McCandlish et al. (2018), *An empirical model of large-batch training*:
#   learning rates and batch sizes.
# - Rajbhandari et al. (2020), *ZeRO*; Zhao et al. (2023), *PyTorch FSDP*; Huang et al. (2019),
#   *GPipe*; Narayanan et al. (2021), *Efficient large-scale language model training on GPU
#   clusters*: many devices.

# %% [markdown] id="end"
# ## What you can now do
#
# - Quote a verdict with its number, its condition and the cell that shows it.
# - Meet the next "saves 70 %" with three questions: of what, where is the peak, which kernel?
#
# If you have a GPU, `extra_record_your_gpu` puts measured numbers beside the predicted ones.
