# %% [markdown] id="title"
# # Lab 10: the loss that does not fit
#
# You write a loss that takes a few tokens at a time. It computes their logits, loss and
# gradients, and then drops the logits. The gradients are exact.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 10.1 | loss and gradients of a chunk, by hand | 2 |
# | 10.2 | the loss in checkpointed chunks | 2 |
# | 10.3 | the loss whose forward computes the gradients | 4 |
# | 10.4 | the mean over the tokens that count | 3 |
# | 10.5 | one function in place of a head and its loss | 4 |
# | 10.6 | the chunk size for a budget of bytes | 3 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. Read chapter 10d first.
#
# The *head* is the last linear layer. It turns a token's *hidden row*, of `width` values, into one
# logit per entry of the vocabulary. A *chunk* is a few consecutive tokens.

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
# We use 1024 tokens, a width of 32, and a vocabulary of 8192.
#
# **Predict.** In float32, the logits of 1024 tokens for 8192 entries take 32 MiB. How
# many MiB does a step (forward and backward) with the usual loss add at its peak?

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
# If $p$ is the softmax of a token's logits and $y$ its target, the loss is $-\log p_y$. The loss's
# gradient with respect to the logits, the *slope*, is $p - e_y$: the probabilities, with 1
# subtracted at the target. Two matmuls turn the slope into the gradients of the hidden rows and of
# the head's matrix.
#
# The goal: both gradients are within 1e-12 of autograd's, even for large logits.
# Nothing from `torch.autograd` or `torch.func` may compute them; in the check,
# gradients are off.


# %% id="answer-10-1"
# exercise 10.1
def chunk_gradients(
    hidden: Tensor, targets: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss of some tokens, and its gradients.

    Args:
        hidden: The head's input, `(tokens, width)`. Don't change it.
        targets: The right tokens, `(tokens,)`.
        weight: The head's matrix, `(vocab, width)`. Don't change it.

    Returns:
        The sum of the tokens' cross-entropies, a scalar. Its gradient with respect to
        `hidden`. Its gradient with respect to `weight`.
    """
    ### BEGIN SOLUTION
    log_chances = (hidden @ weight.T).log_softmax(1)  # (tokens, vocab)
    loss = -log_chances.gather(1, targets[:, None]).sum()
    slope = log_chances.exp_()  # in place: it is the largest tensor
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
# subtracts 1 from these entries, if `rows` is 0, 1, 2 and so on.
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
# Now use `checkpoint`, imported above, on the loss of one chunk at a time. The goal:
# return the whole loss with exact gradients, and hold only one chunk's logits at a
# time.


# %% id="answer-10-2"
# exercise 10.2
def checkpointed_loss(
    hidden: Tensor, targets: Tensor, weight: Tensor, chunk: int
) -> Tensor:
    """Add up the losses of all tokens, one checkpointed chunk at a time.

    Args:
        hidden: `(tokens, width)`.
        targets: `(tokens,)`.
        weight: `(vocab, width)`.
        chunk: Tokens per chunk; the last chunk may have fewer. A chunk's logits are one
            tensor.

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
# `hidden.split(chunk)` and `targets.split(chunk)` return views; the last view may be shorter.
# </details>
# <details><summary>Hint 2: what goes inside</summary>
#
# The checkpointed function must compute the logits itself, as `usual_loss` does.
# </details>
# <details><summary>Hint 3: the call</summary>
#
# Call `checkpoint(function, *arguments, use_reentrant=False)` for each chunk.
# </details>
#
# The usual loss runs three matmuls of tokens x vocabulary x width: one for the logits,
# and one for each of the two gradients.
#
# **Predict.** How many such matmuls does a step with `checkpointed_loss` run? (One
# matmul over all 1024 tokens, done in chunks, counts as one.)

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
# The loss is a scalar, so the gradient that arrives in backward is one number. You can
# therefore compute a chunk's gradients already in forward, from the same logits, and
# multiply them by that number later. In `fused_loss`, write an `autograd.Function`
# whose forward adds up the gradients. Its backward multiplies the sums by the gradient
# that arrives.
#
# The goals: compute each chunk once, and add up its gradients immediately. Hold no
# gradients after backward, even if the loss is kept. Raise an error if the caller sets
# `create_graph=True`.


# %% id="answer-10-3"
# exercise 10.3
def fused_loss(
    chunk_of, chunk: int, hidden: Tensor, targets: Tensor, *weights: Tensor
) -> Tensor:
    """Add up the losses of all tokens; forward also computes the gradients.

    Args:
        chunk_of: Called with rows, their targets and all weights. Returns the sum of
            the rows' losses, its gradient with respect to the rows (always a tensor),
            and its gradient with respect to each weight (None for a frozen weight).
        chunk: Tokens per chunk; the last chunk may have fewer.
        hidden: `(tokens, width)`.
        targets: `(tokens,)`.
        *weights: The head's parameters.

    Returns:
        The sum of the losses, a scalar to go backward from.

    Raises:
        RuntimeError: In backward, if it is called with `create_graph=True`; the message
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
# Use one tensor of zeros for each trained weight, and `+=`. Concatenate the rows' gradients. Do the
# adding in a separate function: a variable that still refers to a chunk's gradients keeps them in
# memory while the next chunk is computed. `ctx.save_for_backward` takes tensors and None.
# </details>
# <details><summary>Hint 3: the gradient that arrives</summary>
#
# Don't multiply the sums in place, or a second backward is wrong.
# </details>
# <details><summary>Hint 4: the second gradient</summary>
#
# In backward, gradients are off unless the caller set `create_graph=True`. So in
# backward `torch.is_grad_enabled()` tells you whether to raise the error. (PyTorch's
# decorator `once_differentiable` misses some cases.) </details>

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
# Batches are ragged: padding tokens have the target `IGNORED`, and in fine-tuning, so
# do prompt tokens. The mean is over the tokens that count, in all micro-batches of an
# update (the *window*). The given `loss_sum` can't handle ignored tokens, so pass it
# only the tokens that count.
#
# The goal: the losses of a window's micro-batches add up to the window's exact mean. A micro-batch
# without a token that counts has a loss of 0, and all its gradients are 0.


# %% id="answer-10-4"
# exercise 10.4
def mean_over_counted(
    loss_sum, hidden: Tensor, targets: Tensor, num_counted: int | None = None
) -> Tensor:
    """Divide a sum of losses by the number of tokens that count.

    Args:
        loss_sum: Called with rows `(tokens, width)` and targets `(tokens,)`; `tokens`
            may be 0. Returns the sum of their losses.
        hidden: `(batch, seq, width)`.
        targets: `(batch, seq)`; `IGNORED` where a token does not count.
        num_counted: Number of tokens that count in the window. None if the window is
            this micro-batch alone.

    Returns:
        A scalar to go backward from. If no token counts, it is 0, and all gradients are
        zeros, not None.

    Raises:
        ValueError: If `num_counted` is less than the number of tokens that count here;
            the message names both.
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
# For an empty selection, `loss_sum` returns a loss of 0, with a graph for backward. Divide that
# loss by 1, not by 0.
# </details>
#
# ## 10.5 Replace the head
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# Now put it all together in one function, `head_loss(model.head, hidden, targets, chunk)`. Three
# things are new:
#
# - **The head** may have a bias, and its matrix may also be the embeddings' matrix. In that case,
#   too, return only the head's gradient: autograd adds the embeddings' gradient.
# - **Types.** Under autocast, or in a model that is all bfloat16, the matmuls are
#   bfloat16. But softmax and sums over chunks must be float32. If your `fused_loss`
#   adds in the weights' type, change it.
# - **Autocast** is still on in the forward of your `Function`, but off in its backward. The rows
#   may be bfloat16 and the matrix float32.
#
# The goal: loss and gradients are exact in float64. In bfloat16, each gradient's error is at most
# 1.5 times its error with the usual loss. If no token counts, the loss is 0. Hold the logits of
# only one chunk at a time. To save bytes, turn the log-probabilities into the slope in place (with
# `exp_`), and keep nothing of a chunk while you compute the next.


# %% id="answer-10-5"
# exercise 10.5
def head_loss(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    chunk: int,
    num_counted: int | None = None,
) -> Tensor:
    """Compute the cross-entropy of `head(hidden)` without ever holding all logits.

    Args:
        head: With or without a bias. Its matrix may also belong to another module, and
            parameters may be frozen.
        hidden: `(batch, seq, width)`.
        targets: `(batch, seq)`; `IGNORED` where a token does not count.
        chunk: Tokens per chunk. A chunk's logits are one tensor.
        num_counted: As for `mean_over_counted`.

    Returns:
        The mean over the tokens that count, a scalar to go backward from; float32 if
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
# `mean_over_counted` needs a `loss_sum`. Write one that calls `fused_loss` with your `chunk_of`,
# with `chunk`, and with `*head.parameters()` at the end: the matrix, then the bias if there is one.
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
# cast them to the weight's type at the end of forward.
# </details>
# <details><summary>Hint 4: frozen parameters</summary>
#
# Return None for a frozen parameter's gradient. The rows' gradient is never None.
# </details>

# %% [markdown] id="predict-tied"
# In Gemma-2 the head's matrix is *tied*: it is the embeddings' matrix.
#
# **Predict.** `tied.weight.grad` is the sum of the head's gradient and the embeddings' gradient. In
# the embeddings' gradient, how many of the 8192 rows are zero? (Each of the 1024 random tokens
# looks up one row.)

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
# In the table, `size` is the bytes of one value of the head or of `hidden`. At the
# peak, memory holds the head, `hidden`, and:
#
# | what | bytes |
# |---|---|
# | the rows that count, and their gradient | twice the bytes of `hidden` |
# | for each trained value of the head: a float32 sum, and a gradient in its own type | size + 4 |
# | for each token of a chunk: logits in `hidden`'s type and in float32 | vocabulary x (size + 4) |
# | for each token of a chunk: the gradient of its row | width x size |
#
# The goal: use the fewest chunks that fit, and make them as even as possible. For example, 1000
# tokens become 500 + 500, not 999 + 1.


# %% id="answer-10-6"
# exercise 10.6
def choose_chunk(head: nn.Linear, hidden: Tensor, budget: int) -> int:
    """Choose the number of tokens per chunk for a budget of bytes.

    Args:
        head: Has one dtype; parameters may be frozen. On any device, even `meta`.
        hidden: `(batch, seq, width)`, of the same dtype; every token counts.
        budget: Bytes in addition to head and hidden.

    Returns:
        Tokens per chunk: the smallest number with which the fewest chunks suffice.

    Raises:
        ValueError: If a chunk of one token doesn't fit; the message names the budget
            and the bytes that this chunk needs.
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
# <details><summary>Hint 2: three steps</summary>
#
# Find the largest chunk that fits. Compute how many chunks of that size the tokens need. Then find
# the smallest chunk size that needs no more chunks.
# </details>
# <details><summary>Hint 3: the refusal</summary>
#
# Check the largest chunk: if it is below 1, nothing fits.
# </details>
#
# Does your loss stay within the budget?

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
# This cell isn't graded.

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
# From 2.13 on, PyTorch has such a loss: `F.linear_cross_entropy(..., options=...)`
# (chapter 10d).
