# %% [markdown] id="title"
# # Lab 08: fit the U-Net
#
# A diffusion U-Net learns handwritten digits, 64 images an update. It needs 15 MiB, and you get
# half of that, in the end a third. You make it fit with micro-batches, and with segments of your
# own choice. The training must stay the same: the same loss at every update as with all the memory.
#
# **Budget:** 95 minutes, 1 GiB of memory, no GPU needed.
#
# | exercise | you write | points |
# |---|---|---|
# | 8.1 | what an update draws, decided by its number | 2 |
# | 8.2 | its gradient, a micro-batch at a time | 2 |
# | 8.3 | the floor: what no technique removes, and what to refuse | 3 |
# | 8.4 | a strategy of your own: any modules as segments | 2 |
# | 8.5 | the fastest plan that fits: both levers at once | 3 |
# | 8.6 | an update that survives running out of memory | 4 |
#
# Each answer goes into a cell that begins with `# exercise`; its check stands right below. Helper
# functions, imports and constants may also stand in cells of your own above it. Chapters
# 08 and 11 lead up to this lab.

# %% id="imports"
import contextlib
import gc
import time
import warnings
from functools import cache, partial
from itertools import combinations, product

import pandas as pd
import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib import checks, data, device, memory, plots
from tutorial_lib.training.adamw_8bit import AdamW8bit
from tutorial_lib.units import MIB, Bytes

# small steps lose more by waiting for a second core than they gain
torch.set_num_threads(1)
gc.freeze()  # a meter collects garbage: not again, each time, what the imports left

# %% [markdown] id="subject-text"
# ## The model and its memory
#
# A U-Net of two levels from diffusers, on 8 x 8 images, 64 of them an update. AdamW is fused, so
# that it makes no temporaries; 8.3 shows why that matters.

# %% id="subject"
images, _ = data.digits()  # (1797, 1, 8, 8) in [-1, 1]
scheduler = DDPMScheduler(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2")
NUM = 64  # images an update: the effective batch


def fused(parameters, lr):
    return AdamW(parameters, lr=lr, fused=True)


def make(make_optimizer=fused):
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=8, add_attention=False,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    return unet, make_optimizer(unet.parameters(), lr=8e-3)


# %% [markdown] id="predict-subject"
# **Predict.** 160 thousand parameters are 0.6 MiB. How many MiB of activations are there at the
# peak of a step?

# %% id="picture"
unet, optimizer = make()
# a view would count as all the images that it is a view of
batch = images[:NUM].clone()
noise, times = torch.randn(NUM, 1, 8, 8), torch.randint(100, (NUM,))
first = [tensor[:1].clone() for tensor in (batch, times, noise)]


def plain_step():
    F.mse_loss(unet(batch, times).sample, noise).backward()
    optimizer.step()
    optimizer.zero_grad()


whole = memory.measure(
    plain_step, model=unet, optimizer=optimizer, label=f"{NUM} images"
)
whole.figure()

# %% [markdown] id="cap-text"
# Activations are by far the most. Now the cap: `capped(limit)` counts as the meter does, and the
# operation that would need more raises `torch.OutOfMemoryError` in the middle of the step.

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
# Each image of an update gets a random time and random noise. The scheduler mixes them, and the
# U-Net predicts the noise. You will split updates, repeat them and resume them, and the training
# must stay the same each time.
#
# **Predict.** One seeded generator draws noise and times, once for 64 images together, once for 16
# images four times in turn. How many of the 64 noises agree?


# %% id="two-ways"
def drawn_in(pieces):
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(pieces):
        parts.append(torch.randn(NUM // pieces, 64, generator=generator))
        torch.randint(100, (NUM // pieces,), generator=generator)  # the times
    return torch.cat(parts)


int((drawn_in(1) == drawn_in(4)).all(1).sum())

# %% [markdown] id="goal-8-1"
# Only those of the first micro-batch agree. So draw for the whole update, and let the update's
# *number* decide what is drawn. Then the micro-batch size changes nothing, and no generator state
# must be saved. The goal: the same tensors, to the last bit, whenever the same number comes.


# %% id="answer-8-1"
# exercise 8.1
def draw_update(
    images: Tensor, num: int, update: int, scheduler: DDPMScheduler
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw what one update trains on.

    Args:
        images: All of them, `(N, channels, side, side)`.
        num: How many to draw, with repetition.
        update: The update's number, from 0 on. It alone decides what is drawn; the
            global random state is neither read nor moved.
        scheduler: Mixes images and noise; its `config.num_train_timesteps` says how
            many times there are, from 0 on.

    Returns:
        Noisy images `(num, channels, side, side)`, their times `(num,)`, int64, and the
        noise in them, of deviation 1.
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
# `torch.Generator().manual_seed(...)` makes one that nobody else uses. `torch.randint` and
# `torch.randn` take it as `generator=`.
# </details>
# <details><summary>Hint 2: three draws</summary>
#
# Which rows, which times, which noise: `torch.randint(high, (num,))` gives numbers below `high`.
# </details>
# <details><summary>Hint 3: the mixture</summary>
#
# `scheduler.add_noise(images, noise, times)`, with the noise that you return.
# </details>
#
# ## 8.2 A micro-batch at a time
#
# Difficulty 2/5 · importance 5/5 · 8 minutes
#
# The first lever is accumulation. Add the gradient of the mean over all images to `.grad`, with at
# most `micro_batch` images in the U-Net at once. The last micro-batch may be smaller; no optimizer
# is involved. The goal: equal to the gradient of one batch within 1e-9 in float64.


# %% id="answer-8-2"
# exercise 8.2
def backward_in_pieces(
    unet: nn.Module, drawn: tuple[Tensor, Tensor, Tensor], micro_batch: int
) -> float:
    """Add the gradient of an update's loss to `.grad`, one micro-batch at a time.

    Args:
        unet: `unet(noisy, times).sample` is its guess of the noise.
        drawn: Noisy images, times and noise, as `draw_update` gives them.
        micro_batch: Images at once; the last micro-batch may have fewer.

    Returns:
        The loss: the mean squared error of the guess over all images.
    """
    ### BEGIN SOLUTION
    total, num = 0.0, len(drawn[0])
    for noisy, times, noise in zip(
        *(part.split(micro_batch) for part in drawn), strict=True
    ):
        loss = F.mse_loss(unet(noisy, times).sample, noise) * (len(noisy) / num)
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
# `tensor.split(size)` gives pieces of that size, and the rest. `zip` takes the pieces of the three
# tensors side by side.
# </details>
# <details><summary>Hint 2: the weight</summary>
#
# `F.mse_loss` is a mean over its micro-batch. Weight it by the micro-batch's share of all images.
# </details>
# <details><summary>Hint 3: the peak</summary>
#
# `backward` inside the loop, and keep the loss as a number, not as a tensor.
# </details>
#
# A small micro-batch costs time, because a GPU works on many images at once. Say that ours is full
# from 32 images on, so that 16 take as long as 32. (The last section measures yours.) An update
# then takes `max(micro_batch, FULL) / micro_batch` times as long.
#
# **Predict.** Which is the largest micro-batch that fits under 7.5 MiB?

# %% id="table-8-2"
FULL = 32


def peak_of_update(micro_batch):
    """Count the peak of an update: the second micro-batch shows it."""
    drawn = [part[: 2 * micro_batch] for part in draw_update(images, NUM, 0, scheduler)]
    with memory.capped(10**12, model=unet, optimizer=optimizer) as cap:
        backward_in_pieces(unet, drawn, micro_batch)
        optimizer.step()
        optimizer.zero_grad()
    return cap.peak_bytes


table = {}
for micro_batch in (64, 32, 16, 8, 4, 2, 1):
    peak = peak_of_update(micro_batch)
    slower = max(micro_batch, FULL) / micro_batch
    table[micro_batch] = f"{peak / MIB:.2f}", peak <= CAP, f"{slower:.0f}"
columns = ["peak, MiB", "fits", "times as long"]
pd.DataFrame(table, index=columns).T.rename_axis("images at once")

# %% [markdown] id="read-8-2"
# Each halving saves less than the one before, so some of the memory does not depend on images.
#
# ## 8.3 The floor
#
# Difficulty 2/5 · importance 4/5 · 15 minutes
#
# Parameters, buffers, gradients, optimizer state and one sample (a noisy image, its noise, its
# time) are the floor: nothing in this lab removes a byte of it. Why compute the floor, when a run
# that does not fit raises an error anyway? The error may come at a bad moment. Here is a new
# training with AdamW as GPUs run it by default (`foreach`: all parameters at once, with temporaries
# as large as they are). Forward and backward fit. Then `step()` needs its temporaries, and the
# update fails in the middle.
#
# **Predict.** How many of the 104 parameters have changed by then?

# %% id="torn"
fresh, by_foreach = make(partial(AdamW, foreach=True))
before = [p.detach().clone() for p in fresh.parameters()]
try:
    with memory.capped(int(2.7 * MIB), model=fresh):
        F.mse_loss(fresh(first[0], first[1]).sample, first[2]).backward()
        by_foreach.step()
except torch.OutOfMemoryError as error:
    print(error)
moved = [not torch.equal(a, b) for a, b in zip(before, fresh.parameters(), strict=True)]
(moment,) = {float(state["step"]) for state in by_foreach.state.values()}
changed = f"{sum(moved)} of {len(moved)} parameters changed"
f"{changed}; updates by the optimizer's count: {moment:.0f}"

# %% [markdown] id="goal-8-3"
# Weight decay has shrunk the parameters, the moments contain the gradient, the counter says one
# update, and the update itself never happened. A loop that catches the error and tries again does
# all of that twice. With `fused=True` the update is one kernel without temporaries.
#
# So count first. `state_bytes` gives, for one parameter, the bytes that the optimizer keeps for it.
# The U-Net may be on the `meta` device, where it has shapes and no memory.
#
# Also refuse a wrong image size. A U-Net of L levels halves an image L - 1 times; a side that
# cannot be halved so often fails deep inside the model. The goal: the floor, to the byte.


# %% id="answer-8-3"
# exercise 8.3
def room_for_activations(
    unet: nn.Module, side: int, state_bytes, cap_bytes: int
) -> int:
    """Give the bytes that a cap leaves above the floor, or refuse.

    Args:
        unet: Its `config.in_channels` and `config.block_out_channels` (one number a
            level) tell of its input; it is of float32. Some parameters may be frozen.
            Nothing is run.
        side: Height and width of the images, a positive number.
        state_bytes: Maps a parameter that is trained to the bytes that the optimizer
            keeps for it.
        cap_bytes: The cap.

    Returns:
        The cap without parameters, buffers, gradients, optimizer state and one sample:
            a noisy
        image and its noise, float32, and its time, int64.

    Raises:
        ValueError: When the side is no multiple of what the levels need: names the
            side, that number and a side to try. When the cap is below the floor: names
            both, in bytes.
    """
    ### BEGIN SOLUTION
    multiple = 2 ** (len(unet.config.block_out_channels) - 1)
    if side % multiple:
        raise ValueError(
            f"side (={side}) must be a multiple of {multiple}, since the U-Net halves "
            "the image at each level but the last: try "
            f"{side // multiple * multiple + multiple}."
        )
    trained = [p for p in unet.parameters() if p.requires_grad]
    floor = sum(tensor.nbytes for tensor in [*unet.parameters(), *unet.buffers()])
    floor += sum(p.nbytes + state_bytes(p) for p in trained)
    floor += 2 * unet.config.in_channels * side**2 * 4 + 8
    if cap_bytes < floor:
        raise ValueError(
            f"the cap ({cap_bytes} bytes) is below the floor ({floor} bytes) of "
            "parameters, gradients, optimizer state and one sample: take an optimizer "
            "with a smaller state, or a smaller U-Net."
        )
    return cap_bytes - floor
    ### END SOLUTION


# %% id="check-8-3"
# check 8.3 (3 points)
checks.lab08.room_for_activations(room_for_activations)

# %% [markdown] id="hints-8-3"
# <details><summary>Hint 1: the parts</summary>
#
# Every parameter and every buffer is there. A gradient as large as the parameter, and
# `state_bytes(parameter)`, only where `parameter.requires_grad`.
# </details>
# <details><summary>Hint 2: the sample</summary>
#
# Two images of `in_channels * side**2` numbers of 4 bytes, and one number of 8.
# </details>
# <details><summary>Hint 3: the refusals</summary>
#
# `len(unet.config.block_out_channels)` levels: one less than that is how often a side is halved. A
# cap that equals the floor leaves a room of 0 and is not refused.
# </details>
#
# How much do three optimizers keep, and how much do they leave for images under our cap?


# %% id="table-8-3"
def adamw_bytes(parameter):
    return 2 * parameter.nbytes + 4  # two moments, and a counter


def states_of(make_optimizer):
    """Count by parameter what an optimizer keeps after one update."""
    model, trained_by = make(make_optimizer)
    F.mse_loss(model(first[0], first[1]).sample, first[2]).backward()
    trained_by.step()
    states = [trained_by.state[parameter].values() for parameter in model.parameters()]
    return [sum(t.nbytes for t in state if isinstance(t, Tensor)) for state in states]


kinds, table = {"SGD": SGD, "AdamW, a byte a number": AdamW8bit, "AdamW": fused}, {}
for name, kind in kinds.items():
    sizes = states_of(kind)
    by_place = dict(zip(unet.parameters(), sizes, strict=True))
    room = room_for_activations(unet, 8, by_place.get, CAP)
    table[name] = f"{sum(sizes) / MIB:.2f}", f"{room / MIB:.2f}"
pd.DataFrame(table, index=["states, MiB", "room, MiB"]).T

# %% id="refused"
try:
    room_for_activations(unet, 8, adamw_bytes, int(2.2 * MIB))
except ValueError as error:
    print(error)

# %% [markdown] id="read-8-3"
# A third of the cap is gone before the first image, half of that for AdamW. Another optimizer would
# leave more room, but SGD does not learn the same. Segments do.
#
# ## 8.4 A strategy of your own
#
# Difficulty 2/5 · importance 4/5 · 10 minutes
#
# The second lever is checkpointing. diffusers' switch, `unet.enable_gradient_checkpointing()`,
# makes nearly all residual blocks segments. Write a context manager that lets you choose. Inside
# its `with` block, each of the given modules is a segment, which keeps its inputs and runs again in
# backward. Afterwards, also after an error, everything is as before.
#
# U-Nets call some of their blocks with keyword arguments, and some return tuples.


# %% id="answer-8-4"
# exercise 8.4
@contextlib.contextmanager
def recomputing(modules):
    """Make each of these modules a segment until the end of the `with` block.

    `torch.utils.checkpoint.checkpoint` does the recomputation.

    Args:
        modules: A list of modules, each once; none is inside another. A module may have
            a `forward`
            of its own, set on the instance: it has the same one again afterwards.
    """
    ### BEGIN SOLUTION
    before = [vars(module).get("forward") for module in modules]
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            del module.forward
            if own is not None:
                module.forward = own
    ### END SOLUTION


# %% id="check-8-4"
# check 8.4 (2 points)
checks.lab08.recomputing(recomputing)

# %% [markdown] id="hints-8-4"
# <details><summary>Hint 1: where to come in</summary>
#
# Calling a module calls its `forward`. Set `module.forward` on the instance to a function that
# calls `checkpoint` with the forward that was there.
# </details>
# <details><summary>Hint 2: in a loop</summary>
#
# A function defined in a loop sees the loop variable's *last* value. `functools.partial` binds the
# value of now, and passes keywords on.
# </details>
# <details><summary>Hint 3: putting back</summary>
#
# `vars(module).get("forward")` is None where the class's forward is in use. Then deleting the
# instance's attribute brings that back. `try`, `yield`, `finally`.
# </details>
#
# Here are peaks at 32 images. One block alone saves nothing, or even costs. Which one?

# %% id="table-8-4"
blocks = {
    "down 0": unet.down_blocks[0], "down 1": unet.down_blocks[1],
    "mid": unet.mid_block, "up 0": unet.up_blocks[0], "up 1": unet.up_blocks[1],
}  # fmt: skip


@cache
def peak_with(choice, micro_batch=FULL):
    """Count an update's peak with some of the blocks as segments."""
    with recomputing([blocks[name] for name in choice]):
        return peak_of_update(micro_batch)


choices = [(), *((name,) for name in blocks), tuple(blocks)]
peaks = {", ".join(choice) or "nothing": peak_with(choice) for choice in choices}
unet.enable_gradient_checkpointing()
peaks["the switch"] = peak_of_update(FULL)
unet.disable_gradient_checkpointing()
pd.DataFrame({"peak, MiB": {name: f"{peak / MIB:.2f}" for name, peak in peaks.items()}})

# %% [markdown] id="text-8-5"
# It is the last block on the way up, which is the first in backward. What it discards is recomputed
# before anything else has been freed. No single block brings the step under the cap. The switch
# does, and recomputes more than we need.
#
# ## 8.5 Both levers at once
#
# Difficulty 3/5 · importance 4/5 · 18 minutes
#
# A *plan* is a micro-batch and a choice of blocks. An update of `num` images runs `ceil(num /
# micro_batch)` micro-batches, each as long as `max(micro_batch, full)` images. So a plan takes
#
# $$ \lceil \text{num} / \text{micro-batch} \rceil \cdot \max(\text{micro-batch}, \text{full}) \cdot
# (\text{FLOPs of an image} + \text{prices of the blocks}) $$
#
# One lever alone is too slow, and so is any fixed order of the two. Many micro-batches are not
# worth a try: 40 of 64 images take two rounds, and 32 do that with less memory. Peaks do not add
# up, as you have just seen: each is measured, which takes a training step. The goal: the fastest
# plan that fits, and not one measurement too many.


# %% id="answer-8-5"
# exercise 8.5
def cheapest_fit(
    num: int, full: int, plain: int, prices: dict[str, int], peak_of, limit_bytes: int
) -> tuple[int, tuple[str, ...]]:
    """Find the plan that takes least time and whose peak is within the limit.

    Args:
        num: Images of an update.
        full: The images at once that fill the GPU; fewer take as long as these.
        plain: FLOPs of a step without segments, for each image.
        prices: For each block the FLOPs that are added for each image when it is a
            segment; those of several blocks add up. No two plans worth a try take
            equally long.
        peak_of: `peak_of(micro_batch, choice)`, with a tuple of names, measures a peak
            in bytes. It is called once for a plan, never for one that is slower than
            the answer, and never where a smaller micro-batch takes no longer.
        limit_bytes: A peak may be as high as this.

    Returns:
        The micro-batch, from 1 to `num`, and the names of the blocks.

    Raises:
        ValueError: When no plan fits: names the limit and the lowest peak, in bytes.
    """
    ### BEGIN SOLUTION

    def work(size):
        return -(-num // size) * max(size, full)

    def time(plan):
        return work(plan[0]) * (plain + sum(prices[name] for name in plan[1]))

    sizes = [
        n for n in range(1, num + 1) if all(work(m) > work(n) for m in range(1, n))
    ]
    choices = [c for k in range(len(prices) + 1) for c in combinations(prices, k)]
    lowest = None
    for plan in sorted(product(sizes, choices), key=time):
        peak = peak_of(*plan)
        if peak <= limit_bytes:
            return plan
        lowest = peak if lowest is None else min(peak, lowest)
    raise ValueError(
        f"no plan brings the peak to {limit_bytes} bytes, the lowest is {lowest}: take "
        "a smaller model, or an optimizer that keeps less."
    )
    ### END SOLUTION


# %% id="check-8-5"
# check 8.5 (3 points)
checks.lab08.cheapest_fit(cheapest_fit)

# %% [markdown] id="hints-8-5"
# <details><summary>Hint 1: micro-batches worth a try</summary>
#
# Write `work(size)`, the first two factors of the time. A size is worth a try if its work is less
# than that of every smaller size.
# </details>
# <details><summary>Hint 2: all plans, in which order</summary>
#
# `itertools.combinations(prices, k)` gives the choices of `k` blocks. `itertools.product` pairs
# them with the sizes. Sorted by time, the first plan that fits is the answer.
# </details>
# <details><summary>Hint 3: none fits</summary>
#
# Then all have been measured. Keep the lowest peak as you go.
# </details>
#
# Now the search with the counted prices of our blocks, for 7.5 MiB and for 6.
#
# **Predict.** 16 images at once fit into 6 MiB, for 100 % more time. How many per cent more does
# the fastest plan for 6 MiB take?


# %% id="prices"
def flops_with(choice=()):
    modules = [blocks[name] for name in choice]
    with recomputing(modules), FlopCounterMode(display=False) as counter:
        F.mse_loss(unet(batch[:FULL], times[:FULL]).sample, noise[:FULL]).backward()
    unet.zero_grad()
    return counter.get_total_flops() // FULL


plain = flops_with()
prices = {name: flops_with((name,)) - plain for name in blocks}
unet.enable_gradient_checkpointing()
print(f"the switch: {flops_with() / plain - 1:.0%} more FLOPs")
unet.disable_gradient_checkpointing()


# %% id="search"
@cache  # the run below asks again
def choose(limit_bytes):
    """Search; gives the plan, and how many measurements it took."""
    tried = []

    def peak_of(micro_batch, choice):
        tried.append(choice)
        return peak_with(tuple(choice), micro_batch)

    return cheapest_fit(NUM, FULL, plain, prices, peak_of, limit_bytes), len(tried)


table = {}
for limit_bytes in (CAP, 6 * MIB):
    (size, choice), num_measured = choose(limit_bytes)
    peak, rounds = peak_with(tuple(choice), size), -(-NUM // size)
    slower = rounds * max(size, FULL) / NUM * flops_with(choice) / plain - 1
    cells = size, ", ".join(choice), f"{peak / MIB:.2f}", f"{slower:.0%}", num_measured
    table[f"{limit_bytes / MIB} MiB"] = cells
columns = ["micro-batch", "segments", "peak, MiB", "more time", "measurements"]
pd.DataFrame(table, index=columns).T

# %% [markdown] id="text-8-6"
# The switch recomputes more than the first plan. The second one pulls both levers, and uses a
# micro-batch that is no power of two.
#
# ## 8.6 When it runs out all the same
#
# Difficulty 4/5 · importance 5/5 · 18 minutes
#
# Somebody starts a second program on your GPU, and a step that used to fit fails in the middle. The
# usual advice is to halve the micro-batch and try again. But first you must undo what the failed
# attempt left:
#
# - gradients of some of its micro-batches;
# - a random state that dropout has moved;
# - the graph of the micro-batch that failed. An exception refers to the frames that it passed
#   through, and each frame to its local variables. While the error is handled, they stay in memory.
#
# How much memory is held inside the `except` clause, and how much after it?

# %% id="held"
victim, _ = make()
with memory.capped(CAP, model=victim) as cap:
    held = {"before": cap.held_bytes}
    try:
        victim(batch, times).sample.sum().backward()
    except torch.OutOfMemoryError:
        held["inside except"] = cap.held_bytes
    held["after except"] = cap.held_bytes
{moment: Bytes(size) for moment, size in held.items()}

# %% [markdown] id="goal-8-6"
# A retry inside the `except` clause runs with the memory still full, so not even one image fits.
#
# The goal: an update equal to one that began with the right micro-batch, dropout included. Where
# nothing fits, the training must be as it was before.


# %% id="answer-8-6"
# exercise 8.6
def update_that_fits(unet, optimizer, drawn, micro_batch: int) -> tuple[float, int]:
    """Make one update, at the first micro-batch that fits: as given, halved, and so on.

    Calls `backward_in_pieces`. Gradients that are there before are of no interest, and
    none are there afterwards. The random state ends as if no attempt had failed.

    Args:
        unet: The U-Net, its optimizer's state being there already.
        optimizer: Updates it in place (fused), so that what fits in backward fits in
            the update.
        drawn: Noisy images, times and noise.
        micro_batch: Where to begin; halves are rounded down, and 1 is the last.

    Returns:
        The loss, and the micro-batch that fitted.

    Raises:
        torch.OutOfMemoryError: When a micro-batch of 1 does not fit: says so, and what
        to try.
            Parameters, optimizer and random state are as before, gradients None.
            Out of the optimizer's step it comes at once: some parameters have moved by
            then.
        Exception: Any other error of the U-Net, at once.
    """
    ### BEGIN SOLUTION
    random_state = torch.get_rng_state()
    while True:
        optimizer.zero_grad()
        try:
            loss = backward_in_pieces(unet, drawn, micro_batch)
        except torch.OutOfMemoryError:
            loss = None  # try again below, where the error no longer holds the graph
        if loss is not None:
            optimizer.step()
            optimizer.zero_grad()
            return loss, micro_batch
        torch.set_rng_state(random_state)
        if micro_batch == 1:
            optimizer.zero_grad()
            raise torch.OutOfMemoryError(
                "a micro-batch of 1 does not fit: make more blocks segments, or free "
                "memory; nothing has been changed."
            )
        micro_batch //= 2
    ### END SOLUTION


# %% id="check-8-6"
# check 8.6 (4 points)
checks.lab08.update_that_fits(update_that_fits)

# %% [markdown] id="hints-8-6"
# <details><summary>Hint 1: the frame</summary>
#
# A `while True` around an attempt. In the `except torch.OutOfMemoryError` clause only note that it
# failed; everything else comes after the clause.
# </details>
# <details><summary>Hint 2: as if it had not been</summary>
#
# `torch.get_rng_state()` before the first attempt, `torch.set_rng_state` after each that failed,
# `optimizer.zero_grad()` before each.
# </details>
# <details><summary>Hint 3: giving up</summary>
#
# After a failure at 1: clear the gradients, and raise a new `torch.OutOfMemoryError("...")` with
# words that help. `optimizer.step()` is called once, when all gradients are there.
# </details>
#
# ## The run
#
# Everything together: 120 updates under the cap, with the plan that you found. At update 100
# another program takes memory, and the cap falls to 5 MiB. At update 110 there is for a moment less
# than the floor: the update fails, and comes again.

# %% id="train"
UPDATES, LOW = 120, 5 * MIB


def caps():
    """Give number and cap of every update, in order."""
    for update in range(UPDATES):
        if update == 110:
            yield update, int(1.9 * MIB)  # fails, and the same update comes again
        yield update, CAP if update < 100 else LOW


def set_learning_rate(optimizer, update):
    optimizer.param_groups[0]["lr"] = 8e-3 * min(
        (update + 1) / 10, 1.1 - update / UPDATES
    )


def one_update(unet, optimizer, update, cap_bytes, micro_batch):
    """Make an update under a cap; gives loss, micro-batch and counted peak."""
    drawn = draw_update(images, NUM, update, scheduler)
    set_learning_rate(optimizer, update)
    with memory.capped(cap_bytes, model=unet, optimizer=optimizer) as cap:
        loss, fitted = update_that_fits(unet, optimizer, drawn, micro_batch)
    return loss, fitted, cap.peak_bytes


# %% id="run"
losses, sizes, within = {}, {}, True
(micro_batch, chosen), _ = choose(CAP)
unet, optimizer = make()
blocks = dict(
    zip(blocks, [*unet.down_blocks, unet.mid_block, *unet.up_blocks], strict=True)
)
with recomputing([blocks[name] for name in chosen]):
    for update, cap_bytes in caps():
        try:
            loss, micro_batch, peak = one_update(
                unet, optimizer, update, cap_bytes, micro_batch
            )
        except torch.OutOfMemoryError as error:
            print(f"update {update}: {error}")
            continue
        losses[update], sizes[update], within = (
            loss,
            micro_batch,
            within and peak <= cap_bytes,
        )
changes = {u: n for u, n in sizes.items() if sizes.get(u - 1) != n}
print("micro-batches, from which update on:", changes)
print("every update's peak below its cap:", within)
print(
    "mean loss of the last 20 below 0.25:", sum(list(losses.values())[-20:]) / 20 < 0.25
)

# %% [markdown] id="read-run"
# Is it the same training? Here is the run with all the memory, 64 images at once and no segments,
# for its first 25 updates. Rounding errors grow during a training; we allow a thousandth.


# %% id="uncapped"
@cache  # the figure asks again
def without_a_cap():
    """Train with all the memory; gives the losses."""
    (unet, optimizer), losses = make(), {}
    for update in range(25):
        set_learning_rate(optimizer, update)
        losses[update] = backward_in_pieces(
            unet, draw_update(images, NUM, update, scheduler), NUM
        )
        optimizer.step()
        optimizer.zero_grad()
    return losses


off = max(abs(losses[update] - loss) / loss for update, loss in without_a_cap().items())
print("25 losses as without a cap, within a thousandth:", off < 1e-3)

# %% id="show-curves"
# NBVAL_IGNORE_OUTPUT
curves = {"under the cap": losses, "with all the memory": without_a_cap()}
plots.training_curves(curves, xlabel="updates", ylabel="loss", log="y",
                      title="Loss", dashed=["with all the memory"])  # fmt: skip

# %% [markdown] id="samples-text"
# What did it learn? To draw, begin with noise alone, and remove step by step what the U-Net
# predicts as noise.


# %% id="samples"
# NBVAL_IGNORE_OUTPUT
@torch.no_grad()
def sample(unet, num=20):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num, 1, 8, 8, generator=generator)
    scheduler.set_timesteps(100)
    for t in scheduler.timesteps:
        x = scheduler.step(unet(x, t).sample, t, x, generator=generator).prev_sample
    return x


after = sample(unet)
rows = {
    "true": images[:10],
    "before": sample(make()[0], 10),
    "after": after[:10],
    "": after[10:],
}
plots.image_rows(rows, title="Digits: from the data, drawn before and after training")

# %% [markdown] id="gpu-text"
# ## On a GPU
#
# The same functions, a larger U-Net, and a cap that PyTorch's allocator enforces. (Without a GPU
# these cells print nothing. They are never graded.) First, from how many images on is yours full?

# %% id="gpu-unet"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    gpu, side = device.pick(), device.pick_by_tier(cpu=8, small_gpu=32, large_gpu=64)
    torch.manual_seed(0)
    large = UNet2DModel(
        sample_size=side, in_channels=1, out_channels=1, layers_per_block=2,
        block_out_channels=(64, 128, 256), add_attention=False,
        down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3,
    ).to(gpu)  # fmt: skip
    large_optimizer = AdamW(large.parameters(), lr=1e-4, fused=True)
    large_images = data.digits(side)[0]


def drawn_on_gpu(num, update=0):
    # on the CPU: the same on every GPU
    drawn = draw_update(large_images, num, update, scheduler)
    return tuple(part.to(gpu) for part in drawn)


# %% id="gpu-full"
# NBVAL_IGNORE_OUTPUT
def seconds_of(micro_batch, drawn):
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        backward_in_pieces(large, drawn, micro_batch)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    large_optimizer.zero_grad()
    return min(times[1:])  # the first warms up


if torch.cuda.is_available():
    print(device.describe(gpu))
    for n in (1, 2, 4, 8, 16, 32, 64):
        print(
            f"{n:2} at once: {seconds_of(n, drawn_on_gpu(64)) / 64 * 1e3:.2f} ms an "
            "image"
        )

# %% [markdown] id="gpu-half-text"
# Then the cap: an eighth of the card, or 2 GiB where that is less, in 16 bits. The counted peak
# stands beside the allocator's.

# %% id="gpu-cap"
# NBVAL_IGNORE_OUTPUT
if torch.cuda.is_available():
    with warnings.catch_warnings(record=True) as said:
        half = device.half_dtype(gpu)
    print(half, *(w.message for w in said if issubclass(w.category, UserWarning)))
    gpu_cap = min(2 * 2**30, torch.cuda.get_device_properties(gpu).total_memory // 8)
    room = room_for_activations(large, side, adamw_bytes, gpu_cap)
    print(f"cap {Bytes(gpu_cap)}, room for activations {Bytes(room)}")
    drawn, levels = (
        drawn_on_gpu(256),
        [*large.down_blocks, large.mid_block, *large.up_blocks[:-1]],
    )
    for name, segments in {
        "no segments": [],
        "all levels but the last": levels,
    }.items():
        with (
            recomputing(segments),
            torch.autocast("cuda", half, enabled=half == torch.bfloat16),
        ):
            step = partial(update_that_fits, large, large_optimizer, drawn, 256)
            with memory.capped(gpu_cap, model=large, optimizer=large_optimizer):
                loss, n = step()
            step = partial(update_that_fits, large, large_optimizer, drawn, n)
            report = memory.measure(
                step, model=large, optimizer=large_optimizer, label=name
            )
        peaks = f"{report.peak_bytes}, counted {report.counted_bytes}"
        print(f"{name}: micro-batch {n}, loss {loss:.3f}, allocator {peaks}")

# %% [markdown] id="end"
# ## What you can now do
#
# - Let the update's number decide its random numbers, so that you can split, retry and resume.
# - Compute what a cap leaves for activations, and refuse in time what would fail in an update.
# - Choose micro-batch and segments together, by time and measured peak.
# - Survive running out of memory, with nothing changed and nothing held.
