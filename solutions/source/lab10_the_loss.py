# %% [markdown] id="title"
# # Lab 10: the loss that does not fit
#
# At every position, Llama-3 computes a score (a *logit*) for each of the 128,256 tokens of its
# vocabulary. If every block is checkpointed, the logits are often the largest activation. In this
# lab you write a loss that takes a few tokens at a time: it computes their logits, loss and
# gradients, and then drops the logits. It combines checkpointing and accumulation in one function,
# and the gradients are exact.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 10.1 | loss and gradients of a chunk, by hand | 2 |
# | 10.2 | the loss in checkpointed chunks | 2 |
# | 10.3 | the loss whose forward computes the gradients | 4 |
# | 10.4 | the mean over the tokens that count | 3 |
# | 10.5 | what replaces a head and its loss | 4 |
# | 10.6 | the chunk for a budget | 3 |
#
# Write each answer into its `# exercise` cell; helper functions, imports and constants may go into
# your own cells above it. Where a cell says `guess = None`, write a number first. Chapter 10d
# prepares you for this lab.
#
# The *head* is the last linear layer: it turns a token's `width` values into one logit per entry of
# the vocabulary. A *chunk* is a few consecutive tokens.

# %% id="imports"
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.units import MIB

IGNORED = -100  # the target of a token that does not count, as in F.cross_entropy

# %% [markdown] id="subject"
# ## Where it starts
#
# We use 1024 tokens, a width of 32, and a vocabulary of 8192: a small copy of a large model's last
# layer. The next cells compute the usual loss and count the bytes that it adds to what was in
# memory before.
#
# **Predict.** In float32, the logits of 1024 tokens for 8192 entries take 32 MiB. How many MiB does
# the step, from the hidden rows to their gradients, add at its peak?

# %% id="guess-usual"
guess = None  # MiB

# %% id="usual"
torch.set_num_threads(1)  # sums in one order, and no waiting for a busy core
torch.manual_seed(0)
hidden = nn.Parameter(torch.randn(1024, 32))  # (tokens, width)
weight = nn.Parameter(torch.randn(8192, 32) / 4)  # (vocab, width)
targets = torch.randint(8192, (1024,))  # (tokens,)


def usual_loss(hidden, targets, weight):
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum")


def step(loss_of):
    loss = loss_of(hidden, targets, weight)
    loss.backward()
    return loss.item()


# %% id="measure-usual"
def report_of(loss_of):
    hidden.grad, weight.grad = torch.zeros_like(hidden), torch.zeros_like(weight)
    model = nn.ParameterList([hidden, weight])
    with memory.watch("The usual loss", model=model) as report:
        step(loss_of)
    return report


def peak_mib(loss_of):
    report = report_of(loss_of)
    return (report.peak_bytes - report.baseline_bytes) / MIB


peaks = {"the usual loss": peak_mib(usual_loss)}
print(f"{peaks['the usual loss']:.0f} MiB{beside(guess, peaks['the usual loss'])}")
plots.step_timeline(report_of(usual_loss))

# %% [markdown] id="text-10-1"
# At the peak there are three tensors of the size tokens x vocabulary: the log-probabilities that
# forward keeps, their gradient, and the logits' gradient.
#
# ## 10.1 A chunk, by hand
#
# Difficulty 2/5 · importance 4/5 · 10 minutes
#
# If $p$ is the softmax of a token's logits and $y$ its target, the loss is $-\log p_y$. Its
# gradient with respect to the logits, the *slope*, is $p - e_y$: the probabilities, minus 1 at the
# target. Two matmuls turn the slope into the gradients of the hidden rows and of the head's matrix.
# The goal: both gradients are within 1e-12 of autograd's, even for large logits. "By hand" means
# without autograd: the check calls your function with gradients off, and your function may not call
# anything in `torch.autograd` or `torch.func` that differentiates.


# %% id="answer-10-1"
# exercise 10.1
def chunk_gradients(
    hidden: Tensor, targets: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss of some tokens, and its gradients.

    Args:
        hidden: What the head is given, `(tokens, width)`; left alone.
        targets: The right tokens, `(tokens,)`.
        weight: The head's matrix, `(vocab, width)`; left alone.

    Returns:
        The cross-entropies, added up over the tokens, a scalar; its gradient by
        `hidden`; its gradient by `weight`.
    """
    ### BEGIN SOLUTION
    log_chances = (hidden @ weight.T).log_softmax(1)  # (tokens, vocab)
    loss = -log_chances.gather(1, targets[:, None]).sum()
    slope = log_chances.exp_()  # of the logits; in place, since it is the largest
    slope[torch.arange(len(targets)), targets] -= 1
    return loss, slope @ weight, slope.T @ hidden
    ### END SOLUTION


# %% id="check-10-1"
# check 10.1 (2 points)
checks.lab10.chunk_gradients(chunk_gradients)

# %% [markdown] id="hints-10-1"
# <details><summary>Hint 1: the logarithm</summary>
#
# `logits.log_softmax(1)` is safe for large logits, unlike `softmax(1).log()`. Its `exp` is $p$.
# </details>
# <details><summary>Hint 2: the targets</summary>
#
# `x.gather(1, targets[:, None])` picks the entry of each token's target. `x[rows, targets] -= 1`
# changes these entries, where `rows` counts through the tokens.
# </details>
# <details><summary>Hint 3: the shapes</summary>
#
# The slope is `(tokens, vocab)`. Which matmul with `weight` has the shape `(tokens, width)`, and
# which one with `hidden` has `(vocab, width)`?
# </details>
#
# ## 10.2 Checkpointed chunks
#
# Difficulty 2/5 · importance 4/5 · 8 minutes
#
# You know a tool that drops what a function saved and recomputes it in backward: `checkpoint`,
# imported above. Use it on the loss of one chunk. The goal: return the whole loss with exact
# gradients, and hold only one chunk's logits at a time.


# %% id="answer-10-2"
# exercise 10.2
def checkpointed_loss(
    hidden: Tensor, targets: Tensor, weight: Tensor, chunk: int
) -> Tensor:
    """Add up the losses of all tokens, a checkpointed chunk at a time.

    Args:
        hidden: `(tokens, width)`.
        targets: `(tokens,)`.
        weight: `(vocab, width)`.
        chunk: Tokens in a chunk, whose logits are one tensor; the last may have fewer.

    Returns:
        The sum of the cross-entropies, a scalar to go backward from.
    """
    ### BEGIN SOLUTION
    total = hidden.new_zeros(())
    for rows, theirs in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        total = total + checkpoint(
            usual_loss, rows, theirs, weight, use_reentrant=False
        )
    return total
    ### END SOLUTION


# %% id="check-10-2"
# check 10.2 (2 points)
checks.lab10.checkpointed_loss(checkpointed_loss)

# %% [markdown] id="hints-10-2"
# <details><summary>Hint 1: chunks</summary>
#
# `hidden.split(chunk)` and `targets.split(chunk)` return views; the last may be shorter.
# </details>
# <details><summary>Hint 2: what goes inside</summary>
#
# The checkpointed function must compute the logits itself, as `usual_loss` does.
# </details>
# <details><summary>Hint 3: the call</summary>
#
# Call `checkpoint(function, *arguments, use_reentrant=False)` for one chunk at a time, and add up
# the results.
# </details>
#
# What does it cost? The usual loss runs three matmuls of tokens x vocabulary x width: one for the
# logits, and one for each of the two gradients.
#
# **Predict.** With all chunks together, how many such matmuls does a step with `checkpointed_loss`
# run?

# %% id="guess-matmuls"
guess = None  # matmuls


# %% id="count-matmuls"
def matmuls(loss_of):
    with memory.flop_counter() as counter:
        step(loss_of)
    return counter.get_total_flops() / (2 * 1024 * 8192 * 32)


in_chunks = partial(checkpointed_loss, chunk=64)
count = matmuls(in_chunks)
print(f"the usual loss: {matmuls(usual_loss):.0f}")
print(f"in checkpointed chunks: {count:.0f}{beside(guess, count)}")
peaks["checkpointed chunks"] = peak_mib(in_chunks)

# %% [markdown] id="text-10-3"
# ## 10.3 Once, in forward
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# `checkpointed_loss` computes the logits twice, because it needs them again in backward. But the
# loss is the end of the model, so you can compute a chunk's gradients along with its loss. In
# `fused_loss`, write an `autograd.Function` whose forward adds up the gradients, and whose backward
# multiplies the sums by the gradient that arrives. `chunk_of` is `chunk_gradients` or a function
# like it.
#
# The goals: compute each chunk once, and add up its gradients immediately; hold no gradients after
# backward, even if the loss is kept; refuse a gradient of the gradient, which the sums can't
# provide.


# %% id="answer-10-3"
# exercise 10.3
def fused_loss(
    chunk_of, chunk: int, hidden: Tensor, targets: Tensor, *weights: Tensor
) -> Tensor:
    """Add up the losses of all tokens; forward makes the gradients too.

    Args:
        chunk_of: Called with rows, their targets and all weights. Gives the sum of
            their losses, its gradient by the rows, which is always a tensor, and one by
            each weight, or None for a weight that is frozen.
        chunk: Tokens in a chunk; the last one may have fewer.
        hidden: `(tokens, width)`.
        targets: `(tokens,)`.
        *weights: The head's parameters.

    Returns:
        The sum of the losses, a scalar to go backward from.

    Raises:
        RuntimeError: In backward, when it is asked for with `create_graph`; the message
            names `create_graph`.
    """

    ### BEGIN SOLUTION
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, *weights):
            of_rows = torch.empty_like(hidden)
            kinds = [torch.promote_types(w.dtype, torch.float32) for w in weights]
            sums = [
                torch.zeros_like(w, dtype=kind) if w.requires_grad else None
                for w, kind in zip(weights, kinds, strict=True)
            ]

            def add(rows, theirs, of_these):
                """Add one chunk to the sums; nothing else of it is left at the end."""
                loss, found, *gradients = chunk_of(rows, theirs, *weights)
                of_these.copy_(found)
                for total, gradient in zip(sums, gradients, strict=True):
                    if total is not None:
                        total += gradient
                return loss

            parts = zip(
                *(x.split(chunk) for x in (hidden, targets, of_rows)), strict=True
            )
            loss = sum(add(*part) for part in parts)
            narrow = zip(sums, weights, strict=True)
            sums = [None if s is None else s.to(w.dtype) for s, w in narrow]
            ctx.save_for_backward(of_rows, *sums)
            return loss

        @staticmethod
        def backward(ctx, slope):
            if torch.is_grad_enabled():
                raise RuntimeError(
                    "this loss has first gradients alone, and create_graph asks for a "
                    "second one: take checkpointed_loss."
                )
            return (*(None if s is None else slope * s for s in ctx.saved_tensors),)

    return Fused.apply(hidden, *weights)
    ### END SOLUTION


# %% id="check-10-3"
# check 10.3 (4 points)
checks.lab10.fused_loss(fused_loss)

# %% [markdown] id="hints-10-3"
# <details><summary>Hint 1: the arguments of apply</summary>
#
# Autograd sees the tensors among `apply`'s arguments: `hidden` and each weight. The rest may come
# from the enclosing function. `backward` returns as many values as `apply` has arguments.
# </details>
# <details><summary>Hint 2: sums</summary>
#
# Use one tensor of zeros for each trained weight, and `+=`. Concatenate the rows' gradients. A
# variable that still refers to a chunk's gradients keeps them in memory while the next are
# computed, so add them in a separate function. `ctx.save_for_backward` takes tensors and None.
# </details>
# <details><summary>Hint 3: the gradient that arrives</summary>
#
# For `(3 * loss).backward()` the gradient that arrives is 3. If you multiply in place, the sums are
# wrong in a second backward.
# </details>
# <details><summary>Hint 4: the second gradient</summary>
#
# In backward, gradients are off unless the caller set `create_graph=True`;
# `torch.is_grad_enabled()` tells you. `once_differentiable` isn't enough: it notices only an
# arriving gradient that itself has a graph.
# </details>

# %% id="after-10-3"
fused = partial(fused_loss, chunk_gradients, 64)
peaks["made in forward"] = peak_mib(fused)
ways = {"usual": usual_loss, "checkpointed": in_chunks, "forward": fused}
rows = {"MiB at the peak": list(peaks.values()), "matmuls": map(matmuls, ways.values())}
pd.DataFrame(rows, index=peaks).round(1)

# %% [markdown] id="text-10-4"
# ## 10.4 The mean over the tokens that count
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# Batches are ragged: padding tokens have the target `IGNORED`, and in fine-tuning, so do prompt
# tokens. The mean is over the tokens that count, in the whole window if there are several
# micro-batches. `loss_sum` returns a sum of losses. It can't handle ignored tokens, so pass it only
# those that count, which also saves matmuls. The goal: compute the window's exact mean, even if a
# micro-batch has no token that counts. Then that micro-batch's loss is 0, and so are all its
# gradients.


# %% id="answer-10-4"
# exercise 10.4
def mean_over_counted(
    loss_sum, hidden: Tensor, targets: Tensor, num_counted: int | None = None
) -> Tensor:
    """Divide a sum of losses by the number of tokens that count.

    Args:
        loss_sum: Called with rows `(tokens, width)` and targets `(tokens,)`, perhaps of
            no token; gives the sum of their losses.
        hidden: `(batch, seq, width)`.
        targets: `(batch, seq)`; `IGNORED` where a token does not count.
        num_counted: Tokens that count in the window; None for this micro-batch alone.

    Returns:
        A scalar to go backward from, 0 where no token counts: all gradients are then
        zeros, and none is missing.

    Raises:
        ValueError: When `num_counted` is below the tokens that count here; names both.
    """
    ### BEGIN SOLUTION
    counts = targets != IGNORED
    here = int(counts.sum())
    if num_counted is not None and num_counted < here:
        raise ValueError(
            f"num_counted (={num_counted}) is the window's, and this micro-batch alone "
            f"has {here}: count over all of its micro-batches."
        )
    total = loss_sum(hidden[counts], targets[counts])
    return total / max(here if num_counted is None else num_counted, 1)
    ### END SOLUTION


# %% id="check-10-4"
# check 10.4 (3 points)
checks.lab10.mean_over_counted(mean_over_counted)

# %% [markdown] id="hints-10-4"
# <details><summary>Hint 1: selecting</summary>
#
# `hidden[mask]` with a mask `(batch, seq)` has the shape `(tokens, width)`, and autograd can
# differentiate it.
# </details>
# <details><summary>Hint 2: nothing counts</summary>
#
# For an empty selection `loss_sum` returns a loss of 0, with a graph for backward. Divide that loss
# by 1, not by 0.
# </details>
#
# ## 10.5 Replace the head
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# Now put it all together, as `loss = head_loss(model.head, hidden, targets, chunk)`.
#
# - **The head** may have a bias, and its matrix may also be the embeddings' matrix. In that case,
#   too, return only the head's gradient: autograd adds the embeddings' gradient.
# - **Types.** Under autocast, or in a model that is all bfloat16, the matmuls are bfloat16. But
#   softmax and sums over chunks must be float32, because a bfloat16 sum of hundreds of terms stops
#   growing. If your `fused_loss` adds in the weights' type, change it.
# - **Autocast** is still on in the forward of your `Function`, but off in its backward. The rows
#   may be bfloat16 and the matrix float32.
#
# (In float16 a `GradScaler`'s factor arrives in backward, after forward has rounded. So don't
# divide by the number of tokens in forward: keep the gradient of the *sum*.)
#
# The loss must be exact in float64. With bfloat16 its error may be at most 1.5 times the usual
# loss's. If no token counts, the loss must be 0. Hold the logits of only one chunk at a time. Your
# function takes the fewest bytes if the slope replaces the softmax in place (`exp_`), and if
# nothing of a chunk stays in memory while you compute the next.


# %% id="answer-10-5"
# exercise 10.5
def head_loss(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    chunk: int,
    num_counted: int | None = None,
) -> Tensor:
    """Compute the cross-entropy of `head(hidden)`, whose logits never exist as a whole.

    Args:
        head: With a bias or without; its matrix may belong to another module too, and
            parameters may be frozen.
        hidden: `(batch, seq, width)`.
        targets: `(batch, seq)`; `IGNORED` where a token does not count.
        chunk: Tokens in a chunk, whose logits are one tensor.
        num_counted: As for `mean_over_counted`.

    Returns:
        The mean over the tokens that count, a scalar to go backward from; float32 where
        the logits are bfloat16.
    """

    ### BEGIN SOLUTION
    def chunk_of(rows, theirs, weight, bias=None):
        logits = F.linear(rows, weight, bias)  # bfloat16 under autocast
        wide = torch.promote_types(logits.dtype, torch.float32)
        slope = logits.log_softmax(1, dtype=wide)
        loss = -slope.gather(1, theirs[:, None]).sum()
        slope.exp_()[torch.arange(len(theirs)), theirs] -= 1
        narrow = logits.copy_(slope)  # for the matmuls, in their type; no new tensor
        found = [narrow @ weight, narrow.T @ rows if weight.requires_grad else None]
        if bias is not None:
            found.append(slope.sum(0) if bias.requires_grad else None)
        return loss, *found

    def loss_sum(rows, theirs):
        return fused_loss(chunk_of, chunk, rows, theirs, *head.parameters())

    return mean_over_counted(loss_sum, hidden, targets, num_counted)
    ### END SOLUTION


# %% id="check-10-5"
# check 10.5 (4 points)
checks.lab10.head_loss(head_loss)

# %% [markdown] id="hints-10-5"
# <details><summary>Hint 1: what you have</summary>
#
# `mean_over_counted` needs a `loss_sum`. `fused_loss` becomes one if you bind its arguments
# `chunk_of`, `chunk` and `head.parameters()` (first the matrix, then the bias if there is one).
# </details>
# <details><summary>Hint 2: a new chunk_of</summary>
#
# `F.linear(rows, weight, bias)` follows autocast. The gradient of the bias is the slope, summed
# over the tokens.
# </details>
# <details><summary>Hint 3: types</summary>
#
# `log_softmax(1, dtype=torch.float32)` computes in float32. But float64 must stay float64:
# `torch.promote_types` returns the wider of two types. Use it for the sums of `fused_loss` too, and
# cast them to the weight's type at the end of forward. Otherwise the product in backward is one
# more float32 tensor.
# </details>
# <details><summary>Hint 4: frozen parameters</summary>
#
# Return None for a frozen parameter's gradient: that saves a matmul and a sum. The rows' gradient
# is never None.
# </details>

# %% [markdown] id="predict-tied"
# In Gemma-2 the head's matrix is the embeddings' matrix. The next cells build a small model with
# such a *tied* matrix.
#
# **Predict.** `tied.weight.grad` is the sum of the head's gradient and the embeddings'. In the
# embeddings' gradient, how many of the 8192 rows are zero? (Each of the 1024 random tokens looks up
# one row.)

# %% id="guess-tied"
guess = None  # rows


# %% id="tied"
tied = nn.Embedding(8192, 32)
head = nn.Linear(32, 8192, bias=False)
head.weight = tied.weight
tokens = torch.randint(8192, (8, 128))  # (batch, seq)
looked_up = len(tokens.unique())

loss = head_loss(head, tied(tokens), targets.view(8, 128), chunk=64)
loss.backward()
zero_rows = 8192 - looked_up
print(f"{zero_rows} rows of the embeddings' part are zero{beside(guess, zero_rows)}")
print(f"of the sum: {(tied.weight.grad == 0).all(1).sum()}")

# %% [markdown] id="text-10-6"
# ## 10.6 The chunk for a budget
#
# Difficulty 3/5 · importance 4/5 · 10 minutes
#
# Small chunks save bytes; large ones make large, fast matmuls. Each number of the head and of
# the hidden rows takes `size` bytes. At the peak, memory holds the head, the rows, and:
#
# | what | bytes |
# |---|---|
# | the selected rows that count, and their gradient | twice those of `hidden` |
# | for each trained number: the sum in float32, and one gradient in its own type | size + 4 |
# | for each token of a chunk: logits in `hidden`'s type and in float32 | vocabulary x (size + 4) |
# | for each token of a chunk: the gradient of its row | width x size |
#
# (A CPU's `log_softmax` from bfloat16 makes one more copy in float32; a GPU's doesn't. Backward
# holds three times the bytes of `hidden`, but no chunk, so its peak is higher only if a chunk takes
# less than `hidden`.)
#
# The goal: use the fewest chunks that fit, and make them as even as possible: 500 + 500, not 999 +
# 1.


# %% id="answer-10-6"
# exercise 10.6
def choose_chunk(head: nn.Linear, hidden: Tensor, budget: int) -> int:
    """Choose the tokens of a chunk for a number of bytes.

    Args:
        head: Of one dtype; some parameters may be frozen. On any device, `meta` too.
        hidden: `(batch, seq, width)`, of the same dtype; every token counts.
        budget: Bytes beyond head and hidden.

    Returns:
        Tokens in a chunk: the smallest number that makes as few chunks as can be.

    Raises:
        ValueError: When a chunk of one token does not fit: names the budget and the
            bytes that it needs.
    """
    ### BEGIN SOLUTION
    width, size = hidden.shape[-1], hidden.element_size()
    tokens = hidden.numel() // width
    learns = sum(p.numel() for p in head.parameters() if p.requires_grad)
    of_token = head.out_features * (size + 4) + width * size
    floor = 2 * hidden.nbytes + learns * (size + 4)
    largest = (budget - floor) // of_token
    if largest < 1:
        least = floor + of_token
        raise ValueError(
            f"a chunk of one token needs {least} bytes, and the budget is {budget}: "
            "freeze the head, or take fewer tokens."
        )
    chunks = -(-tokens // largest)
    return -(-tokens // chunks)
    ### END SOLUTION


# %% id="check-10-6"
# check 10.6 (3 points)
checks.lab10.choose_chunk(choose_chunk)

# %% [markdown] id="hints-10-6"
# <details><summary>Hint 1: rounding</summary>
#
# `a // b` rounds down, and `-(-a // b)` rounds up.
# </details>
# <details><summary>Hint 2: two steps</summary>
#
# First find the largest chunk that fits, then the number of chunks, then the smallest chunk size
# with the same number.
# </details>
# <details><summary>Hint 3: the refusal</summary>
#
# Check the largest chunk: if it is below 1, nothing fits.
# </details>
#
# Does your loss stay within the budget? The meter tells you.

# %% id="within"
budget = 8 * 2**20
rows = nn.Parameter(torch.randn(8, 128, 32))
size = choose_chunk(head, rows, budget)
head.weight.grad, rows.grad = torch.zeros_like(head.weight), torch.zeros_like(rows)
with memory.watch(model=nn.ModuleList([head, nn.ParameterList([rows])])) as report:
    head_loss(head, rows, targets.view(8, 128), size).backward()
used = report.peak_bytes - report.baseline_bytes
print(f"chunks of {size} tokens: {used / MIB:.1f} of {budget / MIB:.0f} MiB")
if used > budget:
    print("Above the table: is the slope a second tensor, or does a chunk stay?")

# %% [markdown] id="real"
# **Predict.** Llama-3-8B is in bfloat16, with a vocabulary of 128,256 and a width of 4096. The
# batch is one sequence of 8192 tokens, and the budget is 4 GiB. Into how many chunks does your
# function cut the sequence?

# %% id="guess-chunks"
guess = None  # chunks

# %% id="llama"
there = {"device": "meta", "dtype": torch.bfloat16}
llama = nn.Linear(4096, 128_256, bias=False, **there)
text = torch.empty(1, 8192, 4096, **there)
chunks = -(-8192 // choose_chunk(llama, text, 4 * 2**30))
print(f"{chunks} chunks{beside(guess, chunks)}")

# %% [markdown] id="gpu-text"
# ## On a GPU
#
# This ungraded cell runs your functions unchanged, with Llama's head if it fits, otherwise a
# smaller one.

# %% id="gpu"
# NBVAL_IGNORE_OUTPUT
vocab, tokens = device.pick_by_tier(
    cpu=(1000, 64), small_gpu=(32_000, 4096), large_gpu=(128_256, 8192)
)
if torch.cuda.is_available():
    there = {"device": "cuda", "dtype": torch.bfloat16}
    head = nn.Linear(4096, vocab, bias=False, **there)
    rows = torch.randn(1, tokens, 4096, requires_grad=True, **there)
    goal = torch.randint(vocab, (1, tokens), device="cuda")
    for name, size in (("usual", tokens), ("in chunks", 512)):
        with memory.watch(model=head) as report:
            head_loss(head, rows, goal, size).backward()
        print(f"{name}, measured: {report.peak_bytes}")

# %% [markdown] id="end"
# From 2.13 on, PyTorch has such a loss: `F.linear_cross_entropy(..., options=...)`. It accepts only
# `(tokens, width)`, and with `label_smoothing` it computes all logits (chapter 10d).
