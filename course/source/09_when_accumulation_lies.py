# %% [markdown] id="title"
# # When accumulation lies
#
# Chapter 08 ended with a loop that matches the big batch up to rounding. If the model has a
# BatchNorm, the same loop trains a different model. If the loss compares samples, as CLIP's does,
# the loop reports a much *lower* loss than the big batch, because each micro-batch is an easier
# task.
#
# Chapter 08's formula has a premise: each loss depends only on its own sample. Here you test this
# premise, break it in two ways, and fix both.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import math
import sys
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pandas as pd
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.checks import assert_same_training, verdict
from tutorial_lib.guesses import beside
from tutorial_lib.models.resnet import ResNet, ResNetConfig

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="premise"
# ## The premise, as a picture
#
# A loop over micro-batches can compute the loss $\ell_i$ only if $\ell_i$ depends on $x_i$ and the
# parameters, and on no other sample $x_j$. We can test that: take the gradient of each sample's
# loss with respect to each sample's pixels, and see which gradients are not zero.


# %% id="net"
images, labels = data.digits()
x, y = images[:64].double(), labels[:64]


def make_net(norm=nn.Identity, p=0.0):
    torch.manual_seed(0)
    first = [nn.Flatten(), nn.Dropout(p), nn.Linear(64, 64), norm(64), nn.ReLU()]
    model = nn.Sequential(*first, nn.Dropout(p), nn.Linear(64, 10)).double()
    return model, SGD(model.parameters(), lr=0.1)


# %% id="losses"
def losses(model, pixels, targets):  # one for each sample
    return F.cross_entropy(model(pixels), targets, reduction="none")


# %% [markdown] id="write-influence"
# **Write.** The end of `influence`. `grad(loss, pixels, retain_graph=True)[0]` is the gradient of
# one sample's loss with respect to all pixels. Each row of the result belongs to one loss, and has
# one entry per sample: the norm of that sample's slice of the gradient.


# %% id="influence"
def influence(losses_of, num_micro_batches=1):
    """How much each loss depends on each of 8 samples: (losses, samples)."""
    pixels = x[:8].clone().requires_grad_()
    parts = pixels.chunk(num_micro_batches), y[:8].chunk(num_micro_batches)
    found = torch.cat([losses_of(*part) for part in zip(*parts, strict=True)])
    ### BEGIN SOLUTION
    rows = [grad(loss, pixels, retain_graph=True)[0] for loss in found]
    return torch.stack([row.flatten(1).norm(dim=1) for row in rows])
    ### END SOLUTION


# %% id="check-influence"
# @title Check: run this cell
@blanks.check("influence", "return a tensor of shape (losses, samples)")
def influences():
    own, next_one = torch.zeros(2, 64).double()
    own[:2], next_one[0] = torch.tensor([3.0, 4.0]), 1.0  # gradients of length 5 and 1

    def of_two(pixels, _):
        flat = pixels.flatten(1)
        return flat @ own + flat.roll(-1, 0) @ next_one

    seen = influence(of_two)
    seen = seen.double() if torch.is_tensor(seen) else seen
    shape = list(getattr(seen, "shape", [type(seen).__name__]))
    assert shape == [8, 8], (
        f"8 losses by 8 samples make a tensor of shape [8, 8], not {shape}."
    )
    wanted = 5 * torch.eye(8).double() + torch.eye(8).roll(1, 1)
    assert not torch.allclose(seen.T, wanted), "A row must be a loss, not a sample."
    row = (seen - wanted).norm(dim=1).argmax()
    assert torch.allclose(seen, wanted), (
        f"Loss {row}: lengths 5 at sample {row} and 1 at sample {(row + 1) % 8}, not "
        f"{[round(length, 2) for length in seen[row].tolist()]}."
    )
    assert not influence(of_two, 2)[:4, 4:].any(), (
        "With two micro-batches, a loss still depends on samples of the other one: "
        "`losses_of` takes one micro-batch at a time."
    )


# %% [markdown] id="predict-picture"
# With eight images the picture has 8 rows, one per loss, and 8 columns, one per sample. A square is
# filled if the loss depends on the sample.
#
# **Predict.** With a BatchNorm and two micro-batches of 4, how many of the 64 squares are filled?

# %% id="guess-picture"
guess = None  # squares

# %% id="picture"
layer = partial(losses, make_net(nn.LayerNorm)[0])
batch = partial(losses, make_net(nn.BatchNorm1d)[0])
pictures = {"LayerNorm": influence(layer), "BatchNorm": influence(batch)}
pictures["BatchNorm, 4 x 2"] = influence(batch, num_micro_batches=2)
filled = int(pictures["BatchNorm, 4 x 2"].count_nonzero())
print(f"BatchNorm, 4 x 2: {filled} squares{beside(guess, filled)}")
plots.influence(pictures)

# %% [markdown] id="read-picture"
# If each loss depends only on its own sample (left), you may split the batch anywhere. With
# BatchNorm each loss depends on every sample (middle). After a split (right), no loss depends on
# samples of the other micro-batch.
#
# ## BatchNorm
#
# How wrong is chapter 08's loop with BatchNorm? We test the small network with three norms, and a
# small ResNet with ten BatchNorms.
#
# **Predict.** With four micro-batches of 16, how far is the ResNet's gradient from the big batch's,
# in % of the big batch's gradient norm?

# %% id="guess-batch-norm"
guess = None  # %


# %% id="steps"
def accumulated(model, optimizer, num=4):
    optimizer.zero_grad()
    for rows in torch.arange(len(x)).chunk(num):
        (losses(model, x[rows], y[rows]).sum() / len(x)).backward()
    optimizer.step()


def gradient(step, make):
    model, optimizer = make()
    step(model, optimizer)
    return parameters_to_vector(p.grad.double() for p in model.parameters())


def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


big_batch = partial(accumulated, num=1)


# %% id="subjects"
def make_resnet(mend=None):
    torch.manual_seed(0)
    config = ResNetConfig(in_channels=1, stage_depths=(1, 1, 1), base_channels=4)
    model = ResNet(config).double()
    model = mend(model) if mend else model
    return model, SGD(model.parameters(), lr=0.1)


subjects = {
    "LayerNorm": partial(make_net, nn.LayerNorm),
    "GroupNorm": partial(make_net, partial(nn.GroupNorm, 8)),
    "BatchNorm": partial(make_net, nn.BatchNorm1d),
    "ResNet": make_resnet,
}

# %% id="batch-norm-errors"
errors = pd.DataFrame(index=list(subjects))
for name, make in subjects.items():
    wanted = gradient(big_batch, make)
    for num in (2, 4, 8, 32):
        seen = gradient(partial(accumulated, num=num), make)
        errors.loc[name, f"{64 // num} x {num}"] = error(seen, wanted)
resnet_off = 100 * errors.loc["ResNet", "16 x 4"]
print(f"ResNet, 16 x 4: {resnet_off:.0f} %{beside(guess, resnet_off)}")
off_in_words = errors.map(lambda e: f"{e:.0%}" if e > 1e-12 else "rounding")
off_in_words

# %% [markdown] id="read-batch-norm"
# LayerNorm and GroupNorm normalize within a sample, so their only error is float64's rounding. With
# BatchNorm the gradient is wrong, and more so for smaller micro-batches.
#
# ### Fixes
#
# There are three common fixes. *SyncBatchNorm* computes statistics over all processes. With *frozen
# statistics*, BatchNorm is in `eval()` while the rest trains. *GroupNorm* replaces BatchNorm, as in
# diffusion U-Nets. **Which of the three make accumulation exact?**
#
# **Write.** The last two fixes, `frozen` and `with_groups`. You need `model.named_modules()`,
# `nn.BatchNorm2d` and `model.set_submodule(name, layer)`. The model is in float64, so new layers
# need `.double()`.


# %% id="mend"
def frozen(model):
    """Put each BatchNorm into `eval()`, and return the model."""
    ### BEGIN SOLUTION
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # weight and bias still train; again after each train()
    return model
    ### END SOLUTION


# %% id="check-mend"
# @title Check: run this cell
@blanks.check("frozen", "return the model")
def is_frozen():
    model = make_resnet()[0]
    model(x[:16])  # statistics of a first batch
    before = {name: of.clone() for name, of in model.named_buffers()}
    model = frozen(model)
    assert isinstance(model, nn.Module), f"It returned {model!r}, not the model."
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 10, f"{len(norms)} of 10 BatchNorms are left."
    still = sum(norm.training for norm in norms)
    assert not still, f"{still} of {len(norms)} BatchNorms are still in train()."
    after = dict(model.named_buffers())
    same = [
        name in after and torch.equal(of, after[name]) for name, of in before.items()
    ]
    assert all(same), "Running statistics have changed: a BatchNorm still needs them."
    assert all(m.training for m in model.modules() if m not in norms), (
        "Other layers are in eval(), too: dropout would no longer drop."
    )
    assert all(p.requires_grad for p in model.parameters()), (
        "Weights and biases no longer train: freeze only the statistics."
    )


# %% id="with-groups"
def with_groups(model, channels=4):
    """Replace each BatchNorm by a GroupNorm with `channels` channels per group."""
    ### BEGIN SOLUTION
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            width = module.num_features
            model.set_submodule(name, nn.GroupNorm(width // channels, width).double())
    return model
    ### END SOLUTION


# %% id="check-with-groups"
# @title Check: run this cell
@blanks.check("with_groups", "return the model")
def has_groups():
    for channels in (4, 2):
        model = with_groups(make_resnet()[0], channels)
        assert isinstance(model, nn.Module), f"It returned {model!r}, not the model."
        kinds = [type(m).__name__ for m in model.modules()]
        left, new = kinds.count("BatchNorm2d"), kinds.count("GroupNorm")
        assert (left, new) == (0, 10), (
            f"There are {left} BatchNorms and {new} GroupNorms, not 0 and 10."
        )
        for norm in filter(lambda m: isinstance(m, nn.GroupNorm), model.modules()):
            groups, width = norm.num_groups, norm.num_channels
            assert groups * channels == width, (
                f"channels={channels}: {width} channels are in {groups} group(s)."
            )
            trains = norm.affine and norm.weight.requires_grad
            assert trains, "A GroupNorm has no weight and bias that train."
            assert norm.weight.dtype == torch.float64, "A GroupNorm is in float32."
        assert len(model(x[:4])) == 4, "The model does not run."


# %% id="judge-mends"
# NBVAL_IGNORE_OUTPUT
mends = {"Sync": nn.SyncBatchNorm.convert_sync_batchnorm, "frozen": frozen}
for name, mend in (mends | {"GroupNorm": with_groups}).items():
    print(f"{name:<10}", end="")
    differs = "gradients" if name == "Sync" else None
    verdict(big_batch, accumulated, make=partial(make_resnet, mend), differs=differs)

# %% [markdown] id="read-mends"
# SyncBatchNorm combines the statistics of processes that run at the same moment, not those of one
# process's successive micro-batches. With frozen statistics accumulation is exact, but you need
# good statistics from pre-training. With GroupNorm accumulation is exact too, but the model is a
# different one, so choose it before you train.
#
# ## Dropout
#
# With dropout each loss depends only on its own sample. But once the batch is split, each sample
# gets different random numbers, so the accumulated gradient differs from the big batch's. **Is that
# wrong?**
#
# Noise averages out, but a bias doesn't. So we average many accumulated gradients. With dropout,
# each repeat draws new masks. With BatchNorm, each repeat shuffles the 64 samples among the four
# micro-batches. **Which average converges to the big batch's gradient?**


# %% id="averages"
# @title Gradients of a batch drawn again and again: run this cell; open it to look
def draws(make, num, repeats):  # (repeats, parameters)
    model, rows = make()[0], []
    for _ in range(repeats):
        parts = torch.randperm(len(x)).chunk(num)
        total = sum(losses(model, x[part], y[part]).sum() / len(x) for part in parts)
        rows.append(parameters_to_vector(grad(total, list(model.parameters()))))
    return torch.stack(rows)


# %% id="averages-figure"
# NBVAL_IGNORE_OUTPUT
curves, words = {}, {"xlabel": "repeats averaged", "ylabel": "error of the average"}
makers = {"dropout": partial(make_net, p=0.2), "BatchNorm": subjects["BatchNorm"]}
for name, make in makers.items():
    wanted = draws(make, num=1, repeats=256).mean(dim=0)
    found = draws(make, num=4, repeats=128)
    curves[name] = {2**k: error(found[: 2**k].mean(dim=0), wanted) for k in range(8)}
title = "Noise averages out, a bias stays (logarithmic axes)"
plots.training_curves(curves, title=title, log="xy", **words)

# %% [markdown] id="read-averages"
# With dropout the error after $n$ repeats falls as $1/\sqrt{n}$: the accumulated gradient is right
# on average. So dropout needs no fix. With BatchNorm the error soon levels off, because the average
# is the gradient of a different loss.
#
# ## Contrastive losses
#
# CLIP learns which of $B$ pictures belongs to which of $B$ texts. Our model matches left and right
# halves of digits, with one encoder for each. Each left half has one partner, and the other $B-1$
# right halves are its *negatives*. The score of two halves is the dot product of their embeddings,
# $u$ (left) and $v$ (right), times a learned scale $s$. The loss is a cross-entropy in which the
# right answer for row $i$ is column $i$ (van den Oord et al., 2018):
#
# $$ \ell_i = -\log \frac{\exp(s\, u_i \cdot v_i)}{\sum_{j=1}^{B} \exp(s\, u_i \cdot v_j)} $$


# %% id="encoders"
# @title Two small encoders: run this cell; open it to look
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


# %% [markdown] id="write-contrast"
# **Write.** `contrast`. One direction is the formula; the other swaps $u$ and $v$. A pair's loss is
# the mean of both directions, as in CLIP. `F.cross_entropy` takes the scores, and with
# `reduction="none"` returns one loss per row.


# %% id="contrastive"
def contrast(embedded, log_scale):
    """Return one loss per pair; `embedded` is (B, 2, width), s is exp(log_scale)."""
    left, right = embedded.unbind(dim=1)
    ### BEGIN SOLUTION
    scores = left @ right.T * log_scale.exp()  # (B, B)
    own = torch.arange(len(scores))
    forth = F.cross_entropy(scores, own, reduction="none")
    back = F.cross_entropy(scores.T, own, reduction="none")
    return (forth + back) / 2
    ### END SOLUTION


# %% id="check-contrastive"
# @title Check: run this cell
@blanks.check("contrast", "return a loss for each pair")
def contrasts():
    pairs = torch.tensor([[[1.0, 0.0], [0.8, 0.6]], [[0.0, 1.0], [1.0, 0.0]],
                          [[0.6, 0.8], [0.0, 1.0]]])  # fmt: skip
    u, v = pairs.unbind(dim=1)
    terms = [[2 * float(a @ b) for b in v] for a in u]  # s = 2

    def of(row, place):
        return math.log(sum(map(math.exp, row))) - row[place]

    columns = list(zip(*terms, strict=True))
    right = [(of(terms[i], i) + of(columns[i], i)) / 2 for i in range(3)]
    seen = contrast(pairs, torch.tensor(2.0).log())
    assert seen.shape == (3,), f"Three pairs have three losses, not {[*seen.shape]}."
    for number, (mine, true) in enumerate(zip(seen.tolist(), right, strict=True), 1):
        said = f"Pair {number}, s = 2: the loss is {true:.3f}, not {mine:.3f}."
        assert abs(mine - true) < 1e-4, said


# %% id="make-encoders"
def make_encoders(p=0.0, width=128):
    torch.manual_seed(0)
    model = TwoEncoders(width, p)
    return model, AdamW(model.parameters(), lr=2e-3, fused=True)


# %% [markdown] id="predict-naive"
# The denominator sums over the whole batch, so every loss depends on every sample.
#
# **Predict.** Split 128 pairs into 16 micro-batches of 8. In the full batch, each pair is compared
# with every other. What percentage of these comparisons is still made after the split?

# %% id="guess-naive"
guess = None  # %


# %% [markdown] id="write-naive"
# **Write.** `naive`: chapter 08's loop over `pixels.chunk(num)`, with the mean loss of each part,
# `contrast(model(part), model.log_scale).mean()`.


# %% id="naive"
def naive(model, optimizer, pixels=images[:128], num=16):
    """Do one update in `num` micro-batches; return their mean loss, as a number."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    total = 0.0
    for part in pixels.chunk(num):
        loss = contrast(model(part), model.log_scale).mean() / num
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
    ### END SOLUTION


# %% id="check-naive"
# @title Check: run this cell
@blanks.check("naive", "return the mean loss, as a number")
def is_naive():
    (model, optimizer), sizes, steps = make_encoders(width=32), [], []
    parts = images[:24].chunk(3)
    losses = [contrast(model(part), model.log_scale).mean() for part in parts]
    mean = sum(losses) / 3
    wanted = torch.autograd.grad(mean, list(model.parameters()))
    for q in model.parameters():
        q.grad = torch.full_like(q, 1e9)  # from an earlier update
    model.register_forward_hook(lambda _, __, out: sizes.append(len(out)))
    optimizer.register_step_post_hook(lambda *_: steps.append(len(sizes)))
    seen = naive(model, optimizer, pixels=images[:24], num=3)
    assert sizes == [8, 8, 8], f"24 pairs in 3 parts should be [8, 8, 8], not {sizes}."
    assert steps == [3], f"The optimizer steps after parts {steps}, not only after 3."
    grads = [torch.zeros(1) if q.grad is None else q.grad for q in model.parameters()]
    assert any(g.any() for g in grads), "`.grad` is empty: clear it at the beginning."
    times = max(g.norm() for g in grads) / max(g.norm() for g in wanted)
    assert abs(times - 1) < 1e-2, f"The gradient is {times:.3g} times the mean loss's."
    assert isinstance(seen, float), f"It returned {seen!r}, not a number."
    assert abs(seen - mean.item()) < 1e-3, f"The mean is {mean:.3f}, not {seen:.3f}."


# %% id="big"
big = partial(naive, num=1)  # the whole batch at once


# %% id="naive-errors"
# NBVAL_IGNORE_OUTPUT
kept, rows = 100 * 16 * 8 * 7 / (128 * 127), {}
print(f"8 x 16: {kept:.1f} % of the comparisons{beside(guess, kept)}")
for size in (128, 32, 8):
    step = partial(naive, num=128 // size)
    off = 100 * error(gradient(step, make_encoders), gradient(big, make_encoders))
    rows[f"{size} x {128 // size}"] = size - 1, step(*make_encoders()), off
heads = ["negatives per pair", "loss, nats", "gradient off, %"]
pd.DataFrame.from_dict(rows, orient="index", columns=heads).round(2)

# %% [markdown] id="read-naive"
# Finding a partner among 8 is easier than among 128, so the naive loop reports a *lower* loss. Its
# gradient is exact, but for that easier task.
#
# ### Cached gradients
#
# ![Cached gradients. Step one embeds each micro-batch and drops its activations. Step two computes
# the loss of all embeddings and backpropagates to the embeddings only. Step three embeds each
# micro-batch again, with a graph, and goes backward from its cached gradient: one graph in memory
# at a time.](figures/09-two-passes.svg)
#
# Gao et al. (2021, GradCache) use the fact that the loss depends on all samples only through their
# embeddings $z_i = f(x_i; \theta)$. By the chain rule,
#
# $$ \frac{\mathrm{d}L}{\mathrm{d}\theta} = \sum_{i=1}^{B} \frac{\partial L}{\partial z_i} \,
# \frac{\partial f(x_i;\theta)}{\partial \theta} $$
#
# and *that is a sum over samples*, once we know the gradients $\partial L / \partial z_i$. These
# gradients are the *cache*: one vector per sample. To compute them you need all embeddings, but no
# encoder's activations.
#
# **Write.** Steps two and three. The loss is `contrast(embedded, model.log_scale).mean()`, whose
# backward fills the gradients of the scale and of `embedded`, a leaf; return it as a number. If
# `replay` is true, restore a part's random state from `states` before its second pass. The reason
# follows.


# %% id="cached"
def cached(model, optimizer, pixels=images[:128], size=8, replay=True):
    """Do one update of the whole batch with one micro-batch's graph at a time."""
    optimizer.zero_grad()
    parts, states, rows = pixels.split(size), [], []
    with torch.no_grad():  # step one
        for part in parts:
            states.append(torch.get_rng_state())
            rows.append(model(part))
    ### BEGIN SOLUTION
    embedded = torch.cat(rows).requires_grad_()
    loss = contrast(embedded, model.log_scale).mean()
    loss.backward()  # step two: fills embedded.grad, and the scale's own gradient
    caches = embedded.grad.split(size)
    for part, state, cache in zip(parts, states, caches, strict=True):  # step three
        if replay:
            torch.set_rng_state(state)
        model(part).backward(cache)
    optimizer.step()
    return loss.item()
    ### END SOLUTION


# %% id="check-cached"
# @title Check: run this cell
@blanks.check("cached", "return the loss, as a number")
def is_cached():
    def trained(step, p=0.0, **options):
        (model, optimizer), outs, calls = make_encoders(p, width=32), [], []
        model.register_forward_hook(lambda _, __, out: outs.append(out.detach()))
        optimizer.register_step_post_hook(lambda *_: calls.append(len(outs)))
        graphs, at_forward = WeakSet(), []

        class Saved:
            def __init__(self, tensor):
                self.tensor = tensor.detach()
                if len(at_forward) > len(outs):  # within the model, not in the loss
                    graphs.add(self)

        model.register_forward_pre_hook(lambda *_: at_forward.append(len(graphs)))
        for q in model.parameters():
            q.grad = torch.full_like(q, 1e9)  # from an earlier update
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda of: of.tensor):
            loss = step(model, optimizer, pixels=images[:24], **options)
        assert isinstance(loss, (float, torch.Tensor)), (
            f"It returned {loss!r}, not the loss."
        )
        graph = getattr(loss, "requires_grad", False)
        assert not graph, "The loss holds on to its graph: return a number."
        grads = [torch.zeros(1) if q.grad is None else q.grad.clone()
                 for q in model.parameters()]  # fmt: skip
        return loss, grads, outs, calls, at_forward

    loss, wanted, *_ = trained(big)
    seen, grads, outs, calls, at_forward = trained(cached)
    assert [len(out) for out in outs] == 6 * [8], (
        f"24 pairs, 8 at a time, go through the model 6 times, not {len(outs)}."
    )
    assert calls == [6], f"step() ran {len(calls)} times: run it once, at the end."
    for number, graphs in enumerate(at_forward):
        when = f"Pass {number + 1} of 6 begins with {graphs} tensors saved before it"
        assert not graphs, f"{when}: only one micro-batch's graph may be in memory."
    assert max(g.abs().max() for g in grads) < 1e6, (
        "An older gradient is in the sum: clear it first."
    )
    assert any(g.any() for g in grads), (
        "`.grad` is empty at the end: clear it at the beginning."
    )
    names = [name for name, _ in make_encoders()[0].named_parameters()]
    for name, mine, true in zip(names, grads, wanted, strict=True):
        assert torch.allclose(mine, true, atol=1e-5), (
            f"The gradient of {name} isn't the whole batch's gradient."
        )
    assert abs(seen - loss) < 1e-4, f"The loss is {loss:.3f}, not {seen:.3f}."
    for replay in (True, False):
        outs = trained(cached, p=0.5, replay=replay)[2]
        same = torch.equal(torch.cat(outs[:3]), torch.cat(outs[3:]))
        masks = "the same" if same else "different"
        assert same is replay, f"replay={replay}: both passes draw {masks} masks."


# %% [markdown] id="replay-text"
# Dropout needs one more step: the second pass must draw the same masks as the first. Otherwise the
# cache belongs to different embeddings. So step one records the random state before each
# micro-batch, and step three restores it, which *replays* the masks. **Without replay, is the
# gradient's error noise or bias?**
#
# To measure that, we compare with a big batch. With the same seed it must draw the same masks as
# the parts do, so we embed it part by part, but keep all graphs in memory.
#
# **Write.** `in_memory`, which does one update on that big batch. Embed each part, and compute one
# loss over all embeddings. If `embed` is given, call it instead of the model.


# %% id="in-memory"
def in_memory(model, optimizer, pixels=images[:128], size=8, embed=None):
    """Do one update of the whole batch, embedded in parts; return its loss."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    embedded = torch.cat([(embed or model)(part) for part in pixels.split(size)])
    loss = contrast(embedded, model.log_scale).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
    ### END SOLUTION


# %% id="check-in-memory"
# @title Check: run this cell
@blanks.check("in_memory", "return the loss of the whole batch, as a number")
def is_in_memory():
    def trained(step):
        (model, optimizer), sizes, steps = make_encoders(width=32), [], []
        for q in model.parameters():
            q.grad = torch.full_like(q, 1e9)  # from an earlier update
        model.register_forward_hook(lambda _, __, out: sizes.append(len(out)))
        optimizer.register_step_post_hook(lambda *_: steps.append(len(sizes)))
        loss = step(model, optimizer, pixels=images[:24])
        grads = [
            torch.zeros(1) if q.grad is None else q.grad for q in model.parameters()
        ]
        return loss, grads, sizes, steps

    loss, wanted, *_ = trained(big)
    seen, grads, sizes, steps = trained(in_memory)
    assert sizes == [8, 8, 8], f"24 pairs by 8 should be [8, 8, 8], not {sizes}."
    assert steps == [3], f"The optimizer steps after parts {steps}, not only after 3."
    assert isinstance(seen, float), f"It returned {seen!r}, not a number."
    assert abs(seen - loss) < 1e-4, f"The loss is {loss:.3f}, not {seen:.3f}."
    assert any(g.any() for g in grads), "`.grad` is empty: clear it at the beginning."
    assert max(g.abs().max() for g in grads) < 1e6, (
        "An older gradient is in the sum: clear it first."
    )
    off = max(
        float((g - true).norm() / true.norm())
        for g, true in zip(grads, wanted, strict=True)
    )
    assert off < 1e-3, f"A gradient is off by {off:.0%} of the whole batch's."
    rows = []

    def embed(part):
        rows.append(other(part))
        return rows[-1]

    other, optimizer = make_encoders(p=0.5, width=32)
    in_memory(other, optimizer, pixels=images[:24], size=6, embed=embed)
    sizes = [len(row) for row in rows]
    assert sizes == [6, 6, 6, 6], f"24 pairs, size=6: `embed` is called with {sizes}."
    twin, _ = make_encoders(p=0.5, width=32)  # begins with the same random state
    same = all(map(torch.equal, rows, map(twin, images[:24].split(6))))
    assert same, "With dropout, the masks differ: embed the parts in their order."


# %% id="replay"
assert_same_training(in_memory, cached, make=partial(make_encoders, p=0.1))


# %% id="replays"
# @title The same for `cached`: run this cell; open it to look
def gradients(step, seed, repeats=64):  # (repeats, parameters)
    model, rows = make_encoders(p=0.1, width=32)[0], []
    still = SGD(model.parameters(), lr=0.0)  # draws differ, the parameters stay
    torch.manual_seed(seed)
    for _ in range(repeats):
        step(model, still, images[:64], size=32)
        rows.append(parameters_to_vector(p.grad for p in model.parameters()))
    return torch.stack(rows)


# %% id="replay-mean"
# NBVAL_IGNORE_OUTPUT
wanted, off = gradients(in_memory, seed=0).mean(dim=0), {}
loops = {"with replay": cached, "without": partial(cached, replay=False)}
for name, loop in loops.items():
    found = gradients(loop, seed=1)
    off[name] = {n: error(found[:n].mean(dim=0), wanted) for n in (1, 8, 64)}
pd.DataFrame(off).T.map("{:.0%}".format).rename_axis(columns="off after n draws")

# %% [markdown] id="read-replay"
# With replay the error averages out, so it is noise. Without replay, part of the error is a bias
# and stays: a gradient is the cache times the second pass's derivatives, and the mean of that
# product is different if the two factors' masks are drawn independently.
#
# ### The same with `checkpoint`
#
# Cached gradients discard the activations, keep the embeddings and the random state, and run
# forward again when the gradient arrives. That is checkpointing. So if `in_memory` calls
# `checkpoint(model, part)` instead of `model(part)`, the training is the same:


# %% id="as-checkpointing-costs"
def checkpointed(model, optimizer):
    embed = partial(checkpoint, model, use_reentrant=False)
    return in_memory(model, optimizer, embed=embed)


assert_same_training(cached, checkpointed, make=partial(make_encoders, p=0.1))
steps, costs = {"big": big, "cached": cached, "checkpointed": checkpointed}, {}
for name, step in steps.items():
    model, optimizer = make_encoders(p=0.1)
    step = partial(step, model, optimizer)
    report = memory.measure(step, model=model, optimizer=optimizer, flops=True)
    costs[name] = report.flops, report.forward_backward_bytes / 2**20
table = pd.DataFrame(costs, index=["FLOPs", "peak, MiB"]).T
table["FLOPs"] /= table.loc["big", "FLOPs"]
table.round(2)

# %% [markdown] id="read-checkpointing"
# Cached gradients are checkpointing with one segment for each micro-batch. The segments divide the
# *batch* instead of the model's depth. On one device, use `checkpoint`, which restores the random
# state.
#
# ## Verdicts

# %% id="verdicts"
ways = [partial(naive, num=128 // size) for size in (128, 32, 8)]
ways += [partial(cached, size=size) for size in (128, 32, 8)]
wanted = gradient(big, make_encoders)
all_pairs = [error(gradient(way, make_encoders), wanted) < 1e-5 for way in ways]
claims.Verdicts(
    claims.Verdict(
        "B04", "holds if",
        "Larger batches help contrastive learning if the loss compares all their "
        "pairs, as with cached gradients; plain accumulation leaves the number of "
        "negatives unchanged.",
        f"8 x 16 makes {kept:.1f} % of the comparisons that one batch of 128 makes",
        "counted", "naive-errors",
        held=(sum(all_pairs), len(all_pairs), "loops over 128 pairs")),
    claims.Verdict(
        "D04", "holds",
        "Accumulation changes the gradient of a model with BatchNorm, and smaller "
        "micro-batches change it more. With LayerNorm, it changes only by rounding.",
        f"16 x 4: BatchNorm {errors.loc['BatchNorm', '16 x 4']:.0%}, ResNet "
        f"{resnet_off:.0f} %, LayerNorm {off_in_words.loc['LayerNorm', '16 x 4']}",
        "computed",
        "batch-norm-errors"),
)  # fmt: skip

# %% [markdown] id="your-run-text"
# ## Your run
#
# `train.py`'s model has no BatchNorm, but its loss is a mean. If rows end in padding, each token's
# loss is divided by the number of non-padding targets in *all* rows. So a token's gradient depends
# on the other rows, and the loop that you wrote in chapter 08 is wrong: it gives each micro-batch
# the same weight.
#
# **Write.** `share_of`: a micro-batch's share of all non-padding targets. The loop below multiplies
# each micro-batch's mean loss by this share. `train.targets_of(rows)` returns the targets of some
# rows, with negative numbers for padding.


# %% id="share-of"
def share_of(part, tokens):
    """Return the part's share of all targets that count; both hold rows of tokens."""
    ### BEGIN SOLUTION
    own = (train.targets_of(part) >= 0).sum()
    return own / (train.targets_of(tokens) >= 0).sum()
    ### END SOLUTION


# %% id="check-share-of"
# @title Check: run this cell
@blanks.check("share_of", "return a share between 0 and 1")
def shares_are_right():
    tokens = your_run.RAGGED
    seen = [float(share_of(part, tokens)) for part in tokens.split(4)]
    assert abs(sum(seen) - 1) < 1e-5, (
        "Three micro-batches have all targets: their shares must sum to 1, not "
        f"{sum(seen):.2f}."
    )
    counts = (tokens[:, 1:] > 0).sum(dim=1).tolist()
    own, total = sum(counts[:4]), sum(counts)
    assert abs(seen[0] - own / total) < 1e-5, (
        f"The first four rows have {own} of {total} targets that count, a share of "
        f"{own / total:.3f}, not {seen[0]:.3f}."
    )


# %% id="by-targets"
# @title Chapter 08's loop, with your share: run this cell; open it to look
def by_targets(model, optimizer, tokens, micro_batch=4):
    """Do one update in micro-batches; return the mean loss of targets that count."""
    optimizer.zero_grad()
    total = 0
    for part in tokens.split(micro_batch):
        loss = train.loss_of(model, part) * share_of(part, tokens)
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


# %% id="apply"
your_run.apply("09", update=by_targets)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** You split 1024 pairs as 32 x 32. What share of the comparisons is still made? What is the
# loss of a model that only guesses, in nats, before and after the split?
#
# <details><summary>Answer</summary>
#
# Each pair keeps 31 of its 1023 comparisons, or 1/33. Guessing among 1024 partners has a loss of
# $\ln 1024 = 6.9$; among 32, the loss is $\ln 32 = 3.5$.
# </details>
#
# **2.** How many bytes does the cache of 32,768 pairs take, with embeddings of width 512 in
# float32?
#
# <details><summary>Answer</summary>
#
# The cache has a gradient for each of a pair's two embeddings. That is
# $2 \cdot 32768 \cdot 512 \cdot 4$ bytes, or 128 MiB.
# </details>
#
# **3.** BatchNorm's mean over 64 images has some error. By what factor is the error larger with a
# micro-batch of 4?
#
# <details><summary>Answer</summary>
#
# The error of a mean of $n$ numbers falls as $1/\sqrt n$, so the factor is $\sqrt{64/4} = 4$.
# </details>

# %% [markdown] id="summary"
# ## What you can now do
#
# - Test whether a layer or a loss mixes samples, and say what accumulation does to it.
# - Tell noise from bias: dropout needs no fix; BatchNorm needs GroupNorm or frozen statistics, and
#   SyncBatchNorm doesn't help.
# - Compute a contrastive loss over the full batch while holding one micro-batch's activations, and
#   restore the random state for the second pass.
#
# In lab 07, `lab07_cached_gradients`, you write cached gradients for any number of encoders and any
# loss. The companion `09b_learning_rates` is optional.
