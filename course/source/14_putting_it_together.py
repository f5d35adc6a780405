# %% [markdown] id="title"
# # Putting it together: one model, one card
#
# You want to fine-tune Llama-3-8B on one 24 GiB card, with 8,192 tokens per update. Written as most
# people would write it, the run dies before the first loss. You find out why, and pull six levers.
# Then you train all weights on eight cards, where a slow link changes which of two levers comes
# first.
#
# **Budget:** 70 minutes, 3 GiB of memory, no GPU needed.

# %% id="imports"
import inspect
import json
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import AdamW
from transformers import LlamaForCausalLM

import tutorial_lib
from tutorial_lib import blanks, memory, plots
from tutorial_lib.checks import assert_same_training
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import recorded
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import planned
import train
import your_run
from planned import ROWS, TWIN, checkpointed, chunked, first_loss, from_4_bits, make
from planned import make_step, next_tokens, to_4_bits, update

torch.set_num_threads(1)  # sums in one order
pd.set_option("display.max_colwidth", None)  # show lines of code whole

# %% [markdown] id="case-text"
# ## The run that dies
#
# Weights, gradients and AdamW's two states are bfloat16. An update uses four conversations of 5800,
# 1300, 700 and 392 tokens, 8,192 in all. The usual batch pads each of them to the length of the
# longest. The script `course/train/planned.py` does one update according to a **plan**, which names
# a function for each of four choices: batch, block, loss and model. At first the plan has the
# plainest functions:

# %% id="script"
print(inspect.getsource(update))
CARD_GIB, LENGTHS = 24, planned.LENGTHS
plan = dict(planned.PLAINEST)
print({part: function.__name__ for part, function in plan.items()})

# %% [markdown] id="dies-text"
# **Predict.** AdamW makes its states in the first update, so the first forward begins with only the
# weights, 15 of 24 GiB. How many of the 32 blocks finish before memory runs out?

# %% id="guess-dies"
guess = None  # blocks


# %% id="died"
# @title Where the first forward stops: run this cell; open it to look
first = memory.predict(partial(make_step, plan), warmup=0)
curve = first.curve()  # for each moment of the step, the bytes by category
moment = next(n for n, b in enumerate(curve) if sum(b.values()) > CARD_GIB * GIB)
born = [life.module for life in first.timeline if 0 < life.born <= moment]
begun = {name.split(".")[2] for name in born if ".layers." in name}
print(f"whole blocks before it dies: {len(begun) - 1}{beside(guess, len(begun) - 1)}")
emulated = json.loads((FOLDER / "snapshots/llama_case.json").read_text())
print(emulated["died"]["message"])
held = pd.Series(emulated["died"]["held"]) / GIB
held.head(7).round(2).to_frame("GiB, emulated")

# %% [markdown] id="snapshot-read"
# The table is from an *emulated* RTX 4090. When memory ran out, a snapshot recorded which line of
# code had allocated each tensor. The card is full of weights, and of what one block and part of the
# next keep for backward. A lot of this is wasted: of the batch's 23,200 positions, 15,008 are
# padding.
#
# ## Lever 1: packing
#
# *Packing* puts all conversations into one row, without padding:
#
# ```text
# padded   a a a a a a       packed      a a a a a a b b c
#          b b . . . .       positions   0 1 2 3 4 5 0 1 0
#          c . . . . .
# ```
#
# Conversations must stay separate. First, no token may attend to a different conversation. (The
# transformers library takes every position 0 as the start of a new conversation, and masks
# attention between conversations.) Second, a conversation's last token must not have the next
# conversation's first token as its target.
#
# **Write.** `packed`. `rows` is a list with a one-dimensional tensor for each conversation, and
# `next_tokens(row)` returns a conversation's targets. Return three tensors of shape `(1, tokens)`:
# the tokens, targets and positions of all rows.


# %% id="packed"
def packed(rows):
    """Return all conversations' tokens, targets and positions, one after the other."""
    ### BEGIN SOLUTION
    ids = torch.cat(rows)
    targets = torch.cat([next_tokens(row) for row in rows])
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    return ids[None], targets[None], positions[None]
    ### END SOLUTION


# %% id="check-packed"
# @title Check: run this cell
@blanks.check("packed", "return tokens, targets and positions")
def packs():
    three = packed([torch.tensor(row) for row in ([5, 6, 7], [8, 9], [4])])
    assert len(three) == 3, (
        f"Return tokens, targets and positions, not {len(three)} values."
    )
    wanted = {
        "tokens": [5, 6, 7, 8, 9, 4],
        "targets": [6, 7, -100, 9, -100, -100],
        "positions": [0, 1, 2, 0, 1, 0],
    }
    for (name, right), seen in zip(wanted.items(), three, strict=True):
        assert seen.dim() == 2, (
            f"The {name} have the shape {[*seen.shape]}, not [1, 6]."
        )
        seen = seen[0].tolist()
        said = f"[5, 6, 7], [8, 9] and [4]: the {name} are {right}, not {seen}."
        assert seen == right, said


# %% [markdown] id="pull-text"
# The next cell defines `pull`, which adds one lever. If the training should stay the same, `pull`
# trains a small *twin* with and without the lever, and compares losses, gradients, weights and
# states. Then it predicts the memory and FLOPs of the full-size step, and estimates its seconds
# with chapter 07's roofline.

# %% id="pull"
# @title `pull`: run this cell; open it to look
bars, table, plans = {}, {}, {}


def pull(name, same=True, **lever):
    before, after = dict(plan), plan | lever
    if same:
        steps = partial(update, before, ROWS), partial(update, after, ROWS)
        with patch.dict(globals(), HOST="cpu"):  # of the last lever
            assert_same_training(*steps, make=partial(make, after, TWIN))
    plan.update(lever)
    report, line = memory.predict(partial(make_step, after)), Roofline(Speed.of(RTX))
    with memory.predicting(), memory.flop_counter() as flops:
        step, *_ = make_step(after)
        with line:
            step()
    bars[name], plans[name] = report.at_peak, after
    table[name] = report.peak_bytes / GIB, flops.get_total_flops() / 1e12, line.seconds
    return table[name][0]


# %% id="as-written"
RTX = "NVIDIA GeForce RTX 4090"
print(f"as written: {pull('as written', same=False):.1f} GiB")

# %% [markdown] id="predict-packed"
# **Predict.** There are now 8,192 positions instead of 23,200. At the peak, weights and states take
# 45 GiB for any batch, and no gradients exist yet. The rest of the peak printed above is nearly
# proportional to the number of positions. How many GiB does the packed step need?

# %% id="guess-packed"
guess = None  # GiB

# %% id="lever-packed"
gib = pull("packed", batch=packed)
print(f"packed: {gib:.1f} GiB{beside(guess, gib)}")

# %% [markdown] id="chunked-text"
# ## Levers 2 and 3: the loss in chunks, and checkpoints
#
# With chunks of 512 tokens (10d), the full logits never exist. A checkpoint around each block keeps
# only the block's input.
#
# **Predict.** Hardly any activations are left, so the peak moves to the end of backward, when all
# gradients exist. They take as many bytes as the weights. How many GiB does the step need after
# both levers?

# %% id="guess-checkpointed"
guess = None  # GiB


# %% id="lever-checkpointed"
print(f"chunked: {pull('loss in chunks', loss=chunked):.1f} GiB")
gib = pull("checkpoints", block=checkpointed)
print(f"checkpoints: {gib:.1f} GiB{beside(guess, gib)}")

# %% [markdown] id="lora-text"
# The step now needs little more than the weights, the gradients and AdamW's two states.
#
# ## Lever 4: LoRA
#
# LoRA freezes the weights. Beside each linear layer of the blocks it trains two thin matrices:
# $y = W x + 2\,U D x$. $D$ ("down") has 16 rows. $U$ ("up") has 16 columns and starts at zero. Only
# these two get gradients and states. **This is no longer the same training**, and the model may
# learn less. Only the first loss can be compared with full training's: it must be equal, since $U$
# is still zero.
#
# **Write.** In `LoRA`, make `self.down` and `self.up`, two `nn.Linear` without bias, of type
# `dtype`. Fill `up`'s weight with zeros. Then write `forward`.


# %% id="lora-layer"
class LoRA(nn.Module):
    """A frozen linear layer, and two trained matrices `down` and `up` beside it."""

    def __init__(self, linear, rank=16):
        super().__init__()
        self.base = linear
        rows, columns, dtype = *linear.weight.shape, linear.weight.dtype
        ### BEGIN SOLUTION
        self.down = nn.Linear(columns, rank, bias=False, dtype=dtype)
        self.up = nn.Linear(rank, rows, bias=False, dtype=dtype)
        nn.init.zeros_(self.up.weight)
        ### END SOLUTION

    def forward(self, x):
        """Return the base's output plus twice the output of `down` and `up`."""
        ### BEGIN SOLUTION
        return self.base(x) + 2 * self.up(self.down(x))
        ### END SOLUTION


# %% id="check-lora-layer"
# @title Check: run this cell
@blanks.check("LoRA", "make two linear layers, `down` and `up`")
def is_lora():
    base, x = nn.Linear(6, 4, bias=False).bfloat16(), torch.ones(2, 6).bfloat16()
    layer = LoRA(base, rank=3)
    shapes = [[*part.weight.shape] for part in (layer.down, layer.up)]
    assert shapes == [[3, 6], [4, 3]], (
        f"down and up have the shapes {shapes}, not [[3, 6], [4, 3]]."
    )
    biased = [name for name, _ in layer.named_parameters() if name.endswith("bias")]
    assert not biased, f"{', '.join(biased)}: LoRA's matrices have no bias."
    kinds = {part.weight.dtype for part in (layer.down, layer.up)}
    assert kinds == {torch.bfloat16}, f"The base is bfloat16, but yours {kinds}."
    assert torch.equal(layer(x), base(x)), "At first the output must be the base's."
    assert layer.down.weight.any(), "`down` is all zeros: only `up` starts at zero."
    nn.init.ones_(layer.down.weight), nn.init.ones_(layer.up.weight)
    added = (layer(x) - base(x)).mean().item()
    assert abs(added - 36) < 0.5, f"All ones, 6 x 3: 36 should be added, not {added:g}."


# %% id="lora"
def lora(model):
    return planned.replace_linear(model.requires_grad_(False), LoRA)


# %% id="lever-lora"
gib = pull("LoRA", same=False, model=lora)
print(f"LoRA: {gib:.1f} GiB; first losses of the twin:")
print(*(f"{first_loss(plans[name]):.3f}" for name in ("checkpoints", "LoRA")))

# %% [markdown] id="four-text"
# The step fits on a 24 GiB card, but not on one of 12 GiB.
#
# ## Lever 5: 4-bit weights
#
# Frozen weights can be kept in 4 bits, two to a byte, with one scale per 64 weights. A matmul
# doesn't accept 4-bit weights, so the layer first dequantizes them (turns them back into bfloat16)
# with the script's `from_4_bits(pairs, scale, shape)`. But plain autograd would keep the
# dequantized weight until backward, and you would save nothing.
#
# **Write.** `FourBit`. Forward saves the *small* tensors `pairs` and `scale`, and returns
# `x @ weight.T`. Backward dequantizes the weight again. The gradient with respect to `x` is
# `gradient @ weight`. For the other three arguments, return `None`.


# %% id="four-bit"
class FourBit(torch.autograd.Function):
    """A linear layer whose weight is kept in 4 bits, and made whole when needed."""

    @staticmethod
    def forward(ctx, x, pairs, scale, shape):
        ctx.shape = shape
        ### BEGIN SOLUTION
        ctx.save_for_backward(pairs, scale)
        return x @ from_4_bits(pairs, scale, shape).T
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        weight = from_4_bits(*ctx.saved_tensors, ctx.shape)
        return gradient @ weight, None, None, None
        ### END SOLUTION


# %% id="check-four-bit"
# @title Check: run this cell
@blanks.check("FourBit", "return the layer's output, and four gradients")
def keeps_four_bits():
    torch.manual_seed(0)
    shape, x = (96, 128), torch.randn(2, 3, 128, requires_grad=True)
    pairs, scale = to_4_bits(torch.randn(shape))
    weight = from_4_bits(pairs, scale, shape)
    with memory.watch() as report:
        out = FourBit.apply(x, pairs, scale, shape)
    assert torch.allclose(out, x @ weight.T, atol=1e-4), (
        "The output is not x @ weight.T."
    )
    kept = sum(tensor.nbytes for tensor in out.grad_fn.saved_tensors)
    small = pairs.nbytes + scale.nbytes
    assert kept, "Nothing is saved: save_for_backward what backward needs."
    assert kept <= small, f"{kept} bytes are saved: the 4 bits and scales have {small}."
    new = sum(life.num_bytes for life in report.timeline if not life.died and life.born)
    assert new <= out.nbytes, (
        f"{new - out.nbytes} new bytes wait beside the output: what else is on ctx?"
    )
    (seen,) = torch.autograd.grad(out.square().sum(), x)
    (right,) = torch.autograd.grad((x @ weight.T).square().sum(), x)
    assert torch.allclose(seen, right, rtol=1e-3, atol=1e-2), (
        "The gradient of x is wrong."
    )


# %% id="lever-four-bit"
# @title The lever with your `FourBit`: run this cell; open it to look
def lora_on_4_bits(model):
    for module in lora(model).modules():
        if isinstance(module, LoRA):
            module.base = planned.FourBitLinear(module.base, FourBit.apply)
    return model


gib = pull("4-bit weights", same=False, model=lora_on_4_bits)
print(f"4 bits: {gib:.1f} GiB; first loss {first_loss(plan):.3f}")

# %% [markdown] id="offloaded-text"
# The first loss is slightly different, because rounding to 4 bits has changed the frozen weights.
#
# ## Lever 6: offload
#
# The 32 blocks' inputs still wait on the card for backward. Chapter 07d's two hooks move them to
# the host. (Here the host is `meta`, a device whose tensors have no memory. On a GPU it would be
# the CPU.)

# %% id="offloaded"
# @title A checkpoint whose inputs wait on the host: run this cell; open it to look
HOST = "meta"


def offloaded(block, *args, **kwargs):
    """Call the block under a checkpoint whose inputs wait on the device `HOST`."""

    def pack(tensor):
        return tensor.to(HOST), tensor.device

    def unpack(packed):
        moved, device = packed
        return moved.to(device)

    with saved_tensors_hooks(pack, unpack):
        return checkpointed(block, *args, **kwargs)


print(f"{gib - pull('offload', block=offloaded):.2f} GiB freed")

# %% [markdown] id="waterfall-text"
# ## The waterfall
#
# What did each lever take off the peak, and what did it cost?

# %% id="waterfall"
title = "Llama-3-8B, 8,192 tokens per update, predicted; each bar pulls one more lever"
plots.ledger_bars(bars, title=title, cards_gib=(24, 80, 141), predicted=[*bars])

# %% id="table"
# @title The same with FLOPs and seconds: run this cell; open it to look
shown = pd.DataFrame(table, index=["GiB", "TFLOP", "s, RTX 4090"]).T
shown.round(1)

# %% [markdown] id="table-read"
# The table is predicted. What did people *measure*? In the next table, the first row is from our
# H100, and the others are published (`recorded/published_times.csv`). Each row says how many times
# as long the step took with the lever as without it.

# %% id="measured"
# @title Times measured with each lever: run this cell; open it to look
of_h100, step = recorded.load("NVIDIA H100 80GB HBM3").rows, {"precision": "bf16"}
ways = (Recipe("llama-2-7b", 1, 2048, checkpointing=way, **step).label()
        for way in ("none", "per-block"))  # fmt: skip
before, after = (of_h100[label]["report"]["seconds"] for label in ways)
measured = {"checkpoints: Llama-2-7B, 2048 tokens, H100": after / before}
SOURCES = {
    "qwen-1.8b-lora-1024": "LoRA: Qwen-1.8B, 1024 tokens, A100",
    "qwen-1.8b-lora-8192": "LoRA: Qwen-1.8B, 8192 tokens, A100",
    "qwen-1.8b-qlora-256": "4-bit weights: Qwen-1.8B, 256 tokens, A100",
    "qwen-1.8b-qlora-8192": "4-bit weights: Qwen-1.8B, 8192 tokens, A100",
    "accelerate-24-blocks-moved": "offload: 24 blocks, copies in the same stream",
}
times = pd.read_csv(FOLDER / "published_times.csv").set_index("id")
measured |= {words: times["with"][row] / times["without"][row]
             for row, words in SOURCES.items()}  # fmt: skip
pd.Series(measured).map("{:.2f} times".format).to_frame("the step took, measured")

# %% [markdown] id="measured-read"
# - Checkpoints add about a quarter of the step's time, and not a third: the head, each block's last
#   matmul and the optimizer's update run only once.
# - LoRA saves time on the weights' gradients and the update, but adds thin matmuls for each token.
#   With 8,192 tokens the step took *longer* than without LoRA, although the roofline predicts a
#   speedup.
# - **4-bit weights cost most with few tokens.** Dequantizing a weight takes the same time for any
#   number of tokens, and with few tokens the rest of the step is short.
# - Offload adds a third if its copies run in the same stream as the arithmetic. The roofline
#   assumes a separate stream, in which they cost no time (07d).

# %% [markdown] id="eight-text"
# ## All weights, on eight cards
#
# FSDP2 divides the 60 GiB of weights, gradients and states among eight cards (chapter 13). Each
# card has four conversations of 2,048 tokens per update, and the loss is computed in chunks. You
# can run the conversations as four micro-batches, or pack them into one micro-batch of 8,192 tokens
# and checkpoint each block:


# %% id="eight"
# @title One of the eight cards, in two ways: run this cell; open it to look
def in_chunks(model, input_ids, labels=None, **kwargs):
    """Return what `LlamaForCausalLM.forward` would, with the script's chunked loss."""
    hidden = model.model(input_ids=input_ids).last_hidden_state.flatten(0, 1)
    targets = torch.cat([next_tokens(row) for row in input_ids])
    return SimpleNamespace(loss=chunked(model.lm_head, hidden, targets) / len(targets))


EIGHT = {"precision": "bf16", "optimizer": "adamw-fused", "ranks": 8, "shard": "fsdp"}
WAYS = {  # the second micro-batch peaks as the fourth would
    "4 x 2048": {"seq": 2048, "accumulation": 2},
    "1 x 8192, checkpointed": {"seq": 8192, "checkpointing": "per-block"},
}
of_eight = {}
for name, choices in WAYS.items():
    recipe = Recipe(planned.NAME, 1, **choices, **EIGHT)
    with recipe.one_rank(), patch.object(LlamaForCausalLM, "forward", in_chunks):
        of_eight[name] = memory.predict(recipe.make_step).at_peak
title = "One of eight cards, all weights trained, predicted"
plots.ledger_bars(of_eight, title=title, cards_gib=(24, 48), predicted=[*of_eight])

# %% [markdown] id="link-text"
# Only the checkpointed way fits on 24 GiB cards. On larger cards both fit. Which is faster?
#
# A forward of all 8,192 tokens takes $f$ seconds, with 2 FLOPs per weight and token. Backward takes
# $2f$, and checkpoints add another $f$. FSDP2 also gathers all weights for forward and again for
# backward, and reduce-scatters the gradients. Each of these three transfers sends $7/8$ of the
# weights' bytes, and all three happen **in each micro-batch**. Transfers overlap with the
# arithmetic, so the step takes as long as the longer of the two.
#
# **Write.** `step_seconds`, which returns the seconds of one update.
#
# **Predict.** The link between two nodes carries 100 Gb/s, and each card does 150 TFLOP/s. Divide
# the seconds of four micro-batches by the seconds of one checkpointed micro-batch. What do you get?

# %% id="guess-link"
guess = None  # times


# %% id="step-seconds"
def step_seconds(forward, micro_batches, checkpointed, weight_bytes, bytes_per_second):
    """Return the seconds of an update on each of eight cards, with FSDP2.

    `forward` is the seconds of one forward over all the update's tokens.
    """
    ### BEGIN SOLUTION
    computes = forward * (4 if checkpointed else 3)
    sent = micro_batches * 3 * weight_bytes * 7 / 8
    return max(computes, sent / bytes_per_second)
    ### END SOLUTION


# %% id="check-step-seconds"
# @title Check: run this cell
@blanks.check("step_seconds", "return a number of seconds")
def takes_the_longer():
    cases = {
        (2, 1, False, 8, 1e9): (6, "three forwards' worth of arithmetic"),
        (2, 1, True, 8, 1e9): (8, "four forwards' worth of arithmetic"),
        (0, 1, False, 8, 1): (21, "three times 7/8 of the weights"),
        (0, 4, True, 8, 2): (42, "the same for each of four micro-batches"),
        (10, 1, False, 8, 1): (30, "the longer of both"),
        (2, 4, True, 8, 1e9): (8, "four forwards of all tokens, in four parts,"),
    }
    for case, (right, why) in cases.items():
        seen = step_seconds(*case)
        said = f"step_seconds{case}: {why} take {right} s, not {seen:g} s."
        assert abs(seen - right) < 1e-6, said


# %% id="links"
# @title Both ways over three links, and DDP: run this cell; open it to look
weights = 2 * Recipe(planned.NAME).num_parameters  # bytes
f = weights * sum(LENGTHS) / Speed.of("NVIDIA A100-SXM4-80GB").half_flops
took = {}
for gigabits in (100, 400, 2400):  # two links between nodes, and NVLink inside one
    link = gigabits * 1e9 / 8  # bytes per second
    ways = [step_seconds(f, *way, weights, link) for way in ((4, False), (1, True))]
    ddp = max(3 * f, 2 * weights * 7 / 8 / link)  # two gradient transfers per update
    took[f"{gigabits} Gb/s"] = [*ways, ddp]
took = pd.DataFrame(took, index=[*WAYS, "4 x 2048, DDP"])
slow, fast, _ = took["100 Gb/s"]
print(f"over 100 Gb/s: {slow / fast:.1f} times{beside(guess, slow / fast)}")
took.round(1).rename_axis(columns="seconds, worked out")

# %% [markdown] id="links-read"
# On one card, inside a node, or with DDP and `no_sync`, keep to the usual order: accumulate first,
# since that adds no arithmetic, and checkpoint if the step still doesn't fit. (With DDP, each card
# would have to hold all 60 GiB.)
#
# **With FSDP2 over a slow link, the order is reversed**: checkpoint first, so that the update needs
# only one micro-batch. (We left out attention scores, latencies and the traffic inside a node.)
#
# ## The plan
#
# For a card of 24 or 12 GiB, the next cell chooses from the levers' table the fastest row that fits
# with 2 GiB left free. We write the plan for 24 GiB into a file. The script loads the file,
# implements the levers with libraries, and trains the twin twice: by the plan, and with the
# plainest batch, block and loss.


# %% id="write"
def fastest(budget):  # of the levers' table
    fits = shown[shown["GiB"] <= budget]
    assert len(fits), f"{budget} GiB: the smallest needs {shown['GiB'].min():.1f}."
    return fits["s, RTX 4090"].idxmin()


print(f"on 12 GiB: {fastest(12 - 2)}\n")
name = fastest(CARD_GIB - 2)
chosen = {part: function.__name__ for part, function in plans[name].items()}
chosen["GiB"] = round(table[name][0], 1)
print(json.dumps(chosen), inspect.getsource(planned.main), sep="\n\n")

# %% id="proved"
with TemporaryDirectory() as folder:
    path = Path(folder) / "plan.json"
    path.write_text(json.dumps(chosen))
    planned.main(path)

# %% [markdown] id="your-run-text"
# Both runs use LoRA, so they don't show what LoRA changes. For that, compare the validation loss
# with and without it.
#
# ## Your run
#
# In `train.py`, two moments of a step now need nearly the same memory: the loss, and AdamW's
# update. On a GPU, PyTorch's AdamW updates all weights at once, so its temporaries are as large as
# all weights. A *fused* kernel makes no temporaries. How far does the step's peak fall?
#
# **Write.** The last two lines of `make_fused`: make a fused AdamW with a learning rate of 3e-4,
# and return the model and the optimizer.


# %% id="make-fused"
def make_fused(config):
    """Return a model with seeded weights and its optimizer, a fused AdamW."""
    torch.manual_seed(0)
    model = train.GPT(config)
    ### BEGIN SOLUTION
    optimizer = AdamW(model.parameters(), lr=3e-4, fused=True)
    return model, optimizer
    ### END SOLUTION


# %% id="check-make-fused"
# @title Check: run this cell
@blanks.check("make_fused", "return a model and its optimizer")
def is_fused():
    (model, optimizer), (twin, plain) = make_fused(train.TWIN), train.make(train.TWIN)
    weights, wanted = (list(gpt.parameters()) for gpt in (model, twin))
    assert all(map(torch.equal, weights, wanted)), (
        "The weights differ from those that `train.make` seeds."
    )
    held, kind = sum(len(g["params"]) for g in optimizer.param_groups), type(optimizer)
    assert kind is AdamW, f"The optimizer is {kind.__name__}, not AdamW."
    assert held == len(wanted), f"It updates {held} of {len(wanted)} tensors."
    rate = optimizer.defaults["lr"]
    assert rate == 3e-4, f"Its learning rate is {rate}, not 3e-4."
    groups, kept = optimizer.param_groups, ("betas", "eps", "weight_decay")
    own = [n for n in kept if any(g[n] != plain.defaults[n] for g in groups)]
    assert not own, f"Leave {' and '.join(own)} as train.py has it."
    assert optimizer.defaults["fused"], "The optimizer that you made isn't fused."


# %% id="apply"
your_run.apply("14", make=make_fused)

# %% [markdown] id="proved-read"
# The peak doesn't fall, because the loss needs as much memory as before. But the update is faster.
# [10e](10e_your_run.ipynb) has the whole script, and a recipe for a Llama on 16 GiB.
#
# ## On paper
#
# **1.** With LoRA, checkpoints and chunks, one conversation of 4,096 tokens takes 17.2 GiB, and one
# of 12,800 takes 21.4 GiB. The peak is linear in the token count. How many tokens fit in 22 GiB?
#
# <details><summary>Answer</summary>
#
# $4096 + (22 - 17.2) \cdot (12800 - 4096)/(21.4 - 17.2)$, or about 14,000 tokens.
# </details>
#
# **2.** A linear layer of 4096 x 14336 has a LoRA adapter of rank 16. How many parameters are
# trained, and what percentage of the layer's parameters is that?
#
# <details><summary>Answer</summary>
#
# $16 \cdot (4096 + 14336)$, or 294,912. The layer has 58.7 million, so that is 0.5 %.
# </details>
#
# **3.** A checkpointed model with P weights in bfloat16 trains on eight 150 TFLOP/s cards with a
# 100 Gb/s link. How many tokens must a card's micro-batch have at least, so that its arithmetic
# takes as long as FSDP2's traffic?
#
# <details><summary>Answer</summary>
#
# With $t$ tokens, arithmetic takes $4 \cdot 2 P t / (150 \cdot 10^{12})$ seconds, and traffic takes
# $3 \cdot 2 P \cdot \frac{7}{8} / (12.5 \cdot 10^9)$. P cancels: $t \ge 7875$ tokens. So one
# micro-batch of 8,192 tokens is just enough.
# </details>
#
# ## What you can now do
#
# - Say why a training run dies, and which bytes a lever can save.
# - Pull six levers in a training script, and show which of them leave the training as it is.
# - Say when a slow link makes checkpoints a better first lever than accumulation.
# - Write a plan into a file, and run the training by it.
#
# [14b](14b_gallery.ipynb) shows how to find what held a dead run's memory, and
# [14c](14c_rules_of_thumb.ipynb) which lever comes first for other models.
