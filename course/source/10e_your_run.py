# %% [markdown] id="title"
# # Your run: the whole chart, and a recipe
#
# In the core chapters' *Your run* sections, you rewrote `course/train/train.py` one function at a
# time. One chart shows what each rewrite saved, and you get the finished script. Then you complete
# a script that fine-tunes a Llama with five levers. No lab or later chapter needs this companion.
#
# **Budget:** 20 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import json
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, data, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.units import GIB

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import states
import your_run

torch.set_num_threads(1)  # sums in one order

# %% [markdown] id="waterfall-text"
# ## The waterfall
#
# Each bar adds one chapter's lever to the update of `train.py`. The seconds are predicted by a
# float32 roofline (TF32 on an A100 and an H100). The CPU's launches are counted too, but here the
# arithmetic hides them.
#
# **Predict.** Weights, gradients and AdamW's two states together take 5.3 GiB, four times the
# weights alone. How many GiB does the update take at its peak, with all levers?

# %% id="guess-waterfall"
guess = None  # GiB

# %% id="waterfall"
bars = json.loads(your_run.BARS.read_text("utf-8"))
gib = sum(bars["14"]["at_peak"].values()) / GIB
print(f"all levers: {gib:.1f} GiB{beside(guess, gib)}")
your_run.draw(bars)

# %% [markdown] id="waterfall-read"
# Most of what is left is weights, gradients and states. 06c's plan spends memory to save time. So
# does 07's policy, which replaces that plan. 09's lever changes neither memory nor time, but
# corrects the mean when rows end in padding. 13's bar is for one of two cards; the script below
# leaves that lever out. 14's lever, fused AdamW, frees no memory at the peak and only saves time.
#
# With all levers the update takes longer than without any, since backward recomputes most of each
# block, and the logits.

# %% id="measure"
# NBVAL_IGNORE_OUTPUT
functions = states.functions_after("14")
if device.has_gpu():
    your_run.measure(functions)

# %% [markdown] id="script-out-text"
# ## The script
#
# The next cell writes `my_train.py` beside this notebook: `train.py` with the chapters' functions
# in it. Then it trains the small twin with the script. On a GPU, `python my_train.py` trains the
# whole model. To use your own function from a chapter, add `to="my_train.py"` to that chapter's
# `your_run.apply`. To redo chapter 08, run `python course/train/states.py 07 my_train.py`. That
# writes the script's state after 07, and keeps yours as `my_train.before.py`.

# %% id="script-out"
states.write("my_train.py", states.script(functions))
print(states.trial("my_train.py"))

# %% [markdown] id="recipe-text"
# ## A recipe for fine-tuning
#
# `course/train/qlora.py` fine-tunes a model of Llama 3.2 3B's size on a 16 GiB card. Each update
# takes four texts, 8,192 tokens in all. The script has five levers:
#
# - LoRA trains small matrices next to *frozen* 4-bit weights (01b).
# - The texts are *packed* into one row (08b).
# - The loss is computed in chunks (10d).
# - Each block is checkpointed.
# - The blocks' inputs are offloaded to the host (07d).
#
# `--twin` runs a small version on a CPU. `--without packing`, for example, leaves packing out.
#
# `planned.from_4_bits(*stored)` dequantizes a layer's weight. Without a checkpoint, autograd would
# keep every layer's dequantized weight until backward.
#
# **Write.** `four_bits`, about four lines. Use a checkpoint, so that backward dequantizes the
# weight again. `stored` is what `planned.to_4_bits(weight)` returns, plus the weight's shape. Cast
# the dequantized weight to x's dtype.

# %% id="recipe"
import planned
import qlora


# %% id="four-bits"
def four_bits(x, *stored):
    """Return `F.linear` of x and the weight; keep x and `stored` for backward."""

    ### BEGIN SOLUTION
    def compute(x):
        return F.linear(x, planned.from_4_bits(*stored).to(x.dtype))

    return checkpoint(compute, x, use_reentrant=False)
    ### END SOLUTION


# %% id="check-four-bits"
# @title Check: run this cell
@blanks.check("four_bits", "return the layer's output")
def keeps_no_weight():
    torch.manual_seed(0)
    shape, x = (96, 128), torch.randn(2, 128, requires_grad=True)
    stored = (*planned.to_4_bits(torch.randn(shape)), shape)
    weight = planned.from_4_bits(*stored)
    with memory.watch() as report:
        out = four_bits(x, *stored)
    new = [life for life in report.timeline if not life.died and life.born]
    saved = sum(life.num_bytes for life in new) - out.nbytes
    assert torch.allclose(out, F.linear(x, weight), atol=1e-5), (
        "The output is not F.linear(x, weight)."
    )
    assert saved < weight.nbytes / 8, (
        f"{saved} bytes wait for backward, besides `stored` and the output."
    )
    (seen,) = torch.autograd.grad(out.square().sum(), x)
    (right,) = torch.autograd.grad(F.linear(x, weight).square().sum(), x)
    assert torch.allclose(seen, right, rtol=1e-3), "The gradient of x is wrong."
    half = four_bits(x.bfloat16(), *stored).dtype
    assert half == torch.bfloat16, f"For x in bfloat16, the output is {half}."


# %% [markdown] id="recipe-predict"
# The next two cells leave out one lever at a time. The first compares the twin's losses; the second
# predicts the full-size model's peak on a GPU.
#
# **Predict.** With all five levers the peak is below 7 GiB. How many GiB is it if only the loss's
# chunks are left out? The vocabulary has 128,256 tokens.

# %% id="guess-recipe"
guess = None  # GiB


# %% id="recipe-losses"
# @title The twin's losses: run this cell; open it to look
def losses_without(lever):
    levers = {*qlora.LEVERS} - {lever}
    rows = data.encode(data.text())[:120].split([80, 20, 12, 8])
    model, optimizer, scaler = qlora.make(qlora.TWIN, levers)
    step = partial(qlora.update, rows, levers, model, optimizer, scaler)
    return torch.stack([step() for _ in range(3)])


with patch.object(qlora, "linear_of_4_bits", four_bits):
    wanted = losses_without(None)
    near = [
        torch.allclose(losses_without(lever), wanted, atol=1e-4)
        for lever in qlora.LEVERS
    ]
print(f"the same three losses without one lever: {sum(near)} of {len(near)}")

# %% id="recipe-peaks"
reports = {}
for lever in ("", *qlora.LEVERS):
    with patch.object(qlora, "linear_of_4_bits", four_bits):
        # From 2.15 on, three peaks also have an 8 MiB cuBLAS workspace.
        report = memory.predict(partial(qlora.make_step, lever), release="2.13")
    reports[f"without {lever}" if lever else "all five"] = report
gib = reports["without chunks"].peak_bytes / GIB
print(f"without chunks: {gib:.1f} GiB{beside(guess, gib)}")
ledgers = {name: report.at_peak for name, report in reports.items()}
title = "One update of 8,192 tokens, predicted"
plots.ledger_bars(ledgers, title=title, cards_gib=(16, 24), predicted=[*ledgers])

# %% [markdown] id="recipe-read"
# Without checkpoints the step needs a data-center card. Without chunks it nearly fills 16 GiB.
# Without packing, or without 4-bit weights, it takes nearly twice as much as with all five levers.
# Offload saves least, since the inputs of all 28 blocks together are about half as large as one
# recomputed block.

# %% [markdown] id="published-text"
# ### Against published runs
#
# LitGPT [published the peaks](https://github.com/Lightning-AI/litgpt/tree/main/config_hub/finetune)
# of its own recipes: LoRA on 16-bit weights, and LoRA on 4-bit weights with twice the micro-batch,
# both without checkpoints. The table compares those peaks with our predictions, in GB. `off` is the
# prediction's error in percent.

# %% id="published"
runs = pd.read_csv(your_run.BARS.parents[1] / "recorded/whole_runs.csv", index_col="id")
runs = runs.filter(like="litc_llama-3p2", axis=0)[["published", "predicted"]] / 1e9
runs.assign(off=100 * (runs.predicted / runs.published - 1)).round(1)


# %% id="kept-by-attribute"
# @title What `ctx` keeps after backward: run this cell; open it to look
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, how):
        ctx.weight = weight
        if how == "as an attribute":
            ctx.x = x
        else:
            ctx.save_for_backward(x)
        return x @ weight

    @staticmethod
    def backward(ctx, slope):
        return slope @ ctx.weight.T, None, None


for how in ("by save_for_backward", "as an attribute"):
    leaf, weight = torch.ones(256, 64, requires_grad=True), torch.ones(64, 64)
    with memory.watch() as report:
        loss = Product.apply(leaf * 2, weight, how).sum()
        loss.backward()
    alive = [life for life in report.timeline if life.born and not life.died]
    held = sum(life.num_bytes for life in alive) - leaf.grad.nbytes - loss.nbytes
    print(f"x kept {how}: {held // leaf.nbytes} of 1 is left after backward")

# %% [markdown] id="published-read"
# LitGPT used bitsandbytes 0.42, whose 4-bit layer wasted memory in three ways. Our `qlora`
# predictions include this waste; without it they would be a third too low.
#
# - The layer kept its input, though a frozen layer's backward doesn't need it
#   ([fixed](https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1270) in July 2024).
# - It kept the input as an attribute of `ctx`. As the cell above shows, backward frees what
#   `save_for_backward` stored, but not an attribute, which lives as long as the graph. The loop's
#   `loss` and `logits` kept the graph until the next forward had ended, so two micro-batches'
#   inputs were in memory at once.
# - It dequantized a weight to float16, then copied it to bfloat16.
#
# For the 3B model, the inputs and the largest copy take:

# %% id="published-counted"
inputs = 28 * 1024 * (3 * 3072 + 8192) * 2  # layers, tokens, widths, bytes
copy = 128256 * 3072 * 2  # of the head's weight
print(f"inputs: 2 x {inputs / 1e9:.1f} GB, copy: {copy / 1e9:.1f} GB")


# %% [markdown] id="on-paper"
# ## On paper
#
# **1.** In each of 24 blocks, attention's result has 12 x 1024 x 1024 elements (rows x tokens x
# width). How much memory do all 24 results take in float32? And how much with micro-batches of 4
# rows?
#
# <details><summary>Answer</summary>
#
# One result takes $12 \cdot 2^{20} \cdot 4$ bytes, or 48 MiB, and all 24 take 1.125 GiB. With
# micro-batches of 4 rows they take a third, 384 MiB.
# </details>
#
# **2.** The vocabulary has 50,257 tokens. How much memory do the float32 logits of 12 x 1024 tokens
# take, and how much do those of a 512-token chunk?
#
# <details><summary>Answer</summary>
#
# The logits take $12288 \cdot 50257 \cdot 4$ bytes, or 2.3 GiB. A chunk's logits take
# $512 \cdot 50257 \cdot 4$ bytes, or 98 MiB.
# </details>
#
# **3.** With all levers, `train.py` doesn't fit on a 4 GiB card. What would you change next?
#
# <details><summary>Answer</summary>
#
# The weights, gradients and states alone take more than 4 GiB: four times 1.3 GiB. So use 8-bit
# states (01b), 16-bit weights (08c) or LoRA.
# </details>
#
# ## What you can now do
#
# - Say what each lever frees in a training script, and what it costs.
# - Fine-tune with LoRA on 4-bit weights, and keep dequantized weights out of memory.
