# %% [markdown] id="title"
# # The claims court
#
# The documents that this course began with make 85 claims. They contradict each other, and some of
# them are wrong. Each one has been settled in a chapter or a lab, by a number that a cell computed.
# Here they all stand, each with its verdict and the cell to look at. But first: your own ten.
#
# **Budget:** 20 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from collections import Counter

import pandas as pd

from tutorial_lib import claims, guesses

pd.set_option("display.max_colwidth", None)  # show questions whole

# %% [markdown] id="ask"
# ## The ten questions again
#
# You answered them in chapter 00. Answer once more, from what you know now, before you go on.

# %% id="questions"
asked = pd.DataFrame(guesses.questions(), index=range(1, 11))
asked[["question", "a", "b", "c"]]

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
mine = pd.DataFrame(
    guesses.kept(), index=map(str, asked.index), columns=["before", "after"]
)
mine.index = asked.index
for when, letters in mine.items():
    if letters.notna().any():
        print(f"{when} the course: {(letters == asked.answer).sum()} of 10")
asked[["question", "answer", "claim"]].join(mine.fillna(""))

# %% [markdown] id="court-text"
# ## All 85
#
# How to read the table:
#
# - **holds**: true as it is said.
# - **holds if**: true under a condition, which the sentence names. Many published numbers are of
#   this kind: they are true for one model, one kernel, one precision. Some of them are only near.
# - **wrong**: false as it is said.
#
# *Counted* bytes are those of tensors, exact on every machine. *Predicted* ones are those of a
# GPU's kernels, worked out without running them. *Emulated* ones come from PyTorch's own CUDA
# allocator, while no kernel ran. *Measured* ones come from a real device. *Computed* are other
# values, such as a gradient or an accuracy, and *cited* ones stand in a source that the chapter
# names. No number in the table is typed: each is in the output of the cell that the link names.

# %% id="tally"
court = claims.court()
settled = {verdict.claim: verdict.verdict for verdict in court}
print(f"{len(settled)} of {len(claims.claims())} claims are settled")
pd.DataFrame({"claims": Counter(settled.values())}).loc[list(claims.VERDICTS)]

# %% id="court"
court

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
# - Griewank (1992), *Achieving logarithmic growth of temporal and spatial complexity in reverse
#   automatic differentiation*; Griewank and Walther (2000), *Algorithm 799: revolve*: the binomial
#   schedules of chapter 06.
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
