# %% [markdown] id="title"
# # Launchers and schedules
#
# This companion of chapter 13 is optional: no lab and no later chapter needs it. It answers three
# questions:
#
# 1. How do `torchrun` and Accelerate start ranks, and what if a port is in use?
# 2. What do DDP's buckets cost?
# 3. Why does a pipeline's rank wait, and what does an interleaved schedule change?
#
# **Budget:** 25 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator, notebook_launcher
from IPython.display import display
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from tutorial_lib import data, memory
from tutorial_lib.instruments import figures, ranks
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that we start share a few cores

# %% [markdown] id="torchrun-text"
# ## How does a script become several ranks?
#
# ```text
# torchrun --nproc-per-node=2 script.py
#     │      sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
#     ├─► python script.py   RANK=0 ─┐
#     └─► python script.py   RANK=1 ─┴─ init_process_group: meet at MASTER_ADDR:MASTER_PORT
# ```
#
# **torchrun** starts a script N times and puts each rank's number into the environment, where
# `init_process_group` finds it. `--standalone` takes a free port.


# %% id="torchrun"
IN_USE = ("Another program uses this port. Leave the port out: the launcher then "
          "takes a free one.")  # fmt: skip


def torchrun(script, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(script)
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "EADDRINUSE" in done.stderr:
        raise RuntimeError(IN_USE)
    if done.returncode:
        why = done.stderr[-3000:]
        raise RuntimeError(f"torchrun ended with {done.returncode}:\n{why}")
    return done.stdout.strip()


# %% id="torchrun-two"
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")  # "nccl" on GPUs
mine = torch.tensor(10.0 + dist.get_rank())
dist.all_reduce(mine)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, the sum is {mine.item():g}")
dist.destroy_process_group()
"""
torchrun(SCRIPT, "--standalone", "--nproc-per-node=2")

# %% [markdown] id="port-text"
# Without `--standalone`, torchrun takes port 29500, or the one that you name. Two trainings on one
# machine then ask for the same port. The second one fails with forty lines and the word
# `EADDRINUSE`; our function says it in one sentence:

# %% id="port"
with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    try:
        torchrun(SCRIPT, f"--master-port={port}", "--nproc-per-node=2")
    except RuntimeError as error:
        print(error)

# %% [markdown] id="launcher-text"
# **Accelerate** has a launcher for notebooks. It forks this process, so no function is sent. It
# works on Linux only, and only before this process has used a GPU. Port `0` means a free one. The
# output depends on the machine (and says "CUDAs" for CPUs).


# %% id="launcher"
def with_accelerate():
    accelerator = Accelerator(cpu=True)
    model = type(accelerator.prepare(nn.Linear(2, 2))).__name__
    if accelerator.is_main_process:
        print(f"{accelerator.num_processes} ranks, the model is a {model}")


def launched(function, port=0):
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    where = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    if port:
        where = {"use_port": str(port)}
    try:
        notebook_launcher(function, num_processes=2, **where)
    except RuntimeError as error:
        why = IN_USE if "EADDRINUSE" in str(error) else str(error)
        raise RuntimeError(why) from None
    finally:  # the launcher leaves its own handlers behind
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, handlers[number])


# %% id="launcher-two"
# NBVAL_IGNORE_OUTPUT
if sys.platform == "linux" and not torch.cuda.is_available():
    launched(with_accelerate)

# %% [markdown] id="buckets-text"
# ## What do buckets cost?
#
# ```text
# backward ─► .grad ─ copy ─► bucket ─► all-reduce ─► bucket ─ copy ─► .grad
#             .grad is a view of the bucket: no copy   (gradient_as_bucket_view=True)
# ```
#
# Before gradients travel, DDP copies them into flat buckets. The buckets stay for the whole
# training. With `gradient_as_bucket_view=True`, `.grad` is a part of the bucket.
#
# **Predict.** P is the size of the weights. After an update, with gradients still there, one
# process with AdamW holds weights, gradients and two states: 4 P. How many P does a DDP rank hold
# without views?

# %% id="guess-buckets"
guess = None


# %% id="buckets"
def held(view=None):
    torch.manual_seed(0)
    model = GPT(GPTConfig(num_layers=4))
    optimizer = AdamW(model.parameters(), foreach=False)
    if view is not None:
        model = DistributedDataParallel(model, gradient_as_bucket_view=view)
    tokens = next(data.text_batches(1, 128))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).backward()
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    return report.baseline_bytes / report.at_peak["parameters"]


# %% id="buckets-table"
with ranks.start(2) as two:
    copied, viewed = (two.run(held, view)[0] for view in (False, True))
print(f"one process {held():.2f} P, DDP {copied:.2f} P, DDP with views {viewed:.2f} P")
print(f"DDP holds {copied:.2f} P{beside(guess, copied)}")

# %% [markdown] id="buckets-read"
# The copy costs one more P. With views it is gone.
#
# ## Why do a pipeline's ranks wait?
#
# ```text
# rank 0   F0 F1 F2 F3 .. .. B0    a stage begins when its input is there:
# rank 1      F0 F1 F2 F3 B0       from the left in forward,
# rank 2         F0 F1 B0          from the right in backward
# ```
#
# Each rank runs its forwards (F) and backwards (B) in the order of its schedule. The next cell
# writes the orders of chapter 13 down, for four ranks and eight micro-batches. A rank of **1F1B**
# begins with as many forwards as there are ranks from it to the last. In the **interleaved**
# schedule (Narayanan et al., 2021) a rank has two stages, half as long, and takes four
# micro-batches of one, then four of the other.


# %% id="orders"
def order(first, forwards, backwards):
    """`first` forwards, then forward and backward in turn, then the backwards left."""
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
# Each block takes one unit of time in forward and two in backward. A stage begins as soon as its
# rank is free and its input is there.
#
# **Predict.** Each rank works for 48 units: 8 micro-batches, two blocks, 1 + 2 units. How many
# units does the whole 1F1B update take?

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
    runs = clock(orders)
    units[name] = max(start + duration for _, start, duration, *_ in runs)
    display(figures.timetable(runs, title=name))
print(f"1F1B: {units['1F1B']} units{beside(guess, units['1F1B'])}")

# %% [markdown] id="timetables-read"
# The white is the **bubble**: time in which a rank waits. GPipe and 1F1B have the same bubble, so
# 1F1B saves memory at no cost. The interleaved schedule has half the bubble. In exchange its ranks
# hold more activations than 1F1B's, and each micro-batch crosses seven boundaries, not three.
