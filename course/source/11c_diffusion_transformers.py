# %% [markdown] id="title"
# # Diffusion transformers
#
# From 2024 on, most new image models are transformers: Stable Diffusion 3 and 3.5, Flux, PixArt,
# Sana. Like chapter 11's U-Net they learn to remove noise from latents, but they have neither
# levels nor skips. You find out where their bytes are, what `enable_gradient_checkpointing()`
# leaves in memory, and which step fits which card. Then you write such a model's loss, and check
# that checkpointing and accumulation don't change its training.
#
# No lab and no later chapter needs this companion. Read chapter 11 first.
#
# **Budget:** 60 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
from collections import Counter
from functools import cache, partial
from types import SimpleNamespace

import pandas as pd
import torch
from diffusers import SD3Transformer2DModel
from diffusers.models.transformers import transformer_sd3 as sd3
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from tutorial_lib import blanks, data, memory, plots
from tutorial_lib.checks import assert_same_training
from tutorial_lib.guesses import beside
from tutorial_lib.instruments import segments
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB, Bytes

torch.set_num_threads(1)  # small steps gain nothing from a second core

# %% [markdown] id="block-text"
# ## What is in a block?
#
# ![Latents are cut into patches, one token each. Blocks follow one another, all of one width; each
# is a segment. Time and a summary of the text go to every block's modulation. Only the layers that
# cut and join patches, and those that read time and text, are in no
# segment.](figures/11c-mmdit-segments.svg)
#
# A *diffusion transformer* (DiT; Peebles and Xie, 2023) cuts the latents into patches of 2 x 2, and
# each patch becomes a token. The timestep says how much noise there is, and the text says what to
# draw. For each image, one vector `c` summarizes both. Each block reads `c` in its *adaptive layer
# norm* (adaLN):
#
# ```text
# (shift, scale, gate) twice = Linear(SiLU(c))       six vectors for each image
# x = x + gate · attention(norm(x) · (1 + scale) + shift)
# x = x + gate · MLP(norm(x) · (1 + scale) + shift)      with the second three
# ```
#
# The first line's linear layer is the block's *modulation*.
#
# **Write.** `run_block`, the three lines above. In a diffusers block, the modulation is
# `block.norm1.linear`, attention is `block.attn`, the MLP is `block.ff`, and `block.norm2` serves
# as both norms, which have no weights. The modulation returns shift, scale, gate, shift, scale,
# gate, in this order. Give each of the six the shape `(batch, 1, width)`, so that it is broadcast
# over the tokens.


# %% id="run-block"
def run_block(block, x, c):
    """Run a DiT block: x is (batch, tokens, width), and c is (batch, width)."""
    ### BEGIN SOLUTION
    rows = block.norm1.linear(F.silu(c))[:, None].chunk(6, dim=-1)
    shift, scale, gate, shift_2, scale_2, gate_2 = rows
    x = x + gate * block.attn(block.norm2(x) * (1 + scale) + shift)
    return x + gate_2 * block.ff(block.norm2(x) * (1 + scale_2) + shift_2)
    ### END SOLUTION


# %% id="check-run-block"
# @title Check: run this cell
@blanks.check("run_block", "return a tensor shaped like x")
def runs_as_diffusers_does():
    torch.manual_seed(0)
    block = sd3.SD3SingleTransformerBlock(64, 4, 16)  # width, heads, width of a head
    zeros = sd3.SD3SingleTransformerBlock(64, 4, 16)
    zeros.load_state_dict(block.state_dict())
    for weight in zeros.ff.parameters():
        nn.init.zeros_(weight)
    x, c = torch.randn(2, 9, 64), torch.randn(2, 64)
    for part, of in (
        ("With attention alone", zeros),
        ("With attention and MLP", block),
    ):
        seen, right = run_block(of, x, c), of(x, c)
        assert seen.shape == x.shape, (
            f"x has shape {tuple(x.shape)}, but you return {seen.shape}."
        )
        assert seen.requires_grad, "The tensor that you return has no graph."
        off = ((seen - right).norm() / right.norm()).item()
        assert off < 1e-5, f"{part}, you are {off:.1%} away from diffusers' result."


# %% [markdown] id="predict-modulation"
# Let the width be $d$. In a block, attention has four matrices of $d \times d$, and the MLP has
# $8 d^2$ parameters.
#
# **Predict.** What percentage of a block's parameters belongs to the modulation?

# %% id="guess-modulation"
guess = None  # %


# %% id="modulation"
def by_layer(model, kept, parts):
    """Return each part's bytes: of its parameters, and of what autograd keeps."""
    found = {}
    for name, prefixes in parts.items():
        starts = tuple(f"{prefix}." for prefix in prefixes)
        weights = (
            p.nbytes for n, p in model.named_parameters() if n.startswith(starts)
        )
        rows = (row for row in kept.rows if f"{row.module}.".startswith(starts))
        saved = (row.num_bytes for row in rows)
        found[name] = {"parameters": sum(weights), "activations": sum(saved)}
    return found


with memory.predicting():
    block = sd3.SD3SingleTransformerBlock(1152, 16, 72)  # DiT-XL/2, 256 tokens
    x, c = torch.randn(8, 256, 1152), torch.randn(8, 1152)
    kept = memory.saved(lambda: block(x, c), params_of=block)
layers = {"modulation": ["norm1.linear"], "attention": ["attn"], "MLP": ["ff"]}
found = by_layer(block, kept, layers)
rest = kept.num_bytes - sum(part["activations"] for part in found.values())
found["norms, gates"] = {"parameters": 0, "activations": rest}
whole = sum(part["parameters"] for part in found.values())
share = found["modulation"]["parameters"] / whole
print(f"modulation: {share:.0%} of the parameters{beside(guess, 100 * share)}")
title = "A block of DiT-XL/2, 8 images, float32, predicted"
plots.opposite_bars(found, title=title)

# %% [markdown] id="read-modulation"
# The modulation has a third of the parameters, and almost no activations: it runs once per image,
# not once per token. So checkpointing saves nothing in the modulation. But its scales and gates
# *multiply* large tensors, and autograd keeps those large tensors (*norms, gates* in the figure).
#
# ## Where are the bytes?
#
# A block of Stable Diffusion 3 has two streams, one for image tokens and one for text tokens
# (*MMDiT*). Each stream has its own layers, and attention runs over both. Stable Diffusion 3.5
# Medium has 24 blocks of width 1536. The first thirteen have a second attention, over image tokens
# only. The next cell predicts the published transformer's memory, for an image of 1024 x 1024
# pixels (4096 tokens) and its text (333 tokens).
#
# **Predict.** In this transformer, how many times as much does the heaviest block keep for backward
# as the lightest?

# %% id="guess-flat"
guess = None  # times


# %% id="depth"
def saved_by(name, way="none"):
    with memory.predicting():
        loss, model = Recipe(name).make_loss()
        with segments.applied(model, way):
            return model, memory.saved(loss, params_of=model)


medium, kept = saved_by("sd35-medium")
blocks = [[f"transformer_blocks.{i}"] for i in range(24)]
each = by_layer(medium, kept, dict(enumerate(blocks)))
sizes = [block["activations"] for block in each.values()]
flat = max(sizes) / min(sizes)
print(f"heaviest over lightest: {flat:.1f}{beside(guess, flat)}")

# %% id="depth-figure"
parts = {"before": ["pos_embed", "time_text_embed", "context_embedder"]}
for i in range(0, 24, 3):
    parts[f"blocks {i + 1} to {i + 3}"] = [name for (name,) in blocks[i : i + 3]]
parts |= {"after": ["norm_out", "proj_out"]}
found = by_layer(medium, kept, parts)
title = "SD 3.5 Medium, one image of 1024 pixels, float32, predicted"
plots.opposite_bars(found, title=title)

# %% [markdown] id="read-depth"
# Every block keeps about the same, and parameters are spread evenly too. So chapter 06's rule for
# equal blocks holds: one segment per block.
#
# ## What does the switch wrap?
#
# The *switch* is the call `enable_gradient_checkpointing()`. A layer that runs once in a step keeps
# its activations; a layer that runs twice is recomputed.
#
# **Write.** `count_runs`, which returns how often each layer runs in one `step()`, by name. A layer
# is a module without children. `register_forward_pre_hook` returns a handle, and `handle.remove()`
# removes the hook.


# %% id="count-runs"
def count_runs(model, step):
    """Return how often each layer runs in one step, as a `Counter` by name."""
    runs = Counter()
    ### BEGIN SOLUTION
    handles = []
    for name, layer in model.named_modules():
        if not list(layer.children()):
            hook = partial(lambda name, *_: runs.update([name]), name)
            handles.append(layer.register_forward_pre_hook(hook))
    step()
    for handle in handles:
        handle.remove()
    ### END SOLUTION
    return runs


# %% id="check-count-runs"
# @title Check: run this cell
@blanks.check("count_runs", "count the runs of each layer in a Counter")
def counts_layers_in_one_step():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    x, steps = torch.ones(2, 4), []

    def step():
        steps.append(model[1](model[1](model[0](x))))

    runs = dict(count_runs(model, step))
    assert len(steps) == 1, f"`step` was called {len(steps)} times, not once."
    right = {"0": 1, "1.0": 2, "1.1": 2}
    assert "1" not in runs, "Module 1 has children, so it isn't a layer."
    assert runs == right, f"The layers ran {right} times, but you count {runs}."
    more = count_runs(model, step)
    before = dict(more)
    step()
    assert more == before, (
        "After the step, the hooks are still there and keep counting."
    )


# %% [markdown] id="predict-outside"
# Here are two small models with the published layouts. The small Stable Diffusion 3.5 has four
# blocks. The small Flux has two blocks with two streams, then three with one stream, where text and
# image tokens are one sequence.
#
# **Predict.** With the switch on, how many of the small Stable Diffusion's 130 layers run once?

# %% id="guess-outside"
guess = None  # layers


# %% id="outside"
narrow = {"num_attention_heads": 2, "attention_head_dim": 16,
          "joint_attention_dim": 32, "pooled_projection_dim": 32}  # fmt: skip
four = {"num_layers": 4, "dual_attention_layers": (0, 1),
        "caption_projection_dim": 32}  # fmt: skip
five = {"num_layers": 2, "num_single_layers": 3, "axes_dims_rope": (4, 6, 6)}
tables = {}
for name, layout in (("sd35-medium", four), ("flux-dev", five)):
    recipe = Recipe(name, 2, seq=8, size=16, overrides=narrow | layout)
    loss, model = recipe.make_loss()
    with segments.applied(model, "library-switch"):
        runs = count_runs(model, lambda loss=loss: loss().backward())
    once = [layer for layer, times in runs.items() if times == 1]
    marked = beside(guess, len(once)) if name == "sd35-medium" else ""
    print(f"{name}: {len(once)} of {len(runs)} layers run once{marked}")
    tables[name] = pd.Series(Counter(layer.split(".")[0] for layer in once))
pd.DataFrame(tables).fillna(0).astype(int)

# %% [markdown] id="read-outside"
# Only the ends run once: the layers that read patches, timestep and text, and those that write
# patches. Every block is a segment, modulation included. So the switch leaves two things in memory:
# the blocks' inputs (the *boundaries*) and the activations of the ends.
#
# **Write.** `boundaries`: the bytes of all blocks' inputs, for one image. Each block has two
# inputs, image tokens and text tokens, and both stay in memory until backward. Flux's one-stream
# blocks get the same two inputs, and join them inside. Ignore `c`, which is small.
#
# `config` is a dict. The width is its `num_attention_heads` times its `attention_head_dim`. Flux
# has `num_layers` two-stream blocks and `num_single_layers` one-stream blocks; Stable Diffusion's
# `config` lacks the key `num_single_layers`.


# %% id="boundaries"
def boundaries(config, tokens, num_bytes=4):
    """Return the bytes that blocks keep for one image; `tokens` is image plus text."""
    ### BEGIN SOLUTION
    width = config["num_attention_heads"] * config["attention_head_dim"]
    blocks = config["num_layers"] + config.get("num_single_layers", 0)
    return blocks * tokens * width * num_bytes
    ### END SOLUTION


# %% id="check-boundaries"
# @title Check: run this cell
@blanks.check("boundaries", "return a number of bytes")
def has_the_bytes_of_all_blocks():
    narrow = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 3}
    for more, options, right in (
        ({}, {}, 3 * 10 * 16 * 4),
        ({}, {"num_bytes": 2}, 3 * 10 * 16 * 2),
        ({"num_single_layers": 5}, {}, 8 * 10 * 16 * 4),
    ):
        seen = boundaries(narrow | more, 10, **options)
        said = f"{narrow | more}, 10 tokens, {options}: {seen!r} bytes, not {right}."
        assert seen == right, said


# %% id="left"
_, left = saved_by("sd35-medium", "library-switch")
by_formula = boundaries(medium.config, 4096 + 333)
ends = found["before"]["activations"] + found["after"]["activations"]
rows = {"plain": kept.num_bytes, "with the switch": left.num_bytes,
        "boundaries, by your formula": by_formula, "ends": ends}  # fmt: skip
print(
    f"boundaries and ends: {(by_formula + ends) / left.num_bytes:.0%} of what is left"
)
pd.Series({name: str(Bytes(num)) for name, num in rows.items()})

# %% [markdown] id="fits-text"
# ## Which step fits which card?
#
# Predicting a step of Flux's 57 blocks is slow, but there are only two kinds of blocks, so we
# predict three small models:
#
# ```text
# A B       one block of each kind
# A A B     minus the first line: what one more A adds
# A B B     minus the first line: what one more B adds
# ```
#
# The total is linear in the numbers of blocks, as long as the peak stays at the same moment of the
# step.


# %% id="line"
BLOCKS = {"sd35-medium": (13, 11), "flux-dev": (19, 38)}  # of each kind


@cache
def at_peak(name, first, second, **choices):
    layout = {"num_layers": first, "num_single_layers": second}
    if name == "sd35-medium":
        dual = tuple(range(first))
        layout = {"num_layers": first + second, "dual_attention_layers": dual}
    recipe = Recipe(name, overrides=layout, optimizer="adamw-fused", **choices)
    return memory.predict(recipe.make_step).at_peak


def by_line(name, blocks, **choices):
    one, first, second = (
        at_peak(name, *counts, **choices) for counts in ((1, 1), (2, 1), (1, 2))
    )
    m, n = (count - 1 for count in blocks)
    return {
        kind: few + m * (first[kind] - few) + n * (second[kind] - few)
        for kind, few in one.items()
    }


# %% [markdown] id="predict-flux"
# Now we predict both published models, on one image of 1024 pixels. In Stable Diffusion 3.5 Medium
# we train all weights, under autocast to bfloat16, with fused AdamW. In Flux.1-dev, which has 11.9
# billion parameters, the weights are bfloat16 and frozen, and we train LoRA matrices of rank 16
# (chapter 10). Latents and text embeddings were computed beforehand, so the autoencoder and the
# text encoders are not on the card.
#
# **Predict.** Flux's weights take 22.2 GiB. With the switch, how many GiB does its step need?

# %% id="guess-flux"
guess = None  # GiB

# %% id="fits-medium"
ways, steps = {"plain": "none", "switch": "library-switch"}, {}
for way, strategy in ways.items():
    choices = {"precision": "bf16-amp", "checkpointing": strategy}
    steps[f"SD 3.5, {way}"] = by_line("sd35-medium", (13, 11), **choices)

# %% id="fits-flux"
for way, strategy in ways.items():
    choices = {"precision": "bf16", "lora_rank": 16, "checkpointing": strategy}
    steps[f"Flux, LoRA, {way}"] = by_line("flux-dev", (19, 38), **choices)
needs = sum(steps["Flux, LoRA, switch"].values()) / GIB
print(f"Flux with the switch: {needs:.1f} GiB{beside(guess, needs)}")
title = "One image of 1024 pixels, at the peak of the step"
plots.ledger_bars(steps, title=title, cards_gib=(24, 48), predicted=list(steps))

# %% [markdown] id="read-fits"
# Without checkpointing, most of Flux's peak is activations. The switch removes nearly all of them,
# so mostly frozen weights are left. The step is then slightly too large for a 24 GiB card, but with
# weights in 8 or 4 bits (companion 01b) it fits.
#
# In Stable Diffusion 3.5 the switch also removes nearly all activations, but the peak falls by much
# less than in Flux. With the switch, the peak is at the end of backward, when all gradients are in
# memory along with the weights and AdamW's states. To lower that peak, use 8-bit states (01b) or
# LoRA (chapter 14).

# %% [markdown] id="trainer-text"
# ## Is it the same training?
#
# Now we build a small transformer from diffusers' class for Stable Diffusion 3, with two blocks of
# width 64. Digits of 8 x 8 pixels replace latents, and each pixel is a token. As in chapter 11, one
# token of text tells the model which digit to draw, and ten fixed vectors replace a text encoder.
# The digit's vector is also the model's summary of the text.
#
# Unlike chapter 11, but like Stable Diffusion 3 and Flux, we mix latents and noise along a straight
# line (*rectified flow*): `(1 - share) * latents + share * noise`. The model predicts the line's
# direction, `noise - latents`.

# %% id="models"
latents, digits = data.digits()  # (1797, 1, 8, 8)
prompts = 3 * torch.randn(10, 1, 32, generator=torch.Generator().manual_seed(0))


def make():
    torch.manual_seed(0)
    model = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=1, out_channels=1, num_layers=2,
        num_attention_heads=4, attention_head_dim=16, caption_projection_dim=64,
        joint_attention_dim=32, pooled_projection_dim=32, pos_embed_max_size=8,
        qk_norm="rms_norm",
    )  # fmt: skip
    return model, AdamW(model.parameters(), lr=4e-3, fused=True)


# %% [markdown] id="write-flow"
# **Write.** `flow_loss`: mix latents and noise by each image's share, predict, and compare with the
# line's direction. Only for the mixing, reshape `share` to `(batch, 1, 1, 1)`.


# %% id="flow-loss"
def flow_loss(model, latents, noise, share, words):
    """Return the model's mean squared error against noise minus latents.

    It predicts `model(noisy, words, words[:, 0], 1000 * share).sample`.
    """
    ### BEGIN SOLUTION
    part = share.view(-1, 1, 1, 1)
    noisy = (1 - part) * latents + part * noise
    seen = model(noisy, words, words[:, 0], 1000 * share).sample
    return F.mse_loss(seen, noise - latents)
    ### END SOLUTION


# %% id="check-flow-loss"
# @title Check: run this cell
@blanks.check("flow_loss", "return a loss")
def is_right_by_hand():
    asked, one = {}, torch.ones(1, requires_grad=True)

    def echo(hidden_states, encoder_hidden_states, pooled_projections, timestep,
             return_dict=True):  # fmt: skip
        asked.update(x=hidden_states, words=encoder_hidden_states,
                     summary=pooled_projections, times=timestep)  # fmt: skip
        seen = one * hidden_states
        return SimpleNamespace(sample=seen) if return_dict else (seen,)

    ones, share, words = (
        torch.ones(2, 1, 8, 8),
        torch.tensor([1 / 16, 0.5]),
        prompts[:2],
    )
    for noise, mixed, by_hand in ((1, share, 0.564453125), (0, 1 - share, 3.001953125)):
        seen = flow_loss(echo, (1 - noise) * ones, noise * ones, share, words)
        of = f"Latents of {1 - noise}, noise of {noise}, shares of 1/16 and 1/2"
        found = asked["x"].flatten(1)[:, 0].tolist()
        assert found == mixed.tolist(), f"{of}: the mixture is {found}."
        told = asked["times"].tolist()
        assert told == [62.5, 500], (
            f"The model is told the times {told}, not 62.5, 500."
        )
        assert torch.equal(asked["words"], words), "The model gets the wrong words."
        assert torch.equal(asked["summary"], words[:, 0]), (
            "The summary is not words[:, 0]."
        )
        said = f"{of}: a model that returns what it sees has a loss of {by_hand}"
        assert seen == by_hand, f"{said}, not {seen:.4f}."
        assert seen.requires_grad, "The loss has no graph."


# %% id="update"
def update(model, optimizer, latents, digits, num=1):
    """Do one update in `num` equal micro-batches; return its loss."""
    noise, share = torch.randn(latents.shape), torch.randn(len(latents)).sigmoid()
    # guidance compares predictions with and without text: one image in ten gets none
    words = prompts[digits] * (torch.rand(len(latents), 1, 1) > 0.1)
    optimizer.zero_grad()
    total = 0.0
    pieces = (tensor.chunk(num) for tensor in (latents, noise, share, words))
    for piece in zip(*pieces, strict=True):
        loss = flow_loss(model, *piece) / num
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def checkpointed(model, *others, **choices):
    model.enable_gradient_checkpointing()
    return update(model, *others, **choices)


# %% id="same"
window = {"latents": latents[:64].clone(), "digits": digits[:64].clone()}
plain, both = partial(update, **window), partial(checkpointed, **window, num=4)
assert_same_training(plain, partial(checkpointed, **window), make=make, bitwise=True)
assert_same_training(plain, both, make=make)

# %% [markdown] id="end"
# On this CPU checkpointing doesn't change a single bit. Accumulation changes only the order of a
# sum.
#
# ## What you can now do
#
# - Say where a diffusion transformer's parameters and activations are, and why its modulation has
#   almost no activations.
# - Tell from a model's layout what `enable_gradient_checkpointing()` leaves in memory.
# - Predict a step of many equal blocks from three small models, and say when that is allowed.
# - Train a diffusion transformer with a loop that takes less memory and changes nothing else.
