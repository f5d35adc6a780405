# %% [markdown] id="title"
# # FSDP2 in full
#
# This companion of chapter 13 is optional: no lab and no later chapter needs it. It answers four
# questions:
#
# 1. When does a rank hold which weights, and how often does it gather them?
# 2. Why did LoRA with ZeRO stage 3 raise an error as soon as blocks were checkpointed?
# 3. What do two machines send over the slow link between them?
# 4. What remains on the card with `CPUOffloadPolicy`?
#
# **Budget:** 40 minutes, 3 GiB of memory, no GPU needed.

# %% id="imports"
import os
from contextlib import nullcontext
from functools import partial

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import CheckpointError, checkpoint

from tutorial_lib import blanks, data, memory
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import ranks
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.plots.base import LINES, new_figure

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # the processes that we start share a few cores

# %% [markdown] id="model-text"
# The set-up is from chapter 13: a GPT of eight blocks, and eight sequences per update. All sizes
# are in **P**, the size of the weights.


# %% id="model"
def make_gpt():
    torch.manual_seed(0)  # the same weights on every rank
    return GPT(GPTConfig(num_layers=8, tie_weights=False))


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


lines = next(data.text_batches(8, 128))  # (batch, sequence)
P = sum(parameter.nbytes for parameter in make_gpt().parameters())


def my_lines():
    return lines.chunk(dist.get_world_size())[dist.get_rank()].clone()


# %% id="fsdp"
# @title FSDP2 on a mesh, as in chapter 13: run this cell; open it to look
def fsdp(model, twice=True, recomputed=True, shape=None):
    """Divide a model over all ranks, or over a mesh of this shape."""
    names = ("replicate", "shard") if shape else ("shard",)
    mesh = init_device_mesh(
        "cpu", shape or (dist.get_world_size(),), mesh_dim_names=names
    )
    for block in model.blocks if recomputed else []:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=twice)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, part = AdamW(trained, foreach=False), my_lines()

    def step():
        optimizer.zero_grad()
        loss_of(model(part), part).backward()
        optimizer.step()

    return step, model, optimizer


# %% id="measured"
def measured(prepare, *args):
    step, model, optimizer = fsdp(prepare(), *args)
    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
    with ranks.traffic() as traffic:
        step()
    return report, traffic


# %% [markdown] id="time-text"
# ## Gather, compute, free
#
# ```text
# gather block 1 ─► compute ─► free ─► gather block 2 ─► compute ─► free ─► ...       forward
# ... ◄─ reduce-scatter ◄─ free ◄─ compute ◄─ recompute ◄─ gather block 8 ◄─ ...     backward
# ```
#
# The next figure shows one step of stage 3 with checkpointing, for the first of four ranks. Each
# row is a block, and time is counted in operations. A gather fills a buffer with a block's whole
# weights. FSDP2 then copies the weights from the buffer into the block.
#
# **Predict.** A block is *whole* while the rank holds all its weights, in the buffer or in the
# block. How many blocks are whole at the same time, at most?

# %% id="guess-whole"
guess = None

# %% id="time-picture"
# @title Gather, compute, free: run this cell; open it to look
with ranks.pretend(4):  # one rank of four
    step, model, optimizer = fsdp(make_gpt())
    report = memory.measure(step, model=model, optimizer=optimizer, warmup=2)
whole = sum(weight.nbytes for weight in Block(GPTConfig()).parameters())
qkv = Block(GPTConfig()).attention.qkv.weight.nbytes
lives = sorted((one for one in report.timeline if one.died), key=lambda one: one.born)
begins = {phase: tick for tick, phase in reversed(report.phase_starts)}
sent = {one.born - 1 for one in report.timeline if one.category == "gradients"}
kinds = {"gather": [], "weights": [], "gradients, until sent": []}
for one in lives:
    if one.num_bytes == whole and one.op == "empty":
        kinds["gradients, until sent" if one.born in sent else "gather"].append(one)
    elif one.num_bytes == qkv and one.op == "resize_":
        kinds["weights"].append(one)
figure, axes = new_figure("One step of stage 3, each block checkpointed", height=2.8)
spans, ways = [], zip(kinds.items(), (LINES[0], LINES[2], LINES[1]), strict=True)
for place, ((name, found), color) in enumerate(ways):
    rows = [*range(8), *range(7, -1, -1)][-len(found) :]
    for number, (row, one) in enumerate(zip(rows, found, strict=True)):
        bar = {"color": color, "label": name if not number else None}
        axes.broken_barh(
            [(one.born, one.died - one.born)], (row + 0.25 * place, 0.25), **bar
        )
        spans += [(row, one.born, one.died)] if place < 2 else []
axes.axvline(begins["backward"], color="black", linewidth=0.8)
axes.set(xlabel="operations; backward begins at the line", ylabel="block", ylim=(8, 0))
figure.legend(loc="outside right upper", frameon=False)
most = max(
    len({row for row, born, died in spans if born <= tick <= died})
    for _, tick, _ in spans
)
figure.alt = (
    "Eight rows. In forward, each block is gathered, used, and freed before the next "
    "but one is gathered. In backward, from the last block on, the next block is "
    f"gathered while one is recomputed. At most {most} blocks are whole at once."
)
print(f"whole at most: {most} blocks{beside(guess, most)}")
figure

# %% [markdown] id="time-read"
# In forward, a block's buffer stays until the next block is gathered. In backward FSDP2 gathers one
# block ahead, so that a GPU can receive one block while it computes another. FSDP2 frees a block's
# weights only after its recomputation and backward, so checkpointing adds no gather. A block's
# gradients stay whole until they are reduce-scattered, which happens while backward computes the
# next block.
#
# **Predict.** With `reshard_after_forward=False` and each block checkpointed, how many times is
# each block gathered in one step?

# %% id="guess-gathers"
guess = None

# %% id="gathers"
# NBVAL_IGNORE_OUTPUT
four = ranks.start(4)  # the line below, if there is one, depends on your machine


# %% id="gathers-table"
def of_four(*args):
    # gloo frees a tensor late on some rank at times: take the rank with the least
    return min(four.run(measured, *args), key=lambda seen: seen[0].peak_bytes)


rows, ways = {}, {"freed": True, "kept": False}
for name, twice in ways.items():
    for recomputed in (False, True):
        report, traffic = of_four(make_gpt, twice, recomputed)
        gathers = len(traffic.sizes("all_gather")) / 9  # eight blocks and the rest
        sizes = report.peak_bytes / P, traffic.ring_bytes(4) / P
        rows[name + ", checkpointed" * recomputed] = [gathers, *sizes]
gathers = rows["kept, checkpointed"][0]
print(f"gathers, kept and checkpointed: {gathers:g}{beside(guess, gathers)}")
heads = ["gathers", "peak, P", "sent, P"]
pd.DataFrame.from_dict(rows, orient="index", columns=heads).round(2)

# %% [markdown] id="lora-text"
# ## Frozen weights that are freed too early
#
# In 2026, LoRA under DeepSpeed's ZeRO 3 raised an error as soon as blocks were checkpointed: *saved
# shape [1024], recomputed shape [0]*
# ([transformers#47254](https://github.com/huggingface/transformers/issues/47254)). `checkpoint`
# compares the shapes of the tensors saved in forward with those saved in the recomputation. By
# then, the recomputed layer has freed its weights, so their shape is [0].
#
# Only frozen weights were affected, such as a norm's. Trained weights pass, because `checkpoint`
# detaches them, and the detached tensor keeps its shape.
#
# You now write the missing part of a stage 3 without this error. `Weights` divides a frozen layer's
# weights over the ranks, and its `gather` runs before each forward. LoRA's matrices are not
# divided: each rank holds them whole.
#
# **Write.** `free_after_use`, which registers two hooks on the layer (`register_forward_hook`,
# `register_full_backward_hook`). Both call `weights.free()`.  The forward hook frees after forward,
# but not in the recomputation, since the backward that follows it needs the weights. `again.is_on`
# is true while `checkpoint` recomputes. PyTorch passes three arguments to each hook.


# %% id="weights"
# @title A layer's divided weights: run this cell; open it to look
class Weights:
    """A layer's weights; this rank holds only its part while nobody needs them."""

    def __init__(self, layer):
        self.tensors, self.gathers = list(layer.parameters(recurse=False)), 0
        size, rank = dist.get_world_size(), dist.get_rank()
        self.shapes = [tensor.shape for tensor in self.tensors]
        self.own = [
            tensor.data.flatten().chunk(size)[rank].clone() for tensor in self.tensors
        ]
        self.free()

    def gather(self, *_):
        if self.is_whole:
            return
        self.is_whole, self.gathers = True, self.gathers + 1
        for tensor, own, shape in zip(self.tensors, self.own, self.shapes, strict=True):
            tensor.data = own.new_empty(shape)
            parts = tensor.data.view(dist.get_world_size(), -1)
            dist.all_gather(list(parts), own)

    def free(self):
        self.is_whole = False
        for tensor in self.tensors:
            tensor.data = tensor.new_empty(0)


class Again:
    """A context for checkpoint to recompute in."""

    is_on = False

    def __enter__(self):
        self.is_on = True

    def __exit__(self, *_):
        self.is_on = False


# %% id="lora-model"
# @title LoRA on each block, and a step of it: run this cell; open it to look
class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def make_lora():
    gpt = make_gpt().requires_grad_(False)
    for block in gpt.blocks:
        block.attention.qkv = LoRA(block.attention.qkv)
    return gpt


def loss_of_blocks(model, part, context_fn=None):
    x = model.token_embedding(part) + model.position_embedding.weight
    x.requires_grad_()  # as PEFT's enable_input_require_grads
    how = {"context_fn": context_fn} if context_fn else {}
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False, **how)
    return loss_of(model.head(model.norm(x)), part)


def by_hand(add_hooks):
    """Run a step under our stage 3; return error, whole layers, gathers, gradients."""
    model, again, held = make_lora(), Again(), []
    for layer in model.blocks.modules():
        own = list(layer.parameters(recurse=False))
        if own and not own[0].requires_grad:
            held.append(weights := Weights(layer))
            layer.register_forward_pre_hook(weights.gather)
            add_hooks(layer, weights, again)

    def count_whole():
        return sum(weights.is_whole for weights in held)

    loss = loss_of_blocks(model, my_lines(), lambda: (nullcontext(), again))
    whole = [count_whole()]
    try:
        loss.backward()
    except CheckpointError as error:
        return str(error), whole, 0, []
    whole.append(count_whole())
    gathers = sum(weights.gathers for weights in held) / len(held)
    return "", whole, gathers, [p.grad for p in model.parameters() if p.requires_grad]


# %% id="free-after-use"
def free_after_use(layer, weights, again):
    ### BEGIN SOLUTION
    def after_forward(*_):
        if not again.is_on:
            weights.free()

    layer.register_forward_hook(after_forward)
    layer.register_full_backward_hook(lambda *_: weights.free())
    ### END SOLUTION


# %% id="check-free-after-use"
# @title Check: run this cell
@blanks.check("free_after_use", "register hooks that call `weights.free()`")
def frees_in_time():
    # one rank, which divides nothing: when weights are freed is the same for four
    ((error, whole, gathers, grads),), _ = ranks.in_threads(
        lambda rank: by_hand(free_after_use), 1
    )
    assert not whole[0], f"After forward {whole[0]} layers are still whole."
    said = " ".join(error.split())[:360]
    assert not error, (
        f"A layer is freed while checkpoint recomputes. Checkpoint says: {said}"
    )
    assert not whole[1], f"After backward {whole[1]} layers are still whole."
    assert gathers == 2, f"A layer is gathered {gathers:g} times in a step, not 2."
    model = make_lora()
    loss_of_blocks(model, lines).backward()
    right = [p.grad for p in model.parameters() if p.requires_grad]
    for mine, wanted in zip(grads, right, strict=True):
        near = torch.allclose(mine, wanted, atol=1e-6)
        assert near, "A gradient differs from the one with whole weights."


# %% id="free-too-early"
def frees_always(layer, weights, again):
    layer.register_forward_hook(lambda *_: weights.free())
    layer.register_full_backward_hook(lambda *_: weights.free())


_, whole, gathers, _ = four.run(by_hand, free_after_use)[0]
print(f"yours: {gathers:g} gathers, {whole} layers whole after forward and backward")
error, *_ = four.run(by_hand, frees_always)[0]
print("\n".join(error.splitlines()[:4]))

# %% [markdown] id="free-read"
# The last lines show the reported error. We got it from hooks that free the weights during the
# recomputation too. Like yours, DeepSpeed's fix keeps a frozen weight whole during the
# recomputation ([DeepSpeed#8148](https://github.com/deepspeedai/DeepSpeed/pull/8148)). The review
# of this fix found a second trap: a layer before the first trained block has no backward, so no
# backward hook frees its weights. Your forward hook already frees them.
#
# ## Frozen blocks under FSDP2
#
# **Predict.** The embeddings and the first six of eight blocks are frozen, and weights are freed
# after forward. Forward gathers nine times (eight blocks and the rest). How many gathers are there
# in a whole step, forward and backward?

# %% id="guess-frozen"
guess = None


# %% id="frozen"
def make_frozen():
    gpt = make_gpt()
    for part in (gpt.token_embedding, gpt.position_embedding, *gpt.blocks[:6]):
        part.requires_grad_(False)
    return gpt


rows = {}
made = {"all trained": make_gpt, "six blocks frozen": make_frozen, "LoRA": make_lora}
for name, make in made.items():
    report, traffic = of_four(make)
    kinds = [traffic.sizes(kind) for kind in ("all_gather", "reduce_scatter")]
    states = report.at_peak["optimizer_state"] / P
    sizes = [states, report.peak_bytes / P, traffic.ring_bytes(4) / P]
    rows[name] = [*map(len, kinds), *sizes]
frozen = rows["six blocks frozen"][0]
print(f"six frozen: {frozen} gathers{beside(guess, frozen)}")
heads = ["gathers", "reduce-scatters", "states, P", "peak, P", "sent, P"]
pd.DataFrame.from_dict(rows, orient="index", columns=heads).round(2)

# %% [markdown] id="frozen-read"
# - With six frozen blocks, backward gathers only the two trained blocks, the weights outside the
#   blocks, and the sixth block: FSDP2 gathers the next block in advance, but backward never uses it
#   (PyTorch 2.13.0).
# - With LoRA, backward passes through every frozen layer, so everything is gathered twice. LoRA
#   saves only AdamW's states and the frozen weights' gradients, which are neither held nor sent.
#
# ## HSDP: two machines
#
# ```text
# machine A: rank 0, rank 1    shard inside a machine: gathers, reduce-scatters (fast link)
#               │       │      replicate across:       all-reduce of own gradients (slow link)
# machine B: rank 2, rank 3
# ```
#
# With a two-dimensional mesh, FSDP2 divides everything over the S ranks of a machine, and each of R
# machines has a copy. This is called HSDP (hybrid sharding). A rank holds $4/S$ P between steps.
# Per step it sends $3\,(S-1)/S$ P within its machine, and $2\,\frac{R-1}{R}\cdot\frac1S$ P between
# machines. Plain FSDP2 sends $3\,(N-1)/N$ P around a ring that also crosses the slow link.
#
# **Predict.** There are two machines with two ranks each. How many P does a rank send between the
# machines in a step of HSDP?

# %% id="guess-hsdp"
guess = None


# %% id="hsdp"
def within_and_across(traffic, shards, copies):
    across = sum(traffic.sizes("all_reduce")) / P
    inside = sum(map(sum, map(traffic.sizes, ("all_gather", "reduce_scatter")))) / P
    return inside * (shards - 1) / shards, across * 2 * (copies - 1) / copies


rows = {}
for name, shape in {"FSDP2, 4 ranks": None, "HSDP, 2 x 2": (2, 2)}.items():
    report, traffic = of_four(make_gpt, True, True, shape)
    sent = within_and_across(traffic, *(reversed(shape) if shape else (4, 1)))
    rows[name] = [report.baseline_bytes / P, report.peak_bytes / P, *sent]
across = rows["HSDP, 2 x 2"][3]
print(f"across: {across:.2f} P{beside(guess, across)}")
heads = ["between steps, P", "peak, P", "sent, sharding, P", "sent, copies, P"]
four.stop()
pd.DataFrame.from_dict(rows, orient="index", columns=heads).round(2)

# %% [markdown] id="offload-text"
# The all-reduce carries only the gradients of a rank's own shard, so a rank sends 0.5 P over the
# slow link. In plain FSDP2's ring over all ranks it would be 2.25 P. But between steps, each rank
# holds twice as much as with plain FSDP2.
#
# ## CPU offload: what stays on the card?
#
# `CPUOffloadPolicy` keeps the shards of weights, gradients and states on the host, and runs the
# update there. For each gather a rank first copies its shard to the card. The next table is
# emulated for an A10, for one of four ranks and a model four times as wide as ours
# (`course/recorded/make/fsdp_offload.py`).
#
# **Predict.** Without offload the card holds about 1 P between steps (4 P over four ranks), and
# 1.5 P at the peak with checkpointing. What is that peak with offload, in P?

# %% id="guess-offload"
guess = None

# %% id="offload"
rows = pd.read_csv(FOLDER / "fsdp_offload.csv")
peak = (rows.peak / rows.weights)[rows.offload & rows.checkpoint].item()
print(f"offloaded, checkpointed: {peak:.2f} P{beside(guess, peak)}")
table = rows[["offload", "checkpoint"]].assign(
    **{
        "between steps, P": rows.between / rows.weights,
        "peak, P": rows.peak / rows.weights,
    }
)
table.round(2)

# %% [markdown] id="offload-read"
# All 4/N P are now on the host. The card holds only the gathered blocks, their gradients and the
# activations, so more ranks don't lower its peak any further. Prime Intellect measured Nemotron
# Super with 131k tokens on cards of 139.8 GiB. With offload it took 79.8 GiB, and without offload
# it ran out of memory ([prime-rl#3052](https://github.com/PrimeIntellect-ai/prime-rl/pull/3052)).
#
# But offload takes time: the update runs on the CPU, and shards are copied over the bus. In each
# step, a rank's shard of the weights is copied to the card twice, and its gradients back once.
#
# ## On paper
#
# **1.** A model of 120 billion weights trains in float32 on 16 cards. How many GiB do the shards of
# weights and gradients together take per card?
#
# <details><summary>Answer</summary>
#
# $120 \cdot 10^9 \cdot 8 / 16 = 60 \cdot 10^9$ bytes, or 55.9 GiB.
# </details>
#
# **2.** A model's weights take 14 GB, and it trains on 16 machines of 8 cards. How many GB does a
# rank send between machines per step of HSDP?
#
# <details><summary>Answer</summary>
#
# $2 \cdot \frac{15}{16} \cdot \frac{14}{8}$ GB, or 3.3 GB. (In a ring over all 128 cards, it would
# be 41.7 GB.)
# </details>
#
# ## What you can now do
#
# - Read from a figure when a rank holds which weights.
# - Explain why frozen weights raised an error under a checkpoint, and write hooks that avoid it.
# - Choose between FSDP2, HSDP and CPU offload by what they hold and send.
