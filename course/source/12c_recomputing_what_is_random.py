# %% [markdown] id="title"
# # Recomputing what is random
#
# This companion of chapter 12 is optional: no lab and no later chapter needs it. Most large
# language models today are mixtures of experts: a router sends each token to a few out of many
# MLPs. If such a layer is checkpointed, the router runs twice, in forward and in the recomputation.
# You answer three questions:
#
# 1. What happens if the second run sends a token to a different expert, and does PyTorch notice?
# 2. What does it cost to save the routing, so that the second run repeats it?
# 3. What if you recompute nothing, and instead keep in 8 bits what autograd saves?
#
# **Budget:** 60 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
from functools import partial
from itertools import islice
from unittest.mock import patch

import pandas as pd
import torch
import transformers
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointError
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from tutorial_lib import blanks, data, memory
from tutorial_lib.instruments import segments
from tutorial_lib.guesses import beside
from tutorial_lib.models.gpt import GPT, MLP, Block, GPTConfig
from tutorial_lib.units import human_bytes

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # small steps lose by waiting for a second core
checkpoint = partial(torch_checkpoint, use_reentrant=False)

# %% [markdown] id="routing-text"
# ## Where does a token go the second time?
#
# ![In forward, noise sends six tokens to three experts, two to each. In the recomputation the noise
# is different, and tokens 2 and 6 go to other experts, so backward gets the wrong tokens' tensors.
# With the six choices saved, the recomputation has the same arrows as
# forward.](figures/12-routing.svg)
#
# A router scores each token for each expert, and chooses the experts with the best scores. If the
# scores alone decided, some experts would get most of the tokens and others hardly any. To spread
# the tokens, the router adds noise to the scores (Shazeer et al., 2017), or a bias that rises for
# experts with too few tokens (DeepSeek-V3, 2024). An expert's tokens are stored in one of two
# *layouts*:
#
# - *own size*: a tensor with as many rows as the expert has tokens;
# - *capacity*: a tensor with a fixed number of rows (GShard, 2020). Tokens that don't fit are
#   *dropped*: they skip the experts. Unused rows are ignored.


# %% id="moe"
class MoE(nn.Module):
    """Four MLPs in place of one; `choose` assigns each token an expert."""

    def __init__(self, config, choose, capacity=None):
        super().__init__()
        self.router = nn.Linear(config.d_model, 4, bias=False)
        self.experts = nn.ModuleList(MLP(config) for _ in range(4))
        self.choose, self.capacity, self.routes = choose, capacity, []

    def forward(self, x):
        tokens = x.flatten(0, 1)  # (tokens, width)
        scores = self.router(tokens).softmax(dim=-1)
        self.routes.append(self.choose(scores))  # (tokens, 1)
        gates = scores.gather(1, self.routes[-1])
        out = tokens.new_zeros(len(tokens) + 1, tokens.size(1))  # last: no token
        for number, mlp in enumerate(self.experts):
            rows = (self.routes[-1] == number).nonzero()[: self.capacity, 0]
            if self.capacity:
                rows = F.pad(rows, (0, self.capacity - len(rows)), value=-1)
            y = mlp(tokens[rows]) * gates[rows]
            out = out.index_add(0, rows % len(out), y)
        return out[:-1].view_as(x)


# %% id="choices"
def noisy(scores, generator=None):
    noise = torch.randn(scores.shape, generator=generator)
    return (scores + 0.02 * noise).topk(1).indices


def with_own_generator():
    return partial(noisy, generator=torch.Generator().manual_seed(1))


class Balancing:
    """Raise the bias of an expert that got few tokens, after each choice."""

    def __init__(self):
        self.bias = torch.zeros(4)

    def __call__(self, scores):
        expert = (scores + self.bias).topk(1).indices
        load = expert.flatten().bincount(minlength=4) / len(expert)
        self.bias = self.bias + 0.02 * (0.25 - load).sign()
        return expert


# %% [markdown] id="gradients-text"
# We take one transformer block whose MLP is a mixture of experts, and 512 tokens. As in chapter 05,
# we compare the gradients with and without a checkpoint, for all weights and the input.


# %% id="gradients"
CONFIG = GPTConfig(num_layers=1, num_heads=4, d_model=64)
x = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(0))
x = x.requires_grad_()


def plainly(function, *args, **kwargs):
    return function(*args, **kwargs)


def gradients(call, choose, capacity=None):
    torch.manual_seed(0)
    block = Block(CONFIG)
    block.mlp = MoE(CONFIG, choose(), capacity)
    loss = call(block, x).square().mean()
    found = torch.autograd.grad(loss, [x, *block.parameters()])
    return torch.cat([each.flatten() for each in found]), block.mlp.routes


# %% id="outcome"
def error(seen, wanted):
    return float((seen - wanted).norm() / wanted.norm())


def outcome(call, *setting):
    wanted, _ = gradients(plainly, *setting)
    try:
        seen, _ = gradients(call, *setting)
    except CheckpointError:
        return "CheckpointError"
    off = error(seen, wanted)
    return "equal" if off == 0 else f"off by {off:.1%}"


# %% id="waiting"
def kept_bytes(report):
    start = next(t for t, phase in report.phase_starts if phase == "backward")
    return report.curve()[start]["activations"]


def waiting(call, choose):
    """Return the bytes that wait for backward when `call` runs the block."""
    block = Block(CONFIG)
    block.mlp = MoE(CONFIG, choose(), 128)

    def step():
        loss = call(block, x * 1).square().mean()
        block.mlp.routes.clear()  # our record of the choices would keep them alive
        loss.backward()

    return kept_bytes(memory.measure(step, model=block, warmup=0))


# %% [markdown] id="predict-silent"
# We checkpoint a block with each of four routers, in both layouts. The first router takes its noise
# from PyTorch's RNG, whose state the checkpoint restores. The second does too, but its checkpoint
# has `preserve_rng_state=False`, which restores nothing. (Some recipes set this for speed, and
# Accelerate's FSDP2 plugin sets it for you: see 08b.) The third takes its noise from a
# `torch.Generator` of its own. The fourth adds a bias that the layer updates in `forward`.
#
# **Predict.** In how many of the eight cases is the gradient wrong without an error being raised?

# %% id="guess-silent"
guess = None  # of 8

# %% id="silent"
forgetful = partial(checkpoint, preserve_rng_state=False)
routers = {"PyTorch's RNG": (checkpoint, lambda: noisy)}
routers["PyTorch's RNG, not preserved"] = forgetful, lambda: noisy
routers["a generator of its own"] = checkpoint, with_own_generator
routers["a bias, updated in forward"] = checkpoint, Balancing
layouts = {"own size": None, "capacity": 128}


def outcomes(routers):
    table = {name: [outcome(*each, size) for size in layouts.values()]
             for name, each in routers.items()}  # fmt: skip
    return pd.DataFrame(table, index=list(layouts)).T


table = outcomes(routers)
silent = table.map(lambda said: said.startswith("off")).sum().sum()
print(f"{silent} of 8{beside(guess, silent)}")
table

# %% id="moved"
_, (first, second) = gradients(forgetful, lambda: noisy, 128)
dropped = (first.flatten().bincount() - 128).clamp(min=0).sum()
print(f"{(first != second).float().mean():.0%} of the tokens went elsewhere;")
print(f"{dropped} of {len(first)} were dropped in forward")

# %% [markdown] id="silent-read"
# If each expert's tensor has its own size, a different routing means different shapes, and
# PyTorch's check raises an error. With a capacity all shapes are fixed, so the check passes. The
# gradient is wrong, although only a few tokens went to another expert. The loss is right, since it
# was computed in forward, before the recomputation.
#
# `preserve_rng_state` restores only PyTorch's own RNG. It doesn't restore your generator, NumPy's,
# or a bias that `forward` updates. So don't update the bias in `forward`. Update it, and any other
# state that routing reads, after the optimizer's step.
#
# ## Save the routing
#
# It's safer to save the choice than to repeat it. `topk` makes the choice, so save what `topk`
# returns, and recompute everything else. Chapter 07 gave `create_selective_checkpoint_contexts` a
# policy; it also accepts a list of the operations whose results are saved. As its `context_fn`,
# `checkpoint` takes a function that returns these contexts.
#
# **Write.** `saving_routing`.


# %% id="saving-routing"
def saving_routing(function, *args, **options):
    """Checkpoint a function, and save what `torch.ops.aten.topk.default` returns.

    `options` go to `checkpoint`; its `context_fn` makes the contexts.
    """
    ### BEGIN SOLUTION
    operations = [torch.ops.aten.topk.default]
    contexts = partial(create_selective_checkpoint_contexts, operations)
    return checkpoint(function, *args, context_fn=contexts, **options)
    ### END SOLUTION


# %% id="check-saving-routing"
# @title Check: run this cell
@blanks.check("saving_routing", "return what the checkpointed function returns")
def repeats_the_choice():
    asked, real = [], torch_checkpoint

    def spied(function, *args, **options):
        asked.append(options)
        return real(function, *args, **options | {"use_reentrant": False})

    for name, choose in (("noise", with_own_generator), ("bias", Balancing)):
        wanted, _ = gradients(plainly, choose, 128)
        seen, routes = gradients(saving_routing, choose, 128)
        assert len(routes) == 2, "Forward ran once: nothing was recomputed."
        off = error(seen, wanted)
        assert off == 0, f"Routing by {name}: the gradient is off by {off:.1%}."
    more = waiting(saving_routing, choose) - waiting(checkpoint, choose)
    routing = sum(each.nbytes for each in torch.rand(512, 4).topk(1))
    said = f"{more} bytes more wait than in `checkpoint`; the routing has {routing}."
    assert more <= routing, said
    with patch.dict(globals(), checkpoint=spied, torch_checkpoint=spied):
        gradients(partial(saving_routing, preserve_rng_state=False), choose)
    assert asked, "`checkpoint` was not called."
    kept = asked[0].get("preserve_rng_state", True)
    assert not kept, "`options` never reach `checkpoint`: preserve_rng_state is lost."


# %% id="saved-routing"
forgetful = partial(saving_routing, preserve_rng_state=False)
saving = {name: (saving_routing, choose) for name, (_, choose) in routers.items()}
saving["PyTorch's RNG, not preserved"] = forgetful, lambda: noisy
outcomes(saving)

# %% [markdown] id="saved-routing-read"
# Now all eight gradients are right. But the table shows only one step. The recomputation still runs
# the rest of `forward`, so the bias is updated twice, like BatchNorm's statistics in chapter 12. In
# the next step, tokens may then go to other experts than without a checkpoint.
#
# **Predict.** `topk` returns a float32 value and an expert's index (8 bytes) for each token. The
# block's input has width 64, in float32. What percentage of the input's bytes does `topk`'s result
# take?

# %% id="guess-routing"
guess = None  # %

# %% id="routing-bytes"
more = waiting(saving_routing, lambda: noisy) - waiting(checkpoint, lambda: noisy)
share = 100 * more / x.nbytes
print(f"{share:.1f} % of the input's bytes{beside(guess, share)}")

# %% [markdown] id="mixtral-text"
# So saving the routing costs little, and even less in published models, which are wider. Can a
# library's own layer also get a wrong gradient without an error? Here is a small Mixtral from
# transformers, whose `router_jitter_noise` multiplies the router's input by random numbers. Its
# experts run one after another in a loop (`eager`), or together in one faster operation over all
# tokens, sorted by expert (`grouped_mm`).

# %% id="mixtral"
MIXTRAL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
MIXTRAL |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256}
MIXTRAL |= {"num_local_experts": 4, "router_jitter_noise": 0.3}
MIXTRAL["use_cache"] = False
ids = next(data.text_batches(4, 64))  # (batch, sequence)


def mixtral_gradient(experts, options=None):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**MIXTRAL, experts_implementation=experts)
    model = transformers.MixtralForCausalLM(config).train()
    if options:
        older = getattr(model, "gradient_checkpointing_enable", None)  # before 5.23
        getattr(model, "activation_checkpointing_enable", older)(options)
    loss = model(input_ids=ids, labels=ids).loss
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([each.flatten() for each in found])


# %% id="mixtral-table"
said = {}
for experts in ("eager", "grouped_mm"):
    wanted = mixtral_gradient(experts)
    for kept in (True, False):
        options = {"use_reentrant": False, "preserve_rng_state": kept}
        try:
            off = error(mixtral_gradient(experts, options), wanted)
            said[experts, f"preserved: {kept}"] = (
                f"off by {off:.1%}" if off else "equal"
            )
        except CheckpointError:
            said[experts, f"preserved: {kept}"] = "CheckpointError"
pd.Series(said).unstack(0)

# %% [markdown] id="mixtral-read"
# By default, the library preserves the RNG state, and the gradients are right. If the state isn't
# preserved, `eager` raises an error. `grouped_mm` raises none, and its gradient is wrong. Its
# sorted tokens are one tensor, whose shape doesn't depend on the routing, so the check passes.
#
# On a GPU the routing can also change for another reason. If a kernel adds in a different order the
# second time, two nearly equal scores may swap places. Saving the routing prevents that too.
#
# ## Or keep activations in 8 bits
#
# If you recompute nothing, there is no second run that could differ. A pack hook (chapter 05) may
# return anything that `unpack` can turn into a tensor, for example 8-bit numbers instead of 32-bit
# ones (ActNN, Chen et al., 2021).
#
# Cut the tensor into blocks of 64 elements. A block's *step* is its largest absolute value divided
# by 127. Divide each element by its block's step and round. The result is a whole number from -127
# to 127, which fits into one byte. Also keep each block's step, in float32. That takes $1 + 4/64$
# bytes per element.
#
# **Write.** `to_8_bits` and `from_8_bits`. A block of zeros must give zeros, not NaN.


# %% id="to-8-bits"
def to_8_bits(tensor, block=64):
    """Round to 127ths of each block's largest absolute value.

    Returns:
        Steps in int8 `(blocks, block)`, step sizes `(blocks, 1)`, and the shape.
    """
    ### BEGIN SOLUTION
    rows = tensor.reshape(-1, block)
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    return (rows / scale).round_().to(torch.int8), scale, tensor.shape
    ### END SOLUTION


# %% id="check-to-8-bits"
# @title Check: run this cell
@blanks.check("to_8_bits", "return steps, step sizes and the shape")
def rounds_to_the_nearest_step():
    numbers = torch.linspace(-1, 1, 256).view(2, 128)
    numbers[1, 3] = 100  # an outlier
    for tensor, block in ((numbers, 64), (numbers.T, 64), (torch.zeros(2, 128), 32)):
        steps, scale, shape = to_8_bits(tensor, block)
        kind = str(steps.dtype)
        assert kind == "torch.int8", f"The steps are {kind}, not int8."
        sizes = tuple(steps.shape), tuple(scale.shape), tuple(shape)
        rows = tensor.reshape(-1, block)
        right = tuple(rows.shape), (len(rows), 1), tuple(tensor.shape)
        assert sizes == right, f"Steps, sizes and shape are {sizes}, not {right}."
        off = (steps * scale - rows).abs().amax(1)
        allowed = 0.501 * rows.abs().amax(1) / 127
        few = f"Errors reach {off.tolist()}, but half a step is {allowed.tolist()}."
        assert (off <= allowed).all(), few


# %% id="from-8-bits"
def from_8_bits(packed):
    """Return the tensor that `to_8_bits` packed."""
    ### BEGIN SOLUTION
    steps, scale, shape = packed
    return (steps * scale).view(shape)
    ### END SOLUTION


# %% id="check-from-8-bits"
# @title Check: run this cell
@blanks.check("from_8_bits", "return a tensor")
def undoes_the_steps():
    steps = torch.tensor([[1, -2], [127, 0]], dtype=torch.int8)
    seen = from_8_bits((steps, torch.tensor([[0.5], [2.0]]), torch.Size([4])))
    right = [0.5, -1.0, 254.0, 0.0]
    assert seen.tolist() == right, f"You return {seen.tolist()}, not {right}."


# %% [markdown] id="hooks-text"
# The hooks in the next cell leave three kinds of tensors as they are: non-float tensors, small
# tensors, and the weights, which are in memory anyway.
#
# You can also combine these hooks with checkpoints. Hooks around a checkpoint see only the
# checkpoint's arguments (05b). So each transformer block's input is kept in 8 bits, and the block
# is recomputed from the rounded input.


# %% id="in-8-bits"
def in_8_bits(function, *args, call=plainly, weights=(), **kwargs):
    """Call a function; keep the floats that autograd saves in 8 bits."""
    keys = {memory.storage_key(w.untyped_storage()) for w in weights}

    def pack(tensor):
        own = memory.storage_key(tensor.untyped_storage()) not in keys
        fits = tensor.is_floating_point() and tensor.numel() % 4096 == 0
        return to_8_bits(tensor) if own and fits else tensor

    def unpack(kept):
        return from_8_bits(kept) if isinstance(kept, tuple) else kept

    with saved_tensors_hooks(pack, unpack):
        return call(function, *args, **kwargs)


# %% id="gpt-step"
def trained_gpt(updates=40):
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(num_layers=8, num_heads=4, d_model=64, seq_len=64))
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
    for batch in islice(data.text_batches(8, 64), updates):
        optimizer.zero_grad()
        gpt.loss(batch).backward()
        optimizer.step()
    return gpt


# %% id="ways"
gpt, tokens = trained_gpt(), next(data.text_batches(8, 64))
eight_bits = partial(in_8_bits, weights=list(gpt.parameters()))
ways = {"all kept": plainly, "8 bits": eight_bits, "checkpointed": checkpoint}
ways["checkpointed, inputs in 8 bits"] = partial(eight_bits, call=checkpoint)


def gpt_step(way):
    with segments.called_through(way, gpt.blocks):
        gpt.loss(tokens).backward()


# %% [markdown] id="predict-8-bits"
# We use a GPT of eight blocks in float32, after forty updates. A trained model has outliers, and
# one outlier makes the step of its 64-element block large.
#
# **Predict.** With 8 bits and no checkpoint, by what percentage does the gradient differ from the
# exact one?

# %% id="guess-8-bits"
guess = None  # %


# %% id="by-block"
def by_block(way):
    gpt.zero_grad()
    gpt_step(way)
    parts = [list(block.parameters()) for block in gpt.blocks]
    return [torch.cat([p.grad.flatten() for p in part]) for part in parts]


def in_bfloat16(function, *args, **kwargs):
    with torch.autocast("cpu", torch.bfloat16):
        return function(*args, **kwargs)


# %% id="ways-table"
# NBVAL_IGNORE_OUTPUT
wanted, rows, errors, off = by_block(plainly), {}, {}, {}
for name, way in {"autocast": in_bfloat16, **ways}.items():
    seen = by_block(way)
    errors[name] = dict(enumerate(map(error, seen, wanted), start=1))
    off[name] = f"{100 * error(torch.cat(seen), torch.cat(wanted)):.2f}"
    gpt.zero_grad()
    step = partial(gpt_step, way)
    report = memory.measure(step, model=gpt, warmup=0, flops=True)
    rows[name] = (
        human_bytes(kept_bytes(report)),
        str(report.peak_bytes),
        report.flops,
        off[name],
    )
columns = ["waits for backward", "peak", "FLOPs, times", "gradient off, %"]
table = pd.DataFrame(rows, index=columns).T
table["FLOPs, times"] = table["FLOPs, times"] / table["FLOPs, times"]["all kept"]
print(f"8 bits: {off['8 bits']} %{beside(guess, float(off['8 bits']))}")
print(f"autocast: {off['autocast']} %")
table["FLOPs, times"] = table["FLOPs, times"].map("{:.2f}".format)
table.drop("autocast")

# %% [markdown] id="ways-read"
# - With 8 bits, forward is unchanged, so the loss is exact. Backward uses the rounded tensors, so
#   the gradient has an error. Here it's larger than the error of bfloat16 autocast, printed above
#   the table.
# - Checkpoints keep fewer bytes than 8 bits do, and their gradients are exact, but they need more
#   FLOPs.
# - The two combined keep the fewest bytes. The gradient's error is small, since only each block's
#   input is rounded, and the block is recomputed from it in full precision. But the peak is no
#   lower than with checkpoints alone: it comes at the end of backward, when the other blocks'
#   inputs are already freed.
#
# ## What you can now do
#
# - Say when the recomputation sends tokens to other experts, and whether PyTorch's check detects
#   it.
# - Save the router's choice with a list of one operation, instead of computing it again.
# - Keep activations in 8 bits, and say how many bytes that saves and how large the gradient's error
#   is.
