# %% [markdown] id="title"
# # Accumulation from scratch
#
# Two sentences from two tutorials. "Four micro-batches of 8 instead of a batch of 32 cut the memory
# by 75 %." "Gradient accumulation does not reduce peak memory." Both authors measured something.
# And a third, from nearly every tutorial: "The accumulated gradient is mathematically exact." So it
# is, until the batches have different lengths; in 2024 the trainers of the largest libraries were
# found to have been wrong about that for years.
#
# The loop has four lines. In this chapter you write it, prove it, break it in every way that
# raises no error, and then ask the meter who was right about the memory.
#
# **Budget:** 60 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
import statistics
import tempfile
import time
from functools import partial
from itertools import accumulate

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from tutorial_lib import data, device, memory, plots, recorded
from tutorial_lib.checks import CheckError, assert_same_training, summation_tolerance
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # small steps lose more by waiting for a second core than they gain

# %% [markdown] id="one-update"
# ## One update, in one piece and in four
#
# The loss of a batch is a mean, a mean is a sum, and the gradient of a sum is the sum of the
# gradients:
#
# $$ \nabla \frac{1}{B}\sum_{i=1}^{B} \ell_i = \frac{1}{N} \sum_{j=1}^{N} \nabla
#    \Big( \frac{N}{B} \sum_{i \in \text{micro-batch } j} \ell_i \Big) $$
#
# On the right, each bracket is the mean loss of one micro-batch, when all $N$ are of one size.
# Micro-batches can be run one after the other, and only one of them needs to be in memory. PyTorch
# does the outer sum by itself: `backward` *adds* to `.grad`. Here is one update in one piece, and
# the same in four, on the source of Python's own standard library, byte by byte.

# %% id="subject"
config = GPTConfig(num_layers=2, num_heads=4, d_model=64, seq_len=64)
tokens = next(data.text_batches(16, 64))  # (batch, sequence)
plain_sgd, adamw = partial(SGD, lr=0.1), partial(AdamW, lr=1e-3)


def make_gpt(dtype=torch.float32, optimizer=plain_sgd):
    torch.manual_seed(0)
    model = GPT(config).to(dtype)
    return model, optimizer(model.parameters())


# %% id="two-steps"
def big_batch(model, optimizer):
    return accumulated(model, optimizer, num=1)


def accumulated(model, optimizer, num=4, divisor=None):
    optimizer.zero_grad()
    total = 0.0
    for micro_batch in tokens.chunk(num):
        loss = model.loss(micro_batch) / (divisor or num)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


# %% [markdown] id="no-framework"
# Nothing in this belongs to a framework. Without `.grad`, `backward` and an optimizer it is a sum
# and a subtraction, and the same bits:


# %% id="by-hand"
def by_hand(model, num=4, lr=0.1):
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for micro_batch in tokens.chunk(num):
        gradients = torch.autograd.grad(model.loss(micro_batch) / num, parameters)
        total = [ours + gradient for ours, gradient in zip(total, gradients, strict=True)]
    with torch.no_grad():
        for p, gradient in zip(parameters, total, strict=True):
            p.sub_(gradient, alpha=lr)


(ours, _), (theirs, optimizer) = make_gpt(), make_gpt()
by_hand(ours)
accumulated(theirs, optimizer)
all(map(torch.equal, ours.parameters(), theirs.parameters()))

# %% [markdown] id="predict-equal"
# **Predict.** Big batch against four micro-batches: are the gradients equal to the last bit? If
# not, how far apart, in float64, in float32, in bfloat16?


# %% id="distances"
# NBVAL_IGNORE_OUTPUT
def gradient(step, dtype=torch.float32):
    model, optimizer = make_gpt(dtype)
    step(model, optimizer)
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


for dtype in (torch.float64, torch.float32, torch.bfloat16):
    wanted = gradient(big_batch, dtype)
    off = [error(gradient(partial(accumulated, num=n), dtype), wanted) for n in (2, 4, 8, 16)]
    print(f"{dtype!s:<15}", *(f"{e:.0e}" for e in off), "bound:",
          f"{summation_tolerance(dtype, tokens.numel()):.0e}")  # fmt: skip

# %% [markdown] id="read-distances"
# They are not equal, because a sum of floats depends on its order. How far two orders may be apart
# can be computed. Each addition rounds by at most a share $u$ (half of the type's epsilon), with
# either sign, so the roundings of $n$ additions walk at random. As a share of the sum of the terms'
# *sizes*, two orders differ by at most
#
# $$ 2 \, \lambda \sqrt{n} \, u, \qquad \lambda = 4 $$
#
# except once in some thousand sums (Higham and Mary, 2019, theorem 2.4). With one term per token,
# $n = 16 \cdot 64$. That is the last column. It replaces an `atol=1e-3` that passes everything
# and a `1e-8` that fails on another machine. In bfloat16 the bound is near 1: it allows a
# rounding at each addition, while kernels add in float32 and round once.
#
# `assert_same_training` compares two steps with that tolerance, twice in a row: the number of
# updates, the loss, the gradients that the optimizer got, parameters, optimizer state, buffers and
# random state. Each step runs on a model of its own. In bfloat16 the tolerance would be so loose
# that every loop passes, so the function refuses to compare.
#
# Compare in float64 and early in training. Near a minimum the terms of the gradient cancel: their
# sum is much smaller than their sizes, so rounding is a larger share of it, and a correct loop in
# float32 may be refused.

# %% id="same"
for dtype in (torch.float64, torch.float32):
    for optimizer in (plain_sgd, adamw):
        assert_same_training(big_batch, accumulated, make=partial(make_gpt, dtype, optimizer))

# %% [markdown] id="forgotten"
# ## The division that nobody misses
#
# Now leave `/ num` out. The gradient is four times too large.
#
# **Predict.** After five updates, how far is the model from where it should be, as a share of the
# way it went? With SGD? With AdamW?

# %% id="forget-division"
# NBVAL_IGNORE_OUTPUT
forgot = partial(accumulated, divisor=1)


def weights_after(step, optimizer, updates=5):
    model, optimizer = make_gpt(torch.float64, optimizer)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(updates):
        step(model, optimizer)
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


for name, optimizer in {"SGD": plain_sgd, "AdamW": adamw}.items():
    off = error(weights_after(forgot, optimizer), weights_after(accumulated, optimizer))
    print(f"{name:<6} off by {off:.1e} of the way")

# %% [markdown] id="read-forgotten"
# SGD is off by more than the way itself. AdamW divides the gradient by its own size, so a factor
# cancels, and what remains is the tiny `eps` under the line. A run with AdamW trains as if nothing
# were wrong, until somebody clips gradients at 1.0, adds a second loss, changes `num`, or reads the
# logged loss. So a comparison of trained weights proves nothing here, and one of losses little. The
# gradients tell:


# %% id="verdict"
def verdict(step_a, step_b, make, **options):
    try:
        assert_same_training(step_a, step_b, make=make, **options)
    except CheckError as refusal:
        print(str(refusal).partition(" (")[0])


verdict(big_batch, forgot, partial(make_gpt, optimizer=adamw), ignore=["loss"])

# %% [markdown] id="last-window"
# ## The last window
#
# 1797 images of digits in micro-batches of 64 make 29 micro-batches, the last with 5 images. With 4
# accumulation steps, that is seven windows and one micro-batch over. This is the loop as published,
# in a hundred notebooks:

# %% id="published-epoch"
images, labels = data.digits()
micro_batches = list(zip(images.split(64), labels.split(64), strict=True))


def make_vit(dtype=torch.float32):
    torch.manual_seed(0)
    model = ViT(ViTConfig(num_layers=2, d_model=32)).to(dtype)
    return model, SGD(model.parameters(), lr=0.05)


def published_epoch(model, optimizer, num=4):
    optimizer.zero_grad()
    for place, (x, y) in enumerate(micro_batches):
        (model.loss(x.to(model.class_token.dtype), y) / num).backward()
        if (place + 1) % num == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown] id="predict-last"
# **Predict.** What becomes of the last five images? In the first epoch; in the second, if it begins
# without `zero_grad`?

# %% id="left-over"
model, optimizer = make_vit()
published_epoch(model, optimizer)
left_over = [p.grad for p in model.parameters() if p.grad is not None]
f"{len(left_over)} of {len(list(model.parameters()))} parameters hold a gradient after the epoch"

# %% [markdown] id="read-last"
# They were read, sent through the model, and their gradient lies around. Either it is thrown away,
# and with shuffled data each epoch quietly drops other samples; or it leaks into the first window
# of the next epoch, from old weights. The usual mend, an extra `step()` at the end, has its own
# fault: the last window is divided by 4 and has one micro-batch, of five images. A window knows
# what it holds, so let it say so. Below, the share of a micro-batch is its part of the window's
# images.


# %% id="mended-epoch"
def windows(items, num):
    for start in range(0, len(items), num):
        yield items[start : start + num]


def mended_epoch(model, optimizer, num=4):
    for window in windows(micro_batches, num):
        count = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            (model.loss(x.to(model.class_token.dtype), y) * (len(y) / count)).backward()
        optimizer.step()


def big_epoch(model, optimizer):
    for x, y in zip(images.split(256), labels.split(256), strict=True):
        optimizer.zero_grad()
        model.loss(x.to(model.class_token.dtype), y).backward()
        optimizer.step()


# %% id="judge-epochs"
def with_extra_step(model, optimizer):
    published_epoch(model, optimizer)
    optimizer.step()


make64 = partial(make_vit, torch.float64)
verdict(big_epoch, published_epoch, make64, calls=1)
verdict(big_epoch, with_extra_step, make64, calls=1)
verdict(big_epoch, mended_epoch, make64, calls=1)

# %% [markdown] id="read-epochs"
# Eight updates each, compared one by one: the second loop's last gradient is a quarter of what five
# images make. The third is the big batch, to rounding, last window included.
#
# ## Ragged rows: the mean of means
#
# For language models the unit is a token, and rows have different lengths. Below, a row is a line
# of code, padded to 63; what is padding has target -100 and does not count. The loss is a mean over
# tokens, so a micro-batch's mean must weigh as many tokens as it has.

# %% id="rows"
lines = [line for line in data.text().splitlines() if 2 <= len(line) <= 63]
lines = lines[100:132]


def padded(lines):
    rows = [data.encode(line) for line in lines]
    targets = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)  # (B, T)
    return targets.clamp(min=0), targets


def loss_sum(model, lines):
    inputs, targets = padded(lines)
    logits = model(inputs)[:, :-1]  # (B, T - 1, V)
    return F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), reduction="sum")


def num_targets(lines):
    return sum(len(line) - 1 for line in lines)


# %% id="ragged-steps"
def ragged(model, optimizer, lines, size, weighted):
    optimizer.zero_grad()
    window, total = list(windows(lines, size)), 0.0
    for part in window:
        count = num_targets(lines) if weighted else num_targets(part) * len(window)
        loss = loss_sum(model, part) / count
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


# %% [markdown] id="predict-ragged"
# **Predict.** Thirty-two lines in micro-batches of 4, each divided by its own tokens and by 8. By
# what share is the gradient wrong? And when a sampler has put lines of like length together, as
# trainers do to save padding?

# %% id="measure-ragged"
# NBVAL_IGNORE_OUTPUT
for order, rows in {"as they come": lines, "by length": sorted(lines, key=len)}.items():
    for size in (4, 1):
        steps = [
            partial(ragged, lines=rows, size=n, weighted=weighted)
            for n, weighted in [(32, True), (size, False), (size, True)]
        ]
        wanted, naive, mended = (gradient(step, torch.float64) for step in steps)
        losses = [step(*make_gpt(torch.float64)) for step in steps]
        loss_off = abs(losses[1] / losses[0] - 1)
        print(f"{order}, micro-batches of {size}: mean of means off by {error(naive, wanted):.0%}, "
              f"its loss by {loss_off:.1%}; weighted {error(mended, wanted):.0e}")  # fmt: skip

# %% [markdown] id="read-ragged"
# The gradient is wrong by ten times more than the loss, which is why this lived so long: nobody
# sees one per cent in a loss. A token in a short row counts more than a token in a long one, so the
# model learns another task. The mend costs one number: the tokens of the *whole window*, known
# before the first backward.

# %% id="judge-ragged"
whole, mean_of_means, weighted = (
    partial(ragged, lines=lines, size=size, weighted=weighted)
    for size, weighted in [(32, True), (4, False), (4, True)]
)
assert_same_training(whole, weighted, make=make_gpt)
assert_same_training(whole, weighted, make=partial(make_gpt, torch.float64))

# %% id="refuse-ragged"
# NBVAL_IGNORE_OUTPUT
verdict(whole, mean_of_means, make_gpt)
verdict(whole, mean_of_means, make_gpt, ignore=["loss"])

# %% [markdown] id="empty"
# The mean has one more trap. A row of one token has no next token, and a mean over nothing is 0/0.
#
# **Predict.** Such a row alone in a micro-batch: its loss, and the gradient of its logits? By mean,
# by sum?

# %% id="nothing-to-average"
for how in ("mean", "sum"):
    logits = torch.zeros(1, 5, requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([-100]), reduction=how)
    loss.backward()
    print(f"{how:<5} loss {loss.item()}, gradient {logits.grad.abs().max().item()}")

# %% [markdown] id="read-nothing"
# The loss is no number and the gradient is zero: the model goes on learning while the log, the
# average over the epoch and whatever stops a run at a bad loss are spoilt. A sum does not mind.

# %% [markdown] id="trainers"
# ### The trainers of 2024
#
# Hugging Face's Trainer had this fault; it was reported in July 2023 (transformers issue 24725) and
# became widely known in October 2024 (also TRL 2175, Unsloth 1146). Since then the Trainer counts
# the window's tokens and hands them to the model as `num_items_in_batch`. What if the model is
# yours, and does not know that name? Here is one, the GPT from above with the loss that everybody
# writes. `weigh` is for later.


# %% id="own-model"
class OwnModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt, _ = make_gpt()

    def forward(self, input_ids, labels):
        return {"loss": self.weigh(self.gpt(input_ids)[:, :-1].flatten(0, 1), labels[:, 1:])}

    def weigh(self, logits, targets):
        return F.cross_entropy(logits, targets.flatten())


# %% [markdown] id="real-trainer"
# And a real `Trainer` for one update. A callback takes the gradients just before the optimizer
# does; clipping is off, so that they are as computed.


# %% id="trainer-gradient"
class KeepGradient(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradient = torch.cat([p.grad.double().flatten() for p in model.parameters()])


def trainer_gradient(model, size, collate):
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=1, max_grad_norm=0, report_to="none", disable_tqdm=True, use_cpu=True,
            per_device_train_batch_size=size, gradient_accumulation_steps=len(lines) // size,
            remove_unused_columns=False, dataloader_pin_memory=False, save_strategy="no",
        )  # fmt: skip
        keep = KeepGradient()
        trainer = transformers.Trainer(
            model, arguments, data_collator=collate, train_dataset=lines, callbacks=[keep]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return keep.gradient


# %% [markdown] id="predict-trainer"
# **Predict.** The Trainer on the 32 lines, in micro-batches of 1: once with `OwnModel`, and once
# with a model that takes any keyword and looks at none, `**_`, as wrappers do. Which of the two is
# further off?


# %% id="measure-trainer"
# NBVAL_IGNORE_OUTPUT
class TakesAnything(OwnModel):
    def forward(self, input_ids, labels, **_):
        return super().forward(input_ids, labels)


def collate(part):
    return dict(zip(("input_ids", "labels"), padded(part), strict=True))


wanted = trainer_gradient(OwnModel(), 32, collate)
print(f"transformers {transformers.__version__}, micro-batches of 1 against one batch of 32")
for kind in (OwnModel, TakesAnything):
    print(f"{kind.__name__:<15} off by {error(trainer_gradient(kind(), 1, collate), wanted):.0%}")

# %% [markdown] id="read-trainer"
# `OwnModel` gets the mean of means, today, from the mended Trainer. `TakesAnything` is off by some
# thirty times the gradient: the Trainer reads the `**_` as a promise that the model divides by the
# count, so it does not divide by the number of micro-batches either. AdamW and clipping hide that,
# as you have seen. So let the model keep the promise:


# %% id="mended-trainer"
# NBVAL_IGNORE_OUTPUT
class Counts(OwnModel):
    def forward(self, input_ids, labels, num_items_in_batch=1, **_):
        self.count = num_items_in_batch
        return super().forward(input_ids, labels)

    def weigh(self, logits, targets):
        return F.cross_entropy(logits, targets.flatten(), reduction="sum") / self.count


def collate_masked(part):
    batch = collate(part)
    batch["labels"][:, 0] = -100  # nothing predicts a row's first token
    return batch


for name, how in {"counts": collate, "counts, first labels masked": collate_masked}.items():
    print(f"{name:<28} off by {error(trainer_gradient(Counts(), 1, how), wanted):.0e}")

# %% [markdown] id="read-mended-trainer"
# Nearly. The Trainer counted all labels of the window, and the first of each row is nobody's
# target: `forward` shifts them out, for the library's own causal models the Trainer knows that, for
# yours it does not. Every gradient is too small by the share of first tokens. Masked in the
# collator, the count is right whoever counts, and the rest is rounding. Before you trust a trainer
# with a model of your own, compare one window with one batch: it takes a callback of two lines.

# %% [markdown] id="once"
# ## What happens once an update
#
# A real loop also scales the loss (for float16), clips, steps a scheduler and logs. Each of these
# belongs to the update, not to the micro-batch. One function, right when `wrong` is empty:


# %% id="window"
def make_all():
    model, optimizer = make_vit()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    return model, optimizer, scheduler, torch.amp.GradScaler("cpu", init_scale=1024.0)


def update(model, optimizer, scheduler, scaler, num=4, wrong=""):
    optimizer.zero_grad()
    logged = 0.0
    for x, y in zip(images[:64].chunk(num), labels[:64].chunk(num), strict=True):
        loss = model.loss(x, y) / (1 if wrong == "no division" else num)
        scaler.scale(loss).backward()
        logged += loss.item() * (num if wrong == "log of means" else 1)
        if wrong == "clip each":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())
    return finish(model, optimizer, scheduler, scaler, wrong) or logged


# %% id="finish"
def finish(model, optimizer, scheduler, scaler, wrong):
    if wrong == "never unscaled":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # 0.1 of what is 1024 times too large
    scaler.unscale_(optimizer)
    if wrong != "clip each":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    for _ in range(4 if wrong == "schedule each" else 1):
        scheduler.step()


# %% [markdown] id="predict-mistakes"
# **Predict.** Five mistakes: no division, with a clip behind it; the logged loss summed without the
# division; clipping in each micro-batch; clipping before `unscale_`; the scheduler in each
# micro-batch. Which of the five leave the gradient's *direction* as it was?

# %% id="mistakes"
# NBVAL_IGNORE_OUTPUT
assert_same_training(partial(update, num=1), update, make=make_all)
for wrong in ("no division", "log of means", "clip each", "never unscaled", "schedule each"):
    print(f"{wrong}: ", end="")
    verdict(partial(update, num=1), partial(update, wrong=wrong), make_all)

# %% [markdown] id="read-mistakes"
# Only one of them turns the gradient: clipping in each micro-batch, because it weakens the long
# gradients more than the short. Clipping before `unscale_` shrinks it by the scale, to nothing. A
# scheduler in the loop runs through its schedule four times too fast, and no gradient of the first
# update shows it. And the missing division?

# %% id="clip-hides"
no_division = partial(update, wrong="no division")
assert_same_training(partial(update, num=1), no_division, make=make_all, ignore=["loss"])

# %% [markdown] id="read-clip"
# Clipping hides it, too: every gradient here is longer than the limit, and the limit keeps only
# directions. The log alone shows a loss four times too large, and a log is easily "corrected".
#
# ### What the scaler is for
#
# float16 has no number between 0 and 6e-8. bfloat16 has the exponents of float32. Of the numbers in
# this small ViT's gradient, divided by 1000 to stand for a late stage of training, how many become
# zero?

# %% id="underflow"
model, optimizer = make_vit()
model.loss(images[:64], labels[:64]).backward()
numbers = torch.cat([p.grad.flatten() for p in model.parameters()])
numbers = numbers[numbers != 0] / 1000
for name, cast in {
    "float16": numbers.half(),
    "float16, scaled by 65536": (numbers * 65536).half(),
    "bfloat16": numbers.bfloat16(),
}.items():
    print(f"{name:<25} {(cast == 0).float().mean():.1%} lost")

# %% [markdown] id="predict-scaler"
# A popular example accumulates in bfloat16 with a `GradScaler` around it.
#
# **Predict.** What does the scaler change there? And in float16, when the scale is too large: what
# becomes of the update, the scale, the scheduler?


# %% id="bfloat16-scaler"
def autocast_update(model, optimizer, scaler, dtype=torch.bfloat16):
    optimizer.zero_grad()
    for x, y in zip(images[:64].chunk(4), labels[:64].chunk(4), strict=True):
        with torch.autocast("cpu", dtype):
            loss = model.loss(x, y) / 4
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def make_scaled(scale=65536.0, enabled=True):
    return *make_vit(), torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)


def unscaled(model, optimizer, scaler):
    autocast_update(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))


assert_same_training(unscaled, autocast_update, make=make_scaled, bitwise=True,
                     ignore=["other state"])  # fmt: skip

# %% id="overflow"
model, optimizer, scaler = make_scaled(scale=2.0**40)
before = nn.utils.parameters_to_vector(model.parameters()).detach()
autocast_update(model, optimizer, scaler, torch.float16)
moved = not torch.equal(before, nn.utils.parameters_to_vector(model.parameters()))
f"parameters moved: {moved}; scale: 2**40, then 2**{math.log2(scaler.get_scale()):.0f}"

# %% [markdown] id="read-scaler"
# Around bfloat16 the scaler multiplies by a power of two and divides by it again: the same bits.
# Around float16 it is needed, and an overflow in *one* micro-batch skips the update of the whole
# window; a scheduler that steps all the same is now one ahead. And since all micro-batches of a
# window add into one buffer, the scale must not change within it: `update()` once, after `step()`.

# %% [markdown] id="low-precision"
# ## Adding in bfloat16
#
# With a model all in bfloat16, `.grad` is bfloat16 as well: eight bits of mantissa. When the sum
# has grown to some 256 times the next gradient, adding that changes nothing.
#
# **Predict.** 256 micro-batches, each gradient computed in float32, so that only the adding
# differs. How wrong is the sum in bfloat16, in float16, in float32?

# %% id="accumulate-low"
# NBVAL_IGNORE_OUTPUT
model, _ = make_vit()
types = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
exact, sums, errors = 0.0, dict.fromkeys(types, 0.0), {name: {} for name in types}
for place, (x, y) in enumerate(zip(images[:1792].split(7), labels[:1792].split(7), strict=True)):
    gradients = torch.autograd.grad(model.loss(x, y), list(model.parameters()))
    flat = torch.cat([g.flatten() for g in gradients])
    exact = exact + flat.double()
    for name, dtype in types.items():
        sums[name] = sums[name] + flat.to(dtype)
        if place and (place + 1).bit_count() == 1:  # after 2, 4, 8, ... micro-batches
            errors[name][place + 1] = error(sums[name].double(), exact)
plots.training_curves(errors, xlabel="micro-batches", ylabel="relative error of the sum", log="xy")

# %% [markdown] id="read-low"
# bfloat16 begins at the rounding of single gradients and grows; float32 stays where nobody looks.
# The mend is a buffer in float32: 4 bytes a parameter instead of 2, added to in float32, and cast
# once for the update. It is what large trainers keep, and a price of accumulation that no table of
# bytes per parameter shows.

# %% [markdown] id="in-backward"
# ## Optimizer in backward: the one who cannot
#
# A parameter can be updated the moment its gradient is ready, and the gradient freed, before the
# next one is even computed. PyTorch offers a hook for it. There is never more than one gradient.
# Counted, with P for one copy of the parameters:


# %% id="fused"
def in_backward(model, make_optimizer):
    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    optimizers = {p: make_optimizer([p]) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return optimizers


# %% id="measured-gpt"
def measured_gpt(num, micro_batch=8, fused=False):
    model = GPT(GPTConfig(vocab_size=1000, num_layers=3, d_model=192))
    ids = torch.zeros(micro_batch, 64, dtype=torch.long)
    gpu_adamw = partial(AdamW, foreach=True)  # a GPU's default
    optimizer = None if fused else gpu_adamw(model.parameters())
    if fused:
        in_backward(model, gpu_adamw)

    def step():
        for _ in range(num):
            (model.loss(ids) / num).backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()

    label = f"{num} x {micro_batch}" + (", in backward" if fused else "")
    return memory.measure(step, model=model, optimizer=optimizer, label=label)


# %% id="fused-peak"
plain, fused = measured_gpt(1, 1), measured_gpt(1, 1, fused=True)
P = plain.at_peak["parameters"]
for report in (plain, fused):
    gradients = max(point["gradients"] for point in report.curve())
    print(f"{report.label:<18} peak {report.peak_bytes / P:.2f} P, gradients {gradients / P:.2f} P")

# %% [markdown] id="predict-fused"
# **Predict.** Run it with four micro-batches. What is wrong with the result? AdamW keeps a count of
# its updates.

# %% id="fused-accumulation"
model, _ = make_gpt()
optimizers = in_backward(model, adamw)
for micro_batch in tokens.chunk(4):
    (model.loss(micro_batch) / 4).backward()
{int(state["step"]) for o in optimizers.values() for state in o.state.values()}

# %% [markdown] id="read-fused"
# Four updates, from four different points, each at the full learning rate (AdamW does not see the
# division). There is nothing to accumulate into: the buffer that was saved *is* the accumulator.
# With an unchanged AdamW you save the gradients' bytes or you accumulate, not both. (Zhang et al.,
# 2023, "Adam Accumulation", change the update: they add each micro-batch's gradient to the
# moments.)

# %% [markdown] id="memory"
# ## Who was right about the memory?
#
# Effective batch 32, in one piece (1 x 32) and as 4 micro-batches of 8 (4 x 8); and a single batch
# of 8 (1 x 8).
#
# **Predict.** By how much do the activations fall from the first to the second? The whole peak? And
# from the third to the second: does accumulation cost nothing?

# %% id="measure-memory"
reports = {r.label: r for r in [measured_gpt(1, 32), measured_gpt(4, 8), measured_gpt(1, 8)]}
plots.ledger_bars({name: r.at_peak for name, r in reports.items()}, title="At the peak, counted")

# %% id="memory-numbers"
big, small, alone = reports.values()


def fell(before, after):
    return f"{1 - after / before:.1%}"


print("activations:     ", fell(big.at_peak["activations"], small.at_peak["activations"]))
print("forward+backward:", fell(big.forward_backward_bytes, small.forward_backward_bytes))
print("peak of the step:", fell(big.peak_bytes, small.peak_bytes))
extra = small.forward_backward_bytes - alone.forward_backward_bytes
print(f"4 x 8 against 1 x 8, forward and backward: {extra / P:+.2f} P")

# %% [markdown] id="read-memory"
# Both authors were right about different comparisons, and neither about the peak.
#
# - At a fixed *effective batch*, activations fall by the promised 75 %. The whole does not: what
#   is proportional to the parameters stays.
# - At a fixed *micro-batch*, accumulation saves nothing and costs: the gradients of the first
#   micro-batch are alive while the activations of the second build up. One copy of the
#   parameters, exactly, that a plain step does not pay at that moment.
#
# The second is the price that nobody names. Look at it: gradients are the orange band.

# %% id="timeline"
small.figure()

# %% [markdown] id="predict-number"
# **Predict.** The copy is paid from the second micro-batch on. What do the sixth and the eighth
# cost?

# %% id="only-micro-batch"
for num, size in [(2, 4), (8, 4), (2, 2)]:
    ramp = measured_gpt(num, size).forward_backward_bytes
    print(f"{num} x {size}: peak of forward and backward {ramp / P:.2f} P")

# %% [markdown] id="predict-published"
# Nothing. The micro-batch is a quantity of memory; the effective batch is none, and neither is the
# number of GPUs that share it, which chapter 13 measures.
#
# How much of the 75 % arrives depends on which tower is taller: activations, or the update with its
# gradients, states and temporary copy. GPT-2 as published, float32 and AdamW, for long and for
# short sequences, from the course's table of predictions for the kernels of a GPU
# (`course/recorded`).
#
# **Predict.** For which does the peak fall by nearly 75 %? For which by next to nothing?


# %% id="published-table"
table = recorded.load("predicted").rows


def published_peak(micro_batch, num, seq):
    recipe = Recipe("gpt2", micro_batch, seq, accumulation=num)
    return Bytes(table[recipe.label()]["report"]["peak_bytes"])


for words, seq in {"1024": None, "16": 16}.items():  # None: as published
    whole, pieces = (published_peak(*how, seq) for how in [(32, 1), (8, 4)])
    print(f"sequences of {words}: batch of 32 {whole}; in pieces of 8 "
          f"{pieces}, {fell(whole, pieces)} less")  # fmt: skip
print("a single batch of 8, sequences of 1024:", published_peak(8, 1, None))

# %% [markdown] id="read-published"
# With long sequences the ramp of activations is the whole story, and nearly all of the 75 %
# arrives. With short ones the update is the taller tower, and accumulation never touches it. The
# other price, one copy of the gradients, lies between the pieces of 8 and the single batch of 8:
# what trains at batch 8 need not fit once it is accumulated, unless the update was the peak anyway.

# %% [markdown] id="time"
# ## The other price: time
#
# "Accumulation adds no computation." Counted, that is so, to the FLOP:


# %% id="flops"
def gpt_step(model, num, size=32):
    ids = torch.zeros(size, config.seq_len, dtype=torch.long, device=model.head.weight.device)
    for micro_batch in ids.chunk(num):
        (model.loss(micro_batch) / num).backward()


model, _ = make_gpt()
steps = [partial(gpt_step, model, num) for num in (1, 4)]
counts = {memory.measure(step, model=model, flops=True).flops for step in steps}
f"one batch and four micro-batches: {len(counts)} count of FLOPs"

# %% [markdown] id="predict-time"
# **Predict.** And by the clock? Thirty-two samples as one batch, and as 4, 8 and 32 micro-batches,
# on your machine.


# %% id="seconds"
# NBVAL_IGNORE_OUTPUT
def seconds(model, num):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    gpt_step(model, num)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


model, pieces = make_gpt()[0].to(device.pick()), (1, 4, 8, 32)
rounds = [[seconds(model, num) for num in pieces] for _ in range(12)][2:]  # in turn, two to warm up
print(f"{device.describe(device.pick())}, time against one batch of 32:")
for num, times in zip(pieces, zip(*rounds, strict=True), strict=True):
    ratios = [t / one for t, (one, *_) in zip(times, rounds, strict=True)]
    print(f"{num:>2} micro-batches of {32 // num:>2}: x {statistics.median(ratios):.2f}")

# %% [markdown] id="read-time"
# A micro-batch has a price per call, and small ones leave the machine idle between calls and within
# them: each matrix is too low to fill it. One CPU core is filled by a few rows, a GPU wants
# thousands. So the rule is the same everywhere and its number is yours to measure: take the largest
# micro-batch that fits, then accumulate, and never the other way round.

# %% [markdown] id="training"
# ## A real run
#
# Three epochs of digits with AdamW and an effective batch of 64, three times from the same start:
# the big batch, the mended loop, and a loop without the division, which logs its loss correctly.
#
# **Predict.** Which of the three loss curves lie on each other, to the end?


# %% id="train"
# NBVAL_IGNORE_OUTPUT
def train(name, num, factor=1, dtype=torch.float32, epochs=3, size=64):
    model, _ = make_vit(dtype)
    optimizer, curve = AdamW(model.parameters(), lr=3e-3), {}
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for rows in torch.randperm(len(images), generator=generator).split(size):
            optimizer.zero_grad()
            total = 0.0
            for part in rows.split(size // num):
                loss = model.loss(images[part].to(dtype), labels[part])
                (loss * factor * len(part) / len(rows)).backward()
                total += loss.item() * len(part) / len(rows)
            optimizer.step()
            curve[len(curve) * size] = total
        print(f"{name}, epoch {epoch + 1}: loss {statistics.mean([*curve.values()][-29:]):.3f}")
    return curve


recipes = {"one batch of 64": (1,), "4 x 16": (4,), "4 x 16, not divided": (4, 4)}
runs = {name: train(name, *recipe) for name, recipe in recipes.items()}

# %% id="training-figure"
# NBVAL_IGNORE_OUTPUT
plots.training_curves(
    runs,
    xlabel="samples seen",
    ylabel="loss of the window",
    title="Digits, ViT, AdamW: one effective batch, three loops",
    dashed=["4 x 16"],
)

# %% [markdown] id="read-training"
# All three learn. One has gradients four times too large, and its curve is as good as the others'.
# The other two are both right, update by update, and drift apart all the same, on some machines so
# far that you see it. Is that rounding, or a fault that the check has overlooked? In float64,
# rounding is half a billion times smaller. So do the same there, and look at the largest distance
# of the losses so far.

# %% id="chaos"
# NBVAL_IGNORE_OUTPUT
exact = {name: train(f"{name}, float64", *how, dtype=torch.float64)
         for name, how in {"one": (1,), "4 x 16": (4,)}.items()}  # fmt: skip


def apart(one, other):
    so_far = accumulate((abs(other[seen] - loss) for seen, loss in one.items()), max)
    return {seen: distance for seen, distance in zip(one, so_far, strict=True) if distance}


one, right, undivided = runs.values()
plots.training_curves(
    {
        "not divided, float32": apart(one, undivided),
        "4 x 16, float32": apart(one, right),
        "4 x 16, float64": apart(*exact.values()),
    },
    xlabel="samples seen",
    ylabel="distance from the big batch's loss",
    log="y",
)

# %% [markdown] id="read-chaos"
# It was rounding. In float64 the right loop starts at the bottom and then climbs just as the others
# did: training multiplies every difference, however small, until it is as large as the noise of the
# batches. The wrong loop merely gets there first. So close losses do not prove a loop right, and
# different losses do not prove it wrong. One window, compared gradient by gradient, does both.

# %% [markdown] id="summary"
# ## What you can now do
#
# - Write the loop from the formula, with one count, of the whole window, in front of it.
# - Compare two loops by their gradients, within a tolerance that you can derive, and distrust
#   losses, Adam and clipping as witnesses.
# - Say what accumulation saves (activations, against the big batch), what it costs (a copy of the
#   gradients at the ramp, time in small micro-batches), and what never moves: the update.
#
# In chapter 09 the premise fails: BatchNorm, dropout and contrastive losses are no sums over
# samples. In lab 06, `lab06_exact_accumulation`, you write the step that passes all of this.
