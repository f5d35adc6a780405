# %% [markdown] id="title"
# # When accumulation lies
#
# Chapter 08 ended with a loop that equals the big batch to rounding. Put a BatchNorm into the
# model, and the same loop trains another model. Give it the loss of CLIP, and it reports a loss
# several times *lower* than the big batch does, for a model that is worse. Nothing is raised,
# nothing is NaN, and every line of the loop is right.
#
# The proof had a premise that nobody reads. In this chapter you see it as a picture, break it three
# ways, and mend each. The last mend, cached gradients, turns out to be something you have already
# built. And then the question that is left when all gradients are exact: does the larger effective
# batch train any better, and at which learning rate?
#
# **Budget:** 60 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
from functools import cache, partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import data, memory, plots
from tutorial_lib.checks import CheckError, assert_same_training
from tutorial_lib.models.resnet import ResNet, ResNetConfig
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # small steps lose more by waiting for a second core than they gain

# %% [markdown] id="premise"
# ## The premise, as a picture
#
# The gradient of a sum is the sum of the gradients, whatever the terms are. But a loop over
# micro-batches can only compute a term when that term needs *one sample*: $\ell_i$ may depend on
# $x_i$ and the parameters, and on no $x_j$. That can be tested. Take the gradient of each sample's
# loss with respect to each sample's pixels, and see which are not zero: who listens to whom.
#
# The subject is a small network on digits, with a place for the layer in question. (Where a cell
# begins with `NBVAL_IGNORE_OUTPUT`, the digits you see depend on your machine; what the text says
# of them does not. What rounding does to a sum, chapter 08 has settled.)


# %% id="net"
images, labels = data.digits()
x, y = images[:64], labels[:64]


def make_net(norm=nn.Identity, p=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    first = [nn.Flatten(), nn.Dropout(p), nn.Linear(64, 64), norm(64), nn.ReLU()]
    model = nn.Sequential(*first, nn.Dropout(p), nn.Linear(64, 10)).to(dtype)
    return model, SGD(model.parameters(), lr=0.1)


# %% id="influence"
def influence(losses_of, batch):
    batch = batch.clone().requires_grad_()
    rows = [
        torch.autograd.grad(loss, batch, retain_graph=True)[0] for loss in losses_of(batch)
    ]  # one (B, 1, 8, 8) for each loss
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows])  # (losses, samples)


def losses(model, pixels, targets=y):
    pixels = pixels.to(next(model.parameters()).dtype)
    return F.cross_entropy(model(pixels), targets[: len(pixels)], reduction="none")


def in_pieces(losses_of, num=2):
    return lambda batch: torch.cat([losses_of(part) for part in batch.chunk(num)])


# %% [markdown] id="predict-picture"
# **Predict.** Eight images, so eight rows and eight columns. Which squares are filled with a
# LayerNorm in the network? With a BatchNorm? And when BatchNorm gets them as two micro-batches?

# %% id="picture"
layer, batch = (partial(losses, make_net(norm)[0]) for norm in (nn.LayerNorm, nn.BatchNorm1d))
plots.influence(
    {
        "LayerNorm": influence(layer, x[:8]),
        "BatchNorm": influence(batch, x[:8]),
        "BatchNorm, 2 x 4": influence(in_pieces(batch), x[:8]),
    }
)

# %% [markdown] id="read-picture"
# A diagonal may be cut anywhere. The full square may not: what lies outside the two blocks is
# lost, and since the blocks are normalised by themselves, what lies inside changes too. That is
# the whole chapter. A loop over micro-batches is exact when the picture is diagonal, and what
# stands beside the diagonal you have to name before you accumulate.
#
# ## BatchNorm: the layer that looks sideways


# %% id="steps"
def accumulated(model, optimizer, num=4):
    optimizer.zero_grad()
    total = 0.0
    for rows in torch.arange(len(x)).chunk(num):
        loss = losses(model, x[rows], y[rows]).sum() / len(x)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def big_batch(model, optimizer):
    return accumulated(model, optimizer, num=1)


def verdict(step_a, step_b, make, **options):
    try:
        assert_same_training(step_a, step_b, make=make, **options)
    except CheckError as refusal:
        print(str(refusal).partition(" (")[0])


# %% id="layer-norm-exact"
assert_same_training(big_batch, accumulated, make=partial(make_net, nn.LayerNorm))

# %% [markdown] id="predict-batch-norm"
# **Predict.** With BatchNorm: is the gradient off by one per cent, ten, or more? Does it get better
# or worse with more and smaller micro-batches? And with ten BatchNorms in a row, as in a ResNet?


# %% id="gradients"
def gradient(step, make):
    model, *rest = make()
    step(model, *rest)
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


def make_resnet(dtype=torch.float64):
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(in_channels=1, stage_depths=(1, 1, 1), base_channels=4)).to(dtype)
    return model, SGD(model.parameters(), lr=0.1)


# %% id="batch-norm-errors"
# NBVAL_IGNORE_OUTPUT
norms = {"LayerNorm": nn.LayerNorm, "GroupNorm": partial(nn.GroupNorm, 8)}
norms["BatchNorm"] = nn.BatchNorm1d
subjects = {name: partial(make_net, norm) for name, norm in norms.items()} | {"ResNet": make_resnet}
pieces = (2, 4, 8, 16, 32)
print(f"{'micro-batches':<14}", *(f"{f'{n} x {64 // n}':>8}" for n in pieces))
for name, make in subjects.items():
    wanted = gradient(big_batch, make)
    off = [error(gradient(partial(accumulated, num=n), make), wanted) for n in pieces]
    print(f"{name:<14}", *(f"{f'{e:.0%}' if e > 1e-3 else f'{e:.0e}':>8}" for e in off))

# %% [markdown] id="read-batch-norm"
# LayerNorm and GroupNorm normalise within a sample, so only rounding in float64 is left, however
# small the pieces. BatchNorm is off by tens of per cent with pieces that people do use. With pieces
# of two, a normalised value is always near plus or minus one: the gradient's length doubles, and
# its direction is nearly lost.
#
# All this is the distance from the big batch's gradient. Small statistics are noise, and noise can
# regularise: Hoffer et al. (2017) split big batches on purpose, and called it ghost batch
# normalisation. What you lose is the sentence "batch 64": with BatchNorm the micro-batch is a
# hyperparameter of the model.
#
# ### The statistics for evaluation
#
# BatchNorm has a second memory: a running mean and variance, used in `eval()`, updated in every
# *forward*, `running = 0.9 * running + 0.1 * of this batch`.
#
# **Predict.** After one update, how much is left of what the running mean held before it, with the
# big batch and with 4 micro-batches?

# %% id="running"
# NBVAL_IGNORE_OUTPUT
verdict(big_batch, accumulated, partial(make_net, nn.BatchNorm1d),
        ignore=["loss", "gradients", "parameters"])  # fmt: skip


def share_left(num, momentum=0.1):
    model, optimizer = make_net(partial(nn.BatchNorm1d, momentum=momentum))
    model[3].running_mean.fill_(1e6)  # something old, to be forgotten
    accumulated(model, optimizer, num)
    return float(model[3].running_mean.mean()) / 1e6


for num in (1, 4, 16):
    mended = 1 - (1 - 0.1) ** (1 / num)
    print(f"{num:>2} micro-batches: {share_left(num):.0%} left, "
          f"and {share_left(num, mended):.0%} with momentum {mended:.4f}")  # fmt: skip

# %% [markdown] id="read-running"
# The old mean is multiplied by 0.9 in every micro-batch, so that 16 of them forget four fifths of
# it in one update. Evaluation then rests on the last ten micro-batches instead of the last ten
# batches: noisier statistics, which the training loss never shows. A momentum $m'$ with
# $(1-m')^N = 1-m$ sets the decay right, as the last column shows. For the gradients it does
# nothing.
#
# ### Mends
#
# Three are offered everywhere. *SyncBatchNorm*: statistics over all processes. *Frozen
# statistics*: BatchNorm in `eval()` while the rest trains, as fine-tuning of detectors has done for
# years. *GroupNorm* in BatchNorm's place, as the diffusion U-Nets have it.
#
# **Predict.** Which of the three make accumulation exact?


# %% id="mend"
def frozen(model):
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()  # weight and bias still train; call it again after each model.train()
    return model


def with_groups(model, channels=4):
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = nn.GroupNorm(child.num_features // channels, child.num_features)
            setattr(model, name, norm.to(child.weight.dtype))
        with_groups(child)
    return model


def make_mended(mend):
    model = mend(make_resnet()[0])
    return model, SGD(model.parameters(), lr=0.1)


# %% id="judge-mends"
# NBVAL_IGNORE_OUTPUT
mends = {"SyncBatchNorm": nn.SyncBatchNorm.convert_sync_batchnorm, "frozen": frozen,
         "GroupNorm": with_groups}  # fmt: skip
for name, mend in mends.items():
    print(f"{name:<14}", end="")
    verdict(big_batch, accumulated, partial(make_mended, mend))

# %% [markdown] id="read-mends"
# SyncBatchNorm speaks across processes at one moment. Micro-batches of one process come one after
# the other, and when the last one arrives, the first is gone; on eight GPUs the statistics would be
# of eight micro-batches, for any number of accumulation steps. Frozen statistics are exact, and
# need statistics worth freezing, from pre-training. GroupNorm is exact and another model: choose it
# before you train.
#
# ## Dropout: the layer that draws
#
# Dropout does not look sideways; its picture is a diagonal. But run it in pieces and the random
# numbers fall on other samples.
#
# **Predict.** Is the accumulated gradient with dropout wrong? Is it wrong in the way of BatchNorm?

# %% id="dropout-differs"
# NBVAL_IGNORE_OUTPUT
make_dropout = partial(make_net, p=0.2)
verdict(big_batch, accumulated, make_dropout)

# %% [markdown] id="same-masks"
# It differs, as two runs of the big batch do from one another. To see whether that is all, hand
# out the masks: drawn once for all 64 samples, then given to whoever comes with those samples.


# %% id="masks"
class SameMasks(nn.Module):
    def __init__(self, p, num=64, width=64):
        super().__init__()
        self.masks, self.served = F.dropout(torch.ones(num, width), p), 0

    def forward(self, h):
        rows = torch.arange(self.served, self.served + len(h)) % len(self.masks)
        self.served += len(h)
        return h * self.masks[rows]


def make_same_masks(p=0.2):
    model, _ = make_net()
    model[1], model[5] = SameMasks(p), SameMasks(p)
    return model, SGD(model.parameters(), lr=0.1)


assert_same_training(big_batch, accumulated, make=make_same_masks)

# %% [markdown] id="predict-noise"
# With the same masks, the same training. So what differs is the draw, and only the draw. That is
# worth a test of its own, because "it is only noise" is said of BatchNorm too: noise averages out,
# and a bias does not. Repeat the accumulated gradient, with new masks each time for dropout, and
# for BatchNorm with the 64 samples dealt to the four micro-batches anew. Average, and compare with
# what the big batch gives on average.
#
# **Predict.** Two curves of error against the number of repeats, both axes logarithmic. Draw them.


# %% id="averages"
# NBVAL_IGNORE_OUTPUT
def draw(model, num):
    parts = [part.sort().values for part in torch.randperm(len(x)).chunk(num)]
    total = sum(losses(model, x[part], y[part]).sum() / len(x) for part in parts)
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])


def average(model, num, repeats):
    total, means = 0.0, {}
    for place in range(1, repeats + 1):
        total = total + draw(model, num)
        if place.bit_count() == 1:  # 1, 2, 4, ...
            means[place] = total / place
    return means


curves = {}
for name, make in {"dropout": make_dropout, "BatchNorm": subjects["BatchNorm"]}.items():
    model, _ = make()
    wanted = average(model, num=1, repeats=512)[512]
    found = average(model, num=4, repeats=128).items()
    curves[name] = {repeats: error(mean, wanted) for repeats, mean in found}
plots.training_curves(curves, xlabel="repeats averaged", log="xy",
                      ylabel="error of the averaged gradient")  # fmt: skip

# %% [markdown] id="read-averages"
# Dropout falls along $1/\sqrt{n}$: each accumulated gradient is one more draw from the very
# distribution that the big batch draws from. It needs no mend, only a reader who does not expect
# equal digits. BatchNorm falls a little and stays: what is left is the gradient of another loss.
# "Works with any architecture" holds for the first kind and not for the second.
#
# ## Contrastive losses: the loss that looks sideways
#
# CLIP learns by a game: here are $B$ pictures and $B$ texts, which belongs to which? Ours has the
# left and the right half of a digit, and two small towers. Each half has one partner, and the
# other $B-1$ are its *negatives*.


# %% id="towers"
def tower(width, p):
    def layer(size):
        return nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(p))

    return nn.Sequential(nn.Flatten(), layer(32), layer(width), nn.Linear(width, 32))


class TwoTowers(nn.Module):
    def __init__(self, width=128, p=0.1):
        super().__init__()
        self.left, self.right = tower(width, p), tower(width, p)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, images):  # (B, 1, 8, 8) -> (B, 2, 32), of length 1
        left, right = images.split(4, dim=-1)
        return F.normalize(torch.stack([self.left(left), self.right(right)], dim=1), dim=-1)


# %% [markdown] id="info-nce"
# The score of two halves is the product of their embeddings, sharpened by a learned scale, and the
# loss is a cross-entropy in which the right answer for row $i$ is column $i$ (van den Oord et al.,
# 2018; symmetric as in Radford et al., 2021):
#
# $$ \ell_i = -\log \frac{\exp(s\, u_i \cdot v_i)}{\sum_{j=1}^{B} \exp(s\, u_i \cdot v_j)} $$


# %% id="contrastive"
def pair_losses(embedded, log_scale):
    left, right = embedded.unbind(dim=1)
    scores = left @ right.T * log_scale.exp()  # (B, B)
    own = torch.arange(len(scores))
    forth = F.cross_entropy(scores, own, reduction="none")
    return (forth + F.cross_entropy(scores.T, own, reduction="none")) / 2


def make_towers(p=0.0, dtype=torch.float32, width=128):
    torch.manual_seed(0)
    model = TwoTowers(width, p).to(dtype)
    return model, AdamW(model.parameters(), lr=2e-3, fused=True)


# %% id="contrastive-picture"
def contrast(model, pixels):
    return pair_losses(model(pixels), model.log_scale)


model, _ = make_towers()
whole = partial(contrast, model)
plots.influence(
    {"contrastive": influence(whole, x[:8]), "in 2 x 4": influence(in_pieces(whole), x[:8])}
)

# %% [markdown] id="predict-naive"
# The sum in the denominator runs over the whole batch, so every loss listens to every sample.
#
# **Predict.** 128 pairs in 1, 4 and 16 pieces: how many negatives has a half? Which reports the
# lower loss? How wrong is the gradient, for new towers, and for towers after thirty updates?


# %% id="naive"
def naive(model, optimizer, pixels=images[:128], num=16):
    optimizer.zero_grad()
    total = 0.0
    for part in pixels.to(model.log_scale.dtype).chunk(num):
        loss = contrast(model, part).mean() / num
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


big = partial(naive, num=1)


def make_trained(updates=30):
    model, optimizer = make_towers()
    for _ in range(updates):
        big(model, optimizer)
    return model, optimizer


# %% id="naive-errors"
# NBVAL_IGNORE_OUTPUT
for name, make in {"new": make_towers, "trained": make_trained}.items():
    wanted = gradient(big, make)
    for num in (1, 4, 16):
        step, size = partial(naive, num=num), 128 // num
        print(f"{name:<8}{num:>2} x {size:>3}: {size - 1:>3} negatives, loss {step(*make()):.2f}, "
              f"gradient off by {error(gradient(step, make), wanted):.0%}")  # fmt: skip

# %% [markdown] id="read-naive"
# A guess among 8 is easier than a guess among 128, so the naive loop reports a *lower* loss. Its
# gradient is the exact gradient of that smaller game; what accumulates is the number of games, and
# the better the towers get, the less the small game has to do with the large one, whose hard
# negatives it never meets. The same holds for every loss over pairs or triplets: a batch-hard
# triplet loss finds the hardest negative of its micro-batch.
#
# ### Cached gradients
#
# Here is the way out (Gao et al., 2021, GradCache). The loss looks sideways, but only at the
# embeddings $z_i = f(x_i; \theta)$. By the chain rule,
#
# $$ \frac{\mathrm{d}L}{\mathrm{d}\theta} = \sum_{i=1}^{B} \frac{\partial L}{\partial z_i} \,
#    \frac{\partial f(x_i;\theta)}{\partial \theta} $$
#
# and *that is a sum over samples*, once the numbers $\partial L / \partial z_i$ are known. They
# are small, one vector a sample, and need all the embeddings and no activation of a tower. So:
# embed every micro-batch without a graph; compute the loss of all the embeddings and its gradient
# with respect to them, the cache; embed every micro-batch again, now with a graph, and send its
# part of the cache backward.


# %% id="cached"
def cached(model, optimizer, pixels=images[:128], size=8, replay=True):
    optimizer.zero_grad()
    parts, states, embedded = pixels.to(model.log_scale.dtype).split(size), [], []
    with torch.no_grad():
        for part in parts:
            states.append(torch.get_rng_state())
            embedded.append(model(part))
    embedded = torch.cat(embedded).requires_grad_()
    loss = pair_losses(embedded, model.log_scale).mean()
    loss.backward()  # fills embedded.grad, and the scale's own gradient
    for part, state, cache_part in zip(parts, states, embedded.grad.split(size), strict=True):
        if replay:
            torch.set_rng_state(state)
        model(part).backward(cache_part)
    optimizer.step()
    return loss.item()


# %% id="cached-exact"
for dtype in (torch.float64, torch.float32):
    assert_same_training(big, cached, make=partial(make_towers, dtype=dtype))
off = error(gradient(cached, make_towers), gradient(big, make_towers))
f"off by less than 1e-6: {off < 1e-6}"

# %% [markdown] id="predict-replay"
# `states` is the line that gets forgotten. With dropout, the second embedding must be the first
# one again, mask by mask, or the cache belongs to other embeddings.
#
# The big batch to compare with must draw its masks in the same order: all graphs in memory, drawn
# piece by piece.
#
# **Predict.** With dropout and replay: exact? Without replay: is that noise, or bias?


# %% id="replay"
def in_memory(model, optimizer, pixels=images[:128], size=8, embed=lambda model, part: model(part)):
    optimizer.zero_grad()
    parts = pixels.to(model.log_scale.dtype).split(size)
    embedded = torch.cat([embed(model, part) for part in parts])
    loss = pair_losses(embedded, model.log_scale).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


no_replay = partial(cached, replay=False)
for dtype in (torch.float64, torch.float32):
    assert_same_training(in_memory, cached, make=partial(make_towers, p=0.1, dtype=dtype))

# %% id="replay-error"
# NBVAL_IGNORE_OUTPUT
make_dropped = partial(make_towers, p=0.1)
for name, step in {"with replay": cached, "without": no_replay}.items():
    off = error(gradient(step, make_dropped), gradient(in_memory, make_dropped))
    print(f"{name:<12} off by {off:.0e}, below 1e-6: {off < 1e-6}")
verdict(in_memory, no_replay, make_dropped)


# %% [markdown] id="predict-mean"
# Noise or bias? Average over draws again, each loop with draws of its own.


# %% id="replay-mean"
# NBVAL_IGNORE_OUTPUT
def mean_gradients(step, repeats, seed):
    model, _ = make_towers(p=0.1, width=32)
    still = SGD(model.parameters(), lr=0.0)  # draws differ, the parameters stay
    torch.manual_seed(seed)
    total, means = 0.0, {}
    for place in range(1, repeats + 1):
        step(model, still, images[:64], size=32)
        total = total + torch.cat([p.grad.flatten() for p in model.parameters()])
        means[place] = total / place
    return means


wanted = mean_gradients(in_memory, 64, seed=0)[64]
for name, step in {"with replay": cached, "without": no_replay}.items():
    means = mean_gradients(step, 64, seed=1)
    off = [f"{error(means[repeats], wanted):.0%}" for repeats in (1, 8, 64)]
    print(f"{name:<12} off by", *off, "after 1, 8, 64 draws")

# %% [markdown] id="read-replay"
# Exact with replay. Without it, off in a way that no average brings back: in the true gradient,
# cache and tower share their masks, and here they never do. Nothing in the loop looks wrong, and
# the loss that it reports is right to the last digit. (On a GPU the masks come from the GPU's own
# generator, so it is `torch.cuda.get_rng_state` that has to be kept.)
#
# ### What it holds in memory
#
# Towers of a width at which activations count, 32 pairs at a time. Counted is what forward and
# backward hold beside parameters, gradients, optimizer state and pixels.
#
# **Predict.** The batch grows from 64 to 256 pairs. By what factor grows the peak of the whole
# batch, and by how many bytes that of cached gradients? An embedded pair is 64 floats. And what
# happens at 512?


# %% id="peaks"
def peak(step, num_pairs):
    model, optimizer = make_towers(p=0.1, width=512)
    step = partial(step, model, optimizer, images[:num_pairs])
    report = memory.measure(step, model=model, optimizer=optimizer)
    held = ("activations", "temporary")
    return max(sum(point[k] for k in held) for point in report.curve())


def naive_by_32(model, optimizer, pixels):
    return naive(model, optimizer, pixels, num=len(pixels) // 32)


loops = {"whole batch": big, "naive": naive_by_32, "cached": partial(cached, size=32)}
peaks = {name: {n: peak(step, n) for n in (64, 256, 512)} for name, step in loops.items()}
for name, by_count in peaks.items():
    print(f"{name:<12}", *(f"{n:>5} pairs: {Bytes(b):<8}" for n, b in by_count.items()))

# %% id="peak-growth"
embedded_pair = 64 * 4  # bytes
grown = peaks["cached"][256] - peaks["cached"][64]
print(f"each further pair costs {grown / (256 - 64) / embedded_pair:.2f} embedded pairs")
print(f"and a random state {torch.get_rng_state().nbytes} bytes a micro-batch, outside the count")

# %% [markdown] id="read-peaks"
# The whole batch pays for every pair's activations. Cached gradients pay for its embedding and
# the gradient of that, two embedded pairs to the byte, until another price shows: the scores of
# the loss are $B \times B$ numbers, several times over. At CLIP's own batch of 32,768 that is 4
# GiB for each copy in float32, towers not counted; there the loss, too, is computed in pieces.
#
# ### You have built this before
#
# Discard the activations, keep a small boundary and the random state, run forward again when the
# gradient arrives. A user of GradCache asked in an issue whether that is not checkpointing.
#
# **Predict.** Replace `model(part)` in the loop `in_memory` by `checkpoint(model, part)`. Same
# gradients as `cached`? Same peak? Same FLOPs?

# %% id="as-checkpointing"
checkpointed = partial(in_memory, embed=partial(checkpoint, use_reentrant=False))
for make in (make_dropped, partial(make_towers, p=0.1, dtype=torch.float64)):
    assert_same_training(cached, checkpointed, make=make)

# %% id="as-checkpointing-costs"
model, optimizer = make_dropped()
steps = {"big": big, "cached": cached, "checkpointed": checkpointed}
reports = {
    name: memory.measure(partial(step, model, optimizer), model=model, flops=True)
    for name, step in steps.items()
}
for name, report in reports.items():
    print(f"{name:<13}{report.flops / reports['big'].flops:.2f} of the big batch's FLOPs, "
          f"peak {report.forward_backward_bytes}")  # fmt: skip

# %% [markdown] id="read-checkpointing"
# Cached gradients are gradient checkpointing with one segment for each micro-batch: the
# model is cut along the *batch* instead of along its depth, and the embeddings are the boundaries.
# The price is the same, a second forward, nearly a third more FLOPs. So on one device, three lines
# that you know do it, random state included. The form with the cache in the open is the one to keep
# when the loss is computed elsewhere: embeddings gathered from all GPUs, micro-batches sent
# through DDP with one reduction at the end, towers that never meet in one graph. Both inherit
# checkpointing's blind spot: a BatchNorm in a tower still sees its micro-batch alone, and sees it
# twice.
#
# ### Which model is better?
#
# Now train. 1536 digits, effective batch 128, 16 micro-batches of 8, dropout on; the same samples
# and the same number of updates for three loops, and a fourth that simply updates after each 8.
# The score is on 261 digits never seen: how often the right half is among the first five of 261.
#
# **Predict.** Order the four by the training loss that they report. Then by the score.

# %% id="score"
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
training, unseen = images[order[:1536]], images[order[1536:]]


def score(model, first=5):
    model.eval()
    with torch.no_grad():
        left, right = model(unseen).unbind(dim=1)
    model.train()
    scores = left @ right.T
    return float(((scores > scores.diag()[:, None]).sum(dim=1) < first).float().mean())


# %% id="train-one"
def train(name, step, batch=128, epochs=8):
    model, optimizer = make_towers(p=0.1)
    generator, reported, scored = torch.Generator().manual_seed(0), {}, {}
    for epoch in range(1, epochs + 1):
        rows = torch.randperm(len(training), generator=generator).split(batch)
        total = sum(step(model, optimizer, training[part]) for part in rows)
        reported[epoch * 1536], scored[epoch * 1536] = total / len(rows), score(model)
    print(f"{name:<17} reported loss {total / len(rows):.2f}, found {scored[epoch * 1536]:.0%}")
    return reported, scored


# %% id="train-four"
# NBVAL_IGNORE_OUTPUT
recipes = {"whole batch": (big,), "cached, 16 x 8": (cached,), "naive, 16 x 8": (naive,),
           "updates after 8": (big, 8)}  # fmt: skip
runs = {name: train(name, *recipe) for name, recipe in recipes.items()}

# %% id="towers-figures"
# NBVAL_IGNORE_OUTPUT
plots.training_curves(
    {name: reported for name, (reported, _) in runs.items()},
    xlabel="samples seen", ylabel="reported loss", log="y", dashed=["cached, 16 x 8"],
)  # fmt: skip

# %% id="towers-scores"
# NBVAL_IGNORE_OUTPUT
plots.training_curves(
    {name: scored for name, (_, scored) in runs.items()},
    xlabel="samples seen", ylabel="right half among the first five",
    dashed=["cached, 16 x 8"],
)  # fmt: skip

# %% [markdown] id="read-towers"
# The figures are nearly each other upside down. The naive loop reports by far the better loss and
# finds fewer halves; nothing in its log says so. Cached gradients follow the whole batch, up to
# their dropout. And even sixteen times as many updates, from games among eight, do not make up for
# it in this run, which has one seed and one learning rate for all four.
#
# So "larger effective batches are particularly good for contrastive learning" is half a sentence.
# A larger *pool of negatives* was good here. Plain accumulation enlarges the effective batch and
# leaves the pool as it was.
#
# ## The larger batch, exact: is it any good?
#
# From here on, no gradient is wrong: a network without sideways looks, so an effective batch of 256
# is computed in one piece, since chapter 08 showed that pieces change nothing. What remains is the
# advice. "Scale the learning rate with the effective batch." "Take the square root." "Accumulation
# slows convergence down, because updates are delayed." These are about training, so they are
# measured on training: four networks from four seeds, side by side in one tensor, the median of
# their losses on all 1536 digits after four epochs. The same samples for all.


# %% id="four-nets"
class FourNets(nn.Module):
    def __init__(self, sizes=(64, 64, 64, 10), num=4):
        super().__init__()
        pairs = list(pairwise(sizes))
        self.weights = nn.ParameterList(torch.randn(num, i, o) * math.sqrt(2 / i) for i, o in pairs)
        self.biases = nn.ParameterList(torch.zeros(num, 1, o) for _, o in pairs)

    def losses(self, rows):  # one loss a network: their sum has four independent gradients
        h = training[rows].flatten(1).expand(4, -1, -1)  # (4, B, 64)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            out = torch.baddbmm(bias, h, weight)
            h = F.relu(out)
        targets = labels[order[rows]].repeat(4)
        return F.cross_entropy(out.flatten(0, 1), targets, reduction="none").view(4, -1).mean(1)


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
            model.losses(rows).sum().backward()
            optimizer.step()
            if seen % 512 == 0:
                with torch.no_grad():
                    curve[seen] = float(model.losses(torch.arange(1536)).median())
    return curve


def final(*recipe, **options):
    return run(*recipe, **options)[4 * 1536]


# %% [markdown] id="predict-sweep"
# **Predict.** For each batch size, the final loss against the learning rate is a valley. When the
# batch grows from 16 to 256, by how much does its floor move to the right: not at all, by 4, by 16?
# With SGD? With Adam?

# %% id="sweep"
# NBVAL_IGNORE_OUTPUT
rates = {SGD: [2.0**k for k in range(-5, 1)], Adam: [2.0**k for k in range(-10, -3)]}
batches, best = (16, 64, 256), {}
for kind in rates:
    for batch in batches:
        best[kind, batch] = min(rates[kind], key=lambda rate: final(kind, batch, rate))
        place = math.log2(best[kind, batch])
        print(f"{kind.__name__:<5} batch {batch:>3}: best at 2**{place:.0f}, "
              f"loss {final(kind, batch, best[kind, batch]):.3f}")  # fmt: skip


# %% id="sweep-figure-sgd"
# NBVAL_IGNORE_OUTPUT
def valleys(kind):
    curves = {f"batch {b}": {rate: final(kind, b, rate) for rate in rates[kind]} for b in batches}
    title = f"{kind.__name__}, the same {4 * 1536} samples"
    words = {"xlabel": "learning rate", "ylabel": "final loss", "title": title}
    return plots.training_curves(curves, log="xy", **words)


valleys(SGD)

# %% id="sweep-figure-adam"
# NBVAL_IGNORE_OUTPUT
valleys(Adam)

# %% [markdown] id="read-sweep"
# Two different valleys. SGD's left slopes are copies of each other, each four times further right:
# there, one step with the sum of four gradients goes where four steps go, which is the linear rule
# of Goyal et al. (2017). But the right wall hardly moves. It stands where a step overshoots the
# curvature of the loss, and that has nothing to do with the batch. So the linear rule holds as long
# as you are far from the wall, and leads straight into it when you are not.
#
# Adam's floor moves, and by less than the batch. Once noise is most of the gradient, an average
# over four times as many samples is half as noisy, and the right factor is the square root
# (Malladi et al., 2022). Far left of the floor there is no such excuse: Adam's steps have nearly
# one length whatever the gradient, so a quarter of the steps go a quarter of the way.
#
# ### The rules, as one would use them
#
# Nobody sweeps; one takes a rate that worked at 16 and multiplies. Take a bold one, the best at 16,
# and a careful one, an eighth of it.

# %% id="rules"
# NBVAL_IGNORE_OUTPUT
print(f"{'':<28}{'none':>8}{'root':>8}{'linear':>8}")
for kind in rates:
    for manner, share in {"bold": 1, "careful": 1 / 8}.items():
        base = best[kind, 16] * share
        print(f"{kind.__name__}, {manner}: {final(kind, 16, base):.3f} at 16")
        for batch in (64, 256):
            found = [final(kind, batch, base * (batch / 16) ** power) for power in (0, 0.5, 1)]
            print(f"{f'batch {batch}':>28}", *(f"{loss:>7.3f}" for loss in found))

# %% [markdown] id="read-rules"
# No rule wins everywhere, and the pattern is worth more than a rule. From a careful rate, SGD
# nearly keeps its loss with the linear rule, and falls behind with the others. From a bold one, the
# linear rule ruins the run at 256, and the root does not: that is what "safer" means, and the
# price of safety is speed. With Adam it depends again on where you stand: from its best rate the
# root ends lower at 256 than the linear rule, from a careful rate the linear rule ends lower.
#
# What this run cannot show: 1536 digits and three layers have no regime of a billion tokens, and
# the batch beyond which nothing helps (McCandlish et al., 2018) comes early here. Take the method
# with you, not the exponents.
#
# ### Delayed updates
#
# "Accumulation can slow convergence down." Same careful SGD, loss against samples, then the same
# runs against updates.
#
# **Predict.** Five runs. Which curves lie on each other, in the first figure and in the second?

# %% id="delayed"
# NBVAL_IGNORE_OUTPUT
base = best[SGD, 16] / 8
curves = {"16": run(SGD, 16, base), "64, same rate": run(SGD, 64, base),
          "256, same rate": run(SGD, 256, base), "64, linear": run(SGD, 64, 4 * base),
          "256, linear": run(SGD, 256, 16 * base)}  # fmt: skip
linear = [name for name in curves if "linear" in name]
plots.training_curves(curves, xlabel="samples seen", ylabel="loss", log="y", dashed=linear)

# %% id="delayed-updates"
# NBVAL_IGNORE_OUTPUT
by_updates = {
    name: {seen // int(name.split(",")[0]): loss for seen, loss in curve.items()}
    for name, curve in curves.items()
}
plots.training_curves(by_updates, xlabel="updates", ylabel="loss", log="xy", dashed=linear)

# %% [markdown] id="read-delayed"
# At one learning rate, the runs with 16, 64 and 256 lie on each other when counted in *updates*,
# and so the largest batch is sixteen times as slow in samples. With the linear rule it is the
# other way round: they nearly agree in *samples*. The slowness is real, and it is no delay: it is a
# learning rate that was left where it was. And accumulation is not its cause. It comes from the
# larger effective batch; at one effective batch, chapter 08's loop makes the same updates from
# the same samples.
#
# ### Warm-up, counted in what?
#
# A schedule counts something too. A warm-up over the first epoch, 1536 samples, is 96 updates at
# batch 16. At batch 256, keep the samples or keep the updates?

# %% id="warm-up"
# NBVAL_IGNORE_OUTPUT
print(f"{'':<18}{'none':>8}{'1536 samples':>14}{'96 updates':>12}")
for kind, power in {SGD: 1, Adam: 0.5}.items():
    for batch in batches:
        rate = best[kind, 16] / 8 * (batch / 16) ** power
        found = [final(kind, batch, rate, warm_up=samples) for samples in (0, 1536, 96 * batch)]
        print(
            f"{f'{kind.__name__}, batch {batch}':<18}", "{:>7.3f}{:>14.3f}{:>12.3f}".format(*found)
        )

# %% [markdown] id="read-warm-up"
# Kept in samples, the warm-up costs every batch size a similar share. Kept in updates, at batch
# 256 it is longer than the whole run, which never reaches its learning rate. The same holds for
# decay, for evaluation every so many steps, and for the memory of momentum and of Adam, which is
# counted in updates and cannot know that they got rarer. That warm-up is needed at all, this
# small run does not show; Goyal et al. needed it at batches of thousands.
#
# ## What you can now do
#
# - Say for a layer or a loss whether its picture is diagonal, and test it.
# - Tell a new draw from a bias: dropout accumulates honestly, BatchNorm does not, and GroupNorm or
#   frozen statistics mend it where SyncBatchNorm cannot.
# - Give a contrastive loss its full batch at the memory of a micro-batch, random state included,
#   and recognise checkpointing in it.
# - Choose a learning rate for a larger effective batch by its regime, and count schedules in
#   samples.
#
# In lab 07, `lab07_cached_gradients`, you write cached gradients for real conditions. Chapter 10
# takes both techniques to transformers.
