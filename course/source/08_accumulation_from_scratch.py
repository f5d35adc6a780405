# %% [markdown] id="title"
# # Accumulation from scratch
#
# Two tutorials contradict each other. One says: "Four micro-batches of 8 instead of a batch of 32
# cut the memory by 75 %." The other: "Gradient accumulation does not reduce peak memory." Both
# authors measured their claims. And nearly every tutorial adds: "The accumulated gradient is
# mathematically exact." With rows of different lengths that's false, and no error is raised. Here
# you write the loop and test all three claims.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import inspect
import sys
from functools import partial
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from IPython.display import display
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, AdamW
from torch.utils.benchmark import Timer

import tutorial_lib
from tutorial_lib import blanks, claims, data, device, memory, plots
from tutorial_lib.instruments import planning, recorded
from tutorial_lib.checks import summation_tolerance, verdict
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="one-update"
# ## One update in four parts
#
# ![Four micro-batches, one after the other. Activations rise and fall four times. The sum of the
# gradients stays from the first backward to zero_grad. The parameters change
# once.](figures/08-one-update.svg)
#
# A *micro-batch* is the samples in memory at once. The *effective batch* is all samples that one
# update uses: here, four micro-batches. Split a batch of $B$ samples into $N$ micro-batches. The
# loss is a mean over samples, so its gradient is a mean too, and you can compute it in parts:
#
# $$ \nabla \frac{1}{B}\sum_{i=1}^{B} \ell_i = \frac{1}{N} \sum_{j=1}^{N} \nabla
# \Big( \frac{N}{B} \sum_{i \in \text{micro-batch } j} \ell_i \Big) $$
#
# If all micro-batches have the same size, $B/N$, each bracket on the right is the mean loss of one
# micro-batch. PyTorch computes the outer sum for us, because `backward` *adds* to `.grad`. So the
# loop only has to divide each loss by $N$, and update once.
#
# **Write.** `accumulated`. Old gradients stay in `.grad`, so clear them first.

# %% id="subject"
config = GPTConfig(num_layers=2, num_heads=4, d_model=64, seq_len=64)
tokens = next(data.text_batches(24, 64))  # (batch, sequence)


def make_gpt(dtype=torch.float32):
    torch.manual_seed(0)
    model = GPT(config).to(dtype)
    return model, SGD(model.parameters(), lr=0.1)


# %% id="big-batch"
def big_batch(model, optimizer):
    optimizer.zero_grad()
    model.loss(tokens).backward()
    optimizer.step()


# %% id="two-steps"
def accumulated(model, optimizer, num=4, divisor=None):
    """Do one update with all `tokens`, in `num` micro-batches.

    `model.loss(micro_batch)` is a mean. Divide it by `divisor`, or by `num` if None.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    for micro_batch in tokens.chunk(num):
        loss = model.loss(micro_batch) / (divisor or num)
        loss.backward()
    optimizer.step()
    ### END SOLUTION


# %% id="check-two-steps"
# @title Check: run this cell
@blanks.check("accumulated", "do one update in `num` micro-batches")
def accumulates():
    def trained(step):
        calls, back, (model, optimizer) = [], [], make_gpt(torch.float64)
        model.register_forward_pre_hook(lambda _, rows: calls.append(len(rows[0])))
        model.head.weight.register_hook(lambda _: back.append(len(calls)))
        optimizer.register_step_post_hook(lambda *_: calls.append("step"))
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e9)  # from an earlier update
        step(model, optimizer)
        assert back, "No gradient reaches the model: call backward on each loss."
        assert all(p.grad is not None for p in model.parameters()), (
            "`.grad` is empty at the end: clear it at the beginning."
        )
        return (
            calls,
            back,
            parameters_to_vector(p.grad for p in model.parameters()),
        )

    *_, wanted = trained(big_batch)
    for divisor, factor in ((None, 1), (1, 2)):
        calls, back, seen = trained(partial(accumulated, num=2, divisor=divisor))
        assert calls == [12, 12, "step"], (
            f"Expected micro-batches of 12 and 12 rows, then a step, not {calls}."
        )
        assert back == [1, 2], (
            "Call backward for each micro-batch before the next one's forward: "
            "otherwise both graphs are in memory at once."
        )
        assert seen.norm() < 1e6, "The old gradient is still in the sum: clear it."
        times = seen @ wanted / wanted.norm() ** 2
        assert (seen - factor * wanted).norm() < 1e-9 * wanted.norm(), (
            f"num=2, divisor={divisor}: your gradient is {times:.3g} times the big "
            f"batch's, but should be {factor} times."
        )


# %% [markdown] id="predict-memory"
# ## Who was right about the memory?
#
# We train a small GPT with AdamW, once with a whole batch of 32 and once with four micro-batches of
# 8. We call them 32 x 1 and 8 x 4: the micro-batch's size x the accumulation steps.
#
# **Predict.** From 32 x 1 to 8 x 4, by what percentage does the peak of the *whole step* fall?

# %% id="guess-memory"
guess = None  # %


# %% id="measured-gpt"
def measured_gpt(micro_batch, num):
    model = GPT(GPTConfig(vocab_size=1000, num_layers=3, d_model=192))
    ids = torch.zeros(micro_batch, 64, dtype=torch.long)
    optimizer = AdamW(model.parameters(), foreach=True)  # a GPU's default

    def step():
        for _ in range(num):
            (model.loss(ids) / num).backward()
        optimizer.step()
        optimizer.zero_grad()

    name = f"{micro_batch} x {num}"
    return memory.measure(step, model=model, optimizer=optimizer, label=name)


# %% id="measure-memory"
reports = [measured_gpt(32, 1), measured_gpt(8, 4), measured_gpt(8, 1)]
big, small, alone = reports
bars = {report.label: report.at_peak for report in reports}
plots.ledger_bars(bars, title="At the peak, counted")

# %% id="memory-table"
P = big.at_peak["parameters"]
held = pd.DataFrame(bars).T[["activations"]]
held["forward and backward"] = [report.forward_backward_bytes for report in reports]
held["whole step"] = [report.peak_bytes for report in reports]
fell = 100 * (1 - held.loc["8 x 4"] / held.loc["32 x 1"])
print(f"the whole step: {fell['whole step']:.1f} %{beside(guess, fell['whole step'])}")
added = (held.loc["8 x 4"] - held.loc["8 x 1"]).iloc[1] / P
print(f"activations: {fell['activations']:.1f} %; 8 x 4 minus 8 x 1: {added:+.2f} P")
display((held / P).round(2))  # in P, the bytes of all parameters
small.figure()  # 8 x 4

# %% [markdown] id="read-memory"
# The two authors compared different things.
#
# - At a fixed **effective batch** (first two rows), the activations fall by the promised 75 %. The
#   peak falls by less, because it also holds parameters, gradients and AdamW's optimizer states.
# - At a fixed **micro-batch** (last two rows), accumulation saves nothing. It even adds P, the
#   bytes of all parameters, to the peak. That's the size of the first micro-batch's gradients (the
#   figure's band *gradients*), which stay in memory while the second micro-batch runs.
#
# The next cell has peaks of the published GPT-2 with AdamW, *predicted* for a GPU's kernels. **Does
# the peak grow from 8 x 2 to 8 x 4?**

# %% id="only-micro-batch"
rows, gpt2_peaks = recorded.load("predicted").rows, {}
for size, num in [(32, 1), (16, 2), (8, 4), (8, 2), (8, 1), (4, 8)]:
    recipe = Recipe("gpt2", size, precision="bf16-amp", accumulation=num)
    report = rows[recipe.label()]["report"]
    gpt2_peaks[f"{size} x {num}"] = report["peak_bytes"] / GIB
pd.DataFrame({"GiB": gpt2_peaks}).round(2).T

# %% [markdown] id="read-number"
# It doesn't. But the four columns with an effective batch of 32 all have different peaks. So the
# micro-batch determines the memory, not the effective batch. Only a single micro-batch (8 x 1)
# needs a little less, as above.
#
# ## Is it the same update?
#
# Next we compute the gradient with 2, 4, 8 and 24 micro-batches, and subtract the big batch's
# gradient. The table below shows the norm of each difference, divided by the norm of the big
# batch's gradient.
#
# **Write.** `gradient`. `parameters_to_vector` makes one vector of many tensors.


# %% id="gradient"
def gradient(step, dtype=torch.float32):
    """Return the gradient that one call of `step` leaves, as one float64 vector.

    `make_gpt(dtype)` returns the two arguments of `step`.
    """
    ### BEGIN SOLUTION
    model, optimizer = make_gpt(dtype)
    step(model, optimizer)
    return parameters_to_vector(p.grad.double() for p in model.parameters())
    ### END SOLUTION


# %% id="check-gradient"
# @title Check: run this cell
@blanks.check("gradient", "return one vector")
def gradient_is_a_vector():
    calls = []

    def step(model, optimizer):
        calls.append(next(model.parameters()).dtype)
        optimizer.zero_grad()
        sum(p.square().sum() for p in model.parameters()).backward()

    weights = parameters_to_vector(make_gpt()[0].parameters()).detach()
    seen = gradient(step)
    assert len(calls) == 1, f"`gradient` called `step` {len(calls)} times, not once."
    gradient(step, torch.bfloat16)
    assert calls == [torch.float32, torch.bfloat16], f"The models' dtypes were {calls}."
    assert seen.shape == weights.shape, (
        f"The model has {len(weights)} weights, but the shape is {[*seen.shape]}."
    )
    assert not torch.equal(seen, weights.to(seen)), "These are the weights themselves."
    assert torch.allclose(seen.float(), 2 * weights), "That isn't the step's gradient."
    assert seen.dtype == torch.float64, f"The vector is {seen.dtype}, not float64."


# %% id="error"
def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


# %% id="distances"
# NBVAL_IGNORE_OUTPUT
loops, distances = {n: partial(accumulated, num=n) for n in (2, 4, 8, 24)}, {}
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    wanted = gradient(big_batch, dtype)
    found = {n: error(gradient(loop, dtype), wanted) for n, loop in loops.items()}
    found["bound"] = summation_tolerance(dtype, tokens.numel())
    distances[str(dtype)] = found
in_64 = distances["torch.float64"]
exact = max(in_64[n] for n in loops) < in_64["bound"]
print(f"float64, within the bound: {exact}")
pd.DataFrame(distances).T.map("{:.0e}".format)

# %% [markdown] id="read-distances"
# The gradients are not equal to the last bit: the loops add the same numbers in different orders,
# and each addition rounds. The "bound" says how far apart two correct loops may be. For a sum of
# $n$ terms it grows with $\sqrt n$, since roundings up and down partly cancel (Higham and Mary,
# 2019).
#
# `assert_same_training`, which `verdict` calls below, uses this bound as its tolerance. **Compare
# in float64, with dropout off**: then rounding is tiny and no random mask differs, so a bug shows.
#
# ## The forgotten division
#
# Leave `/ num` out, and the gradient is `num` times too large. With AdamW the run still looks
# healthy: AdamW divides by the gradient's size, so the factor cancels. The mistake matters once you
# clip gradients, add a second loss or change `num`.

# %% id="verdict"
forgot = partial(accumulated, divisor=1)
in_float64 = partial(make_gpt, torch.float64)
verdict(big_batch, accumulated, make=in_float64)
verdict(big_batch, forgot, make=in_float64, differs="gradients")

# %% [markdown] id="last-window"
# ## The last window
#
# A *window* is the micro-batches of one update. 517 images in micro-batches of 64 make nine
# micro-batches, the last with five images. With four accumulation steps there are two full windows,
# and the last micro-batch is left over. **What does the common loop below do with the last five
# images?**

# %% id="published-epoch"
images, labels = (rows[:517] for rows in data.digits())
images = images.double()


def make_vit():
    torch.manual_seed(0)
    model = ViT(ViTConfig(num_layers=2, d_model=32)).double()
    return model, SGD(model.parameters(), lr=0.05)


def published_epoch(model, optimizer, num=4):
    optimizer.zero_grad()
    for place, rows in enumerate(torch.arange(517).split(64)):
        (model.loss(images[rows], labels[rows]) / num).backward()
        if (place + 1) % num == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown] id="read-last"
# The five images' gradient is computed and stays in `.grad`. If the next epoch begins with
# `zero_grad`, the five images are lost. If it doesn't, an old gradient leaks into that epoch. An
# extra `step()` at the end isn't enough: the loop divided the last loss by 4, but its window has
# only one micro-batch. For an exact fix, multiply each micro-batch's loss by its share of the
# window's images.
#
# **Write.** `mended_epoch`, six lines. `torch.arange(517).split(size * num)` returns the windows.


# %% id="mended-epoch"
def mended_epoch(model, optimizer, size=64, num=4):
    """Train on 517 images, with one update per window of `num` micro-batches.

    `model.loss(images[rows], labels[rows])` is the mean loss of those rows.
    """
    ### BEGIN SOLUTION
    for window in torch.arange(517).split(size * num):
        optimizer.zero_grad()
        for rows in window.split(size):
            share = len(rows) / len(window)
            (model.loss(images[rows], labels[rows]) * share).backward()
        optimizer.step()
    ### END SOLUTION


# %% id="check-mended-epoch"
# @title Check: run this cell
@blanks.check("mended_epoch", "train on each window, in micro-batches of `size`")
def epoch_is_mended():
    (model, optimizer), sizes, seen, back = make_vit(), [], [], []
    loss_of, windows = model.loss, torch.arange(517).split(180)

    def loss(pixels, targets):
        sizes.append(len(targets))
        return loss_of(pixels, targets)

    def look(*_):  # at the gradient, before an update
        rows = windows[min(len(seen), 2)]
        true = torch.autograd.grad(
            loss_of(images[rows], labels[rows]), model.head.weight
        )[0]
        of = model.head.weight.grad
        seen.append(((of * true).sum() / true.norm() ** 2, (of - true).norm()))

    model.loss = loss
    next(model.parameters()).register_hook(lambda _: back.append(len(sizes)))
    optimizer.register_step_pre_hook(look)
    mended_epoch(model, optimizer, size=60, num=3)
    assert sizes == 8 * [60] + [37], (
        "With size=60, expected 8 micro-batches of 60 and one of 37. You ran "
        f"{len(sizes)}: the first are {sizes[:3]}, the last {sizes[-3:]}."
    )
    assert len(seen) == 3, (
        f"517 images in windows of 3 x 60 make 3 updates, not {len(seen)}."
    )
    assert back == [*range(1, 10)], (
        "Call backward for each micro-batch before the next one's forward: otherwise "
        "a window's graphs are all in memory at once."
    )
    for number, (times, off) in enumerate(seen):
        assert off < 1e-9, (
            f"Update {number + 1} ({len(windows[number])} images) used {times:.3g} "
            "times the gradient of their mean loss."
        )


# %% id="mended-verdicts"
def big_epoch(model, optimizer):  # each window in one piece
    for window in torch.arange(517).split(256):
        optimizer.zero_grad()
        model.loss(images[window], labels[window]).backward()
        optimizer.step()


verdict(big_epoch, published_epoch, make=make_vit, calls=1, differs="updates")
verdict(big_epoch, mended_epoch, make=make_vit, calls=1)

# %% [markdown] id="read-epochs"
# ## Ragged rows: the mean of means
#
# A language model's loss is a mean over *tokens*, and rows have different lengths. Below, a row is
# a line of the model's own source code, padded to the longest line. Padding has the target -100,
# which PyTorch leaves out of the loss.
#
# **Write.** The rest of `loss_sum`. It returns the *sum* over tokens, so that the loop can choose
# the divisor. The logits at a position score the next token. The model can't embed -100, so give it
# `rows.clamp(min=0)`.

# %% id="rows"
source = inspect.getsource(inspect.getmodule(GPT)).splitlines()
lines = [line for line in source if 2 <= len(line) <= 63][-32:]


# %% id="loss-sum"
def loss_sum(model, lines):
    """Return `F.cross_entropy` summed over all tokens but the first of each line."""
    rows = [data.encode(line) for line in lines]
    rows = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    ### BEGIN SOLUTION
    logits = model(rows.clamp(min=0))  # (B, T, V)
    scores, targets = logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()
    return F.cross_entropy(scores, targets, reduction="sum")
    ### END SOLUTION


# %% id="check-loss-sum"
# @title Check: run this cell
@blanks.check("loss_sum", "return the sum of the losses, as a tensor")
def loss_is_a_sum():
    model, _ = make_gpt(torch.float64)
    for some in (lines[:1], lines[:3]):
        seen, alone, count = loss_sum(model, some), 0, 0
        for line in some:
            row = data.encode(line)
            logs = model(row[None])[0].log_softmax(-1)
            alone -= logs[:-1].gather(1, row[1:, None]).sum()
            count += len(row) - 1
        assert seen.shape == (), f"Return one number, not shape {[*seen.shape]}."
        assert abs(seen * count / alone - 1) > 1e-9 or count == 1, (
            "You returned the mean over tokens: the loop needs the sum."
        )
        off = (seen / alone).item()
        tries = "does each position score the next token?"
        if len(some) > 1:  # one line alone was right
            tries = "is padding left out?"
        assert abs(off - 1) < 1e-9, (
            f"{len(some)} lines, {count + len(some)} tokens: {off:.3f} times the sum: "
            f"{tries}"
        )
    assert torch.autograd.grad(seen, model.head.weight)[0].norm() > 0


# %% id="num-targets"
def num_targets(lines):
    return sum(len(data.encode(line)) - 1 for line in lines)


def whole(model, optimizer):  # all lines at once
    optimizer.zero_grad()
    loss = loss_sum(model, lines) / num_targets(lines)
    loss.backward()
    optimizer.step()
    return loss.item()


# %% [markdown] id="write-ragged"
# A **mean of means** divides each micro-batch's sum by its own number of tokens, and then by the
# number of micro-batches. The other choice is to divide each sum by the number of tokens in the
# *whole window*, counted before the first backward.
#
# **Write.** `ragged`, which can use either divisor. It returns the sum of the divided losses.


# %% id="ragged-steps"
def ragged(model, optimizer, lines, size, mean_of_means=False):
    """Do one update in micro-batches of `size` lines; return the scaled losses' sum.

    Divide each loss by the number of targets in all lines or, with `mean_of_means`, by
    the number in its own micro-batch times the number of micro-batches.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    starts, total = range(0, len(lines), size), 0.0
    for start in starts:
        part = lines[start : start + size]
        own = len(starts) * num_targets(part)
        loss = loss_sum(model, part) / (own if mean_of_means else num_targets(lines))
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
    ### END SOLUTION


# %% id="check-ragged-steps"
# @title Check: run this cell
@blanks.check("ragged", "return the sum of the losses, as a number")
def ragged_is_right():
    parts = lines[:2], lines[2:4], lines[4:5]
    for means in (False, True):
        (model, optimizer), calls, back = make_gpt(torch.float64), [], []
        divisors = [
            3 * num_targets(p) if means else num_targets(lines[:5]) for p in parts
        ]
        losses = [loss_sum(model, p) / d for p, d in zip(parts, divisors, strict=True)]
        loss = sum(losses)
        true = torch.autograd.grad(loss, model.parameters())
        model.register_forward_pre_hook(
            lambda _, rows, to=calls: to.append(len(rows[0]))
        )
        optimizer.register_step_post_hook(lambda *_, to=calls: to.append("step"))
        model.head.weight.register_hook(
            lambda _, to=back, calls=calls: to.append(len(calls))
        )
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e9)  # from an earlier update
        total = ragged(model, optimizer, lines[:5], 2, mean_of_means=means)
        assert calls == [2, 2, 1, "step"], (
            f"Expected micro-batches of 2, 2 and 1 lines, then a step, not {calls}."
        )
        assert back == [1, 2, 3], (
            "Call backward for each micro-batch before the next one's forward: "
            "otherwise all graphs are in memory at once."
        )
        assert all(p.grad is not None for p in model.parameters()), (
            "`.grad` is empty at the end: clear it at the beginning."
        )
        grads = parameters_to_vector(p.grad for p in model.parameters())
        assert grads.norm() < 1e6, "An older gradient is in the sum: clear it first."
        off = error(grads, parameters_to_vector(true))
        assert off < 1e-9, f"mean_of_means={means}: the gradient is off by {off:.0%}."
        assert not getattr(total, "requires_grad", False), (
            "The sum that you return has a graph, with all micro-batches in it: detach "
            "each loss before you add it."
        )
        assert abs(total - loss.item()) < 1e-9, (
            f"mean_of_means={means}: the scaled losses sum to {loss.item():.4f}, but "
            f"you returned {total:.4f}."
        )


# %% [markdown] id="predict-ragged"
# Next we compute a mean of means, over 32 rows in micro-batches of 4.
#
# **Predict.** Its gradient is wrong. How large is the error's norm, in % of the right gradient's
# norm?

# %% id="guess-ragged"
guess = None  # %


# %% id="measure-ragged"
double, weighted = torch.float64, partial(ragged, lines=lines, size=4)
means = partial(weighted, mean_of_means=True)
ragged_off = 100 * error(gradient(means, double), gradient(whole, double))
loss_off = 100 * abs(means(*make_gpt(double)) / whole(*make_gpt(double)) - 1)
print(f"gradient off by {ragged_off:.0f} %{beside(guess, ragged_off)}")
print(f"loss off by {loss_off:.1f} %")

# %% [markdown] id="read-ragged"
# In a mean of means, a token counts more if its micro-batch has few tokens. The logged loss hardly
# shows this, because its error is many times smaller than the gradient's.
#
# ## What happens once per update
#
# A real loop also scales the loss (for float16), clips gradients and steps a scheduler. Only the
# scaling belongs in the loop over micro-batches; everything else happens once, after that loop.
#
# **Write.** `update`, about twelve lines. You need `scaler.scale(loss)`,
# `scaler.unscale_(optimizer)`, `nn.utils.clip_grad_norm_(model.parameters(), 0.1)`,
# `scaler.step(optimizer)`, `scaler.update()` and `scheduler.step()`. Don't clip gradients that are
# still multiplied by the scale.


# %% id="update"
def update(model, optimizer, scheduler, scaler, num=4):
    """Do one update on the first 64 digits, in `num` parts; return the logged loss.

    A micro-batch's loss is `model.loss(images[rows].float(), labels[rows])`, a mean.
    The logged loss is the mean over all 64, as a number.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    logged = 0.0
    for rows in torch.arange(64).chunk(num):
        loss = model.loss(images[rows].float(), labels[rows]) / num
        scaler.scale(loss).backward()
        logged += loss.item()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return logged
    ### END SOLUTION


# %% id="check-update"
# @title Check: run this cell
@blanks.check("update", "return the logged loss, as a number")
def update_is_right():
    def make(scale):
        model, optimizer = make_vit()
        model.float()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
        return model, optimizer, schedule, torch.amp.GradScaler("cpu", init_scale=scale)

    (model, optimizer, schedule, scaler), sizes, norms = make(1024.0), [], []
    clipped_to = []
    true = model.loss(images[:64].float(), labels[:64])
    exact = parameters_to_vector(torch.autograd.grad(true, model.parameters()))
    calls, clips, loss_of = [], [], model.loss
    clip = nn.utils.clip_grad_norm_

    def loss(pixels, targets):
        sizes.append(len(targets))
        return loss_of(pixels, targets)

    def clipped(parameters, max_norm, *args, **kwargs):
        parameters = list(parameters)
        clips.append((len(sizes), max_norm))
        norms.append(parameters_to_vector(p.grad for p in parameters).norm())
        return clip(parameters, max_norm, *args, **kwargs)

    def look(*_):
        clipped_to.append(parameters_to_vector(p.grad for p in model.parameters()))

    def spied(name):
        of, real = (schedule if name == "schedule" else scaler), None
        real = getattr(of, "step" if name == "schedule" else name)

        def call(*args, **kwargs):
            calls.append(name)
            return real(*args, **kwargs)

        setattr(of, "step" if name == "schedule" else name, call)

    model.loss = loss
    optimizer.register_step_pre_hook(look)
    for name in ("scale", "step", "update", "schedule"):
        spied(name)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e9)  # from an earlier update
    with patch.object(nn.utils, "clip_grad_norm_", clipped):
        logged = update(model, optimizer, schedule, scaler, num=2)
    assert sizes == [32, 32], f"Expected two micro-batches of 32 digits, not {sizes}."
    assert calls.count("scale") == 2, "Scale each loss before its backward."
    assert clips == [(2, 0.1)], (
        "Clip to 0.1 once, after the last backward. You clipped after micro-batches "
        f"{[number for number, _ in clips]}."
    )
    number = len(clipped_to)
    assert number == 1, f"One window should make one update, not {number}."
    assert calls.count("step") == 1, "Update with `scaler.step`, not `optimizer.step`."
    (found,) = clipped_to
    size, along = found.norm().item(), F.cosine_similarity(found, exact, 0)
    assert along > 0.999, "An earlier update's gradient is in the sum: clear it."
    assert abs(size - 0.1) < 1e-4, (
        f"The gradient's norm is {size:.1g}, not 0.1: did you clip before unscaling?"
    )
    times = norms[0] / exact.norm()
    assert abs(times - 1) < 1e-3, (
        f"You clipped {times:.3g} times the gradient: divide each micro-batch's loss."
    )
    for name in ("update", "schedule"):
        number = calls.count(name)
        assert number == 1, (
            f"The {name} should run once per window, not {number} times."
        )
    assert abs(logged - true.item()) < 1e-5, (
        f"The mean loss is {true.item():.4f}, but you returned {logged:.4f}."
    )


# %% [markdown] id="read-mistakes"
# Three mistakes are common, and none raises an error:
#
# - *Clipping in each micro-batch*: each clip shrinks the earlier micro-batches' gradients again.
# - *Unscaling too late, or never*: the clip then sees gradients that are still multiplied by the
#   scale, and shrinks them too much.
# - *Stepping the scheduler in each micro-batch*: the schedule runs `num` times too fast.
#
# ## The other price: time
#
# A common claim is "Accumulation adds no computation." To test it, we run 32 samples as one batch
# and as 32 micro-batches of 1. We count the FLOPs of both, and time both.


# %% id="flops"
def gpt_step(model, ids, num):
    for micro_batch in ids.chunk(num):
        (model.loss(micro_batch) / num).backward()


model, ids = make_gpt()[0], torch.zeros(32, config.seq_len, dtype=torch.long)
one = memory.measure(partial(gpt_step, model, ids, 1), model=model, flops=True)
many = memory.measure(partial(gpt_step, model, ids, 32), model=model, flops=True)
flops_ratio = many.flops / one.flops
f"{flops_ratio:.2f} times the FLOPs in 32 micro-batches"

# %% id="seconds"
# NBVAL_IGNORE_OUTPUT
place = device.pick()
names = {"gpt_step": gpt_step, "model": model.to(place), "ids": ids.to(place)}
timers = {n: Timer(f"gpt_step(model, ids, {n})", globals=names) for n in (1, 4, 8, 32)}
rounds = [{n: timer.timeit(1).mean for n, timer in timers.items()} for _ in range(3)]
seconds = pd.DataFrame(rounds)  # each round in turn: all see the same machine
slower = seconds.div(seconds[1], axis="index").median()
print(f"{device.describe(place)}: {slower[32]:.1f} times as long in 32 micro-batches")
slower.round(2).rename_axis("micro-batches").to_frame("times as long as one batch")

# %% [markdown] id="read-time"
# The FLOPs are the same, but the times differ. Each call has a fixed cost, and small matrices leave
# a machine partly idle. A matrix with a few rows keeps a CPU core busy, but a GPU needs thousands
# of rows. So time a few micro-batch sizes, and take the smallest that is almost as fast as the
# fastest.
#
# ## Verdicts

# %% id="verdicts"
averages = [error(gradient(partial(accumulated, num=24 // size), double),
                  gradient(big_batch, double)) for size in (1, 2, 4, 8)]  # fmt: skip
averages += [error(gradient(partial(means, size=size), double), gradient(whole, double))
             for size in (1, 2, 4, 8)]  # fmt: skip
right = [off < 1e-9 for off in averages]
claims.Verdicts(
    claims.Verdict("A08", "built", "The plain loop equals the big batch if every "
        "window is full and each micro-batch's loss is a plain mean over the same "
        "number of terms, each from a single sample.",
        f"within float64's rounding: {exact}", "computed", "distances"),
    claims.Verdict("A09", "holds if", "The mean of micro-batch gradients is the big "
        "batch's gradient if each loss depends on one sample and each micro-batch is "
        "weighted by its share of the window.", f"{ragged_off:.0f} % off where rows "
        "differ in length", "computed", "measure-ragged",
        held=(sum(right), len(right), "sizes and kinds of rows")),
    claims.Verdict("D01", "holds if", "The accumulated gradient is exact, up to "
        "rounding, if each loss depends on one sample and each micro-batch is "
        "weighted by its share of the window. A bfloat16 sum rounds a lot.",
        f"{ragged_off:.0f} % off where rows differ in length", "computed",
        "measure-ragged",
        held=(sum(right), len(right), "sizes and kinds of rows")),
)  # fmt: skip

# %% id="verdicts-memory"
pairs = [(a.split(" x "), b.split(" x ")) for a, b in permutations(gpt2_peaks, 2)]
peaks = [tuple(gpt2_peaks[" x ".join(step)] for step in pair) for pair in pairs]
decided = [(a[0] == b[0]) == (abs(p / q - 1) < 0.01)
           for (a, b), (p, q) in zip(pairs, peaks, strict=True)]  # fmt: skip
no_lower = [q >= p for (a, b), (p, q) in zip(pairs, peaks, strict=True)
            if int(a[1]) < int(b[1])]  # fmt: skip
CARDS = ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
speeds = [planning.Speed.of(card) for card in CARDS]
fills = [planning.filling_micro_batch(Recipe("gpt2", 32, precision=s.autocast), s)
         for s in speeds]  # fmt: skip
full = [size >= least for least in fills for size in (1, 2, 4, 8, 16)]
claims.Verdicts(
    claims.Verdict("A02", "holds if", "If rows are equally long, and fetched one "
        "micro-batch at a time, the micro-batch decides the memory, and the global "
        "batch does not. A second micro-batch adds a copy of the gradients at most.",
        f"{gpt2_peaks['8 x 2']:.2f} and "
        f"{gpt2_peaks['8 x 4']:.2f} GiB for batches of 16 and 32 with 8 at a time; "
        f"{gpt2_peaks['4 x 8']:.2f} GiB with 4 at a time", "predicted",
        "only-micro-batch", device="CUDA kernels",
        held=(sum(decided) // 2, len(decided) // 2, "pairs of GPT-2's steps")),
    claims.Verdict("A10", "holds if", "Four micro-batches of 8 cut the activations of "
        "a batch of 32 by 75 %, and the peak by less, unless the peak is nearly all "
        "activations.", f"{fell['activations']:.1f} % of the activations, "
        f"{fell['whole step']:.1f} % of the peak", "counted", "memory-table",
        tried={"saved": fell}),
    claims.Verdict("D03", "holds if", "Accumulation does not reduce the peak if the "
        "micro-batch stays the same: it adds up to one copy of the gradients to "
        "forward and backward.",
        f"{added:+.2f} P", "counted", "memory-table",
        held=(sum(no_lower), len(no_lower), "pairs of GPT-2's steps")),
    claims.Verdict("A11", "holds if", "Accumulation adds no FLOPs; it adds no time "
        "only if each micro-batch still fills the machine.", f"{flops_ratio:.2f} times "
        "the FLOPs with 32 micro-batches", "counted", "flops",
        held=(sum(full), len(full), "cards and micro-batches, predicted")),
)  # fmt: skip

# %% [markdown] id="your-run-text"
# ## Your run
#
# With the changes of chapters 05 and 07, most of `train.py`'s memory at the peak is logits: 12 x
# 1024 rows of 50257 numbers. With 4 of the 12 sequences at a time, the logits take a third of that.
#
# **Write.** The loop of `train.py`'s update. Each micro-batch has the same number of tokens.


# %% id="in-micro-batches"
def in_micro_batches(model, optimizer, tokens, micro_batch=4):
    """Do one update in micro-batches; return the mean loss, a tensor without a graph.

    `train.loss_of(model, part)` is the mean loss of a part.
    """
    optimizer.zero_grad()
    parts, total = tokens.split(micro_batch), 0
    ### BEGIN SOLUTION
    for part in parts:
        loss = train.loss_of(model, part) / len(parts)
        loss.backward()
        total = total + loss.detach()
    ### END SOLUTION
    optimizer.step()
    return total


# %% id="check-in-micro-batches"
# @title Check: run this cell
@blanks.check("in_micro_batches", "return the mean loss, as a tensor")
def updates_once():
    tokens = your_run.ROWS
    (model, optimizer), (twin, other) = (train.make(train.TWIN) for _ in range(2))
    sizes, back, steps, loss_of = [], [], [], train.loss_of

    def counted(model, part):
        sizes.append(len(part))
        return loss_of(model, part)

    model.norm.weight.register_hook(lambda _: back.append(len(sizes)))
    optimizer.register_step_post_hook(lambda *_: steps.append(len(sizes)))
    with patch.object(train, "loss_of", counted):
        loss = in_micro_batches(model, optimizer, tokens, micro_batch=3)
    wanted = train.update(twin, other, tokens)
    assert sizes == 4 * [3], f"Expected 4 micro-batches of 3 sequences, not {sizes}."
    assert back == [1, 2, 3, 4], (
        "Call backward after each loss: otherwise all graphs are in memory at once."
    )
    assert steps == [4], f"The optimizer steps after losses {steps}, not only after 4."
    gone = any(p.grad is None for p in model.parameters())
    assert not gone, "The gradients are gone: clear them only at the beginning."
    seen, true = (
        torch.cat([p.grad.flatten() for p in gpt.parameters()]) for gpt in (model, twin)
    )
    times = (seen @ true / true.square().sum()).item()
    assert abs(times - 1) < 1e-3, (
        f"The gradient is {times:.2f} times the whole batch's."
    )
    assert not loss.requires_grad, "The loss that you return has a graph: detach it."
    assert abs(loss - wanted) < 1e-4, f"The mean loss is {wanted:.3f}, not {loss:.3f}."


# %% id="apply"
your_run.apply("08", update=in_micro_batches)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A window has micro-batches of 8, 8 and 4 rows, and each loss is a mean over its rows. By
# what do you multiply each loss?
#
# <details><summary>Answer</summary>
#
# Multiply by 8/20, 8/20 and 4/20. With 1/3, each of the last four rows would count $\frac{1}{12}$
# instead of $\frac{1}{20}$.
# </details>
#
# **2.** Gradients take 6 GiB, and each sample's activations take 2 GiB. How much do both take
# together at the end of an update's last forward, with 8 x 1 and with 1 x 8?
#
# <details><summary>Answer</summary>
#
# 8 x 1 has only one forward, and no gradients yet: it takes 8 · 2 = 16 GiB. 1 x 8 takes 2 + 6 =
# 8 GiB, because the earlier micro-batches' gradients are still in memory.
# </details>
#
# **3.** In problem 2, what is the smallest effective batch for which a micro-batch of 1 saves
# memory?
#
# <details><summary>Answer</summary>
#
# All at once, $n$ samples take $2n$ GiB. One at a time, they take 8 GiB. $2n$ is more than 8 from
# $n = 5$ on, so the smallest is 5.
# </details>

# %% [markdown] id="summary"
# ## What you can now do
#
# - Write the loop from the formula, and weight each micro-batch by its share of the whole window.
# - Compare two loops by their gradients, in float64.
# - Say what accumulation saves (activations) and what it costs (one copy of the gradients, and time
#   if micro-batches are small).
#
# In lab 06, `lab06_exact_accumulation`, you write one step that handles all of this chapter's
# cases. The companions `08b_trainers_and_losses` and `08c_sixteen_bits` are optional.
