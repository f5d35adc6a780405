# %% [markdown] id="title"
# # Many devices
#
# So far one device held everything. With several devices you can divide the batch, the weights, the
# gradients and the optimizer states.
#
# In this chapter you train one small GPT in five ways, in up to four processes on your computer.
# You count what each process holds and sends.
#
# **Budget:** 70 minutes, 3 GiB of memory, no GPU needed.

# %% id="imports"
import os
import sys
from collections import namedtuple
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import mean
from unittest.mock import patch

import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import display
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import figures, ranks, recorded
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that we start share a few cores

# %% [markdown] id="processes-text"
# ## How does one program become several?
#
# ```text
#                   ┌─► rank 0: f()  my tensor 10 ─┐                ┌─► 21
# launcher: run(f) ─┤                              ├─ all-reduce: + ┤
#                   └─► rank 1: f()  my tensor 11 ─┘                └─► 21
# ```
#
# A **rank** is a process with a number. All ranks run the same function. They exchange data in
# **collectives**, calls that all ranks make together. *All-reduce* adds up a tensor over all ranks
# and gives each rank the sum.

# %% id="start-two"
two = ranks.start(2)


def add_up():
    rank, mine = dist.get_rank(), torch.tensor(10.0 + dist.get_rank())
    dist.all_reduce(mine)
    return f"rank {rank} of {dist.get_world_size()}: the sum is {mine.item():g}"


two.run(add_up)

# %% [markdown] id="ddp-text"
# ## Data parallelism: divide the batch
#
# ```text
# rank 0: all weights, lines 0 to 3 ─► gradients ─┐              ┌─► mean ─► same update
#                                                 ├─ all-reduce ─┤
# rank 1: all weights, lines 4 to 7 ─► gradients ─┘              └─► mean ─► same update
# ```
#
# With `DistributedDataParallel` (DDP), each rank has the whole model and optimizer, and a part of
# the batch. During backward DDP averages the gradients with all-reduces.
#
# Our model has eight blocks. Each update trains on eight sequences (lines of text), however many
# ranks there are. All sizes in this chapter are in **P**, the size of the weights. Gradients take
# another P, and AdamW's states take two.


# %% id="model"
def make_gpt(recomputed=False):
    torch.manual_seed(0)  # the same weights on every rank
    gpt = GPT(GPTConfig(num_layers=8, tie_weights=False))
    for block in gpt.blocks if recomputed else []:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return gpt


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


lines = next(data.text_batches(8, 128))  # (batch, sequence)
P = sum(parameter.nbytes for parameter in make_gpt().parameters())


def my_lines():
    return lines.chunk(dist.get_world_size())[dist.get_rank()].clone()


# %% [markdown] id="write-average"
# **Write.** `average`, which does DDP's averaging by hand. Every rank runs it.
# `loss_of(model(part), part)` is the loss on a part of the batch, and `dist.all_reduce(tensor)`
# replaces the tensor by its sum over all ranks.


# %% id="average"
def average(model):
    """Run backward on `my_lines()`, and leave the mean over all ranks in `.grad`."""
    ### BEGIN SOLUTION
    loss_of(model(my_lines()), my_lines()).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% id="check-average"
# @title Check: run this cell
@blanks.check("average", "leave the mean of all ranks' gradients in `.grad`")
def averages():
    def on_a_rank():  # the function that each rank runs
        model, sizes = make_gpt(), []
        model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        before = nn.utils.parameters_to_vector(model.parameters())
        average(model)
        grads = [p.grad for p in model.parameters()]
        moved = (before != nn.utils.parameters_to_vector(model.parameters())).any()
        lost = sum(grad is None for grad in grads)
        seen = None if lost else nn.utils.parameters_to_vector(grads)
        return seen, lost, bool(moved), sum(sizes)

    whole = make_gpt()
    loss_of(whole(lines), lines).backward()
    wanted = nn.utils.parameters_to_vector([p.grad for p in whole.parameters()])
    for rank, (seen, lost, moved, size) in enumerate(two.run(on_a_rank)):
        assert size == 4, f"Rank {rank} runs {size} lines, not its own 4."
        assert not lost, f"Rank {rank}: {lost} parameters have no gradient."
        assert not moved, (
            f"Rank {rank}: the weights have changed, but only gradients should."
        )
        times = float(seen @ wanted / wanted.square().sum())
        off = float((seen - wanted).norm() / wanted.norm())
        assert abs(times - 2) > 1e-3, f"Rank {rank} has the sum of both, not the mean."
        assert off < 1e-4, (
            f"Rank {rank}: the gradient differs by {off:.0%} from all eight lines'."
        )


# %% [markdown] id="no-sync-text"
# DDP copies the gradients into **buckets**, flat tensors of up to 25 MiB (the first up to 1 MiB),
# and all-reduces each bucket.
#
# By default, DDP averages after every micro-batch. With accumulation, it's enough to average once,
# after the last micro-batch. So the loop runs all the earlier micro-batches within `no_sync()`, a
# context that skips the averaging.
#
# **Predict.** There are four micro-batches and two buckets. How many all-reduces does one update
# run on each rank, *without* `no_sync`?

# %% id="guess-no-sync"
guess = None


# %% [markdown] id="write-no-sync"
# **Write.** The update in `all_reduces`: forward and backward for each part, without an optimizer.
# If `skip` is set, run the parts in `others` within `model.no_sync()`. Run the last part outside of
# it.


# %% id="no-sync"
def all_reduces(num_parts, skip):
    """Return the bytes of each all-reduce in an update of `num_parts` micro-batches.

    `loss_of(model(part), part)` is a loss; `nullcontext()` does nothing.
    """
    model = DistributedDataParallel(make_gpt())
    *others, last = my_lines().chunk(num_parts)
    for _ in range(2):  # DDP makes its buckets anew after the first update
        with ranks.traffic() as seen:
            ### BEGIN SOLUTION
            with model.no_sync() if skip else nullcontext():
                for part in others:
                    loss_of(model(part), part).backward()
            loss_of(model(last), last).backward()
            ### END SOLUTION
    return seen.sizes("all_reduce")


# %% id="check-no-sync"
# @title Check: run this cell
@blanks.check("all_reduces", "accumulate gradients in a DDP model")
def sends_each_bucket_when_it_should():
    sent_before, plain_loss = [], loss_of

    def counted(logits, part):
        sent_before.append(len(traffic.sizes()))
        return plain_loss(logits, part)

    with ranks.pretend(2):  # one rank of two
        once = all_reduces(1, False)
        share = sum(once) / P
        assert share == 1, f"One micro-batch sends {share:g} P of gradients, not 1 P."
        for skip, times in ((False, 4), (True, 1)):
            sent_before.clear()
            with ranks.traffic() as traffic, patch.dict(globals(), loss_of=counted):
                seen, right = len(all_reduces(4, skip)), times * len(once)
            said = f"4 micro-batches, skip={skip}: {seen} all-reduces, not {right}."
            assert seen == right, said
            said = f"skip={skip}: {len(sent_before)} losses in two updates, not 8."
            assert len(sent_before) == 8, said
            early = sent_before[-1] - sent_before[-4]
            said = f"{early} all-reduces begin before the last micro-batch's forward."
            assert not skip or not early, f"skip=True: {said}"


# %% id="no-sync-table"
synced, skipped = (two.run(all_reduces, 4, skip)[0] for skip in (False, True))
buckets = len(two.run(all_reduces, 1, False)[0])
for name, sizes, passes in (("without", synced, 4), ("no_sync", skipped, 1)):
    formula = f"{buckets} buckets x {passes} = {buckets * passes}"
    amount = f"{len(sizes)} all-reduces (formula: {formula}), {sum(sizes) / P:g} P"
    print(f"{name:<8} {amount}")
print(f"without no_sync: {len(synced)}{beside(guess, len(synced))}")

# %% [markdown] id="measured-text"
# We compare four ways to train on a global batch of eight sequences. The *global batch* is
# micro-batch × accumulation steps × ranks. Which of these three factors changes the activations'
# memory?
#
# **Write.** The inner function `step` of `training_step`. It clears the old gradients at its start,
# and leaves the new gradients in `.grad`.

# %% id="measured"
# @title Measure a rank: run this cell; open it to look
Seen = namedtuple("Seen", "report loss traffic")
adamw = partial(AdamW, foreach=False)  # foreach would copy more at once


def measured(prepare, *args):
    step, model, optimizer = prepare(*args)
    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    with ranks.traffic() as traffic:
        loss = step()
    return Seen(report, loss, traffic)


def of_all(found):
    # gloo frees a tensor late on some rank at times: take the rank with the least
    least = min(found, key=lambda one: one.report.peak_bytes)
    return least._replace(loss=mean(one.loss for one in found))  # of all lines


# %% id="training-step"
def training_step(model, batch, num_parts=1, context=nullcontext, make_optimizer=adamw):
    optimizer = make_optimizer(model.parameters())

    def step():
        """Update once, in `num_parts` micro-batches; return the mean loss, a number.

        Enter a new `context()` around each micro-batch's forward, and nothing else.
        """
        ### BEGIN SOLUTION
        optimizer.zero_grad()
        total = 0.0
        for part in batch.chunk(num_parts):
            with context():
                loss = loss_of(model(part), part) / num_parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total
        ### END SOLUTION

    return step, model, optimizer


# %% id="check-training-step"
# @title Check: run this cell
@blanks.check(
    "training_step", "enter a new context for each micro-batch, and update once"
)
def updates_once():
    batch, twin, inside, backward = lines[:4], make_gpt(), [], []

    @contextmanager
    def watched():
        inside.append(True)
        yield
        inside[-1] = False

    sgd = partial(SGD, lr=0.1)
    step, model, _ = training_step(make_gpt(), batch, 2, watched, sgd)
    model.head.weight.register_hook(
        lambda _: backward.append((len(inside), any(inside)))
    )
    plain = sgd(twin.parameters())

    def off(*both):
        seen, right = map(nn.utils.parameters_to_vector, both)
        return ((seen - right).norm() / right.norm()).item()

    for update, entered in (("first", 2), ("second", 4)):
        plain.zero_grad()
        of_twin = loss_of(twin(batch), batch)
        of_twin.backward()
        loss, wanted = step(), of_twin.item()
        assert isinstance(loss, float), f"The loss isn't a number: it's {loss!r}."
        said = f"{entered} micro-batches enter the context {len(inside)} times."
        assert len(inside) == entered, said
        within = any(inner for _, inner in backward)
        assert not within, "Backward runs within the context: only forward should."
        said = "A micro-batch's forward runs before the previous backward: both graphs"
        after = [number for number, _ in backward]
        assert after == [*range(1, entered + 1)], f"{said} are in memory at once."
        empty = any(p.grad is None for p in model.parameters())
        assert not empty, "After the step `.grad` is empty."
        both = [[p.grad for p in gpt.parameters()] for gpt in (model, twin)]
        by = off(*both)
        said = f"The {update} update's gradient is off by {by:.0%}, against all lines'."
        assert by < 1e-3, said
        said = f"The loss is {loss:.3f}, but the mean of all lines is {wanted:.3f}."
        assert abs(loss - wanted) < 1e-3, said
        plain.step()
        by = off(model.parameters(), twin.parameters())
        assert by < 1e-5, f"The {update} update moves the weights elsewhere."


# %% id="ways-one"
def one_process(num_parts=1, num_lines=8):
    return training_step(make_gpt(), lines[:num_lines], num_parts)


# %% [markdown] id="write-ddp"
# **Write.** `ddp`, which wraps a new GPT in DDP with `gradient_as_bucket_view=True`, and calls
# `training_step` on `my_lines()`. (Each `.grad` is then a view of its bucket, which saves one P.)


# %% id="ddp"
def ddp(num_parts=1, recomputed=False, **choices):
    """Return a rank's step, model and optimizer; choices go to `training_step`."""
    ### BEGIN SOLUTION
    gpt = make_gpt(recomputed)
    model = DistributedDataParallel(gpt, gradient_as_bucket_view=True)
    return training_step(model, my_lines(), num_parts, **choices)
    ### END SOLUTION


# %% id="check-ddp"
# @title Check: run this cell
@blanks.check("ddp", "return step, model and optimizer")
def divides_the_lines():
    sizes = []
    with ranks.pretend(2):  # one rank of two
        step, model, optimizer = ddp(2, True, make_optimizer=partial(SGD, lr=0.1))
        kind = type(model).__name__
        assert kind == "DistributedDataParallel", f"The model is a {kind}, not DDP."
        assert isinstance(optimizer, SGD), "The choices are not passed on."
        attention = model.module.blocks[0].attention
        attention.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        step()
    said = f"A rank's 4 lines in 2 parts, recomputed: a block runs on {sizes} lines."
    assert sizes == [2, 2, 2, 2], said
    grad = model.module.head.weight.grad
    assert grad.untyped_storage().nbytes() > grad.nbytes, "`.grad` isn't in a bucket."


# %% id="global-batch"
alone = measured(one_process)
settings = {
    (8, 1, 1): alone,
    (4, 1, 2): of_all(two.run(measured, ddp)),
    (2, 4, 1): measured(one_process, 4),
    (2, 2, 2): of_all(two.run(measured, ddp, 2)),
}
two.stop()
table = pd.DataFrame(list(settings), columns=["micro-batch", "steps", "ranks"])
reports = [one.report for one in settings.values()]
table["activations, P"] = [report.at_peak["activations"] / P for report in reports]
table["peak, P"] = [report.peak_bytes / P for report in reports]
table["loss"] = [one.loss for one in settings.values()]
table.round(2)

# %% [markdown] id="zero-text"
# Only the micro-batch changes the activations' memory. Subtract the activations from each peak. In
# the first row that leaves little more than weights and states, 3 P. Accumulation adds about 1 P,
# because the gradients of earlier micro-batches are in memory. DDP adds 1 P for its buckets. Both
# together still add only 1 P, since `.grad` is a view of the bucket. The losses show that all four
# train alike.
#
# ## ZeRO: divide the bytes, not the work
#
# With DDP, N ranks hold N equal copies of weights, gradients and states. ZeRO (Rajbhandari et al.,
# 2020) divides these by N, in three stages. Stage 1 divides the optimizer's states, stage 2 also
# the gradients, and stage 3 also the weights. In stage 3 a rank gathers the other ranks' weights
# just before it needs them.
#
# Two PyTorch tools do nearly the same:
#
# - `ZeroRedundancyOptimizer` divides the optimizer's states, like stage 1. DDP still all-reduces
#   whole gradients, and the optimizer then broadcasts the new weights.
# - `fully_shard` (FSDP2) divides weights, gradients and states, and gathers a module's weights
#   before its forward. With `reshard_after_forward=True` it frees them after forward, and gathers
#   them again in backward, like stage 3. With `False` it keeps the gathered weights until backward.
#
# The table has formulas for what one of N ranks holds and sends with AdamW, in P. A is mostly
# activations: it's the peak of a single process that trains on one rank's sequences, minus its
# weights and states. At its peak, a rank in stage 3 has gathered the weights of one block and those
# outside the blocks (*rest*). It also holds one more block-sized buffer, which
# [13d](13d_fsdp2_in_full.ipynb) explains.
#
# | | between steps | at the peak | sent per step |
# |---|---|---|---|
# | DDP with views | $4$ | $4 + A$ | $2\,(N-1)/N$ |
# | `ZeroRedundancyOptimizer` | $2 + 2/N$ | $2 + 2/N + A$ | $3\,(N-1)/N$ |
# | FSDP2, kept until backward | $4/N$ | $1 + 3/N + A$ | $2\,(N-1)/N$ |
# | FSDP2, stage 3 | $4/N$ | $3/N + \text{rest} + 2\,\text{block} + A$ | $3\,(N-1)/N$ |
#
# A *reduce-scatter* adds up a tensor over all ranks and leaves each rank one N-th of the sum. The
# last column is for a *ring*, in which each rank sends only to the next one. For a gather, a
# reduce-scatter or a broadcast, a rank then sends $(N-1)/N$ of the tensor. For an all-reduce it
# sends twice as much.
#
# **Predict.** Four ranks train on two sequences each. How high is stage 3's peak, as a percentage
# of DDP's peak? DDP's peak, $4 + A$, is the same for any number of ranks: the row above for two
# ranks with micro-batch 2 has it, too. The next cell prints *block* and *rest*.

# %% id="zero-picture"
block = sum(p.nbytes for p in make_gpt().blocks[0].parameters()) / P
print(f"one block has {block:.3f} P, the rest {1 - 8 * block:.3f} P")
N, STATES = 4, ("parameters", "gradients", "optimizer_state")
whole, own = [range(N)] * N, [[rank] for rank in range(N)]
for title, states in (("DDP", whole), ("ZeRO stage 3, between steps", own)):
    parts = dict.fromkeys(STATES, states) | {"activations": own}
    display(figures.who_holds_what(title, parts, num_parts=N))

# %% id="guess-zero"
guess = None

# %% id="ways-zero"
divided = partial(ZeroRedundancyOptimizer, optimizer_class=AdamW, foreach=False)
zero_1 = partial(ddp, make_optimizer=divided)

# %% [markdown] id="write-fsdp"
# **Write.** `fsdp`. Call `fully_shard(module, mesh=mesh, reshard_after_forward=twice, **choices)`
# for each block, and then for the model. The last call divides the weights outside the blocks. The
# mesh is `init_device_mesh("cpu", (dist.get_world_size(),))`. Return
# `training_step(model, my_lines())`.


# %% id="fsdp"
def fsdp(twice, recomputed=False, **choices):
    """Divide a new GPT over all ranks; return its step, model and optimizer.

    `twice`: whether backward gathers the weights again, as stage 3 does.
    """
    ### BEGIN SOLUTION
    model = make_gpt(recomputed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.blocks, model):  # the last call takes what no block has
        fully_shard(module, mesh=mesh, reshard_after_forward=twice, **choices)
    return training_step(model, my_lines())
    ### END SOLUTION


# %% id="check-fsdp"
# @title Check: run this cell
@blanks.check("fsdp", "divide each block, then the model, and return all three")
def divides_everything():
    bf16 = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16)}
    for twice, again, choices in ((True, False, {}), (False, True, bf16)):
        with ranks.pretend(2):  # one rank of two
            step, model, optimizer = fsdp(twice, again, **choices)
            seen = []
            attention = model.blocks[0].attention
            attention.register_forward_pre_hook(
                lambda _, args, seen=seen: seen.append(args[0])
            )
            step()
            runs, x = len(seen), seen[0]
            with ranks.traffic() as traffic:
                step()
        parts = model.named_parameters()
        whole = [name for name, part in parts if not isinstance(part, DTensor)]
        said = f"Each rank has all of {', '.join(whole)}, and nothing keeps them equal."
        assert not whole, said
        held = {id(part) for part in optimizer.param_groups[0]["params"]}
        said = "The optimizer holds other tensors than the model: divide first."
        assert held == {id(part) for part in model.parameters()}, said
        gathers, right = len(traffic.sizes("all_gather")), 9 * (1 + twice)
        said = f"twice={twice}: a step gathers {gathers} times; 9 parts need {right}."
        assert gathers == right, said
        said = f"recomputed={again}: a block runs {runs} times in a step."
        assert runs == 1 + again, said
        assert len(x) == 4, f"A rank of two has {len(x)} of the 8 lines, not 4."
        said = f"A block computes in {x.dtype}, but mp_policy says bfloat16."
        assert not choices or x.dtype == torch.bfloat16, said


# %% id="formulas"
def formulas(n, a, block, rest):  # the table's rows in P
    sent = (n - 1) / n
    ddp = 4, 4 + a, 2 * sent
    zero_1 = 2 + 2 / n, 2 + 2 / n + a, 3 * sent
    kept = 4 / n, 1 + 3 / n + a, 2 * sent
    return [ddp, zero_1, kept, (4 / n, 3 / n + rest + 2 * block + a, 3 * sent)]


# %% id="zero-formula"
A = measured(one_process, 1, 2).report.peak_bytes / P - 3  # less weights and states
NAMES = ("DDP", "ZeroRedundancy", "FSDP2, kept", "ZeRO 3")
formula = dict(zip(NAMES, formulas(N, A, block, 1 - 8 * block), strict=True))

# %% id="show"
# NBVAL_IGNORE_OUTPUT
four = ranks.start(N)  # the line below, if there is one, depends on your machine


# %% id="in-p"
# @title A table in P: run this cell; open it to look
def of_four(way, *args):
    return of_all(four.run(measured, way, *args))


def show(names):  # in P, each beside its formula
    table = {}
    for name in names:
        report, sent = seen[name].report, seen[name].traffic.ring_bytes(N)
        found = report.baseline_bytes / P, report.peak_bytes / P, sent / P
        both = zip(found, formula[name], strict=True)
        table[name] = [f"{counted:.2f} ({wanted:.2f})" for counted, wanted in both]
    heads = ("between steps", "peak", "sent")
    frame = pd.DataFrame.from_dict(table, orient="index", columns=heads)
    return frame.rename_axis(columns="counted (formula)")


# %% id="zero-measured"
ways = {"DDP": [ddp], "ZeroRedundancy": [zero_1],
        "FSDP2, kept": [fsdp, False], "ZeRO 3": [fsdp, True]}  # fmt: skip
seen = {name: of_four(*way) for name, way in ways.items()}
share = 100 * seen["ZeRO 3"].report.peak_bytes / seen["DDP"].report.peak_bytes
print(f"stage 3: {share:.0f} % of DDP's peak{beside(guess, share)}")
show(ways)

# %% [markdown] id="zero-read"
# **Activations are not divided**: every rank keeps those of its own sequences. So stage 3 still
# needs over half of DDP's peak.
#
# ## FSDP2 with checkpointing and 16 bits
#
# In which order do you wrap a block?
#
# ```text
# for block in blocks:    checkpoint(block)     backward runs the block again
#                         block.compile()       one graph per block
#                         fully_shard(block)    gathers weights before, frees them after
# model:                  fully_shard(model)    the weights outside the blocks
# ```
#
# This is the order in torchtitan, PyTorch's training code. In backward, FSDP2 gathers a block's
# weights once and uses them for both the recomputation and the gradients. So checkpointing sends
# nothing extra ([13d](13d_fsdp2_in_full.ipynb) draws and counts it). The next cell measures two
# rows of the last table.

# %% id="fsdp-levers"
IN_BF16 = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
seen["ZeRO 3 + checkpoint"] = of_four(fsdp, True, True)
seen["ZeRO 3 + checkpoint, bf16"] = of_four(
    partial(fsdp, mp_policy=IN_BF16), True, True
)

# %% [markdown] id="fsdp-levers-read"
# With this `MixedPrecisionPolicy`, FSDP2 gathers and computes in bfloat16, so gathers send half the
# bytes. Each rank's part of the weights and states stays in float32. The gradients are added up in
# float32 too, because of `reduce_dtype`.
#
# ## FSDP2 with accumulation
#
# `set_requires_gradient_sync(False)` is FSDP2's `no_sync`. It skips the reduce-scatter, so ranks
# send less, but each rank holds whole gradients. How much does that add to the peak?


# %% [markdown] id="write-fsdp-accumulation"
# **Write.** The inner function `step`. Call `model.set_requires_gradient_sync(...)` before each
# part's forward. If `sync` is set, pass `True` for every part, otherwise only for the last.


# %% id="fsdp-accumulation"
def accumulating(sync):
    _, model, optimizer = fsdp(True, recomputed=True)
    parts = my_lines().chunk(2)

    def step():
        """Update once, in two micro-batches; return the mean loss, a number."""
        ### BEGIN SOLUTION
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            model.set_requires_gradient_sync(sync or part is parts[-1])
            loss = loss_of(model(part), part) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total
        ### END SOLUTION

    return step, model, optimizer


# %% id="check-fsdp-accumulation"
# @title Check: run this cell
def gradients_at_updates(optimizer):
    """Return a list that gets this rank's gradients at each optimizer step."""
    found, (group,) = [], optimizer.param_groups

    def look(*_):
        parts = [
            p.grad.to_local().flatten() for p in group["params"] if p.grad is not None
        ]
        found.append(torch.cat(parts) if parts else torch.zeros(0))

    optimizer.register_step_pre_hook(look)
    return found


def own_part(output, input, *args, send=dist.reduce_scatter_tensor, **kwargs):
    """A pretended rank gets its own part; up to PyTorch 2.12 it gets nothing."""
    sent = send(output, input, *args, **kwargs)
    output.copy_(input.chunk(2)[0])
    return sent


@blanks.check("accumulating", "return a step that returns the mean loss")
def accumulates_divided():
    pretended = patch.object(dist, "reduce_scatter_tensor", own_part)
    for sync, right in ((True, 18), (False, 9)):
        with ranks.pretend(2), pretended:  # one rank of two
            step, _, optimizer = accumulating(sync)
            updates = gradients_at_updates(optimizer)
            with torch.no_grad():
                wanted = loss_of(make_gpt()(my_lines()), my_lines()).item()
            with ranks.traffic() as traffic:
                loss = step()
            once = len(updates)
            step()
            _, model, optimizer = fsdp(True, recomputed=True)
            truth = gradients_at_updates(optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model(my_lines()), my_lines()).backward()
                optimizer.step()
        assert isinstance(loss, float), f"The loss isn't a number: it's {loss!r}."
        seen = len(traffic.sizes("reduce_scatter"))
        said = f"sync={sync}: {seen} reduce-scatters; 9 parts need {right}."
        assert seen == right, said
        assert once == 1, f"The optimizer steps {once} times, not once."
        for number, (ours, true) in enumerate(zip(updates, truth, strict=True), 1):
            times = (ours @ true / true.square().sum()).item()
            assert abs(times - 1) < 0.05, (
                f"sync={sync}, update {number}: the gradient is {times:.2f} times "
                "the mean of both parts'."
            )
        near = abs(loss / wanted - 1) < 0.1  # the other rank's weights are missing
        assert near, f"The loss is {loss:.1f}, not {wanted:.1f}."


# %% id="fsdp-accumulation-table"
table = {}
for title, sync in (("exchanged in each", True), ("in the last only", False)):
    report, _, traffic = of_four(accumulating, sync)
    table[title] = [report.peak_bytes / P, traffic.ring_bytes(N) / P]
pd.DataFrame.from_dict(table, orient="index", columns=("peak, P", "sent, P")).round(2)

# %% [markdown] id="fsdp-accumulation-read"
# If gradients are exchanged only after the last micro-batch, each rank keeps whole gradients until
# then. So if gradients are large, **run the reduce-scatter in every micro-batch under FSDP2**,
# although that sends more.
#
# ## What does each lever touch?
#
# We now try three more levers on four DDP ranks: checkpointing each block, moving saved tensors to
# the host with chapter 07d's hooks (NumPy arrays stand in for host memory), and bfloat16 autocast.
# In the table, a row with 0 P of gradients has its peak before any `.grad` is filled.


# %% id="host"
def to_host(tensor):
    return tensor.detach().numpy().copy()


to_device = torch.tensor  # a new tensor with the array's numbers
HOST = partial(torch.autograd.graph.saved_tensors_hooks, to_host, to_device)
BF16 = partial(torch.autocast, "cpu", torch.bfloat16)

# %% id="all-rows"
# @title The last table, and a figure: run this cell; open it to look
seen["DDP + checkpoint"] = of_four(partial(ddp, recomputed=True))
seen["DDP + offload"] = of_four(partial(ddp, context=HOST))
seen["DDP + bf16 autocast"] = of_four(partial(ddp, context=BF16))
four.stop()
rows = {"one process": alone, **seen}
ledgers = {name: one.report.at_peak for name, one in rows.items()}
table = pd.DataFrame(ledgers).T[[*STATES, "activations"]] / P
table["peak"] = [one.report.peak_bytes / P for one in rows.values()]
table["sent"] = [one.traffic.ring_bytes(N) / P for one in rows.values()]
table["loss"] = [one.loss for one in rows.values()]
losses = [one.loss for name, one in rows.items() if "bf16" not in name]
same = max(losses) - min(losses) < 1e-4
print("in float32, all losses of the fourth update are the same to 1e-4:", same)
display(table.round(2).rename(columns={"optimizer_state": "states"}))
plots.ledger_bars(ledgers, title="What one rank holds at its peak")

# %% [markdown] id="touches"
# Checkpointing, offload and 16 bits work inside each rank, so you can combine them with DDP, ZeRO
# and FSDP2.

# %% id="verdicts"
peaks = {name: f"{one.report.peak_bytes / P:.2f}" for name, one in rows.items()}
claims.Verdicts(
    claims.Verdict(
        "C20", "shown", "No single lever of this chapter does it all: its ranks divide "
        "weights, gradients and states, while checkpointing, offload and 16 bits cut "
        "activations. Pipeline and tensor parallelism (13b) divide all of these.",
        f"peaks in P: DDP {peaks['DDP']}, ZeRO 3 {peaks['ZeRO 3']}, both with "
        f"checkpointing {peaks['DDP + checkpoint']} and "
        f"{peaks['ZeRO 3 + checkpoint']}; DDP with offload "
        f"{peaks['DDP + offload']}, with autocast {peaks['DDP + bf16 autocast']}",
        "counted", "all-rows"),
    claims.Verdict(
        "D09", "holds", "With no_sync, DDP sends each bucket of gradients once per "
        "update. Without it, DDP sends each bucket once per micro-batch.",
        f"{len(skipped)} with no_sync, {len(synced)} without, for {buckets} buckets "
        "and 4 micro-batches", "counted", "no-sync-table"),
)  # fmt: skip

# %% [markdown] id="what-about-models-that"
# ## What about models too large for a laptop?
#
# `ranks.pretend(8)` makes this process one of eight ranks; the other seven do not exist.
# Collectives send nothing, but all shapes are right, so `memory.predict` gives one rank's bytes.
# `Recipe` prepares a published model for `ddp`, `fsdp` (FSDP2) or `tp` (tensor parallelism, 13b).
#
# The bars below were predicted this way. All models train in bfloat16 with fused AdamW and each
# block checkpointed. Each rank has one full-length sequence (with `tp`, all ranks share one). GPT-2
# XL has no `tp` bar, since its 25 heads can't be divided by eight.

# %% id="per-rank"
LEAN = {"precision": "bf16", "optimizer": "adamw-fused", "checkpointing": "per-block"}
table, eight = recorded.load("predicted").rows, {}
for model in ("gpt2-xl", "llama-2-7b", "llama-2-70b"):
    for way in ("ddp", "fsdp", "tp") if model != "gpt2-xl" else ("ddp", "fsdp"):
        recipe = Recipe(model, **LEAN, ranks=8, shard=way)
        eight[f"{model}, {way}"] = table[recipe.label()]["report"]
peak = eight["llama-2-70b, fsdp"]["peak_bytes"] / GIB
print(f"Llama-2-70B with FSDP2: {peak:.1f} GiB")
ledgers = {name: report["at_peak"] for name, report in eight.items()}
del ledgers["llama-2-70b, ddp"]  # too long a bar
title = "One of 8 ranks, predicted"
plots.ledger_bars(ledgers, title=title, cards_gib=(24, 80), predicted=[*ledgers])

# %% [markdown] id="per-rank-read"
# With DDP, more ranks don't help: each needs all 4 P. With FSDP2 or TP, Llama-2-7B fits on 24 GiB
# cards. Llama-2-70B is borderline on eight 80 GiB cards: an eighth of its 4 P takes most of each
# card, and the allocator and nccl, which links the GPUs, need a few GiB too.

# %% [markdown] id="your-run"
# ## Your run
#
# Two cards now share `train.py`'s update: each computes on half of the 12 rows, and keeps half of
# AdamW's states. DDP works only if you call the whole model, and `train.py` calls the model's parts
# one by one. So you exchange the gradients yourself, as in `average`, once per update, after the
# last micro-batch.
#
# **Write.** The micro-batches and the exchange in `on_ranks`. `train.loss_of(model, part)` is the
# mean loss over a part's targets. Its weight is `share_of(part, tokens)`, the part's share of the
# targets of *all* ranks (chapter 09). With these weights, do you need the sum over ranks, or the
# mean? Exchange the loss in the same way, so that each rank returns the loss of all ranks.


# %% id="make-divided"
# @title Divided states and chapter 09's share: run this cell; open it to look
def make_divided(config):
    """Return a seeded model, and an optimizer with this rank's share of the states."""
    if not dist.is_initialized():  # in a script: torchrun says which rank this is
        dist.init_process_group()
        if torch.cuda.is_available():
            torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(0)
    model = train.GPT(config)
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=3e-4)


def share_of(part, tokens):
    """Return the part's share of all targets that count; both hold rows of tokens."""
    own = (train.targets_of(part) >= 0).sum()
    return own / (train.targets_of(tokens) >= 0).sum()


# %% id="on-ranks"
def on_ranks(model, optimizer, tokens, micro_batch=4):
    """Do one update on this rank's rows of all tokens; return the loss of all ranks.

    The loss is a tensor without a graph.
    """
    optimizer.zero_grad()
    mine, total = tokens.chunk(dist.get_world_size())[dist.get_rank()], 0
    ### BEGIN SOLUTION
    for part in mine.split(micro_batch):
        loss = train.loss_of(model, part) * share_of(part, tokens)
        loss.backward()
        total = total + loss.detach()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_reduce(total)
    ### END SOLUTION
    optimizer.step()
    return total


# %% id="check-on-ranks"
# @title Check: run this cell
@blanks.check("on_ranks", "return the loss of all ranks, as a tensor")
def exchanges_once():
    tokens, gpts = your_run.RAGGED, [train.make(train.TWIN)[0] for _ in range(3)]
    sizes, plain_loss = [[], []], train.loss_of

    def counted(model, part):
        sizes[dist.get_rank()].append(len(part))
        return plain_loss(model, part)

    def of_a_rank(rank):
        gpt = gpts[rank]
        return on_ranks(gpt, SGD(gpt.parameters(), lr=0.0), tokens, micro_batch=3)

    with patch.object(train, "loss_of", counted):
        losses, traffic = ranks.in_threads(of_a_rank, 2)
    wanted = train.update(gpts[2], SGD(gpts[2].parameters(), lr=0.0), tokens)
    assert sizes == 2 * [[3, 3]], (
        f"6 rows per rank by 3: the losses are of {sizes} rows, not [3, 3] per rank."
    )
    true = torch.cat([p.grad.flatten() for p in gpts[2].parameters()])
    for rank, (loss, sent) in enumerate(zip(losses, traffic, strict=True)):
        exchanged = sum(sent.sizes("all_reduce")) / true.nbytes
        assert exchanged < 1.5, (
            f"Rank {rank} exchanges {exchanged:.0f} times the gradients' bytes: "
            "exchange once, after the last micro-batch."
        )
        seen = torch.cat([p.grad.flatten() for p in gpts[rank].parameters()])
        times = (seen @ true / true.square().sum()).item()
        off = ((seen - true).norm() / true.norm()).item()
        assert abs(times - 1) < 1e-3, (
            f"Rank {rank}: the gradient is {times:.2f} times that of all rows: "
            "is each loss weighted by its share of all ranks' targets? And do you "
            "take the sum over ranks, or the mean?"
        )
        assert off < 1e-4, (
            f"Rank {rank}: the gradient is off by {off:.2%}. Is all of it exchanged, "
            "and in float32?"
        )
        assert not loss.requires_grad, (
            "The loss that you return has a graph: detach it."
        )
        assert abs(loss - wanted) < 1e-4, (
            f"Rank {rank}: the loss of all ranks is {wanted:.3f}, not {loss:.3f}."
        )


# %% id="apply"
your_run.apply("13", make=make_divided, update=on_ranks)

# %% [markdown] id="your-run-read"
# Two ranks add up gradients in a different order from one process, so the results differ in the
# last bits. The figure's seconds don't include the exchange. From here on, start your script with
# `torchrun --nproc-per-node 2 my_train.py`.

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A model has 7 billion weights and trains with AdamW on eight ranks, all in bfloat16. How
# many GB of weights, gradients and states does each rank hold under DDP, under ZeRO 1 and under
# ZeRO 3?
#
# <details><summary>Answer</summary>
#
# P is 14 GB. A rank holds 4 P under DDP, or 56 GB. Under ZeRO 1 it holds $2 + 2/8$ P, or 31.5 GB,
# and under ZeRO 3 $4/8$ P, or 7 GB.
# </details>
#
# **2.** How many seconds does DDP's all-reduce of these gradients take in a ring, over links of
# 12.5 GB/s?
#
# <details><summary>Answer</summary>
#
# Each rank sends $2 \cdot \frac{7}{8}$ P, or 24.5 GB. That takes about 2 s.
# </details>
#
# **3.** An update on eight ranks has four micro-batches. How many P does a rank send per update
# with DDP and `no_sync`, and with ZeRO 3?
#
# <details><summary>Answer</summary>
#
# DDP sends $2 \cdot \frac{7}{8} = 1.75$ P once. ZeRO 3 gathers twice and reduce-scatters once per
# micro-batch: $4 \cdot 3 \cdot \frac{7}{8} = 10.5$ P.
# </details>

# %% [markdown] id="end"
# ## What you can now do
#
# - Start ranks, and count what they send.
# - Compute from a formula what a rank holds under DDP, ZeRO and FSDP2.
# - Put checkpointing, 16 bits and accumulation together with FSDP2.
# - Predict on a laptop what one of eight ranks needs, before you rent the cards.
#
# Three companions continue this chapter: [13b](13b_divide_the_model.ipynb) (pipelines, tensor and
# context parallelism), [13c](13c_launchers.ipynb) (`torchrun`, Accelerate, buckets) and
# [13d](13d_fsdp2_in_full.ipynb) (FSDP2 over time, frozen weights, HSDP, CPU offload).
