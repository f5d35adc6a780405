# %% [markdown] id="title"
# # Launchers and buckets
#
# This companion of chapter 13 is optional: no lab and no later chapter needs it. It answers two
# questions:
#
# 1. How do `torchrun` and Accelerate start ranks, and what happens if their port is in use?
# 2. How much memory do DDP's buckets take?
#
# **Budget:** 20 minutes, 2 GiB of memory, no GPU needed.

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
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from tutorial_lib import data, memory
from tutorial_lib.instruments import ranks
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
# **torchrun** starts a script N times. It puts each rank's number into an environment variable,
# which `init_process_group` reads. The ranks find each other through a port. With `--standalone`,
# torchrun picks a free one.

# %% id="torchrun"
IN_USE = ("Another program uses this port. Take a free one: --standalone for torchrun, "
          "port 0 for `launched`.")  # fmt: skip


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
# Without `--standalone`, torchrun uses the port that you name. If two runs on one machine ask for
# the same port, the second one fails with forty lines of output, which contain `EADDRINUSE`. Our
# function prints one short message instead:

# %% id="port"
with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
    try:
        torchrun(SCRIPT, f"--master-port={port}", "--nproc-per-node=2")
    except RuntimeError as error:
        print(error)

# %% [markdown] id="launcher-text"
# **Accelerate** has a launcher for notebooks. It forks this process to make the ranks, so it works
# only on Linux, and only before this process has used a GPU. Our function `launched` wraps that
# launcher. With port `0`, its default, it takes any free port. (The output says "CUDAs" even for
# CPUs.)


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
# Before DDP sends gradients, it copies them into flat buckets, which stay in memory for the whole
# run. With `gradient_as_bucket_view=True`, `.grad` is a view of the bucket.
#
# **Predict.** P is the size of the weights. After an update, before the gradients are cleared, a
# single process with AdamW holds weights, gradients and two states, 4 P in all. How many P does a
# DDP rank hold then, without views?

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
# Without views, the buckets take one more P. With views, gradients and buckets share one P.
# `zero_grad()` frees a single process's gradients, but it frees no buckets. So in the next forward
# a DDP rank holds one P more than a single process, with or without views.
