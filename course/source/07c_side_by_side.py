# %% [markdown] id="title"
# # All ways, side by side
#
# This companion of chapter 07 is optional: no lab and no later chapter needs it. Here you run all
# ways of dropping tensors on the same models, and compare each step's FLOPs and peak. The peak
# doesn't include the model and its gradients. Two ways choose tensors for you:
#
# - **The compiler.** It sees forward and backward as one graph before anything runs. Its
#   `activation_memory_budget` is a number from 0 to 1. With 1 it follows its default plan; with 0
#   it keeps only the inputs. In between it solves a knapsack problem: within the allowed bytes,
#   which tensors save the most recomputation?
# - **The planner of chapter 06c**, with `selective=True`. For each stage it now has three choices:
#   keep it whole, keep the results of its matmuls, or recompute it with its neighbors.
#
# The models are GPT-2 from transformers, and the U-Net of Stable Diffusion 1.5 from diffusers. Both
# have the published layout, but are narrower. GPT-2 also has half as many layers.
#
# **Budget:** 35 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import itertools
import os
import warnings
from functools import partial

import pandas as pd
import torch
from functorch.compile import (
    aot_module,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import nn
from torch._functorch import config as compiler_config
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import blanks, claims, memory, plots
from tutorial_lib.instruments import planning, segments
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.units import human_bytes

torch.set_num_threads(1)  # small tensors: more threads would wait for each other
aten = torch.ops.aten


# %% id="cpu-attention"
# @title FLOPs of attention on a CPU: run this cell
def products(number, q, k):  # shapes (batch, heads, sequence, width)
    return number * 2 * q[0] * q[1] * q[2] * k[2] * q[3]


forward = aten._scaled_dot_product_flash_attention_for_cpu
backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
cpu_attention = {  # as in chapter 07: the FLOP counter does not know this kernel
    forward: lambda q, k, *_, **__: products(2, q, k),
    backward: lambda grad, q, k, *_, **__: products(5, q, k),
}

# %% id="sides-models"
# @title The two models: run this cell; open it to look
GPT2 = {"n_embd": 128, "n_head": 4, "n_layer": 6, "vocab_size": 512}
GPT2 |= {"n_positions": 128, "tie_word_embeddings": False}  # each weight once
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
UNET = {"block_out_channels": (32, 64, 128, 128), "norm_num_groups": 8}
UNET |= {"cross_attention_dim": 64, "attention_head_dim": 4, "sample_size": 16}


class WithLoss(nn.Module):
    def __init__(self, name, micro_batch, sizes):
        super().__init__()
        torch.manual_seed(0)
        self.name = name
        self.model = published.build(name, device="cpu", **sizes).train()
        for key, tensor in published.batch(name, micro_batch, **sizes).items():
            self.register_buffer(key, tensor.clone())  # else two names share one tensor

    def forward(self):
        batch = dict(self.named_buffers(recurse=False))
        return published.loss(self.name, self.model, batch)


# %% id="sides-cost"
def cost(whole, run):
    def step():
        run().backward()
        whole.zero_grad(set_to_none=False)  # gradients stay, as from step two on

    report = memory.measure(step, model=whole, warmup=0)
    with FlopCounterMode(display=False, custom_mapping=cpu_attention) as counter:
        step()
    return report.peak_bytes - report.baseline_bytes, counter.get_total_flops()


# %% id="sides-compiled"
# no code is generated: each operation of the graph runs as it is
def as_it_is(graph, inputs):
    return make_boxed_func(graph.forward)


def cost_compiled(whole, budget):
    with compiler_config.patch(activation_memory_budget=budget):
        partition = min_cut_rematerialization_partition
        compiled = aot_module(whole, as_it_is, as_it_is, partition_fn=partition)
        compiled().backward()  # the first run traces and partitions
        return cost(whole, compiled)


# %% [markdown] id="sides-predict"
# In the next tables, each row is a way of dropping tensors. The first two columns are its peak and
# the FLOPs that it recomputes. The last two are for the planner's best plan within the same peak.
#
# **Predict.** On the U-Net, the plan may use as many bytes as diffusers' own checkpointing switch
# needs. How many FLOPs does the plan recompute, as a percentage of what the switch recomputes?

# %% id="guess-sides"
guess = None  # %


# %% id="sides-planned"
def cost_planned(whole, profile, budget_bytes):
    planning.apply(whole, planning.solve(profile, budget_bytes=budget_bytes))
    try:
        return cost(whole, whole)
    finally:
        planning.undo(whole)


# %% id="sides-table"
def side_by_side(whole, seen):
    """Return the plan's points for the bytes of each way, and all as a table."""
    arithmetic = planning.Speed(bytes_per_second=1e30)  # count FLOPs only
    profile = planning.profile(whole, whole, speed=arithmetic, selective=True)
    planned, rows, base = {}, {}, seen["none"][1]
    for name, (peak, flops) in seen.items():
        held, planned_flops = cost_planned(whole, profile, peak)
        planned[held], again = planned_flops / base - 1, f"{flops / base - 1:+.1%}"
        plans = [human_bytes(held), f"{planned[held]:+.1%}"]
        rows[name] = [human_bytes(peak), again, *plans]
    columns = ["peak", "recomputed", "plan's peak", "plan recomputes"]
    return planned, pd.DataFrame(rows, index=columns).T


# %% id="sides-gpt"
def seen_with(ways, whole):
    seen = {}
    for way in ways:
        with segments.applied(whole.model, way):
            seen[way] = cost(whole, whole)
    return seen


gpt2 = WithLoss("gpt2", 2, GPT2)
gpt2().backward()  # from here on there are gradients
both = ["none", "per-block", "attention-only", "mlp-only", "library-switch"]
seen_gpt = seen_with([*both, "every-2", "sqrt"], gpt2)
plan_gpt, table = side_by_side(gpt2, seen_gpt)
table

# %% id="sides-unet"
unet = WithLoss("sd15-unet", 1, UNET)
unet().backward()
seen_unet = seen_with(both, unet)
plan_unet, table = side_by_side(unet, seen_unet)
switch, base = seen_unet["library-switch"][1], seen_unet["none"][1]
share = 100 * list(plan_unet.values())[-1] / (switch / base - 1)
print(f"of the switch's recomputed FLOPs: {share:.0f} %{beside(guess, share)}")
table

# %% id="sides-compiler"
# NBVAL_IGNORE_OUTPUT
budgets = (1, 0.1, 0)
by_compiler = {f"compiler, budget {b}": cost_compiled(gpt2, b) for b in budgets}
by_compiler = {"none": seen_gpt["none"], **by_compiler}
more_plan, table = side_by_side(gpt2, by_compiler)
table


# %% id="sides-dominated"
def beats(way, plans, base):
    """Tell whether no plan has as few bytes and as few FLOPs."""
    peak, more = way[0], way[1] / base - 1 + 1e-9
    return not any(held <= peak and again <= more for held, again in plans.items())


better = []
for plans, seen in ((plan_gpt, seen_gpt), (plan_unet, seen_unet)):
    base = seen["none"][1]
    better.append([name for name, way in seen.items() if beats(way, plans, base)])
beaten_by = f"{sum(map(len, better))} of {len(seen_gpt) + len(seen_unet)} ways"
print(f"{beaten_by} beat the plan in bytes and FLOPs: {better}")

# %% id="sides-figure"
# NBVAL_IGNORE_OUTPUT
base = seen_gpt["none"][1]
points = {name: {held: flops / base - 1} for name, (held, flops) in seen_gpt.items()}
points["compiler"] = {held: flops / base - 1 for held, flops in by_compiler.values()}
plots.tradeoff(
    {"plan": plan_gpt | more_plan, **points}, title="GPT-2's layout: bytes and FLOPs"
)

# %% [markdown] id="sides-read"
# On both models, the plan needs no more bytes and no more FLOPs than any other way, because it can
# apply any of the rules to each stage separately.
#
# - With enough memory the plan keeps the results of matmuls, like `all but down` in chapter 07.
# - With less memory it recomputes as few whole stages as necessary.
#
# A U-Net has skip connections, so it isn't a chain, and `every-2` and `sqrt` can't run on it.
#
# The compiler chooses operation by operation, not block by block. Its budget limits the bytes that
# *wait*, not the peak, so a smaller budget can even have a higher peak. With 0 only the inputs
# wait, but backward first recomputes all blocks at once, and then holds as much as a plain step.
# (Code generated for a GPU needs less memory than our count, because it fuses some operations.)
#
# ## `torch.compile`: what the meter doesn't see
#
# ```text
# compile the step      [ block 1 | block 2 | block 3 ]     one graph, one backward
# compile each block    [ block 1 ][ block 2 ][ block 3 ]   a graph for each block, all alike
# ```
#
# The meter follows operations, but compiled code fuses them. So `memory.measure` and
# `memory.predict` run the step *uncompiled*, and warn you. PyTorch's profiler (02b) also sees what
# compiled code allocates. Each memory event has a time and a number of bytes, which is negative
# when memory is freed.
#
# **Write.** `most_held`, in two or three lines. It returns the most bytes held at any time, above
# what was held at the start. The events aren't sorted by time.


# %% id="most-held"
def most_held(events):
    """Return the most bytes held at once, above the start; events are (time, bytes)."""
    ### BEGIN SOLUTION
    sizes = [num_bytes for _, num_bytes in sorted(events)]
    return max(itertools.accumulate(sizes, initial=0))
    ### END SOLUTION


# %% id="check-most-held"
# @title Check: run this cell
@blanks.check("most_held", "return a number of bytes")
def most_held_is_right():
    for events, most in {
        ((1, 8), (2, 4), (3, -8), (4, 6)): 12,
        ((4, 9), (1, 8), (3, -8), (2, 4)): 13,
        ((1, -8), (2, 4)): 0,
    }.items():
        seen = most_held(events)
        assert seen == most, f"Events {events}: {most} bytes at most, not {seen}."


# %% id="profiled-peak"
# @title The profiler's events of a step: run this cell; open it to look
@contextlib.contextmanager
def quiet_stderr():  # as in 02b
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def profiled_peak(step):
    with quiet_stderr(), profile(profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    found = [event for event in events if event.name() == "[memory]"]
    return most_held((event.start_ns(), event.nbytes()) for event in found)


# %% [markdown] id="compiled-text"
# The next cell runs a step of four layers in three ways: not compiled, with each layer compiled,
# and compiled as a whole. The compiler chooses what to keep, but generates no code. A **unit** is
# the size of a layer's input.


# %% id="compiled"
# @title Units held by four layers: run this cell; open it to look
def loss_of(layers, x, checkpointed):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
    return x.square().mean()


def units_held(compiled, checkpointed, width=64):
    torch.compiler.reset()
    made = ((nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(4))
    layers = nn.ModuleList(nn.Sequential(*parts) for parts in made)
    x = torch.randn(1024, width)
    turned = partial(torch.compile, backend="aot_eager_decomp_partition")
    run = turned(loss_of) if compiled == "step" else loss_of
    parts = [turned(layer) for layer in layers] if compiled == "layer" else layers

    def step():
        run(parts, x, checkpointed).backward()

    step()
    with warnings.catch_warnings(action="ignore"):  # it says that it runs uncompiled
        report = memory.measure(step, model=layers)
    metered = report.peak_bytes - report.baseline_bytes
    return metered / x.nbytes, profiled_peak(step) / x.nbytes


# %% id="compiled-table"
# NBVAL_IGNORE_OUTPUT
rows = {}
for name, on in (("plain", False), ("checkpointed", True)):
    for compiled in ("nothing", "layer", "step"):
        rows[name, compiled] = units_held(compiled, on)
table = pd.DataFrame(rows, index=["the meter's units", "the profiler's units"]).T
table.rename_axis(["checkpoints", "compiled"]).round(1)

# %% [markdown] id="compiled-read"
# The meter always runs the step uncompiled, so it reports the same in all three cases. The
# profiler's column is what the compiled step really holds. Without checkpoints the compiler keeps
# the results of matmuls and recomputes the norm and the GELU from them, as chapter 07's policy
# does. With checkpoints, the compiler keeps what the checkpoint keeps, so compiling saves no more
# memory. Compiling even takes a little more here, because the graph computes norm and GELU in
# several operations, which generated code would fuse.
#
# ### Compile the step, or each block?
#
# The model CoCa runs the *same* blocks twice in a step. With checkpoints and the whole step
# compiled, one of OpenCLIP's authors saw a GPU's peak rise to 2.3 times the uncompiled step's
# ([pytorch#193193](https://github.com/pytorch/pytorch/issues/193193), PyTorch 2.13.0). We recorded
# such a step on a CPU (`course/recorded/make/compiled.py`). This time we compiled with the default
# backend, which does generate code, and took the bytes from the profiler.
#
# **Predict.** The model runs the same blocks twice, with checkpoints. By what factor did compiling
# the step raise its peak on our CPU, with PyTorch 2.13.0?

# %% id="guess-passes"
guess = None  # times


# %% id="passes"
rows = pd.read_csv(FOLDER / "compiled.csv").query("checkpointed")
pinned = rows[rows.torch.str.startswith("2.13") & (rows.blocks == 3)]
peaks = pinned.pivot(index="passes", columns="compiled", values="peak_bytes")
factor = peaks.loc["two", "step"] / peaks.loc["two", "nothing"]
newer = rows[rows.torch.str.startswith("2.15") & (rows.passes == "two")]
newer = newer.set_index("compiled").peak_bytes
print(f"2.13: {factor:.1f} times{beside(guess, factor)}")
print(f"2.15: {newer['step'] / newer['nothing']:.1f} times")
curves = {
    f"compiled: {way}": {1: sizes["one"], 2: sizes["two"]}
    for way, sizes in peaks.items()
}
curves["the step, graph break between passes"] = {2: peaks.iloc[-1]["step"]}
title = "Peak of a checkpointed step, three blocks"
plots.growth(curves, xlabel="passes through the blocks", title=title)

# %% [markdown] id="passes-read"
# A compiled backward is one graph, so the order of its recomputations is fixed at compile time.
# With two passes through the same weights, several blocks are recomputed before they're needed. A
# graph break between the passes (`torch._dynamo.graph_break()`) prevents that, here and in the
# OpenCLIP author's report.
#
# If you compile **each block** (`block.compile()`, with the checkpoint around it), the checkpoint
# decides when to recompute, and the peak is the same as the uncompiled step's. One drawback is that
# what a block updates in forward, such as BatchNorm's statistics, is updated twice (chapter 12). A
# compiled step avoids that.
#
# PyTorch recommends compiling each block, under the name *regional compilation*. All blocks share
# their code, so a deeper model takes barely longer to compile. The next table has the CPU seconds
# of compiling 3 and 6 blocks:

# %% id="seconds"
once = rows[rows.torch.str.startswith("2.13") & (rows.passes == "one")]
once.query("compiled != 'nothing'").pivot(
    index="compiled", columns="blocks", values="compile_seconds"
)

# %% [markdown] id="region"
# **A part of the model can have its own budget**: inside the compiled function, use
# `torch.autograd.graph.region_activation_memory_budget(0.5)` as a context. It overrides
# `activation_memory_budget` (tried with PyTorch 2.13 and 2.15), but it has to cover the whole
# forward of a graph. So put a graph break before and after the part; otherwise compiling raises an
# error.

# %% [markdown] id="verdict-text"
# ## Verdict

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "C09",
        "shown",
        "A planner and the compiler choose by themselves. On these two models, with "
        "FLOPs as the price and keeping matmuls' results as a third choice, no rule "
        "by hand beats the plan.",
        f"{beaten_by} beat the plan in bytes and FLOPs",
        "counted",
        "sides-dominated",
    ),
)
