# %% [markdown] id="title"
# # Many devices
#
# So far one device held everything. With several you can divide the work: the batch, the layers,
# the inside of a layer, or only the bytes. Each way divides some of the memory and leaves the rest
# whole on every device.
#
# In this chapter you train one small GPT in six ways on real processes. One meter counts what each
# process holds, and what it sends. At the end, models that fit on no laptop are predicted for eight
# GPUs, with the same functions.
#
# **Budget:** 60 minutes, 3 GiB of memory, no GPU needed.

# %% id="imports"
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, namedtuple
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from accelerate import Accelerator, notebook_launcher
from IPython.display import display
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import data, memory, plots, ranks
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.training import Recipe
from tutorial_lib.units import GIB, Bytes

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that we start share a few cores

# %% [markdown] id="processes-text"
# ## How does one program become several?
#
# `program → launcher → rank 0, rank 1, … : the same code, each told its number`
#
# A **rank** is a process with a number. All ranks run the same function. They meet in
# **collectives**: calls that every rank makes, such as *all-reduce*, which adds up a tensor over
# all ranks and gives each the sum. A *backend* carries them: nccl between GPUs, gloo between CPUs.
#
# The course starts ranks with `ranks.start`. `run` sends them a function of this notebook.

# %% id="start-two"
two = ranks.start(2)


def add_up():
    mine = torch.tensor(10.0 + dist.get_rank())
    dist.all_reduce(mine)
    return f"rank {dist.get_rank()} of {dist.get_world_size()}: the sum is {mine.item():g}"


two.run(add_up)

# %% [markdown] id="torchrun-text"
# Outside a notebook the usual launcher is **torchrun**. It starts a script N times and puts each
# number into the environment, where `init_process_group` finds it. `--standalone` takes a free
# port; a fixed one may be in use.

# %% id="torchrun"
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")  # "nccl" on GPUs
mine = torch.tensor(10.0 + dist.get_rank())
dist.all_reduce(mine)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, the sum is {mine.item():g}")
dist.destroy_process_group()
"""
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder, "script.py")
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]  # the same as `torchrun`
    command = [*torchrun, "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
print(done.stdout.strip())

# %% [markdown] id="launcher-text"
# Accelerate has a launcher for notebooks. It forks this process, so no function is sent. (Only on
# Linux, and only before this process has used a GPU.) Its output depends on the machine.


# %% id="launcher"
# NBVAL_IGNORE_OUTPUT
def with_accelerate():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    if accelerator.is_main_process:
        print(f"{accelerator.num_processes} ranks, the model is a {type(model).__name__}")


if sys.platform == "linux" and not torch.cuda.is_available():
    free_port = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    notebook_launcher(with_accelerate, num_processes=2, **free_port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, handlers[number])  # the launcher leaves its own behind

# %% [markdown] id="ddp-text"
# ## Data parallelism: divide the batch
#
# `DistributedDataParallel` (DDP) gives each rank a copy of everything and a part of the batch. In
# backward it averages the gradients by all-reduces.

# %% id="ddp-picture"
WHOLE, OWN = [range(4)] * 4, [[rank] for rank in range(4)]
STATES = ("parameters", "gradients", "optimizer_state")
plots.who_holds_what(
    "DDP", dict.fromkeys(STATES, WHOLE) | {"activations": OWN}, num_parts=4
)  # fmt: skip

# %% [markdown] id="model-text"
# The model of this chapter: eight blocks, and a batch of eight lines of text for each update,
# however many ranks there are. **P** is the size of its weights, the unit of all that follows.


# %% id="model"
def make_gpt():
    torch.manual_seed(0)  # the same weights on every rank
    return GPT(GPTConfig(num_layers=8, tie_weights=False))


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


lines = next(data.text_batches(8, 128))  # (batch, sequence)
P = sum(parameter.nbytes for parameter in make_gpt().parameters())


# %% id="my-lines"
def my_lines():
    return lines.chunk(dist.get_world_size())[dist.get_rank()].clone()


def adamw(model):
    return AdamW(model.parameters(), foreach=False)  # foreach would copy more at once


# %% [markdown] id="no-sync-text"
# With accumulation, DDP would average after every micro-batch. Once per update is enough: the
# gradients of all micro-batches are in `.grad` by then. `no_sync` switches the average off for all
# but the last (lab 06). The formula: number of buckets × number of backward passes that average.


# %% id="no-sync"
def accumulated(skip, num_parts=4):
    model = DistributedDataParallel(make_gpt())
    parts, times = my_lines().chunk(num_parts), []
    for _ in range(4):  # the first update is a warm-up: buckets are made anew after it
        start = perf_counter()
        with ranks.traffic() as seen:
            for place, part in enumerate(parts):
                model.require_backward_grad_sync = not skip or place == num_parts - 1
                loss_of(model(part), part).backward()
        times.append(perf_counter() - start)
    return seen.sizes("all_reduce"), median(times[1:])


# %% [markdown] id="no-sync-note"
# (`require_backward_grad_sync` is the flag that the context `no_sync()` sets.) How many buckets
# does this model fill? DDP fills the first up to 1 MiB, so that the first average begins early, and
# the others up to 25 MiB.

# %% id="no-sync-table"
runs = {skip: two.run(accumulated, skip)[0] for skip in (False, True)}
buckets = two.run(accumulated, True, 1)[0][0]
print(f"{len(buckets)} buckets, together {sum(buckets) / P:g} P")
for skip, (sizes, _) in runs.items():
    passes = 1 if skip else 4
    print(f"{'no_sync' if skip else 'without':<8} {len(sizes)} all-reduces, {sum(sizes) / P:g} P; "
          f"formula: {len(buckets) * passes}, {passes} P")  # fmt: skip

# %% id="no-sync-times"
# NBVAL_IGNORE_OUTPUT
(_, without), (_, skipped) = runs.values()
print(f"an update takes {1e3 * without:.0f} ms without no_sync, {1e3 * skipped:.0f} ms with it")

# %% [markdown] id="buckets-text"
# The time depends on your machine.
#
# Before gradients can travel, DDP copies them into those buckets: flat tensors that stay for the
# whole training. `gradient_as_bucket_view=True` makes `.grad` a view into the bucket, so there is
# no copy.
#
# **Predict.** After an update, with gradients still there: one process with AdamW holds weights,
# gradients and two states, so 4 P. How many P does a DDP rank hold, without that option?

# %% id="guess-buckets"
guess = None

# %% [markdown] id="seen-text"
# One function measures all ways of this chapter. It runs on each rank. `prepare` is a way: it
# returns the step, the model and the optimizer. After two steps nothing is made anew.

# %% id="measured"
Seen = namedtuple("Seen", "ledger peak held loss sent")


def measured(prepare, *args, **options):
    step, model, optimizer = prepare(*args, **options)
    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    with ranks.traffic() as traffic:
        loss = step()
    ledger = {name: size / P for name, size in report.at_peak.items()}
    sent = Counter()
    for name, size in traffic.calls:
        sent[name] += size / P
    return Seen(ledger, report.peak_bytes / P, report.baseline_bytes / P, loss, sent)


# %% id="training-step"
def training_step(model, optimizer, batch, num_parts=1):
    def step():
        optimizer.zero_grad()
        for part in batch.chunk(num_parts):
            loss = loss_of(model(part), part) / num_parts
            loss.backward()
        optimizer.step()
        return loss.item() * num_parts

    return step, model, optimizer


# %% id="ways-ddp"
def one_process(num_parts=1):
    model = make_gpt()
    return training_step(model, adamw(model), lines, num_parts)


def ddp(view=True, num_parts=1):
    model = DistributedDataParallel(make_gpt(), gradient_as_bucket_view=view)
    return training_step(model, adamw(model), my_lines(), num_parts)


# %% id="buckets-table"
alone = measured(one_process)
copied, viewed = (two.run(measured, ddp, view)[0] for view in (False, True))
print("                 held after the step    peak")
for name, seen in {"one process": alone, "DDP": copied, "DDP, views": viewed}.items():
    print(f"{name:<12}{seen.held:>20.2f} P{seen.peak:>12.2f} P")
print(f"DDP{beside(guess, round(copied.held))}")

# %% [markdown] id="buckets-read"
# The copy costs one more P after the step. With views it is gone. The two DDP peaks are equal: at
# the peak the gradients are still `None`, and the buckets are there either way. They would differ
# if gradients waited through the peak, as they do in accumulation.
#
# *Global batch* is micro-batch × steps × ranks. Which of the three factors moves the activations?

# %% id="global-batch"
settings = {(8, 1, 1): alone, (4, 1, 2): viewed}
settings[2, 4, 1] = measured(one_process, 4)
settings[2, 2, 2] = two.run(measured, ddp, True, 2)[0]
print("micro-batch  steps  ranks   activations    peak")
for (micro, steps, world), seen in settings.items():
    activations = seen.ledger["activations"]
    print(f"{micro:>11}{steps:>7}{world:>7}{activations:>12.2f} P{seen.peak:>7.2f} P")

# %% [markdown] id="global-batch-read"
# All four rows are one global batch of eight. Only the micro-batch moves the activations.
# Accumulation and DDP add a constant: gradients, or their buckets, that are there at the peak.
#
# ## ZeRO: divide the bytes, not the work
#
# With DDP, N ranks hold N equal copies. ZeRO (Rajbhandari et al., 2020) lets each rank keep one
# N-th, in three stages: the optimizer's state; then the gradients; then the weights. A rank gathers
# what it lacks just before it is needed.

# %% id="zero-picture"
plots.who_holds_what(
    "ZeRO stage 3, between steps: everything is divided",
    dict.fromkeys((*STATES, "activations"), OWN),
    num_parts=4,
)

# %% [markdown] id="zero-text"
# In PyTorch, stage 1 is `ZeroRedundancyOptimizer`. Stages 2 and 3 are `fully_shard` (FSDP2): each
# wrapped module is gathered in its forward. `reshard_after_forward=False` keeps the gathered
# weights until backward (stage 2), `True` drops them and gathers again (stage 3).


# %% id="ways-zero"
def zero_1():
    model = DistributedDataParallel(make_gpt(), gradient_as_bucket_view=True)
    divided = ZeroRedundancyOptimizer(model.parameters(), AdamW, foreach=False)
    return training_step(model, divided, my_lines())


def fsdp(stage):
    model, mesh = make_gpt(), init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.blocks, model):  # the last call takes what no block has
        fully_shard(module, mesh=mesh, reshard_after_forward=stage == 3)
    return training_step(model, adamw(model), my_lines())


# %% [markdown] id="zero-formula-text"
# The formula, in P, for N ranks with AdamW, between steps and at the peak. Stage 3 at its peak has
# gathered the modules outside the blocks (`rest`) and one block, and holds that block's whole
# gradient. A is what one process needs for this rank's part of the batch.
#
# | | between steps | at the peak |
# |---|---|---|
# | DDP with views | $4$ | $4 + A$ |
# | stage 1 | $2 + 2/N$ | $2 + 2/N + A$ |
# | stage 2 | $4/N$ | $1 + 3/N + A$ |
# | stage 3 | $4/N$ | $3/N + \text{rest} + 2\,\text{block} + A$ |
#
# **Predict.** Four ranks, two lines each, where $A \approx 2.7$ P. What per cent of DDP's peak is
# stage 3's peak?

# %% id="guess-zero"
guess = None

# %% id="zero-table"
two.stop()
four = ranks.start(4)


def two_lines():
    model = make_gpt()
    return training_step(model, adamw(model), lines[:2])


A = measured(two_lines).peak - 3  # less weights and states
block = sum(p.nbytes for p in make_gpt().blocks[0].parameters()) / P
rest, N = 1 - 8 * block, 4
formula = {
    "DDP": (4, 4 + A),
    "ZeRO 1": (2 + 2 / N, 2 + 2 / N + A),
    "ZeRO 2": (4 / N, 1 + 3 / N + A),
    "ZeRO 3": (4 / N, 3 / N + rest + 2 * block + A),
}

# %% id="zero-measured"
ways = {"DDP": [ddp], "ZeRO 1": [zero_1], "ZeRO 2": [fsdp, 2], "ZeRO 3": [fsdp, 3]}
seen = {name: four.run(measured, *way) for name, way in ways.items()}
print("          between steps   formula     peak   formula")
for name, (between, peak) in formula.items():
    worst = max(seen[name], key=lambda one: one.peak)
    print(f"{name:<10}{worst.held:>11.2f} P{between:>9.2f}{worst.peak:>9.2f} P{peak:>8.2f}")
share = 100 * seen["ZeRO 3"][0].peak / seen["DDP"][0].peak
print(f"stage 3: {share:.0f} % of DDP's peak{beside(guess, share)}")

# %% [markdown] id="zero-read"
# The formula is right within two per cent. (A test of the course compares stages 2 and 3 with
# PyTorch's own tracker.) Two things to keep in mind:
#
# - **Activations are not divided.** Every rank has those of its own lines.
# - **Stage 2 saves less at the peak than between steps**: at the peak all weights are gathered.
#
# What does it cost to send? In a ring, each rank sends $(N-1)/N$ of the tensor for a gather, for a
# scatter, or for a broadcast, and twice that for an all-reduce, which is a scatter and a gather.


# %% id="on-the-wire"
def on_the_wire(sent, num_ranks=4):
    passes = {"all_reduce": 2, "send": num_ranks / (num_ranks - 1), "recv": 0, "barrier": 0}
    return sum(passes.get(name, 1) * P_s for name, P_s in sent.items()) * (1 - 1 / num_ranks)


for name, by_rank in seen.items():
    tensors = ", ".join(f"{op} {size:.2f} P" for op, size in by_rank[0].sent.items())
    print(f"{name:<8}{on_the_wire(by_rank[0].sent):.2f} P a step: {tensors}")

# %% [markdown] id="wire-read"
# Stage 2 sends what DDP sends. Stage 3 gathers twice, so it sends half as much again. So does
# PyTorch's stage 1: it averages whole gradients, and then broadcasts the new weights. Whether the
# wires hide behind the arithmetic is a question of your machine.
#
# ## Pipeline parallelism: divide the layers
#
# Rank 0 has the first two blocks, rank 1 the next two, and so on. Boundaries travel from rank to
# rank, gradients travel back. The batch is cut into micro-batches, so that all ranks have work.

# %% id="pipeline-picture"
plots.who_holds_what(
    "A pipeline: every category is divided by layers",
    dict.fromkeys((*STATES, "activations"), OWN),
    num_parts=4,
)


# %% id="part"
class Part(nn.Module):
    """The blocks of one stage; the first stage embeds, the last one gives logits."""

    def __init__(self, stage, num_stages, again):
        super().__init__()
        gpt, length = make_gpt(), 8 // num_stages
        self.embeddings = gpt.token_embedding if stage == 0 else None
        self.positions = gpt.position_embedding if stage == 0 else None
        self.blocks = gpt.blocks[stage * length : (stage + 1) * length]
        self.end = nn.Sequential(gpt.norm, gpt.head) if stage == num_stages - 1 else None
        self.run = partial(checkpoint, use_reentrant=False) if again else nn.Module.__call__

    def forward(self, x):
        if self.embeddings is not None:
            x = self.embeddings(x) + self.positions.weight
        for block in self.blocks:
            x = self.run(block, x)
        return x if self.end is None else self.end(x)


# %% [markdown] id="schedules-text"
# A **schedule** says which rank does what next. GPipe runs all micro-batches forward, then all
# backward. 1F1B begins with backward as soon as it can, and then alternates. The interleaved
# schedule gives each rank two shorter stages, here one block each. `log` notes what each rank
# really did, in order.


# %% id="logged"
def noted(plain, entry, log):
    def run(micro_batch, *args, **options):
        log.append((entry[0], micro_batch, entry[1]))
        return plain(micro_batch, *args, **options)

    return run


def logged(stage, log):
    number = stage.stage_index
    stage.forward_one_chunk = noted(stage.forward_one_chunk, ("F", number), log)
    stage.backward_one_chunk = noted(stage.backward_one_chunk, ("B", number), log)
    return stage


# %% id="pipeline"
def pipeline(schedule, again=False, log=None):
    rank, size, log = dist.get_rank(), dist.get_world_size(), [] if log is None else log
    num_stages = size * (1 + (schedule is ScheduleInterleaved1F1B))
    numbers = range(rank, num_stages, size)
    model = nn.ModuleList(Part(number, num_stages, again) for number in numbers)
    stages = [
        logged(PipelineStage(part, number, num_stages, torch.device("cpu")), log)
        for part, number in zip(model, numbers, strict=True)
    ]
    several = stages if len(stages) > 1 else stages[0]
    schedule, optimizer = schedule(several, 8, loss_fn=loss_of), adamw(model)

    def step():
        optimizer.zero_grad()
        log.clear()
        losses = []
        last = {"target": lines, "losses": losses} if rank == size - 1 else {}
        schedule.step(*([lines] if rank == 0 else []), **last)
        optimizer.step()
        return sum(loss.item() for loss in losses) / 8

    return step, model, optimizer


# %% id="measured-pipeline"
def measured_pipeline(schedule, again=False):
    log = []
    return measured(pipeline, schedule, again, log=log), log


def in_flight(log):  # micro-batches that went forward and not yet backward
    now = most = 0
    for kind, *_ in log:
        now += 1 if kind == "F" else -1
        most = max(most, now)
    return most


# %% [markdown] id="predict-pipeline"
# A micro-batch is **in flight** on a rank between its forward and its backward there. Its
# activations wait that long.
#
# **Predict.** Four ranks, eight micro-batches. With GPipe, eight are in flight everywhere. How many
# on rank 0 with 1F1B?

# %% id="guess-flight"
guess = None

# %% id="pipeline-table"
SCHEDULES = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}
piped = {name: four.run(measured_pipeline, kind) for name, kind in SCHEDULES.items()}
print("in flight, and activations in P, by rank")
for name, by_rank in piped.items():
    flight = [in_flight(log) for _, log in by_rank]
    held = "".join(f"{one.ledger['activations']:>6.2f}" for one, _ in by_rank)
    print(f"{name:<12}{flight!s:<16}{held}")
first = in_flight(piped["1F1B"][0][1])
print(f"1F1B, rank 0: {first}{beside(guess, first)}")

# %% [markdown] id="pipeline-read"
# - **GPipe** divides layers only: a quarter of the layers times the whole batch.
# - **1F1B** has at most as many micro-batches in flight as there are stages from this one to the
#   last. More micro-batches do not change that.
# - **Interleaved** counts stages that are half as long. It holds more than 1F1B.
#
# Why would you take it, then? Let a stage's forward last one unit of time for each block and its
# backward two, and place the runs of the log as early as their inputs allow:


# %% id="clock"
def clock(logs):
    runs, done, free = [], {}, [0] * len(logs)
    todo, length = [list(log) for log in logs], 8 // len({s for log in logs for *_, s in log})
    last = 8 // length - 1
    while any(todo):
        for rank, queue in enumerate(todo):
            kind, micro, stage = queue[0] if queue else ("", 0, 0)
            before = ("F", micro, stage - 1) if kind == "F" else ("B", micro, stage + 1)
            if (kind, stage) == ("B", last):
                before = ("F", micro, stage)
            if not queue or (before not in done and (kind, stage) != ("F", 0)):
                continue
            start, duration = max(free[rank], done.get(before, 0)), length * (1 + (kind == "B"))
            free[rank] = done[kind, micro, stage] = start + duration
            runs.append((rank, start, duration, kind, micro, stage // len(logs)))
            queue.pop(0)
    return runs


# %% id="timetables"
for name, by_rank in piped.items():
    display(plots.timetable(clock([log for _, log in by_rank]), title=name))

# %% [markdown] id="timetables-read"
# The white is the **bubble**, time in which a rank waits. GPipe and 1F1B have the same bubble, so
# 1F1B saves memory for free. The interleaved schedule has half the bubble, for more memory and more
# sending.
#
# The other way to save activations is chapter 06's: checkpoint each block. What waits is then one
# boundary a block and micro-batch.

# %% id="pipeline-again"
again = {name: four.run(measured_pipeline, kind, True) for name, kind in SCHEDULES.items()}
print("peak in P, by rank          kept        with checkpointing")
for name in SCHEDULES:
    kept, fewer = (" ".join(f"{one.peak:.2f}" for one, _ in rows[name]) for rows in (piped, again))
    print(f"{name:<14} {kept}   {fewer}")

# %% [markdown] id="again-read"
# With checkpointing the schedules hardly differ, and all ranks need about the same.
#
# ## Tensor parallelism: divide the inside of a layer
#
# Each rank has a quarter of every large matrix. The first matrix of a pair is cut by columns, so
# each rank computes a quarter of its outputs: some heads of attention, some columns of the MLP. The
# second is cut by rows and takes them in. The partial results are added by one all-reduce:
#
# `x (whole) → up, a quarter of the columns → GELU → down, a quarter of the rows → all-reduce → y`

# %% id="tensor-picture"
plots.who_holds_what(
    "Tensor parallelism, inside the pairs; outside them activations are whole",
    dict.fromkeys((*STATES, "activations"), OWN),
    num_parts=4,
)

# %% [markdown] id="tensor-text"
# `parallelize_module` does it by names. One preparation is ours: the rows of `qkv` are all queries,
# then all keys, then all values, and a rank needs its own heads' three.
#
# **Sequence parallelism** goes with it: outside the pairs (norms, residual sums) each rank has a
# quarter of the tokens. The all-reduce is then split into a gather before the pair and a scatter
# after it.


# %% id="tensor-plan"
PAIRS = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}
TOKENS = Shard(1)  # of (batch, sequence, width)
gather = PrepareModuleInput(input_layouts=TOKENS, desired_input_layouts=Replicate())
scatter = RowwiseParallel(output_layouts=TOKENS)
norm = SequenceParallel(use_local_output=True)
SEQUENCE = {
    **{"norm_1": norm, "attention": gather, "attention.out": scatter},
    **{"norm_2": norm, "mlp": gather, "mlp.down": scatter},
}


# %% id="tensor-parallel"
def tensor_parallel(sequence=False):
    model, size = make_gpt(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        for parameter in block.attention.qkv.parameters():
            by_rank = parameter.data.unflatten(0, (3, size, -1)).transpose(0, 1)
            parameter.data = by_rank.flatten(0, 2).contiguous()
        block.attention.num_heads //= size
        parallelize_module(block, mesh, PAIRS | (SEQUENCE if sequence else {}))
    if sequence:
        begin = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=TOKENS, use_local_output=True
        )
        end = ColwiseParallel(input_layouts=TOKENS, output_layouts=Replicate())
        parallelize_module(model, mesh, {"blocks.0": begin, "norm": norm, "head": end})
    return training_step(model, adamw(model), lines)


# %% [markdown] id="predict-tensor"
# **Predict.** Tensor parallelism without the sequence part, four ranks, all eight lines on each.
# What per cent of one process's activations does a rank hold?

# %% id="guess-tensor"
guess = None

# %% id="tensor-table"
seen["TP"] = four.run(measured, tensor_parallel)
seen["TP + sequence"] = four.run(measured, tensor_parallel, True)
whole = alone.ledger["activations"]
for name in ("TP", "TP + sequence"):
    one = seen[name][0]
    share = 100 * one.ledger["activations"] / whole
    mark = beside(guess, share) if name == "TP" else ""
    print(f"{name:<14} weights {one.ledger['parameters']:.2f} P, "
          f"activations {share:.0f} % of one process's{mark}")  # fmt: skip
    print(f"{'':<15}same loss: {abs(one.loss - alone.loss) < 1e-4}; sends "
          f"{on_the_wire(one.sent):.2f} P")  # fmt: skip

# %% [markdown] id="tensor-read"
# Tensor parallelism divides the tensors inside the pairs, and nothing outside: norms' inputs and
# outputs and the residual stream are whole on every rank. The sequence part divides those as well.
# Two things stay whole: the gathered input of each pair, which autograd saves, and logits and loss.
# What is sent grows with the batch, not with the weights. So TP stays inside one machine with fast
# links.
#
# ## One table
#
# Three more levers, on four DDP ranks: checkpointing each block, moving saved tensors to the host
# (chapter 07's hooks, with NumPy as the host), and bfloat16 autocast. Then all rows by the same
# meter: eight lines, one update, the rank with the highest peak.


# %% id="levers"
def to_host(tensor):
    return tensor.detach().numpy().copy(), tensor.dtype


def from_host(saved):
    array, dtype = saved
    tensor = torch.empty(array.shape, dtype=dtype)  # the copy on the device
    tensor.numpy()[...] = array
    return tensor


class Around(nn.Module):
    """A GPT whose forward runs inside a context."""

    def __init__(self, gpt, context):
        super().__init__()
        self.gpt, self.context = gpt, context

    def forward(self, tokens):
        with self.context():
            return self.gpt(tokens)


# %% id="ddp-with"
HOST = partial(torch.autograd.graph.saved_tensors_hooks, to_host, from_host)
BF16 = partial(torch.autocast, "cpu", torch.bfloat16)


def ddp_with(context=None, again=False):
    gpt = make_gpt()
    if again:
        for block in gpt.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    model = Around(gpt, context) if context else gpt
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return training_step(model, adamw(model), my_lines())


# %% id="all-rows"
seen |= {
    "DDP + checkpoint": four.run(measured, ddp_with, None, True),
    "DDP + offload": four.run(measured, ddp_with, HOST),
    "DDP + bf16 autocast": four.run(measured, ddp_with, BF16),
    "pipeline (1F1B)": [one for one, _ in piped["1F1B"]],
    "1F1B + checkpoint": [one for one, _ in again["1F1B"]],
}
rows = {"one process": [alone], **seen}
columns = ("parameters", "gradients", "optimizer_state", "activations")
print(f"{'in P':<20} weights   grads   state  activ.   other    peak    sent")
for name, by_rank in rows.items():
    one = max(by_rank, key=lambda seen: seen.peak)
    known = [one.ledger[column] for column in columns]
    numbers = [*known, one.peak - sum(known), one.peak, on_the_wire(one.sent)]
    print(f"{name:<20}" + "".join(f"{number:>8.2f}" for number in numbers))

# %% id="all-rows-figure"
four.stop()
plots.by_rank(
    {name: [one.ledger for one in by_rank] for name, by_rank in rows.items()},
    unit="in copies of the weights",
    title="Who holds what",
)

# %% [markdown] id="touches"
# What each lever touches, and what it leaves:
#
# | | weights, gradients, state | activations | price |
# |---|---|---|---|
# | DDP | whole on each rank | this rank's lines | an all-reduce of P |
# | ZeRO 1, 2, 3 | state; gradients; weights | as DDP | stage 3: half as much again |
# | pipeline | own layers | own layers, of what is in flight | a bubble |
# | tensor | a part of each layer | inside the pairs | collectives in each layer |
# | with sequence | a part of each layer | all but the pairs' inputs | as tensor |
# | checkpointing | - | all but boundaries | a forward |
# | offload | - | all that waits | the bus |
# | 16-bit autocast | - (copies of weights on top) | up to half | precision |
#
# The two halves are independent: divide the states by ranks, cut the activations by chapters 06
# and 07.
#
# ## What about models that fit on no laptop?
#
# `ranks.pretend(8)` makes this process one of eight ranks that are not there. No collective moves a
# number, but all shapes are right. So `memory.predict` gives one rank's bytes. Here Llama-2-7B and
# 70B and GPT-2 XL in bfloat16 with AdamW, one sequence of full length a rank, each block
# checkpointed. (TP: one sequence in all.)
#
# The course's `Recipe` divides a published model as this chapter does: `ddp`, `fsdp` (FSDP2) or
# `tp`. In a terminal: `python -m tutorial_lib predict llama-2-7b --ranks 8 --shard fsdp`.
#
# All blocks are equal, so bytes grow linearly with depth. We predict four blocks and six, and
# extend the line. (A test predicts all 32 blocks of the 7B and compares.)

# %% id="published-shapes"
LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
SHAPES = {  # name in the course's catalogue, other sizes, field of the depth, blocks
    "GPT-2 XL": ("gpt2-xl", {}, "n_layer", 48),
    "Llama-2-7B": ("llama-2-7b", {}, "num_hidden_layers", 32),
    "Llama-2-70B": ("llama-2-7b", LLAMA_70B, "num_hidden_layers", 80),
}


# %% id="published-step"
def one_of_eight(shape, shard, depth):
    name, sizes, field, _ = SHAPES[shape]
    return Recipe(
        name,
        precision="bf16",
        optimizer="adamw-fused",  # the default would copy more at once
        checkpointing="per-block",
        overrides={**sizes, field: depth},
        ranks=8,
        shard=shard,
    )


# %% id="per-rank"
def per_rank(shape, shard):
    peaks = []
    for depth in (4, 6):
        with ranks.pretend(8):
            report = memory.predict(one_of_eight(shape, shard, depth).make_step)
        peaks.append(report.peak_bytes)
    depth = SHAPES[shape][-1]
    return Bytes(peaks[0] + (peaks[1] - peaks[0]) * (depth - 4) // 2)


# %% [markdown] id="predict-70b"
# **Predict.** Llama-2-70B with FSDP2 on eight ranks, bfloat16 throughout. How many GiB does a rank
# need at its peak?

# %% id="guess-70b"
guess = None

# %% id="per-rank-table"
print("8 ranks        way     a rank's peak   fits 24 GiB   fits 80 GiB")
for shape in SHAPES:
    ways = ("ddp", "fsdp") if shape == "GPT-2 XL" else ("ddp", "fsdp", "tp")
    for way in ways:
        peak = per_rank(shape, way)
        fits = "".join(f"{'yes' if peak < gib * GIB else 'no':>14}" for gib in (24, 80))
        mark = beside(guess, peak / GIB) if (shape, way) == ("Llama-2-70B", "fsdp") else ""
        print(f"{shape:<14} {way:<7}{peak:>14}{fits}{mark}")

# %% [markdown] id="per-rank-read"
# (GPT-2 XL has 25 heads, which eight ranks cannot divide, so it has no TP row. Predicted bytes are
# those of tensors; leave a few GiB for nccl and the allocator.)
#
# - DDP needs all four copies on each rank. More ranks do not help.
# - FSDP2 and TP bring Llama-2-7B to cards of 24 GiB. The 70B is at the edge of eight cards of
#   80 GiB: four copies of 16-bit weights, divided by eight.
# - Mixed precision keeps weights and states in float32, which doubles them.
#
# ## Verdicts
#
# - **"Global batch is not a memory quantity":** right for activations, which only the micro-batch
#   moves. Accumulation and DDP each add a constant.
# - **"`no_sync`: one all-reduce per update":** one for each *bucket*, and P bytes in all.
# - **"With pipeline parallelism":** checkpointing works inside stages, and then the schedules need
#   nearly the same. Without it, 1F1B limits what is in flight, and GPipe does not.
# - **"With ZeRO and offloading":** ZeRO divides states and leaves activations; offload and
#   checkpointing do the opposite. They go together.
# - **"Compared with model, tensor, pipeline and data parallelism, ZeRO, offload, mixed
#   precision":** one table above, one meter. No lever does it all.
#
# ## What you can now do
#
# - Start ranks in three ways, and count what they send.
# - Say from a formula what a rank holds under DDP, ZeRO 1 to 3, a pipeline and tensor parallelism.
# - Predict a rank of eight on a laptop, before you rent it.
#
# Lab 06 has an exercise with real ranks.
