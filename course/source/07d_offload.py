# %% [markdown] id="title"
# # Offload
#
# The *host*, the computer around the GPU, has memory too, and usually more of it. A tensor that is
# too expensive to recompute can wait there. A copy over the bus is slow, but needs no arithmetic,
# so it can run while the GPU computes.
#
# You write the hooks that move tensors, work out when the copies cost nothing, and let a planner
# decide for each block whether to keep, recompute or move it.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import pandas as pd
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tutorial_lib import blanks, claims, data, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import planning, segments
from tutorial_lib.instruments.recorded import FOLDER, snapshots
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.plots.base import LINES, new_figure
from tutorial_lib.units import GIB, Bytes

# %% [markdown] id="move"
# ## Move it instead of recomputing it
#
# A pack hook may copy a tensor to the host, and the unpack hook copies it back. Between the two,
# the tensor takes no memory on the GPU:
#
# `forward → pack: device to host → (waiting on the host) → unpack: host to device → backward`
#
# PyTorch's `save_on_cpu` is such a pair of hooks. On a CPU, without `pin_memory`, it copies
# nothing, since host and device share one memory. So NumPy arrays, which the meter can't see, stand
# in for the host. The meter still sees the tensors that would stay on a GPU.
#
# **Write.** The two hooks. `pack` appends the tensor's bytes to `copied` and returns a NumPy copy;
# `unpack` turns that array into a tensor with memory of its own.


# %% id="offloading"
def offloading(copied):
    """Make hooks that keep every saved tensor as a NumPy array."""

    def pack(tensor):
        """Append the tensor's bytes to the list `copied`; return an array."""
        ### BEGIN SOLUTION
        copied.append(tensor.nbytes)
        return tensor.detach().numpy().copy()
        ### END SOLUTION

    def unpack(array):
        """Return a tensor with memory of its own: the copy on the device."""
        ### BEGIN SOLUTION
        return torch.from_numpy(array).clone()
        ### END SOLUTION

    return saved_tensors_hooks(pack, unpack)


# %% id="check-offloading"
# @title Check: run this cell
@blanks.check("offloading", "make two hooks, from a tensor to an array and back")
def moves_there_and_back():
    copied, tensor = [], torch.arange(1.0, 5.0, requires_grad=True)
    hooks, values = offloading(copied), tensor.detach().clone()
    array = hooks.pack_hook(tensor)
    kind = type(array).__name__
    assert kind == "ndarray", f"pack returns a {kind}, but must return an array."
    assert copied == [16], f"4 numbers of 4 bytes are [16] in `copied`, not {copied}."
    tensor.data.zero_()
    assert array[0] == 1, "The array shares the tensor's memory: copy it."
    back = hooks.unpack_hook(array)
    assert torch.equal(back, values), "What comes back is not what was packed."
    array[0] = 0
    assert back[0] == 1, "The tensor shares the array's memory: clone it."


# %% id="seen"
tokens = next(data.text_batches(2, 128))  # (batch, sequence)
unit = 2 * 128 * 128 * 4  # bytes of a block's input


def seen(strategy, around=nullcontext):
    """Return what waits for backward and the peak, in units, and the gradients."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(num_layers=8))

    def step():
        with around():
            loss = gpt.loss(tokens)
        loss.backward()

    with segments.applied(gpt, strategy):
        report = memory.measure(step, model=gpt, warmup=0)
    starts = {phase: tick for tick, phase in report.phase_starts}
    curve = pd.DataFrame(report.curve()) / unit
    peak = curve[["activations", "recomputed", "temporary"]].sum(axis=1).max()
    gradients = [parameter.grad for parameter in gpt.parameters()]
    waiting = curve.activations[starts["backward"]]
    return {"waiting": waiting, "peak": peak}, gradients


# %% [markdown] id="predict-copied"
# **Predict.** Eight blocks run without checkpoints, and the hooks move every saved tensor. What is
# the ratio of the bytes copied out to the bytes that would have waited on the device?

# %% id="guess-copied"
guess = None  # times

# %% id="offload-table"
rows, (_, plain) = {}, seen("none")
print("A with A:", all(map(torch.equal, seen("none")[1], plain)))
for strategy in ("none", "per-block"):
    rows[strategy], _ = seen(strategy)
    sizes = []
    after, gradients = seen(strategy, partial(offloading, sizes))
    rows[f"{strategy}, offloaded"] = after | {"copied out": sum(sizes) / unit}
    print(f"{strategy}, offloaded:", all(map(torch.equal, gradients, plain)))
table = pd.DataFrame(rows).T
ratio = table["copied out"]["none, offloaded"] / table.waiting["none"]
print(f"copied: {ratio:.1f} times what waits{beside(guess, ratio)}")
table.map("{:.1f}".format).replace("nan", "")  # in units

# %% [markdown] id="offload-read"
# In the second row nothing is recomputed, yet the peak is even below the `per-block` row's, because
# only one operation's tensors come back at a time.
#
# The last column shows the cost: the hooks copy more than would wait. Like those of `save_on_cpu`,
# they get every saved *tensor*, so a storage that three operations save is copied three times, and
# the weights are copied too. If you checkpoint first and move only the boundaries, you copy by far
# the least.
#
# ## How it is used
#
# Training programs move **only boundaries**: each block is checkpointed, and its input goes to the
# host. Three techniques hide the copies:
#
# - **pinned memory**: pages of host memory that never move, so the GPU can copy by itself and
#   Python continues immediately;
# - **a side stream**: a second queue on the GPU, so that a copy runs during the matmuls;
# - **prefetching**: a boundary is fetched while the block *after* it is still going backward.
#
# ![Two streams over time. Compute: blocks 1 to 4 forward, then blocks 4 to 1, each recomputed
# before its backward. Copies: the input of each block goes out while the block runs, and comes back
# while the block after it goes backward. Only the last block's input is waited
# for.](figures/07d-two-streams.svg)
#
# The next cell has a checkpoint that does all three. Its hooks are *outside* PyTorch's checkpoint,
# so they see only the block's input. `record_stream` tells the allocator that a second stream still
# uses a tensor's memory.
#
# **Write.** The rest of `unpack`, about nine lines, in this order:
#
# 1. Fetch this block's tensors with `self.fetch(number)` if they aren't in `self.back` yet.
# 2. Let the compute stream wait for the side stream.
# 3. Fetch the previous block's tensors, those of `number - 1`, if they are on the host.
# 4. Take the tensor at `place` out of `self.back[number]`, and its copy out of
#    `self.on_host[number]`.
# 5. Say that the compute stream uses the tensor (`used_by`), and return it.
#
# Skip 2 and 3 if the previous block is already in `self.back`. In that case, both steps already ran
# for this block's first tensor, and a second wait would include the previous block's copy.


# %% id="prefetching"
class Prefetching:
    """A checkpoint whose inputs wait on the host, and come back one block early."""

    def __init__(self, where):
        self.streams, self.where = torch.get_device_module(where), where
        self.side = self.streams.Stream()
        self.on_host, self.back, self.log = [], {}, []

    def __call__(self, function, *args):
        self.on_host.append({})  # of this block
        with saved_tensors_hooks(self.pack, self.unpack):
            return checkpoint(function, *args, use_reentrant=False)

    def used_by(self, stream, tensor):
        if tensor.is_cuda:
            tensor.record_stream(stream)

    def pack(self, tensor):
        if not tensor.numel():  # the checkpoint's own empty tensor
            return tensor
        pinned = {"device": "cpu", "pin_memory": tensor.is_cuda}
        host = torch.empty_like(tensor, **pinned)
        self.side.wait_stream(self.streams.current_stream())  # it makes the tensor
        with self.streams.stream(self.side):
            host.copy_(tensor, non_blocking=True)
        self.used_by(self.side, tensor)
        number, place = len(self.on_host) - 1, len(self.on_host[-1])
        self.on_host[number][place] = host
        self.log.append(f"out {number}")
        return number, place

    def fetch(self, number):
        self.back = {n: tensors for n, tensors in self.back.items() if tensors}
        with self.streams.stream(self.side):
            hosts = self.on_host[number].items()
            to = {"device": self.where, "non_blocking": True}
            self.back[number] = {place: host.to(**to) for place, host in hosts}
        self.log.append(f"in {number}")

    def unpack(self, packed):
        if torch.is_tensor(packed):
            return packed
        number, place = packed
        ### BEGIN SOLUTION
        if number not in self.back:  # the last block's
            self.fetch(number)
        if number - 1 not in self.back:  # else it was done for an earlier tensor
            self.streams.current_stream().wait_stream(self.side)
            if number and self.on_host[number - 1]:
                self.fetch(number - 1)  # during this block's backward
        tensor, _ = self.back[number].pop(place), self.on_host[number].pop(place)
        self.used_by(self.streams.current_stream(), tensor)
        return tensor
        ### END SOLUTION


# %% id="check-prefetching"
# @title Check: run this cell
@blanks.check("Prefetching", "return a tensor from `unpack`")
def fetches_a_block_ahead():
    class Lane:
        def wait_stream(self, other):
            if self is compute:
                moving.log.append("wait")

    def run(number, *tensors):
        moving.log.append(f"[{number}]")
        return torch.stack(tensors).prod(0).sin()

    def trained(call, count, several):
        other = torch.linspace(1, 2, 4, requires_grad=True)
        x = h = torch.linspace(0, 1, 4, requires_grad=True)
        for number in range(count):
            h = call(partial(run, number), *((h, other) if several else (h,)))
        h.sum().backward()
        return x.grad

    def fetch(number):
        Prefetching.fetch(moving, number)
        moving.back[number] = {p: t.clone() for p, t in moving.back[number].items()}
        made.extend(moving.back[number].values())

    def used_by(stream, tensor):
        used.append((stream is compute, any(tensor is one for one in made)))

    for count, several in ((3, False), (3, True), (1, False)):
        compute, moving, made, used = Lane(), Prefetching("cpu"), [], []
        moving.side, moving.fetch, moving.used_by = Lane(), fetch, used_by
        moving.streams = SimpleNamespace(
            current_stream=lambda *_, lane=compute: lane, stream=lambda _: nullcontext()
        )
        wanted = trained(lambda function, *args: function(*args), count, several)
        for step in range(2):
            moving.log.clear()
            used.clear()
            seen = trained(moving, count, several)
            order = " ".join(moving.log[moving.log.index(f"[{count - 1}]") + 1 :])
            right = f"in {step} wait [0]"
            if count == 3:
                last, middle, first = (n + 3 * step for n in (2, 1, 0))
                right = f"in {last} wait in {middle} [2] wait in {first} [1] wait [0]"
            said = f"{count} blocks of {1 + several} tensors, step {step + 1}: "
            assert torch.allclose(seen, wanted), (
                said + "the gradient isn't the plain one."
            )
            assert order.replace("wait wait", "wait") == right, (
                f"{said}in backward: {order}, not {right}."
            )
            uses = [own for by_compute, own in used if by_compute]
            assert uses == count * (1 + several) * [True], (
                f"{said}call `used_by` with the compute stream once for each tensor, "
                f"not {len(uses)} times, for {sum(uses)} tensors of `self.back`."
            )
            left = [*filter(None, [*moving.back.values(), *moving.on_host])]
            assert not left, f"After backward, {len(left)} blocks still hold tensors."


# %% id="prefetching-order"
torch.manual_seed(0)
gpt = GPT(GPTConfig(num_layers=8))
moving = Prefetching("cpu")
for number, block in enumerate(gpt.blocks):
    block.norm_1.register_forward_pre_hook(
        lambda *_, number=number: moving.log.append(f"[{number}]")
    )
with segments.called_through(moving, gpt.blocks):
    gpt.loss(tokens).backward()
gradients = [parameter.grad for parameter in gpt.parameters()]
print("gradients equal:", all(map(torch.equal, gradients, plain)))
print("forward: ", *moving.log[:16])
print("backward:", *moving.log[16:])

# %% [markdown] id="prefetching-read"
# `[3]` is a run of block 3, `out 3` a copy of its input to the host, and `in 3` the copy back. In
# backward, the copy of input 6 is requested before block 7 runs again.
#
# TRL and torchtune call this *activation offloading*.
#
# ## Which copies are hidden?
#
# Consider one block's step on paper. Forward takes $f$ seconds, backward $2f$, and a recomputation
# at most $f$. A copy in either direction takes its bytes divided by the bus's bandwidth: $c_r$
# seconds for everything that the block keeps, and $c_1$ seconds for only its input. Copies run
# during the arithmetic, so each pass takes as long as the arithmetic or the copies, whichever is
# slower:
#
# | what is done | forward | backward |
# |---|---|---|
# | everything is kept | $f$ | $2f$ |
# | the inside is recomputed | $f$ | $3f$ |
# | everything is moved | $\max(f, c_r)$ | $\max(2f, c_r)$ |
# | boundaries are moved, the inside is recomputed | $\max(f, c_1)$ | $\max(3f, c_1)$ |
#
# The next cell uses NVIDIA's published speeds for 16-bit dense matmuls, and for the link to the
# host in *one* direction.

# %% id="cards"
# FLOP/s, and bytes/s to the host: T4, A100 80GB SXM, H100 SXM, GH200, B200
CARDS = {
    "T4, PCIe 3": (65e12, 16e9),
    "A100, PCIe 4": (312e12, 32e9),
    "H100, PCIe 5": (989e12, 64e9),
    "GH200, NVLink-C2C": (989e12, 450e9),
    "B200, PCIe 5": (2250e12, 64e9),
}


# %% id="block-numbers"
def block_numbers(seq_len, width=4096):
    """Return a causal block's forward FLOPs, its saved bytes, and its input's bytes."""
    sizes = {"d_model": width, "num_heads": width // 128, "seq_len": seq_len}
    with memory.predicting(), memory.flop_counter() as counter:
        block = Block(GPTConfig(**sizes)).bfloat16()
        x = torch.zeros(1, seq_len, width).bfloat16().requires_grad_()
        kept = memory.saved(lambda: block(x), params_of=block).num_bytes
    # a causal kernel skips half of the scores, and the counter does not know that
    return counter.get_total_flops() - 2 * seq_len**2 * width, kept, x.nbytes


# %% [markdown] id="predict-moved"
# **Predict.** Take a block as wide as Llama-2-7B's (4096), and one sequence of 2048 tokens in
# bfloat16. An A100 moves everything that the block keeps. How long is this block's step, as a
# multiple of the plain step?

# %% id="guess-moved"
guess = None  # times

# %% id="roofline"
LENGTHS = {"2k": 2048, "8k": 8192, "128k": 131_072}
everything, boundaries, host = {c: {} for c in CARDS}, {c: {} for c in CARDS}, {}
for name, length in LENGTHS.items():
    flops, kept, boundary = block_numbers(length)
    host[name] = [f"{32 * size / GIB:.1f}" for size in (kept, boundary)]
    for card, (speed, bus) in CARDS.items():
        f, c_r, c_1 = flops / speed, kept / bus, boundary / bus
        everything[card][name] = (max(f, c_r) + max(2 * f, c_r)) / (3 * f)
        boundaries[card][name] = (max(f, c_1) + max(3 * f, c_1)) / (3 * f)
a100 = everything["A100, PCIe 4"]
print(f"everything, A100, 2k: {a100['2k']:.2f} times{beside(guess, a100['2k'])}")
ways = {"everything": everything, "boundaries": boundaries}
table = pd.concat({way: pd.DataFrame(each) for way, each in ways.items()})
table.round(2)  # times the plain step; recomputing alone is 4/3 at most

# %% id="host-bytes"
columns = ["everything, GiB", "boundaries, GiB"]
pd.DataFrame(host, columns).T.rename_axis("32 blocks, on the host")

# %% [markdown] id="roofline-read"
# **In a block this wide, boundaries move for free.** On all of these cards, at all three lengths,
# the step takes 4/3 of the plain time, the same as with recomputing alone.
#
# Why? The forward of a causal block of width $h$ takes about $24h^2 + 2sh$ FLOPs for each of $s$
# tokens, and the block's input has $2h$ bytes per token. That makes $12h + s$ FLOPs per byte. At
# this width, that's more than any of the cards can do while one byte moves.
#
# **With a fast enough link you can offload everything for free.** At this width NVLink-C2C is fast
# enough, and for a slow card like the T4, PCIe nearly is. Longer sequences help on every card:
# attention's FLOPs grow quadratically with the length, the bytes only linearly.
#
# **Predict.** Sequences have 2048 tokens. What is the smallest width (a power of two) at which an
# A100 hides the copies of *boundaries* behind the forward?

# %% id="guess-width"
guess = None  # channels

# %% id="width"
needed = {card: flops / bus for card, (flops, bus) in CARDS.items()}  # per byte
widths = [2**power for power in range(8, 16)]
all_kept, boundaries = {}, {}
for width in widths:
    flops, kept, boundary = block_numbers(2048, width)
    all_kept[width], boundaries[width] = flops / kept, flops / boundary
off = max(abs(boundaries[w] / (12 * w + 2048) - 1) for w in widths)
print(f"the formula is off by {off:.1%} at most")
enough = {card: min(w for w in widths if boundaries[w] >= each)
          for card, each in needed.items()}  # fmt: skip
a100_width, every_card = enough["A100, PCIe 4"], max(enough.values())
print(f"A100: from width {a100_width}{beside(guess, a100_width)}")

# %% id="width-figure"
lines = {card: dict.fromkeys(widths, each) for card, each in needed.items()}
lines |= {"everything": all_kept, "boundaries": boundaries}
words = {"xlabel": "width of the block", "ylabel": "FLOPs per byte moved"}
title = (
    f"Boundaries are above the lines of all {len(CARDS)} cards from width {every_card}"
)
figure = plots.training_curves(
    lines, title=title, dashed=list(CARDS), log="xy", **words
)
figure.mark(a100_width, guess)

# %% [markdown] id="width-read"
# A copy is hidden where the line `everything` or `boundaries` is above the card's dashed line.
#
# ## Which boundary goes first?
#
# Often you needn't move all boundaries. We take eight blocks of width 4096 with 2048 tokens, on an
# A100 that reaches half of its FLOP/s. A *budget* says how many bytes this chain of checkpointed
# blocks may hold.
#
# A simple rule moves the **earliest** boundary first (it waits longest), then the next one, until
# the peak fits the budget.
#
# **Write.** `earliest_first`. Try to move no boundary, then the first, then the first two, and so
# on. Return the first plan that fits. `plan.slots.schedule(items, budget)` plans when to move the
# blocks with these numbers. It returns a list of moves, or None if the peak would still be above
# the budget. The last two boundaries never move, since backward begins with them. `replace(plan,
# moves=tuple(moves))` is the plan with these moves.

# %% id="paper-chain"
flops, kept, boundary = block_numbers(2048)
forward = flops / (0.5 * CARDS["A100, PCIe 4"][0])
stages = 8 * [
    planning.Stage(
        forward_seconds=forward, backward_seconds=2 * forward, input_bytes=boundary,
        saved_bytes=kept, backward_temporary_bytes=boundary)
]  # fmt: skip
each_block = planning.Plan(tuple(stages), tuple((n,) for n in range(8)))
print(f"{Bytes(each_block.peak_bytes)} with a checkpoint around each block")


# %% id="earliest-first"
def earliest_first(plan, budget):
    """Return `plan` with the fewest moves that fit the budget (bytes), earliest first.

    Raise a ValueError if moving all but the last two isn't enough.
    """
    ### BEGIN SOLUTION
    for count in range(len(plan.tree) - 1):
        moves = plan.slots.schedule(range(count), budget)
        if moves is not None:
            return replace(plan, moves=tuple(moves))
    raise ValueError(f"{budget} bytes are too few, whatever moves")
    ### END SOLUTION


# %% id="check-earliest-first"
# @title Check: run this cell
@blanks.check("earliest_first", "return a plan")
def the_earliest_move():
    slow = replace(each_block, bytes_per_second=1e9)
    for saved, wanted in ((0, 0), (1, 1), (4, 4), (5, 5), (5.2, 6)):
        budget, wanted = slow.peak_bytes - int(saved * boundary), [*range(wanted)]
        plan = earliest_first(slow, budget)
        moved = [move.item for move in plan.moves]
        assert moved == wanted, f"Blocks {moved} move, but {wanted} is enough."
        assert plan.peak_bytes <= budget, f"{plan.peak_bytes} bytes are above {budget}."
        assert plan.bytes_per_second == 1e9, "The plan's link changed: use `replace`."
    refused = False
    try:
        earliest_first(slow, slow.peak_bytes // 4)
    except ValueError:
        refused = True
    assert refused, "A budget that nothing fits must raise a ValueError."


# %% [markdown] id="predict-joint"
# `planning.solve` chooses only between keeping and recomputing. `planning.solve_with_host` can also
# move some or all of a block's tensors.
#
# **Predict.** The budget is twice the peak printed above, and the link is PCIe 4. Recomputing every
# block takes 33 % more time than the plain step. If a plan may keep, recompute and move, by what
# percentage is its step longer than the plain step?

# %% id="guess-joint"
guess = None  # %


# %% id="joint"
def three_ways(budget, bus):
    """Return the extra time in % of the plain step: by the rule, and twice planned."""
    host = planning.Host(bus)
    by_rule = earliest_first(replace(each_block, bytes_per_second=bus), budget)
    without = planning.solve(stages, budget_bytes=budget)
    together = planning.solve_with_host(stages, budget_bytes=budget, host=host)
    plain = 24 * forward
    return [100 * (one.seconds / plain - 1) for one in (by_rule, without, together)]


found, links = {}, {"PCIe 4": 32e9, "an eighth of it": 4e9}
for (link, bus), share in product(links.items(), (0.8, 1, 1.5, 2)):
    found[link, f"{share} x"] = three_ways(int(share * each_block.peak_bytes), bus)
more = found["PCIe 4", "2 x"][-1]
print(f"twice the bytes: {more:.0f} % more time{beside(guess, more)}")
columns = ["earliest boundaries, all recomputed", "keep or recompute", "all three"]
pd.DataFrame(found, columns).T.round(0).astype(int)  # % more time

# %% id="lanes"
# @title Three lanes of a step: run this cell; open it to look
budget, host = int(1.5 * each_block.peak_bytes), planning.Host(32e9)
best = planning.solve_with_host(stages, budget_bytes=budget, host=host)
figure, axes = new_figure("Budget 1.5 x: compute, copy out, copy in", height=1.8)
rows = {"forward": 0, "backward": 0, "out": 1, "in": 2}
for span in best.spans:
    start, lasts, row = 1e3 * span.start, 1e3 * (span.end - span.start), rows[span.kind]
    look = {"color": LINES[(*rows,).index(span.kind)], "edgecolor": "white"}
    axes.broken_barh([(start, lasts)], (row - 0.4, 0.8), **look)
    words = {"ha": "center", "va": "center", "color": "white"}
    axes.text(start + lasts / 2, row, span.item, **words)
axes.set_yticks([0, 1, 2], ["compute", "out", "in"])
axes.set(xlabel="milliseconds", ylim=(2.5, -0.5))
moved = [move.item for move in best.moves]
figure.alt = (
    f"Three lanes. Eight blocks run forward and back; the bytes of blocks {moved} go "
    "out during forward and come back during backward."
)
figure

# %% [markdown] id="joint-read"
# In the figure, blocks 0, 2 and 4 are moved, 1, 3 and 5 recomputed, and 6 and 7 kept. Arithmetic
# hides every copy.
#
# In the table, with a budget below the printed peak (1 x), `keep or recompute` has to recompute
# inside recomputed segments, so the rule is better. Above 1 x, the rule moves nothing and still
# recomputes every block, so `all three` is far better than the rule.
#
# **Where does offload lose?** If eight GPUs share the link, each has an eighth of its speed. Then a
# copy takes longer than the recomputation that it saves, so from 1 x on, `all three` is hardly
# faster than `keep or recompute`.

# %% [markdown] id="real-models-text"
# `python -m tutorial_lib plan MODEL --budget SIZE --link pcie-4` makes such plans of real models.
# Here are the predicted seconds of an update at an A100's speed:

# %% id="real-models"
# @title Seconds of an update, without a host and with one: run this cell
asked = pd.read_csv(FOLDER / "offload.csv").fillna({"link": ""})
asked["host"] = asked.host_bytes / GIB
pairs = asked.pivot(index=["model", "budget_gib"], columns="link")
shown = pairs.seconds.set_axis(["keep or recompute, s", "all three, s"], axis=1)
shown["on the host, GiB"] = pairs.host["pcie-4"]
shown.map(lambda n: "nothing fits" if pd.isna(n) else f"{n:.2f}")

# %% [markdown] id="on-gpu-text"
# With a host, Llama-3-8B is as fast in 48 GiB as in 80. (`wan` is a video model.)
#
# ## On a GPU
#
# Are copies hidden on your GPU? The cells below run a GPT of 24 blocks in four ways.


# %% id="on-gpu"
# @title Four ways to run a step: run this cell; open it to look
def measured_on_gpu(around=nullcontext, checkpointed=None):
    gpt, batch = GPT(GPTConfig(num_layers=24)).cuda(), tokens.cuda()

    def step():
        way = Prefetching("cuda") if checkpointed == "moved" else checkpointed
        with around(), segments.called_through(way, gpt.blocks if way else ()):
            gpt.loss(batch).backward()
        gpt.zero_grad()

    return memory.measure(step, model=gpt, repeats=5)


# %% id="on-gpu-measured"
# @title Measure all four: run this cell
# NBVAL_IGNORE_OUTPUT
if device.has_gpu():  # no times on an emulated card
    print("kept", measured_on_gpu(), sep="\n")
    print("all moved", measured_on_gpu(partial(save_on_cpu, True)), sep="\n")
    plainly = partial(checkpoint, use_reentrant=False)
    print("checkpointed", measured_on_gpu(checkpointed=plainly), sep="\n")
    print("boundaries moved", measured_on_gpu(checkpointed="moved"), sep="\n")
else:
    print("no GPU here: bytes are counted, and times come from published speeds")

# %% [markdown] id="offload-emulated-text"
# An emulated A100 runs ViT-B/16 with 16 images plainly (`kept`), inside `save_on_cpu` (`moved`),
# and with checkpoints. `card` is the peak above the weights, and `host` is what one step copies
# into pinned memory (every saved tensor):

# %% id="offload-emulated"
offload = json.loads((snapshots.SNAPSHOTS / "offload.json").read_text())["peaks"]
pd.DataFrame(offload).T.map(lambda size: f"{Bytes(size)}")

# %% id="verdicts"
at = {way: f"{Bytes(peak['card'])}" for way, peak in offload.items()}
slowest, long = table.loc["boundaries"].max().max(), table.loc["everything"].loc["128k"]
claims.Verdicts(
    claims.Verdict(
        "C13",
        "shown",
        "Offload frees what waits and recomputes nothing. A wide block's arithmetic "
        "hides the copies of boundaries. It hides all copies only with a fast link, or "
        "(nearly, on most cards) with very long sequences.",
        f"an A100 that moves everything: {a100['2k']:.2f} times the step at 2k tokens; "
        f"at 128k the {len(CARDS)} cards take {long.min():.2f} to {long.max():.2f}; "
        f"boundaries at most {slowest:.2f}, like recomputing alone",
        "predicted",
        "roofline",
        device="published speeds of five cards",
    ),
    claims.Verdict(
        "C13",
        "shown",
        "Offload frees about as much as checkpoints, without recomputing, but takes "
        "the host's memory.",
        f"ViT-B: {at['kept']} become {at['moved']} on the card, "
        f"{Bytes(offload['moved']['host'])} on the host; per block {at['per block']}",
        "emulated",
        "offload-emulated",
        device="emulated A100",
    ),
)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A block of width 4096 gets 8192 tokens in bfloat16. How long does it take to copy its
# boundary over a bus of 25 GB/s, and to run its forward at 150 TFLOP/s?
#
# <details><summary>Answer</summary>
#
# The boundary has $8192 \cdot 4096 \cdot 2$ bytes, or 64 MiB, which takes 2.7 ms. Forward has
# $24h^2 + 2sh$ FLOPs per token, 3.85 TFLOP in all, which takes 26 ms. The copy is hidden.
# </details>
#
# **2.** The same block keeps 16 times its input. If all of it is moved, how long is the step,
# relative to the plain one? How long is it if the block is recomputed instead?
#
# <details><summary>Answer</summary>
#
# A copy takes 43 ms. Forward takes $\max(26, 43) = 43$ ms, and backward $\max(51, 43) = 51$ ms. So
# the step takes 94 ms instead of 77, or 1.22 times as long. Recomputing takes 4/3, so moving is
# faster here.
# </details>
#
# **3.** For 32 such blocks, how much does the host hold if you move only boundaries, and how much
# if you move everything?
#
# <details><summary>Answer</summary>
#
# Per GPU, it holds 2 GiB of boundaries, or 32 GiB if you move everything.
# </details>

# %% [markdown] id="end"
# ## What you can now do
#
# - Write the two hooks of offload, and say why hooks alone copy too much.
# - Move boundaries during the arithmetic: pinned, on a side stream, one block ahead.
# - Tell from a card's two speeds, a width and a length whether a copy is hidden.
# - Say which boundary goes first, and when a planner beats that rule.
