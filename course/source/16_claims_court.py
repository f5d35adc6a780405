# %% [markdown] id="title"
# # The claims court
#
# This course began with five documents, A to E. From them we listed 85 items: claims, published
# measurements, topics and code examples. Some of the claims contradict each other, and some are
# wrong. For each item, a cell in a chapter or lab computed a number, and that settled it. This
# chapter lists the verdicts, and links to those cells.
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
# You answered these questions in chapter 00. Before you read the verdicts, answer them again.

# %% [markdown] id="answer-text"
# Run the cell and click your choices, or write a letter in place of each `None`, as in `1: "b"`.
# Your answers are kept in `my_answers.json` next to this notebook.

# %% id="my-answers"
answers = {1: None, 2: None, 3: None, 4: None, 5: None}
answers |= {6: None, 7: None, 8: None, 9: None, 10: None}
guesses.keep("after", answers)

# %% [markdown] id="before-and-after-text"
# The table shows the right answers, and yours from before and after the course:

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
# Every verdict is one of the words in the next table. If a claim gives a figure, we tested it with
# many kernels, precisions, optimizers and ways to checkpoint, and with the source's own settings.
# If one sentence of a source gives several figures, they must all hold under the same condition. If
# a source says that a batch fits, the claim is right if that batch or a larger one fits in our
# test.

# %% id="words"
pd.Series(claims.WORDS, name="means").to_frame()

# %% [markdown] id="how-text"
# *Counted* bytes are the exact sizes of tensors, the same on every machine. *Predicted* bytes are
# what a GPU's kernels would need, worked out without running them. *Emulated* bytes come from
# PyTorch's own CUDA allocator, but no kernel ran. *Measured* values come from a real device.
# *Computed* means any other value, such as a gradient or an accuracy. *Cited* values are from a
# source that the chapter names.

# %% id="tally"
court = claims.court()
print(court.headline)
kinds = claims.claims("kind")
table = {kind: Counter() for kind in ("claim", "number", "code", "topic")}
for claim, word in {verdict.claim: verdict.verdict for verdict in court}.items():
    table[kinds[claim]][word] += 1
pd.DataFrame(table).reindex(list(claims.WORDS)).fillna(0).astype(int).replace(0, "")

# %% [markdown] id="picture-text"
# ## Every figure, next to what we found
#
# Each row is about one figure (a number) from a source. The orange bar around 1 is this figure, or
# its range, widened by the error that we allow. Each tick is our result under one condition,
# divided by the source's figure. A tick on the bar confirms the figure. A tick at the picture's
# edge may be farther out than the picture shows. (For E02's batch we only asked whether three times
# as many samples fit, so its ticks are at 1.)

# %% id="picture"
lines = [(v, f) for v in court if v.tried for f in claims.figures(v.claim)]
figure, axes = new_figure("Found over claimed (logarithmic)", height=0.18 * len(lines))
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
    f"{len(lines)} figures from sources, each with the found over the claimed value."
)
figure

# %% [markdown] id="quotes-text"
# These are the sources' own words, and where to find them:

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
# ## Which verdicts are most open to doubt?
#
# - **E06** gives batch sizes for SD 2.1 (4 without checkpoints, 12 with them) and the share of
#   memory saved. It doesn't give the image size, the kernel or the optimizer. With 8-bit states and
#   the latents of the source's code, we found the same share. The batches count as right because
#   they fit. If you read 4 and 12 as the largest that fit, the verdict is *partly*.
# - **A13** gives 24, 8 and 5 GB for BERT-Large. Each figure is about right under some condition,
#   but no condition gives all three. If you allow each figure its own condition, the verdict is
#   *holds if*.
# - **B01 and B02** each give two memory figures for BERT-Large, read from a GPU's driver in 2022.
#   The driver also counts memory that the allocator kept but didn't use, and we can only guess how
#   much that was. So each of our results is close to its figure, but the difference between our two
#   results isn't close to the difference between the two figures. We don't judge B01's loss of
#   speed, since it has to be measured on a GPU.
# - **D11 and D13** depend on how you read the source. D11 promises to save memory "at the cost of
#   proportionally more recomputation". We count "proportionally" as a figure. If you don't, D11's
#   verdict is *holds if*. D13 says which of 32 layers to checkpoint, and we found it true only for
#   a U-Net. If you don't accept a U-Net as an example, D13's verdict is *wrong*.
#
# We judged only a part of one more claim, D15. It counts warm-up "in samples", but the run in 09b
# needs no warm-up, so that run can't show whether samples are the right unit.

# %% [markdown] id="lessons"
# ## What the verdicts have in common
#
# - **A percentage of what?** Even on one model, a technique saves different shares of the
#   activations, of the peak and of the reserved memory.
# - **A number depends on the kernel.** Fused attention keeps no scores, so in chapter 11
#   checkpointing saves a smaller share with fused than with eager attention.
# - **Where is the peak?** A lever that lowers memory only at other moments doesn't help.
# - **"The same training" is a claim too.** Batch statistics, random numbers, mean losses over rows
#   of unequal length, and contrastive losses can silently make it false.
#
# ## Where the ideas come from
#
# The five documents are: A, *Gradient Checkpointing vs Gradient Accumulation: Memory Optimization
# Techniques*; B, *Gradient Accumulation and Gradient Checkpointing*; C, the outline *Gradient
# Checkpointing in Large Model Training*; D, *Gradient Accumulation and Gradient Checkpointing
# Explained*; E, the chapter *Gradient Checkpointing* of a course on generative models. The papers
# are:
#
# - Griewank (1992), *Achieving logarithmic growth of temporal and spatial complexity in reverse
#   automatic differentiation*; Griewank and Walther (2000), *Algorithm 799: revolve*: the binomial
#   schedules of chapter 06c.
# - Chen, Xu, Zhang and Guestrin (2016), *Training deep nets with sublinear memory cost*: segments
#   of $\sqrt n$ layers, for neural networks.
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
# - Ask three questions about the next "saves 70 %": of what, where is the peak, which kernel?
#
# If you have a GPU, the notebook `extra_record_your_gpu` measures what the course predicts for it.
