# %% [markdown] id="title"
# # Divide the model
#
# This companion of chapter 13 is optional. In chapter 13 every rank had all layers. Here each rank
# has some of the layers (a pipeline), or a part of every layer (tensor parallelism). You answer
# four questions:
#
# 1. How many micro-batches does a pipeline's rank hold, and what does checkpointing change?
# 2. Why do a pipeline's ranks wait, and which schedule makes them wait less?
# 3. Which tensors does tensor parallelism divide, and which does it leave whole?
# 4. How do ranks divide a long sequence, and how much do they send?
#
# **Budget:** 70 minutes, 3 GiB of memory, no GPU needed.

# %% id="imports"
import os
from collections import namedtuple
from functools import partial

import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import display
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import figures, ranks
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that we start share a few cores

# %% [markdown] id="model-text"
# The set-up is from chapter 13: a GPT of eight blocks, eight sequences per update, and four ranks.
# All sizes are in **P**, the size of the weights.


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

# %% id="measured"
Seen = namedtuple("Seen", "report loss traffic")
adamw = partial(AdamW, foreach=False)  # foreach would copy more at once


def measured(prepare, *args):
    step, model, optimizer = prepare(*args)
    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    with ranks.traffic() as traffic:
        loss = step()
    return Seen(report, loss, traffic)


# %% id="alone"
def training_step(model):
    optimizer = adamw(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(lines), lines)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, model, optimizer


alone = measured(lambda: training_step(make_gpt()))

# %% id="start-four"
# NBVAL_IGNORE_OUTPUT
N = 4
four = ranks.start(N)  # the line below, if there is one, depends on your machine

# %% [markdown] id="pipeline-text"
# ## Pipeline parallelism: divide the layers
#
# ```text
# micro-batches      rank 0         rank 1         rank 2         rank 3
#  3, 2, 1, 0 ──► blocks 0, 1 ─► blocks 2, 3 ─► blocks 4, 5 ─► blocks 6, 7 ──► loss
#                      ◄──────────────◄──────────────◄─────── gradients
# ```
#
# Consecutive blocks on one rank are a *stage*. The batch is cut into micro-batches, so that all
# ranks can work at the same time.
#
# A **schedule** says which rank does what next. GPipe runs all forwards, then all backwards. 1F1B
# (one forward, one backward) starts the first backward as soon as possible, then alternates the
# two. The interleaved schedule gives each rank two shorter stages, here of one block each.
#
# A micro-batch is **in flight** on a rank from its forward to its backward there. During that time
# the rank keeps the micro-batch's activations.
#
# **Predict.** There are four ranks and eight micro-batches. With GPipe, all eight are in flight on
# each rank. How many are in flight on rank 0 with 1F1B, at most?

# %% id="guess-flight"
guess = None


# %% id="part"
class Embedding(nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.tokens, self.positions = gpt.token_embedding, gpt.position_embedding

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions.weight


def make_part(number, num_stages, recomputed):
    gpt, length = make_gpt(recomputed), 8 // num_stages
    layers = [*gpt.blocks[number * length : (number + 1) * length]]
    if number == 0:
        layers.insert(0, Embedding(gpt))
    if number == num_stages - 1:
        layers += [gpt.norm, gpt.head]
    return nn.Sequential(*layers)


# %% id="pipeline"
def pipeline(schedule, stages_a_rank, recomputed, flights):
    rank, size, stages = dist.get_rank(), dist.get_world_size(), []

    def kept(stage):  # micro-batches; from PyTorch 2.15 on under another name
        known = vars(stage)
        return len(known.get("fwd_cache") or known.get("_forward_chunk_states", ()))

    def count_flights(*_):  # after a forward: that one, and those kept for backward
        flights.append(1 + sum(map(kept, stages)))

    for number in range(rank, size * stages_a_rank, size):
        part = make_part(number, size * stages_a_rank, recomputed)
        part.register_forward_hook(count_flights)
        place = number, size * stages_a_rank, torch.device("cpu")
        stages.append(pipelining.PipelineStage(part, *place))
    runner = schedule(stages if stages_a_rank > 1 else stages[0], 8, loss_fn=loss_of)
    return runner, nn.ModuleList(stage.submod for stage in stages)


# %% id="measured-pipeline"
def pipeline_step(*args):
    runner, model = pipeline(*args)
    rank, optimizer = dist.get_rank(), adamw(model.parameters())
    first = [lines] if rank == 0 else []
    target = lines if rank == dist.get_world_size() - 1 else None

    def step():
        optimizer.zero_grad()
        losses = []  # stays empty on all ranks but the last
        runner.step(*first, target=target, losses=losses)
        optimizer.step()
        return sum(loss.item() for loss in losses) / 8

    return step, model, optimizer


def measured_pipeline(*args):
    flights = []
    return measured(pipeline_step, *args, flights), max(flights)


# %% id="pipeline-table"
SCHEDULES = {"GPipe": (pipelining.ScheduleGPipe, 1),
             "1F1B": (pipelining.Schedule1F1B, 1),
             "interleaved": (pipelining.ScheduleInterleaved1F1B, 2)}  # fmt: skip
runs, table = {}, {}


def by_rank(sizes):
    return ", ".join(f"{size / P:.2f}" for size in sizes)


for name, schedule in SCHEDULES.items():
    for recomputed in (False, True):
        runs[name, recomputed] = four.run(measured_pipeline, *schedule, recomputed)
    kept, frugal = ([one.report for one, _ in runs[name, way]] for way in (False, True))
    table[name] = {
        "in flight": ", ".join(str(flight) for _, flight in runs[name, False]),
        "activations, P": by_rank(report.activation_bytes for report in kept),
        "checkpointed": by_rank(report.activation_bytes for report in frugal),
        "peak, P": by_rank(report.peak_bytes for report in kept),
        "peak, checkpointed": by_rank(report.peak_bytes for report in frugal),
    }
flight = runs["1F1B", False][0][1]
print(f"1F1B, rank 0: {flight}{beside(guess, flight)}")
pd.DataFrame(table).T.rename_axis(columns="on ranks 0 to 3")

# %% [markdown] id="pipeline-read"
# - **1F1B**: however many micro-batches there are, at most four are in flight on rank 0, and one
#   fewer on each next rank.
# - **Interleaved**: *in flight* counts both stages of a rank. Ranks hold more activations than with
#   1F1B, but the next section shows that they wait less.
# - **Checkpointed**: a micro-batch in flight keeps only each block's input and the stage's output.
#   The rest of a block's activations are in memory for one block at a time.
#
# **If you accumulate over several `step`s of a schedule, build it with `scale_grads=False`.** By
# default, each `step` divides all of `.grad` by its number of micro-batches, even the earlier
# steps' gradients. With `False`, divide once, at the end.
#
# ## Why do a pipeline's ranks wait?
#
# ```text
# rank 0   F0 F1 F2 F3 .. .. B0    a stage begins when its input is there:
# rank 1      F0 F1 F2 F3 B0       from the left in forward,
# rank 2         F0 F1 B0          from the right in backward
# ```
#
# Each rank runs its forwards (F) and backwards (B) in the order of its schedule, which the next
# cell lists. In **1F1B**, rank 0 begins with four forwards, rank 1 with three, and so on. In the
# **interleaved** schedule (Narayanan et al., 2021) a rank runs four micro-batches through one of
# its two stages, then through the other.


# %% id="orders"
def order(first, forwards, backwards):
    """Return `first` forwards, then forwards and backwards in turn, then the rest."""
    done = [("F", *run) for run in forwards[:first]]
    for place, run in enumerate(backwards):
        later = forwards[first + place : first + place + 1]
        done += [("F", *one) for one in later] + [("B", *run)]
    return done


def interleaved(rank, stages):
    return [(micro, rank + 4 * stage) for group in (range(4), range(4, 8))
            for stage in stages for micro in group]  # fmt: skip


SCHEDULES = {"GPipe": [], "1F1B": [], "interleaved": []}  # for each rank its order
for rank in range(4):
    plain = [(micro, rank) for micro in range(8)]
    SCHEDULES["GPipe"].append(order(8, plain, plain))
    SCHEDULES["1F1B"].append(order(3 - rank, plain, plain))
    forwards, backwards = interleaved(rank, (0, 1)), interleaved(rank, (1, 0))
    SCHEDULES["interleaved"].append(order(2 * (3 - rank) + 4, forwards, backwards))

# %% [markdown] id="clock-text"
# Each block takes one unit of time in forward and two in backward.
#
# **Predict.** Each rank works for 48 units: 8 micro-batches times two blocks times 1 + 2 units. How
# many units does the whole 1F1B update take, with the waiting?

# %% id="guess-units"
guess = None


# %% id="clock"
def clock(orders):
    last = max(stage for rank in orders for *_, stage in rank)
    length, runs, done, free = 8 // (last + 1), [], {}, [0] * len(orders)
    todo = [list(rank) for rank in orders]
    while any(todo):
        for rank, queue in enumerate(todo):
            kind, micro, stage = queue[0] if queue else ("", 0, 0)
            before = ("F", micro, stage - 1) if kind == "F" else ("B", micro, stage + 1)
            if (kind, stage) == ("B", last):
                before = ("F", micro, stage)
            if not queue or (before not in done and (kind, stage) != ("F", 0)):
                continue
            start = max(free[rank], done.get(before, 0))
            duration = length * (1 if kind == "F" else 2)
            free[rank] = done[kind, micro, stage] = start + duration
            runs.append((rank, start, duration, kind, micro, stage // len(orders)))
            queue.pop(0)
    return runs


# %% id="timetables"
units = {}
for name, orders in SCHEDULES.items():
    timed = clock(orders)
    units[name] = max(start + duration for _, start, duration, *_ in timed)
    display(figures.timetable(timed, title=name))
print(f"1F1B: {units['1F1B']} units{beside(guess, units['1F1B'])}")

# %% [markdown] id="timetables-read"
# The white area is the **bubble**: time in which a rank waits. GPipe and 1F1B have the same bubble,
# so 1F1B saves memory for free. The interleaved schedule has half the bubble. But it sends more,
# since each micro-batch passes through eight stages instead of four.
#
# ## Tensor parallelism: divide the inside of a layer
#
# ```text
#                   columns of up        rows of down
# rank 0: x whole ─► first quarter  ─► GELU ─► first quarter  ─┐
# rank 1: x whole ─► second quarter ─► GELU ─► second quarter ─┼─ all-reduce ─► y whole
# ...                                                         ─┘
# ```
#
# Each rank has a quarter of every large matrix. A block has two pairs of them, one in attention and
# one in the MLP. In each pair, the first matrix is cut by columns, so each rank computes some heads
# of attention, or some columns of the MLP. The second is cut by rows, so each rank can use its own
# part of the first matrix's output. An all-reduce adds up the ranks' results.
#
# **Sequence parallelism** also divides the work outside the pairs: in the norms and residual sums,
# each rank has a quarter of the tokens. Instead of an all-reduce, there is a gather before each
# pair and a reduce-scatter after it.
#
# `parallelize_module` takes a plan, which says for each layer's name how to divide it. The rows of
# attention's `qkv` are all queries, then all keys, then all values. We first sort these rows by
# rank, since each rank needs its own heads' queries, keys and values.
#
# **The formula.** Chapter 01 counted 16 units of activations per block, where a unit is one tensor
# as large as the block's input. N ranks divide some of them:
#
# | tensors of a block | units | tensor parallelism | with sequence parallelism |
# |---|---|---|---|
# | queries, keys, values, attention's result | 4 | divided | divided |
# | the wide tensor before and after GELU | 8 | divided | divided |
# | the inputs of both norms | 2 | whole | divided |
# | the gathered inputs of both pairs | 2 | whole | whole |
#
# Tensor parallelism divides the weights, gradients and states of the blocks' matrices. With
# sequence parallelism, we also divide the model's output matrix, its gradient and its states, and
# the input of the last norm.
#
# Each pair runs one all-reduce in forward and one in backward. In each of them, a rank sends 2
# units, times $(N-1)/N$. So for a block's two pairs it sends 8 units, times $(N-1)/N$. With
# sequence parallelism it sends five more units per step at the model's two ends, also times
# $(N-1)/N$.
#
# **Predict.** With tensor parallelism alone, four ranks train on the same eight sequences. How much
# does a rank keep, as a percentage of the activations of a single process?

# %% id="guess-tensor"
guess = None

# %% id="tensor-plan"
by_columns, by_rows = parallel.ColwiseParallel, parallel.RowwiseParallel
PAIRS = {"attention.qkv": by_columns(), "attention.out": by_rows(),
         "mlp.up": by_columns(), "mlp.down": by_rows()}  # fmt: skip
ALL_TOKENS, OWN_TOKENS = Replicate(), Shard(1)  # of (batch, sequence, width)
gather = parallel.PrepareModuleInput(
    input_layouts=OWN_TOKENS, desired_input_layouts=ALL_TOKENS
)
scatter = by_rows(output_layouts=OWN_TOKENS)
norm = parallel.SequenceParallel(use_local_output=True)
SEQUENCE = {"norm_1": norm, "attention": gather, "attention.out": scatter,
            "norm_2": norm, "mlp": gather, "mlp.down": scatter}  # fmt: skip
begin = parallel.PrepareModuleInput(
    input_layouts=ALL_TOKENS, desired_input_layouts=OWN_TOKENS, use_local_output=True
)
end = by_columns(input_layouts=OWN_TOKENS, output_layouts=ALL_TOKENS)
OUTSIDE = {"blocks.0": begin, "norm": norm, "head": end}


# %% id="tensor-parallel"
def tensor_parallel(sequence=False):
    model, size = make_gpt(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        for parameter in block.attention.qkv.parameters():
            by_rank = parameter.data.unflatten(0, (3, size, -1)).transpose(0, 1)
            parameter.data = by_rank.flatten(0, 2).contiguous()
        block.attention.num_heads //= size
        plan = PAIRS | (SEQUENCE if sequence else {})
        parallel.parallelize_module(block, mesh, plan)
    if sequence:
        parallel.parallelize_module(model, mesh, OUTSIDE)
    return training_step(model)


# %% id="tensor-formula"
passed = 1 - 1 / N
unit = lines.numel() * 128 * 4 / P  # (batch, sequence, width), float32
in_blocks, output = 8 * 12 * 128**2 * 4 / P, 256 * 128 * 4 / P  # matrices


def tensor_formula(matrices, divided_units, sent_units):
    own = 1 - matrices * passed  # weights of a rank
    peak = alone.report.peak_bytes / P - 3 * (1 - own) - divided_units * unit * passed
    return 4 * own, peak, sent_units * unit * passed


formula = {}
formula["TP"] = tensor_formula(in_blocks, 8 * 12, 8 * 8)
formula["TP + sequence"] = tensor_formula(in_blocks + output, 8 * 14 + 1, 8 * 8 + 5)


# %% id="show"
def of_four(way, *args):
    # gloo frees a tensor late on some rank at times: take the rank with the least
    return min(four.run(measured, way, *args), key=lambda one: one.report.peak_bytes)


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


# %% id="tensor-table"
seen, tensor_ways = {}, {"TP": False, "TP + sequence": True}
for name, sequence in tensor_ways.items():
    seen[name] = of_four(tensor_parallel, sequence)
    loss_differs_by = abs(seen[name].loss - alone.loss)
    print(f"{name:<14} same loss as one process: {loss_differs_by < 1e-4}")
own, whole = (one.report.at_peak["activations"] for one in (seen["TP"], alone))
print(f"TP: {own / whole:.0%} of the activations{beside(guess, 100 * own / whole)}")
show(tensor_ways)

# %% [markdown] id="tensor-read"
# The ranks send activations, which grow with the batch, and each layer waits until they arrive. So
# people use tensor parallelism only inside one machine with fast links.
#
# ## Context parallelism: divide the sequence
#
# ![Ring: each of four ranks attends to its own part of the keys and values, and sends that part to
# the next rank. Ulysses: an all-to-all gives each rank all tokens of its own heads, and a second
# all-to-all brings the results back.](figures/13b-ring-ulysses.svg)
#
# If a sequence is too long for one rank, each rank can take a part of its tokens through the whole
# model. Only attention needs the other ranks' tokens. In **ring attention** (Liu et al., 2023),
# each rank's keys and values travel around all ranks. In **Ulysses** (Jacobs et al., 2023), the
# ranks exchange data so that each has all tokens of some heads.
#
# In a ring, each rank sees the keys one part at a time, but softmax needs the scores of all keys.
# So for each query the rank keeps the largest score so far (`top`), and the sum of
# $e^{\text{score} - \text{top}}$ (`total`). In `out` it sums the values, each times its
# $e^{\text{score} - \text{top}}$. When a larger score arrives, `total` and `out` must be rescaled
# to the new `top`.
#
# **Write.** `merge`, which returns `top`, `total` and `out` after one more part of the keys and
# values.


# %% id="merge"
def merge(query, key, value, top, total, out):
    """Return `top`, `total` and `out` with one more part; `out / total` is attention.

    Query, key and value are `(heads, tokens, width)`. At first `top` is -inf, and the
    others are 0. `top` and `total` are `(heads, tokens, 1)`.
    """
    scores = query @ key.mT / query.shape[-1] ** 0.5
    ### BEGIN SOLUTION
    new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
    weights, before = (scores - new_top).exp(), (top - new_top).exp()
    total = total * before + weights.sum(-1, keepdim=True)
    return new_top, total, out * before + weights @ value
    ### END SOLUTION


# %% id="check-merge"
# @title Check: run this cell
@blanks.check("merge", "return `top`, `total` and `out`")
def merges():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 12, 8).double()
    for size, count in ((1, 1), (1, 3), (1000, 3)):
        given, whole = query * size, (query * size) @ key.mT / 8**0.5
        top = torch.full_like(query[..., :1], -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(query)
        for part in zip(key.chunk(count, 1), value.chunk(count, 1), strict=True):
            top, total, out = merge(given, *part, top, total, out)
        seen, right = out / total, whole.softmax(-1) @ value
        said = f"Parts: {count}, largest score {whole.max():.0f}: "
        assert seen.isfinite().all(), f"{said}the result isn't finite."
        is_top = torch.allclose(top, whole.amax(-1, keepdim=True))
        assert is_top, f"{said}`top` isn't the largest score."
        off = ((seen - right).norm() / right.norm()).item()
        assert off < 1e-9, f"{said}attention is off by {off:.0%}."


# %% [markdown] id="context-text"
# In a ring's backward, the keys, the values and the gradients of both travel around all ranks. Here
# a **unit** is the size of a rank's own queries.
#
# | units sent by a rank | forward | backward |
# |---|---|---|
# | ring | $2\,(N-1)$ | $4N$ |
# | Ulysses: queries, keys, values, result | $4\,(N-1)/N$ | $4\,(N-1)/N$ |
#
# **Predict.** In forward and backward together, each of four ranks sends 22 units with the ring.
# How many units does each send with Ulysses?

# %% id="guess-units-sent"
guess = None


# %% id="context"
# @title A ring and Ulysses: run this cell; open it to look
def swapped(pairs):
    """Send each tensor to its rank, and receive one of its shape from another."""
    found, calls = [], []
    for tensor, to, origin in pairs:
        found.append(torch.empty_like(tensor))
        calls.append(dist.P2POp(dist.isend, tensor, to))
        calls.append(dist.P2POp(dist.irecv, found[-1], origin))
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return found


def to_next(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    return swapped([(tensor, (rank + 1) % size, (rank - 1) % size)])[0]


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        top = torch.full_like(query[..., :1], -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(query)
        both = torch.stack((key, value))
        for turn in range(dist.get_world_size()):
            both = to_next(both) if turn else both
            top, total, out = merge(query, *both, top, total, out)
        ctx.save_for_backward(query, key, value, out / total, top + total.log())
        return out / total

    @staticmethod
    def backward(ctx, slope):
        query, key, value, out, sums = ctx.saved_tensors
        scale, of_query = query.shape[-1] ** -0.5, torch.zeros_like(query)
        delta, zeros = (slope * out).sum(-1, keepdim=True), torch.zeros_like(key)
        four = torch.stack((key, value, zeros, zeros))
        for _ in range(dist.get_world_size()):
            key, value, of_key, of_value = four
            weights = (query @ key.mT * scale - sums).exp()
            of_value += weights.mT @ slope
            of_scores = weights * (slope @ value.mT - delta) * scale
            of_query += of_scores @ key
            of_key += of_scores.mT @ query
            four = to_next(four)
        return of_query, four[2], four[3]


class Swap(torch.autograd.Function):
    """Swap `(heads, tokens / N, width)` for `(heads / N, tokens, width)`, or back."""

    @staticmethod
    def forward(ctx, x, to_heads):
        ctx.to_heads, size, rank = to_heads, dist.get_world_size(), dist.get_rank()
        parts = [part.contiguous() for part in x.chunk(size, 0 if to_heads else 1)]
        others = [other for other in range(size) if other != rank]
        found = swapped([(parts[other], other, other) for other in others])
        found.insert(rank, parts[rank])
        return torch.cat(found, 1 if to_heads else 0)

    @staticmethod
    def backward(ctx, slope):
        return Swap.apply(slope, not ctx.to_heads), None


def ulysses(*parts):
    whole = (Swap.apply(part, True)[None] for part in parts)
    return Swap.apply(F.scaled_dot_product_attention(*whole)[0], False)


def context_parallel(way):
    """Return the units that a rank sends, and its gradients' largest error."""
    torch.manual_seed(0)
    whole = torch.randn(3, 8, 512, 16).unbind()  # (heads, tokens, width)
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [one.chunk(size, 1)[rank].clone().requires_grad_() for one in whole]
    attention = Ring.apply if way == "ring" else ulysses
    with ranks.traffic() as traffic:
        attention(*parts).square().sum().backward()
    whole = [one.requires_grad_() for one in whole]
    alone = F.scaled_dot_product_attention(*(one[None] for one in whole))
    alone.square().sum().backward()
    pairs = zip(parts, whole, strict=True)
    off = max((p.grad - w.grad.chunk(size, 1)[rank]).abs().max() for p, w in pairs)
    return sum(traffic.sizes("send")) / parts[0].nbytes, off.item()


# %% id="context-table"
sent, formulas = {}, {"ring": 2 * (N - 1) + 4 * N, "Ulysses": 8 * (N - 1) / N}
for way, units in formulas.items():
    sent[way], off = four.run(context_parallel, way)[0]
    print(f"{way}: {sent[way]:g} units ({units:g}), same gradients: {off < 1e-4}")
print(f"Ulysses sends {sent['Ulysses']:g} units{beside(guess, sent['Ulysses'])}")

# %% [markdown] id="context-read"
# Ulysses sends less, and the difference grows with the number of ranks. But Ulysses needs at least
# one head for each rank. A ring has no such limit, and it can send one part while it computes with
# another.
#
# Context parallelism divides whatever is stored per token. It divides no weights, gradients or
# states. Use FSDP2 for those.
#
# ## Pipeline and tensor parallelism, compared with one process
#
# Which of them lowers a rank's peak most, and which sends least?


# %% id="all-rows"
for rank in (0, 3):
    seen[f"1F1B, rank {rank}"] = runs["1F1B", False][rank][0]
    seen[f"1F1B + checkpoint, rank {rank}"] = runs["1F1B", True][rank][0]
four.stop()
rows = {"one process": alone, **seen}
ledgers = {name: one.report.at_peak for name, one in rows.items()}
STATES = ("parameters", "gradients", "optimizer_state", "activations")
table = pd.DataFrame(ledgers).T[[*STATES]] / P
table["peak"] = [one.report.peak_bytes / P for one in rows.values()]
table["sent"] = [one.traffic.ring_bytes(N) / P for one in rows.values()]
display(table.round(2))
plots.ledger_bars(ledgers, title="What one rank holds at its peak")

# %% id="verdicts"
most = [runs["1F1B", way][0][0].report.activation_bytes / P for way in (False, True)]
waiting = f"{most[0]:.2f} P, checkpointed {most[1]:.2f} P"
claims.Verdicts(
    claims.Verdict(
        "C12", "shown", "Checkpointing works inside pipeline stages. Each micro-batch "
        "in flight then holds only boundaries and the stages' outputs, and one block's "
        "inside comes on top.",
        f"1F1B, rank 0: activations {waiting}; {flight} of 8 micro-batches in flight",
        "counted", "pipeline-table"),
)  # fmt: skip
