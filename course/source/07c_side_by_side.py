# %% [markdown] id="title"
# # All ways, side by side
#
# This companion of chapter 07 is optional: no lab and no later chapter needs it. Which way to drop
# tensors is best? Here you run all of them on the same models, and measure the peak above the model
# and its gradients, and the FLOPs of a step. Two of the ways choose tensors for you:
#
# - **The compiler.** It sees forward and backward as one graph before anything runs. Its
#   `activation_memory_budget` is a share: 1 is its default plan, 0 keeps only the inputs. In
#   between it solves a knapsack problem: save the most FLOPs within the allowed bytes.
# - **The planner of chapter 06c**, with `selective=True`. For each stage it now has three choices:
#   keep it whole, keep the results of its matmuls, or recompute it with its neighbors.
#
# The models are ones that people train: GPT-2 from transformers, and the U-Net of Stable Diffusion
# 1.5 from diffusers. They have the published layout, but are narrower, and GPT-2 has half as many
# layers.
#
# **Budget:** 30 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import pandas as pd
import torch
from functorch.compile import (
    aot_module,
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch import nn
from torch._functorch import config as compiler_config
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import claims, memory, plots
from tutorial_lib.instruments import planning, segments
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.units import human_bytes

torch.set_num_threads(1)  # small tensors: more threads would wait for each other
aten = torch.ops.aten


# %% id="cpu-attention"
def products(number, q, k):  # shapes (batch, heads, sequence, width)
    return number * 2 * q[0] * q[1] * q[2] * k[2] * q[3]


forward = aten._scaled_dot_product_flash_attention_for_cpu
backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
cpu_attention = {  # as in chapter 07: the FLOP counter does not know this kernel
    forward: lambda q, k, *_, **__: products(2, q, k),
    backward: lambda grad, q, k, *_, **__: products(5, q, k),
}

# %% id="sides-models"
GPT2 = {"n_embd": 128, "n_head": 4, "n_layer": 6, "vocab_size": 512}
GPT2 |= {"n_positions": 128, "tie_word_embeddings": False}  # each weight once
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
UNET = {"block_out_channels": (32, 64, 128, 128), "norm_num_groups": 8}
UNET |= {"cross_attention_dim": 64, "attention_head_dim": 4, "sample_size": 16}


# %% id="sides-with-loss"
class WithLoss(nn.Module):
    def __init__(self, name, micro_batch, sizes):
        super().__init__()
        torch.manual_seed(0)
        self.name = name
        self.model = published.build(name, device="cpu", **sizes).train()
        for key, tensor in published.batch(name, micro_batch, **sizes).items():
            self.register_buffer(key, tensor.clone())  # else two names have one tensor

    def forward(self):
        batch = dict(self.named_buffers(recurse=False))
        return published.loss(self.name, self.model, batch)


# %% id="sides-cost"
def cost(whole, run):
    def step():
        run().backward()
        whole.zero_grad(set_to_none=False)  # they stay, as in every step but the first

    report = memory.measure(step, model=whole, warmup=0)
    with FlopCounterMode(display=False, custom_mapping=cpu_attention) as counter:
        step()
    return report.peak_bytes - report.baseline_bytes, counter.get_total_flops()


# %% id="sides-sequential"
class InSequence(nn.Module):  # takes the place of a model's blocks
    def __init__(self, blocks, num_segments):
        super().__init__()
        self.blocks, self.num_segments = blocks, num_segments

    def forward(self, x, *args, **kwargs):
        calls = [
            lambda x, block=block: block(x, *args, **kwargs) for block in self.blocks
        ]
        return checkpoint_sequential(calls, self.num_segments, x, use_reentrant=False)


# %% id="sides-in-sequence"
def cost_in_sequence(whole, num_segments):
    blocks = whole.model.transformer.h
    whole.model.transformer.h = nn.ModuleList([InSequence(blocks, num_segments)])
    try:
        return cost(whole, whole)
    finally:
        whole.model.transformer.h = blocks


# %% id="sides-compiled"
# no code generated: each operation of the graph runs as it stands
def as_it_is(graph, inputs):
    return make_boxed_func(graph.forward)


def cost_compiled(whole, budget):
    with compiler_config.patch(activation_memory_budget=budget):
        partition = min_cut_rematerialization_partition
        compiled = aot_module(whole, as_it_is, as_it_is, partition_fn=partition)
        compiled().backward()  # the first run traces and partitions
        return cost(whole, compiled)


# %% [markdown] id="sides-predict"
# **Predict.** The plan may use as many bytes as diffusers' own switch needs on the U-Net. What
# percentage of the switch's recomputed FLOPs does the plan recompute?

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
    """Give the plan's points for the bytes of each way, and all as a table."""
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
seen_gpt["checkpoint_sequential"] = cost_in_sequence(gpt2, 4)
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
    """Whether no plan has as few bytes and FLOPs together."""
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
# On both models, the plan needs no more bytes and no more FLOPs than any other way. That's because
# it can choose any of the other ways' choices, for each stage separately.
#
# - At no cost in FLOPs it keeps the results of matmuls, like `all but down` in chapter 07.
# - For a smaller budget it recomputes whole stages, and only as many as necessary.
# - `attention-only`, `mlp-only` and `sqrt` are all far worse.
#
# A U-Net has skip connections, so it isn't a chain, and every-2, sqrt and `checkpoint_sequential`
# can't run on it.
#
# The compiler works below the block, operation by operation. It limits the bytes that *wait*, but
# not the peak. A smaller budget can even have a higher peak: with 0 nothing but the inputs waits,
# but backward first recomputes all blocks at once, and holds as much as without any budget. Our
# meter runs the compiler's graph operation by operation. The code that the compiler generates for a
# GPU fuses some of the operations and needs less memory.
#
# **A part of the model can have its own budget**: inside the compiled function, use
# `torch.autograd.graph.region_activation_memory_budget(0.5)` as a context. It overrides the config
# (tried with PyTorch 2.13 and 2.15), but it has to cover the whole forward of a graph. So put a
# graph break (`torch._dynamo.graph_break()`) before and after the part; without one, compiling
# raises an error. In 2.15 `activation_memory_budget_require_full_coverage=False` silences the
# error, but then the part's budget applies to the whole graph.
#
# ## Verdict

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "C09",
        "shown",
        "A planner and the compiler choose by themselves; on these two models, with "
        "FLOPs as the price and matmuls' results as a third choice, no rule by hand "
        "beats the plan.",
        f"{beaten_by} beat the plan in bytes and FLOPs",
        "counted",
        "sides-dominated",
    ),
)
