# %% [markdown] id="title"
# # Deep and recurrent
#
# "Works with any architecture", says a guide to checkpointing. So far you have seen it on
# transformers and on a small U-Net: a dozen blocks, all alike, in a row. Here are four models that
# each go to an extreme. A ResNet with a thousand layers. An LSTM that reads hundreds of steps. A
# network for volumes. A language model with 131,072 tokens in sight.
#
# Of each we ask two questions. Does it help as much as promised? And is it still the same training?
# Each gets a surprising no, the second one while every loss agrees to the last bit.
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
# ## A thousand layers
#
# One sentence made checkpointing known in deep learning, from the abstract of Chen, Xu, Zhang and
# Guestrin (2016, arXiv 1604.06174): a 1,000-layer residual network for ImageNet in 7 GB instead of
# 48 GB, for 30 % more running time. Their rule: of $n$ blocks, make segments of $\sqrt n$.
#
# Our `resnet1000` is the ResNet-1001 that He et al. trained on CIFAR-10, 333 blocks of three
# convolutions. Its training steps are among the predicted ones in `course/recorded` (16 images of
# 32 x 32, float32, AdamW).
#
# **Predict.** In a transformer, a checkpoint around each block is hard to beat. Sort for this
# network: every block a segment, every two, every 18 (which is $\sqrt{333}$).

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
# The square root gives more than a factor of six; 48 to 7 is nearly seven. So the famous number
# stands, in another framework, ten years later, on smaller images. And what is best in a
# transformer is worst here. One block says why:

# %% id="one-block"
block = Bottleneck(64, 16, stride=1, dropout=0.0)
x = torch.randn(16, 64, 32, 32, requires_grad=True)
kept = memory.saved(lambda: block(x), params_of=block)
f"a block keeps {kept.num_bytes / x.nbytes:.2f} times its input"

# %% [markdown] id="on-paper-text"
# A bottleneck is narrow inside: of the three inputs' worth that it keeps, one *is* its input. A
# checkpoint around it must keep that one, so the factor can never be more than three. (A
# transformer's block keeps more than ten times its input, so there the input hardly counts.)
# Longer segments have fewer inputs to keep, and more to recompute at once:
#
# $$ m(s) = \frac{n}{s}\,a + 3\,a\,s \quad\text{is smallest at}\quad s = \sqrt{n / 3} $$
#
# for $n$ equal blocks with inputs of $a$ bytes. With $r$ in place of 3 it holds for other blocks,
# and $\sqrt n$ is right only for $r = 1$; chapter 06 takes it apart. Here the second of the three
# stages has half the bytes, and the third a quarter. Five lines count it on paper.


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
# At the three recorded points (the line between them means nothing) the full prediction and five
# lines agree, but for the gradients of the weights, which a late peak finds in memory. The square
# root of $n$ sits well to the right of the valley: with 6 to 8 blocks the same network needs much
# less, at the same price. The rule was never "the square root of the number of blocks". It was
# "make the two terms equal".
#
# ### At ImageNet's size, on your laptop
#
# Predicting a thousand layers takes a minute, even on fake tensors. It is not necessary: equal
# blocks add equal bytes, so memory is a straight line in depth, and two points give the line.


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
# So now the network of the claim: transformers' ResNet-152, its third stage made longer until it
# has 1,001 layers, on 32 images of 224 x 224, without checkpointing.


# %% id="imagenet"
def imagenet(depth):
    return Recipe("resnet152", 32, optimizer="sgd", overrides={"depths": (3, 8, depth, 3)})


f"{sum(ledger_at_depth(imagenet, 2, 3, wanted=319).values()) / 1e9:.1f} GB"

# %% [markdown] id="imagenet-read"
# The abstract says 48 GB, and does not say how many images, how the thousand layers are spread over
# resolutions, or what else was in memory. Ours are the conditions above. The order of magnitude
# agrees, and the *ratio*, which depends on less, agrees well.
#
# ### Measured
#
# The thousand layers again, for real: four channels wide instead of sixteen, on digits of 8 x 8
# pixels. Every block is there.

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
# **Predict.** The peak with segments of 8, against none. By what factor does it fall?

# %% id="thousand-measured"
measured = {
    name: memory.measure(partial(step, name), model=thousand, warmup=0)
    for name in ("none", "every-8")
}
plain, frugal = measured.values()
print(f"{thousand.config.num_layers} layers")
print(f"peak  {plain.peak_bytes} against {frugal.peak_bytes}")

# %% [markdown] id="thousand-measured-read"
# Nearly five times less, weights and all, on the machine in front of you. Now we train.
#
# ## The same training, another model
#
# Two twins of 110 layers, the same weights, the same forty batches. One keeps everything, the
# other checkpoints segments of six blocks. They take their steps in turn, so that the times are
# paired.

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
# Forty losses and every weight, to the bit. And the price? The extra forward is a third of the
# FLOPs, less what early stop leaves out. The time differs from machine to machine:

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
# At this size a step is mostly the launching of small operations, forward no cheaper than backward,
# so seconds need not follow FLOPs. On large images, where convolutions take the time, they do.
#
# **Predict.** Now `eval()`, and the 297 images that neither twin has seen. Equal weights: equal
# answers?


# %% id="evaluate"
# NBVAL_IGNORE_OUTPUT
def accuracy(model):
    judge = copy.deepcopy(model).eval()
    with torch.no_grad():
        return (judge(images[1500:]).argmax(dim=1) == labels[1500:]).float().mean().item()


for name, model in twins.items():
    print(f"{name:<8} {accuracy(model):.0%} right")

# %% [markdown] id="evaluate-read"
# The same training, to the bit, and two models that do not even resemble each other. (Your numbers
# may differ a little from those stored here: a network this deep makes much of one rounding.) The
# weights are equal, so it must be something that is no weight:

# %% id="what-differs"
states = [model.state_dict() for model in twins.values()]
differing = [name for name in states[0] if not torch.equal(*(state[name] for state in states))]
sorted({name.rpartition(".")[2] for name in differing})

# %% [markdown] id="double-update"
# ### Updated twice
#
# In training, BatchNorm normalises with the mean $\mu$ of the batch, and on the side moves a
# running mean, which only `eval()` uses:
#
# $$ R \leftarrow (1 - m)\,R + m\,\mu, \qquad m = 0.1 $$
#
# Recomputation runs the layer again, on the same batch, and moves it a second time:
#
# $$ R \leftarrow (1-m)\big[(1-m)R + m\mu\big] + m\mu = (1-m)^2 R + \big[1-(1-m)^2\big]\,\mu $$
#
# So it is one update with momentum $1-(1-m)^2 = 0.19$, and the gradients never see it. The twin
# that looks better was lucky: with only forty updates behind it, forgetting faster helped, since
# the first batches came from a network that no longer exists. Late in a training it makes the
# averages noisier. Neither is wrong, but nobody chose it, and no loss curve will tell.
#
# A bench to check the algebra, and whatever promises a cure: one block, five batches, and the
# statistics that are left. It runs the block plainly (once), under a checkpoint (twice), or under
# one that lies in another (three times).


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
# ### Three cures, and one that is none
#
# **A smaller momentum.** Solve $1-(1-m')^2 = m$: with $m' = 1-\sqrt{1-m}$, two updates are one. No
# line of the training loop changes. This is the cure of most forum posts, and of
# pytorch-pfn-extras.
#
# **Recompute on copies.** `context_fn` gives PyTorch two contexts, one around forward and one
# around the recomputation. In the second, the block may work on copies of its buffers, thrown away
# afterwards.
#
# **Switch the statistics off**, in that same context: `track_running_stats = False`. It is what one
# tries first.


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
# **Predict.** Fill in a table: rows are no cure, the smaller momentum, the copies; columns are a
# block that runs once (the last segment often is not checkpointed), twice, three times.


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
# The smaller momentum is right where a block runs exactly twice, and silently wrong everywhere
# else: in the segment that is kept, under nesting, on the day when somebody turns checkpointing
# off. Its counter of batches is doubled, too (a BatchNorm with `momentum=None`, which averages
# over all batches, divides by that counter and comes out right: each batch counts twice, and twice
# as many batches are counted). The copies are right in all three cases, to the bit. They cost a
# copy of some vectors, and need `use_reentrant=False`.
#
# Switching the statistics off fails loudly. Autograd saves the running statistics along with the
# rest; without them the second run saves fewer tensors than the first, and PyTorch's check sees
# it. (Two facts to know when you read others' code: fairscale's wrapper does the opposite and
# updates in the *recomputation* only; PyTorch's own wish to mend this is issue 96136, open since
# 2023.)
#
# **The third cure** is to have nothing that is updated twice. There are two ways: keep the norms
# outside of what is checkpointed, or use GroupNorm, which has no running statistics.
#
# **Predict.** What does each keep, in block inputs? Plain it was three, under a checkpoint one.


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
# Outside, every norm keeps its input and every convolution's checkpoint keeps the norm's output:
# the cure has cost the whole saving. GroupNorm keeps it all, but it is another network: no
# published BatchNorm weights fit it. (Norms that are frozen, in `eval()` during training, as in
# most detection models, have nothing to double either.)
#
# So, the copies. The twin once more, with a checkpoint around every block that recomputes on
# copies:


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
# On a GPU, the full-width network at a batch that suits it: the allocator's peak and the times.

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
# ## What a forward does besides
#
# BatchNorm is one case of a rule: *what a forward does besides computing its output, it does twice,
# and what it reads besides its input may have changed by then.* "Any architecture" means any that
# does neither. Here are the usual ways to break it, three lines each, around one linear layer.

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
# **Predict.** For each of the eight: equal gradients, an error, or wrong and not a word?


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
# PyTorch restores its own random state, unless it is told not to, and no other. A branch on the
# data is fine, since the data are the same; a branch on chance is caught only when the two paths
# save different tensors. The check behind that error (`determinism_check="default"`) compares
# number, shape and dtype, never values, so a coin that scales or a counter that anneals passes. A
# changed input is caught by its version, if it is an argument of its own: in a list or a tuple
# PyTorch does not see it.
#
# What helps: compare gradients, once, as chapter 05 does at its end; put such state into
# arguments; update counters in the training loop, not in `forward`. Kernels that add in no fixed
# order (some on GPUs) differ between two runs too, but only in rounding, which matters only where
# a rounding decides something: the choice of an expert, a `topk`, a threshold.
#
# ## Hundreds of steps
#
# A recurrent network is the deepest of all, one layer for every step of time. Its weights are
# shared, its activations are not. A plain `nn.LSTMCell`, unrolled; one unit below is the bytes of
# one hidden state, and what is resident already is not counted.

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
# Seven units a step, as you will see. Segments of $\sqrt T$ are a loop. And Chen et al. have
# another plan, for $O(\log T)$ memory: cut the sequence in the middle, checkpoint the left half,
# run the right half; and do the same with each half. While backward is in the last step, only the
# left halves' inputs wait, $\log_2 T$ of them. The price: each level of halving runs its left
# halves once more, half of all steps, so a step runs $1 + \frac12 \log_2 T$ times.


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
# **Predict.** From 64 steps to 256: by how much does each of the three grow?

# %% id="log-table"
LENGTHS = (16, 64, 256)
plans = {"everything": unrolled, "segments": segments, "halving": halving}
table = {name: {n: units(read, n) for n in LENGTHS} for name, read in plans.items()}
for name, row in table.items():
    print(f"{name:<11}", *(f"T={n}: {peak:6.1f} units, {r} runs;" for n, (peak, r) in row.items()))

# %% [markdown] id="log-read"
# The runs are as computed, to the fraction: 3, 4, 5 for each step. The memory of the logarithmic
# plan is not logarithmic at all. It grows by one unit a step, and falls behind mere segments. Every
# gradient is right; only the meter sees it.
#
# Half of the state pairs stay. The clue is in the list of the last section: PyTorch sees tensors
# that are arguments of their own, not those inside a tuple, and an LSTM's state *is* a tuple. Such
# a tensor is not saved, where an outer checkpoint could discard it; the inner checkpoint holds the
# tuple itself, until its backward is done. In one layer of checkpoints that makes no difference.
# Nested, it undoes the nesting. So hand `h` and `c` over one by one:


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
# Now four times the length costs four units: two halvings more, and for each an `h` and a `c`. That
# is the logarithm, on the meter.

# %% id="log-figure"
unit = 32 * 64 * 4  # bytes of one hidden state
curves = {name: {n: peak * unit for n, (peak, _) in row.items()} for name, row in table.items()}
plots.growth(curves, xlabel="steps", title="An LSTM over time: peak of forward and backward")

# %% [markdown] id="log-price"
# And the price in time, on your machine, at 128 steps:


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
# Segments are the working tool: one extra forward takes most of the memory away. Halving is for
# when nothing else fits. Between them lies a whole family, and halving is not the best of it: with
# the same number of states in memory, Revolve gets by with fewer runs, and chapter 06 proves it.
#
# On a GPU nobody unrolls cell by cell: `nn.LSTM` runs a whole stretch in one cuDNN call and keeps
# its intermediates in one buffer. A checkpoint goes around a stretch, in the same loop.

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
# ## Cheaper, and blind
#
# What most people do with long sequences is something else: *truncated* backpropagation. Cut the
# graph every $K$ steps with `detach`, and let gradients flow inside a window only. Its memory does
# not grow at all, and it recomputes nothing. Is that not better?
#
# A task to find out. A hundred numbers go by, each +1 or -1. One of the first ten carries a mark.
# After the last one: which was it? (The forget gates begin open for 1 to 100 steps, after Tallec
# and Ollivier, 2018, so that the signal can live long enough to be found.)

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
# **Predict.** Memory and gradient of the three, at the first step: in segments of ten, whole, and
# in windows of ten. How far is the truncated gradient from the true one?

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
# The checkpointed one needs no more than the truncated one (which holds two windows for a moment:
# the old one goes when the new one is done). It has the gradient, to the bit. The other has a part
# of it, the part that says nothing about the mark: in the last ten steps there never is one.
#
# **Predict.** 160 updates with Adam, the same batches for both.

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
# The same model, the same data, and no more memory. The truncated one stays at 0.69, the
# logarithm of two, which is guessing, and would stay there for a year: the gradient that could
# teach it has been cut off. The other one guesses too, for half of the training, and then has it.
#
# Truncation is not a mistake where it is meant: in a text most of the next letter is decided by the
# last few dozen, and every step has a loss of its own. But it is another training, with a horizon
# that you set. Checkpointing over time is the same training, for one more forward.
#
# ## Where activations explode
#
# Depth and time add. Two other axes multiply.
#
# **Volumes.** The 3-D U-Net of Çiçek et al. (2016), one volume, float32, at twice the side: eight
# times the voxels. Video is the same case, with time as the third axis.
#
# **Predict.** It has seven blocks. Checkpoint each: how many times less memory?


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
# Seven blocks, and hardly a quarter less. Checkpointing divides what is *spread out*. Here nearly
# three quarters lie at full resolution, in two blocks: while the last one is recomputed, all of it
# is there at once, and the skip that waits for it cannot be dropped at all. Halving each block
# into two segments lowers the peak by less than a tenth more; you can try. What helps is what
# makes the voxels cheaper or fewer: 16 bits, and patches, which is how such networks are trained.
#
# **Long context.** Llama 2 7B, batch 1, everything in bfloat16, with more positions than it was
# published with. By the line in depth again, each category on its own: two layers and three give
# all 32.
#
# **Predict.** Thirty-two equal blocks, so nothing here hinders a checkpoint. Which category is left
# at 131,072 tokens?


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
# A factor of four to seven, where the volumes got little: thirty-two equal blocks are what
# checkpointing was made for. (It grows in a straight line only thanks to fused attention. Written
# out, the scores of a single layer at 131,072 tokens are 32 heads x 131,072² x 2 bytes: one TiB.)
#
# And still there is a large bar of activations left, and a large one of temporaries. The blocks'
# inputs are only a part of it:

# %% id="head"
TOKENS, VOCABULARY = 131_072, 32_000
inputs_bytes = 32 * TOKENS * 4096 * 2
left = ledgers["131,072 tokens, per-block"]
print(f"left at the peak: activations {Bytes(left['activations'])}, "
      f"temporary {Bytes(left['temporary'])}")  # fmt: skip
print(f"inputs of the 32 blocks: {Bytes(inputs_bytes)}")
print(f"one table of scores in float32: {Bytes(TOKENS * VOCABULARY * 4)}")

# %% [markdown] id="head-read"
# The rest is the head: a score for each of 32,000 words at each of 131,072 places, in 32 bits, more
# than once. No block holds it, so no checkpoint around a block can help. The loss is a sum over
# places; so take the places in pieces, and checkpoint each piece.


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
# (Libraries fuse this into one kernel under names like "fused linear cross-entropy"; the idea is
# these lines.)
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
# Two questions answer it for a model that is not in the table. *Are the bytes spread over many
# segments?* Then it helps. *Does a forward do anything besides its output, or read anything besides
# its input?* Then look again, and compare more than losses.
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
