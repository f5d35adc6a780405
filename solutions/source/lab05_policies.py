# %% [markdown] id="title"
# # Lab 05: policies
#
# You choose what to recompute: modules, tensors, or matmuls. Then you write a solver
# that meets a target in bytes, and hooks that move tensors to the host.
#
# **Budget:** 90 minutes, 1 GiB of memory, no GPU needed. Read chapters 07 and 07d
# first.
#
# | exercise | you write | points |
# |---|---|---|
# | 5.1 | a context that checkpoints chosen modules | 2 |
# | 5.2 | the cost of keeping some tensors | 3 |
# | 5.3 | a policy that keeps chosen matmuls | 3 |
# | 5.4 | the fewest FLOPs within a target in bytes | 4 |
# | 5.5 | saved tensors that wait on the host | 4 |
#
# Write each answer into its `# exercise` cell, helpers and imports into your own cells
# above it. The check of 5.1 refuses the library's `segments`, and the check of 5.4 its
# solver (`planning.solve` and `floor_bytes`).

# %% id="imports"
import itertools
import weakref
from collections import namedtuple
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import pandas as pd
import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode, flop_registry
from torch.utils.module_tracker import ModuleTracker

from tutorial_lib import checks, claims, data, device, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.memory import storage_key
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.units import Bytes, human_bytes, human_flops

torch.set_num_threads(1)

# %% [markdown] id="block-text"
# Our model is GPT-2 with a micro-batch of 4. Its bytes and FLOPs are *predicted* for a
# GPU's kernels. Fused attention counts as one matmul. This is one block:
#
# ```text
#           x  norm  qkv  attention  out  dropout  add  norm  up  GELU  down  dropout  add
# matmul             0       1       2                        3          4
# saved     1   1     3       1             1/4     1     1    4    4            1/4
# ```
#
# The line *matmul* numbers the matmuls; *saved* lists the bytes kept for backward, in
# units of the block's input `x`.

# %% id="gpt2"
ROWS = 4
UNIT = ROWS * 1024 * 768 * 4  # bytes of a block's input
FUSED = GPTConfig(
    50257, seq_len=1024, num_layers=12, num_heads=12, d_model=768, dropout=0.1
)
EAGER = replace(FUSED, attention="eager")

# %% [markdown] id="text-5-1"
# ## 5.1 Attention only, or the whole block?
#
# Difficulty 2/5 · importance 5/5 · 10 minutes
#
# Write `checkpoint_only`, a context manager that checkpoints each module of a list as a
# separate segment, by replacing its `forward`. After the `with` block, and after an
# error, each module must run as before.
#
# Gradients must stay the same to the last bit. Three traps:
#
# - Models may call a module with keyword arguments.
# - A module's `forward` may already differ from its class's, as with LoRA.
# - `module(x)` calls `module.forward`, so a new forward that calls `module(x)` calls
#   itself without end.


# %% id="answer-5-1"
# exercise 5.1
@contextmanager
def checkpoint_only(modules: list[torch.nn.Module]):
    """Checkpoint each of these modules, as one segment, until the `with` block ends.

    Args:
        modules: Parts of one model; no part is inside another.
    """
    ### BEGIN SOLUTION
    before = [(module, module.forward) for module in modules]
    try:
        for module, forward in before:
            module.forward = partial(checkpoint, forward, use_reentrant=False)
        yield
    finally:
        for module, forward in before:
            module.forward = forward
    ### END SOLUTION


# %% id="check-5-1"
# check 5.1 (2 points)
checks.lab05.checkpoint_only(checkpoint_only)

# %% [markdown] id="hints-5-1"
# <details><summary>Hint 1: the shape</summary>
#
# After `try: ... yield`, the `finally:` part runs even after an error.
# </details>
# <details><summary>Hint 2: remember first</summary>
#
# Begin with a list of pairs `(module, module.forward)`. The checkpoint calls this old
# forward, which you restore at the end.
# </details>
# <details><summary>Hint 3: the new forward</summary>
#
# `partial` binds `checkpoint` to the old forward and to `use_reentrant=False`.
# </details>
#
# **Predict.** Checkpointing every block lowers the peak by $D$ bytes. With fused
# attention, what percentage of $D$ do you gain by checkpointing only the attention
# modules?

# %% id="guess-attention"
guess = None  # percent

# %% id="given-parts"
PARTS = {
    "none": lambda gpt: [],
    "attention only": lambda gpt: [block.attention for block in gpt.blocks],
    "FFN only": lambda gpt: [block.mlp for block in gpt.blocks],
    "block": lambda gpt: list(gpt.blocks),
}


# %% id="given-peak"
def peak_of_step(gpt, tokens):
    report = memory.measure(lambda: gpt.loss(tokens).backward(), model=gpt, warmup=0)
    return report.peak_bytes - report.baseline_bytes


# %% id="given-predicted"
@cache
def predicted(config):
    peaks, flops = {}, {}
    with memory.predicting():
        gpt, tokens = GPT(config), torch.zeros(ROWS, 1024, dtype=torch.long)
        for part, modules in PARTS.items():
            with checkpoint_only(modules(gpt)):
                with FlopCounterMode(display=False) as counter:  # the warm-up step
                    gpt.loss(tokens).backward()
                peaks[part] = peak_of_step(gpt, tokens)
            flops[part] = counter.get_total_flops()
    return peaks, {part: count / flops["none"] - 1 for part, count in flops.items()}


def freed_by_attention(config):
    peaks, _ = predicted(config)
    return (peaks["none"] - peaks["attention only"]) / (peaks["none"] - peaks["block"])


# %% id="attention-table"
configs, table = {"eager": EAGER, "fused": FUSED}, {}
for name, config in configs.items():
    peaks, extra_flops = predicted(config)
    for part in PARTS:
        row = {"peak": human_bytes(peaks[part]), "FLOPs": f"{extra_flops[part]:+.1%}"}
        table[name, part] = row
share = 100 * freed_by_attention(FUSED)
print(f"eager: attention only frees {freed_by_attention(EAGER):.0%} of it")
print(f"fused: attention only frees {share:.0f} % of it{beside(guess, share)}")
pd.DataFrame(table).T

# %% id="attention-figure"
plots.tradeoff(
    {
        f"{part}, {name}": {predicted(config)[0][part]: predicted(config)[1][part]}
        for name, config in configs.items()
        for part in PARTS
    },
    title="GPT-2, micro-batch 4, predicted: attention only, FFN only, the whole block",
)

# %% [markdown] id="attention-read"
# ## 5.2 What does a choice cost?
#
# Difficulty 3/5 · importance 4/5 · 10 minutes
#
# Two dropped tensors may need the same matmul, which runs again only once. So their
# prices (chapter 07) don't add up.
#
# A **trace** lists a forward's operations in order: `trace.ops`. Each operation has a
# `name`, what it `reads` and `writes` (tuples of tensor names) and `flops`. Tensors in
# the same storage have the same name, so an in-place operation writes a name that an
# earlier operation wrote:
#
# ```text
# name   reads  writes  flops
# norm   x      h           0
# up     h      u         100
# add_   u h    u           0     in place: writes u again
# gelu   u      a           0
# trace.needed = {h, u, a}         what backward asks for
#
# kept {h, u}   a is missing              gelu runs             0 FLOPs
# kept {h}      u and a are missing       up, add_, gelu run  100 FLOPs
# kept {a}      u is missing, so h is     norm, up, add_ run  100 FLOPs
# ```
#
# A needed tensor that isn't kept is *missing*. *All* operations that write a missing
# tensor run again. What these operations read is then missing too, unless it is kept.
# But if a tensor is missing only because an operation reads it, that operation needs
# the value from before any later write in place, so such writes don't run again. Inputs
# and weights are always in memory.
#
# Write `cost_of_keeping`, which returns the bytes of all kept tensors and the FLOPs of
# all operations that run again. Leave the trace unchanged.


# %% id="answer-5-2"
# exercise 5.2
def cost_of_keeping(trace, kept: set[str]) -> tuple[int, int]:
    """Return what it costs to keep some tensors of a trace and to recompute the others.

    Args:
        trace: With `ops`, `needed`, and `num_bytes`, a dict from name to bytes.
        kept: Names of the tensors that are kept, needed or not.

    Returns:
        Bytes of all that is kept, and FLOPs of all operations that run again.
    """
    ### BEGIN SOLUTION
    missing, flops = trace.needed - kept, 0
    for op in reversed(trace.ops):
        if missing & set(op.writes):
            flops += op.flops
            missing = missing | (set(op.reads) - kept)
    return sum(trace.num_bytes[name] for name in kept), flops
    ### END SOLUTION


# %% id="check-5-2"
# check 5.2 (3 points)
checks.lab05.cost_of_keeping(cost_of_keeping)

# %% [markdown] id="hints-5-2"
# <details><summary>Hint 1: from the end</summary>
#
# Go once through `reversed(trace.ops)`.
# </details>
# <details><summary>Hint 2: one set</summary>
#
# Start with a set of missing names: those that are needed but not kept.
# </details>
# <details><summary>Hint 3: what runs again</summary>
#
# If an operation writes something missing, add its FLOPs. Add what it reads to the set,
# unless it is kept.
# </details>
#
# The next cells record a trace of a real block.

# %% id="given-trace"
Op = namedtuple("Op", "name reads writes flops")
Trace = namedtuple("Trace", "ops num_bytes needed")


def storages(nested):
    tensors = [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]
    found = [tensor.untyped_storage() for tensor in tensors]
    return {storage_key(storage): storage.nbytes() for storage in found}


# %% id="recorder"
class Recorder(TorchDispatchMode):
    def __init__(self, given, tracker):
        super().__init__()
        self.given, self.tracker = storages(given), tracker
        self.names, self.alive, self.trace = {}, [], Trace([], {}, set())

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        self.alive.append(out)  # so that no address is used twice
        made = {s: size for s, size in storages(out).items() if s not in self.given}
        if made.keys() - self.names.keys() or op._schema.is_mutable:  # else a view
            count = flop_registry.get(op.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count else 0
            reads = tuple(self.names[s] for s in storages(args) if s in self.names)
            writes = tuple(self.named(s, size, op) for s, size in made.items())
            self.trace.ops.append(Op(op.overloadpacket.__name__, reads, writes, flops))
        return out

    def named(self, storage, num_bytes, op):
        if storage not in self.names:
            path = max(self.tracker.parents - {"Global"}, key=len)
            name = path.removeprefix("Block").lstrip(".") or op.overloadpacket.__name__
            taken = sum(other.split()[0] == name for other in self.trace.num_bytes)
            self.names[storage] = f"{name} {taken + 1}" if taken else name
            self.trace.num_bytes[self.names[storage]] = num_bytes
        return self.names[storage]


# %% id="record"
def record(config):
    with memory.predicting(), ModuleTracker() as tracker:
        block, x = Block(config), torch.zeros(ROWS, 1024, 768, requires_grad=True)
        recorder = Recorder([x, *block.parameters()], tracker)
        names, needed = recorder.names, recorder.trace.needed

        def pack(tensor):  # inputs and weights have no name
            needed.update(names[s] for s in storages(tensor) if s in names)
            return tensor.detach()

        with recorder, saved_tensors_hooks(pack, lambda tensor: tensor):
            block(x)
    return recorder.trace


# %% id="trace"
def large(trace):
    return {name for name, size in trace.num_bytes.items() if size > 0.01 * UNIT}


trace = record(FUSED)
for op in trace.ops:
    sizes = [
        name + "*" * (name in trace.needed)
        for name in op.writes
        if name in large(trace)
    ]
    if sizes:
        print(f"{op.name:<40}{human_flops(op.flops):>14}  {', '.join(sizes)}")
print("* backward asks for it")

# %% [markdown] id="predict-exact"
# The *greedy* way, as in chapter 07, drops the tensors with the lowest price per byte
# first. The *exact* way tries all sets.
#
# **Predict.** Both ways may keep 4 units. What are the greedy way's recomputed FLOPs,
# divided by the exact way's?

# %% id="guess-exact"
guess = None  # times


# %% id="exact-and-greedy"
def all_choices(trace):
    names, small = sorted(large(trace)), trace.needed - large(trace)
    sets = (itertools.combinations(names, size) for size in range(len(names) + 1))
    chosen = itertools.chain.from_iterable(sets)
    return [cost_of_keeping(trace, small | set(kept)) for kept in chosen]


def greedy_choices(trace):
    def price(name):  # FLOPs per byte, if everything else is kept
        return cost_of_keeping(trace, trace.needed - {name})[1] / trace.num_bytes[name]

    names = [name for name in trace.num_bytes if name in large(trace) & trace.needed]
    order = sorted(names, key=price)  # equal prices: in the trace's order
    dropped = [set(order[:number]) for number in range(len(order) + 1)]
    return [cost_of_keeping(trace, trace.needed - names) for names in dropped]


# %% id="frontier"
def fewest(choices, num_bytes):
    return min(flops for size, flops in choices if size <= num_bytes)


def frontier(choices):  # only the choices that no smaller one beats
    best, least = {}, float("inf")
    for size, flops in sorted(choices):
        if flops < least:
            best[size] = least = flops
    return best


# %% id="exact-figure"
exact, greedy = all_choices(trace), greedy_choices(trace)
allowed = 4.1 * UNIT  # with the tensors that aren't `large`
ratio = fewest(greedy, allowed) / fewest(exact, allowed)
print(f"{len(exact)} sets; 4 units: greedy / exact = {ratio:.2f}{beside(guess, ratio)}")

# %% id="exact-drawn"
forward = sum(op.flops for op in trace.ops)
best = {size: flops / forward for size, flops in frontier(exact).items()}
by_price = {size: flops / forward for size, flops in greedy}
plots.tradeoff(
    {"dropped by price": by_price, "best of all sets": best},
    title="One block of GPT-2: kept bytes against its forward FLOPs again",
)

# %% [markdown] id="exact-read"
# ## 5.3 A policy that counts
#
# Difficulty 3/5 · importance 4/5 · 15 minutes
#
# PyTorch asks a *policy* about each operation of a segment: keep its result, or
# recompute it? To choose a matmul, the policy has to count:
#
# ```text
# keep {0, 3}     qkv 0   attention 1   out 2   up 3   down 4
# forward         keep    run           run     keep   run
# recomputation   -       run           run     -      run
# ```
#
# `checkpoint(..., context_fn=f)` calls `f()` for each segment. `f` returns
# `create_selective_checkpoint_contexts(policy)`, a pair of contexts: one for forward,
# one for the recomputation. In forward, PyTorch calls
# `policy(context, op, *args, **kwargs)` for each operation; return
# `CheckpointPolicy.MUST_SAVE` or `CheckpointPolicy.PREFER_RECOMPUTE`. Some releases
# also call the policy in the recomputation, where `context.is_recompute` is True. Count
# from 0 in each of the two runs; `is_matmul(op)`, below, tells what to count.
#
# Write `keep_matmuls`, which returns such an `f`. The goal: the chosen matmuls run
# once, and all others twice. Only the chosen results and the segment's input are kept
# for backward. Gradients stay equal to the last bit.


# %% id="given-matmul"
def is_matmul(op):
    return op.overloadpacket in flop_registry


# %% id="answer-5-3"
# exercise 5.3
def keep_matmuls(numbers: set[int]):
    """Make a `context_fn` for segments that keep the results of chosen matmuls.

    Args:
        numbers: Which matmuls of a segment are kept, counted from 0 in each segment.

    Returns:
        A function without arguments, for `checkpoint(..., context_fn=...)`.
    """

    ### BEGIN SOLUTION
    def contexts():
        # matmuls so far, in forward and in the recomputation
        seen = {False: 0, True: 0}

        def policy(context, op, *args, **kwargs):
            if not is_matmul(op):
                return CheckpointPolicy.PREFER_RECOMPUTE
            number = seen[context.is_recompute]
            seen[context.is_recompute] += 1
            if number in numbers:
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts
    ### END SOLUTION


# %% id="check-5-3"
# check 5.3 (3 points)
checks.lab05.keep_matmuls(keep_matmuls)

# %% [markdown] id="hints-5-3"
# <details><summary>Hint 1: three functions</summary>
#
# `keep_matmuls` returns `contexts`, which makes a counter and a policy, and returns the
# pair of contexts.
# </details>
# <details><summary>Hint 2: the counter</summary>
#
# Create the counter inside `contexts`: a dict with the keys `False` and `True`, the
# values of `context.is_recompute`.
# </details>
# <details><summary>Hint 3: the answers</summary>
#
# `MUST_SAVE` for a chosen matmul, otherwise `PREFER_RECOMPUTE`.
# </details>
#
# Does a FLOP counter agree with `cost_of_keeping`?


# %% id="run-block"
# keep: the numbers of matmuls, or None for no checkpoint
def run_block(block, keep, x):
    forward = partial(Block.forward, block)
    if keep is None:
        return forward(x)
    return checkpoint(forward, x, use_reentrant=False, context_fn=keep_matmuls(keep))


def block_step_flops(keep):
    with memory.predicting():
        block, x = Block(FUSED), torch.zeros(ROWS, 1024, 768, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            run_block(block, keep, x).sum().backward()
    return counter.get_total_flops()


# %% id="policies"
matmuls = [op for op in trace.ops if op.flops]
plain_flops, table = block_step_flops(None), {}
for keep in ((), (0,), (0, 3), (0, 1, 3), (0, 1, 2, 3), (0, 1, 2, 3, 4)):
    results = {name for number in keep for name in matmuls[number].writes}
    num_bytes, on_paper = cost_of_keeping(trace, results)
    again = block_step_flops(set(keep)) - plain_flops
    row = {"units kept": f"{num_bytes / UNIT:.1f}", "on paper": human_flops(on_paper)}
    table[str(keep)] = {**row, "counted": human_flops(again)}
pd.DataFrame(table).T.rename_axis("keep")

# %% [markdown] id="policies-read"
# ## 5.4 A target in bytes, the fewest FLOPs
#
# Difficulty 4/5 · importance 5/5 · 20 minutes
#
# A model is a sequence of **parts**: embedding, blocks, head. Each part has **options**
# for what it keeps. An option has three numbers:
#
# - `kept_bytes`: what waits in memory for backward;
# - `working_bytes`: the most that the part holds while it works, forward or backward,
#   its own kept bytes included;
# - `flops`: the FLOPs that run again.
#
# ```text
# forward   part 0 keeps ─► part 1 keeps ─► part 2 keeps ─┐
# backward  part 0 works ◄─ part 1 works ◄─ part 2 works ◄┘
# ```
#
# While a part works, memory holds its `working_bytes` plus the `kept_bytes` of all
# parts *before* it. Write `fewest_flops`, which chooses one option for each part. Each
# such sum must fit the target, and all parts together must recompute as few FLOPs as
# possible. Don't try all combinations.


# %% id="answer-5-4"
# exercise 5.4
def fewest_flops(parts: list[list], target_bytes: int) -> list[int]:
    """Choose an option for each part, with the fewest FLOPs in all within a target.

    Args:
        parts: In the order of forward; each a list of options.
        target_bytes: The most that may be held at any time.

    Returns:
        The number of each part's option.

    Raises:
        ValueError: When no choice fits.
    """
    ### BEGIN SOLUTION
    best = {0: (0, ())}  # from bytes kept so far to the fewest FLOPs, and the options
    for options in parts:
        longer = {}
        for kept, (flops, chosen) in best.items():
            for number, option in enumerate(options):
                if kept + option.working_bytes <= target_bytes:
                    total = kept + option.kept_bytes
                    way = flops + option.flops, (*chosen, number)
                    longer[total] = min(way, longer.get(total, way))
        best = longer
    if not best:
        raise ValueError(f"target_bytes (={target_bytes}) is too small.")
    return list(min(best.values())[1])
    ### END SOLUTION


# %% id="check-5-4"
# check 5.4 (4 points)
checks.lab05.fewest_flops(fewest_flops)

# %% [markdown] id="hints-5-4"
# <details><summary>Hint 1: part by part</summary>
#
# For each number of bytes that the parts so far keep, remember the fewest FLOPs, and
# the options that lead to them.
# </details>
# <details><summary>Hint 2: a dict</summary>
#
# Begin with `best = {0: (0, ())}`: nothing kept, no FLOPs, no options yet. For each
# part make a new dict by combining every entry of the old dict with every option.
# </details>
# <details><summary>Hint 3: what fits</summary>
#
# An option is possible if `kept + option.working_bytes` fits. It leads to
# `kept + option.kept_bytes`. If two ways lead to the same bytes, take the `min`.
# </details>
#
# Now predict the options of GPT-2's parts.


# %% id="readings"
class Option(NamedTuple):
    kept_bytes: int
    working_bytes: int
    flops: int  # that run again


def reading(module, run, x):
    def forward_and_backward():
        out = run(x)
        edge, gradient = get_gradient_edge(out), torch.ones_like(out)
        del out  # in the whole model, nothing holds it any more by then
        torch.autograd.backward([edge], [gradient])

    forward_and_backward()  # from the second step on, gradients already exist
    with memory.watch(model=module) as forward:
        out = run(x)
    del out
    with memory.watch(model=module) as step:
        forward_and_backward()
    with FlopCounterMode(display=False) as counter:
        forward_and_backward()
    working = step.peak_bytes - step.baseline_bytes
    return Option(forward.leaked_bytes, working, counter.get_total_flops())


# %% id="ends"
def embed(gpt, tokens):
    places = torch.arange(tokens.size(1))
    return gpt.dropout(gpt.token_embedding(tokens) + gpt.position_embedding(places))


def head_loss(gpt, tokens, x):
    targets = F.pad(tokens[:, 1:], (0, 1), value=-100)  # nothing follows the last token
    return F.cross_entropy(gpt.head(gpt.norm(x)).flatten(0, 1), targets.flatten())


# %% id="parts"
KEEPS = (None, {0, 1, 2, 3, 4}, {0, 1, 2, 4}, {0, 1, 4}, {1, 2, 4}, {1, 4}, {4}, set())
with memory.predicting():
    gpt, tokens = GPT(FUSED), torch.zeros(ROWS, 1024, dtype=torch.long)
    x = torch.zeros(ROWS, 1024, 768, requires_grad=True)
    runs = [partial(run_block, gpt.blocks[0], keep) for keep in KEEPS]
    embedding = reading(gpt, partial(embed, gpt), tokens)
    head = reading(gpt, partial(head_loss, gpt, tokens), x)
    block = [reading(gpt.blocks[0], run, x) for run in runs]

# %% id="again"
step_flops = embedding.flops + 12 * block[0].flops + head.flops
again = [option._replace(flops=option.flops - block[0].flops) for option in block]
parts = [[embedding._replace(flops=0)], *[again] * 12, [head._replace(flops=0)]]

for keep, option in zip(KEEPS, again, strict=True):
    size, flops = Bytes(option.kept_bytes), human_flops(option.flops)
    print(f"block, matmuls kept {keep!s:<16} {size:>9} kept, {flops} again")
print(f"head {Bytes(head.kept_bytes)} kept, {Bytes(head.working_bytes)} at work")

# %% [markdown] id="predict-target"
# **Predict.** The target is a quarter less than the peak with everything kept. By what
# percentage do your solver's choices raise the FLOPs of a whole step?

# %% id="guess-target"
guess = None  # percent


# %% id="targets"
def executed(choices):
    peaks = {}
    with memory.predicting():
        gpt, tokens = GPT(FUSED), torch.zeros(ROWS, 1024, dtype=torch.long)
        gpt.loss(tokens).backward()  # from here on, gradients exist
        for numbers in choices:
            for layer, number in zip(gpt.blocks, numbers[1:-1], strict=True):
                layer.forward = partial(run_block, layer, KEEPS[number])
            peaks[numbers] = peak_of_step(gpt, tokens)
    return peaks


def extra(numbers):  # recomputed FLOPs, as a share of a step's FLOPs
    chosen = [part[n] for part, n in zip(parts, numbers, strict=True)]
    return sum(option.flops for option in chosen) / step_flops


# %% id="targets-table"
most = predicted(FUSED)[0]["none"]
shares = (0.85, 0.75, 0.6)
solved = {share: tuple(fewest_flops(parts, int(share * most))) for share in shares}
alike = [(0, *[number] * 12, 0) for number in (1, 5)]
peaks = executed([*solved.values(), *alike])
for share, numbers in solved.items():
    words = beside(guess, 100 * extra(numbers)) if share == 0.75 else ""
    print(f"{share:.0%}: {numbers[1:-1]} peak {peaks[numbers] / most:.1%}, "
          f"FLOPs {extra(numbers):+.1%}{words}")  # fmt: skip
    assert peaks[numbers] <= share * most

# %% id="targets-figure"
plain_peaks, plain_extra = predicted(FUSED)
least = plain_peaks["block"]
targets = [least + (most - least) * step // 12 for step in range(1, 13)]
at_target = {size: extra(fewest_flops(parts, size)) for size in targets}
all_alike = {plain_peaks[part]: plain_extra[part] for part in ("none", "block")}
all_alike |= {peaks[numbers]: extra(numbers) for numbers in alike}
plots.tradeoff(
    {"your solver, at its target": at_target, "all blocks alike": all_alike},
    title="GPT-2, micro-batch 4, predicted: peak against FLOPs again",
)

# %% [markdown] id="targets-read"
# ## 5.5 Move it to the host
#
# Difficulty 4/5 · importance 4/5 · 25 minutes
#
# Write `offloading`, hooks that copy each storage once:
#
# ```text
# saved     q  k  v  in one storage     the same storage,      a weight, or a storage
#                                       written in place       below min_bytes
# device    (gone)                      (gone)                 stays
# host      one copy                    a new copy
# ```
#
# - **What stays**: for a tensor that stays on the device, `pack` returns
#   `tensor.detach()`, since the tensor itself could keep its graph alive. Large buffers
#   don't stay.
# - **Which storage?** Keep the copies in a dict. As the key use
#   `StorageWeakRef(storage)`, which doesn't keep the storage alive.
# - **Written in place**: `tensor._version` counts such writes.
# - **Copies go when the graph goes.** `weakref.WeakValueDictionary` forgets a copy once
#   nothing else holds it.
# - **A second backward** may ask for the same tensors again.
#
# `copy = host.put(tensor)` copies the tensor's whole storage.
# `copy.get(dtype, size, stride, offset)` brings a tensor back: pass its `dtype`,
# `size()`, `stride()` and `storage_offset()`.


# %% id="answer-5-5"
# exercise 5.5
def offloading(host, model: torch.nn.Module, min_bytes: int):
    """Make hooks under which large saved tensors wait on the host.

    Args:
        host: Has `put`, which returns a copy that has `get`.
        model: Its parameters stay where they are.
        min_bytes: The smallest storage that is moved.

    Returns:
        A context manager for forward and backward.
    """
    ### BEGIN SOLUTION
    resident = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
    copies = weakref.WeakValueDictionary()

    def pack(tensor):
        storage = tensor.untyped_storage()
        if StorageWeakRef(storage) in resident or storage.nbytes() < min_bytes:
            return tensor.detach()
        key = StorageWeakRef(storage), tensor._version
        copy = copies.get(key)
        if copy is None:
            copy = copies[key] = host.put(tensor)
        place = tensor.size(), tensor.stride(), tensor.storage_offset()
        return copy, tensor.dtype, *place

    def unpack(packed):
        is_kept = isinstance(packed, torch.Tensor)
        return packed if is_kept else packed[0].get(*packed[1:])

    return saved_tensors_hooks(pack, unpack)
    ### END SOLUTION


# %% id="check-5-5"
# check 5.5 (4 points)
checks.lab05.offloading(offloading)

# %% [markdown] id="hints-5-5"
# <details><summary>Hint 1: the frame</summary>
#
# `unpack` receives what `pack` returned: a tensor that stayed, or a tuple.
# </details>
# <details><summary>Hint 2: pack</summary>
#
# A copy's key is the pair of a `StorageWeakRef` and `tensor._version`. Assign a new
# copy to a variable before you put it into the dict, or it is forgotten at once.
# </details>
# <details><summary>Hint 3: the tuple</summary>
#
# Put the copy and the arguments of its `get` into the tuple.
# </details>
#
# **Predict.** PyTorch's `save_on_cpu` copies every saved tensor, weights included. For
# a GPT of 8 blocks, how many times as many bytes does `save_on_cpu` copy as your hooks?

# %% id="guess-copies"
guess = None  # times


# %% id="given-every-tensor"
def every_tensor(host):  # what save_on_cpu copies
    def pack(tensor):
        host.copied_bytes += tensor.nbytes
        return tensor.detach()

    return saved_tensors_hooks(pack, lambda tensor: tensor)


# %% id="offload-counted"
torch.manual_seed(0)
gpt, batch = GPT(GPTConfig(num_layers=8)), next(data.text_batches(2, 128))
once, each = checks.lab05.Host(), checks.lab05.Host()
with every_tensor(each):
    gpt.loss(batch)
with memory.watch(model=gpt) as kept:
    loss = gpt.loss(batch)
del loss
with offloading(once, gpt, min_bytes=16384), memory.watch(model=gpt) as moved:
    loss = gpt.loss(batch)

# %% id="offload-numbers"
waiting, offloaded = Bytes(kept.leaked_bytes), Bytes(moved.leaked_bytes)
print(f"waiting: {waiting} kept, {offloaded} with offload")
ratio = each.copied_bytes / once.copied_bytes
print(f"copied: {Bytes(once.copied_bytes)} once, {Bytes(each.copied_bytes)} each")
print(f"{ratio:.2f} times as many{beside(guess, ratio)}")
del loss
print(f"left on the host when the graph is gone: {Bytes(once.held_bytes)}")

# %% [markdown] id="gpu-text"
# ## On a GPU
#
# This part isn't graded.


# %% id="gpu-given"
def measured(keep, around, num_rows):
    gpt = GPT(GPTConfig(num_layers=12, d_model=768, num_heads=12, seq_len=512)).cuda()
    tokens = next(data.text_batches(num_rows, 512)).cuda()
    for layer in gpt.blocks:
        layer.forward = partial(run_block, layer, keep)

    def step():
        with around(gpt):
            gpt.loss(tokens).backward()

    return memory.measure(step, model=gpt, repeats=5)


# %% id="gpu"
# NBVAL_IGNORE_OUTPUT
LEVERS = {
    "keep all": (None, nullcontext),
    "matmuls": ({0, 1, 2, 3}, nullcontext),
    "offload": (None, lambda gpt: offloading(checks.lab05.Host(), gpt, 2**20)),
}
rows = device.pick_by_tier(cpu=1, small_gpu=4, large_gpu=32)
for name, lever in LEVERS.items() if device.has_gpu() else ():
    report = measured(*lever, rows)
    milliseconds = 1e3 * (report.seconds or 0)
    print(f"{name:<9} peak {report.peak_bytes}, {milliseconds:.1f} ms")
if not device.has_gpu():
    print("no GPU here: the bytes above are predicted and counted")

# %% id="verdicts"
claims.Verdicts(
    claims.Verdict(
        "E19",
        "built",
        "Attention only frees most of it with eager attention, and little where fused.",
        f"of what whole blocks free: {freed_by_attention(EAGER):.0%} eager, "
        f"{freed_by_attention(FUSED):.0%} fused",
        "predicted",
        "attention-table",
        device="CUDA kernels",
    ),
)
