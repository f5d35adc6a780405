# %% [markdown] id="title"
# # Lab 08: fit the U-Net
#
# A diffusion U-Net learns to draw handwritten digits, with 64 images per update. The
# training needs 15 MiB, but you get half of that, and in the end a third. Every
# update's loss must be the same as with enough memory.
#
# **Budget:** 95 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 8.1 | an update's random draws, determined by the update's number | 2 |
# | 8.2 | an update's gradient, one micro-batch at a time | 2 |
# | 8.3 | the floor: bytes that neither micro-batches nor checkpoints save | 3 |
# | 8.4 | prices: the extra FLOPs of each block as a segment | 2 |
# | 8.5 | the fastest plan that fits, with micro-batches and checkpoints | 3 |
# | 8.6 | an update that survives running out of memory | 4 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. Chapters 08 and 11 prepare you for this lab.

# %% id="imports"
import contextlib
import copy
import gc
from functools import cache, partial
from itertools import combinations, product

import pandas as pd
import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from tutorial_lib import checks, data, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.segments import called_through
from tutorial_lib.instruments.training.adamw_8bit import AdamW8bit
from tutorial_lib.units import MIB, Bytes

# %% [markdown] id="subject-text"
# ## The model and its memory
#
# We use diffusers' U-Net with two levels, for 8 x 8 images.
#
# **Predict.** The model's 160 thousand parameters take 0.6 MiB. How many MiB of activations are in
# memory at the peak of a step with 64 images?

# %% id="guess-activations"
guess = None  # MiB

# %% id="subject"
# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)
gc.freeze()  # so a meter need not search the imports' objects for garbage
images, _ = data.digits()  # (1797, 1, 8, 8) in [-1, 1]
scheduler = DDPMScheduler(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2")
NUM = 64  # images per update: the effective batch


def fused(parameters, lr):
    return AdamW(parameters, lr=lr, fused=True)


# %% id="make"
def make(make_optimizer=fused):
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=8, add_attention=False,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    return unet, make_optimizer(unet.parameters(), lr=8e-3)


def loss_of(unet, noisy, times, noise):
    return F.mse_loss(unet(noisy, times).sample, noise)


# %% id="picture"
unet, optimizer = make()
# clones, since a view would count with the bytes of all the images behind it
drawn = images[:NUM].clone(), torch.randint(100, (NUM,)), torch.randn(NUM, 1, 8, 8)
first = [part[:1].clone() for part in drawn]


def plain_step():
    loss_of(unet, *drawn).backward()
    optimizer.step()
    optimizer.zero_grad()


whole = memory.measure(plain_step, model=unet, optimizer=optimizer, label="64 images")
activations = whole.at_peak["activations"] / MIB
print(f"activations: {activations:.1f} MiB{beside(guess, activations)}")
whole.figure()

# %% [markdown] id="cap-text"
# `memory.capped(limit)` caps the bytes that the meter counts. An operation that would exceed the
# cap raises `torch.OutOfMemoryError`, in the middle of the step.

# %% id="cap"
CAP = int(7.5 * MIB)
try:
    with memory.capped(CAP, model=unet, optimizer=optimizer):
        plain_step()
except torch.OutOfMemoryError as error:
    print(error)

# %% [markdown] id="text-8-1"
# ## 8.1 What does an update draw?
#
# Difficulty 1/5 · importance 4/5 · 8 minutes
#
# Each image of an update gets a random timestep and random noise. Later you split, repeat and
# resume updates. An update must then draw the same numbers as before.
#
# **Predict.** A generator draws the noise and then the timesteps of all 64 images. Then, from the
# same seed, it draws for 16 images at a time. How many of the 64 images get the same noise both
# times?

# %% id="guess-noises"
guess = None  # of 64


# %% id="two-ways"
def drawn_in(pieces):
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(pieces):
        parts.append(torch.randn(NUM // pieces, 64, generator=generator))
        torch.randint(100, (NUM // pieces,), generator=generator)  # the times
    return torch.cat(parts)


agreeing = int((drawn_in(1) == drawn_in(4)).all(1).sum())
print(f"{agreeing} of {NUM} agree{beside(guess, agreeing)}")

# %% [markdown] id="goal-8-1"
# So draw for the whole update at once, and let only the update's *number* determine
# what is drawn. The goal: the same number returns the same tensors, to the last bit.


# %% id="answer-8-1"
# exercise 8.1
def draw_update(
    images: Tensor, num: int, update: int, scheduler: DDPMScheduler
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw what one update trains on.

    Args:
        images: All images, `(N, channels, side, side)`.
        num: How many to draw, with repetition.
        update: The update's number, from 0 on. It alone decides what is drawn. Leave
            the global random state as it was, even if a draw fails.
        scheduler: Mixes images and noise. Timesteps begin at 0; their number is
            `num_train_timesteps` in its config.

    Returns:
        Noisy images `(num, channels, side, side)`, their timesteps `(num,)`, int64, and
        the noise in them, with a standard deviation of 1.
    """
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(update)
    rows = torch.randint(len(images), (num,), generator=generator)
    times = torch.randint(
        scheduler.config.num_train_timesteps, (num,), generator=generator
    )
    noise = torch.randn((num, *images.shape[1:]), generator=generator)
    return scheduler.add_noise(images[rows], noise, times), times, noise
    ### END SOLUTION


# %% id="check-8-1"
# check 8.1 (2 points)
checks.lab08.draw_update(draw_update)

# %% [markdown] id="hints-8-1"
# <details><summary>Hint 1: a generator for each update</summary>
#
# `torch.Generator().manual_seed(...)` makes a generator. Pass it to `torch.randint` and
# `torch.randn` as `generator=`.
# </details>
# <details><summary>Hint 2: three draws</summary>
#
# Draw the rows (which images), the timesteps and the noise. `torch.randint(high, (num,))` returns
# numbers below `high`.
# </details>
# <details><summary>Hint 3: the mixture</summary>
#
# Call `scheduler.add_noise(images, noise, times)`, with the noise that you return.
# </details>
#
# ## 8.2 A micro-batch at a time
#
# Difficulty 2/5 · importance 5/5 · 8 minutes
#
# The first lever is accumulation: write `backward_in_pieces`. The goal: in float64, the gradient is
# within 1e-12 of the whole batch's, and the peak is no higher than with one micro-batch alone.


# %% id="answer-8-2"
# exercise 8.2
def backward_in_pieces(
    unet: nn.Module, drawn: tuple[Tensor, Tensor, Tensor], micro_batch: int
) -> float:
    """Add the gradient of an update's loss to `.grad`, one micro-batch at a time.

    Args:
        unet: `unet(noisy, times).sample` is the noise that it predicts.
        drawn: Noisy images, timesteps and noise, as `draw_update` returns them.
        micro_batch: Images at once; the last micro-batch may have fewer.

    Returns:
        The loss: the mean squared error of the prediction over all images.
    """
    ### BEGIN SOLUTION
    total, num = 0.0, len(drawn[0])
    for part in zip(*(tensor.split(micro_batch) for tensor in drawn), strict=True):
        loss = loss_of(unet, *part) * (len(part[0]) / num)
        loss.backward()
        total += loss.item()
    return total
    ### END SOLUTION


# %% id="check-8-2"
# check 8.2 (2 points)
checks.lab08.backward_in_pieces(backward_in_pieces)

# %% [markdown] id="hints-8-2"
# <details><summary>Hint 1: cutting</summary>
#
# `tensor.split(size)` returns parts of that size; the last may be smaller. `zip` pairs up the three
# tensors' parts.
# </details>
# <details><summary>Hint 2: the weight</summary>
#
# `loss_of` is a mean over its micro-batch. Weight it by the micro-batch's share of the images.
# </details>
# <details><summary>Hint 3: the peak</summary>
#
# Call `backward` inside the loop, and keep the loss as a number, not as a tensor.
# </details>
#
# Assume that 32 images (`FULL`) fill a GPU, and any smaller number takes as long as 32.
#
# **Predict.** Of the micro-batch sizes 64, 32, 16, …, which is the largest that fits under 7.5 MiB?

# %% id="guess-fits"
guess = None  # images

# %% id="peak-of-update"
FULL = 32


def peak_of_update(micro_batch):
    """Count an update's peak; two micro-batches are enough to reach it."""
    drawn = [part[: 2 * micro_batch] for part in draw_update(images, NUM, 0, scheduler)]
    with memory.capped(10**12, model=unet, optimizer=optimizer) as cap:
        backward_in_pieces(unet, drawn, micro_batch)
        optimizer.step()
        optimizer.zero_grad()
    return cap.peak_bytes


# %% id="table-8-2"
peaks = {n: peak_of_update(n) for n in (64, 32, 16, 8, 4, 2, 1)}
fits = max(n for n, peak in peaks.items() if peak <= CAP)
print(f"{fits} images fit{beside(guess, fits)}")
columns = {
    "peak, MiB": {n: f"{peak / MIB:.2f}" for n, peak in peaks.items()},
    "times as long": {n: max(n, FULL) // n for n in peaks},
}
pd.DataFrame(columns).rename_axis("images at once")

# %% [markdown] id="read-8-2"
# ## 8.3 The floor
#
# Difficulty 2/5 · importance 4/5 · 15 minutes
#
# Parameters, buffers, gradients, optimizer state and one sample are the *floor*: neither
# micro-batches nor segments lower it. If the cap is too low, an update can fail in the middle. In
# the next cell AdamW uses `foreach`, the default on GPUs, which makes temporary tensors as large as
# the parameters. Forward and backward fit, but `step()` fails.
#
# **Predict.** When `step()` fails, how many of the 104 parameter tensors have changed?

# %% id="guess-changed"
guess = None  # of 104

# %% id="torn"
fresh, by_foreach = make(partial(AdamW, foreach=True))
before = [p.detach().clone() for p in fresh.parameters()]
try:
    with memory.capped(int(2.7 * MIB), model=fresh):
        loss_of(fresh, *first).backward()
        by_foreach.step()
except torch.OutOfMemoryError as error:
    print(error)
pairs = zip(before, fresh.parameters(), strict=True)
changed = sum(not torch.equal(old, new) for old, new in pairs)
print(f"{changed} of {len(before)} parameters changed{beside(guess, changed)}")
(count,) = {float(state["step"]) for state in by_foreach.state.values()}
print(f"updates by the optimizer's count: {count:.0f}")

# %% [markdown] id="goal-8-3"
# Weight decay has shrunk the parameters, but Adam's update is missing.
#
# So compute the floor before the first step. The floor's one sample consists of a noisy image and
# its noise, both float32, and a timestep, an int64.
#
# Refuse a cap below the floor. Refuse a wrong image size too: a U-Net of L levels halves the
# image's side L - 1 times, without a remainder. The goal: return the bytes that a cap leaves above
# the floor, exactly.


# %% id="answer-8-3"
# exercise 8.3
def room_for_activations(
    unet: nn.Module, side: int, state_bytes, cap_bytes: int
) -> int:
    """Return the bytes that a cap leaves above the floor, or refuse.

    Args:
        unet: In float32. Its `config` has `in_channels`, and `block_out_channels` with
            one number per level. Some parameters may be frozen. Don't run it.
        side: Height and width of the images, a positive number.
        state_bytes: `state_bytes(parameter)` returns the bytes that the optimizer keeps
            for a trained parameter.
        cap_bytes: The cap.

    Raises:
        ValueError: If the side isn't a multiple of the number that the levels need. The
            message names the side, that number, and a side to try. Also if the cap is
            below the floor. The message names cap and floor, in bytes.
    """
    ### BEGIN SOLUTION
    multiple = 2 ** (len(unet.config.block_out_channels) - 1)
    if rest := side % multiple:
        more = f"try {side - rest + multiple}"
        raise ValueError(f"side (={side}) must be a multiple of {multiple}: {more}.")
    floor = sum(tensor.nbytes for tensor in [*unet.parameters(), *unet.buffers()])
    trained = [p for p in unet.parameters() if p.requires_grad]
    floor += sum(p.nbytes + state_bytes(p) for p in trained)
    floor += 2 * unet.config.in_channels * side**2 * 4 + 8
    if cap_bytes < floor:
        how = "take a smaller U-Net, or an optimizer that keeps less"
        raise ValueError(f"the cap ({cap_bytes}) is below the floor ({floor}): {how}.")
    return cap_bytes - floor
    ### END SOLUTION


# %% id="check-8-3"
# check 8.3 (3 points)
checks.lab08.room_for_activations(room_for_activations)

# %% [markdown] id="hints-8-3"
# <details><summary>Hint 1: the parts</summary>
#
# Count every parameter and every buffer. If `parameter.requires_grad`, add a gradient as large as
# the parameter, and `state_bytes(parameter)`.
# </details>
# <details><summary>Hint 2: the sample</summary>
#
# Two images of `in_channels * side**2` values with 4 bytes each, and one value with 8
# bytes.
# </details>
# <details><summary>Hint 3: the refusals</summary>
#
# The U-Net has `len(unet.config.block_out_channels)` levels. A cap equal to the floor is enough.
# </details>
#
# What do three optimizers leave of our cap?


# %% id="states"
def states_of(make_optimizer):
    """Count the bytes that an optimizer keeps for each parameter after one update."""
    model, trained_by = make(make_optimizer)
    loss_of(model, *first).backward()
    trained_by.step()
    states = [trained_by.state[parameter].values() for parameter in model.parameters()]
    sizes = [sum(t.nbytes for t in state if isinstance(t, Tensor)) for state in states]
    return dict(zip(unet.parameters(), sizes, strict=True))


# %% id="table-8-3"
states = {"SGD": SGD, "AdamW, a byte a number": AdamW8bit, "AdamW": fused}
states = {name: states_of(kind) for name, kind in states.items()}
rooms = {n: room_for_activations(unet, 8, s.get, CAP) for n, s in states.items()}
columns = {
    "states, MiB": {n: f"{sum(s.values()) / MIB:.2f}" for n, s in states.items()},
    "room, MiB": {n: f"{room / MIB:.2f}" for n, room in rooms.items()},
}
pd.DataFrame(columns)

# %% [markdown] id="read-8-3"
# ## 8.4 What does a segment cost?
#
# Difficulty 3/5 · importance 4/5 · 12 minutes
#
# The second lever is checkpointing. diffusers' switch,
# `unet.enable_gradient_checkpointing()`, makes nearly every residual block a segment.
# Instead, you choose among five larger blocks, by their prices.


# %% id="recomputing"
def recomputing(modules):
    """Make each of these modules a segment until the end of the `with` block."""
    return called_through(partial(checkpoint, use_reentrant=False), modules)


def blocks_of(unet):
    levels = [*unet.down_blocks, unet.mid_block, *unet.up_blocks]
    return dict(zip(("down 0", "down 1", "mid", "up 0", "up 1"), levels, strict=True))


# %% [markdown] id="goal-8-4"
# A block's *price* is how many more FLOPs per image a step takes if that block is the
# only segment. The goal: find each price, exact to the FLOP, without changing the
# U-Net, its gradients or the random state.


# %% id="answer-8-4"
# exercise 8.4
def prices_of(
    unet: nn.Module,
    drawn: tuple[Tensor, Tensor, Tensor],
    blocks: dict[str, nn.Module],
) -> dict[str, int]:
    """Count how many more FLOPs a step takes if one block alone is a segment.

    A step is `loss_of(unet, *drawn)` and its backward. Count with
    `memory.flop_counter()`: PyTorch's own counter misses fused attention on CPUs.

    Args:
        unet: Parts may be frozen. Gradients, buffers, modes and the random state stay
            as before, even if a step raises an error; that error is passed on.
        drawn: Noisy images, timesteps and noise.
        blocks: Some of the U-Net's modules, by name. One may run twice in a forward.

    Returns:
        For each name, the extra FLOPs per image, a whole number.
    """
    ### BEGIN SOLUTION
    unet, blocks = copy.deepcopy((unet, blocks))  # together: still its own blocks

    def flops_with(modules):
        with recomputing(modules), memory.flop_counter() as counter:
            loss_of(unet, *drawn).backward()
        return counter.get_total_flops() // len(drawn[0])

    with torch.random.fork_rng(devices=[]):
        plain = flops_with([])
        return {name: flops_with([block]) - plain for name, block in blocks.items()}
    ### END SOLUTION


# %% id="check-8-4"
# check 8.4 (2 points)
checks.lab08.prices_of(prices_of)

# %% [markdown] id="hints-8-4"
# <details><summary>Hint 1: what to count</summary>
#
# Count the FLOPs of a plain step, and for each block the FLOPs of a step inside
# `recomputing([block])`. Include backward, which runs the recomputation.
# </details>
# <details><summary>Hint 2: counting</summary>
#
# Put `with memory.flop_counter() as counter:` around a step. `counter.get_total_flops()` then
# returns the FLOPs for all images.
# </details>
# <details><summary>Hint 3: as before</summary>
#
# `copy.deepcopy((unet, blocks))` copies both together, so the copied blocks belong to the copied
# U-Net. `torch.random.fork_rng(devices=[])` restores the random state.
# </details>
#
# **Predict.** The block `up 0` ends with an upsampling convolution, on four times as many pixels as
# the rest of the block. What is the block's price, as a percentage of the FLOPs of its forward?

# %% id="guess-price"
guess = None  # percent

# %% id="prices"
some = [part[:FULL] for part in drawn]
prices = prices_of(unet, some, blocks_of(unet))
with torch.no_grad(), memory.flop_counter() as counter:
    unet(*some[:2])
forward = sum(counter.get_flop_counts()["UNet2DModel.up_blocks.0"].values()) / FULL
share = 100 * prices["up 0"] / forward
print(f"{share:.0f} % of its forward{beside(guess, share)}")
columns = {name: f"{price / 1e6:.2f}" for name, price in prices.items()}
pd.DataFrame({"price, million FLOPs": columns})

# %% [markdown] id="read-8-4"
# PyTorch stops a recomputation once it has the last tensor that backward needs. Here that tensor is
# the upsampling convolution's input, so the convolution itself doesn't run again.
#
# How much memory does each block save? The next cells show the peak at 32 images with
# each block as the only segment.


# %% id="blocks"
@cache
def peak_with(choice, micro_batch=FULL):
    """Count an update's peak with some of the blocks as segments."""
    with recomputing([blocks_of(unet)[name] for name in choice]):
        return peak_of_update(micro_batch)


# %% id="table-8-4"
names = tuple(blocks_of(unet))
choices = [(), *((name,) for name in names), names]
peaks = {", ".join(choice) or "nothing": peak_with(choice) for choice in choices}
unet.enable_gradient_checkpointing()
peaks["the switch"] = peak_of_update(FULL)
unet.disable_gradient_checkpointing()
pd.DataFrame({"peak, MiB": {name: f"{peak / MIB:.2f}" for name, peak in peaks.items()}})

# %% [markdown] id="text-8-5"
# The last block, `up 1`, saves nothing. Its backward comes first, so it is recomputed
# while all other blocks' activations are still in memory.
#
# ## 8.5 Both levers at once
#
# Difficulty 3/5 · importance 4/5 · 18 minutes
#
# A *plan* is a micro-batch size and a choice of blocks as segments. `update_time` computes a plan's
# time. A plan's peak must be measured, with a training step, since what two blocks save together
# isn't the sum of what each saves. Many sizes aren't worth measuring: 40 splits 64 images into two
# micro-batches (40 and 24), and so does 32, which takes less memory. The goal: find the fastest
# plan that fits, without an unnecessary measurement.


# %% id="update-time"
def update_time(plan, num, full, plain, prices):
    """Return the time of an update, in FLOPs that a filled GPU does in that time."""
    micro_batch, choice = plan
    rounds = -(-num // micro_batch)  # rounded up
    return rounds * max(micro_batch, full) * (plain + sum(prices[b] for b in choice))


# %% id="answer-8-5"
# exercise 8.5
def cheapest_fit(
    num: int, full: int, plain: int, prices: dict[str, int], peak_of, limit_bytes: int
) -> tuple[int, tuple[str, ...]]:
    """Find the fastest plan whose peak is within the limit.

    Args:
        num, full, plain, prices: As in `update_time`. No two plans worth trying take
            the same time.
        peak_of: `peak_of(micro_batch, choice)`, with a tuple of names, measures a peak
            in bytes. Call it at most once for a plan, never for a plan slower than the
            answer, and never if a smaller micro-batch takes no longer.
        limit_bytes: A peak may be as high as this.

    Raises:
        ValueError: If no plan fits; it names the limit and the lowest peak, in bytes.
    """
    ### BEGIN SOLUTION
    time = partial(update_time, num=num, full=full, plain=plain, prices=prices)
    alone = [time((size, ())) for size in range(1, num + 1)]
    sizes = [n for n in range(1, num + 1) if alone.index(min(alone[:n])) == n - 1]
    choices = [c for k in range(len(prices) + 1) for c in combinations(prices, k)]
    peaks = []
    for plan in sorted(product(sizes, choices), key=time):
        peaks.append(peak_of(*plan))
        if peaks[-1] <= limit_bytes:
            return plan
    why = f"no plan fits {limit_bytes} bytes, the lowest peak is {min(peaks)}"
    raise ValueError(f"{why}: take a smaller model, or an optimizer that keeps less.")
    ### END SOLUTION


# %% id="check-8-5"
# check 8.5 (3 points)
checks.lab08.cheapest_fit(cheapest_fit)

# %% [markdown] id="hints-8-5"
# <details><summary>Hint 1: micro-batches worth trying</summary>
#
# A size is worth trying if `update_time((size, ()), ...)` is less than for every smaller size.
# </details>
# <details><summary>Hint 2: all plans, in which order</summary>
#
# `combinations(prices, k)` yields the choices of `k` blocks. `product` pairs them with the sizes.
# Sort the plans by time; the first that fits is the answer.
# </details>
# <details><summary>Hint 3: none fits</summary>
#
# If none fits, you have measured all plans by then. So keep the peaks as you go.
# </details>
#
# **Predict.** Without segments, micro-batches of 32 don't fit under 6 MiB. Micro-batches of 16 fit,
# but take 100 % more time than 32. How many percent more time than 32 without segments does the
# fastest plan for 6 MiB take?

# %% id="guess-slower"
guess = None  # percent


# %% id="plain-flops"
def flops_of_step():
    """Count the FLOPs of a step, per image."""
    with memory.flop_counter() as counter:
        loss_of(unet, *some).backward()
    unet.zero_grad()
    return counter.get_total_flops() // FULL


plain = flops_of_step()
unet.enable_gradient_checkpointing()
print(f"the switch: {flops_of_step() / plain - 1:.0%} more FLOPs")
unet.disable_gradient_checkpointing()


# %% id="search"
@cache  # the run below asks again
def choose(limit_bytes):
    """Search, and return the plan and the number of measurements."""
    tried = []

    def peak_of(micro_batch, choice):
        tried.append(choice)
        return peak_with(tuple(choice), micro_batch)

    return cheapest_fit(NUM, FULL, plain, prices, peak_of, limit_bytes), len(tried)


# %% id="plans"
rows = {}
for limit_bytes in (CAP, 6 * MIB):
    (size, choice), measured = choose(limit_bytes)
    time = update_time((size, choice), NUM, FULL, plain, prices) / (NUM * plain)
    peak = f"{peak_with(tuple(choice), size) / MIB:.2f}"
    rows[limit_bytes / MIB] = size, ", ".join(choice), peak, f"{time - 1:.0%}", measured
print(f"6 MiB: {time - 1:.0%} more time{beside(guess, 100 * (time - 1))}")
columns = ["micro-batch", "segments", "peak, MiB", "more time", "measurements"]
pd.DataFrame(rows, index=columns).T.rename_axis("MiB")

# %% [markdown] id="text-8-6"
# ## 8.6 When it runs out anyway
#
# Difficulty 4/5 · importance 5/5 · 18 minutes
#
# When a step runs out of memory, the usual advice is to halve the micro-batch and try
# again. But the failed attempt left gradients of some micro-batches, a random state
# that dropout has advanced, and a graph. While you handle the exception, the graph
# stays in memory: the exception refers to the stack frames that it passed through.

# %% id="held"
victim, _ = make()
with memory.capped(CAP, model=victim) as cap:
    held = {"before": cap.held_bytes}
    try:
        loss_of(victim, *drawn).backward()
    except torch.OutOfMemoryError:
        held["inside except"] = cap.held_bytes
    held["after except"] = cap.held_bytes
{moment: Bytes(size) for moment, size in held.items()}

# %% [markdown] id="goal-8-6"
# So retry after the `except` clause. The goal: even with dropout on the CPU, the update
# equals an update that started with the micro-batch size that fits. If none fits, leave
# parameters, optimizer and random state as they were.


# %% id="answer-8-6"
# exercise 8.6
def update_that_fits(unet, optimizer, drawn, micro_batch: int) -> tuple[float, int]:
    """Make an update with the first size that fits: the given one, its half, and so on.

    Calls `backward_in_pieces`; returns the loss, and the micro-batch size that fitted.
    Old gradients must not count, and no gradients remain. The CPU's random state ends
    as if no attempt had failed.

    Args:
        unet, optimizer, drawn: As above; the optimizer's state exists already.
        micro_batch: The first size to try; halves are rounded down, and 1 is the last.

    Raises:
        torch.OutOfMemoryError: If a micro-batch of 1 does not fit. The message says so,
            and what to try. Parameters, optimizer and the CPU's random state are as
            before, and gradients are None. Any other error, and any error from
            `optimizer.step()`, is passed on at once.
    """
    ### BEGIN SOLUTION
    random_state = torch.get_rng_state()
    while True:
        optimizer.zero_grad()
        with contextlib.suppress(torch.OutOfMemoryError):
            loss = backward_in_pieces(unet, drawn, micro_batch)
            break
        torch.set_rng_state(random_state)
        if micro_batch == 1:
            optimizer.zero_grad()
            raise torch.OutOfMemoryError("micro-batches of 1 do not fit: free memory.")
        micro_batch //= 2
    optimizer.step()
    optimizer.zero_grad()
    return loss, micro_batch
    ### END SOLUTION


# %% id="check-8-6"
# check 8.6 (4 points)
checks.lab08.update_that_fits(update_that_fits)

# %% [markdown] id="hints-8-6"
# <details><summary>Hint 1: the frame</summary>
#
# Put a loop around one attempt. In the `except torch.OutOfMemoryError` clause, only record that the
# attempt failed. Do everything else after the clause.
# </details>
# <details><summary>Hint 2: as if it had never run</summary>
#
# Call `torch.get_rng_state()` before the first attempt, `torch.set_rng_state` after each failed
# one, and `optimizer.zero_grad()` before each attempt.
# </details>
# <details><summary>Hint 3: giving up</summary>
#
# If a micro-batch of 1 fails, clear the gradients, and raise a new `torch.OutOfMemoryError("...")`.
# </details>
#
# ## The run
#
# Now run 120 updates under the cap, with the plan that you found.

# %% id="caps"
UPDATES, LOW = 120, 5 * MIB


def caps():
    """Yield the number and the cap of each attempt, in order."""
    for update in range(UPDATES):
        if update == 110:
            yield update, int(1.9 * MIB)  # fails, and the same update comes again
        yield update, CAP if update < 100 else LOW


# %% id="one-update"
def begin_update(update, optimizer):
    """Set the learning rate, and return what the update draws."""
    lr = 8e-3 * min((update + 1) / 10, 1.1 - update / UPDATES)
    optimizer.param_groups[0]["lr"] = lr
    return draw_update(images, NUM, update, scheduler)


def one_update(unet, optimizer, update, cap_bytes, micro_batch):
    """Update under a cap; return loss, micro-batch and whether it stayed below."""
    drawn = begin_update(update, optimizer)
    with memory.capped(cap_bytes, model=unet, optimizer=optimizer) as cap:
        loss, fitted = update_that_fits(unet, optimizer, drawn, micro_batch)
    return loss, fitted, cap.peak_bytes <= cap_bytes


# %% id="run"
unet, optimizer = make()
(micro_batch, chosen), _ = choose(CAP)
losses, sizes, kept = {}, {}, {}
with recomputing([blocks_of(unet)[name] for name in chosen]):
    for update, cap_bytes in caps():
        try:
            made = one_update(unet, optimizer, update, cap_bytes, micro_batch)
        except torch.OutOfMemoryError as error:
            print(f"update {update}: {error}")
            continue
        losses[update], micro_batch, kept[update] = made
        sizes[update] = micro_batch

# %% id="outcome"
changes = {u: n for u, n in sizes.items() if sizes.get(u - 1) != n}
print("micro-batches, from which update on:", changes)
print("every update's peak below its cap:", all(kept.values()))
last = list(losses.values())[-20:]
print("mean loss of the last 20 below 0.25:", sum(last) / 20 < 0.25)

# %% id="uncapped"
(plain_unet, plain_optimizer), exact = make(), {}
for update in range(25):
    drawn = begin_update(update, plain_optimizer)
    exact[update] = backward_in_pieces(plain_unet, drawn, NUM)
    plain_optimizer.step()
    plain_optimizer.zero_grad()
error = max(abs(losses[update] - loss) / loss for update, loss in exact.items())
print("25 losses as without a cap, within a thousandth:", error < 1e-3)

# %% id="show-curves"
# NBVAL_IGNORE_OUTPUT
curves = {"under the cap": losses, "with all the memory": exact}
plots.training_curves(curves, xlabel="updates", ylabel="loss", log="y",
                      title="Loss", dashed=["with all the memory"])  # fmt: skip


# %% id="sample"
# NBVAL_IGNORE_OUTPUT
@torch.no_grad()
def sample(unet, num=20):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num, 1, 8, 8, generator=generator)
    scheduler.set_timesteps(100)
    for t in scheduler.timesteps:
        x = scheduler.step(unet(x, t).sample, t, x, generator=generator).prev_sample
    return x


after, before = sample(unet), sample(make()[0], 10)
rows = {"true": images[:10], "before": before, "after": after[:10], "": after[10:]}
plots.image_rows(rows, title="Digits: from the data, drawn before and after training")

# %% [markdown] id="gpu-text"
# ## On a GPU
#
# This part isn't graded.

# %% id="gpu-unet"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    gpu, side = device.pick(), device.pick_by_tier(cpu=8, small_gpu=32, large_gpu=64)
    large = UNet2DModel(
        sample_size=side, in_channels=1, out_channels=1, layers_per_block=2,
        block_out_channels=(64, 128, 256), add_attention=False,
        down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3,
    ).to(gpu)  # fmt: skip
    large_optimizer = fused(large.parameters(), lr=1e-4)
    drawn = draw_update(data.digits(side)[0], 256, 0, scheduler)  # the same everywhere
    drawn = [part.to(gpu) for part in drawn]


# %% id="gpu-full"
# NBVAL_IGNORE_OUTPUT
def ms_an_image(micro_batch):
    step = partial(backward_in_pieces, large, [p[:64] for p in drawn], micro_batch)
    return memory.measure(step, model=large, repeats=3).seconds / 64 * 1e3


if torch.cuda.is_available():
    print(device.describe(gpu))
    for n in (1, 2, 4, 8, 16, 32, 64):
        print(f"{n:2} at once: {ms_an_image(n):.2f} ms an image")


# %% id="gpu-cap"
# NBVAL_IGNORE_OUTPUT
def report_under(gpu_cap):
    with memory.capped(gpu_cap, model=large, optimizer=large_optimizer):
        loss, n = update_that_fits(large, large_optimizer, drawn, 256)
    step = partial(update_that_fits, large, large_optimizer, drawn, n)
    report = memory.measure(step, model=large, optimizer=large_optimizer)
    peaks = f"allocator {report.peak_bytes}, counted {report.counted_bytes}"
    return f"micro-batch {n}, loss {loss:.3f}, {peaks}"


# %% id="gpu-levels"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    gpu_cap = min(2 * 2**30, torch.cuda.get_device_properties(gpu).total_memory // 8)
    room = room_for_activations(large, side, lambda p: 2 * p.nbytes + 4, gpu_cap)
    print(f"cap {Bytes(gpu_cap)}, room for activations {Bytes(room)}")
    levels = [*large.down_blocks, large.mid_block, *large.up_blocks[:-1]]
    for name, segments in {"no segments": [], "all but the last": levels}.items():
        with recomputing(segments):
            print(f"{name}: {report_under(gpu_cap)}")
