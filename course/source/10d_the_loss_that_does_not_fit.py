# %% [markdown] id="title"
# # The loss that does not fit
#
# Every block is checkpointed, the micro-batch is one sequence, and the step still runs out of
# memory in the loss. Models since 2024 have vocabularies of 128,000 to 256,000 tokens, and compute
# a score for each of these at every position. You write a loss that never holds more than one
# chunk's scores, and recomputes nothing.
#
# **Budget:** 70 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import sys
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tutorial_lib
from tutorial_lib import blanks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import published
from tutorial_lib.instruments.planning.run.roofline import Roofline, Speed
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.units import GIB, MIB, human_bytes

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

torch.set_num_threads(1)  # sums in one order, and no waiting for a busy core

# %% [markdown] id="picture"
# ## Why is the loss so large?
#
# The *head* is the model's last linear layer. It takes each token's *hidden row*, the vector that
# the blocks computed for it, and returns *logits*: one score for each entry of the vocabulary.
#
# ![Above, the logits of all tokens are made and kept until backward. Below, the logits of one chunk
# are made, give a loss and gradients at once, and are dropped.](figures/10d-chunks.svg)
#
# Here are two published models. (*Tied* means that head and embeddings share one matrix.)

# %% id="models"
NAMES = {"Llama-3-8B": "llama-3-8b", "Gemma-2-9B": "gemma-2-9b"}
built = {name: published.build(key) for name, key in NAMES.items()}
shapes = {}
for name, model in built.items():
    vocab, width = model.lm_head.weight.shape
    shapes[name] = {
        "vocabulary": vocab,
        "width": width,
        "blocks": len(model.model.layers),
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
    }
pd.DataFrame(shapes).T

# %% [markdown] id="usual-text"
# In most libraries the loss is two lines. The logits are bfloat16, so the loss first converts them
# to float32, since it sums `exp` over the whole vocabulary. Below your blank, `end_of` predicts the
# memory of a model's *end*: its head and its loss, in forward and backward.
#
# **Write.** `usual`: float32 logits, then their loss.


# %% id="usual"
def usual(head, hidden, targets):
    """Return `F.cross_entropy` summed over tokens, from float32 logits."""
    ### BEGIN SOLUTION
    logits = head(hidden).float()
    return F.cross_entropy(logits, targets, reduction="sum")
    ### END SOLUTION


# %% id="check-usual"
# @title Check: run this cell
@blanks.check("usual", "return the sum of the losses, as a tensor")
def is_usual():
    head, hidden = nn.Linear(4, 6, dtype=torch.bfloat16), torch.randn(3, 4).bfloat16()
    targets = torch.tensor([5, 0, 2])
    seen, logits = usual(head, hidden, targets), head(hidden).float()
    rows = logits.log_softmax(1)[range(3), targets]
    assert seen.shape == (), f"Return one number, not shape {[*seen.shape]}."
    assert seen.dtype == torch.float32, f"The loss is {seen.dtype}, not float32."
    true = -rows.sum()
    assert torch.allclose(seen, true), f"The sum is {true:.3f}, not {seen:.3f}."


# %% id="end-of"
def end_of(name, tokens, loss_of=usual, frozen=False):
    """Predict the end of a model: from the hidden rows to their gradient."""

    def make_step():
        shape, kind = shapes[name], torch.bfloat16
        head = nn.Linear(shape["width"], shape["vocabulary"], bias=False, dtype=kind)
        head.requires_grad_(not frozen)
        rows = nn.Parameter(torch.randn(tokens, shape["width"], dtype=kind))
        targets = torch.randint(shape["vocabulary"], (tokens,))
        end = nn.ModuleList([head, nn.ParameterList([rows])])
        return lambda: loss_of(head, rows, targets).backward(), end, None

    return memory.predict(make_step, label=name)


# %% [markdown] id="predict-usual"
# **Predict.** Llama-3-8B trains on one sequence of 8192 tokens. Its logits in float32 take 3.9 GiB.
# How many GiB does the model's end hold at its peak? Leave out the head, the hidden rows, and the
# gradients of both.

# %% id="guess-usual"
guess = None  # GiB


# %% id="measure-usual"
def added(report):
    kinds = ("activations", "recomputed", "temporary")
    return max(sum(point[kind] for kind in kinds) for point in report.curve())


llama = end_of("Llama-3-8B", 8192)
gib = added(llama) / GIB
print(f"{gib:.1f} GiB, predicted{beside(guess, gib)}")
plots.step_timeline(llama)

# %% [markdown] id="read-usual"
# In backward, three float32 tensors of tokens x vocabulary are in memory: the log-probabilities
# that forward kept, their gradient, and the logits' gradient.
#
# If your own loop assigns `out = model(...)`, that variable keeps the logits too during backward.
# So write `loss = model(...).loss`.
#
# How much do the blocks keep in comparison? A checkpointed block keeps only its input, its
# *boundary* (chapter 06).

# %% id="loss-slider"
# @title Tokens x vocabulary with sliders: run this cell; open it to look
shape, at = shapes["Llama-3-8B"], [2**n for n in range(10, 18)]
figure = plots.growth(
    {
        "three of tokens x vocabulary": {t: 12 * t * shape["vocabulary"] for t in at},
        "boundaries of blocks": {
            t: 2 * t * shape["width"] * shape["blocks"] for t in at
        },
    },
    xlabel="tokens",
    title="Llama-3-8B on paper: the end of the model, and checkpointed blocks",
)
words = ["three of tokens x vocabulary", "three of chunk x vocabulary", "boundaries"]
figure.moving = {
    "title": "On paper: a loss in float32, boundaries in 16 bits",
    "height": {"step": 34},
    "width": 420,
    "params": [
        plots.slider("tokens", "tokens", 8192, range(1024, 131073, 1024)),
        plots.slider("vocab", "vocabulary", 128256, range(32000, 262145, 32)),
        plots.slider("columns", "width", 4096, range(1024, 8193, 512)),
        plots.slider("blocks", "blocks", 32, range(8, 81, 4)),
        plots.slider("size", "tokens in a chunk", 512, range(128, 8193, 128)),
    ],
    "data": {"values": [{"row": row, "what": what} for row, what in enumerate(words)]},
    "transform": plots.formulas(
        GiB="[12 * tokens * vocab, 12 * min(size, tokens) * vocab, "
            "2 * tokens * columns * blocks][datum.row] / 1073741824",
        words="format(datum.GiB, '.2f') + ' GiB'"),
    "encoding": {
        "y": {"field": "what", "type": "nominal", "title": None, "sort": words},
        "x": {"field": "GiB", "type": "quantitative", "title": "GiB"}},
    "layer": [{"mark": "bar"},
              {"mark": {"type": "text", "align": "left", "dx": 4},
               "encoding": {"text": {"field": "words"}}}],
}  # fmt: skip
figure


# %% id="block-of"
def saved_bytes(name, tokens, blocks):
    """Predict the bytes that a model with `blocks` blocks and no head saves."""
    config = {"dtype": torch.bfloat16, "device": "cpu", "vocab_size": 8}
    with memory.predicting():
        model = published.build(NAMES[name], num_hidden_layers=blocks, **config).model
        ids = torch.zeros(1, tokens, dtype=torch.long)
        return memory.saved(lambda: model(ids)[0], params_of=model).num_bytes


rows = {}
for name, tokens in product(NAMES, (4096, 8192)):
    num, width = shapes[name]["blocks"], shapes[name]["width"]
    block = saved_bytes(name, tokens, 2) - saved_bytes(name, tokens, 1)
    found = num * block, num * tokens * width * 2, block, added(end_of(name, tokens))
    rows[f"{name}, {tokens}"] = [f"{b / GIB:.2f}" for b in found]
heads = ["blocks, plain", "boundaries", "one block, recomputed", "loss"]
print("GiB, predicted")
pd.DataFrame.from_dict(rows, orient="index", columns=heads)

# %% [markdown] id="read-ledgers"
# Without checkpointing, the blocks take far more memory than the loss. With checkpointing, only the
# boundaries stay, and the logits are freed before the first block is recomputed. In each row, the
# loss takes more than a recomputed block, so activations peak in the loss. (Gemma-2's blocks are so
# large because its eager attention keeps scores, which grow with the square of the tokens.)
#
# If all weights are trained, the whole *step* may instead peak at the end of backward, when all
# gradients are in memory. It peaks in the loss if gradients are small (LoRA), or already in memory
# before the loss (accumulation, from the second micro-batch on).
#
# ## A chunk at a time
#
# The loss is a sum over tokens, and each term needs one row of logits. So compute the sum in
# chunks, with a checkpoint around each. Then backward recomputes one chunk's logits at a time.
#
# **Write.** `checkpointed`, four lines.


# %% id="checkpointed"
def checkpointed(head, hidden, targets, size=512):
    """Return the sum of `usual` over chunks of `size` tokens, each one checkpointed."""
    ### BEGIN SOLUTION
    total = 0
    for rows, theirs in zip(hidden.split(size), targets.split(size), strict=True):
        total = total + checkpoint(usual, head, rows, theirs, use_reentrant=False)
    return total
    ### END SOLUTION


# %% id="check-checkpointed"
# @title Check: run this cell
@blanks.check("checkpointed", "return the sum of the chunks' losses")
def is_checkpointed():
    head, hidden = nn.Linear(4, 64, bias=False), torch.randn(20, 4, requires_grad=True)
    targets, made = torch.randint(64, (20,)), []
    hook = head.register_forward_hook(lambda _, __, out: made.append(len(out)))
    with memory.watch() as report:
        loss = checkpointed(head, hidden, targets, size=8)
    forward, true = list(made), usual(head, hidden, targets)
    assert torch.allclose(loss, true), f"The loss is {true:.2f}, not {loss:.2f}."
    assert forward == [8, 8, 4], f"The chunks have 8, 8 and 4 tokens, not {forward}."
    kept = report.timeline[-1:] and sum(
        life.num_bytes for life in report.timeline if life.died is None and life.born
    )
    assert kept < 8 * 64 * 4, (
        f"{kept} bytes wait for backward: at least one chunk's logits (2048 bytes)."
    )
    made.clear()
    seen = torch.autograd.grad(loss, hidden)[0]
    hook.remove()
    assert torch.allclose(seen, torch.autograd.grad(true, hidden)[0], atol=1e-6), (
        "The loss is right, but its gradient isn't."
    )
    assert made == forward[::-1], f"Backward made logits of {made} tokens, not 4, 8, 8."


# %% [markdown] id="once-text"
# `checkpointed` computes the logits twice. But the sum's own gradients don't depend on anything
# that happens to the sum later. So forward can already compute them, while a chunk's logits are in
# memory. Backward then only multiplies them by the number that it receives, the final loss's
# gradient with respect to the sum.
#
# **Write.** First the rest of `loss_and_slope`. The *slope* is the gradient of the summed loss with
# respect to the logits. It is the logits' softmax, minus 1 at each target. `logs.exp_()` computes
# the softmax in place.
#
# Then the rest of `InForward`. In forward, take `size` rows at a time, and pass their logits, `rows
# @ weight.T`, to `loss_and_slope`. By the chain rule, the gradient of these rows is `slope @
# weight`. The weight's gradient is the sum of `slope.T @ rows` over all chunks. Save both gradients
# for backward (the rows' first), and return the summed loss.


# %% id="slope"
def loss_and_slope(logits, targets):
    """Return a chunk's loss, a sum in float32, and its gradient for the logits.

    The gradient has the logits' dtype.
    """
    logs = logits.log_softmax(1, dtype=torch.float32)
    picked = targets[:, None]
    ### BEGIN SOLUTION
    loss = -logs.gather(1, picked).sum()
    ones = torch.ones_like(picked, dtype=logs.dtype)
    slope = logs.exp_().scatter_add_(1, picked, -ones)
    return loss, slope.to(logits.dtype)
    ### END SOLUTION


# %% id="check-slope"
# @title Check: run this cell
@blanks.check("loss_and_slope", "return a loss and a tensor shaped like the logits")
def slope_is_right():
    logits = (torch.arange(35.0).reshape(5, 7) / 10).requires_grad_()
    targets = torch.tensor([6, 0, 0, 3, 1])
    true = F.cross_entropy(logits, targets, reduction="sum")
    exact = torch.autograd.grad(true, logits)[0]
    loss, slope = loss_and_slope(logits.detach(), targets)
    assert torch.allclose(loss, true), f"The loss is {true:.3f}, not {loss:.3f}."
    assert slope.shape == exact.shape, f"The slope is {[*slope.shape]}, not [5, 7]."
    sums = slope.sum(1)
    assert sums.abs().max() < 1e-5, (
        f"Each row of the slope should sum to 0, not {sums.abs().max():.3f}."
    )
    assert torch.allclose(slope, exact, atol=1e-6), (
        f"The slope at a target is {exact[0, 6]:.3f}, not {slope[0, 6]:.3f}."
    )
    _, low = loss_and_slope(logits.detach().bfloat16(), targets)
    assert low.dtype == torch.bfloat16, f"The slope of bfloat16 logits is {low.dtype}."


# %% id="in-forward"
class InForward(torch.autograd.Function):
    """The loss of all chunks; forward keeps two sums of gradients and no logits."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, size):
        total = torch.zeros((), device=hidden.device)  # a tensor, even for no tokens
        of_weight = torch.zeros_like(weight)
        of_hidden = torch.empty_like(hidden)
        ### BEGIN SOLUTION
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            loss, slope = loss_and_slope(hidden[part] @ weight.T, targets[part])
            total = total + loss
            of_hidden[part] = slope @ weight
            of_weight += slope.T @ hidden[part]
            del slope  # otherwise it lives on while the next logits are made
        ctx.save_for_backward(of_hidden, of_weight)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        of_hidden, of_weight = ctx.saved_tensors
        return gradient * of_hidden, gradient * of_weight, None, None
        ### END SOLUTION


# %% id="check-in-forward"
# @title Check: run this cell
@blanks.check("InForward", "return the loss of all rows, as a tensor")
def is_in_forward():
    hidden, weight = (torch.randn(n, 4, requires_grad=True) for n in (60, 256))
    targets = torch.randint(256, (60,))
    with memory.watch() as report:
        loss = InForward.apply(hidden, weight, targets, 8)
    true = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    assert torch.allclose(loss, true), f"Your loss is {loss:.1f}, not {true:.1f}."
    peak, most = report.peak_bytes - report.baseline_bytes, 60 * 256 * 4
    assert peak < most, (
        f"The peak ({human_bytes(peak)}) isn't below all logits ({human_bytes(most)})."
    )
    seen = torch.autograd.grad(3 * loss, (hidden, weight))
    for name, mine, exact in zip(
        ("hidden", "weight"),
        seen,
        torch.autograd.grad(3 * true, (hidden, weight)),
        strict=True,
    ):
        off = ((mine - exact).norm() / exact.norm()).item()
        assert off < 1e-5, f"The gradient of {name} is off by {off:.0%}."
    loss = InForward.apply(hidden, weight, targets, 8)
    saved = sum(tensor.nbytes for tensor in loss.grad_fn.saved_tensors)
    assert saved == 316 * 4 * 4, (
        f"The sums take 4.94 KiB, but you save {human_bytes(saved)}."
    )


# %% id="call"
def in_forward(head, hidden, targets, size=512):
    return InForward.apply(hidden, head.weight, targets, size)


# %% [markdown] id="predict-chunks"
# First we take sizes that this machine can run: 1024 tokens, a vocabulary of 8192, a width of 64,
# float32.
#
# **Write.** The rest of `run`. A report has `peak_bytes` and `baseline_bytes`; a FLOP counter has
# `get_total_flops()`.
#
# **Predict.** The usual loss runs three matmuls of tokens x vocabulary x width: one for the logits,
# and two for the gradients. How many such matmuls do `InForward`'s chunks add up to?

# %% id="guess-matmuls"
guess = None  # matmuls


# %% id="small"
torch.manual_seed(0)
head = nn.Linear(64, 8192, bias=False)  # width, vocabulary
hidden = nn.Parameter(torch.randn(1024, 64))
targets = torch.randint(8192, (1024,))
end = nn.ModuleList([head, nn.ParameterList([hidden])])
few = partial(checkpointed, size=64), partial(in_forward, size=64)
ways = dict(zip(("usual", "checkpointed", "in forward"), (usual, *few), strict=True))


# %% id="run"
def run(loss_of, head=head, hidden=hidden, targets=targets):
    """Return peak bytes above the baseline, FLOPs, and the gradients of rows and head.

    `memory.watch(model=end)` and `memory.flop_counter()` cover forward and backward.
    """
    for tensor in (hidden, head.weight):  # a later micro-batch: gradients are there
        tensor.grad = torch.zeros_like(tensor)
    ### BEGIN SOLUTION
    with memory.watch(model=end) as report, memory.flop_counter() as counter:
        loss_of(head, hidden, targets).backward()
    peak = report.peak_bytes - report.baseline_bytes
    return peak, counter.get_total_flops(), [hidden.grad, head.weight.grad]
    ### END SOLUTION


# %% id="check-run"
# @title Check: run this cell
@blanks.check("run", "return bytes, FLOPs, and a list of two gradients")
def run_is_right():
    peak, flops, (of_hidden, of_head) = run(usual)
    product, logits = 2 * 1024 * 8192 * 64, 1024 * 8192 * 4
    assert flops == 3 * product, f"Three matmuls have {3 * product} FLOPs, not {flops}."
    assert of_hidden.shape == hidden.shape, f"Rows' gradient: {[*of_hidden.shape]}."
    assert of_head.shape == head.weight.shape, f"Head's gradient: {[*of_head.shape]}."
    assert of_hidden.norm() * of_head.norm() > 0, "A gradient is 0: call backward."
    assert 2 * logits < peak < 4 * logits, (
        f"The peak is {peak / logits:.1f} times the logits: backward has three of them."
    )
    few = hidden[:1].detach().requires_grad_()
    times = run(usual, hidden=few, targets=targets[:1])[0] / head.weight.nbytes
    assert times < 2, (
        f"With one token it's {times:.1f} times the head: is the baseline subtracted?"
    )


# %% id="compare"
found = {name: run(way) for name, way in ways.items()}
_, _, exact = found["usual"]
rows = {}
for name, (peak, flops, gradients) in found.items():
    pairs = zip(gradients, exact, strict=True)
    errors = [((g - e).norm() / e.norm()).item() for g, e in pairs]
    matmuls = flops / (2 * 1024 * 8192 * 64)
    rows[name] = [f"{peak / MIB:.1f}", f"{matmuls:.0f}", max(errors) < 1e-6]
print(f"in forward: {matmuls:.0f} matmuls{beside(guess, matmuls)}")
columns = ["MiB, counted", "matmuls", "same gradients"]
pd.DataFrame.from_dict(rows, orient="index", columns=columns)

# %% [markdown] id="read-compare"
# `InForward` needs a fraction of the usual loss's bytes, and no more arithmetic. A formula predicts
# its peak. The two gradients, of rows and head, are always in memory. At three moments, more
# tensors join them:
#
# 1. a chunk's logits, and its log-probabilities (the slope then overwrites these);
# 2. the slope and the chunk's gradient of the head;
# 3. in backward, a second copy of both gradients, multiplied by the gradient that arrives.
#
# With small chunks, the third moment is the peak.
#
# **Write.** `formula`, four lines.


# %% id="formula"
def formula(size, tokens=1024, vocab=8192, width=64):
    """Return `InForward`'s peak bytes in float32: the largest of three moments."""
    ### BEGIN SOLUTION
    sums = (tokens + vocab) * width
    logits, of_head = size * vocab, vocab * width
    moments = 2 * logits, logits + of_head, sums
    return 4 * (sums + max(moments))
    ### END SOLUTION


# %% id="check-formula"
# @title Check: run this cell
@blanks.check("formula", "return a number of bytes")
def formula_is_right():
    cases = {(10, 1, 1, 1): 88, (5, 1, 10, 10): 1040, (0, 10, 10, 1): 160}
    moments = ("two chunks", "a chunk and the head's gradient", "both sums again")
    for (case, true), moment in zip(cases.items(), moments, strict=True):
        seen = formula(*case)
        assert seen == true, (
            f"size, tokens, vocab, width = {case}: {true} bytes (the sums and "
            f"{moment}), not {seen}."
        )


# %% id="peaks"
print(f"formula: {human_bytes(formula(64))}")
print(f"counted: {human_bytes(found['in forward'][0])}")
sizes = [2**n for n in range(2, 11)]
peaks = {size: run(partial(in_forward, size=size))[0] for size in sizes}
floor = dict.fromkeys(sizes, formula(0))
plots.growth(
    {"in forward": peaks, "the gradients alone": floor},
    xlabel="tokens in a chunk",
    title="Peak of the loss, 1024 tokens, counted",
)

# %% id="chunk-seconds"
# @title Chunks in seconds, as published: run this cell; open it to look
measured = pd.read_csv(FOLDER / "chunked_loss.csv")
by_roofline = []
for row in measured.itertuples():  # the head of Llama-3-8B; Liger makes 32 chunks of it
    for loss_of in (usual, partial(in_forward, size=row.chunk)):
        with memory.predicting():
            big = nn.Linear(row.width, row.vocabulary, bias=False, dtype=torch.bfloat16)
            many = torch.zeros(row.tokens, row.width, dtype=torch.bfloat16)
            of = torch.zeros(row.tokens, dtype=torch.long)
            with memory.flop_counter() as counter, Roofline(Speed.of(row.card)) as line:
                loss_of(big, many.requires_grad_(), of).backward()
        by_roofline.append((1000 * line.seconds, counter.get_total_flops()))
plain, chunks = pd.DataFrame(by_roofline[::2]), pd.DataFrame(by_roofline[1::2])
slow, speed = (plain[0] / measured.usual_ms).agg(["min", "max"]), Speed.of(row.card)
print(f"{row.source} ({row.liger}, {row.date}), {row.card}; gradients in forward")
print(f"usual loss: a roofline of {speed.half_flops / 1e12:.0f} TFLOP/s predicts "
      f"{slow['min']:.1f} to {slow['max']:.1f} times the measured ms")  # fmt: skip
table = measured[["chunk", "tokens", "usual_ms", "chunked_ms"]].round(0).astype(int)
table["times"] = (measured.chunked_ms / measured.usual_ms).round(2)
table["by roofline"] = (chunks / plain)[0].round(2)
table["by FLOPs"] = (chunks / plain)[1].round(2)
table.set_index("chunk")

# %% [markdown] id="chunk-seconds-read"
# Chunks add no FLOPs, but small chunks take longer than the usual loss: each chunk reads the head,
# and reads and writes the head's gradient. Chapter 07's roofline predicts most of the extra time.

# %% [markdown] id="ragged-text"
# ## The mean over the tokens that count
#
# `InForward` returns a sum. For the mean, divide that sum by the number of tokens that count, added
# up over all micro-batches of a window. Tokens whose target is -100 don't count: padding, and the
# prompts of fine-tuning examples. Such tokens need no logits, so first select the others, with
# `hidden[targets != -100]`.
#
# **Write.** `mean_loss`, for a window of one micro-batch. If no token counts, the loss is 0.


# %% id="mean"
def mean_loss(head, hidden, targets, size=64):
    """Return the mean loss of the tokens that count, with `in_forward`."""
    ### BEGIN SOLUTION
    counts = targets != -100
    number = counts.sum().clamp(min=1)
    return in_forward(head, hidden[counts], targets[counts], size) / number
    ### END SOLUTION


# %% id="check-mean"
# @title Check: run this cell
@blanks.check("mean_loss", "return the mean loss, as a tensor with a graph")
def is_the_mean():
    head, hidden = nn.Linear(4, 16, bias=False), torch.randn(20, 4, requires_grad=True)
    targets, given, real = torch.arange(20) % 16, [], in_forward  # one is 0

    def spied(head, hidden, targets, size=512):
        given.append((len(hidden), size))
        return real(head, hidden, targets, size)

    for few in (20, 5, 0):
        targets[few:] = -100
        true = F.cross_entropy(head(hidden), targets, reduction="sum") / max(few, 1)
        given.clear()
        with patch.dict(globals(), in_forward=spied):
            seen = mean_loss(head, hidden, targets, size=8)
        assert torch.allclose(seen, true), (
            f"{few} of 20 tokens count: the mean is {true:.4f}, not {seen:.4f}."
        )
        assert given == [(few, 8)] or not few, (
            f"`in_forward` needs the {few} tokens that count, and size 8: it got "
            f"{given}."
        )
        slopes, right = (
            torch.autograd.grad(loss, (hidden, head.weight), materialize_grads=True)
            for loss in (seen, true)
        )
        assert all(map(partial(torch.allclose, atol=1e-6), slopes, right)), (
            f"With {few} of 20 tokens, the loss is right, but its gradient isn't."
        )


# %% [markdown] id="autocast-text"
# ## Where do you need float32?
#
# A chunk's softmax is float32 even if the logits are bfloat16, as in the usual loss. But the
# weight's gradient, `of_weight`, is a sum over many chunks, and has the weight's type. A long sum
# in bfloat16 loses what the last chunks add (companion 08c). So with bfloat16 weights, keep this
# sum in float32, and cast it at the end.
#
# In Gemma-2 the head's matrix *is* the matrix of the embeddings. `InForward` needs no change for
# that: it returns a gradient, and autograd adds it to the embeddings' gradient.

# %% [markdown] id="second-text"
# ## What it cannot do
#
# `InForward` computes only first gradients. A loss that uses a gradient, such as a gradient
# penalty, needs second gradients.
#
# **Predict.** As a penalty, we add to the loss the squared gradient of the hidden rows. That should
# change the head's gradient. By what percentage does the head's gradient change with `InForward`?

# %% id="guess-second"
guess = None  # %


# %% id="second"
def penalised(loss_of, strength):
    loss = loss_of(head, hidden, targets)
    (slope,) = torch.autograd.grad(loss, hidden, create_graph=True)
    loss = loss + strength * slope.square().sum()
    return torch.autograd.grad(loss, head.weight)[0]


changes = {}
for name, way in {"usual": usual, "in forward": in_forward}.items():
    without, with_it = penalised(way, 0), penalised(way, 1)
    changes[name] = 100 * ((with_it - without).norm() / without.norm()).item()
change = changes["in forward"]
print(f"in forward: {change:.0f} %{beside(guess, change)}")
print(f"usual: {changes['usual']:.0f} %")

# %% [markdown] id="second-read"
# With `InForward` the penalty has no effect, and nothing raises an error. But `backward` can detect
# the case: while it runs, gradients are enabled only if the caller set `create_graph=True`.
#
# **Write.** `Refusing.backward`. With `create_graph=True`, raise a `RuntimeError` that says what to
# do instead. Otherwise do what `InForward` does.


# %% id="refusing"
class Refusing(InForward):
    """The same loss; a backward with `create_graph` raises a RuntimeError."""

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this loss has only first gradients, but create_graph asks for a "
                "second one: use the loss in checkpointed chunks."
            )
        return InForward.backward(ctx, gradient)
        ### END SOLUTION


# %% id="check-refusing"
# @title Check: run this cell
@blanks.check("Refusing", "raise a RuntimeError, or return InForward's gradients")
def refuses():
    hidden, weight = (torch.randn(n, 4, requires_grad=True) for n in (6, 16))
    targets = torch.randint(16, (6,))

    def gradients(kind, **settings):
        loss = kind.apply(hidden, weight, targets, 4)
        return torch.autograd.grad(loss, (hidden, weight), **settings)

    seen, exact = gradients(Refusing), gradients(InForward)
    assert all(map(torch.equal, seen, exact)), "Backward differs from InForward's."
    said = ""
    try:
        gradients(Refusing, create_graph=True)
    except RuntimeError as error:
        said = str(error)
    assert said, "`create_graph=True` must raise a RuntimeError with a message."
    assert len(said.split()) > 3, f"{said!r} does not say what to do instead."


# %% [markdown] id="torch-text"
# ## Which function should you call?
#
# Your own training can call a ready-made function:
#
# | function | what it does | logits computed |
# |---|---|---|
# | PyTorch, `F.linear_cross_entropy(..., options=...)` | chunks, gradients in forward | once |
# | Liger Kernel (Hsu et al., 2024) | the same, with each chunk's loss in one kernel | once |
# | Cut Cross-Entropy (Wijmans et al., 2024) | one kernel, no logits in memory at all | twice |
# | `checkpoint` around chunks | your `checkpointed`; any loss, second gradients too | twice |
#
# PyTorch's function is new. With its default, `options=None`, or with `label_smoothing` above 0, it
# computes the full logits.

# %% id="torch"
# NBVAL_IGNORE_OUTPUT
if hasattr(nn, "LinearCrossEntropyOptions"):
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=64)

    def torch_own(head, hidden, targets):
        return F.linear_cross_entropy(
            hidden, head.weight, targets, reduction="sum", options=options
        )

    peak, _, gradients = run(torch_own)
    pairs = zip(gradients, exact, strict=True)
    same = all(torch.allclose(g, e, atol=1e-5) for g, e in pairs)
    print(f"{human_bytes(peak)}, same gradients: {same}")

# %% [markdown] id="real-text"
# ## At real size
#
# Here are predictions for the two published models, with chunks of 512 tokens. In the second
# column, `of_weight` is bfloat16, like the weights. In the third, the head is frozen, as with LoRA,
# so it needs no gradient. Gemma-2 also caps its logits, which we leave out.

# %% id="real"
rows = {}
for name, tokens in product(NAMES, (4096, 8192)):
    ends = [end_of(name, tokens, way) for way in (usual, in_forward)]
    ends.append(end_of(name, tokens, checkpointed, frozen=True))
    rows[f"{name}, {tokens}"] = [f"{added(end) / GIB:.2f}" for end in ends]
columns = ["usual", "in forward", "checkpointed, head frozen"]
print("GiB beyond head, rows and their gradients, predicted")
pd.DataFrame.from_dict(rows, orient="index", columns=columns)


# %% [markdown] id="real-read"
# The memory of `InForward` hardly depends on the number of tokens. It is mostly two tensors of the
# head's size: the sum of its gradients, and one chunk's gradient.

# %% [markdown] id="your-run-text"
# ## Your run
#
# In `train.py`, the loss of a four-sequence micro-batch still holds three tensors of 4096 x 50257.
#
# **Write.** `loss_of`, with `checkpointed` and `model.head`. The mean is over the targets that
# count: those >= 0. `train.hidden_of(model, tokens)` returns hidden rows (batch, sequence, width),
# and `train.targets_of(tokens)` returns flat targets.


# %% id="loss-of"
def loss_of(model, tokens, size=512):
    """Return the mean loss of predicting each next token, `size` tokens at a time."""
    ### BEGIN SOLUTION
    targets = train.targets_of(tokens)
    hidden = train.hidden_of(model, tokens).flatten(0, 1)
    return checkpointed(model.head, hidden, targets, size) / (targets >= 0).sum()
    ### END SOLUTION


# %% id="check-loss-of"
# @title Check: run this cell
@blanks.check("loss_of", "return the mean loss, as a tensor")
def loss_is_in_chunks():
    tokens, made = your_run.RAGGED, []
    model, _ = train.make(train.TWIN)
    wanted = train.loss_of(model, tokens)
    (true,) = torch.autograd.grad(wanted, model.head.weight)
    hook = model.head.register_forward_hook(lambda *of: made.append(len(of[2])))
    loss = loss_of(model, tokens, size=300)
    first = list(made)
    made.clear()
    (seen,) = torch.autograd.grad(loss, model.head.weight)
    hook.remove()
    assert first == [300, 300, 168], f"Expected chunks of 300, 300, 168, not {first}."
    assert torch.allclose(loss, wanted), f"The mean is {wanted:.4f}, not {loss:.4f}."
    assert made == [168, 300, 300], f"Backward made the logits of {made} tokens."
    assert torch.allclose(seen, true, atol=1e-6), "The head's gradient is wrong."


# %% id="apply"
your_run.apply("10d", loss_of=loss_of)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** How much memory do the float32 logits of 8192 tokens take, with a vocabulary of 128256? And
# the logits of a 512-token chunk?
#
# <details><summary>Answer</summary>
#
# $8192 \cdot 128256 \cdot 4$ bytes are 3.9 GiB. A chunk has a sixteenth of that, 250 MiB.
# </details>
#
# **2.** The width in problem 1 is 4096. How many FLOPs do the head's matmuls take in forward and
# backward, and how many do checkpointed chunks add?
#
# <details><summary>Answer</summary>
#
# They take three matmuls of $2 \cdot 8192 \cdot 128256 \cdot 4096$ FLOPs, 8.6 TFLOP each.
# Checkpointed chunks compute the logits once more, which adds a third.
# </details>
#
# **3.** One chunk has 300 tokens that count and a mean of 2; another has 100 and a mean of 4. What
# is the mean over all tokens?
#
# <details><summary>Answer</summary>
#
# $(300 \cdot 2 + 100 \cdot 4)/400 = 2.5$. The mean of the means is 3.
# </details>

# %% [markdown] id="end"
# ## What you can now do
#
# - Compute a loss's bytes from tokens and vocabulary, and say when a step peaks in the loss.
# - Compute a loss and its gradients one chunk at a time, without more arithmetic.
# - Say what such a loss cannot do, and make it raise an error in that case.
#
# In lab 10, `lab10_the_loss`, you build such a loss for a real head. Two companions continue:
# [10f](10f_after_training.ipynb) with training by rewards, [10g](10g_the_mlp_in_tiles.ipynb) with
# the MLP in tiles.
