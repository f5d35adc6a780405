# %% [markdown] id="title"
# # Lab 06: exact accumulation
#
# You write accumulation loops that are exact, even with ragged micro-batches, masked
# tokens, a gradient scaler and several processes.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 6.1 | a comparison: where do two training steps first differ? | 3 |
# | 6.2 | an epoch in windows, including a shorter last one | 2 |
# | 6.3 | a step for tokens: ragged, masked, shifted | 2 |
# | 6.4 | a step in float16, with scaler, clipping and scheduler | 3 |
# | 6.5 | one update of any model, or no change if it fails | 4 |
# | 6.6 | one update on several processes, with one exchange of gradients | 3 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. Your answers may not call chapter 08's `assert_same_training`.

# %% id="imports"
import contextlib
import copy
import math
from collections.abc import Iterable
from functools import partial
from itertools import islice

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib import checks, data, memory
from tutorial_lib.instruments import ranks
from tutorial_lib.checks import summation_tolerance
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.vit import ViT, ViTConfig

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)

# %% [markdown] id="the-subject"
# ## The subject
#
# We train a small ViT in float64, where relative differences above 1e-12 are bugs, not
# rounding. We compare two steps on the same 64 images. The first runs all images at
# once. The second runs four micro-batches, but its author forgot to divide each loss by
# four.

# %% id="subject"
images, labels = data.digits()
images = images.double()
sgd, adamw = partial(SGD, lr=0.1), partial(AdamW, lr=1e-3)


def make_vit(dtype=torch.float64):
    torch.manual_seed(0)
    return ViT(ViTConfig(num_layers=2, num_heads=2, d_model=32)).to(dtype)


# %% id="steps"
def big_batch(model, optimizer, max_norm=math.inf):
    return four_pieces(model, optimizer, max_norm, num=1)


def four_pieces(model, optimizer, max_norm=math.inf, num=4):
    optimizer.zero_grad()
    logged = 0.0
    for x, y in zip(images[:64].chunk(num), labels[:64].chunk(num), strict=True):
        loss = model.loss(x, y)
        loss.backward()
        logged += loss.item() / num
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return logged


# %% [markdown] id="predict-blind"
# People often check a training loop by three numbers: the loss, the gradient's norm, and the norm
# of the weights after an update.
#
# **Predict.** With AdamW, and with gradients clipped to a norm of 0.1, how many of these three
# numbers differ by more than 1 % between the right step and the faulty one?

# %% id="guess-blind"
guess = None  # of the three


# %% id="blind"
# NBVAL_IGNORE_OUTPUT
def seen_after(step, max_norm):
    model = make_vit()
    loss = step(model, adamw(model.parameters()), max_norm)
    weights = nn.utils.parameters_to_vector(model.parameters()).norm().item()
    norm = nn.utils.get_total_norm(p.grad for p in model.parameters()).item()
    return pd.Series({"loss": loss, "gradient norm": norm, "weights": weights})


off = {}
for limit in (math.inf, 0.1):
    seen, wanted = seen_after(four_pieces, limit), seen_after(big_batch, limit)
    off[f"clipped at {limit}"] = (seen / wanted - 1).abs()
number = int((off["clipped at 0.1"] > 0.01).sum())
print(f"clipped at 0.1: {number} of three{beside(guess, number)}")
pd.DataFrame(off).map("{:.0e}".format).T

# %% [markdown] id="text-6-1"
# Compare the whole gradient instead.
#
# ## 6.1 Where do two steps first differ?
#
# Difficulty 3/5 · importance 5/5 · 10 minutes
#
# Run two steps from the same start, each on a copy of the model. Return the first part
# that differs, loss, gradients or parameters, and by how much.


# %% id="given-6-1"
def vector(tensors):
    """Put tensors into one vector of float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def gradient_vector(model):
    """Put a model's gradients into one vector; a missing gradient becomes zeros."""
    pairs = [(p, p.grad) for p in model.parameters()]
    return vector(torch.zeros_like(p) if g is None else g for p, g in pairs)


def relative(seen, wanted):
    """Return the relative difference of two vectors."""
    if torch.equal(seen, wanted):
        return 0.0
    return float((seen - wanted).norm() / wanted.norm())


# %% id="given-first-beyond"
def first_beyond(seen, wanted, tolerance):
    """Name the first part of two dicts of vectors that differs, and by how much."""
    differences = {part: relative(seen[part], wanted[part]) for part in wanted}
    for part, difference in differences.items():
        if not difference <= tolerance:  # `difference > tolerance` is False for nan
            return part, difference
    return "nothing", max(differences.values())


# %% id="answer-6-1"
# exercise 6.1
def first_difference(
    step_a, step_b, model: nn.Module, make_optimizer, tolerance: float
) -> tuple[str, float]:
    """Run two training steps from one start, and say where they first differ.

    Args:
        step_a: The step to trust: `step_a(model, optimizer)` makes one update, and
            returns its loss, a float.
        step_b: The step to judge; it is called in the same way.
        model: Both steps start from it, and clear old gradients. Afterwards the model,
            its gradients and the random state are as before.
        make_optimizer: `make_optimizer(parameters)` returns an optimizer.
        tolerance: Largest relative difference that still counts as rounding.

    Returns:
        What `first_beyond` returns for the parts "loss", "gradients" (as the
        optimizer receives them) and "parameters" (after the step), in this order.
    """
    ### BEGIN SOLUTION
    random_state = torch.get_rng_state()

    def observe(step):
        torch.set_rng_state(random_state)
        twin, gradients = copy.deepcopy(model), []
        optimizer = make_optimizer(twin.parameters())
        look = lambda *_: gradients.append(gradient_vector(twin))  # noqa: E731
        optimizer.register_step_pre_hook(look)
        loss = torch.tensor([step(twin, optimizer)], dtype=torch.float64)
        weights = vector(twin.parameters())
        return {"loss": loss, "gradients": gradients[0], "parameters": weights}

    wanted, seen = observe(step_a), observe(step_b)
    torch.set_rng_state(random_state)
    return first_beyond(seen, wanted, tolerance)
    ### END SOLUTION


# %% id="check-6-1"
# check 6.1 (3 points)
checks.lab06.first_difference(first_difference)

# %% [markdown] id="hints-6-1"
# <details><summary>Hint 1: an inner function</summary>
#
# Write `observe(step)`, which runs one step on a copy and returns a dict of three vectors.
# `torch.tensor([loss], dtype=torch.float64)` makes the loss a vector.
# </details>
# <details><summary>Hint 2: the moment to look</summary>
#
# A step may clear its gradients before it returns. With
# `optimizer.register_step_pre_hook(function)`, PyTorch calls `function(optimizer, args, kwargs)`
# when `step()` begins. Let it append the gradients to a list.
# </details>
# <details><summary>Hint 3: one start</summary>
#
# Each step gets a new `copy.deepcopy(model)`, a new optimizer, and the initial random
# state (`torch.set_rng_state`).
# </details>
#
# **Predict.** The faulty step didn't divide by 4. Without clipping, what relative difference does
# your function report for the gradients?

# %% id="guess-difference"
guess = None  # relative difference

# %% id="judge-blind"
judge = partial(
    first_difference, model=make_vit(), make_optimizer=adamw, tolerance=1e-12
)
part, difference = judge(big_batch, four_pieces)
print(f"not clipped: {part}, {difference:.4g}{beside(guess, difference)}")
clipped = [partial(step, max_norm=0.1) for step in (big_batch, four_pieces)]
part, difference = judge(*clipped)
print(f"clipped: {part}, below 1e-5: {difference < 1e-5}")

# %% [markdown] id="text-6-2"
# Clipping gives both gradients the same norm, so only a limit as strict as 1e-12 still
# finds the bug. Compare without clipping.
#
# ## 6.2 Windows
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# `train_epoch` makes one update for each *window*: the next `num` micro-batches, or at the end as
# many as are left. It gets an epoch's micro-batches as an iterator, or as a loader that restarts at
# each call of `iter`. The epoch has no `len`, and doesn't fit into memory.
#
# The goal: every window's gradient is within 1e-12 of the gradient that its images give as one
# batch. Read one window at a time. Run one micro-batch at a time, and keep only its graph in
# memory. These rules also apply in 6.3, 6.4 and 6.6.


# %% id="answer-6-2"
# exercise 6.2
def train_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    micro_batches: Iterable[tuple[Tensor, Tensor]],
    num: int,
) -> list[float]:
    """Train on all micro-batches once, with one update for each window.

    Args:
        model: Its `loss(images, labels)` is the mean over a micro-batch's images.
        optimizer: Its parameters may have an old `.grad`, which must not count.
        micro_batches: Pairs of images `(B, 1, 8, 8)` and labels `(B,)`; B varies.
        num: Micro-batches in a window; the last window may have fewer.

    Returns:
        For each update, the mean loss over its window's images.
    """
    ### BEGIN SOLUTION
    micro_batches, losses = iter(micro_batches), []
    while window := list(islice(micro_batches, num)):
        num_images = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        losses.append(0.0)
        for x, y in window:
            loss = model.loss(x, y) * (len(y) / num_images)
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    return losses
    ### END SOLUTION


# %% id="check-6-2"
# check 6.2 (2 points)
checks.lab06.train_epoch(train_epoch)

# %% [markdown] id="hints-6-2"
# <details><summary>Hint 1: reading a window</summary>
#
# Call `iter` once. Then `list(islice(iterator, num))` takes up to `num` items.
# </details>
# <details><summary>Hint 2: the weight of a micro-batch</summary>
#
# Multiply each mean loss by the micro-batch's share of the window's images.
# </details>
# <details><summary>Hint 3: what happens once</summary>
#
# For each window, count the images once, and call `zero_grad` and `step` once.
# </details>


# %% id="judge-6-2"
# One window: eleven images in micro-batches of 5, 5 and 1. The step to trust runs all
# eleven at once.
def one_window(model, optimizer, size):
    parts = zip(images[:11].split(size), labels[:11].split(size), strict=True)
    return train_epoch(model, optimizer, parts, num=3)[0]


whole, ragged = partial(one_window, size=11), partial(one_window, size=5)
judge(whole, ragged)[0]

# %% [markdown] id="text-6-3"
# ## 6.3 Tokens
#
# Difficulty 3/5 · importance 5/5 · 8 minutes
#
# A language model's loss is a mean over *targets*, the tokens to be predicted. The
# labels are the row's tokens, except that padding and the prompt, here a line's
# indentation, have the label -100. Each output predicts the next position's label, so a
# row's first label is never a target:
#
# ```text
# tokens   t0   t1   t2   t3   pad
# labels   t0   t1   t2   t3  -100
# targets       t1   t2   t3             three targets, but four labels that aren't -100
# ```
#
# A micro-batch may have no target at all: then its mean loss is nan, but its summed
# loss is 0.
#
# **Predict.** If you count every label that isn't -100, even a row's first, by what
# percentage do you overcount the targets of the sixteen lines below?

# %% id="guess-6-3"
guess = None  # percent


# %% id="rows"
def token_rows(lines, width=48):
    """Return tokens, labels `(B, T)`: indentation and padding have the label -100."""
    rows = [data.encode(line[:width]) for line in lines]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    for row, line in enumerate(lines):
        labels[row, : len(line) - len(line.lstrip())] = -100
    return tokens, labels


# %% id="window"
lines = [line for line in data.text().splitlines() if line.strip()]
window = [token_rows(lines[at : at + 4]) for at in range(100, 116, 4)]
make_gpt = partial(GPT, GPTConfig(seq_len=48, num_layers=2, num_heads=2, d_model=32))

before = sum(int((row_labels != -100).sum()) for _, row_labels in window)
after = sum(int((row_labels[:, 1:] != -100).sum()) for _, row_labels in window)
too_many = 100 * (before / after - 1)
print(f"{before} for {after} targets: {too_many:.1f} %{beside(guess, too_many)}")


# %% id="answer-6-3"
# exercise 6.3
def token_step(
    model: nn.Module, optimizer: Optimizer, window: list[tuple[Tensor, Tensor]]
) -> float:
    """Make one update with the mean loss over all targets of a window.

    Args:
        model: Maps tokens `(B, T)` to logits `(B, T, V)`.
        optimizer: Updates the model.
        window: Micro-batches of tokens and labels `(B, T)`. A micro-batch may have no
            target, but the window has some.

    Returns:
        The mean loss over the window's targets.
    """
    ### BEGIN SOLUTION
    num_targets = sum(int((labels[:, 1:] != -100).sum()) for _, labels in window)
    optimizer.zero_grad()
    total = 0.0
    for tokens, labels in window:
        logits, targets = model(tokens)[:, :-1], labels[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        loss = loss / num_targets
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
    ### END SOLUTION


# %% id="check-6-3"
# check 6.3 (2 points)
checks.lab06.token_step(token_step)

# %% [markdown] id="hints-6-3"
# <details><summary>Hint 1: the shift</summary>
#
# Drop the last position of the logits and the first column of the labels.
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# `F.cross_entropy(..., reduction="sum")` takes `(N, V)` and `(N,)`, and ignores targets of -100.
# </details>
# <details><summary>Hint 3: the count</summary>
#
# Count the targets of the whole window before the first backward.
# </details>

# %% id="judge-6-3"
# Four micro-batches of four lines, against all sixteen lines at once.
everything = [token_rows(lines[100:116])]
steps = [partial(token_step, window=parts) for parts in (everything, window)]
torch.manual_seed(0)
judge_gpt = partial(first_difference, model=make_gpt().double(), tolerance=1e-12)
judge_gpt(*steps, make_optimizer=sgd)[0]

# %% [markdown] id="text-6-4"
# ## 6.4 Once per update
#
# Difficulty 3/5 · importance 5/5 · 15 minutes
#
# In float16, a training loop scales each micro-batch's loss, so that small gradients don't
# become 0. Once per window, it unscales the gradients, clips them, makes the update, adjusts the
# scale, and steps the scheduler. If *one* micro-batch has an infinite gradient, `scaler.step` skips
# the window's update. In that case, skip the scheduler's step, too.
#
# `scaler.step` doesn't say whether it skipped, but after a skipped update
# `scaler.update` halves the scale. The next cell tries four updates; the second has an
# infinite gradient. The scale begins at 1024, and doubles after two good updates in a
# row.
#
# **Predict.** What is the scale after the fourth update?

# %% id="guess-6-4"
guess = None  # the scale


# %% id="watch-scaler"
def scales(gradients):
    weight = nn.Parameter(torch.zeros(1))
    optimizer = SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale()


watched = list(scales([1.0, math.inf, 1.0, 1.0]))
print(f"{watched}{beside(guess, watched[-1])}")

# %% [markdown] id="read-scaler"
# A disabled scaler always reports 1 and skips nothing.
#
# The goal: each window's gradient equals that of all its images in one batch, within
# 1e-12 (the check's `loss_of` is in float64).


# %% id="answer-6-4"
# exercise 6.4
def scaled_step(
    model, optimizer, scheduler, scaler, window, max_norm: float, loss_of
) -> tuple[float, float]:
    """Make one update of a window in mixed precision, or skip it as a whole.

    Args:
        scheduler: Steps after each update that was not skipped.
        scaler: A `torch.amp.GradScaler`, perhaps disabled (`enabled=False`).
        window: A list of micro-batches, images `(B, 1, 8, 8)` and labels `(B,)`.
        max_norm: Limit for the norm of the window's whole, unscaled gradient.
        loss_of: `loss_of(model, images, labels)` is a micro-batch's mean loss.

    Returns:
        The mean loss over the window's images, and the norm of the window's gradient
        before clipping, both unscaled.
    """
    ### BEGIN SOLUTION
    num_images = sum(len(y) for _, y in window)
    optimizer.zero_grad()
    total = 0.0
    for x, y in window:
        loss = loss_of(model, x, y) * (len(y) / num_images)
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:  # a lower scale: the update was skipped
        scheduler.step()
    return total, norm.item()
    ### END SOLUTION


# %% id="check-6-4"
# check 6.4 (3 points)
checks.lab06.scaled_step(scaled_step)

# %% [markdown] id="hints-6-4"
# <details><summary>Hint 1: the order</summary>
#
# For each micro-batch: weight the loss, `scale`, backward. Then `unscale_`, clip,
# `step`, `update`, scheduler.
# </details>
# <details><summary>Hint 2: two numbers to return</summary>
#
# Read the loss before it is scaled. `clip_grad_norm_` returns the norm before clipping.
# </details>
# <details><summary>Hint 3: was it skipped?</summary>
#
# Read `get_scale()` before `step` and after `update`.
# </details>


# %% id="half-loss"
def half_loss(model, x, y):
    with torch.autocast(x.device.type, torch.float16):
        return model.loss(x.float(), y)


def eight_windows(model, window, scale):
    optimizer, made = SGD(model.parameters(), lr=0.1), []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    scaler = torch.amp.GradScaler(window[0][0].device.type, init_scale=scale)
    for _ in range(8):
        loss, _ = scaled_step(
            model, optimizer, scheduler, scaler, window, 1.0, half_loss
        )
    return len(made), scheduler.last_epoch, scaler.get_scale(), loss


# %% id="lost-windows"
# In real float16, a scale of 2**24 is too large: updates are skipped until it is
# small enough.
parts = list(zip(images[:32].split(12), labels[:32].split(12), strict=True))
made, scheduled, *_ = eight_windows(make_vit(torch.float32), parts, 2.0**24)
print(f"some lost: {0 < made < 8}; as many scheduled as made: {scheduled == made}")

# %% [markdown] id="text-6-5"
# ## 6.5 All or nothing
#
# Difficulty 4/5 · importance 5/5 · 15 minutes
#
# Now write one step for any model whose loss is a mean over *terms*: tokens, images or
# pixels. You are given `loss_sum(model, *micro_batch)`, the sum of a micro-batch's
# terms, and `count_terms(*micro_batch)`, their number.
#
# A step that fails must raise an error, and leave the model, its gradients and buffers,
# the optimizer and the random state as they were. Weights and optimizer states need no
# copy if `optimizer.step()` comes last. Test losses for nan and infinity, but not
# gradients. These functions help:


# %% id="given-6-5"
def refuse_impossible(num_steps, num_rows, num_terms):
    """Raise an error if no update is possible. To be called before anything runs."""
    if not 1 <= num_steps <= num_rows:
        raise ValueError(
            f"num_steps (={num_steps}) must be between 1 and the {num_rows} rows."
        )
    if not num_terms:
        raise ValueError("no row has a target, so the loss has no mean: skip it.")


def remember(model):
    """Return a function that restores a model's buffers and the random state."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    random_state = torch.get_rng_state()
    gpu_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def put_back():
        torch.set_rng_state(random_state)
        torch.cuda.set_rng_state_all(gpu_states)
        for buffer, kept in buffers:
            buffer.copy_(kept)

    return put_back


# %% [markdown] id="goal-6-5"
# The goal: an update in micro-batches equals the update with the whole batch, for GPT, ViT and
# U-Net, within 1e-12 in float64 and within rounding in float32.


# %% id="answer-6-5"
# exercise 6.5
def exact_step(
    model, optimizer, batch, num_steps, *, loss_sum, count_terms, max_norm=math.inf
) -> float:
    """Make one update in micro-batches, or raise and leave everything as it was.

    Args:
        batch: A tuple of tensors with one row for each sample.
        num_steps: Number of micro-batches to split it into, as evenly as possible.
        max_norm: Limit for the norm of the whole gradient.

    Returns:
        The mean loss over all terms of the batch.

    Raises:
        ValueError: From `refuse_impossible`. Also if a micro-batch's loss is not
            finite; then it names the micro-batch's number, counted from 1. Errors that
            the model raises are passed on.
    """
    ### BEGIN SOLUTION
    num_terms, parameters = count_terms(*batch), list(model.parameters())
    refuse_impossible(num_steps, len(batch[0]), num_terms)
    gradients, put_back = [p.grad for p in parameters], remember(model)
    total = 0.0
    try:
        optimizer.zero_grad()
        pieces = zip(*(t.tensor_split(num_steps) for t in batch), strict=True)
        for number, micro_batch in enumerate(pieces, start=1):
            loss = loss_sum(model, *micro_batch) / num_terms
            if not math.isfinite(loss.item()):
                raise ValueError(f"micro-batch {number} of {num_steps}: {loss.item()}.")
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(parameters, max_norm)
    except BaseException:
        put_back()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        raise
    optimizer.step()
    return total
    ### END SOLUTION


# %% id="check-6-5"
# check 6.5 (4 points)
checks.lab06.exact_step(exact_step)

# %% [markdown] id="hints-6-5"
# <details><summary>Hint 1: before anything runs</summary>
#
# Count the terms, call `refuse_impossible`, then `remember`.
# `tensor.tensor_split(num_steps)` makes exactly that many parts.
# </details>
# <details><summary>Hint 2: restore</summary>
#
# In `except BaseException`: restore buffers, random state and the `.grad` tensors of
# before, then `raise`.
# </details>
# <details><summary>Hint 3: the loss of a micro-batch</summary>
#
# Check `math.isfinite(loss.item())` before `backward`. Clip inside the `try`, and step
# after it.
# </details>

# %% [markdown] id="text-6-6"
# ## 6.6 Several ranks
#
# Difficulty 4/5 · importance 4/5 · 15 minutes
#
# *Ranks* are processes that train together. Each has a copy of the model and its own
# window. During `backward`, `DistributedDataParallel` (DDP) averages the gradients over
# the ranks, with an *all-reduce*. One all-reduce per window is enough;
# `model.no_sync()` skips the others.
#
# **Predict.** Each of two ranks runs four micro-batches. If `no_sync` is around
# *backward only*, in the first three micro-batches, how many all-reduces does a rank
# run for all four?

# %% id="guess-ways"
guess = None  # all-reduces

# %% id="accumulate-ways"
# no_sync around forward? around backward? in how many of the four micro-batches?
WAYS = {
    "without it": (False, False, 0),
    "backward only": (False, True, 3),
    "forward only": (True, False, 3),
    "forward and backward": (True, True, 3),
    "the last one too": (True, True, 4),
}
two = ranks.start(2)
print(two.run(dist.get_rank), two.run(dist.get_world_size))


# %% id="measure-way"
def measure_way(around_forward, around_backward, how_many):
    model = DistributedDataParallel(make_vit(torch.float32))
    at = 32 * dist.get_rank()
    parts = [tensor[at : at + 32].split(8) for tensor in data.digits()]
    with ranks.traffic() as seen:
        for place, (x, y) in enumerate(zip(*parts, strict=True)):
            skip = model.no_sync if place < how_many else contextlib.nullcontext
            with skip() if around_forward else contextlib.nullcontext():
                loss = F.cross_entropy(model(x), y)
            with skip() if around_backward else contextlib.nullcontext():
                (loss / 4).backward()
    return seen.sizes("all_reduce"), gradient_vector(model)


# %% id="measure-ways"
model = make_vit(torch.float32)
F.cross_entropy(model(images[:64].float()), labels[:64]).backward()
wanted, P = gradient_vector(model), sum(p.nbytes for p in model.parameters())
bound = summation_tolerance(torch.float32, images[:64].numel())
for name, way in WAYS.items():
    (sizes, mine), (_, theirs) = two.run(measure_way, *way)
    same, right = torch.equal(mine, theirs), relative(mine, wanted) < bound
    print(f"{name:<21} {len(sizes)} all-reduces, {sum(sizes) / P:.0f} P", end="; ")
    note = beside(guess, len(sizes)) if name == "backward only" else ""
    print(f"same on both {same}, right {right}{note}")

# %% [markdown] id="read-ways"
# P is the parameters' size in bytes. `no_sync` around backward alone does nothing,
# because DDP decides in *forward* whether backward will exchange gradients. So forward
# must be inside; backward may be, too.
#
# Ranks may have different numbers of targets. So count the targets of *all ranks*, with
# an all-reduce of one number before the first backward, and divide each micro-batch's
# summed loss by that count. DDP also divides the sum of the gradients by the number of
# ranks.
#
# The goal: on two and three ranks, the gradient is within 1e-12 of the whole batch's, and each rank
# sends P bytes of gradients per update.


# %% id="answer-6-6"
# exercise 6.6
def rank_step(
    model: DistributedDataParallel, optimizer, window, *, loss_sum, count_terms
) -> float:
    """Make this rank's part of one update, together with the other ranks.

    Args:
        window: A list of this rank's micro-batches, at least one. Other ranks may have
            more or fewer. A rank may have no terms, but all ranks together have some.
        loss_sum: As in 6.5.
        count_terms: As in 6.5.

    Returns:
        The mean loss over all terms of all ranks.
    """
    ### BEGIN SOLUTION
    place = next(model.parameters()).device  # nccl only reduces tensors on the GPU
    counts = [count_terms(*part) for part in window]
    num_terms = torch.tensor(float(sum(counts)), device=place)
    dist.all_reduce(num_terms)
    optimizer.zero_grad()
    total = torch.zeros((), dtype=torch.float64, device=place)
    for number, micro_batch in enumerate(window, start=1):
        is_last = number == len(window)
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = loss_sum(model, *micro_batch) / num_terms
            (loss * dist.get_world_size()).backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    return total.item()
    ### END SOLUTION


# %% id="check-6-6"
# check 6.6 (3 points)
checks.lab06.rank_step(rank_step)

# %% [markdown] id="hints-6-6"
# <details><summary>Hint 1: counting on all ranks</summary>
#
# `dist.all_reduce(tensor)` replaces the tensor by the sum over all ranks, in place. Every rank must
# call it.
# </details>
# <details><summary>Hint 2: where no_sync goes</summary>
#
# Run each micro-batch's forward and backward inside `model.no_sync()`; for the last
# one, use `contextlib.nullcontext()`.
# </details>
# <details><summary>Hint 3: two scales</summary>
#
# Multiply by `dist.get_world_size()` for backward only. The loss that you return is
# summed over the window and over the ranks, without that factor.
# </details>

# %% [markdown] id="after-6-6"
# ### On real ranks
#
# Each rank trains on eight of 6.3's sixteen lines. Your `exact_step`, with all sixteen in one
# process, should make the same update.


# %% id="loss-sums"
def token_loss_sum(model, tokens, labels):
    logits, targets = model(tokens)[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def count_tokens(tokens, labels):
    return int((labels[:, 1:] != -100).sum())


# %% id="real-step"
def real_step(step, lines):
    torch.manual_seed(0)
    model = make_gpt().double()
    parallel, mine = DistributedDataParallel(model), lines[8 * dist.get_rank() :][:8]
    window = [token_rows(mine[:3]), token_rows(mine[3:])]
    sums = {"loss_sum": token_loss_sum, "count_terms": count_tokens}
    with ranks.traffic() as seen:
        loss = step(parallel, sgd(model.parameters()), window, **sums)
    return loss, vector(model.parameters()), seen.sizes("all_reduce")


def single_step(lines):
    torch.manual_seed(0)
    model = make_gpt().double()
    sums = {"loss_sum": token_loss_sum, "count_terms": count_tokens}
    loss = exact_step(model, sgd(model.parameters()), token_rows(lines), 2, **sums)
    return loss, vector(model.parameters())


# %% id="on-real-ranks"
loss, alone = single_step(lines[100:116])
found = two.run(real_step, rank_step, lines[100:116])
for rank, (their_loss, weights, sizes) in enumerate(found):
    same_loss = math.isclose(loss, their_loss, rel_tol=1e-12)
    same, sent = relative(weights, alone) < 1e-12, max(sizes) / alone.nbytes
    print(f"rank {rank}: same loss {same_loss}, weights {same}; {sent:.0f} P sent")
two.stop()

# %% [markdown] id="gpu"
# ## On a GPU
#
# Ungraded: your step from 6.4, as one micro-batch and as eight.

# %% id="gpu-scaled"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    x, y = images[:1024].float().cuda(), labels[:1024].cuda()
    for pieces in (1, 8):
        torch.manual_seed(0)
        model = ViT(ViTConfig(num_layers=6, num_heads=8, d_model=512)).cuda()
        parts = list(zip(x.chunk(pieces), y.chunk(pieces), strict=True))
        step = partial(eight_windows, model, parts, 2.0**16)
        report = memory.measure(step, model=model, label=f"{pieces} pieces")
        made, scheduled, scale, loss = step()
        print(f"{pieces} pieces: peak {report.peak_bytes}, {made} updates, "
              f"{scheduled} scheduled, scale {scale:g}, loss {loss:.3f}")  # fmt: skip
