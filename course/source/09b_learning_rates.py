# %% [markdown] id="title"
# # Learning rates for larger effective batches
#
# This companion of chapter 09 is optional: no lab and no later chapter needs it. Even if all
# gradients are exact, one question is left: how should the learning rate change with the effective
# batch? Two answers are common: in proportion to the effective batch, or in proportion to its
# square root. A common warning says: "Accumulation slows convergence down, because updates are
# delayed." We test the two answers and the warning by training.
#
# **Budget:** 55 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
from functools import cache
from itertools import pairwise, product

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from tutorial_lib import claims, data, plots
from tutorial_lib.guesses import beside

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="networks"
# ## Four networks, one set of samples
#
# No layer here mixes samples, so splitting a batch changes nothing (chapter 08), and we run each
# batch unsplit. Four networks with different initial weights train side by side, as slices of one
# tensor. A run's result is the median of their losses on all 1536 digits after four epochs. Every
# run sees the same samples.


# %% id="four-nets"
class FourNets(nn.Module):
    def __init__(self, sizes=(64, 64, 64, 10)):
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width, out in pairwise(sizes):
            self.weights.append(torch.randn(4, width, out) * math.sqrt(2 / width))
            self.biases.append(torch.zeros(4, 1, out))

    def forward(self, h):  # (4, B, 64) -> (4, B, 10)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            out = torch.baddbmm(bias, h, weight)
            h = F.relu(out)
        return out


# %% id="losses"
order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
images, labels = (rows[order[:1536]] for rows in data.digits())


def losses(model, rows):  # one per network; their sum has independent gradients
    logits = model(images[rows].flatten(1).expand(4, -1, -1)).flatten(0, 1)
    targets = labels[rows].repeat(4)
    each = F.cross_entropy(logits, targets, reduction="none")
    return each.view(4, -1).mean(dim=1)


# %% id="one-run"
@cache
def run(kind, batch, rate, warm_up=0, epochs=4):
    torch.manual_seed(0)
    model, curve, seen = FourNets(), {}, 0
    optimizer = kind(model.parameters(), lr=rate, fused=True)
    for _ in range(epochs):
        for rows in torch.randperm(1536).split(batch):
            seen += len(rows)
            optimizer.param_groups[0]["lr"] = rate * min(1, seen / max(1, warm_up))
            optimizer.zero_grad()
            losses(model, rows).sum().backward()
            optimizer.step()
            if seen % 512 == 0:
                with torch.no_grad():
                    curve[seen] = float(losses(model, torch.arange(1536)).median())
    return curve


# %% id="final"
def final(*recipe, **options):  # the loss after four epochs
    return run(*recipe, **options)[4 * 1536]


# %% [markdown] id="predict-sweep"
# For each batch size, we plot the final loss against the learning rate. Each curve is a valley with
# the best rate at the bottom.
#
# **Predict.** With Adam, when the batch grows from 16 to 256, by what factor does the best learning
# rate grow?

# %% id="guess-sweep"
guess = None  # times

# %% id="sweep"
# NBVAL_IGNORE_OUTPUT
rates = {SGD: [2.0**k for k in range(-4, 1)], Adam: [2.0**k for k in range(-9, -3)]}
batches, best = (16, 64, 256), {}
for kind, batch in product(rates, batches):
    best[kind, batch] = min(rates[kind], key=lambda rate: final(kind, batch, rate))
grown = best[Adam, 256] / best[Adam, 16]
print(f"Adam's best rate grows {grown:.0f} times{beside(guess, grown)}")
pd.DataFrame({kind.__name__: {b: best[kind, b] for b in batches} for kind in rates}).T


# %% id="valleys"
def valleys(kind):
    curves = {f"batch {batch}": {} for batch in batches}
    for batch, rate in product(batches, rates[kind]):
        curves[f"batch {batch}"][rate] = final(kind, batch, rate)
    title = f"{kind.__name__}, the same {4 * 1536} samples (both axes logarithmic)"
    words = {"xlabel": "learning rate", "ylabel": "final loss", "title": title}
    return plots.training_curves(curves, log="xy", **words)


# %% id="sweep-figure-sgd"
# NBVAL_IGNORE_OUTPUT
valleys(SGD)

# %% id="sweep-figure-adam"
# NBVAL_IGNORE_OUTPUT
valleys(Adam)

# %% [markdown] id="read-sweep"
# **SGD** (first figure). On the left, at small learning rates, the three curves have the same
# shape, and a larger batch shifts the curve to the right. There, one step with four times the batch
# and four times the rate goes as far as four steps of the smaller batch. So you can multiply batch
# and rate by the same factor. That is the linear rule of Goyal et al. (2017).
#
# On the right is a wall: the loss rises steeply, at nearly the same learning rate for all batches.
# Steps of that length overshoot, because the loss is curved, and its curvature doesn't depend on
# the batch. So the linear rule works only far to the left of the wall. Near it, the rule takes you
# into it.
#
# **Adam** (second figure). From batch 16 to 64 the best rate grows in proportion to the batch; from
# 64 to 256, with the square root of the batch. (We tried only rates that are a factor of two
# apart.) If most of the gradient is noise, theory predicts the square root: an average over four
# times as many samples has half the noise, so the rate can double (Malladi et al., 2022).
#
# Far below the best rate, a larger batch ends with a higher loss. There, the length of Adam's steps
# hardly depends on the gradient. A batch four times as large takes a quarter of the steps for the
# same samples. So at the same rate it gets a quarter as far.
#
# ## The rules in practice
#
# In practice you take a rate that worked at batch 16 and multiply it. We start from two such rates:
# the best at batch 16 (*bold*), and an eighth of it (*careful*). When the batch grows by a factor
# of $f$, the table's columns multiply the rate by 1 (`none`), $\sqrt f$ (`root`) or $f$ (`linear`).
# **Which rule ends with the lowest loss at batch 256?**

# %% id="rules"
# NBVAL_IGNORE_OUTPUT
powers, rows = {"none": 0, "root": 0.5, "linear": 1}, {}
manners = {"bold": 1, "careful": 1 / 8}
for kind, manner, batch in product(rates, manners, (64, 256)):
    base = best[kind, 16] * manners[manner]
    rows[kind.__name__, manner, batch] = {
        name: final(kind, batch, base * (batch / 16) ** power)
        for name, power in powers.items()
    }
rules = pd.DataFrame(rows).T.rename_axis(["optimizer", "rate", "batch"])
lowest = (rules.linear < rules.root) & (rules.linear < rules.none)
print(f"lowest with the linear rule: {lowest.sum()} of {len(rules)}")
safer = rules.root < rules.linear
print(f"lower with the root than the linear rule: {safer.sum()} of {len(rules)}")
rules.round(3)

# %% [markdown] id="read-rules"
# No rule wins everywhere. From a careful rate, the linear rule ends lowest. From a bold rate, at
# batch 256, the linear rule ruins SGD's run, while the square root doesn't. So the square root is
# safer, but from a careful rate it learns more slowly.
#
# 1536 digits and three layers say nothing about training on a billion tokens. Beyond some batch
# size, a larger batch no longer helps (McCandlish et al., 2018), and here that size is small. So
# reuse the method, not the exponents.
#
# ## Delayed updates
#
# Does accumulation slow convergence down? We run SGD at its careful rate again, and plot the loss
# first against samples, then against updates.
#
# **Predict.** Batches of 16 and of 256 train on the same samples at the same learning rate. The
# final loss is higher with batch 256. By what factor?

# %% id="guess-delayed"
guess = None  # times

# %% id="delayed"
# NBVAL_IGNORE_OUTPUT
base = best[SGD, 16] / 8
curves = {"16": run(SGD, 16, base), "64, same rate": run(SGD, 64, base),
          "256, same rate": run(SGD, 256, base), "64, linear": run(SGD, 64, 4 * base),
          "256, linear": run(SGD, 256, 16 * base)}  # fmt: skip
ends = {name: curve[4 * 1536] for name, curve in curves.items()}
higher = ends["256, same rate"] / ends["16"]
print(f"256, same rate: {higher:.1f} times as high{beside(guess, higher)}")
tried = [(k, b, r) for k in rates for b in (64, 256) for r in rates[k]]
slower = {(k, b, r): final(k, b, r) > 1.25 * final(k, 16, r) for k, b, r in tried}
below = {each: slow for each, slow in slower.items() if each[2] <= best[each[0], 16]}
print(
    f"at batch 16's rate, at least 25 % higher: {sum(slower.values())} of "
    f"{len(slower)}; at or below its best: {sum(below.values())} of {len(below)}"
)
linear = [name for name in curves if "linear" in name]
title = "By samples, the linear rule's runs agree (loss logarithmic)"
words = {"ylabel": "loss", "dashed": linear}
plots.training_curves(curves, xlabel="samples seen", log="y", title=title, **words)

# %% id="delayed-updates"
# NBVAL_IGNORE_OUTPUT
by_updates = {
    name: {seen // int(name.split(",")[0]): loss for seen, loss in curve.items()}
    for name, curve in curves.items()
}
title = "By updates, the runs at one rate agree (both axes logarithmic)"
plots.training_curves(by_updates, xlabel="updates", log="xy", title=title, **words)

# %% [markdown] id="read-delayed"
# At one learning rate, the three batch sizes have about the same loss after the same number of
# *updates*. So batch 256 needs sixteen times as many samples as batch 16. With the linear rule,
# they have nearly the same loss after the same number of *samples*.
#
# So if you leave the learning rate unchanged, and it is at or below batch 16's best, a larger batch
# really is slower. At a rate above batch 16's best, the larger batch may even end lower, since it
# averages out noise. Accumulation itself delays nothing: at the same effective batch, chapter 08's
# loop makes the same updates from the same samples.
#
# ## A factor that the optimizer hides
#
# If you forget to divide the loss of four micro-batches by four, every gradient is four times too
# large. The next cell trains five updates with the division and five without. It measures how far
# apart the weights end, as a percentage of the distance that the right run moved them.
#
# **Predict.** What is this percentage with AdamW?

# %% id="guess-factor"
guess = None  # %


# %% id="factor"
def moved(kind, rate, factor, updates=5):
    torch.manual_seed(0)
    model = FourNets()
    optimizer = kind(model.parameters(), lr=rate)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    for rows in torch.arange(64 * updates).split(64):
        optimizer.zero_grad()
        (factor * losses(model, rows).sum()).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


# %% id="factor-off"
# NBVAL_IGNORE_OUTPUT
off = {}
for kind, rate in ((SGD, 0.01), (AdamW, 1e-3)):
    right, wrong = (moved(kind, rate, factor) for factor in (1, 4))
    off[kind.__name__] = float(100 * (wrong - right).norm() / right.norm())
print(f"SGD {off['SGD']:.0f} %")
print(f"AdamW {off['AdamW']:.2f} %{beside(guess, off['AdamW'])}")

# %% [markdown] id="factor-read"
# With SGD the error is larger than the distance that the right run moved. AdamW divides by the
# gradient's size, so the factor of four cancels, except for the small `eps` in the denominator.
#
# ## Warm-up: samples or updates?
#
# At batch 16, a warm-up over the first epoch takes 1536 samples, or 96 updates. **At batch 256,
# should it last 1536 samples or 96 updates?**

# %% id="warm-up"
# NBVAL_IGNORE_OUTPUT
rows = {}
for batch in (16, 256):
    rate, name = base * batch / 16, f"SGD, batch {batch}"
    lengths = {"none": 0, "1536 samples": 1536, "96 updates": 96 * batch}
    for length, samples in lengths.items():
        rows[length, name] = final(SGD, batch, rate, warm_up=samples)
pd.Series(rows).unstack(0)[list(lengths)].round(3)

# %% [markdown] id="read-warm-up"
# At batch 256, 96 updates are longer than the whole run. So if you copy a schedule that counts
# updates, check it against the run's length. This experiment can't show which length is best,
# because its runs end lowest without a warm-up.
#
# ## How fast does BatchNorm forget?
#
# BatchNorm keeps a running mean and variance for `eval()`. Every *forward* updates them by
# `running = 0.9 * running + 0.1 * batch`, and an accumulated update has many forwards. **After one
# update in 16 micro-batches, how much is left of the old running mean?** The cell below sets the
# old mean to a million, so that you can read off its share.


# %% id="running"
def share_left(num, momentum=0.1):
    norm = nn.BatchNorm1d(64, momentum=momentum)
    norm.running_mean.fill_(1e6)
    for part in images[:64].flatten(1).chunk(num):
        norm(part)
    return round(float(norm.running_mean.mean()) / 1e6, 2)


left = {n: (share_left(n), share_left(n, 1 - 0.9 ** (1 / n))) for n in (1, 4, 16)}
heads = ["momentum 0.1", "momentum 1 - 0.9 ** (1 / num)"]
pd.DataFrame(left, index=heads).T.rename_axis("micro-batches")

# %% [markdown] id="read-running"
# With sixteen micro-batches, one update forgets as much as sixteen updates without accumulation.
# Then only the last few micro-batches determine the statistics for evaluation, so these are noisy.
# The training loss never shows this. The smaller momentum in the right column fixes the statistics,
# but BatchNorm's gradients stay wrong (chapter 09).
#
# ## Contrastive training: which loop finds more?
#
# Chapter 09's two encoders learn which left half of a digit belongs to which right half. The naive
# loop reports a lower loss than the whole batch does. Does it also train a better model?
#
# Two loops train on the same 1536 digits, with updates of 128 pairs. One uses the whole batch, as
# cached gradients do; the other uses 8 micro-batches of 16. We try each at three learning rates,
# and score the models on the 261 unseen digits. The score is how often a digit's own right half is
# among the five best of 261 candidates.


# %% id="encoders"
def encoder(width, p):
    def layer(size):
        norm = nn.LayerNorm(width)
        return nn.Sequential(nn.Linear(size, width), nn.GELU(), norm, nn.Dropout(p))

    return nn.Sequential(nn.Flatten(), layer(32), layer(width), nn.Linear(width, 32))


class TwoEncoders(nn.Module):
    def __init__(self, width=128, p=0.1):
        super().__init__()
        self.left, self.right = encoder(width, p), encoder(width, p)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, images):  # (B, 1, 8, 8) -> (B, 2, 32), of length 1
        left, right = images.split(4, dim=-1)
        both = torch.stack([self.left(left), self.right(right)], dim=1)
        return F.normalize(both, dim=-1)


# %% id="contrastive-update"
def contrastive_update(model, optimizer, pixels, num):
    optimizer.zero_grad()
    total = 0.0
    for part in pixels.chunk(num):
        left, right = model(part).unbind(dim=1)
        scores, own = left @ right.T * model.log_scale.exp(), torch.arange(len(part))
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2 / num
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


# %% id="score"
unseen = data.digits()[0][order[1536:]]


@torch.no_grad()
def score(model, first=5):
    left, right = model.eval()(unseen).unbind(dim=1)
    scores = left @ right.T
    return float(((scores > scores.diag()[:, None]).sum(dim=1) < first).float().mean())


def train(num, lr):
    torch.manual_seed(0)
    model = TwoEncoders()
    optimizer = AdamW(model.parameters(), lr=lr, fused=True)
    for _ in range(6):
        updates = torch.randperm(len(images)).split(128)
        reported = [
            contrastive_update(model, optimizer, images[r], num) for r in updates
        ]
    return sum(reported) / len(reported), score(model)


# %% id="train-two"
# NBVAL_IGNORE_OUTPUT
runs = {}
for lr in (1e-3, 2e-3, 4e-3):
    runs["whole batch of 128", lr] = train(1, lr)
    runs["naive, 16 x 8", lr] = train(8, lr)
results = pd.DataFrame(runs, index=["loss, nats", "found, share"]).T.unstack().round(2)
results.rename_axis(columns=["", "learning rate"])

# %% [markdown] id="read-train"
# The naive loop reports by far the better loss, but its best score is lower than the whole batch's.
# Finding a partner among 16 is easier than among 128, and teaches less. (This is one seed and a
# small set, so trust the direction and not the exact numbers.)
#
# ## Verdicts

# %% id="verdicts"
choices = "choices of optimizer, rate and batch"
claims.Verdicts(
    claims.Verdict(
        "A16", "holds if", "The linear rule ends with the lowest loss, except where it "
        "scales SGD's or Adam's best rate to batches of 256: stay far below the "
        "largest stable rate.",
        f"lowest in {lowest.sum()} of {len(rules)}", "computed", "rules",
        held=(int(lowest.sum()), len(rules), choices)),
    claims.Verdict(
        "B05", "holds if", "On the same samples, a larger effective batch ends with a "
        "higher loss if the learning rate is unchanged and at or below the small "
        "batch's best. Accumulation itself delays nothing.",
        f"{sum(below.values())} of {len(below)} at or below the best rate", "computed",
        "delayed", held=(sum(slower.values()), len(slower), choices)),
    claims.Verdict(
        "D15", "holds if", "The square root is safer if the rate was bold, but slower "
        "if it was careful. (The unit to count a warm-up in was not tested.)",
        f"{safer.sum()} of {len(rules)}", "computed", "rules",
        held=(int(safer.sum()), len(rules), choices)),
)  # fmt: skip

# %% [markdown] id="summary"
# ## What you can now do
#
# - Choose a learning rate for a larger effective batch: ask first whether the old rate was the best
#   one or below it.
# - Check a copied schedule against the run's length, and set BatchNorm's momentum so that its
#   statistics forget a fixed share per update, not per micro-batch.
#
# Back to the core: chapter 10, `10_transformers`.
