# %% [markdown] id="title"
# # Selective checkpointing
#
# In chapter 06 each segment dropped all its tensors. But recomputing one tensor takes a few
# additions, and recomputing another takes a large matmul. So in this chapter you give every saved
# tensor a price, and choose what to drop.
#
# **Budget:** 70 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import itertools
import sys
from collections import namedtuple
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

import tutorial_lib
from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import figures, planning
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.memory import storage_key
from tutorial_lib.models.gpt import GPT, Block, GPTConfig
from tutorial_lib.units import Bytes

sys.path.append(str(Path(tutorial_lib.__file__).parents[1] / "course/train"))
import train
import your_run

aten = torch.ops.aten

# %% [markdown] id="prices-text"
# ## What does it cost to recompute a tensor?
#
# If you drop a tensor, the operation that made it runs again in backward. So the tensor's price is
# that operation's FLOPs, plus the price of every input that wasn't kept either.
#
# A *dispatch mode* (chapter 02) is called for every operation. Ours, `Makers`, notes which
# operation made each storage, from which inputs and with how many FLOPs. Chapter 03's saved-tensor
# hook says which tensors are kept.
#
# **Predict.** Take a transformer block as wide as Llama-2-7B's (4096), with fused attention. What
# percentage of its saved bytes can be recomputed *without any matmul*?

# %% id="guess-cheap"
guess = None  # %


# %% id="storages"
def storages(nested):  # several tensors may be views of one storage
    tensors = [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]
    return [storage_key(tensor.untyped_storage()) for tensor in tensors]


# %% [markdown] id="write-makers"
# **Write.** `__torch_dispatch__` of `Makers`. It runs the operation, and writes a note into
# `self.notes` for each storage of the result that has no note yet. If a storage has a note, leave
# it: later operations that return the same storage are views or in-place writes. `storages` names a
# storage by its address. A freed address may be reused, so keep every result in `self.alive`.
#
# For the FLOPs, `flop_registry.get(op.overloadpacket)` returns a function, or None for an operation
# that counts as free. Call that function with the operation's arguments, and with its result as
# `out_val`; it returns FLOPs.


# %% id="makers"
class Makers(TorchDispatchMode):
    """Note for each storage the operation that made it, its FLOPs and its inputs."""

    def __init__(self, given, name_of):
        super().__init__()
        self.name_of, self.alive = name_of, []
        self.notes = {storage: ("", 0, []) for storage in storages(given)}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        """Run `op`; note (name, FLOPs, storages of args) for each new storage.

        The name is `self.name_of(op)`, and `storages` finds the storages in any nest.
        """
        ### BEGIN SOLUTION
        kwargs = kwargs or {}
        out = op(*args, **kwargs)
        count = flop_registry.get(op.overloadpacket)
        flops = count(*args, **kwargs, out_val=out) if count else 0
        for storage in storages(out):  # the first operation made it, a view comes later
            self.notes.setdefault(storage, (self.name_of(op), flops, storages(args)))
        self.alive.append(out)
        return out
        ### END SOLUTION


# %% id="check-makers"
# @title Check: run this cell
@blanks.check("Makers", "run each operation, note what it made, and return its result")
def notes_who_made_what():
    x, weight, bias = torch.randn(4, 8), torch.randn(8, 2), torch.randn(2)
    (of_x,), (of_weight,) = storages(x), storages(weight)
    with Makers([x, weight, bias], lambda op: op.overloadpacket.__name__) as makers:
        y = x @ weight
        right = y.clone()
        y.add_(bias)
        split = x.split(2, dim=0)
        values, places = torch.sort(y, descending=True)
        whole = torch.ones(2, dtype=torch.int64)
    assert whole.dtype == torch.int64, "`op` is called without its kwargs."
    assert torch.equal(y, right + bias), "An operation's result has changed."
    of_y, of_values, of_places = (storages(t)[0] for t in (y, values, places))
    notes = makers.notes
    missing = [name for name, of in (("x @ w", of_y), ("values", of_values),
               ("places", of_places)) if of not in notes]  # fmt: skip
    assert not missing, f"Nothing is noted for {missing}."
    made_by, flops, inputs = notes[of_y]
    assert made_by == "mm", (
        f"`mm` made x @ w, but the note says {made_by!r}: ignore later views and "
        "in-place writes."
    )
    assert flops == 2 * 4 * 8 * 2, f"x @ w takes 128 FLOPs, but the note says {flops}."
    assert set(inputs) == {of_x, of_weight}, "x @ w is made from x and w."
    assert storages(split[0])[0] == of_x, "A view has the same storage as its base."
    assert notes[of_x] == ("", 0, []), "x was given: no operation made it."
    assert notes[of_values][0] == notes[of_places][0] == "sort", (
        "`sort` returns two tensors, and made both."
    )
    lost = len(set(notes) - set(storages([x, weight, bias, makers.alive])))
    assert not lost, (
        f"{lost} storages that are noted are not in `self.alive`: their addresses may "
        "be reused."
    )


# %% id="watched"
# @title Kept storages and their makers: run this cell; open it to look
def watched(block, x):
    kept, tracker = {}, ModuleTracker()

    def pack(tensor):
        kept[storages(tensor)[0]] = Bytes(tensor.untyped_storage().nbytes())
        return tensor.detach()

    def name_of_maker(op):
        module = max(tracker.parents - {"Global"}, key=len).removeprefix("Block")
        return f"{module} {op.overloadpacket.__name__}".strip(". ")

    makers = Makers([x, *block.parameters()], name_of_maker)
    with saved_tensors_hooks(pack, lambda tensor: tensor), tracker, makers:
        block(x)
    return kept, makers.notes


# %% [markdown] id="write-price"
# **Write.** `price`. `notes[storage]` has a name, FLOPs and a list of inputs. The price is these
# FLOPs plus the price of each input that isn't in `kept`. `storage` itself counts as dropped, even
# if `kept` holds it. An in-place operation's inputs include its own result: skip that input. Two
# views of a storage are listed as two inputs: count it once.


# %% id="price"
def price(storage, kept, notes):
    """Return the FLOPs to make a storage again, when those in `kept` still exist."""
    ### BEGIN SOLUTION
    _, flops, inputs = notes[storage]
    missing = set(inputs) - {storage} - set(kept)
    return flops + sum(price(one, kept, notes) for one in missing)
    ### END SOLUTION


# %% id="check-price"
# @title Check: run this cell
@blanks.check("price", "return FLOPs, and leave out an operation's own result")
def prices_are_right():
    notes = {
        "x": ("", 0, []), "a": ("norm", 0, ["x"]), "b": ("up", 100, ["a"]),
        "c": ("gelu", 0, ["b"]), "d": ("down", 50, ["c"]), "e": ("add_", 7, ["e", "d"]),
        "f": ("mul", 9, ["b", "b"]),
    }  # fmt: skip
    for storage, kept, right in (
        ("b", "x", 100), ("c", "x", 100), ("d", "xc", 50), ("d", "x", 150),
        ("e", "xd", 7), ("b", "xb", 100), ("f", "x", 109),
    ):  # fmt: skip
        seen = price(storage, dict.fromkeys(kept), notes)
        said = (
            "x, norm, up (100), GELU, down (50), add_ (7), mul of up and up (9); kept: "
            f"{', '.join(kept)}. "
        )
        assert seen == right, f"{said}{notes[storage][0]} costs {right}, not {seen}."


# %% id="prices"
def prices(block, x):
    kept, notes = watched(block, x)
    rows = [(notes[one][0], num_bytes, price(one, kept, notes))
            for one, num_bytes in kept.items()]  # fmt: skip
    table = pd.DataFrame(rows, columns=["made by", "kept", "flops"])
    table = table[table["made by"] != ""]  # no operation made the input and the weights
    return table.groupby("made by", sort=False).agg({"kept": "sum", "flops": "last"})


# %% id="wide-block"
# @title A block of Llama's width: run this cell; open it to look
def wide_block(attention="sdpa", d_model=4096, seq_len=2048, **others):
    sizes = {"d_model": d_model, "num_heads": d_model // 128, "seq_len": seq_len}
    with memory.predicting():  # a GPU's kernels, and no memory
        block = Block(GPTConfig(attention=attention, **sizes, **others)).bfloat16()
        x = torch.zeros(1, seq_len, d_model, dtype=torch.bfloat16, requires_grad=True)
        with memory.flop_counter() as counter:
            block(x)
        return prices(block, x), counter.get_total_flops()


# %% id="cheap-share"
fused, fused_flops = wide_block()
share = 100 * fused.kept[fused.flops == 0].sum() / fused.kept.sum()
print(f"{share:.0f} % without a matmul{beside(guess, share)}")


# %% id="roofline"
# @title A roofline with sliders: run this cell; open it to look
CARDS = {
    "T4": "Tesla T4", "A100": "NVIDIA A100-SXM4-80GB", "H100": "NVIDIA H100 80GB HBM3"
}  # fmt: skip
speeds = {card: planning.Speed.of(name) for card, name in CARDS.items()}
speeds = {card: (of.half_flops, of.bytes_per_second) for card, of in speeds.items()}
figures.roofline(speeds, card="A100", tokens=2048, width=4096)

# %% [markdown] id="roofline-read"
# This is a *roofline*. An operation takes as long as its arithmetic or its memory traffic,
# whichever is longer. Left of the ridge (the dotted line), the traffic takes longer. In the lower
# panel, the cheapest results to drop come first. Of `out`, `down` and `head` *nothing is kept*,
# because backward doesn't need their results. The sum after `out` is needed: to recompute it, `out`
# has to run again too, so that price is *with out*.
#
# - **Norms and GELU** need no matmul, but they read and write memory.
# - **Linear layers** with $C$ inputs cost $2C$ FLOPs per element of the result.
# - **Attention** over $T$ tokens costs $4T$ FLOPs per element of the result.


# %% id="cheapest-first"
def cheapest_first(table):  # fewest FLOPs per byte
    return table.iloc[(table.flops / table.kept).argsort(kind="stable")]


# %% [markdown] id="write-dropped"
# **Write.** `dropped_in_order`, which drops tensors in the order of `cheapest_first(table)`. The
# table's columns are `kept` and `flops`. The first point is (0, all bytes), and each dropped tensor
# adds a point.


# %% id="dropped"
def dropped_in_order(table, forward_flops):
    """Return points (recomputed so far, in % of forward's FLOPs; bytes still kept)."""
    ### BEGIN SOLUTION
    table = cheapest_first(table)
    again = 100 * table.flops.cumsum() / forward_flops
    kept = table.kept.sum() - table.kept.cumsum()
    return [(0, table.kept.sum()), *zip(again, kept, strict=True)]
    ### END SOLUTION


# %% id="check-dropped"
# @title Check: run this cell
@blanks.check("dropped_in_order", "return a list of points")
def drops_in_order():
    made_up = pd.DataFrame({"kept": [10, 40, 60], "flops": [30, 0, 50]})
    said = "Kept 10, 40 and 60 bytes, for 30, 0 and 50 FLOPs, with a forward of 200. "
    right = [(0, 110), (0, 70), (25, 10), (40, 0)]
    seen = [tuple(point) for point in dropped_in_order(made_up, 200)]
    assert len(seen) == 4, f"{said}These are 4 points, not {len(seen)}."
    for mine, true in zip(seen, right, strict=True):
        near = all(
            abs(one - other) < 1e-9 for one, other in zip(mine, true, strict=True)
        )
        assert near, f"{said}A point is {true}, not {tuple(map(float, mine))}."


# %% id="price-figure"
def apart(points):  # nearly the same x where recomputing is free
    return {again + 1e-6 * n: kept for n, (again, kept) in enumerate(points)}


eager = apart(dropped_in_order(*wide_block("eager")))
curves = {"eager": eager, "fused": apart(dropped_in_order(fused, fused_flops))}
xlabel = "recomputed, % of the block's forward FLOPs"
title = "Cheapest tensors first: eager attention's scores fall for next to nothing"
plots.growth(curves, xlabel=xlabel, title=title, predicted=list(curves), log=False)

# %% [markdown] id="selective-text"
# **Selective recomputation** (Korthikanti et al., 2022) drops only eager attention's scores. A
# fused kernel never keeps scores, so "checkpoint attention only" is poor advice with today's
# kernels.
#
# ## Which module to wrap?
#
# Here brackets are a segment: what is inside is dropped and recomputed.
#
# ```text
# none              norm_1    attention  +    norm_2    mlp  +
# attention_only    norm_1   [attention] +    norm_2    mlp  +
# mlp_only          norm_1    attention  +    norm_2   [mlp] +
# both_modules      norm_1   [attention] +    norm_2   [mlp] +
# halves           [norm_1    attention  +]  [norm_2    mlp  +]
# per_block        [norm_1    attention  +    norm_2    mlp  +]
# ```

# %% id="choices"
remade = partial(checkpoint, use_reentrant=False)


def none(block, x):
    return Block.forward(block, x)


def attention_only(block, x):
    x = x + remade(block.attention, block.norm_1(x))
    return x + block.mlp(block.norm_2(x))


def mlp_only(block, x):
    x = x + block.attention(block.norm_1(x))
    return x + remade(block.mlp, block.norm_2(x))


def per_block(block, x):
    return remade(partial(Block.forward, block), x)


# %% [markdown] id="write-modules"
# **Write.** The two choices still missing: `both_modules` and `halves`.


# %% id="both-modules"
def both_modules(block, x):
    """Run the block with a segment around attention, and one around the MLP."""
    ### BEGIN SOLUTION
    x = x + remade(block.attention, block.norm_1(x))
    return x + remade(block.mlp, block.norm_2(x))
    ### END SOLUTION


# %% id="check-both-modules"
# @title Check: run this cell
def run_again(choice):
    """Tell whether a choice keeps the output, and which parts backward runs again."""
    torch.manual_seed(0)
    block, ran = Block(GPTConfig()), []
    for name in ("norm_1", "attention", "norm_2", "mlp"):
        part = getattr(block, name)
        part.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
    x = torch.randn(1, 4, 128, requires_grad=True)
    out = choice(block, x)
    ran.clear()
    out.sum().backward()
    again = list(ran)
    return torch.equal(out, Block.forward(block, x)), again


@blanks.check("both_modules", "return the block's output")
def wraps_both():
    equal, again = run_again(both_modules)
    assert equal, "The output is not the block's."
    right = ["mlp", "attention"]
    assert again == right, f"Backward runs {again} again, not {right}."


# %% id="halves"
def halves(block, x):
    """Run the block as two segments, up to the first sum and on to the second."""
    ### BEGIN SOLUTION
    x = remade(lambda h: h + block.attention(block.norm_1(h)), x)
    return remade(lambda h: h + block.mlp(block.norm_2(h)), x)
    ### END SOLUTION


# %% id="check-halves"
# @title Check: run this cell
@blanks.check("halves", "return the block's output")
def wraps_halves():
    equal, again = run_again(halves)
    assert equal, "The output is not the block's."
    right = ["norm_2", "mlp", "norm_1", "attention"]
    assert again == right, f"Backward runs {again} again, not {right}."


# %% [markdown] id="result-text"
# For each choice we count the activations that wait for backward, the peak of all activations
# (waiting, recomputed and temporary), and the step's FLOPs. Memory is in *units* of one block's
# input.

# %% id="result"
tokens = next(data.text_batches(2, 128))  # (batch, sequence)
unit = 2 * 128 * 128 * 4  # bytes of a block's input
CHOICES = (none, attention_only, mlp_only, both_modules, halves, per_block)


# %% id="make-gpt"
def make_gpt(choice, num_layers=8, **shape):
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(num_layers=num_layers, **shape))
    for block in gpt.blocks:
        block.forward = partial(choice, block)
    return gpt


# %% [markdown] id="write-units"
# **Write.** `in_units`. A report's `curve()` is a list of dictionaries, one per *tick* (a moment of
# the step), with the bytes of each category. `pd.DataFrame` accepts that list. `phase_starts` is a
# list of (tick, phase) pairs.


# %% id="in-units"
def in_units(report):
    """Return the units of activations when backward begins, and two peaks of the step.

    The first peak counts the columns activations, recomputed and temporary. The second
    counts only activations and recomputed.
    """
    ### BEGIN SOLUTION
    curve = pd.DataFrame(report.curve()) / unit
    kept = curve["activations"] + curve["recomputed"]
    tick = next(tick for tick, phase in report.phase_starts if phase == "backward")
    return curve["activations"][tick], (kept + curve["temporary"]).max(), kept.max()
    ### END SOLUTION


# %% id="check-in-units"
# @title Check: run this cell
@blanks.check("in_units", "return three numbers of units")
def counts_in_units():
    ticks = ((0, 0, 0), (5, 0, 3), (3, 0, 0), (4, 3, 2), (1, 0, 0))
    names = ("activations", "recomputed", "temporary")
    curve = [
        dict(zip(names, (unit * n for n in tick), strict=True)) | {"parameters": unit}
        for tick in ticks
    ]
    starts = [(0, "forward"), (2, "backward")]
    made_up = SimpleNamespace(curve=lambda: curve, phase_starts=starts)
    said = f"{', '.join(names)} are {ticks} units; backward begins at the third tick: "
    names = ("3 wait", "the peak of all is 9", "the first two peak at 7")
    for seen, right, name in zip(in_units(made_up), (3, 9, 7), names, strict=True):
        assert seen == right, f"{said}{name}, not {seen:g}."


# %% id="result-of"
# @title Measure a choice: run this cell; open it to look
Result = namedtuple("Result", "waiting peak flops gradients kept")


def result_of(gpt, context=nullcontext):
    def step():
        gpt.zero_grad()
        with context():
            loss = gpt.loss(tokens)
        loss.backward()

    waiting, peak, kept = in_units(memory.measure(step, model=gpt, warmup=0))
    with memory.flop_counter() as counter:
        step()
    gradients = [parameter.grad for parameter in gpt.parameters()]
    return Result(waiting, peak, counter.get_total_flops(), gradients, kept)


def row_of(seen, base):
    more = f"{seen.flops / base.flops - 1:+.1%}"
    return {"waiting": f"{seen.waiting:.1f}", "peak": f"{seen.peak:.1f}", "FLOPs": more}


# %% [markdown] id="predict-modules"
# Common advice says: "checkpoint attention and feed-forward *separately*; that saves another 30 to
# 40 % over checkpointing each block, at the cost of more recomputation".
#
# **Predict.** For a GPT with 16 blocks, what is the peak of `halves`, as a multiple of
# `per_block`'s?

# %% id="guess-halves"
guess = None  # times

# %% id="modules-table"
results, table = {}, {}
for depth, choices in {4: CHOICES, 16: (none, *CHOICES[-3:])}.items():
    for choice in choices:
        results[depth, choice] = seen = result_of(make_gpt(choice, depth))
        table[f"{depth} blocks", choice.__name__] = row_of(seen, results[depth, none])
ratio = results[16, halves].peak / results[16, per_block].peak
print(f"16 blocks: halves / per_block = {ratio:.2f}{beside(guess, ratio)}")
saved = {n: results[n, halves].peak / results[n, per_block].peak for n in (4, 16)}
flops = {way: results[16, way].flops / results[16, none].flops for way in CHOICES[-2:]}
print(f"4 blocks: {saved[4]:.2f}; FLOPs of 16, in plain steps: {flops[halves]:.2f} and "
      f"{flops[per_block]:.2f}")  # fmt: skip
pd.DataFrame(table).T

# %% [markdown] id="modules-read"
# Neither part of the advice holds here:
#
# - **Memory.** `halves` recomputes only one half at a time, but keeps two boundaries per block
#   instead of one. With 16 blocks that costs more.
# - **Recomputation** falls. A segment's last matmul isn't repeated, since backward doesn't need its
#   result.
#
# Wrap each norm too: outside the segment, its input and output wait.
#
# Does the advice hold if the boundaries are in the host's memory, as in chapters 07d and 10? Here
# NumPy arrays stand in for that memory. The next table shows what `halves` saves over `per_block`.
# *Kept* is the peak without temporary tensors. The last column is the FLOPs that `halves`
# recomputes, as a multiple of `per_block`'s.

# %% id="host"
KINDS = {"fused": {}, "eager": {"attention": "eager"}, "dropout": {"dropout": 0.1}}
HOST = partial(saved_tensors_hooks, lambda t: t.detach().numpy().copy(), torch.tensor)
PLACES = {"device": nullcontext, "host": HOST}


def halves_save(depth, kind, place):  # in % of per_block's, and a ratio of FLOPs
    gpts = (make_gpt(way, depth, **KINDS[kind]) for way in (none, per_block, halves))
    plain, whole, cut = (result_of(gpt, PLACES[place]) for gpt in gpts)
    again = (cut.flops - plain.flops) / (whole.flops - plain.flops)
    peak, kept = 1 - cut.peak / whole.peak, 1 - cut.kept / whole.kept
    return {"peak": 100 * peak, "kept": 100 * kept, "recomputed, times": again}


# %% id="host-table"
another = {
    f"{depth} blocks, {kind}, {place}": halves_save(depth, kind, place)
    for depth, kind, place in itertools.product((4, 16), KINDS, PLACES)
}
another = pd.DataFrame(another).T.round({"peak": 1, "kept": 1, "recomputed, times": 2})
another.rename_axis(columns="halves save, %")

# %% [markdown] id="host-read"
# With fused attention and boundaries on the host, `halves` saves as much of the *kept* bytes as the
# advice says. With dropout the last column is 1: each segment ends in a dropout, and to make its
# mask again, the last matmul has to run again too.
#
# ## Can we choose by operation?
#
# By price, we should drop the results of norms and GELU, and keep those of matmuls. But GELU and
# `up`, the MLP's first matmul, are in the same module, so wrapping modules can't separate them.
#
# Instead, make each block one segment, and *keep a few results inside it*. In forward one dispatch
# mode stores them; in the recomputation another returns them.


# %% id="name-of"
LINEAR = {(128, 384): "qkv", (128, 128): "out", (128, 512): "up", (512, 128): "down"}


def name_of(op, args):
    if op is aten.addmm.default:
        return LINEAR[tuple(args[2].shape)]  # (bias, input, weight as (in, out))
    return "attention" if "scaled_dot_product" in op.name() else ""


# %% [markdown] id="write-store"
# **Write.** `Store`'s `__torch_dispatch__`. It is called for every operation, runs the operation,
# and returns the result. If the operation's name is in the set `keep`, it also appends the detached
# result to the list `store`. A result may be a tensor or a tuple: `tree_map_only(torch.Tensor,
# torch.Tensor.detach, out)` detaches either.


# %% id="by-hand"
class Store(TorchDispatchMode):
    def __init__(self, keep, store):
        super().__init__()
        self.keep, self.store = keep, store

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        """Run `op`; store its result if `keep` has `name_of(op, args)`."""
        ### BEGIN SOLUTION
        out = op(*args, **(kwargs or {}))
        if name_of(op, args) in self.keep:  # without history, as chapter 05's alias
            self.store.append(tree_map_only(torch.Tensor, torch.Tensor.detach, out))
        return out
        ### END SOLUTION


# %% id="check-by-hand"
# @title Check: run this cell
class Counting(TorchDispatchMode):
    """Note the name of each operation that runs, in the list `ran`."""

    def __init__(self, ran):
        super().__init__()
        self.ran = ran

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ran.append(name_of(op, args))
        return op(*args, **(kwargs or {}))


@blanks.check("Store", "run each operation and return its result")
def stores_what_is_kept():
    block, x, store, ran = Block(GPTConfig()), torch.randn(1, 4, 128), [], []
    expected = block(x)
    with Counting(ran), Store({"up", "attention"}, store):
        seen = block(x)
    assert torch.equal(seen, expected), "The block's output has changed."
    times = ran.count("up")
    assert times == 1, f"`up` runs {times} times: store the result that you return."
    assert store, "Nothing is stored: `keep` has the names that name_of returns."
    assert len(store) == 2, (
        f"{len(store)} results are stored: there should be two, attention's and up's."
    )
    whole = isinstance(store[0], tuple) and store[1].shape == (4, 512)
    assert whole, "Store a result as the operation returns it, a tuple as a tuple."
    history = [t for t in tree_leaves(store) if torch.is_tensor(t) and t.grad_fn]
    assert not history, "A stored tensor has a history: detach it."


# %% [markdown] id="write-hand-out"
# **Write.** `__torch_dispatch__` of `HandOut`, which is active while the block is recomputed. For
# an operation in `keep` it returns the stored result; it runs all others.


# %% id="hand-out"
class HandOut(Store):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        """Return what `Store` stored, first in, first out; run other operations."""
        ### BEGIN SOLUTION
        if name_of(op, args) in self.keep:
            return self.store.pop(0)
        return op(*args, **(kwargs or {}))
        ### END SOLUTION


# %% id="check-hand-out"
# @title Check: run this cell
@blanks.check("HandOut", "return a stored result, or run the operation")
def hands_out_what_is_stored():
    block, x, store, ran = Block(GPTConfig()), torch.randn(1, 4, 128), [], []
    with Store({"out", "down"}, store):
        expected = block(x)
    with Counting(ran), HandOut({"out", "down"}, store):
        seen = block(x)
    again = {"out", "down"} & set(ran)
    assert not again, f"{again} ran again: return what is stored instead."
    assert {"qkv", "up"} <= set(ran), "What isn't stored must run."
    assert not store, f"{len(store)} results are left in the store: take them out."
    assert torch.equal(seen, expected), "A wrong result came out: first in, first out."
    with HandOut(set(), []):
        seen = block(x)
    assert torch.equal(seen, expected), "What isn't stored must run with its kwargs."


# %% [markdown] id="write-by-hand-block"
# `checkpoint` takes an argument `context_fn`, a function that returns both modes: the first for
# forward, the second for the recomputation.
#
# **Write.** `by_hand`, with `remade` and a store that both modes share.


# %% id="by-hand-block"
def by_hand(keep, block, x):
    """Run `Block.forward` as one segment, and keep the results named in `keep`."""
    ### BEGIN SOLUTION
    store = []
    modes = Store(keep, store), HandOut(keep, store)
    return remade(partial(Block.forward, block), x, context_fn=lambda: modes)
    ### END SOLUTION


# %% id="check-by-hand-block"
# @title Check: run this cell
def runs_of(way):
    """Count how often each named operation runs in a step of one block."""
    ran, x = [], torch.randn(1, 4, 128, requires_grad=True)
    with Counting(ran):
        way({"up", "out"}, Block(GPTConfig()), x).sum().backward()
    return {name: ran.count(name) for name in ("qkv", "out", "up", "down")}


@blanks.check(
    "by_hand",
    "run `Block.forward` on the block and x, with a function as `context_fn` that "
    "returns two modes of one store, forward's first",
)
def keeps_by_hand():
    seen, right = runs_of(by_hand), {"qkv": 2, "out": 1, "up": 1, "down": 1}
    assert seen == right, f"With `up` and `out` kept, the runs are {seen}, not {right}."
    two, x, found = [Block(GPTConfig()), Block(GPTConfig())], torch.randn(1, 4, 128), []
    for way in (Block.forward, partial(by_hand, {"up", "out"})):
        start = x.clone().requires_grad_()
        out = way(two[1], way(two[0], start))
        found += torch.autograd.grad(out.square().sum(), start)
    assert torch.equal(*found), (
        "Two blocks in a row have a wrong gradient: give each call a store of its own."
    )


# %% [markdown] id="predict-policy"
# **Predict.** Keep the results of `qkv`, attention, `out` and `up`, and recompute the norms and
# GELU. What percentage of the bytes that wait with `none` still wait? The model has 8 blocks; count
# head and loss too.

# %% id="guess-policy"
guess = None  # %

# %% id="policies"
matmuls = {"qkv", "attention", "out", "up"}
policies = {"nothing": set(), "attention": {"attention"}, "out": {"out"}}
policies |= {"qkv, up": {"qkv", "up"}, "all but down": matmuls}
policies["all matmuls"] = matmuls | {"down"}
plain, table = result_of(make_gpt(none)), {}
for name, keep in policies.items():
    results[name] = result_of(make_gpt(partial(by_hand, keep)))
    table[name] = row_of(results[name], plain)
policy = results["all but down"]
share = 100 * policy.waiting / plain.waiting
print(f"all but down: {share:.0f} % of {plain.waiting:.1f}{beside(guess, share)}")
freed = f"{100 - share:.0f} % of the waiting bytes"
print(f"freed: {freed}, for {policy.flops / plain.flops - 1:.1%} more FLOPs")
pd.DataFrame(table).T.rename_axis("kept")

# %% id="policy-seconds"
# @title A policy in seconds, as published: run this cell; open it to look
times = pd.read_csv(FOLDER / "published_times.csv").set_index("id")
titan = times.loc["llama2-13b-titan-op"]
print(f"{titan.source}, {titan.model}, {titan['count']:.0f} {titan.card},")
print(f"{titan.checkpointed}:")
print(f"FLOPs x {1 + titan.again / 3:.2f}, worked out;", end=" ")
print(f"seconds x {titan.without / titan['with']:.2f}, measured")

# %% [markdown] id="policies-read"
# If you are a little over your memory budget, try `all but down` first, since it runs no matmul
# twice.
#
# The table's last row, `all matmuls`, is a trap. The result of `down` is among the block's most
# expensive ones, but no recomputation needs it. That result is only added to the residual, and the
# sum, the next block's input, is kept anyway. **A tensor's price matters only if backward needs the
# tensor, or recomputes something from it.**
#
# ### PyTorch's own version
#
# `create_selective_checkpoint_contexts` builds the two modes from a *policy*: a function that says
# for each operation whether to save its result.


# %% [markdown] id="write-policy"
# **Write.** `by_torch`. Inside it, define a function `policy(context, op, *args, **kwargs)`. It
# returns `CheckpointPolicy.MUST_SAVE` for an operation in `keep`, and
# `CheckpointPolicy.PREFER_RECOMPUTE` for any other. As `context_fn` pass
# `partial(create_selective_checkpoint_contexts, policy)`.


# %% id="by-torch"
def by_torch(keep, block, x):
    """Do the same as `by_hand`, with PyTorch's own pair of modes."""

    ### BEGIN SOLUTION
    def policy(context, op, *args, **kwargs):
        kept = name_of(op, args) in keep
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return remade(partial(Block.forward, block), x, context_fn=contexts)
    ### END SOLUTION


# %% id="check-by-torch"
# @title Check: run this cell
@blanks.check("by_torch", "return the block's output, with a function as `context_fn`")
def keeps_by_torch():
    seen, right = runs_of(by_torch), {"qkv": 2, "out": 1, "up": 1, "down": 1}
    assert seen == right, f"With `up` and `out` kept, the runs are {seen}, not {right}."


# %% id="torch-policy"
# @title Ours beside PyTorch's: run this cell; open it to look
for name in ("qkv, up", "all but down"):
    ours, theirs = results[name], result_of(make_gpt(partial(by_torch, policies[name])))
    both = ours.gradients + theirs.gradients
    equal = all(map(torch.equal, both, 2 * plain.gradients))
    print(f"{name}: same waiting, peak, FLOPs: {ours[:3] == theirs[:3]},", end=" ")
    print(f"same gradients as none: {equal}")

# %% [markdown] id="torch-policy-read"
# PyTorch's version also handles views, in-place writes and the compiler, so use it.

# %% id="verdicts"
cases = {
    f"{case}, {of}": row for case, row in another.iterrows() for of in row.index[:2]
}
tried = {
    "saved": {case: row[case.rpartition(", ")[2]] for case, row in cases.items()},
    "recomputed": {case: row["recomputed, times"] for case, row in cases.items()},
}
hosted = another.loc["16 blocks, fused, host"]
claims.Verdicts(
    claims.Verdict("D11", "partly", "Two segments per block save that much only if the "
        "boundaries are on the host. On the device they save a little with few blocks "
        "and cost memory with many. They never recompute more.",
        f"16 blocks, host: {hosted.peak:.1f} % of the peak, {hosted.kept:.1f} % of "
        "what is kept", "counted", "host-table", tried=tried),
    claims.Verdict("C10", "shown", "Dropping norms' and GELU's results repeats no "
        "matmul and frees a good part of the memory.", f"{freed} for "
        f"{policy.flops / plain.flops - 1:.1%} more FLOPs", "counted", "policies"),
)  # fmt: skip

# %% [markdown] id="your-run-text"
# ## Your run
#
# Take `train.py` with a checkpoint around each block (chapter 05). How much memory does it cost to
# keep attention's results too, and how many FLOPs does that save?
#
# **Write.** The policy `keep_attention`. An operation's name is `str(op)`. A GPU has several
# attention kernels, and each has `attention` in its name.


# %% id="keep-attention"
def keep_attention(context, op, *args, **kwargs):
    """Save the result of an attention kernel; recompute all others."""
    ### BEGIN SOLUTION
    kept = "attention" in str(op)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
    ### END SOLUTION


# %% id="check-keep-attention"
# @title Check: run this cell
@blanks.check("keep_attention", "return a CheckpointPolicy")
def attention_is_kept():
    names = "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"
    kernels = [getattr(aten, f"_scaled_dot_product_{name}").default for name in names]
    for op in (*kernels, aten.addmm.default, aten.gelu.default):
        seen = keep_attention(None, op, torch.ones(1))
        assert isinstance(seen, CheckpointPolicy), (
            f"It returned {seen!r}, which isn't a CheckpointPolicy."
        )
        saves = seen in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
        wanted = "saved" if op in kernels else "recomputed"
        assert saves == (op in kernels), f"{op}: its result should be {wanted}."


# %% id="hidden-of"
# @title `hidden_of` of chapter 05, with a policy: run this cell; open it to look
def hidden_of(model, tokens):
    """Return the last norm's output for each token; keep attention's results too."""
    contexts = partial(create_selective_checkpoint_contexts, keep_attention)
    x = train.embedded(model, tokens)
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    return model.norm(x)


# %% id="apply"
your_run.apply("07", hidden_of=hidden_of)

# %% [markdown] id="three-problems"
# ## On paper
#
# **1.** A linear layer maps width 1024 to width 4096, in bfloat16. If you drop its result, how many
# bytes do you free per MFLOP of recomputation?
#
# <details><summary>Answer</summary>
#
# An element has 2 bytes and costs $2 \cdot 1024$ FLOPs. That is 977 bytes for each MFLOP.
# </details>
#
# **2.** A model has 32 layers of width 4096 and runs on 4096 tokens, in bfloat16. How many bytes
# does it take to keep the result of each `qkv`?
#
# <details><summary>Answer</summary>
#
# $3 \cdot 4096 \cdot 4096 \cdot 2$ bytes are 96 MiB a layer, 3 GiB in all.
# </details>
#
# **3.** A block keeps $r = 16$ units, and each of its halves keeps 8. With 12 blocks, which has the
# lower peak, `halves` or `per_block`? And with 4 blocks?
#
# <details><summary>Answer</summary>
#
# With 12 blocks, `halves` holds $24 + 8 = 32$ units and `per_block` $12 + 16 = 28$. With 4 blocks,
# `halves` holds $8 + 8 = 16$ and `per_block` $4 + 16 = 20$.
# </details>

# %% [markdown] id="end"
# ## What you can now do
#
# - Give each saved tensor a price, and say which ones to drop first.
# - Say which module to wrap.
# - Write a policy by operation with a pair of dispatch modes, and with PyTorch's contexts.
#
# The optional `07b_held_and_evicted` shows why a checkpoint may free nothing; in
# `07c_side_by_side`, the compiler and the planner choose.
