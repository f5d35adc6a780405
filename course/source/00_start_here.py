# %% [markdown] id="title"
# # Training that fits
#
# Llama-2-7B takes 12.6 GiB in bfloat16, so it fits on a GPU with 16 GiB. Train it the usual way,
# with AdamW and mixed precision, and it doesn't even fit on one with 80 GiB. What takes the rest,
# more than 67 GiB? How much of that can you get back, and at what price? In this course you find
# out with your own numbers, with or without a GPU.
#
# **Budget:** 40 minutes, 1 GiB of memory, no GPU needed.

# %% [markdown] id="promise"
# By the end of the course you will have
#
# - accounted for every byte of a training step, and predicted the peak of models too large for your
#   machine;
# - written gradient checkpointing yourself, with the same gradients, bytes and time as PyTorch's;
# - written gradient accumulation that gives exactly the large batch's gradients, and listed the
#   cases in which it can't;
# - tested published claims about both techniques.
#
# ## Three ways in
#
# - **Tonight** (30 minutes), when your model does not fit: [My model does not fit](tonight.ipynb)
#   predicts its memory, tries ways to reduce it, and writes a plan for your script.
# - **An evening** (2 hours), for the ideas: this notebook (40 minutes),
#   [04](04_checkpoint_from_scratch.ipynb) up to *All six fixed* (45),
#   [08](08_accumulation_from_scratch.ipynb) up to *The last window* (25), and in [Lab
#   06](../labs/lab06_exact_accumulation.ipynb) the first exercise (10).
# - **The course** (about 35 hours, 15 of them labs): each notebook ends with a link to the next
#   one. Chapter 15 is an appendix, and isn't counted in the 35 hours.

# %% id="imports"
import textwrap
from functools import partial

import pandas as pd
import torch
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, device, guesses, memory, plots
from tutorial_lib.instruments import segments
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB

# %% [markdown] id="ask"
# ## Ten questions first
#
# People who train models every week disagree about these questions. Answer quickly, from what you
# believe today. Later chapters measure the answers. Chapter 16 asks the questions again and shows
# your old and new answers side by side.

# %% [markdown] id="answer-text"
# Run the cell and click your choices. They're saved next to this notebook, in `my_answers.json`,
# and sent nowhere. If no buttons appear, write a letter in place of each `None`, as in `1: "b"`,
# and run the cell again.

# %% id="my-answers"
answers = {1: None, 2: None, 3: None, 4: None, 5: None}
answers |= {6: None, 7: None, 8: None, 9: None, 10: None}
guesses.keep("before", answers)

# %% [markdown] id="a-model"
# ## One training step
#
# How much memory does a step of training take, compared with the model itself? The next cell makes
# three things: a laptop-sized GPT with GPT-2's architecture, its optimizer, and one batch of
# tokens.

# %% id="model"
torch.manual_seed(0)
config = GPTConfig(
    vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256
)
model = GPT(config)
# foreach updates all parameters together: the default on a GPU, but not on a CPU
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)
f"{sum(p.numel() for p in model.parameters()):,} parameters"

# %% [markdown] id="write-step"
# **Write.** The four lines of `step`, which does one update with the loss `model.loss(tokens)`. In
# your working copy (the version of this notebook with blanks), write them in place of
# `raise NotImplementedError`. Until you replace that `raise`, our solution runs instead; you'll
# find it in the folded cell below. Each chapter has a few such cells.


# %% id="step"
def step():
    """Do one update: clear the old gradients, forward, backward, optimizer."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    loss = model.loss(tokens)  # forward
    loss.backward()
    optimizer.step()
    ### END SOLUTION


# %% [markdown] id="predict-first"
# **Predict.** The parameters are float32, four bytes each. Call their total size in bytes P. How
# many times P does this step hold at its peak? Write your number in place of `None`. Even a wrong
# guess makes the result stick.

# %% id="guess-first"
guess = None  # times the size of the parameters

# %% id="measure-first"
report = memory.measure(step, model=model, optimizer=optimizer, label="small GPT")
report

# %% [markdown] id="read-first"
# Every line is *counted*: the meter watches each tensor's memory from allocation to release, so the
# bytes are exact, and the same on every machine. Here are the bytes in units of P:

# %% id="in-units-of-p"
P, old, states = (
    report.at_peak[kind] for kind in ("parameters", "gradients", "optimizer_state")
)
assert old < P / 100, "The peak includes old gradients: clear them first."
assert round(states / P) == 2, "There was no update: end with optimizer.step()."
in_p = {
    name: round(size / P, 2) for name, size in report.at_peak.items() if size >= P / 100
}
print(
    f"the peak is {report.peak_bytes / P:.1f} "
    f"P{guesses.beside(guess, report.peak_bytes / P)}"
)
pd.DataFrame({"P": in_p})

# %% [markdown] id="read-in-p"
# The peak is eight and a half P, and the parameters account for only one. AdamW keeps two numbers
# for each parameter, so its states are two more P. The largest part isn't in the model's file at
# all: it's the *activations*, the tensors that the forward pass keeps for the backward pass.
#
# But where are the gradients? Look at the whole step.

# %% id="timeline"
report.figure()

# %% [markdown] id="read-timeline"
# The forward pass builds a ramp of activations. The backward pass walks down that ramp: it frees
# each activation after its use, while the gradients grow. The peak is at the start of backward,
# when hardly any parameter has its gradient yet. At the end of backward all gradients exist, and no
# activation is left. Then comes the update. It briefly needs one more P for a temporary copy,
# because the optimizer's `foreach` mode updates all parameters at once.
#
# This course's two techniques both lower the ramp. **Gradient checkpointing** discards activations
# and recomputes them when the backward pass needs them. **Gradient accumulation** sends the batch
# through the model in parts.

# %% [markdown] id="flatten-predict"
# ## The ramp, flattened
#
# Now put PyTorch's `checkpoint` around each of the twelve blocks (`per-block` in the code). In
# chapter 04 you'll write your own `checkpoint`.
#
# **Predict.** The activations are more than half of the peak, and checkpointing removes nearly all
# of them. By what percentage does the peak fall?

# %% id="guess-flatten"
guess = None  # % of the peak

# %% id="flatten"
with segments.applied(model, "per-block"):
    frugal = memory.measure(
        step, model=model, optimizer=optimizer, label="per-block checkpointing"
    )
figure = frugal.figure(beside=report)
marked = None if guess is None else report.peak_bytes * (1 - guess / 100)
figure.mark(frugal.peak_bytes, marked)

# %% id="flatten-ratio"
saved = 100 * (1 - frugal.peak_bytes / report.peak_bytes)
print(f"the peak falls by {saved:.0f} %{guesses.beside(guess, saved)}")

# %% [markdown] id="read-flatten"
# The ramp is nearly gone. The small pink bumps are recomputed activations, one block at a time. But
# the peak is now the update, on the right, and checkpointing can't lower that. So the activations
# fell much more than the peak did. When you read that checkpointing "saves 70 %", ask: 70 % of
# what?

# %% id="flatten-slider"
# @title The ramp, block by block, with a slider: run this cell; open it to look
KINDS = ("activations", "recomputed", "gradients")


def in_mib(num_blocks):
    """Return a step's peak with some blocks checkpointed, and a curve of 80 points."""
    remade = partial(checkpoint, use_reentrant=False)
    with segments.called_through(remade, model.blocks[:num_blocks]):
        curve = memory.measure(step, model=model, optimizer=optimizer).curve()
    frame = pd.DataFrame(curve).fillna(0) / 2**20
    frame["rest"] = frame.sum(axis=1) - frame[[*KINDS]].sum(axis=1)
    bins = pd.Series(frame.index * 80 // len(frame), index=frame.index)
    points = frame[["rest", *KINDS]].groupby(bins).max().round(1)
    return frame[["rest", *KINDS]].sum(axis=1).max(), points


ramps = {number: in_mib(number) for number in range(len(model.blocks) + 1)}
figure = plots.growth(
    {"peak": {number: peak * 2**20 for number, (peak, _) in ramps.items()}},
    xlabel="checkpointed blocks, of twelve",
    title="Each checkpointed block lowers the peak, down to a floor",
    log=False,
)
values = [
    {"k": number, "peak": round(peak), "point": [*range(80)], **points.to_dict("list")}
    for number, (peak, points) in ramps.items()
]
figure.moving = {
    "title": "One step in time: move the slider",
    "params": [plots.slider("blocks", "blocks checkpointed", 0, range(len(ramps)))],
    "data": {"values": values},
    "transform": [{"filter": "datum.k == blocks"}],
    "layer": [
        {"transform": [{"flatten": ["point", "rest", *KINDS]},
                       {"fold": ["rest", *KINDS], "as": ["kind", "MiB"]}],
         "mark": {"type": "area", "interpolate": "step"},
         "encoding": {
            "x": {"field": "point", "type": "quantitative", "axis": None},
            "y": {"field": "MiB", "type": "quantitative", "title": "MiB",
                  "scale": {"domain": [0, round(ramps[0][0])]}},
            "color": {"field": "kind", "type": "nominal", "title": None,
                      "scale": {"domain": ["rest", *KINDS],
                                "range": ["#999999", *map(plots.COLORS.get, KINDS)]}}}},
        {"transform": plots.formulas(words="'the peak is ' + datum.peak + ' MiB'"),
         "mark": {"type": "text", "x": 5, "y": 8, "align": "left"},
         "encoding": {"text": {"field": "words"}}},
    ],
}  # fmt: skip
figure

# %% [markdown] id="real-model"
# ## A model that your machine could not hold
#
# Take GPT-2 XL as the transformers library builds it, with 1.56 billion parameters, and a batch of
# sixteen sequences of 1024 tokens. The same meter now runs the step on *fake tensors*, which have a
# shape and a dtype but no memory. Nothing is downloaded or allocated.
#
# **Predict.** How many GiB does the step need at its peak?

# %% id="guess-xl"
guess = None  # GiB


# %% id="fake-step"
def gpt2_xl():
    loss, model = Recipe("gpt2-xl", 16, seq=1024).make_loss()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step, model, optimizer


# %% id="predict-xl"
xl = memory.predict(gpt2_xl, label="GPT-2 XL, 16 x 1024")
print(f"{xl.peak_bytes / GIB:.0f} GiB{guesses.beside(guess, xl.peak_bytes / GIB)}")
xl

# %% [markdown] id="read-xl"
# Even two 80 GB GPUs together have less memory than that. The prediction assumes a GPU's *kernels*
# (a kernel is the code that runs one operation on a device). Chapter 03 shows why a CPU's kernels
# would keep more.
#
# This number is *predicted*, not *counted*. A third kind is *measured*: a real GPU's
# allocator reported it, and the GPU's name and the date are next to it.
#
# Can you trust a prediction? To test one, predict the small GPT's peak with a CPU's kernels, and
# subtract the peak that was counted above. The difference must be 0 bytes.
#
# **Write.** `small_gpt`, modeled on `gpt2_xl`.


# %% id="small-gpt"
def small_gpt():
    """Make the step counted above again, and return `step, model, optimizer`.

    The tokens may be zeros, (8, 128) and of type long: a fake tensor has no values.
    """
    ### BEGIN SOLUTION
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model.loss(torch.zeros(8, 128, dtype=torch.long)).backward()
        optimizer.step()

    return step, model, optimizer
    ### END SOLUTION


# %% id="trust"
predicted = memory.predict(small_gpt, kernels="cpu")
predicted.peak_bytes - report.peak_bytes

# %% [markdown] id="read-trust"
# For a CPU's kernels, prediction and count agree to the byte. That says nothing yet about a GPU:
# companion [10b](10b_published_measurements.ipynb) compares predictions with peaks measured on
# GPUs.
#
# ## Your own code
#
# `memory.measure` takes any function that does a training step. For a part of a step, use
# `with memory.watch(...)`. In a notebook, the magic `%%memory` in a cell's first line reports on
# that cell:

# %% id="magic"
# %load_ext tutorial_lib

# %% id="magic-forward"
# %%memory forward pass alone
logits = model(tokens)

# %% [markdown] id="read-magic"
# The last line, `left behind`, is a warning: the cell has ended, but all activations are still in
# memory. The variable `logits` keeps the graph alive, and the graph keeps the activations. In the
# same way, a training loop that collects its outputs in a list runs out of memory.

# %% id="let-go"
logits = None

# %% [markdown] id="how-labs-work"
# ## How checks and hints work
#
# The chapters in `course/` explain, measure, and leave you a few functions to write. A lab, in
# `labs/`, gives you a function's signature and a number to reach. You write three to fifteen lines
# and run the check below them. Suppose lab 01 asks for the bytes of a model's parameters, and this
# is your answer:


# %% id="a-wrong-answer"
def parameter_bytes(model):
    return sum(p.numel() for p in model.parameters())


# %% id="a-check"
try:
    checks.lab01.parameter_bytes(parameter_bytes)
except checks.CheckError as error:
    print(textwrap.fill(str(error), 80))

# %% [markdown] id="how-checks-read"
# A check says what it saw and what to try, but not the answer. Each exercise has three hints. Take
# them in order: the last is nearly the answer.
#
# The output of a cell marked `# NBVAL_IGNORE_OUTPUT` depends on your machine. Here is the first
# such cell:

# %% id="this-machine"
# NBVAL_IGNORE_OUTPUT
here = device.pick()
device.describe(here)

# %% [markdown] id="gpu-tier"
# If you have a GPU, the next cell runs the step there and reads CUDA's own allocator. Its report
# has one more line, `other`: bytes added because the allocator rounds sizes up, and *workspace*,
# the scratch memory of running kernels.

# %% id="on-the-gpu"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    model.to(here)
    tokens = tokens.to(here)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    print(
        memory.measure(
            step, model=model, optimizer=optimizer, label="small GPT on the GPU"
        )
    )

# %% [markdown] id="progress-text"
# ## How far you are
#
# The next cell lists the notebooks you have done, the blanks you have filled, and your points in
# the ten labs. It reads your working copy from disk, so save first.

# %% id="progress"
# NBVAL_IGNORE_OUTPUT
# %run -m tutorial_lib progress

# %% [markdown] id="next"
# ## Where to go
#
# Chapter 01, `01_where_memory_goes`, takes these numbers apart. After it, you can write the memory
# ledger of a seven-billion-parameter model on paper, as lab 01, `lab01_ledger`, asks.
