# %% [markdown] id="title"
# # Your run: one script, lever by lever
#
# `course/train/train.py` trains a GPT of GPT-2 medium's shape on text, in float32, as most people
# would write it. One update needs a 32 GiB card. In this companion you rewrite three of the
# script's functions, until an 8 GiB card is enough. Each function adds one *lever*: checkpoints
# (chapter 05), micro-batches (08) or a chunked loss (10d).
#
# After each lever, a small twin of the model shows that the training is the same, and a prediction
# of the full-size update adds a bar to a chart. At the end, you fine-tune a Llama with five levers
# at once. No lab and no later chapter needs this companion.
#
# **Budget:** 50 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import inspect
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, data, device, memory, plots
from tutorial_lib.checks import assert_same_training
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.models.gpt import GPT
from tutorial_lib.units import GIB

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import states
import train

torch.set_num_threads(1)  # sums in one order

# %% [markdown] id="script-text"
# ## The script
#
# `python course/train/train.py` trains the model, or with `--twin` a small one. The cell below
# prints three of its functions. Two more matter: `embedded(model, tokens)` adds the two embeddings,
# and `summed(head, hidden, targets)` computes the tokens' summed loss from `head(hidden)`.

# %% id="script"
for function in (train.hidden_of, train.loss_of, train.update):
    print(inspect.getsource(function))

# %% [markdown] id="predict-text"
# Parameters, gradients and AdamW's two states together take four times the weights' memory. The
# rest depends on the batch.
#
# **Predict.** The model has 24 blocks of width 1024, a vocabulary of 50257, and 12 sequences of
# 1024 tokens. How many GiB does one update of the script take?

# %% id="guess-plain"
guess = None  # GiB

# %% [markdown] id="costs-text"
# `levers` holds the three functions; at first they are the script's own. `costs` predicts one
# full-size update: its bytes, its FLOPs, and (from a roofline) its seconds on three cards.

# %% id="costs"
CARDS = {
    "T4": "Tesla T4",
    "A100": "NVIDIA A100-SXM4-80GB",
    "H100": "NVIDIA H100 80GB HBM3",
}
levers = {name: getattr(train, name) for name in ("hidden_of", "loss_of", "update")}
bars, table = {}, {}


def make_step():
    model, optimizer = train.make(train.MEDIUM)
    batch = torch.zeros(train.BATCH, train.MEDIUM.seq_len, dtype=torch.long)
    return partial(train.update, model, optimizer, batch), model, optimizer


def costs(name):
    lines = {card: Roofline(Speed.of(known)) for card, known in CARDS.items()}
    with patch.multiple(train, **levers):
        report = memory.predict(make_step)
        with (
            memory.predicting(),
            memory.flop_counter() as counter,
            ExitStack() as modes,
        ):
            step, *_ = make_step()
            for line in lines.values():
                modes.enter_context(line)
            step()
    bars[name] = report.at_peak
    seconds = {f"s, {card}": round(line.seconds, 2) for card, line in lines.items()}
    gib, tera = report.peak_bytes / GIB, counter.get_total_flops() / 1e12
    table[name] = {"GiB": round(gib, 2), "TFLOP": round(tera, 1)} | seconds
    return gib


# %% id="plain"
gib = costs("train.py")
print(f"train.py: {gib:.1f} GiB{beside(guess, gib)}")

# %% [markdown] id="twin-text"
# The twin has the same code, but only three small blocks. `same_as` trains it twice, once with the
# functions from before a lever and once with the new ones. It compares losses, gradients, weights
# and states.

# %% id="twin"
tokens = next(data.text_batches(train.BATCH, train.TWIN.seq_len))  # (batch, sequence)


def twin_step(functions, model, optimizer):
    with patch.multiple(train, **functions):
        return train.update(model, optimizer, tokens)


def same_as(before, **choices):
    steps = partial(twin_step, before), partial(twin_step, levers)
    assert_same_training(*steps, make=partial(train.make, train.TWIN), **choices)


# %% [markdown] id="hidden-of-text"
# ## Lever 1: a checkpoint around each block
#
# **Write.** `hidden_of`, with PyTorch's `checkpoint` (`use_reentrant=False`) around each block.
# Call the script's functions as `train.embedded` and so on.


# %% id="hidden-of"
def hidden_of(model, tokens):
    """What the last norm gives for each token; of a block only its input is kept."""
    ### BEGIN SOLUTION
    x = train.embedded(model, tokens)
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return model.norm(x)
    ### END SOLUTION


# %% id="check-hidden-of"
# @title Check: run this cell
@blanks.check("hidden_of", "return the last norm's output for each token")
def checkpoints_each_block():
    (model, _), ran = train.make(train.TWIN), []
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, n=number: ran.append(n))
    seen, wanted = hidden_of(model, tokens), train.hidden_of(model, tokens)
    assert seen.shape == wanted.shape, f"Its shape is {[*seen.shape]}."
    assert torch.equal(seen, wanted), "The result is not the script's."
    ran.clear()
    seen.square().sum().backward()
    assert ran, "Backward runs no block again: nothing is checkpointed."
    assert ran == [2, 1, 0], (
        f"Backward runs the blocks {ran} again: a checkpoint each makes it 2, 1, 0."
    )


# %% id="lever-checkpoints"
before = dict(levers)
levers["hidden_of"] = hidden_of
same_as(before, bitwise=True)
print(f"checkpoints: {costs('checkpoints'):.1f} GiB")

# %% [markdown] id="update-text"
# Now the activations are the blocks' inputs, and the logits with their gradient. Logits are the
# larger part: 12 x 1024 rows of 50257 values.
#
# ## Lever 2: micro-batches
#
# **Write.** `update`, in micro-batches of `micro_batch` sequences, which divide the batch evenly.
# Each micro-batch has the same number of tokens that count, so the mean of their losses is the
# batch's loss.
#
# **Predict.** How many GiB does the update take with three micro-batches of 4?

# %% id="guess-micro"
guess = None  # GiB


# %% id="update"
def update(model, optimizer, tokens, micro_batch=4):
    """Do one update in micro-batches; return the mean loss, a tensor without history.

    `train.loss_of(model, part)` is the mean loss of a part.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    parts, total = tokens.split(micro_batch), 0
    for part in parts:
        loss = train.loss_of(model, part) / len(parts)
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total
    ### END SOLUTION


# %% id="check-update"
# @title Check: run this cell
@blanks.check("update", "return the mean loss, a tensor")
def updates_once():
    (model, optimizer), (twin, other) = (train.make(train.TWIN) for _ in range(2))
    sizes, back, steps, loss_of = [], [], [], train.loss_of

    def counted(model, part):
        sizes.append(len(part))
        return loss_of(model, part)

    for p in model.parameters():
        p.grad = torch.full_like(p, 1e9)  # of an update before
    model.norm.weight.register_hook(lambda _: back.append(len(sizes)))
    optimizer.register_step_post_hook(lambda *_: steps.append(len(sizes)))
    with patch.object(train, "loss_of", counted):
        loss = update(model, optimizer, tokens, micro_batch=3)
    wanted = train.update(twin, other, tokens)
    assert sizes == 4 * [3], f"12 sequences by 3: the losses are of {sizes}, not 3s."
    assert back == [1, 2, 3, 4], (
        "Go backward after each loss: else all graphs are in memory."
    )
    assert steps == [4], f"The optimizer steps after losses {steps}, not once, after 4."
    assert all(p.grad is not None for p in model.parameters()), (
        "`.grad` is empty at the end: clear it at the beginning."
    )
    seen, true = (
        torch.cat([p.grad.flatten() for p in gpt.parameters()]) for gpt in (model, twin)
    )
    assert seen.norm() < 1e6, (
        "The gradient of the update before is in the sum: clear it."
    )
    times = (seen @ true / true.square().sum()).item()
    assert abs(times - 1) < 1e-3, (
        f"The gradient is {times:.2f} times the whole batch's."
    )
    assert not loss.requires_grad, "The loss that you return has a graph: detach it."
    assert abs(loss - wanted) < 1e-4, f"The mean loss is {wanted:.3f}, not {loss:.3f}."


# %% id="lever-micro-batches"
before = dict(levers)
levers["update"] = update
same_as(before)
gib = costs("micro-batches")
print(f"micro-batches: {gib:.1f} GiB{beside(guess, gib)}")

# %% [markdown] id="loss-of-text"
# ## Lever 3: the loss in chunks
#
# Four sequences still need 4096 x 50257 logits, their gradient, and an intermediate copy.
#
# **Write.** The rest of `loss_of`. Sum the loss over chunks of `size` tokens, with a checkpoint
# around each `train.summed`. Then divide by the number of targets that count.


# %% id="loss-of"
def loss_of(model, tokens, size=512):
    """The mean loss of guessing each token's next one, `size` tokens at a time."""
    targets = F.pad(tokens[:, 1:], (0, 1), value=-100).flatten()  # the last has no next
    hidden = train.hidden_of(model, tokens).flatten(0, 1)
    ### BEGIN SOLUTION
    total = 0
    for rows, theirs in zip(hidden.split(size), targets.split(size), strict=True):
        summed = checkpoint(train.summed, model.head, rows, theirs, use_reentrant=False)
        total = total + summed
    return total / (targets >= 0).sum()
    ### END SOLUTION


# %% id="check-loss-of"
# @title Check: run this cell
@blanks.check("loss_of", "return the mean loss, a tensor")
def loss_is_in_chunks():
    (model, _), sizes, summed = train.make(train.TWIN), [], train.summed

    def counted(head, rows, targets):
        sizes.append(len(rows))
        return summed(head, rows, targets)

    wanted = train.loss_of(model, tokens)
    (true,) = torch.autograd.grad(wanted, model.head.weight)
    with patch.object(train, "summed", counted):
        loss = loss_of(model, tokens, size=300)
        first = list(sizes)
        sizes.clear()
        (seen,) = torch.autograd.grad(loss, model.head.weight)
    assert first == [300, 300, 168], f"768 tokens by 300: the chunks have {first}."
    assert torch.allclose(loss, wanted), f"The mean is {wanted:.4f}, not {loss:.4f}."
    assert sizes == [168, 300, 300], (
        f"Backward makes the logits of {sizes} tokens again, not of each chunk."
    )
    assert torch.allclose(seen, true, atol=1e-6), "The head's gradient is another."


# %% id="lever-chunks"
before = dict(levers)
levers["loss_of"] = loss_of
same_as(before)
print(f"chunks: {costs('chunks'):.1f} GiB")

# %% [markdown] id="fused-text"
# ## The update itself
#
# The loss is no longer the peak; the update is. On a GPU, PyTorch's AdamW updates all weights at
# once (`foreach`), so its temporaries are as large as all weights. A fused kernel makes no
# temporaries.


# %% id="fused"
def make(config):
    torch.manual_seed(0)
    model = GPT(config)
    return model, AdamW(model.parameters(), lr=3e-4, fused=True)


pairs = train.make(train.TWIN), make(train.TWIN)
losses = [[twin_step(levers, *pair).item() for _ in range(3)] for pair in pairs]
same = all(abs(one - other) < 1e-4 for one, other in zip(*losses, strict=True))
levers["make"] = make
print(f"the same three losses: {same}")
print(f"fused AdamW: {costs('fused AdamW'):.1f} GiB")

# %% [markdown] id="waterfall-text"
# ## The waterfall

# %% id="waterfall"
title = "One update of 12 x 1024 tokens, predicted"
plots.ledger_bars(bars, title=title, cards_gib=(8, 16, 24), predicted=[*bars])

# %% id="table"
pd.DataFrame(table).T

# %% [markdown] id="waterfall-read"
# The remaining memory is mostly weights, gradients and states. The other columns show the price of
# the levers: blocks and head run forward twice. The seconds are from a roofline in float32 (with
# TF32 on an A100 and an H100). It ignores launch costs, so small micro-batches look as fast as
# large ones. If you have a GPU, the next cell measures.

# %% id="measure"
# NBVAL_IGNORE_OUTPUT
if device.has_gpu():
    with patch.multiple(train, **levers), torch.device("cuda"):
        step, model, optimizer = make_step()
        report = memory.measure(step, model=model, optimizer=optimizer)
    print(report)

# %% [markdown] id="script-out-text"
# ## Your script
#
# The next cell writes `my_train.py` beside this notebook: `train.py` with your functions in it. It
# trains the twin; on a GPU, run `python my_train.py` for the whole model. If your file stops, the
# error names its line. `python course/train/states.py 08 my_train.py` writes the script as it is
# after chapter 08 (or 05, 10d, 10e), and keeps yours as `my_train.before.py`.

# %% id="script-out"
states.write("my_train.py", levers)
command = [sys.executable, "my_train.py", "--twin"]
ran = subprocess.run(command, capture_output=True, text=True)
print(ran.stderr if ran.returncode else f"{len(ran.stdout.splitlines())} updates")

# %% [markdown] id="recipe-text"
# ## A recipe for fine-tuning
#
# `course/train/qlora.py` fine-tunes a model as large as Llama 3.2 3B on four texts, 8,192 tokens in
# all, on a 16 GiB card. It has five levers. LoRA trains small matrices next to *frozen* 4-bit
# weights (01b). The texts are *packed* into one row (08b). The loss is in chunks. Each block is
# checkpointed, and its input waits on the host (07d). `--twin` is for a CPU, and
# `--without packing`, for example, leaves out a lever.
#
# You write one part of it. `planned.from_4_bits(*stored)` dequantizes a layer's weight. Without a
# checkpoint, autograd would keep every layer's dequantized weight until backward.
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
        f"{saved} bytes wait for backward, beside what `stored` has and the output."
    )
    (seen,) = torch.autograd.grad(out.square().sum(), x)
    (right,) = torch.autograd.grad(F.linear(x, weight).square().sum(), x)
    assert torch.allclose(seen, right, rtol=1e-3), "The gradient by x is wrong."
    half = four_bits(x.bfloat16(), *stored).dtype
    assert half == torch.bfloat16, f"For x in bfloat16 the output is {half}."


# %% [markdown] id="recipe-predict"
# The next cells use all five levers, then leave out one at a time. The first compares the twin's
# losses; the second predicts the full-size peak with a GPU's kernels.
#
# **Predict.** With all five levers the peak is below 7 GiB. How many GiB is it without chunks? The
# vocabulary has 128,256 tokens.

# %% id="guess-recipe"
guess = None  # GiB


# %% id="recipe-losses"
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
print(f"the same three losses without a lever: {sum(near)} of {len(near)}")

# %% id="recipe-peaks"
reports = {}
for lever in ("", *qlora.LEVERS):
    with patch.object(qlora, "linear_of_4_bits", four_bits):
        # From 2.15 on, three peaks have a workspace of cuBLAS too, of 8 MiB.
        report = memory.predict(partial(qlora.make_step, lever), release="2.13")
    reports[f"without {lever}" if lever else "all five"] = report
gib = reports["without chunks"].peak_bytes / GIB
print(f"without chunks: {gib:.1f} GiB{beside(guess, gib)}")
ledgers = {name: report.at_peak for name, report in reports.items()}
title = "One update of 8,192 tokens, predicted"
plots.ledger_bars(ledgers, title=title, cards_gib=(16, 24), predicted=[*ledgers])

# %% [markdown] id="recipe-read"
# Each bar after the first lacks one lever. The levers reduce different parts, so none replaces
# another. Without checkpoints the step needs a data-center card. Without chunks it nearly fills 16
# GiB. Without packing or 4 bits it takes nearly twice as much as with all five. Offload saves
# least, since all 28 boundaries together are only about half of one recomputed block. To learn what
# each lever costs in time, run the script on your card.


# %% [markdown] id="on-paper"
# ## On paper
#
# **1.** A block's input has 12 x 1024 x 1024 elements. How much do the inputs of 24 blocks take in
# float32? And with micro-batches of 4?
#
# <details><summary>Answer</summary>
#
# One input takes $12 \cdot 2^{20} \cdot 4$ bytes, or 48 MiB, and 24 take 1.125 GiB. With
# micro-batches of 4 they take a third, 384 MiB.
# </details>
#
# **2.** How much do the logits of 12 x 1024 tokens take in float32, and how much does a chunk of
# 512?
#
# <details><summary>Answer</summary>
#
# The logits take $12288 \cdot 50257 \cdot 4$ bytes, or 2.3 GiB, and their gradient takes as much
# again. A chunk's logits take $512 \cdot 50257 \cdot 4$ bytes, or 98 MiB.
# </details>
#
# **3.** Which lever would you pull next for a 4 GiB card?
#
# <details><summary>Answer</summary>
#
# The weights, gradients and states alone take more than that: four times 1.3 GiB. So use 8-bit
# states (companion 01b) or 16-bit weights (08c), or train fewer weights, as LoRA does.
# </details>
#
# ## What you can now do
#
# - Put the levers of this course into a training script, and say what each one frees.
# - Show that the training stayed the same before you rent the card.
# - Fine-tune with LoRA on 4-bit weights, and say what each lever of the recipe frees.
