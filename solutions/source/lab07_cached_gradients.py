# %% [markdown] id="title"
# # Lab 07: cached gradients
#
# CLIP learned which text belongs to which image from batches of 32,768 pairs: each pair had to be
# told from 32,767 others. Your GPU holds 64 pairs. Accumulation saves the memory, but then each
# pair is told from 63 others, however many micro-batches follow.
#
# In this lab you compute the gradient of the large batch in the memory of the small one: exactly,
# with dropout on, for any number of towers and any loss. (A *tower* is one of the encoders.)
#
# **Budget:** 95 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 7.1 | the contrastive loss | 2 |
# | 7.2 | a first pass: embeddings without a graph | 2 |
# | 7.3 | the middle: the loss's gradient, down to the embeddings and no further | 3 |
# | 7.4 | a second pass: from the embeddings to the weights | 2 |
# | 7.5 | moments: what the second pass must find as the first did | 3 |
# | 7.6 | `cached_backward`, in place of `loss.backward()` | 4 |
#
# Each answer goes into a cell that begins with `# exercise`, and the check stands right below it.
# Helper functions, imports and constants may also stand in cells of your own above it.
# The checks look at gradients, at counted bytes and at how many rows went through a tower at once.
# A call of `torch.utils.checkpoint` is refused. Chapter 09 leads up to this lab.

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
from tutorial_lib.training import Recipe

# %% [markdown] id="subject"
# ## Two halves of a digit
#
# Each handwritten digit is cut down the middle. One tower sees the left halves, another the right
# halves, and they must find out who belongs to whom. A tower maps rows to embeddings `(rows, 32)`;
# its dropout matters from 7.5 on.

# %% id="halves"
# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)
digits, _ = data.digits()  # (1797, 1, 8, 8)
digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
left, right = digits[..., :4], digits[..., 4:]  # (1797, 1, 8, 4) each


def make_tower(side=8, dropout=0.1):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(32 * (side // 2) * (side // 4), 32),
    )


# %% [markdown] id="text-7-1"
# ## 7.1 The loss
#
# Difficulty 2/5 · importance 4/5 · 10 minutes
#
# $B$ pairs give $B^2$ similarities, each the cosine of an image's embedding and a text's, times a
# scale $s$. In row $i$, pair $i$ should win. That is a classification with $B$ classes, whose label
# is the row's own number:
#
# $$ \ell = \frac{1}{2B} \sum_{i=1}^{B} \Big(
#    -\log \frac{e^{s\,a_i \cdot b_i}}{\sum_j e^{s\,a_i \cdot b_j}}
#    -\log \frac{e^{s\,a_i \cdot b_i}}{\sum_j e^{s\,a_j \cdot b_i}} \Big) $$
#
# The scale is learned by its logarithm, so that it stays positive (Radford et al., 2021, figure 3).
# Your loss does not clip it. It may reach 100, and $e^{100}$ is no float32.
#
# **Predict.** Untrained towers cannot tell anybody apart. At $s = 1$, what is the loss of 64 pairs?

# %% id="guess-7-1"
guess = None  # the loss


# %% id="answer-7-1"
# exercise 7.1
def contrastive_loss(images: Tensor, texts: Tensor, log_scale: Tensor) -> Tensor:
    """Tell each pair from all others, in both directions.

    Args:
        images: Embeddings `(pairs, features)` of any length.
        texts: The same; row i belongs to row i of the images.
        log_scale: Logarithm of the scale, without dimensions.

    Returns:
        The mean over the pairs and over both directions.

    Raises:
        ValueError: When the numbers of rows differ, or are below 2; it names both.
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
# `F.normalize(x, dim=1)` gives each row length 1. Then one matrix product makes all similarities.
# </details>
# <details><summary>Hint 2: the sums of exponentials</summary>
#
# `F.cross_entropy(logits, labels)` is the first half of the formula, and safe at any scale. Which
# labels? Which matrix for the second half?
# </details>
# <details><summary>Hint 3: a pair alone</summary>
#
# With one pair the loss is 0, and nothing is learned. Raise a ValueError that names both numbers.
# </details>

# %% [markdown] id="module-text"
# As a module, with the scale as its parameter, beside two fresh towers. They can only guess. At a
# scale of 1, where all similarities count nearly the same, a guess among $B$ costs $\ln B$. (At the
# module's own scale of 1/0.07 a wrong guess is more confident, and costs more.)


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


def first_loss(pairs):
    towers, _ = make()
    out = [
        tower(rows[:pairs]) for tower, rows in zip(towers, (left, right), strict=True)
    ]
    return round(contrastive_loss(*out, torch.tensor(0.0)).item(), 1)  # at a scale of 1


print(
    f"64 pairs: loss {first_loss(64)}, ln 64 = "
    f"{math.log(64):.1f}{beside(guess, first_loss(64))}"
)

# %% [markdown] id="accumulate-text"
# ## Why accumulation does not help
#
# The mean of four losses of 16 pairs is not the loss of 64 pairs: it is the answer to an easier
# question.
#
# Of all comparisons in a batch of 64, **how many are left in four micro-batches of 16?**


# %% id="given-steps"
def as_one(towers, inputs, loss_of, micro_batch=None):
    """Go backward from the loss of all rows: the memory of all rows."""
    loss = loss_of(*[tower(rows) for tower, rows in zip(towers, inputs, strict=True)])
    loss.backward()
    return loss.item()


def accumulate(towers, inputs, loss_of, micro_batch):
    """Go backward from the loss of each micro-batch: another loss."""
    total, num_rows = 0.0, len(inputs[0])
    for parts in zip(*[rows.split(micro_batch) for rows in inputs], strict=True):
        loss = loss_of(
            *[tower(part) for tower, part in zip(towers, parts, strict=True)]
        )
        (loss * len(parts[0]) / num_rows).backward()
        total += loss.item() * len(parts[0]) / num_rows
    return total


# %% id="given-gradients"
def gradients(backward, inputs, micro_batch=16, training=True, make=make):
    """Give loss and gradients of fresh towers; the last gradient is the scale's."""
    towers, loss_of = make()
    for tower in towers:
        tower.to(inputs[0].dtype).train(training)
    loss_of.to(inputs[0].dtype)
    loss = backward(towers, inputs, loss_of, micro_batch)
    return loss, [p.grad for module in (*towers, loss_of) for p in module.parameters()]


def off(seen, exact):
    """Give the largest relative error of gradients; a missing one is an error of 1."""
    pairs = [
        (torch.zeros_like(e) if s is None else s, e)
        for s, e in zip(seen, exact, strict=True)
    ]
    return max(((s - e).norm() / e.norm()).item() for s, e in pairs)


# %% id="accumulation-is-wrong"
# NBVAL_IGNORE_OUTPUT
pairs = [left[:64], right[:64]]
whole, exact = gradients(as_one, pairs, training=False)
parts, seen = gradients(accumulate, pairs, training=False)
kept = 100 * (4 * 16 * 15) / (64 * 63)
print(f"{kept:.0f} % of the comparisons")
print(
    f"loss {parts:.2f} instead of {whole:.2f}, gradients off by up to "
    f"{off(seen, exact):.0%}"
)

# %% [markdown] id="read-accumulation"
# Less than a quarter of the comparisons are left. Accumulation is exact for a loss that is a sum
# over rows, each term of one row. Here each row's term needs all rows.
#
# ![Cached gradients. Step one embeds each micro-batch and drops its activations. Step two takes the
# loss of all embeddings backward to the embeddings only. Step three embeds each micro-batch again,
# with a graph, and goes backward from its cached gradient: one graph in memory at a
# time.](figures/09-two-passes.svg)
#
# The way out: between the towers and the loss stand the embeddings, 32 numbers a row where a tower
# keeps thousands. Cut the chain rule there:
#
# $$ \frac{\partial \ell}{\partial \theta} = \sum_{i=1}^{B}
#    \underbrace{\frac{\partial \ell}{\partial a_i}}_{\text{needs all rows, and no tower}}
#    \underbrace{\frac{\partial a_i}{\partial \theta}}_{\text{needs a tower, and one row}} $$
#
# Compute all $a_i$ and keep no graph (7.2). Compute $\partial \ell / \partial a_i$ from the loss
# alone, and *cache* it (7.3). Run the rows once more, a micro-batch at a time, and go backward from
# the cached gradient (7.4). The sum is the exact gradient (Gao et al., 2021).

# %% [markdown] id="text-7-2"
# ## 7.2 The first pass
#
# Difficulty 2/5 · importance 4/5 · 8 minutes
#
# Embeddings of all rows, one micro-batch in memory at a time. The numbers to reach: no graph at the
# end, and a peak that does not grow with the number of micro-batches.
#
# Before each micro-batch, call `remember(tower)` and keep what it returns, a *moment*. From 7.5 on
# a moment restores random state and buffers; until then it is a context that does nothing:


# %% id="given-forget"
def forget(tower):
    """Stand for `remember` as long as there is nothing to remember."""
    return contextlib.nullcontext


# %% id="answer-7-2"
# exercise 7.2
def embed(
    tower: nn.Module, micro_batches: list[Tensor], remember
) -> tuple[Tensor, list]:
    """Embed all rows, without a graph.

    Args:
        tower: Maps `(rows, ...)` to `(rows, features)`. Its mode stays what it is.
        micro_batches: Tensors `(rows, ...)`, of different numbers of rows.
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

# %% [markdown] id="hints-7-2"
# <details><summary>Hint 1: no graph</summary>
#
# `torch.no_grad()` around the loop, not `torch.inference_mode()`: its tensors can take part in no
# backward, and the loss needs that.
# </details>
# <details><summary>Hint 2: not eval</summary>
#
# The tower is in training, dropout included.
# </details>
# <details><summary>Hint 3: the order</summary>
#
# For each micro-batch: append `remember(tower)` to one list, then `tower(rows)` to another. At the
# end one `torch.cat`.
# </details>

# %% [markdown] id="text-7-3"
# ## 7.3 The middle
#
# Difficulty 3/5 · importance 5/5 · 12 minutes
#
# Now all embeddings are there, as plain numbers. Make them leaves, compute the loss, go backward.
# No tower runs. What comes out is one gradient a row.
#
# Two things are easily lost. The loss has a parameter of its own, the scale, which no later stage
# sees again: its gradient is added to its `.grad` now or never. And a loss that is not finite must
# stop here, because three stages later nobody could tell where the NaN came from.


# %% id="answer-7-3"
# exercise 7.3
def cache_gradients(
    loss_of: nn.Module, embeddings: list[Tensor]
) -> tuple[float, list[Tensor]]:
    """Go backward from the loss to the embeddings, and no further.

    Gradients of the loss's own parameters are added to their `.grad`, as in any
    backward.

    Args:
        loss_of: Called with all embeddings, one tensor a tower; gives a scalar.
        embeddings: A tensor `(rows, features)` for each tower, without a graph; left as
            they are.

    Returns:
        The loss as a float, and for each tower the loss's gradient, shaped as its
        embeddings.

    Raises:
        FloatingPointError: When the loss is not finite; it names the loss, and no
            gradient was touched.
    """
    ### BEGIN SOLUTION
    leaves = [rows.detach().requires_grad_() for rows in embeddings]
    loss = loss_of(*leaves)
    if not torch.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {loss.item()}, and a finite one is needed: look at the "
            "towers' outputs."
        )
    loss.backward()
    return loss.item(), [leaf.grad for leaf in leaves]
    ### END SOLUTION


# %% id="check-7-3"
# check 7.3 (3 points)
checks.lab07.cache_gradients(cache_gradients)

# %% [markdown] id="hints-7-3"
# <details><summary>Hint 1: leaves</summary>
#
# `rows.detach().requires_grad_()` shares the memory of `rows`. One for each tower.
# </details>
# <details><summary>Hint 2: which backward</summary>
#
# `torch.autograd.grad(loss, leaves)` gives the gradients of what you name. Whose is then missing?
# </details>
# <details><summary>Hint 3: a loss that is not finite</summary>
#
# `torch.isfinite(loss)` before backward; `loss.item()` for the message, and for what you return.
# </details>

# %% [markdown] id="text-7-4"
# ## 7.4 The second pass
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# Each micro-batch once more, this time with its graph, and backward at once. `backward` of a tensor
# that is no scalar asks for a gradient to begin with: that is the cached one. Both calls belong
# inside the micro-batch's moment, which is a function that gives a context.


# %% id="answer-7-4"
# exercise 7.4
def push(
    tower: nn.Module, micro_batches: list[Tensor], gradients: Tensor, moments: list
) -> None:
    """Carry cached gradients on to the `.grad` of the tower's parameters.

    Args:
        tower: The tower that embedded these rows.
        micro_batches: The same tensors `(rows, ...)`, in the same order.
        gradients: Of the loss with respect to the embeddings, `(all rows, features)`.
        moments: One for each micro-batch, called to give a context. Its forward and its
            backward both run inside.
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
# `gradients.split([5, 3, 1])` cuts at given sizes.
# </details>
# <details><summary>Hint 2: backward from a tensor</summary>
#
# `embeddings.backward(gradient)`, the two of one shape.
# </details>
# <details><summary>Hint 3: the factor</summary>
#
# No division: the mean over all rows was taken in the loss.
# </details>


# %% id="three-stages"
# NBVAL_IGNORE_OUTPUT
# The three stages, one after the other; `remember` is still to choose.
def three_stages(towers, inputs, loss_of, micro_batch, remember=forget):
    parts = [rows.split(micro_batch) for rows in inputs]
    embedded = [embed(*pair, remember) for pair in zip(towers, parts, strict=True)]
    loss, cached = cache_gradients(loss_of, [rows for rows, _ in embedded])
    for tower, part, gradient, (_, moments) in zip(
        towers, parts, cached, embedded, strict=True
    ):
        push(tower, part, gradient, moments)
    return loss


for dtype in (torch.float32, torch.float64):
    rows = [half.to(dtype) for half in pairs]
    _, exact = gradients(as_one, rows, training=False)
    _, seen = gradients(three_stages, rows, training=False)
    print(f"{dtype}: off by {off(seen, exact):.0e}")

# %% [markdown] id="text-7-5"
# Only the order of sums is left.
#
# ## 7.5 Moments
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# The cached gradient belongs to the embeddings of the first pass. If the second pass computes other
# embeddings, no error is raised, and the gradient is wrong. Two towers do not compute the same
# twice: one with dropout, and one with spectral normalisation, whose buffers take a step of a power
# iteration with every forward.
#
# What to compare with? Dropout draws other masks for one batch of 64 than for four of 16. So the
# reference runs the towers by micro-batches too, with the same masks, and keeps *all* graphs until
# the loss has been computed. **Which of the two towers is further off?**


# %% id="given-one-graph"
def one_graph(towers, inputs, loss_of, micro_batch):
    """Go backward once from the loss of all rows, the towers run by micro-batches."""
    parts = [rows.split(micro_batch) for rows in inputs]
    embeddings = [
        [*map(tower, part)] for tower, part in zip(towers, parts, strict=True)
    ]
    loss = loss_of(*map(torch.cat, embeddings))
    loss.backward()
    return loss.item()


def spectral_tower(side):
    tower = make_tower(side, dropout=0.0)
    spectral_norm(tower[-1])
    return tower


# %% id="moments-forgotten"
# NBVAL_IGNORE_OUTPUT
kinds = {"dropout": make_tower, "spectral norm": spectral_tower}


def compare_kinds(backward):
    for name, tower in kinds.items():
        _, exact = gradients(one_graph, pairs, make=partial(make, tower=tower))
        _, seen = gradients(backward, pairs, make=partial(make, tower=tower))
        print(f"{name:<15}off by {off(seen, exact):.0e}")


compare_kinds(three_stages)

# %% [markdown] id="read-moments"
# Two kinds of state have moved between the passes:
#
# - the **random state**, of the CPU and of the GPUs that the tower lives on;
# - the **buffers**: power iterations, moving averages, counters. The second pass must find them as
#   the first did, and must not move them a second time.
#
# (In older versions of PyTorch with autocast, call `torch.clear_autocast_cache()` between the
# passes: issue 158232.)
#
# The answer has two blanks: replace both `raise` lines. Read and write the random state with these.
# (This machine may have no GPU, and then no check can see that you left the GPU's state out.)


# %% id="given-rng"
def read_rng(*modules):
    """Read the random state of the CPU and of each GPU that holds a parameter."""
    places = {p.device for module in modules for p in module.parameters()}
    gpus = [place for place in places if place.type != "cpu"]
    states = {gpu: torch.get_device_module(gpu).get_rng_state(gpu) for gpu in gpus}
    return {torch.device("cpu"): torch.get_rng_state(), **states}


def write_rng(states):
    """Set the random states that `read_rng` read."""
    for place, state in states.items():
        module = torch if place.type == "cpu" else torch.get_device_module(place)
        module.set_rng_state(state, *([] if place.type == "cpu" else [place]))


# %% id="answer-7-5"
# exercise 7.5
def remember(tower: nn.Module):
    """Remember what a run of the tower depends on beside weights and rows.

    Args:
        tower: Its parameters are not remembered: they stay as they are until the
            optimizer's step.

    Returns:
        A function without arguments that gives a context manager. Inside it, random
        state and all buffers are as they were when `remember` was called. After it, all
        is as it was before it, also when the inside raised. It can be used more than
        once.
    """

    ### BEGIN SOLUTION
    def buffers_now():
        return {name: buffer.clone() for name, buffer in tower.named_buffers()}

    def put_back(random_states, buffers):
        write_rng(random_states)
        with torch.no_grad():
            for name, buffer in tower.named_buffers():
                buffer.copy_(buffers[name])

    then = read_rng(tower), buffers_now()
    ### END SOLUTION

    @contextlib.contextmanager
    def moment():
        ### BEGIN SOLUTION
        before = read_rng(tower), buffers_now()
        put_back(*then)
        try:
            yield
        finally:
            put_back(*before)
        ### END SOLUTION

    return moment


# %% id="check-7-5"
# check 7.5 (3 points)
checks.lab07.remember(remember)

# %% [markdown] id="hints-7-5"
# <details><summary>Hint 1: two times</summary>
#
# The upper part runs in the first pass: read. The lower part runs in the second: read what is there
# now, write what was there then, `yield`, and in `finally` write what was there before.
# </details>
# <details><summary>Hint 2: buffers</summary>
#
# `dict(tower.named_buffers())` holds them all; `state_dict()` leaves out those that are not
# persistent. A buffer may move in place: clone.
# </details>
# <details><summary>Hint 3: writing a buffer</summary>
#
# `buffer.copy_(value)`, under `torch.no_grad()`. Look the buffer up by its name when you write: the
# tower may have put a new tensor in its place.
# </details>

# %% id="moments-remembered"
# NBVAL_IGNORE_OUTPUT
compare_kinds(partial(three_stages, remember=remember))

# %% [markdown] id="text-7-6"
# ## 7.6 In place of `loss.backward()`
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# Put it together so that somebody else can use it in a training loop: `zero_grad`, then
# `cached_backward(...)`, then `step`. The numbers to reach: each row goes through its tower exactly
# twice, never more than `micro_batch` at once, and the peak grows by no more than embeddings, their
# gradients, and moments.
#
# Refuse what cannot be exact. A BatchNorm in training normalises a micro-batch with that
# micro-batch's own statistics. Name it, before anything runs. (In `eval()` it is harmless.) A loss
# that is not finite shows after the first pass only, when random state and buffers have moved. This
# puts them back:


# %% id="given-undone"
@contextlib.contextmanager
def undone_on_error(towers):
    """Put random state and buffers back as they were, if the inside raises."""
    rng = read_rng(*towers)
    buffers = [
        {name: b.clone() for name, b in tower.named_buffers()} for tower in towers
    ]
    try:
        yield
    except BaseException:
        write_rng(rng)
        for tower, before in zip(towers, buffers, strict=True):
            for name, buffer in tower.named_buffers():
                buffer.copy_(before[name])
        raise


def batch_norms(towers):
    """List the BatchNorms in training, by tower and name."""
    found = []
    for number, tower in enumerate(towers):
        for name, module in tower.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                found.append(f"tower {number}, {name}")
    return found


# %% id="answer-7-6"
# exercise 7.6
def cached_backward(
    towers: list[nn.Module], inputs: list[Tensor], loss_of: nn.Module, micro_batch: int
) -> float:
    """Add the gradient of the batch's loss to `.grad`, one micro-batch at a time.

    In both passes the towers run one after the other, each over its micro-batches in
    order.

    Args:
        towers: One for each input; the same one may come more than once.
        inputs: For each tower a tensor `(rows, ...)`; row i of one belongs to row i of
            the others.
        loss_of: Called with all embeddings, one tensor a tower; gives a scalar.
        micro_batch: Rows in memory at once; the last micro-batch may have fewer.

    Returns:
        The loss of the whole batch.

    Raises:
        ValueError: When the inputs have different numbers of rows (names them), or
            fewer than 2; when micro_batch is below 1; when a BatchNorm is in training
            (names it). No tower has run by then.
        FloatingPointError: When the loss is not finite. Gradients, buffers and random
            state are as they were.
    """
    ### BEGIN SOLUTION
    num_rows = [len(rows) for rows in inputs]
    if len(set(num_rows)) != 1 or num_rows[0] < 2:
        raise ValueError(
            f"the inputs have {num_rows} rows, and as many of each are needed, at "
            "least 2."
        )
    if micro_batch < 1:
        raise ValueError(f"micro_batch (={micro_batch}) must be at least 1: try 1.")
    if norms := batch_norms(towers):
        raise ValueError(
            f"{norms[0]} is a BatchNorm in training, whose statistics would be a "
            "micro-batch's: take GroupNorm, or put it into eval()."
        )
    parts = [rows.split(micro_batch) for rows in inputs]
    with undone_on_error(towers):
        embedded = [embed(*pair, remember) for pair in zip(towers, parts, strict=True)]
        loss, cached = cache_gradients(loss_of, [rows for rows, _ in embedded])
    torch.clear_autocast_cache()  # older versions keep weights cast without a graph
    for tower, part, gradient, (_, moments) in zip(
        towers, parts, cached, embedded, strict=True
    ):
        push(tower, part, gradient, moments)
    return loss
    ### END SOLUTION


# %% id="check-7-6"
# check 7.6 (4 points)
checks.lab07.cached_backward(cached_backward)

# %% [markdown] id="hints-7-6"
# <details><summary>Hint 1: the frame</summary>
#
# `three_stages` above, with `remember`. Around its first two stages `undone_on_error`, in front of
# it the refusals.
# </details>
# <details><summary>Hint 2: what to look at</summary>
#
# `{len(rows) for rows in inputs}` has one element when all is well. `batch_norms(towers)` is empty
# when all is well.
# </details>
# <details><summary>Hint 3: right gradients, and the peak grows?</summary>
#
# Then somebody holds a graph: an embedding that was never detached, or a loss kept as a tensor.
# </details>

# %% [markdown] id="bytes-text"
# ## What it saves
#
# Larger halves, so that the towers' activations outweigh everything else. The batch grows from 16
# to 256; the micro-batch stays at 16.
#
# **Predict.** From 64 to 256 pairs, by what factor does the peak of cached gradients grow?

# %% id="guess-bytes"
guess = None  # times

# %% id="measure-bytes"
large = data.digits(32)[0][:256]
halves = [large[..., :16], large[..., 16:]]


def peak_bytes(backward, num_pairs):
    towers, loss_of = make(side=32)
    modules = nn.ModuleList([*towers, loss_of])
    optimizer = SGD(modules.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        backward(towers, [half[:num_pairs] for half in halves], loss_of, 16)
        optimizer.step()

    report = memory.measure(step, model=modules, optimizer=optimizer)
    return report.peak_bytes - report.baseline_bytes


# %% id="table-of-bytes"
ways = {"one graph": as_one, "cached gradients": cached_backward}
peaks = {
    name: {n: peak_bytes(way, n) for n in (16, 64, 256)} for name, way in ways.items()
}
factor = peaks["cached gradients"][256] / peaks["cached gradients"][64]
print(f"cached gradients: {factor:.2f} times{beside(guess, factor)}")
grown = peaks["cached gradients"][256] - peaks["cached gradients"][64]
# pairs x halves x (embedding and gradient) x floats x bytes
narrow = (256 - 64) * 2 * 2 * 32 * 4
print(f"grown by {grown:d} bytes, of which embeddings and their gradients: {narrow}")
plots.growth(
    peaks, xlabel="pairs in the batch", title="Peak of a step, micro-batch 16, counted"
)

# %% [markdown] id="checkpoint-text"
# One line has a slope, the other has nearly none. What still grows is embeddings and their
# gradients, to the byte. (The meter cannot see the random states, some thousand bytes a moment on a
# CPU.)
#
# ## Have you seen this before?
#
# Run a tower and keep no graph. When the gradient of its output arrives, run it once more with the
# random state restored, and go backward. So cached gradients are a checkpoint around each
# micro-batch's tower. With PyTorch's own, it is `one_graph` with one word more. **Are its gradients
# equal, with dropout and with spectral norm?**


# %% id="checkpointed"
def checkpointed(towers, inputs, loss_of, micro_batch):
    parts = [rows.split(micro_batch) for rows in inputs]
    embeddings = [
        torch.cat([checkpoint(tower, rows, use_reentrant=False) for rows in part])
        for tower, part in zip(towers, parts, strict=True)
    ]
    loss = loss_of(*embeddings)
    loss.backward()
    return loss.item()


# %% id="compare-checkpoint"
# NBVAL_IGNORE_OUTPUT
for way in (checkpointed, cached_backward):
    print(f"{way.__name__}, peak {peak_bytes(way, 256)}")
    compare_kinds(way)

# %% [markdown] id="tiles-text"
# With dropout the two agree to rounding, at nearly the same peak. PyTorch's checkpoint does not put
# buffers back: with spectral norm it is wrong in silence.
#
# ## The next wall: the matrix of all pairs
#
# The loss makes a matrix of $B^2$ similarities, several times over. At CLIP's batch of 32,768 one
# such matrix is 4 GiB, and cached gradients do not touch it. But a *row* of the loss needs one row
# of the matrix only. So take a tile of rows at a time, and checkpoint each tile.
#
# **Predict.** 1024 pairs, tiles of 64 rows: by what factor does the loss's own peak fall?

# %% id="guess-tiles"
guess = None  # times


# %% id="tiled"
def tile_sum(rows, others, log_scale, start):
    logits = log_scale.exp() * rows @ others.T  # (tile, pairs)
    labels = torch.arange(start, start + len(rows), device=rows.device)
    return F.cross_entropy(logits, labels, reduction="sum")


class Tiled(Contrastive):
    def forward(self, images, texts, size=64):
        images, texts = F.normalize(images, dim=1), F.normalize(texts, dim=1)
        total = 0.0
        for one, other in ((images, texts), (texts, images)):
            for start in range(0, len(one), size):
                tile = one[start : start + size], other, self.log_scale, start
                total = total + checkpoint(tile_sum, *tile, use_reentrant=False)
        return total / (2 * len(images))


# %% id="tiles-measured"
def loss_peak(loss_of):
    torch.manual_seed(0)
    embedded = [torch.randn(1024, 32, requires_grad=True) for _ in range(2)]
    report = memory.measure(lambda: loss_of(*embedded).backward(), model=loss_of)
    return report.peak_bytes - report.baseline_bytes, embedded[0].grad


(whole, exact), (tiled, seen) = loss_peak(Contrastive()), loss_peak(Tiled())
print(f"one matrix: {whole}, tiles: {tiled}, {whole / tiled:.0f} times less", end="")
print(f"{beside(guess, whole / tiled)}; same gradient: {off([seen], [exact]) < 1e-5}")

# %% [markdown] id="gpu"
# ## On a GPU: CLIP itself
#
# Never graded. The published two-tower model with random weights: the predicted peak of a plain
# step, then what the allocator measures for it, and for a much larger batch with cached gradients.


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
    """Make a step of CLIP: in one graph, or cached where a micro-batch is given."""
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

# %% [markdown] id="end"
# ## What you can now do
#
# - Say of a loss whether accumulation computes it: yes if each term needs one row.
# - Cut a backward where the graph is narrow, keep the gradient there, and finish it later, exactly.
# - Name what a second forward must find as the first did, and measure that it does.
