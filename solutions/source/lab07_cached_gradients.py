# %% [markdown] id="title"
# # Lab 07: cached gradients
#
# CLIP was trained on batches of 32,768 pairs of image and text. Suppose your GPU holds
# only 64 pairs. With accumulation a batch of any size fits, but each pair is still
# compared with only 63 others. In this lab you compute the large batch's exact gradient
# in the memory that 64 pairs need, for any number of *towers* (encoders) and any loss.
#
# **Budget:** 75 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 7.1 | the contrastive loss | 2 |
# | 7.2 | the first pass: embeddings without a graph | 2 |
# | 7.3 | the middle: the loss's gradient at the embeddings | 3 |
# | 7.4 | the second pass: from the embeddings to the weights | 2 |
# | 7.5 | the state that both passes start from | 3 |
# | 7.6 | `cached_backward`, instead of `loss.backward()` | 4 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. Answers may not use `torch.utils.checkpoint`. Chapter 09 prepares you for
# this lab.

# %% id="imports"
import contextlib
import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, data, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.training import Recipe

# %% [markdown] id="subject"
# ## Two halves of a digit
#
# Each handwritten digit is cut down the middle. One tower sees the left halves, the other the right
# halves. They must find out which halves belong together, as CLIP does for images and texts.

# %% id="digits"
# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)
digits, _ = data.digits()  # (1797, 1, 8, 8)
digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
left, right = digits[..., :4], digits[..., 4:]  # (1797, 1, 8, 4) each


# %% id="tower"
def make_tower(side=8, dropout=0.1):
    """Make a tower from rows `(rows, 1, side, side / 2)` to embeddings `(rows, 32)`."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.GELU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU()),
        *(nn.Dropout(dropout), nn.Flatten()),
        nn.Linear(32 * (side // 2) * (side // 4), 32),
    )


# %% [markdown] id="text-7-1"
# ## 7.1 The loss
#
# Difficulty 2/5 · importance 4/5 · 10 minutes
#
# $B$ pairs of images and texts (for the digits, left and right halves) have $B^2$ similarities. The
# similarity of image $i$ and text $j$ is $s\,a_i \cdot b_j$: a scale $s$ times the cosine between
# their embeddings. ($a_i$ and $b_j$ are the embeddings divided by their lengths.) Finding the
# partner of image $i$ is a classification with $B$ classes. The loss is the mean of both
# directions, from images to texts and back:
#
# $$ \ell = \frac{1}{2B} \sum_{i=1}^{B} \Big(
#    -\log \frac{e^{s\,a_i \cdot b_i}}{\sum_j e^{s\,a_i \cdot b_j}}
#    -\log \frac{e^{s\,a_i \cdot b_i}}{\sum_j e^{s\,a_j \cdot b_i}} \Big) $$
#
# The model learns the scale's logarithm, so the scale stays positive. The scale may
# reach 100, and $e^{100}$ overflows float32, so don't compute these exponentials
# directly.


# %% id="answer-7-1"
# exercise 7.1
def contrastive_loss(images: Tensor, texts: Tensor, log_scale: Tensor) -> Tensor:
    """Return the loss of telling each pair from all others, in both directions.

    Args:
        images: Embeddings `(pairs, features)` of any norm, on any device.
        texts: The same for the texts; row i belongs to row i of the images.
        log_scale: Logarithm of the scale, a tensor without dimensions.

    Returns:
        The mean over the pairs and over both directions.

    Raises:
        ValueError: If the numbers of rows differ or are below 2; it names both.
    """
    ### BEGIN SOLUTION
    if len(images) != len(texts) or len(images) < 2:
        raise ValueError(
            f"{len(images)} images and {len(texts)} texts came, and at least 2 of each "
            "are needed, as many of one as of the other: try a larger batch."
        )
    images, texts = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    logits = log_scale.exp() * images @ texts.T  # (pairs, pairs)
    labels = torch.arange(len(images), device=images.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    ### END SOLUTION


# %% id="check-7-1"
# check 7.1 (2 points)
checks.lab07.contrastive_loss(contrastive_loss)

# %% [markdown] id="hints-7-1"
# <details><summary>Hint 1: the matrix</summary>
#
# `F.normalize(x, dim=1)` scales each row to length 1. Then one matmul computes all cosines.
# </details>
# <details><summary>Hint 2: the sums of exponentials</summary>
#
# `F.cross_entropy(logits, labels)` is the mean of the formula's first term over $i$, and safe at
# any scale. Which labels? Which matrix for the second term?
# </details>
# <details><summary>Hint 3: a single pair</summary>
#
# Check `len(images)` and `len(texts)` first.
# </details>
#
# **Predict.** At a scale of 1, untrained towers give all candidates nearly the same probability.
# What is the loss of a batch of 64 pairs?

# %% id="guess-loss"
guess = None  # the loss


# %% id="loss-module"
class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        return contrastive_loss(images, texts, self.log_scale)


def make(side=8, tower=make_tower):
    torch.manual_seed(0)
    return [tower(side), tower(side)], Contrastive()


# %% id="first-loss"
def embeddings_of(towers, inputs):
    return [tower(rows) for tower, rows in zip(towers, inputs, strict=True)]


pairs = [left[:64], right[:64]]
first_loss = contrastive_loss(*embeddings_of(make()[0], pairs), torch.tensor(0.0))
first_loss = round(first_loss.item(), 1)
print(f"64 pairs: loss {first_loss}{beside(guess, first_loss)}")
print(f"ln 64 = {math.log(64):.1f}: the loss of a guess among 64")

# %% [markdown] id="accumulate-text"
# ## Why accumulation does not help
#
# **Predict.** A batch of 64 compares each pair with 63 others. What percentage of these comparisons
# do four micro-batches of 16 still make?

# %% id="guess-comparisons"
guess = None  # percent


# %% id="accumulate"
def as_one(towers, inputs, loss_of, micro_batch=None):
    """Go backward from the loss of all rows, in the memory of all rows."""
    loss = loss_of(*embeddings_of(towers, inputs))
    loss.backward()
    return loss.item()


def accumulate(towers, inputs, loss_of, micro_batch):
    """Go backward from each micro-batch's own loss: this is a different loss."""
    total, num_rows = 0.0, len(inputs[0])
    for parts in zip(*[rows.split(micro_batch) for rows in inputs], strict=True):
        loss = loss_of(*embeddings_of(towers, parts)) * len(parts[0]) / num_rows
        loss.backward()
        total += loss.item()
    return total


# %% id="given-gradients"
def gradients(backward, inputs, micro_batch=16, training=True, make=make):
    """Return loss and gradients of fresh towers; the last gradient is the scale's."""
    towers, loss_of = make()
    modules = nn.ModuleList([*towers, loss_of]).to(inputs[0].dtype).train(training)
    loss = backward(towers, inputs, loss_of, micro_batch)
    return loss, [p.grad for p in modules.parameters()]


def relative_error(seen, exact):
    """Return the largest relative error; a missing gradient counts as 1."""
    both = zip(seen, exact, strict=True)
    return max(
        1.0 if s is None else ((s - e).norm() / e.norm()).item() for s, e in both
    )


# %% id="accumulation-is-wrong"
# NBVAL_IGNORE_OUTPUT
whole, exact = gradients(as_one, pairs, training=False)
parts, seen = gradients(accumulate, pairs, training=False)
kept = 100 * (4 * 16 * 15) / (64 * 63)
print(f"{kept:.0f} % of the comparisons{beside(guess, kept)}")
print(f"loss {parts:.2f} instead of {whole:.2f}")
print(f"gradients off by up to {relative_error(seen, exact):.0%} of their norm")

# %% [markdown] id="read-accumulation"
# Accumulation is exact if each term of the loss depends on one row. Here each term
# depends on all rows.
#
# ![Three steps: embed all rows without a graph; go backward from the loss to the embeddings; embed
# again, and go backward from there.](figures/09-two-passes.svg)
#
# The towers affect the loss only through their embeddings, so you can split the chain rule there.
# For a tower with parameters $\theta$, let $a_i$ now be the tower's output for row $i$, before
# division by its length:
#
# $$ \frac{\partial \ell}{\partial \theta} = \sum_{i=1}^{B}
#    \underbrace{\frac{\partial \ell}{\partial a_i}}_{\text{needs all rows, and no tower}}
#    \underbrace{\frac{\partial a_i}{\partial \theta}}_{\text{needs a tower, and one row}} $$
#
# First compute all $a_i$, without a graph (7.2). Then compute all $\partial \ell / \partial a_i$
# from the loss alone, and *cache* them (7.3). Finally run the rows again, one micro-batch at a
# time, and go backward from the cached gradients (7.4). The sum is the exact gradient (Gao et al.,
# 2021).

# %% [markdown] id="text-7-2"
# ## 7.2 The first pass
#
# Difficulty 2/5 · importance 4/5 · 8 minutes
#
# Embed all rows, one micro-batch at a time. The goal: build no graph, not even for one micro-batch.
# Each further micro-batch may raise the peak only by the bytes of its embeddings.
#
# Before each run of the tower, call `remember(tower)` and keep the *moment* that it returns. A
# moment can restore the random state and the buffers with which that run started. You write
# `remember` in 7.5.


# %% id="answer-7-2"
# exercise 7.2
def embed(
    tower: nn.Module, micro_batches: list[Tensor], remember
) -> tuple[Tensor, list]:
    """Embed all rows, without a graph.

    Args:
        tower: Maps `(rows, ...)` to `(rows, features)`. Don't change its mode.
        micro_batches: Tensors `(rows, ...)`, with different numbers of rows.
        remember: Called with the tower before each of its runs.

    Returns:
        Embeddings `(all rows, features)`, and a list of what `remember` returned.
    """
    ### BEGIN SOLUTION
    moments, embeddings = [], []
    with torch.no_grad():
        for rows in micro_batches:
            moments.append(remember(tower))
            embeddings.append(tower(rows))
    return torch.cat(embeddings), moments
    ### END SOLUTION


# %% id="check-7-2"
# check 7.2 (2 points)
checks.lab07.embed(embed)

# %% [markdown] id="text-7-3"
# <details><summary>Hint 1: no graph</summary>
#
# Put `torch.no_grad()` around the loop. Don't use `torch.inference_mode()`: its tensors can't take
# part in the loss's backward later.
# </details>
# <details><summary>Hint 2: not eval</summary>
#
# Leave the tower in training mode, dropout included.
# </details>
# <details><summary>Hint 3: the order</summary>
#
# For each micro-batch, append `remember(tower)` to one list, then `tower(rows)` to another.
# </details>
#
# ## 7.3 The middle
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# The embeddings have no graph. Make them leaves that require gradients, compute the loss, and go
# backward; no tower runs. The goal: in float64, the embeddings' gradients are within 1e-12 of those
# that one graph through towers and loss gives.
#
# The loss has its own parameter, the scale. No later stage runs the loss, so add the scale's
# gradient to the scale's `.grad` now. If the loss isn't finite, raise an error before you change
# any gradient.


# %% id="answer-7-3"
# exercise 7.3
def cache_gradients(
    loss_of: nn.Module, embeddings: list[Tensor]
) -> tuple[float, list[Tensor]]:
    """Go backward from the loss to the embeddings, and no further.

    Gradients of the loss's own parameters are added to their `.grad`.

    Args:
        loss_of: Called with all embeddings, one tensor per tower; returns a scalar.
        embeddings: For each tower `(rows, features)`, without a graph. Don't change it.

    Returns:
        The loss as a float, and for each tower the gradient with respect to its
        embeddings, in their shape.

    Raises:
        FloatingPointError: If the loss is not finite. The message says whether it is
            nan or inf, and no gradient has changed.
    """
    ### BEGIN SOLUTION
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss.item()}: look at the embeddings.")
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]
    ### END SOLUTION


# %% id="check-7-3"
# check 7.3 (3 points)
checks.lab07.cache_gradients(cache_gradients)

# %% [markdown] id="text-7-4"
# <details><summary>Hint 1: leaves</summary>
#
# `rows.detach().requires_grad_()` shares the memory of `rows`. Make one for each tower.
# </details>
# <details><summary>Hint 2: which backward</summary>
#
# `torch.autograd.grad(loss, leaves)` returns the gradients with respect to `leaves` alone. Which
# gradient is then missing?
# </details>
# <details><summary>Hint 3: a loss that is not finite</summary>
#
# Check `torch.isfinite(loss)` before backward.
# </details>
#
# ## 7.4 The second pass
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# Run each micro-batch once more, this time with its graph, and go backward immediately. The
# embeddings aren't a scalar, so their `backward` needs a gradient to start from: the cached one.
# Call each micro-batch's moment, and run forward and backward inside the context that it returns.
# The goal: in float64, the parameters' gradients are within 1e-12 of those that one large graph
# gives.


# %% id="answer-7-4"
# exercise 7.4
def push(
    tower: nn.Module, micro_batches: list[Tensor], gradients: Tensor, moments: list
) -> None:
    """Go backward from cached gradients into the `.grad` of the tower's parameters.

    Args:
        tower: The tower that embedded these rows.
        micro_batches: The same tensors `(rows, ...)`, in the same order.
        gradients: Of the loss with respect to the embeddings, `(all rows, features)`.
        moments: One for each micro-batch. Each call of a moment returns a context; the
            micro-batch's forward and backward both run inside it.
    """
    ### BEGIN SOLUTION
    of_each = gradients.split([len(rows) for rows in micro_batches])
    for rows, gradient, moment in zip(micro_batches, of_each, moments, strict=True):
        with moment():
            tower(rows).backward(gradient)
    ### END SOLUTION


# %% id="check-7-4"
# check 7.4 (2 points)
checks.lab07.push(push)

# %% [markdown] id="hints-7-4"
# <details><summary>Hint 1: which rows</summary>
#
# `gradients.split([5, 3, 1])` returns parts of these sizes.
# </details>
# <details><summary>Hint 2: backward from a tensor</summary>
#
# Call `embeddings.backward(gradient)`; both have the same shape.
# </details>
# <details><summary>Hint 3: the factor</summary>
#
# Don't divide: the loss is already a mean over all rows.
# </details>
#
# Here are the three stages in sequence:


# %% id="three-stages"
def forget(tower):
    """Take the place of `remember`, which you write in 7.5."""
    return contextlib.nullcontext


def three_stages(towers, inputs, loss_of, micro_batch, remember=forget):
    parts = [rows.split(micro_batch) for rows in inputs]
    embedded = [embed(*pair, remember) for pair in zip(towers, parts, strict=True)]
    loss, cached = cache_gradients(loss_of, [rows for rows, _ in embedded])
    torch.clear_autocast_cache()  # else older PyTorch reuses casts without a graph
    moments = [of_tower for _, of_tower in embedded]
    for one_tower in zip(towers, parts, cached, moments, strict=True):
        push(*one_tower)
    return loss


# %% id="three-stages-compared"
# NBVAL_IGNORE_OUTPUT
for dtype in (torch.float32, torch.float64):
    rows = [half.to(dtype) for half in pairs]
    _, exact = gradients(as_one, rows, training=False)
    _, seen = gradients(three_stages, rows, training=False)
    print(f"{dtype}: off by {relative_error(seen, exact):.0e}")

# %% [markdown] id="text-7-5"
# ## 7.5 Moments
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# The cached gradient belongs to the first pass's embeddings. If the second pass computes different
# embeddings, the gradient is silently wrong. That happens with dropout, which draws new masks, and
# with spectral normalization, where every forward changes buffers.
#
# Dropout draws different masks for one batch of 64 than for four micro-batches of 16. So our
# reference, `one_graph`, also runs the towers on one micro-batch at a time, but keeps *all* graphs
# until backward.
#
# **Predict.** Dropout drops one element in ten, and the second pass draws new masks. How large is
# the largest error of a parameter's gradient, as a share of that gradient's norm? (Give a fraction,
# such as `0.3`.)

# %% id="guess-moments"
guess = None  # share of the norm


# %% id="given-one-graph"
def one_graph(towers, inputs, loss_of, micro_batch):
    """Run the towers by micro-batches, then go backward once from the whole loss."""
    parts = [rows.split(micro_batch) for rows in inputs]
    runs = [[*map(tower, part)] for tower, part in zip(towers, parts, strict=True)]
    loss = loss_of(*map(torch.cat, runs))
    loss.backward()
    return loss.item()


# %% id="compare-kinds"
def spectral_tower(side):
    tower = make_tower(side, dropout=0.0)
    spectral_norm(tower[-1])
    return tower


def error_with(tower, backward):
    begin = partial(make, tower=tower)
    _, exact = gradients(one_graph, pairs, make=begin)
    return relative_error(gradients(backward, pairs, make=begin)[1], exact)


# %% id="moments-forgotten"
# NBVAL_IGNORE_OUTPUT
kinds = {"dropout": make_tower, "spectral norm": spectral_tower}
forgotten = {name: error_with(tower, three_stages) for name, tower in kinds.items()}
print(
    f"dropout: off by {forgotten['dropout']:.1f}{beside(guess, forgotten['dropout'])}"
)
print(f"spectral norm: off by {forgotten['spectral norm']:.0e}")

# %% [markdown] id="read-moments"
# Two kinds of state change between the passes: the **random state**, of the CPU and of the tower's
# GPUs, and the tower's **buffers**. Start each micro-batch's second run from the state in which its
# first run started. Afterwards, restore the state that you found. The functions below read and
# write the random state. Your answer has two blanks, each marked by a `raise` line.


# %% id="given-rng"
def read_rng(module):
    """Read the random state of the CPU and of each GPU that holds a parameter."""
    gpus = {p.device for p in module.parameters() if p.device.type == "cuda"}
    states = {gpu: torch.cuda.get_rng_state(gpu) for gpu in gpus}
    return {torch.device("cpu"): torch.get_rng_state(), **states}


def write_rng(states):
    """Set the random states that `read_rng` read."""
    for place, state in states.items():
        if place.type == "cuda":
            torch.cuda.set_rng_state(state, place)
        else:
            torch.set_rng_state(state)


# %% id="answer-7-5"
# exercise 7.5
def remember(tower: nn.Module):
    """Remember what a run of the tower depends on, besides weights and rows.

    Returns:
        A function that takes no arguments and returns a context manager. Inside this
        context, the random state and all buffers are as when `remember` was called. On
        leaving, even by an error, both are restored to what they were on entering. The
        function can be called again.
    """

    ### BEGIN SOLUTION
    def read():
        return read_rng(tower), {n: b.clone() for n, b in tower.named_buffers()}

    def write(random_states, buffers):
        write_rng(random_states)
        for name, buffer in tower.named_buffers():
            buffer.copy_(buffers[name])

    then = read()
    ### END SOLUTION

    @contextlib.contextmanager
    def moment():
        ### BEGIN SOLUTION
        before = read()
        write(*then)
        try:
            yield
        finally:
            write(*before)
        ### END SOLUTION

    return moment


# %% id="check-7-5"
# check 7.5 (3 points)
checks.lab07.remember(remember)

# %% [markdown] id="hints-7-5"
# <details><summary>Hint 1: two times</summary>
#
# The upper blank runs in the first pass, and reads the state. In the lower blank, read
# the current state, write the first pass's state, and `yield`. In `finally`, write back
# what you read there first.
# </details>
# <details><summary>Hint 2: buffers</summary>
#
# `tower.named_buffers()` has them all; `state_dict()` omits some. A buffer may change in place, so
# clone it.
# </details>
# <details><summary>Hint 3: writing a buffer</summary>
#
# Use `buffer.copy_(value)`. Look the buffer up by name when you write: the tower may have replaced
# its tensor.
# </details>

# %% id="moments-remembered"
# NBVAL_IGNORE_OUTPUT
remembering = partial(three_stages, remember=remember)
for name, tower in kinds.items():
    print(f"{name}: off by {error_with(tower, remembering):.0e}")

# %% [markdown] id="text-7-6"
# ## 7.6 Instead of `loss.backward()`
#
# Difficulty 2/5 · importance 5/5 · 12 minutes
#
# Now put the stages together into `cached_backward`. The goal: each row goes through
# its tower exactly twice, and a larger batch raises the peak only by its moments, its
# embeddings and their gradients.
#
# Before anything runs, refuse a BatchNorm in training mode: it would normalize with the statistics
# of a micro-batch instead of the whole batch. If the loss isn't finite, restore the random state
# and the buffers, which the first pass has changed.


# %% id="given-undone"
@contextlib.contextmanager
def undone_on_error(towers):
    """Restore random state and buffers if the code inside raises an error."""
    both = nn.ModuleList(towers)
    rng, buffers = read_rng(both), {n: b.clone() for n, b in both.named_buffers()}
    try:
        yield
    except BaseException:
        write_rng(rng)
        for name, buffer in both.named_buffers():
            buffer.copy_(buffers[name])
        raise


# %% id="given-batch-norms"
def batch_norms(towers):
    """List the BatchNorms in training mode, by tower and name."""
    return [
        f"tower {number}, {name}"
        for number, tower in enumerate(towers)
        for name, module in tower.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]


# %% id="answer-7-6"
# exercise 7.6
def cached_backward(
    towers: list[nn.Module], inputs: list[Tensor], loss_of: nn.Module, micro_batch: int
) -> float:
    """Add the gradient of the whole batch's loss to `.grad`, and return that loss.

    Args:
        towers: Run one after the other in both passes. One may occur repeatedly.
        inputs: For each tower `(rows, ...)`; rows of the same number belong together.
        loss_of: Called with all embeddings, one tensor per tower; returns a scalar.
        micro_batch: Rows in memory at once; the last micro-batch may have fewer.

    Raises:
        ValueError: If the inputs have different numbers of rows, or fewer than 2; if
            micro_batch is below 1; if a BatchNorm is in training mode. The message
            names the wrong numbers or the BatchNorm, and no tower has run yet.
        FloatingPointError: If the loss is not finite. The message says whether it is
            nan or inf; gradients, buffers and random state are as before.
    """
    ### BEGIN SOLUTION
    rows = [len(of_tower) for of_tower in inputs]
    if len(set(rows)) != 1 or rows[0] < 2:
        raise ValueError(f"{rows} rows came: give as many of each, at least 2.")
    if micro_batch < 1:
        raise ValueError(f"micro_batch (={micro_batch}) must be at least 1: try 1.")
    if norms := batch_norms(towers):
        raise ValueError(f"{norms[0]} is a BatchNorm in training: call its eval().")
    with undone_on_error(towers):
        return three_stages(towers, inputs, loss_of, micro_batch, remember)
    ### END SOLUTION


# %% id="check-7-6"
# check 7.6 (4 points)
checks.lab07.cached_backward(cached_backward)

# %% [markdown] id="hints-7-6"
# <details><summary>Hint 1: the frame</summary>
#
# `three_stages` does the work, with your `remember`. What do you put before it, and what around it?
# </details>
# <details><summary>Hint 2: what to check</summary>
#
# If the arguments are right, `{len(rows) for rows in inputs}` has one element and
# `batch_norms(towers)` is empty.
# </details>
# <details><summary>Hint 3: right gradients, but the peak grows?</summary>
#
# Then a variable holds a graph, such as a loss that you kept as a tensor.
# </details>
#
# ## What it saves
#
# **Predict.** We now use larger images, in micro-batches of 16 pairs. When the batch grows from 64
# to 256 pairs, by what factor does the peak with cached gradients grow?

# %% id="guess-bytes"
guess = None  # times

# %% id="measure-bytes"
large = data.digits(32)[0][:256]
halves = [large[..., :16], large[..., 16:]]


def peak_bytes(backward, num_pairs):
    towers, loss_of = make(side=32)
    modules, batch = nn.ModuleList([*towers, loss_of]), [h[:num_pairs] for h in halves]
    with memory.watch(model=modules) as report:
        backward(towers, batch, loss_of, 16)
    return report.peak_bytes - report.baseline_bytes


# %% id="bytes-of-pairs"
ways = {"one graph": as_one, "cached gradients": cached_backward}
peaks = {
    name: {n: peak_bytes(way, n) for n in (16, 64, 256)} for name, way in ways.items()
}
few, many = peaks["cached gradients"][64], peaks["cached gradients"][256]
print(f"cached gradients: {many / few:.2f} times{beside(guess, many / few)}")
# pairs x halves x (embedding and gradient) x floats x bytes
print(f"{many - few:d} bytes more; of embeddings: {(256 - 64) * 2 * 2 * 32 * 4}")
plots.growth(peaks, xlabel="pairs in the batch", title="Peak, micro-batch 16, counted")

# %% [markdown] id="checkpoint-text"
# ## Have you seen this before?
#
# In effect, cached gradients put a checkpoint around each run of a tower (chapter 09). **Does
# PyTorch's checkpoint compute the same gradients?**


# %% id="checkpointed"
def checkpointed(towers, inputs, loss_of, micro_batch):
    wrapped = [partial(checkpoint, tower, use_reentrant=False) for tower in towers]
    return one_graph(wrapped, inputs, loss_of, micro_batch)


# %% id="compare-checkpoint"
# NBVAL_IGNORE_OUTPUT
for way in (checkpointed, cached_backward):
    print(f"{way.__name__}, peak {peak_bytes(way, 256)}")
    for name, tower in kinds.items():
        print(f"    {name}: off by {error_with(tower, way):.0e}")

# %% [markdown] id="tiles-text"
# PyTorch's checkpoint doesn't restore buffers, so with spectral norm its gradient is
# silently wrong.

# %% [markdown] id="gpu"
# ## On a GPU: CLIP itself
#
# These ungraded cells run the published CLIP model, with random weights.


# %% id="gpu-parts"
class Half(nn.Module):
    """One tower of CLIP: its network and its projection."""

    def __init__(self, network, projection):
        super().__init__()
        self.network, self.projection = network, projection

    def forward(self, rows):
        return self.projection(self.network(rows).pooler_output)


def halves_of(clip):
    return [Half(clip.vision_model, clip.visual_projection),
            Half(clip.text_model, clip.text_projection)]  # fmt: skip


# %% id="gpu-step"
def clip_step(place, num_pairs, micro_batch=None):
    """Make a step of CLIP in one graph, or cached if a micro-batch is given."""
    clip, loss_of = Recipe("clip-two-tower").make_model(place), Contrastive().to(place)
    rows = [torch.randn(num_pairs, 3, 224, 224, device=place),
            torch.randint(49_408, (num_pairs, 77), device=place)]  # fmt: skip
    optimizer = SGD([*clip.parameters(), *loss_of.parameters()], lr=1e-3)

    def step():
        optimizer.zero_grad()
        if micro_batch:
            cached_backward(halves_of(clip), rows, loss_of, micro_batch)
        else:
            pairs = zip(halves_of(clip), rows, strict=True)
            loss_of(*[half(part) for half, part in pairs]).backward()
        optimizer.step()

    return step, clip, optimizer


# %% id="gpu-peaks"
# NBVAL_IGNORE_OUTPUT
few, many = device.pick_by_tier(cpu=(2, 8), small_gpu=(32, 512), large_gpu=(128, 4096))
if torch.cuda.is_available():
    report = memory.predict(lambda: clip_step("cpu", few))
    print(f"one graph of {few} pairs, predicted: {report.peak_bytes}")
    for what, sizes in (("one graph", (few,)), ("cached gradients", (many, few))):
        step, clip, optimizer = clip_step("cuda", *sizes)
        report = memory.measure(step, model=clip, optimizer=optimizer)
        print(f"{what} of {sizes[0]} pairs, measured: {report.peak_bytes}")
        del step, clip, optimizer
