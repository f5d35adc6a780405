# %% [markdown] id="title"
# # The MLP in tiles
#
# Every block is checkpointed, and the loss is computed in chunks (chapter 10d). Activations now
# peak while a block is recomputed, and more than half of that block is its MLP. An MLP processes
# each token independently, so you can compute it for one *tile* of tokens at a time. You write such
# an MLP, and see how a public trainer got it wrong.
#
# No lab and no later chapter needs this companion.
#
# **Budget:** 45 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from tutorial_lib import blanks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.units import GIB, MIB

torch.set_num_threads(1)  # sums in one order


def one_block():
    """One block of Llama-3-8B, with its last norm, in bfloat16."""
    sizes = {"num_hidden_layers": 1, "vocab_size": 8, "dtype": torch.bfloat16}
    return published.build("llama-3-8b", device="cpu", **sizes).model


# %% [markdown] id="share-text"
# ## What is in a recomputed block?
#
# Llama-3-8B's MLP is 3.5 times as wide as the model, and keeps four tensors of that width: the
# gate, the activated gate, the up projection, and the product of the last two.
#
# **Predict.** What percentage of a block's saved bytes does its MLP keep?

# %% id="guess-share"
guess = None  # %


# %% id="share"
def kept_by(part, tokens=8192):
    """Predict what a block of Llama-3-8B, or its MLP, keeps for backward."""
    with memory.predicting():
        body = one_block()
        rows = torch.randn(1, tokens, 4096, dtype=torch.bfloat16, requires_grad=True)
        ways = {
            "block": lambda: body(inputs_embeds=rows).last_hidden_state,
            "MLP": lambda: body.layers[0].mlp(rows),
        }
        return memory.saved(ways[part], params_of=body).num_bytes


block, mlp = kept_by("block"), kept_by("MLP")
share = 100 * mlp / block
print(f"block: {block / GIB:.2f} GiB, MLP: {mlp / GIB:.2f} GiB")
print(f"the MLP keeps {share:.0f} %{beside(guess, share)}")

# %% [markdown] id="tiled-text"
# ## Accumulation inside a layer
#
# Forward computes each tile's result without a graph, and keeps only `x`. Backward recomputes each
# tile with a graph, and backpropagates through it. A weight's gradient is a *sum* over tokens, so
# the tiles' gradients add up.
#
# The tensors in `stand_ins` share the weights' memory but have their own `.grad`, where autograd
# adds up the tiles' gradients. So each weight itself gets exactly one gradient per backward, at the
# end. PyTorch's `DistributedDataParallel` (DDP) needs that.
#
# **Write.** The rest of `backward`. `rows.detach().requires_grad_()` begins a new graph. Build the
# graph inside `with torch.enable_grad():`, because gradients are off in `backward`.
# `functional_call(ctx.mlp, stand_ins, (rows,))` runs the MLP with the stand-ins. On each tile's
# result, call `out.backward(...)` with the tile's rows of `slope`, the gradient with respect to the
# whole result. Then write the tile's `rows.grad` into `of_x`, the gradient of `x`.


# %% id="tiled"
class Tiled(torch.autograd.Function):
    """An MLP, `size` tokens at a time; `x` is `(tokens, width)`."""

    @staticmethod
    def forward(ctx, mlp, size, x, *weights):
        ctx.mlp, ctx.size = mlp, size
        ctx.save_for_backward(x, *weights)
        return torch.cat([mlp(rows) for rows in x.split(size)])

    @staticmethod
    def backward(ctx, slope):
        x, *weights = ctx.saved_tensors
        names = [name for name, _ in ctx.mlp.named_parameters()]
        copies = [weight.detach().requires_grad_() for weight in weights]
        stand_ins, of_x = dict(zip(names, copies, strict=True)), torch.zeros_like(x)
        ### BEGIN SOLUTION
        for start in range(0, len(x), ctx.size):
            tile = slice(start, start + ctx.size)
            rows = x[tile].detach().requires_grad_()
            with torch.enable_grad():
                out = functional_call(ctx.mlp, stand_ins, (rows,))
            out.backward(slope[tile])
            of_x[tile] = rows.grad
        ### END SOLUTION
        return None, None, of_x, *(weight.grad for weight in copies)


# %% id="check-tiled"
# @title Check: run this cell
@blanks.check("Tiled", "fill `of_x`, and `.grad` of each stand-in")
def is_tiled():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)).double()
    x, slope = torch.randn(2, 20, 8).double()
    x, weights, made = x.requires_grad_(), [*mlp.parameters()], []
    wanted = torch.autograd.grad(mlp(x), (x, *weights), slope)
    hook = mlp.register_forward_hook(lambda _, given, __: made.append(len(given[0])))
    y = Tiled.apply(mlp, 8, x, *weights)
    made.clear()
    with memory.watch() as report:
        seen = torch.autograd.grad(y, (x, *weights), slope, materialize_grads=True)
    hook.remove()
    assert made, "Backward doesn't recompute any tile."
    assert made == [8, 8, 4], f"Backward makes tiles of {made} tokens, not [8, 8, 4]."
    assert all(weight.grad is None for weight in weights), (
        "Backward must not touch the weights' `.grad`: return the sums."
    )
    for name, mine, right in zip(("x", "a weight"), seen, wanted, strict=False):
        times = ((mine * right).sum() / right.square().sum()).item()
        assert torch.allclose(mine, right), (
            f"The gradient of {name} is {times:.2f} times the right one, or points "
            f"elsewhere: {((mine - right).norm() / right.norm()).item():.0%} off."
        )
    most = report.peak_bytes - report.baseline_bytes
    assert most < 40_000, (
        f"Backward takes {most} bytes at its peak: does it keep finished tiles?"
    )


# %% id="use"
class InTiles(nn.Module):
    """An MLP `(batch, tokens, width)` in tiles of `size` tokens."""

    def __init__(self, mlp, size):
        super().__init__()
        self.mlp, self.size = mlp, size

    def forward(self, x):
        flat = x.flatten(0, 1)
        y = Tiled.apply(self.mlp, self.size, flat, *self.mlp.parameters())
        return y.view_as(x)


class InChunks(InTiles):
    """The same, with PyTorch's checkpoint."""

    def forward(self, x):
        parts = x.flatten(0, 1).split(self.size)
        made = [checkpoint(self.mlp, rows, use_reentrant=False) for rows in parts]
        return torch.cat(made).view_as(x)


# %% [markdown] id="liger-text"
# ## Against a B200
#
# Liger Kernel publishes the memory of a plain and a tiled MLP with Llama-3-8B's sizes, measured on
# a B200. Both run on two sequences in bfloat16; the tiled one uses four tiles. The previous step's
# gradients are still in memory.
#
# **Predict.** At 2 x 8192 tokens the plain MLP peaks at 4384 MiB on the B200. At how many MiB does
# the tiled one peak?

# %% id="guess-tiles"
guess = None  # MiB

# %% id="liger"
# linkedin/Liger-Kernel@7a12e09, benchmark/data/all_benchmark_data_cutile.csv,
# 2026-06-26, tiled_swiglu, "full": tokens; MiB and ms of huggingface, of liger_tiled
LIGER = {1024: (1264, 1.68, 988, 3.15), 2048: (1680, 3.39, 1128, 5.25)}
LIGER |= {4096: (2560, 6.34, 1408, 9.71), 8192: (4384, 13.5, 1968, 18.81)}


def peak(kind, tokens, keep_graph=False):
    """Predict the peak of forward and backward, in MiB."""

    def make_step():
        mlp = LlamaMLP(
            LlamaConfig(hidden_size=4096, intermediate_size=14336)
        ).bfloat16()
        run = kind(mlp, tokens // 2) if kind else mlp  # of 2 x tokens: four tiles
        x = torch.randn(2, tokens, 4096, dtype=torch.bfloat16, requires_grad=True)

        def step():
            y = run(x)
            y.backward(torch.randn_like(y), retain_graph=keep_graph)

        return step, mlp, None

    # From 2.15 on, a matmul's own workspace is in the peak too, 8 MiB on an A100.
    return round(memory.predict(make_step, release="2.13").peak_bytes / MIB)


table = {}
for tokens, (whole, slow, tiled, slower) in LIGER.items():
    kept, mine = peak(None, tokens, keep_graph=True), peak(InTiles, tokens)
    ours = kept, peak(None, tokens), peak(InChunks, tokens), mine
    table[tokens] = [whole, *ours, tiled, f"{slower / slow:.2f}"]
print(f"four tiles: {tiled} MiB on the B200{beside(guess, tiled)}")
columns = ["plain, B200", "plain, graph kept", "plain", "checkpoints", "InTiles"]
columns += ["tiled, B200", "time, times"]
print("MiB by tokens per sequence; time is the B200's, tiled over plain")
pd.DataFrame.from_dict(table, orient="index", columns=columns).T

# %% [markdown] id="liger-read"
# Rows 2 to 5 are predicted; the others were measured on the B200.
#
# - *Plain, graph kept* is 64 MiB below *plain, B200* at each length; the difference is cuBLAS's
#   workspace. Liger's benchmark keeps the graph after backward (`retain_graph=True`). Training
#   frees it, as in row *plain*, so in training tiles save less.
# - `InTiles` holds a separate sum of gradients. Liger instead lets each tile add to the weights'
#   own `.grad`, but then DDP raises an error: "Expected to mark a variable ready only once"
#   ([kernels-community#1083](https://github.com/huggingface/kernels-community/pull/1083)).
# - With few tokens, the separate sum is larger than what tiles save, so `InTiles` takes *more*
#   memory than the plain MLP.
#
# The last row is the tiled MLP's time on the B200, as a multiple of the plain MLP's. Tiles run
# forward's three matmuls twice, so the nine matmuls of forward and backward become twelve. Small
# tiles also use the GPU poorly.
#
# ## What tiles save in a whole block
#
# We checkpoint one block of Llama-3-8B, with and without tiles, at four sequence lengths. The next
# figure predicts how much memory forward and backward need besides the weights.


# %% id="gives"
def added(tokens, size=None):
    def make_step():
        body = one_block()
        if size:
            body.layers[0].mlp = InTiles(body.layers[0].mlp, size)
        rows = torch.randn(1, tokens, 4096, dtype=torch.bfloat16, requires_grad=True)

        def step():
            y = checkpoint(
                lambda x: body(inputs_embeds=x).last_hidden_state,
                rows,
                use_reentrant=False,
            )
            y.backward(torch.ones_like(y))

        return step, body, None

    report = memory.predict(make_step)
    return report.peak_bytes - report.baseline_bytes


curves = {"plain": {}, "tiles of 4096 tokens": {}}
for tokens in (8192, 16384, 32768, 65536):
    curves["plain"][tokens] = added(tokens)
    curves["tiles of 4096 tokens"][tokens] = added(tokens, 4096)
plots.growth(
    curves, xlabel="tokens", title="A recomputed block of Llama-3-8B, predicted"
)

# %% [markdown] id="fault-text"
# ## How to get it wrong
#
# In a public trainer, each tile put a hook on every weight. The hook added the tile's gradient,
# divided by the number of tiles, to a sum. No hook was removed before the next tile, so the hooks
# of earlier tiles ran again and added the new tile's gradient too. And the last hook put the sum
# into `.grad` and also returned it, so autograd added the sum again.
#
# The loss fell anyway. The fix, from 2026, reports that gradients were 2 to 2.5 times too large
# ([axolotl#3666](https://github.com/axolotl-ai-cloud/axolotl/pull/3666)). The next cells run a
# short version of the faulty code.


# %% id="fault"
def faulty(mlp, x, slope, tiles):
    sums = {
        w: torch.zeros_like(w) if w.grad is None else w.grad for w in mlp.parameters()
    }
    hooks = []
    for weight in sums:
        weight.grad = None

    def add(weight, last, grad):
        sums[weight] += grad / tiles
        if last:
            weight.grad = sums[weight]
        return sums[weight] if last else None

    pairs = zip(x.chunk(tiles), slope.chunk(tiles), strict=True)
    for number, (rows, theirs) in enumerate(pairs, start=1):
        for weight in sums:
            hooks.append(weight.register_hook(partial(add, weight, number == tiles)))
        mlp(rows).backward(theirs)
    for hook in hooks:
        hook.remove()


# %% id="fault-table"
def times_right(tiles, micro_batches):
    """Return the faulty gradient's size, and how far off its direction is."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).double()
    pairs = torch.randn(micro_batches, 2, 256, 32).double()
    weights, right = [*mlp.parameters()], 0
    for x, slope in pairs:
        grads = torch.autograd.grad(mlp(x), weights, slope)
        right = right + torch.cat([g.flatten() for g in grads])
        faulty(mlp, x, slope, tiles)
    seen = torch.cat([w.grad.flatten() for w in weights])
    times = seen @ right / right.square().sum()
    return times.item(), ((seen / times - right).norm() / right.norm()).item()


rows = {}
for tiles in (1, 2, 4, 8):
    cells = (times_right(tiles, number) for number in (1, 2, 4))
    rows[f"{tiles} tiles"] = [f"{times:.1f} times, {off:.0%}" for times, off in cells]
print("size of the gradient, and how far its direction is off")
pd.DataFrame.from_dict(
    rows,
    orient="index",
    columns=["1 micro-batch", "2 micro-batches", "4 micro-batches"],
)

# %% [markdown] id="fault-read"
# No single factor describes the error. Each micro-batch doubles the gradient accumulated so far, so
# the first micro-batches count most. A later tile is added by more hooks, so it counts more, and
# the direction is wrong even with one micro-batch. AdamW divides by the gradient's size, so the
# loss curve hardly shows the error. To find it, compare the gradients with the plain layer's.
#
# DeepSpeed's tiled loss, `TiledFusedLogitsLoss`, writes the head's gradient into `.grad` during
# forward. So `(loss / 4).backward()` divides only the hidden rows' gradient. The head's gradient
# stays four times too large, without a warning (DeepSpeed 0.19.8). Instead, divide inside the loss
# function that you pass in.

# %% [markdown] id="on-paper"
# ## On paper
#
# **1.** An MLP of width 4096 and inner width 14336 keeps its input and four tensors of the inner
# width, in bfloat16. How much memory do these five take for 32768 tokens, and for a tile of 4096?
#
# <details><summary>Answer</summary>
#
# $(4096 + 4 \cdot 14336) \cdot 2$ bytes are 120 KiB per token. 32768 tokens take 3.75 GiB, and a
# tile takes 480 MiB.
# </details>
#
# **2.** A block is checkpointed, and its MLP is computed in tiles. How often does the MLP's forward
# run in a step?
#
# <details><summary>Answer</summary>
#
# Three times: in forward, in the block's recomputation, and tile by tile in backward.
# </details>
#
# **3.** Can attention be computed in tiles of tokens in the same way?
#
# <details><summary>Answer</summary>
#
# Its projections can. The scores can't, since each token attends to others.
# </details>
#
# ## What you can now do
#
# - Say where the peak is after checkpoints and a chunked loss, and lower it with tiles.
# - Add up gradients inside a layer, and prove that they match the plain layer's.
