# %% [markdown] id="title"
# # Training that fits
#
# A model of seven billion parameters takes 12.6 GiB in bfloat16, so it fits on a card of 16 GiB.
# Train it the usual way, with AdamW and mixed precision, and it does not fit on a card of 80 GiB.
# What filled the other 67, which of it can you get back, and at what price? This course answers
# with numbers that you measure yourself, on this machine, with or without a GPU.
#
# **Budget:** 10 minutes, 1 GiB of memory, no GPU needed.

# %% [markdown] id="promise"
# By the end of the course you will have
#
# - accounted for every byte of a training step, and predicted the peak of models too large for
#   your machine;
# - written gradient checkpointing yourself, equal to PyTorch's own in gradients, bytes and time;
# - written gradient accumulation that equals the large batch exactly, and listed the cases in
#   which it does not;
# - put about eighty published claims on the two before a judge: your own measurements.
#
# The first measurement comes now.

# %% id="imports"
import torch

from tutorial_lib import checks, device, memory
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.training import Recipe

# %% [markdown] id="a-model"
# ## One training step
#
# A GPT with GPT-2's architecture, small enough for any laptop, its optimizer, and one batch.

# %% id="model"
torch.manual_seed(0)
config = GPTConfig(vocab_size=1000, seq_len=128, num_layers=12, num_heads=4, d_model=256)
model = GPT(config)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
tokens = torch.randint(0, config.vocab_size, (8, config.seq_len))  # (batch, sequence)
f"{sum(p.numel() for p in model.parameters()):,} parameters"


# %% id="step"
def step():
    optimizer.zero_grad()
    loss = model.loss(tokens)  # forward
    loss.backward()
    optimizer.step()


# %% [markdown] id="predict-first"
# **Predict.** The parameters are float32, four bytes each: call their size one P. How many P will
# this step hold at its fullest moment? Write a number down before you run the next cell. A number
# on paper, however wrong, is what makes the measurement stick.

# %% id="measure-first"
report = memory.measure(step, model=model, optimizer=optimizer, label="small GPT")
report

# %% [markdown] id="read-first"
# Every line is *counted*: the meter watches each tensor's storage being born and freed, so the
# bytes are exact and the same on every machine. In units of P:

# %% id="in-units-of-p"
P = report.at_peak["parameters"]
{name: round(size / P, 2) for name, size in report.at_peak.items() if size >= P / 100}

# %% [markdown] id="read-in-p"
# The parameters are one P of eight and a half. Adam's two moments are two more, as its formula
# says. What dominates is nothing that a model file holds: the *activations*, what the forward pass
# leaves behind for the backward pass.
#
# And where are the gradients? Look at the whole step.

# %% id="timeline"
report.figure()

# %% [markdown] id="read-timeline"
# Forward builds a ramp of activations. Backward walks down that ramp and turns it into gradients:
# each activation is freed as soon as it is used, so the ramp falls while the gradients rise. When
# the peak comes, no gradient of a weight exists yet in this model. At the end of backward all
# gradients exist, and no activation is left. The last block belongs to the optimizer, which needs
# one more P for a moment.
#
# The whole course is in this picture. **Gradient checkpointing** flattens the ramp by throwing
# activations away and computing them again. **Gradient accumulation** makes the ramp shorter, by
# sending the batch through in pieces.

# %% [markdown] id="flatten-predict"
# ## The ramp, flattened
#
# PyTorch's own `checkpoint`, around each of the twelve blocks. In chapter 04 you will write it.
#
# **Predict.** The activations are more than half of the peak. Suppose that nearly all of them go
# away. By how much does the peak fall?

# %% id="flatten"
from tutorial_lib import strategies

with strategies.applied(model, "per-block"):
    frugal = memory.measure(step, model=model, optimizer=optimizer, label="per-block checkpointing")
frugal.figure()

# %% [markdown] id="read-flatten"
# The ramp is nearly gone: small purple hills are one block's activations at a time, computed again.
# Yet the peak moved to a place where checkpointing can do nothing, the optimizer's block on the
# right. A technique that removes almost all activations cut the peak by this much:

# %% id="flatten-ratio"
f"{1 - frugal.peak_bytes / report.peak_bytes:.0%}"

# %% [markdown] id="lesson-flatten"
# Remember this one when you read that checkpointing "saves 70 %". Seventy per cent of what?

# %% [markdown] id="real-model"
# ## A model that your machine could not hold
#
# GPT-2 XL, 1.56 billion parameters, sixteen sequences of 1024 tokens. The same meter runs the same
# step on *fake tensors*: they have a shape and a type, and no memory. No weights are downloaded,
# nothing is allocated.
#
# **Predict.** In GiB: the whole step?


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
xl

# %% [markdown] id="read-xl"
# (GiB are $2^{30}$ bytes, as on a card's label. The kernels are those of a GPU: a CPU would keep
# more, for reasons that chapter 03 finds.)
#
# That is *predicted*, a word this course keeps apart from *counted* and from *measured* (on a GPU,
# by its allocator, with the card's name and the date beside it). Can a prediction be trusted? On a
# model that does fit, hold it against the count, with a CPU's kernels on both sides:


# %% id="trust"
def small_gpt():
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model.loss(torch.zeros(8, 128, dtype=torch.long)).backward()
        optimizer.step()

    return step, model, optimizer


predicted = memory.predict(small_gpt, kernels="cpu")
counted = memory.measure(small_gpt()[0])
predicted.peak_bytes - counted.peak_bytes

# %% [markdown] id="read-trust"
# Equal to the byte.
#
# ## Your own code
#
# `memory.measure` takes any function that does a training step, on any model. For a piece of a step
# there is `with memory.watch(...)`, and in a notebook a magic that reports on the cell below it:

# %% id="magic"
# %load_ext tutorial_lib

# %% id="magic-forward"
# %%memory forward pass alone
logits = model(tokens)

# %% [markdown] id="read-magic"
# `left behind` is a warning light. The cell has ended, and all activations are still there: they
# hang from the name `logits`, waiting for a backward that nobody called. A training loop that keeps
# its outputs in a list dies of this.

# %% id="let-go"
logits = None

# %% [markdown] id="how-labs-work"
# ## How predictions, checks and hints work
#
# The chapters (`course/`) explain and measure; the labs (`labs/`) ask. A lab gives you the
# signature of a function and a number to reach; you write three to fifteen lines and run the check
# below them. Suppose that lab 01 asks for the bytes of a model's parameters, and this is the
# answer:


# %% id="a-wrong-answer"
def parameter_bytes(model):
    return sum(p.numel() for p in model.parameters())


# %% id="a-check"
try:
    checks.lab01.parameter_bytes(parameter_bytes)
except checks.CheckError as error:
    print(error)

# %% [markdown] id="how-checks-read"
# A check says what it saw and what to try, and never the answer. It can fail (each one is tested
# against a museum of plausible wrong answers), and it is the same check that grades a class. Three
# hints wait under each exercise, the last one nearly the answer. Take them in order.
#
# Cells marked `# NBVAL_IGNORE_OUTPUT` depend on your machine. This is the first:

# %% id="this-machine"
# NBVAL_IGNORE_OUTPUT
here = device.pick()
device.describe(here)

# %% [markdown] id="gpu-tier"
# With a GPU, the step runs there too, and CUDA's own allocator has the last word. What it adds to
# the counted bytes (`other`) is rounding and the workspace of the kernels. Without one, this cell
# does nothing, and you lose nothing but that line.

# %% id="on-the-gpu"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    model.to(here)
    tokens = tokens.to(here)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    print(memory.measure(step, model=model, optimizer=optimizer, label="small GPT on the GPU"))

# %% [markdown] id="next"
# ## Where to go
#
# Chapter 01, `01_where_memory_goes`, takes the bar apart until you can write the ledger of a
# seven-billion-parameter model on paper. Lab 01, `lab01_ledger`, asks you to do it.
