# %% [markdown] id="title"
# # Deep and recurrent
#
# "Works with any architecture", says a guide to checkpointing. Here are four models that each go
# to an extreme: a ResNet with a thousand layers, an LSTM that reads hundreds of steps, a network
# for volumes, and a language model with 131,072 tokens.
#
# Of each we ask two questions. Does checkpointing save as much as promised? And is it still the
# same training? Each question gets a surprising no; the second one although all losses are equal
# to the last bit.
#
# **Budget:** 60 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import copy
import random
import statistics
import time
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import claims, data, device, memory, plots, recorded, strategies
from tutorial_lib.models.resnet import Bottleneck, ResNet, ResNetConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import Bytes

torch.set_num_threads(1)  # small steps lose more by waiting for a second core than they gain


def checkpoint(function, *args, **options):
    return torch_checkpoint(function, *args, use_reentrant=False, **options)


# %% [markdown] id="thousand-text"
# ## A thousand layers: does $\sqrt n$ help?
#
# Chen, Xu, Zhang and Guestrin (2016, arXiv 1604.06174) made checkpointing known in deep learning.
# Their abstract promises a 1,000-layer residual network for ImageNet in 7 GB instead of 48 GB, for
# 30 % more running time. Their rule: of $n$ blocks, make segments of $\sqrt n$.
#
# Our `resnet1000` is the ResNet-1001 that He et al. trained on CIFAR-10: 333 blocks of three
# convolutions. `course/recorded` predicts its training step (16 images of 32 x 32, float32,
# AdamW). In GPT-2 the length of a segment hardly mattered (chapter 10). Does it matter here? A
# segment is every block, every two, or every 18 ($\sqrt{333}$):

# %% id="thousand-rows"
rows = recorded.load("predicted").rows
base = "resnet1000, batch 16, fp32, adamw"
keys = {"none": base} | {name: f"{base}, {name}" for name in ("per-block", "every-2", "sqrt")}
reports = {name: rows[key]["report"] for name, key in keys.items()}
shallower = {}
for name, report in reports.items():
    ratio = shallower[name] = reports["none"]["peak_bytes"] / report["peak_bytes"]
    print(f"{name:<10}{Bytes(report['peak_bytes']):>9}   none is {ratio:.1f} times that")

# %% [markdown] id="thousand-read"
# The square root divides the peak by more than six; 48 to 7 is nearly seven. So the famous ratio
# holds in another framework, on smaller images. But here the length of a segment matters a lot,
# and one block a segment is by far the worst. One block shows why:

# %% id="one-block"
block = Bottleneck(64, 16, stride=1, dropout=0.0)
x = torch.randn(16, 64, 32, 32, requires_grad=True)
kept = memory.saved(lambda: block(x), params_of=block)
f"a block keeps {kept.num_bytes / x.nbytes:.2f} times its input"

# %% [markdown] id="on-paper-text"
# Of the three inputs' worth that a bottleneck block keeps, one *is* its input. A checkpoint around
# the block must keep that one, so it can save at most a factor of three. (A transformer's block
# keeps more than ten times its input, so there the input hardly counts.) Longer segments keep
# fewer inputs, and recompute more at once:
#
# $$ m(s) = \frac{n}{s}\,a + 3\,a\,s \quad\text{is smallest at}\quad s = \sqrt{n / 3} $$
#
# for $n$ equal blocks with inputs of $a$ bytes. Other blocks have another factor $r$ in place of
# 3, and $\sqrt n$ is right only for $r = 1$ (chapter 06). Here the second of the three stages has
# half the bytes and the third a quarter. This function adds them up:


# %% id="on-paper"
def on_paper(segment, inputs, r=3):
    waiting, peak = 0, 0
    for start in range(0, len(inputs), segment):
        waiting += inputs[start]  # backward comes from the other end: all before still wait
        peak = max(peak, waiting + r * sum(inputs[start : start + segment]))
    return peak


inputs = [x.nbytes // 2**stage for stage in range(3) for _ in range(111)]
curve = {segment: on_paper(segment, inputs) for segment in (1, 2, 4, 6, 8, 10, 14, 18, 37, 111)}
best = min(curve, key=curve.get)
print(f"on paper best: {best} blocks, {Bytes(curve[best])}; 18: {Bytes(curve[18])}")


# %% id="segment-figure"
def without_model(report):
    return report["peak_bytes"] - sum(
        report["at_peak"][name] for name in ("parameters", "optimizer_state")
    )


steps = {1: "per-block", 2: "every-2", 18: "sqrt"}
points = {segment: without_model(reports[name]) for segment, name in steps.items()}
plots.growth(
    {"on paper": curve, "the meter, on fake tensors": points},
    xlabel="blocks in a segment",
    title="ResNet-1001: all but the model and the optimizer's state",
    predicted=["on paper", "the meter, on fake tensors"],
)

# %% [markdown] id="segment-read"
# At the three recorded points the function agrees with the full prediction, except that a peak
# late in backward also includes weight gradients. (The line between those three points is no
# measurement.) $\sqrt n$ lies well to the right of the minimum: segments of 6 to 8 blocks need
# much less, at the same price. The rule is to make the two terms equal, not to take the square
# root of the number of blocks.
#
# ### ImageNet's size, on your laptop
#
# Predicting a thousand layers takes a minute. It is not needed: equal blocks add equal bytes, so
# memory is linear in depth, and two depths give the line.


# %% id="at-depth"
def ledger_at_depth(recipe, few, more, wanted):
    low, high = (memory.predict(recipe(depth).make_step).at_peak for depth in (few, more))
    step = (wanted - few) / (more - few)
    return {name: round(low[name] + (high[name] - low[name]) * step) for name in low}


def small_images(depth):
    return Recipe("resnet1000", 16, overrides={"stage_depths": 3 * (depth,)})


line = sum(ledger_at_depth(small_images, 2, 3, wanted=111).values())
f"the line misses the recorded row by {line - reports['none']['peak_bytes']} bytes"

# %% [markdown] id="imagenet-text"
# Now the network of the abstract: transformers' ResNet-152, its third stage made longer until it
# has 1,001 layers, on 32 images of 224 x 224, without checkpointing.


# %% id="imagenet"
def imagenet(depth):
    return Recipe("resnet152", 32, optimizer="sgd", overrides={"depths": (3, 8, depth, 3)})


f"{sum(ledger_at_depth(imagenet, 2, 3, wanted=319).values()) / 1e9:.1f} GB"

# %% [markdown] id="imagenet-read"
# The abstract says 48 GB, but not how many images, how the layers are spread over resolutions, or
# what else was in memory. The order of magnitude agrees. The *ratio* depends on less and agrees
# well.
#
# ### Counted on this machine
#
# The thousand layers for real: four channels wide instead of sixteen, on digits of 8 x 8 pixels.

# %% id="thousand-real"
images, labels = data.digits()


def make_resnet(depth):
    torch.manual_seed(0)
    config = ResNetConfig(in_channels=1, stage_depths=3 * (depth,), base_channels=4)
    return ResNet(config)


thousand = make_resnet(111)


def step(strategy):
    with strategies.applied(thousand, strategy):
        thousand.loss(images[:16], labels[:16]).backward()
    thousand.zero_grad()


# %% [markdown] id="predict-thousand"
# **Predict.** By what factor does the peak fall with segments of 8?

# %% id="thousand-measured"
measured = {
    name: memory.measure(partial(step, name), model=thousand, warmup=0)
    for name in ("none", "every-8")
}
plain, frugal = measured.values()
print(f"{thousand.config.num_layers} layers")
print(f"peak  {plain.peak_bytes} against {frugal.peak_bytes}")

# %% [markdown] id="thousand-measured-read"
# That is nearly five times less, weights included. Now we train.
#
# ## Is it the same training?
#
# Two twins of 110 layers have the same weights and see the same forty batches. One keeps
# everything; the other checkpoints segments of six blocks. They take their steps in turn, so that
# times can be compared in pairs.

# %% id="twins"
twins = {"none": make_resnet(12), "every-6": make_resnet(12)}
generator = torch.Generator().manual_seed(0)
batches = [torch.randint(1500, (32,), generator=generator) for _ in range(40)]  # 297 stay unseen


def update(model, optimizer, strategy, batch):
    start = time.perf_counter()
    with strategies.applied(model, strategy):
        loss = model.loss(images[batch], labels[batch])
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), time.perf_counter() - start


# %% id="train-twins"
optimizers = {name: SGD(m.parameters(), lr=0.1, momentum=0.9) for name, m in twins.items()}
losses, seconds = {name: [] for name in twins}, {name: [] for name in twins}
for batch in batches:
    for name, model in twins.items():
        loss, duration = update(model, optimizers[name], name, batch)
        losses[name].append(loss)
        seconds[name].append(duration)
weights = [nn.utils.parameters_to_vector(model.parameters()) for model in twins.values()]
print("every loss equal:  ", losses["none"] == losses["every-6"])
print("every weight equal:", torch.equal(*weights))

# %% [markdown] id="twins-time-text"
# Forty losses and every weight are equal to the bit. What does it cost? The extra forward is a
# third of the FLOPs, less what early stop leaves out. The time depends on the machine:

# %% id="twins-time"
# NBVAL_IGNORE_OUTPUT
ratios = [frugal / plain for plain, frugal in zip(*seconds.values(), strict=True)]
print(f"loss from {losses['none'][0]:.2f} to {losses['none'][-1]:.2f}")
print(f"a step takes {statistics.median(ratios):.2f} times as long")


# %% id="twins-flops"
def step_flops(strategy):
    model = make_resnet(12)
    with FlopCounterMode(display=False) as counter, strategies.applied(model, strategy):
        model.loss(images[:32], labels[:32]).backward()
    return counter.get_total_flops()


f"FLOPs: {step_flops('every-6') / step_flops('none'):.3f} times as many"

# %% [markdown] id="predict-evaluate"
# At this size, most of a step is spent launching small operations, and checkpointing adds Python
# work of its own: hooks on each saved tensor, and the RNG state. So time grows more than FLOPs do.
# On large images, convolutions take the time, and the two agree better.
#
# **Predict.** Now `eval()`, on 297 images that neither twin has seen. How many percentage points
# lie between the two accuracies?


# %% id="evaluate"
# NBVAL_IGNORE_OUTPUT
def accuracy(model):
    judge = copy.deepcopy(model).eval()
    with torch.no_grad():
        return (judge(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean().item()


for name, model in twins.items():
    print(f"{name:<8} {accuracy(model):.0%} right")

# %% [markdown] id="evaluate-read"
# With equal losses and weights, the two models do not even resemble each other. (Your numbers may
# differ a little from those stored here, since a network this deep amplifies rounding.) The
# difference must be in something that is no weight:

# %% id="what-differs"
states = [model.state_dict() for model in twins.values()]
differing = [name for name in states[0] if not torch.equal(*(state[name] for state in states))]
sorted({name.rpartition(".")[2] for name in differing})

# %% [markdown] id="double-update"
# ### Updated twice
#
# ![Forward updates BatchNorm's running mean once. Recomputation in backward updates it a second
# time with the same batch, so it moves 19 % of the way to the batch mean instead of 10 %. The
# gradients stay equal.](figures/12-batchnorm-twice.svg)
#
# In training, BatchNorm normalizes with the batch's mean $\mu$. It also updates a running mean
# $R$, which only `eval()` uses. Recomputation runs the layer again on the same batch and updates
# $R$ again:
#
# $$ R \leftarrow (1 - m)\,R + m\,\mu, \qquad \text{twice:}\quad
# R \leftarrow (1-m)^2 R + \big[1-(1-m)^2\big]\,\mu $$
#
# With $m = 0.1$ that is one update with momentum $0.19$, and the gradients never see it. The twin
# that looks better was lucky. After only forty updates, forgetting faster helped, because the
# first batches came from a network that no longer exists. Late in training it makes the averages
# noisier. Nobody chose this momentum, and no loss curve shows it.
#
# The next cells check the algebra, and later the cures: one block, five batches, and the
# statistics afterwards. The block runs plainly (once), under a checkpoint (twice), or under a
# checkpoint inside another (three times).


# %% id="bench"
def once(block, x, **options):
    return block(x)


def twice(block, x, **options):
    return checkpoint(block, x, **options)


def thrice(block, x, **options):
    def outer(x):
        return twice(block, x, **options).sin()  # needs the block's output, so it is run

    return checkpoint(outer, x, **options)


def statistics_after(run, momentum=0.1, cure=None):
    torch.manual_seed(0)
    block = Bottleneck(16, 4, stride=1, dropout=0.0)
    for norm in (block.norm_1, block.norm_2, block.norm_3):
        norm.momentum = momentum
    options = {"context_fn": partial(cure, block)} if cure else {}
    for _ in range(5):
        batch = torch.randn(8, 16, 8, 8, requires_grad=True) + 1
        run(block, batch, **options).square().mean().backward()
    return dict(block.named_buffers())


# %% id="verdicts"
def verdict(seen, wanted):
    floats = [name for name in wanted if wanted[name].is_floating_point()]
    a, b = (torch.cat([buffers[name] for name in floats]) for buffers in (seen, wanted))
    off = float((a - b).norm() / b.norm())
    if torch.equal(a, b):
        return "equal"
    return "equal to rounding" if off < 1e-5 else f"off by {off:.0%}"


wanted = statistics_after(once)
print("checkpointed:     ", verdict(statistics_after(twice), wanted))
print("0.1 twice is 0.19:", verdict(statistics_after(twice), statistics_after(once, momentum=0.19)))

# %% [markdown] id="cures-text"
# ### Three candidates for a cure
#
# **A smaller momentum.** Solve $1-(1-m')^2 = m$: with $m' = 1-\sqrt{1-m}$, two updates make one.
# The training loop stays as it is. Most forum posts and pytorch-pfn-extras do this.
#
# **Recompute on copies.** `context_fn` gives PyTorch one context around forward and one around
# recomputation. In the second, the block works on copies of its buffers, which are thrown away
# afterwards.
#
# **Switch the statistics off** in that second context, with `track_running_stats = False`. Most
# people try this first.


# %% id="cures"
@contextlib.contextmanager
def on_copies(block):
    owned = [(m, n, b) for m in block.modules() for n, b in m.named_buffers(recurse=False)]
    for module, name, buffer in owned:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in owned:
            setattr(module, name, buffer)


@contextlib.contextmanager
def untracked(block):
    norms = [m for m in block.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


# %% [markdown] id="predict-cures"
# Which of them is right for a block that runs once (the last segment is often not checkpointed),
# twice, and three times?


# %% id="cures-table"
def recomputing(context, block):
    return contextlib.nullcontext(), context(block)


cures = {
    "no cure": {},
    "smaller momentum": {"momentum": 1 - (1 - 0.1) ** 0.5},
    "on copies": {"cure": partial(recomputing, on_copies)},
}
for name, options in cures.items():
    after = [statistics_after(run, **options) for run in (once, twice, thrice)]
    counts = [int(buffers["norm_1.num_batches_tracked"]) for buffers in after]
    print(f"{name:<17}", *(f"{verdict(each, wanted):<18}" for each in after), "batches", counts)

# %% id="no-cure"
try:
    statistics_after(twice, cure=partial(recomputing, untracked))
except Exception as error:
    print(f"{type(error).__name__}:", *str(error).splitlines()[:3], sep="\n  ")

# %% [markdown] id="cures-read"
# The smaller momentum is right where a block runs exactly twice. It is silently wrong in a segment
# that is kept, under nesting, and when somebody turns checkpointing off. Its counter of batches
# doubles too. The copies are right in all three cases, to the bit. They cost a copy of a few
# vectors and need `use_reentrant=False`.
#
# Switching the statistics off raises an error. Autograd saves the running statistics too, so
# without them the second run saves fewer tensors than the first, and PyTorch notices. (In other
# people's code: fairscale's wrapper updates in the *recomputation* only. PyTorch's own issue about
# this is 96136, open since 2023.)
#
# **One more cure** is to leave nothing that is updated twice: keep the norms outside of what is
# checkpointed, or use GroupNorm, which has no running statistics.
#
# **Predict.** With its norms outside, how many block inputs does a block keep? (Plain it was
# three, under one checkpoint one.)


# %% id="third-cure"
class NormsOutside(Bottleneck):
    def forward(self, x):
        h = checkpoint(lambda n: self.conv_1(F.relu(n)), self.norm_1(x))
        h = checkpoint(lambda n: self.conv_2(F.relu(n)), self.norm_2(h))
        return x + checkpoint(lambda n: self.conv_3(F.relu(n)), self.norm_3(h))


def with_group_norm(block):
    for name in ("norm_1", "norm_2", "norm_3"):
        channels = getattr(block, name).num_features
        setattr(block, name, nn.GroupNorm(4, channels))
    return block


outside, grouped = NormsOutside(64, 16, 1, 0.0), with_group_norm(Bottleneck(64, 16, 1, 0.0))
for name, run in {"norms outside": outside, "GroupNorm": partial(checkpoint, grouped)}.items():
    print(f"{name:<14} {memory.saved(lambda run=run: run(x)).num_bytes / x.nbytes:.2f} inputs")

# %% [markdown] id="third-cure-read"
# With norms outside, every norm keeps its input and every convolution's checkpoint keeps the
# norm's output, so nothing is saved. GroupNorm keeps the saving, but it is another network: no
# published BatchNorm weights fit it. (Norms that are frozen, in `eval()` during training, as in
# most detection models, have nothing to double.)
#
# So the cure is the copies. Here is the twin once more, with a checkpoint around every block that
# recomputes on copies:


# %% id="cured-twin"
def checkpoint_on_copies(block, forward, x):
    return checkpoint(forward, x, context_fn=partial(recomputing, on_copies, block))


cured = make_resnet(12)
optimizer = SGD(cured.parameters(), lr=0.1, momentum=0.9)
for block in cured.blocks:
    block.forward = partial(checkpoint_on_copies, block, block.forward)
cured_losses = [update(cured, optimizer, "none", batch)[0] for batch in batches]
state = cured.state_dict()
print("every loss equal:", cured_losses == losses["none"])
print(
    "weights, statistics, counters equal:", all(torch.equal(state[n], states[0][n]) for n in state)
)

# %% [markdown] id="gpu-resnet-text"
# On a GPU, the full-width network at a batch that suits it, with the allocator's peak and times:

# %% id="gpu-resnet"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    micro_batch = device.pick_by_tier(cpu=1, small_gpu=32, large_gpu=128)
    for strategy in ("none", "every-8", "sqrt"):
        recipe = Recipe("resnet1000", micro_batch, checkpointing=strategy)
        gpu_step, model, optimizer = recipe.make_step("cuda")
        label = recipe.label()
        print(memory.measure(gpu_step, model=model, optimizer=optimizer, label=label, repeats=3))
        del gpu_step, model, optimizer

# %% [markdown] id="besides-text"
# ## What else does a forward do?
#
# BatchNorm is one case of a rule. *Whatever a forward does besides computing its output, it does
# twice. Whatever it reads besides its input may have changed by then.* Here are the usual ways to
# break the rule, in three lines each, around one linear layer.

# %% id="besides"
layer = nn.Linear(8, 8)


def with_dropout(x):
    return F.dropout(layer(x).tanh(), 0.5)


def with_pythons_random(x):
    return layer(x * random.random()).tanh()


def with_random_depth(x):
    return layer(layer(x).tanh()).tanh() if random.random() < 0.5 else layer(x).tanh()


def with_branch_on_data(x):
    return layer(x).tanh() if x.mean() > 0 else layer(x)


def with_in_place(x):
    return layer(x.mul_(2)).tanh()


def with_in_place_in_list(xs):
    return layer(xs[0].mul_(2)).tanh()


# %% id="besides-state"
class Annealed:
    calls = 0

    def __call__(self, x):
        self.calls += 1  # as a warm-up of noise, temperature or drop rate does
        return layer(x / self.calls).tanh()


class Cached:
    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen.append(x)
        return layer(torch.cat(self.seen)).tanh()


# %% [markdown] id="predict-besides"
# **Predict.** Nine rows follow: these eight, and dropout without `preserve_rng_state`. How many
# give wrong gradients without any error?


# %% id="besides-bench"
def layer_gradient(function, run, wrap):
    torch.manual_seed(1)
    random.seed(1)
    layer.zero_grad()
    x = torch.ones(4, 8) * torch.arange(8.0)
    run(function, wrap(x)).sum().backward()
    return layer.weight.grad


def outcome(make, run=checkpoint, wrap=lambda x: x):
    wanted = layer_gradient(make(), lambda function, x: function(x), wrap)
    try:
        seen = layer_gradient(make(), run, wrap)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).removeprefix('torch.utils.checkpoint: ')[:52]}"
    return "equal" if torch.equal(seen, wanted) else "WRONG, and not a word"


# %% id="besides-table"
seen = {}
functions = [with_dropout, with_pythons_random, with_random_depth, with_branch_on_data]
for function in [*functions, with_in_place]:
    seen[function.__name__] = outcome(lambda function=function: function)
seen["with_in_place_in_list"] = outcome(lambda: with_in_place_in_list, wrap=lambda x: [x])
for kind in (Annealed, Cached):
    seen[kind.__name__] = outcome(kind)
forgetful = partial(checkpoint, preserve_rng_state=False)
seen["dropout, RNG not kept"] = outcome(lambda: with_dropout, forgetful)
for name, said in seen.items():
    print(f"{name:<23}", said)

# %% [markdown] id="besides-read"
# PyTorch restores its own random state, unless told not to, and no other. A branch on the data is
# safe, since the data are the same. A random branch is caught only when its two paths save
# different tensors: the check (`determinism_check="default"`) compares number, shape and dtype,
# never values. So a random scale or a counter that anneals passes unnoticed. A changed input is
# caught by its version if it is an argument of its own; inside a list or tuple PyTorch does not
# look.
#
# What helps: compare gradients once, as chapter 05 does at its end. Turn such state into
# arguments. Update counters in the training loop, not in `forward`. (GPU kernels that add in no
# fixed order also differ between two runs, by rounding. That matters where rounding decides, as in
# a `topk`.)
#
# ## Hundreds of steps: can memory grow with $\log T$?
#
# A recurrent network has one layer for every time step, with shared weights and separate
# activations. Here is a plain `nn.LSTMCell`, unrolled. One unit below is the bytes of one hidden
# state; what was in memory before is not counted.

# %% id="unrolled"
cell = nn.LSTMCell(2, 64)
runs = []
cell.register_forward_pre_hook(lambda module, args: runs.append(1))


def unrolled(xs, state):
    for x in xs:
        state = cell(x, state)
    return state


def units(read, length, batch=32):
    xs = torch.randn(batch, length, 2).unbind(dim=1)
    zeros = torch.zeros(batch, 64)

    def step():
        read(xs, (zeros, zeros))[0].square().mean().backward()
        cell.zero_grad()

    runs.clear()
    report = memory.measure(step, model=cell, warmup=0)
    return (report.peak_bytes - report.baseline_bytes) / zeros.nbytes, len(runs) / length


# %% [markdown] id="segments-text"
# ![Each level of halving checkpoints the left half of eight steps and cuts the right half again.
# While backward is in the last step, three states wait. The steps run 4, 3, 3, 2, 3, 2, 2 and 1
# times.](figures/12-halving.svg)
#
# Segments of $\sqrt T$ steps are chapter 06's, over time. Chen et al. also have a plan for $O(\log
# T)$ memory: cut the sequence in the middle, checkpoint the left half, run the right half, and
# treat each half in the same way. While backward is in the last step, only the inputs of $\log_2
# T$ left halves wait. The price: each level runs its left halves once more, so a step runs $1 +
# \frac12 \log_2 T$ times on average.


# %% id="segments"
def segments(xs, state):
    size = round(len(xs) ** 0.5)
    for start in range(0, len(xs), size):
        state = checkpoint(unrolled, xs[start : start + size], state)
    return state


def halving(xs, state):
    if len(xs) == 1:
        return unrolled(xs, state)
    middle = len(xs) // 2
    state = checkpoint(halving, xs[:middle], state)
    return halving(xs[middle:], state)


# %% [markdown] id="predict-log"
# **Predict.** From 64 steps to 256, by how many units does the peak of `halving` grow?

# %% id="log-table"
LENGTHS = (16, 64, 256)
plans = {"everything": unrolled, "segments": segments, "halving": halving}
table = {name: {n: units(read, n) for n in LENGTHS} for name, read in plans.items()}
for name, row in table.items():
    print(f"{name:<11}", *(f"T={n}: {peak:6.1f} units, {r} runs;" for n, (peak, r) in row.items()))

# %% [markdown] id="log-read"
# The runs are as computed: 3, 4, 5 for each step. But the memory of `halving` is not logarithmic.
# It grows by one unit a step, and soon exceeds that of mere segments. Every gradient is right;
# only the meter shows it.
#
# Half of the states stay in memory. `checkpoint` tracks only tensors passed directly as arguments,
# and an LSTM's state is a tuple of two. A state inside a tuple stays referenced by the inner
# checkpoint, so the outer one cannot free it. One level of checkpoints does not suffer from this,
# nested levels do. So pass `h` and `c` as two arguments:


# %% id="flat-state"
def flat_unrolled(xs, h, c):
    return unrolled(xs, (h, c))


def flat_halving(xs, h, c):
    if len(xs) == 1:
        return flat_unrolled(xs, h, c)
    middle = len(xs) // 2
    h, c = checkpoint(flat_halving, xs[:middle], h, c)
    return flat_halving(xs[middle:], h, c)


# %% id="flat-table"
table["halving, flat"] = {n: units(lambda xs, s: flat_halving(xs, *s), n) for n in LENGTHS}
for n, (peak, r) in table["halving, flat"].items():
    print(f"T={n}: {peak:.1f} units, {r} runs")

# %% [markdown] id="flat-read"
# Now four times the length costs four units: two more halvings, each with an `h` and a `c`. That
# is logarithmic.

# %% id="log-figure"
unit = 32 * 64 * 4  # bytes of one hidden state
curves = {name: {n: peak * unit for n, (peak, _) in row.items()} for name, row in table.items()}
plots.growth(curves, xlabel="steps", title="An LSTM over time: peak of forward and backward")

# %% [markdown] id="log-price"
# What does it cost in time, on your machine, at 128 steps?


# %% id="log-time"
# NBVAL_IGNORE_OUTPUT
def reading_seconds(read, length=128):
    xs, zeros = torch.randn(32, length, 2).unbind(dim=1), torch.zeros(32, 64)
    start = time.perf_counter()
    read(xs, (zeros, zeros))[0].square().mean().backward()
    return time.perf_counter() - start


flat = {"segments": segments, "halving, flat": lambda xs, state: flat_halving(xs, *state)}
for name, read in flat.items():
    pairs = [(reading_seconds(unrolled), reading_seconds(read)) for _ in range(3)]
    print(f"{name:<14} {statistics.median(b / a for a, b in pairs):.1f} times as long")

# %% [markdown] id="log-time-read"
# By FLOPs, segments cost one extra forward. On a CPU at this small width they cost more, because a
# step is mostly the launching of small operations, and each checkpoint adds Python work. Wider
# cells come nearer to the FLOPs. Segments are the usual tool; halving is for when nothing else
# fits. With the same number of states in memory, Revolve needs fewer runs than halving (chapter
# 06).
#
# On a GPU nobody unrolls cell by cell: `nn.LSTM` runs a whole stretch of steps in one cuDNN call
# and keeps its intermediates in one buffer. A checkpoint goes around each stretch, in the same
# loop.

# %% id="gpu-lstm"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    length = device.pick_by_tier(cpu=256, small_gpu=4096, large_gpu=16384)
    lstm = nn.LSTM(256, 256, batch_first=True).cuda()
    text = torch.randn(32, length, 256, device="cuda")

    def read_on_gpu(stretch, around):
        h = c = torch.zeros(1, 32, 256, device="cuda")
        for part in text.split(stretch, dim=1):
            output, (h, c) = around(lambda part, h, c: lstm(part, (h, c)), part, h, c)
        output[:, -1].square().mean().backward()
        lstm.zero_grad()

    def plainly(function, *args):
        return function(*args)

    for label, stretch, around in [("whole", length, plainly), ("stretches", 128, checkpoint)]:
        gpu_step = partial(read_on_gpu, stretch, around)
        print(memory.measure(gpu_step, model=lstm, label=label, repeats=3))

# %% [markdown] id="truncated-text"
# ## Is truncated backpropagation the same?
#
# Many people shorten long sequences with *truncated* backpropagation instead: `detach` the state
# every $K$ steps, so that gradients flow inside one window only. Its memory does not grow with
# length, and it recomputes nothing. What does it lose?
#
# A task to find out: a hundred numbers go by, each +1 or -1, and one of the first ten carries a
# mark. After the last one, the network must say which sign was marked. (The forget gates begin
# open for 1 to 100 steps, after Tallec and Ollivier, 2018, so that the signal lives long enough.)

# %% id="task"
STEPS, WIDTH = 100, 32


def sequences(batch, generator):
    values = torch.randint(2, (batch, STEPS), generator=generator) * 2.0 - 1
    marked = torch.randint(10, (batch,), generator=generator)
    marks = F.one_hot(marked, STEPS).float()
    return torch.stack([values, marks], dim=2).unbind(dim=1), (values * marks).sum(1).gt(0).long()


def make_reader():
    torch.manual_seed(0)
    reader = nn.ModuleDict({"cell": nn.LSTMCell(2, WIDTH), "head": nn.Linear(WIDTH, 2)})
    with torch.no_grad():
        memory_length = torch.empty(WIDTH).uniform_(1, STEPS - 1).log()
        nn.init.zeros_(reader["cell"].bias_hh)
        reader["cell"].bias_ih[:WIDTH] = -memory_length  # write
        reader["cell"].bias_ih[WIDTH : 2 * WIDTH] = memory_length  # keep
    return reader


# %% id="readers"
def through(reader, xs, h, c):
    for x in xs:
        h, c = reader["cell"](x, (h, c))
    return h, c


def whole(reader, part, h, c):
    return through(reader, part, h, c)


def checkpointed(reader, part, h, c):
    return checkpoint(through, reader, part, h, c)


def truncated(reader, part, h, c):
    return through(reader, part, h.detach(), c.detach())


def task_loss(read, reader, xs, answers, window=10):
    h = c = torch.zeros(len(answers), WIDTH)
    for start in range(0, STEPS, window):
        h, c = read(reader, xs[start : start + window], h, c)
    return F.cross_entropy(reader["head"](h), answers)


# %% [markdown] id="predict-truncated"
# Memory and gradient at the first step: whole, in checkpointed segments of ten, and truncated to
# windows of ten. How far is the truncated gradient from the true one?

# %% id="first-gradient"
reader = make_reader()
xs, answers = sequences(32, torch.Generator().manual_seed(1))


def first_step(read):
    reader.zero_grad()
    task_loss(read, reader, xs, answers).backward()


gradients = {}
for read in (whole, checkpointed, truncated):
    peak = memory.measure(partial(first_step, read), model=reader, warmup=0).peak_bytes
    gradients[read] = torch.cat([p.grad.flatten() for p in reader["cell"].parameters()])
    print(f"{read.__name__:<13} peak {peak}")
true = gradients[whole]
print("checkpointed equal:", torch.equal(gradients[checkpointed], true))

# %% id="gradient-off"
# NBVAL_IGNORE_OUTPUT
f"truncated off by {float((gradients[truncated] - true).norm() / true.norm()):.0%} of its length"

# %% [markdown] id="gradient-read"
# The checkpointed version needs no more memory than the truncated one, and has the true gradient
# to the bit. (The truncated one holds two windows for a moment, until the new one is done.) The
# truncated gradient has only the part from the last ten steps, where no mark ever stands. So can
# it learn the task? Both train for 160 updates with Adam on the same batches:

# %% id="train-readers"
# NBVAL_IGNORE_OUTPUT
history = {}
for read in (checkpointed, truncated):
    reader, generator = make_reader(), torch.Generator().manual_seed(0)
    optimizer, history[read.__name__] = Adam(reader.parameters(), lr=1e-2), {}
    for number in range(160):
        loss = task_loss(read, reader, *sequences(32, generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history[read.__name__][number + 1] = loss.item()
    last = list(history[read.__name__].values())[-10:]
    print(f"{read.__name__:<13} mean loss of the last ten updates {statistics.mean(last):.2f}")

# %% id="train-figure"
# NBVAL_IGNORE_OUTPUT
plots.training_curves(
    history,
    xlabel="updates",
    ylabel="loss",
    title="Which of a hundred numbers was marked? (0.69 is guessing)",
)

# %% [markdown] id="train-read"
# The truncated one stays at 0.69, the logarithm of two, which is guessing. It would stay there
# forever, since the gradient that could teach it was cut off. The other one guesses for half of
# the training, and then learns the task, with no more memory.
#
# Truncation is right where a short horizon is meant, as in much text. But it is another training.
# Checkpointing over time is the same training, for one more forward.
#
# ## Volumes and long contexts
#
# **Volumes.** The 3-D U-Net of Çiçek et al. (2016), one volume, float32. Twice the side is eight
# times the voxels (video is the same case, with time as third axis). With a checkpoint around each
# of its seven blocks, how many times less memory does it need?


# %% id="volumes"
def volume_peak(side, strategy):
    recipe = Recipe("unet3d", 1, size=side, optimizer="adamw-fused", checkpointing=strategy)
    return memory.predict(recipe.make_step).peak_bytes


volume_gain = {}
for side in (64, 128, 256):
    peaks = [volume_peak(side, strategy) for strategy in ("none", "per-block")]
    volume_gain[side] = peaks[0] / peaks[1]
    print(f"{side}^3 voxels: {peaks[0]}, per block {peaks[1]}, "
          f"{peaks[0] / peaks[1]:.2f} times less")  # fmt: skip

# %% id="volumes-where"
with memory.predicting():
    loss, unet = Recipe("unet3d").make_loss()
    kept = memory.saved(loss, params_of=unet)
for resolution, num_bytes in kept.by("resolution").items():
    if resolution:
        print(f"{resolution:<12} {num_bytes / kept.num_bytes:4.0%} of what is saved")

# %% [markdown] id="volumes-read"
# Hardly a quarter less. Checkpointing helps where bytes are *spread out* over many segments. Here
# nearly three quarters lie at full resolution, in two blocks. While the last block is recomputed,
# all of its activations are there at once, together with the skip that waits for it. Cheaper or
# fewer voxels help more: 16 bits, and patches, which is how such networks are trained.
#
# **Long context.** Llama 2 7B, batch 1, everything in bfloat16, with more positions than it was
# published with. Again memory is linear in depth: each category of two layers and of three gives
# all 32. Which category is left at 131,072 tokens?


# %% id="context"
def llama(tokens, strategy, depth):
    choices = {"precision": "bf16", "optimizer": "adamw-fused", "checkpointing": strategy}
    sizes = {"max_position_embeddings": tokens, "num_hidden_layers": depth}
    return Recipe("llama-2-7b", 1, tokens, **choices, overrides=sizes)


ledgers = {
    f"{tokens:,} tokens, {strategy}": ledger_at_depth(partial(llama, tokens, strategy), 2, 3, 32)
    for tokens in (32_768, 131_072)
    for strategy in ("none", "per-block")
}
plots.ledger_bars(ledgers, title="Llama 2 7B by context", cards_gib=[80], predicted=list(ledgers))

# %% [markdown] id="context-read"
# Here checkpointing saves a factor of four to seven, because thirty-two equal blocks are what it
# was made for. (Memory is linear in the length only thanks to fused attention. Written out, one
# layer's scores at 131,072 tokens are 32 heads x 131,072² x 2 bytes: one TiB.)
#
# But large bars of activations and temporaries are left. The inputs of blocks are only a part of
# them:

# %% id="head"
TOKENS, VOCABULARY = 131_072, 32_000
inputs_bytes = 32 * TOKENS * 4096 * 2
left = ledgers["131,072 tokens, per-block"]
print(f"left at the peak: activations {Bytes(left['activations'])}, "
      f"temporary {Bytes(left['temporary'])}")  # fmt: skip
print(f"inputs of the 32 blocks: {Bytes(inputs_bytes)}")
print(f"one table of scores in float32: {Bytes(TOKENS * VOCABULARY * 4)}")

# %% [markdown] id="head-read"
# The rest is the head: a score for each of 32,000 words at each of 131,072 places, in 32 bits,
# more than once. No block contains the head, so no checkpoint around a block helps. But the loss
# is a sum over places, so take the places in pieces and checkpoint each piece.


# %% id="pieces"
def make_head_step(num_pieces):
    head = nn.Linear(4096, VOCABULARY, bias=False, dtype=torch.bfloat16)
    hidden = torch.randn(TOKENS, 4096, dtype=torch.bfloat16, requires_grad=True)
    labels, optimizer = torch.zeros(TOKENS, dtype=torch.int64), SGD(head.parameters())

    def piece_loss(part, answers):
        return F.cross_entropy(head(part).float(), answers, reduction="sum") / TOKENS

    def step():
        pairs = zip(hidden.chunk(num_pieces), labels.chunk(num_pieces), strict=True)
        sum(checkpoint(piece_loss, *pair) for pair in pairs).backward()
        optimizer.step()
        optimizer.zero_grad()
        hidden.grad = None

    return step, head, optimizer


# %% id="pieces-measured"
for num_pieces in (1, 32):
    report = memory.predict(partial(make_head_step, num_pieces))
    above = report.peak_bytes - report.baseline_bytes
    print(f"pieces {num_pieces:>2}: {above} above what was there")

# %% [markdown] id="pieces-read"
# What is left is mostly the gradients of the hidden states and of the head, which any plan needs.
# (Libraries fuse these lines into one kernel, under names like "fused linear cross-entropy".)
#
# ## Any architecture?
#
# | architecture | does it help? | is it the same training? |
# |---|---|---|
# | ResNet, 1,000 layers | six times and more | weights yes; statistics only on copies |
# | LSTM over time | $\sqrt T$, or $\log T$ if the state is passed flat | yes; truncation is not |
# | 3-D U-Net | a quarter: two blocks hold nearly everything | as for BatchNorm |
# | long context | four to seven times; then the head, in pieces | yes |
#
# For any other model, two questions decide. *Are the bytes spread over many segments?* Then it
# helps. *Does a forward do anything besides its output, or read anything besides its input?* Then
# compare more than losses.
#
# ## Verdicts

# %% id="verdicts-of-claims"
silent = sum(said.startswith("WRONG") for said in seen.values())
longest = max(LENGTHS)
units_of = {name: table[name][longest][0] for name in ("everything", "segments", "halving, flat")}
contexts = {way: sum(ledgers[f"131,072 tokens, {way}"].values()) for way in ("none", "per-block")}
claims.Verdicts(
    claims.Verdict(
        "A18", "holds if",
        "A block may be checkpointed if it does nothing besides its output and reads nothing "
        "besides its input; otherwise the training differs, often in silence.",
        f"{silent} of {len(seen)} functions give wrong gradients without a word",
        "computed", "besides-table",
    ),
    claims.Verdict(
        "C16", "holds",
        "A ResNet of a thousand layers fits in several times less memory; its BatchNorm statistics "
        "need a cure.",
        f"{plain.peak_bytes} against {frugal.peak_bytes}", "counted", "thousand-measured",
    ),
    claims.Verdict(
        "C17", "holds",
        "Over a long sequence segments need the square root of the steps, and halving its "
        "logarithm if the state is passed flat; truncation is another training.",
        f"{longest} steps: {units_of['everything']:.1f}, {units_of['segments']:.1f} and "
        f"{units_of['halving, flat']:.1f} units", "counted", "flat-table",
    ),
    claims.Verdict(
        "E20", "holds if",
        "Long contexts gain several times, and a 3-D U-Net little, since two of its blocks hold "
        "nearly everything.",
        f"128^3 voxels {volume_gain[128]:.2f} times less, 131,072 tokens "
        f"{contexts['none'] / contexts['per-block']:.1f} times less",
        "predicted", "context", device="CUDA kernels",
    ),
)  # fmt: skip
