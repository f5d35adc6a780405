# %% [markdown] id="title"
# # Diffusion U-Nets
#
# A [tutorial](https://github.com/Gaurav14cs17/GenAI) (`08_systems_and_optimization`) calls
# `unet.enable_gradient_checkpointing()` and says: "now training uses ~40 % less memory". Its table
# for an 80 GB A100 makes two kinds of claims:
#
# | U-Net | largest batch | memory saved |
# |---|---|---|
# | Stable Diffusion 2.1 | 4 → 12 | 62 % |
# | SDXL | 1 → 4 | 68 % |
#
# The tutorial's code measures one forward and backward in float32, without an optimizer. The inputs
# are four *latents* of 64 x 64. A latent is a compressed image; here an autoencoder makes it from
# an image of 512 x 512 pixels.
#
# You find out what the call wraps, and under which settings the batches and percentages are right.
# Then you train a latent diffusion model that draws digits.
#
# **Budget:** 70 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import statistics
from collections import Counter
from functools import partial
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import pandas as pd
import torch
from torch import nn
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, UNet2DConditionModel
from diffusers import optimization as schedules
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput
from diffusers.training_utils import EMAModel
from sklearn.neighbors import KNeighborsClassifier
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from tutorial_lib import blanks, claims, data, memory, plots
from tutorial_lib.instruments import recorded, segments
from tutorial_lib.checks import assert_same_training
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import MIB

torch.set_num_threads(1)  # small steps gain nothing from a second core

# %% [markdown] id="levels-text"
# ## Where are the bytes?
#
# ![A U-Net's residual blocks and transformer blocks are segments. Skips cross from the way down to
# the way up and stay in memory. Convolutions at both ends, samplers, one residual block and the
# layers around each transformer block are in no segment.](figures/11-unet-segments.svg)
#
# On its way down, a U-Net halves the side of the image and adds channels at each level. On its way
# up it undoes both, and each level also reads a *skip*, a result from the way down. Stable
# Diffusion 2.1 works on latents of 96 x 96 (images of 768 pixels).
#
# **Predict.** The next figure shows nine levels: four on the way down (1 to 4), the middle (5), and
# four on the way up (6 to 9). In which level does autograd save the most bytes?

# %% id="guess-level"
guess = None  # level, 1 to 9


# %% id="levels"
with memory.predicting():
    loss, unet = Recipe("sd21-unet").make_loss()
    kept = memory.saved(loss, params_of=unet)
names = [*(f"down_blocks.{i}" for i in range(4)), "mid_block",
         *(f"up_blocks.{i}" for i in range(4))]  # fmt: skip
sides, levels = (96, 48, 24, 12, 12, 12, 24, 48, 96), {}
for name, side in zip(names, sides, strict=True):
    weights = sum(p.nbytes for p in unet.get_submodule(name).parameters())
    saved = [row.num_bytes for row in kept.rows if row.module.startswith(name)]
    level = {"parameters": weights, "activations": sum(saved)}
    levels[f"{name}, {side} x {side}"] = level
activations = [level["activations"] for level in levels.values()]
most = activations.index(max(activations)) + 1
print(f"most activations: level {most}{beside(guess, most)}")
title = "SD 2.1's U-Net, one image of 768 pixels, float32, predicted"
plots.opposite_bars(levels, title=title)

# %% [markdown] id="read-levels"
# Most parameters are in the deep levels, where latents are 12 or 24 wide. Most activations are in
# the top levels, 1 and 9. Level 9 has more of them, because on the way up each level has one more
# residual block, and also reads skips. So the top levels determine what checkpointing saves, and
# the deep levels determine what an optimizer costs. SDXL is different: its deep levels have most of
# the activations too.
#
# ## What does `enable_gradient_checkpointing()` wrap?
#
# We run the same layout with fewer channels. A hook counts how often each layer runs in one step. A
# layer that runs once keeps its activations; a layer that runs twice is recomputed. The next table
# lists the layers that run once.

# %% id="runs"
narrow = {"block_out_channels": (32, 32, 64, 64), "attention_head_dim": 4,
          "cross_attention_dim": 32}  # fmt: skip
small_loss, small = Recipe("sd21-unet", 2, seq=8, size=16, overrides=narrow).make_loss()
small.enable_gradient_checkpointing()
runs, once = Counter(), Counter()
for name, layer in small.named_modules():
    if not list(layer.children()):
        layer.register_forward_pre_hook(lambda *_, name=name: runs.update([name]))
small_loss().backward()
for name in (name for name, times in runs.items() if times == 1):
    words = [word for word in name.split(".") if not word.isdigit()]
    once[".".join(words[:3])] += 1
print(f"{once.total()} of {len(runs)} layers run once:")
pd.DataFrame({"layers": once}).sort_index()

# %% [markdown] id="read-runs"
# Every transformer block is a segment, and so is every residual block except the middle's first.
# The table's layers are in no segment.
#
# ## How much of a whole step?
#
# Now we look at recorded predictions of the whole step, with PyTorch's default AdamW. Here the
# segments are residual blocks and *whole* attention layers: transformer blocks, with the layers
# around them.
#
# The next table shows by what percentage checkpointing lowers the step's peak. It has three models,
# in float32 (`fp32`) or under autocast (`bf16-amp`). Attention is fused (`sdpa`), or eager
# (`eager`), which keeps its scores.
#
# **Predict.** By what percentage does checkpointing lower SDXL's peak at batch 1, in float32 with
# fused attention?

# %% id="guess-sdxl"
guess = None  # %

# %% id="full-step"
table, saves = recorded.load("predicted").rows, {}


def predicted_step(*choice, **choices):
    return table[Recipe(*choice, **choices).label()]["report"]


kernels = "sdpa", "eager"
models = ("sd15-unet", 4), ("sd21-unet", 4), ("sdxl-unet", 1), ("sdxl-unet", 4)
for model, precision, kernel in product(models, ("fp32", "bf16-amp"), kernels):
    choices = {"precision": precision, "attention": kernel}
    plain = predicted_step(*model, **choices)["peak_bytes"]
    after = predicted_step(*model, **choices, checkpointing="per-block")["peak_bytes"]
    saves["{}, batch {}".format(*model), f"{precision}, {kernel}"] = 1 - after / plain
xl = 100 * saves["sdxl-unet, batch 1", "fp32, sdpa"]
print(f"SDXL, batch 1: {xl:.0f} % less{beside(guess, xl)}")
pd.Series(saves).unstack().map("{:.0%}".format)

# %% [markdown] id="read-full-step"
# "About 40 % less" is right for SD 2.1 at batch 4, in float32 with fused attention. No setting of
# the table saves 62 % of SD 2.1's peak, or 68 % of SDXL's. Eager attention comes closest, since
# activations are then a larger share of the peak. With 8-bit optimizer states, that share would be
# larger still.
#
# So we also recorded settings with 8-bit states, and with the library's call. For each model, the
# next table shows the six settings that save the most.

# %% id="grid"
grids = {model: recorded.tried(model) for model in ("sd21-unet", "sdxl-unet")}
best = {}
for model, grid in grids.items():
    rows = pd.DataFrame(grid)[["saved"]].nlargest(6, "saved").round(1)
    best[model] = rows.rename(index=lambda label: label.partition(", ")[2])
saved = pd.DataFrame({model: grid["saved"] for model, grid in grids.items()})
own = {"size": 64, "checkpointing": "library-switch", "optimizer": "adamw-8bit"}
call = {}
for kernel, batch in product(kernels, (4, 15)):
    label = Recipe("sd21-unet", batch, attention=kernel, **own).label()
    call[f"{kernel}, batch {batch}"] = f"{saved['sd21-unet'][label]:.0f} %"
spread = f"{saved['sdxl-unet'].min():.0f} to {saved['sdxl-unet'].max():.0f} %"
print(f"SD 2.1 with latents of 64 x 64, the call: {call}; SDXL, a step: {spread}")
pd.concat(best)

# %% [markdown] id="read-grid"
# With 8-bit states and eager attention, SDXL reaches the tutorial's 68 %.
#
# SD 2.1 reaches the tutorial's 62 % in float32 with 8-bit states and fused attention, on 15 latents
# of 64 x 64 (`size 64`).
#
# The tutorial measured its "~40 % less" without an optimizer, forward and backward alone. How much
# does `enable_gradient_checkpointing()` save there?

# %% id="source-pass"
source = {}
with memory.predicting():
    for kernel, way in product(kernels, ("none", "library-switch")):
        loss, unet = Recipe("sd21-unet", 4, size=64, attention=kernel).make_loss()
        with segments.applied(unet, way):
            step = lambda loss=loss: loss().backward()  # noqa: E731
            report = memory.measure(step, model=unet, warmup=0)
        source[kernel, way] = report.peak_bytes
plain, switched = ([source[k, w] for k in kernels] for w in ("none", "library-switch"))
by_source = [1 - less / more for more, less in zip(plain, switched, strict=True)]
dict(zip(kernels, map("{:.0%} less".format, by_source), strict=True))

# %% [markdown] id="read-source-pass"
# So "~40 % less memory" is right with eager attention, but not with fused attention, today's
# default.
#
# In the table of whole steps, checkpointing lowered SDXL's peak at batch 1 with fused attention by
# **nothing, to the byte**. Why?

# %% id="sdxl-peaks"
ledgers = {}
for optimizer in ("adamw", "adamw-fused"):
    for way in ("none", "per-block"):
        report = predicted_step("sdxl-unet", 1, checkpointing=way, optimizer=optimizer)
        ledgers[f"{optimizer}, {way}"] = report["at_peak"]
title = "SDXL's U-Net, one image of 1024 pixels, float32, at the peak of the step"
plots.ledger_bars(ledgers, title=title, cards_gib=(40, 80), predicted=list(ledgers))

# %% [markdown] id="read-peaks"
# A step has two peaks (chapter 01), one in forward and backward, and one in the update. Forward and
# backward hold parameters, states and activations. The update holds parameters, states, gradients
# and, with PyTorch's default AdamW on a GPU, a temporary copy of the parameters. SDXL has 2.6
# billion parameters and here only one image, so the update's peak is higher. Checkpointing lowers
# only the other peak, so it saves nothing here. In such a case, first lower the update's peak, with
# fused AdamW, 8-bit states, or fewer trainable parameters (chapter 10).
#
# ## Which batch fits?
#
# Parameters, gradients and AdamW's two states take the same memory for every batch. The rest is for
# images. To find out how many images fit, we tried larger and larger batches on an *emulated* A100
# until PyTorch's own allocator refused one.
#
# **Predict.** SD 2.1 trains at 768 pixels in float32, with fused attention and without
# checkpointing. What is the largest batch that fits on an 80 GB A100?

# %% id="guess-batch"
guess = None  # images

# %% id="refused"
rows, largest = recorded.load("emulated NVIDIA A100-SXM4-80GB").rows, {}
for what in ("sd21-unet, fp32, adamw-fused", "sdxl-unet, bf16-amp, adamw"):
    start = what.replace("unet,", "unet, largest batch,")
    for key, row in rows.items():
        if key.startswith(start) and not key.endswith("GiB"):
            how = key.removeprefix(start).lstrip(", ") or "plain"
            largest[what, how] = row["micro_batch"]
on_80 = largest["sd21-unet, fp32, adamw-fused", "plain"]
print(f"SD 2.1, plain: {on_80} images{beside(guess, on_80)}")
pd.DataFrame({"largest batch": largest})

# %% [markdown] id="read-largest-batch"
# The tutorial's batches for SD 2.1 are 4 without checkpointing and 12 with it. With eager attention
# at 768 pixels, both batches are a little too large for the emulated A100. (With latents of 64 x
# 64, both fit.) But as the tutorial says, checkpointing makes the largest batch three times as
# large. Fused attention without checkpointing allows a larger batch than eager attention with
# checkpointing. And SDXL's batch of 4, for which the tutorial needs checkpointing, fits without it
# under autocast.
#
# ## A trainer that draws
#
# ![An image goes through the frozen encoder to a latent. Noise is added. The checkpointed U-Net
# reads it with the words and predicts the noise. The loss is backpropagated through the U-Net
# alone; the optimizer updates it, and the average follows.](figures/11-latent-step.svg)
#
# We build Stable Diffusion's training step at a small size, from diffusers' parts. The images are
# scikit-learn's handwritten digits, enlarged to 32 x 32. First we train the autoencoder, which
# makes latents of 8 x 8. Its loss is the error of the decoded image, plus a small penalty that
# pulls the latents toward a normal distribution (`kl`).

# %% id="autoencoder"
images, labels = data.digits(32)
images = torch.tanh(4 * images)  # sharper edges
torch.manual_seed(0)
vae = AutoencoderKL(
    in_channels=1, out_channels=1, latent_channels=2, block_out_channels=(8, 16, 16),
    down_block_types=["DownEncoderBlock2D"] * 3, norm_num_groups=4,
    up_block_types=["UpDecoderBlock2D"] * 3, mid_block_add_attention=False,
)  # fmt: skip

# %% id="train-autoencoder"
# NBVAL_IGNORE_OUTPUT
optimizer = AdamW(vae.parameters(), lr=4e-3)
schedule = schedules.get_cosine_schedule_with_warmup(optimizer, 10, 100)
for _ in range(100):
    x = images[torch.randint(len(images), (16,))]
    posterior = vae.encode(x).latent_dist
    error = F.mse_loss(vae.decode(posterior.sample()).sample, x)
    optimizer.zero_grad()
    (error + 1e-6 * posterior.kl().mean()).backward()
    optimizer.step()
    schedule.step()
print(f"mean squared error {error.item():.3f}")

# %% [markdown] id="parts-text"
# Diffusers' noise scheduler adds noise of variance 1, and expects latents of about that variance.
# So Stable Diffusion multiplies its latents by 0.18215, which divides them by their standard
# deviation. In our latents, each channel has its own mean and standard deviation. So
# `denoising_loss` subtracts the mean and divides by the deviation, channel by channel.
#
# The U-Net reads which digit to draw as text, from `encoder_hidden_states`. We have only ten words.
# A frozen text encoder would always return the same ten outputs for them, so we replace it with ten
# fixed vectors.
#
# `EMAModel` keeps an *exponential moving average* of the weights: after each update the average
# moves toward the new weights, by a smaller share as training goes on. At the end we draw with the
# average.
#
# `update` needs three kinds of random numbers: the noise, the timesteps (how much noise is added),
# and which images, about nine in ten, keep their text. It draws these numbers for the whole
# effective batch and then splits them, so accumulation doesn't change them.

# %% id="parts"
betas = {"beta_start": 0.00085, "beta_end": 0.012}  # Stable Diffusion's
noising = DDPMScheduler(beta_schedule="scaled_linear", **betas)
generator = torch.Generator().manual_seed(0)
prompts = 3 * torch.randn(10, 1, 32, generator=generator)  # (word, token, width)


def make():
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8, in_channels=2, out_channels=2, block_out_channels=(32, 32),
        layers_per_block=1, norm_num_groups=8, mid_block_type=None,
        cross_attention_dim=32, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    optimizer = AdamW(unet.parameters(), lr=4e-3, fused=True)
    return unet, optimizer, EMAModel(unet.parameters(), decay=0.98)


# %% id="latents"
some = vae.eval().requires_grad_(False).encode(images[:256]).latent_dist.mode()
mean, deviation = some.mean((0, 2, 3), keepdim=True), some.std((0, 2, 3), keepdim=True)

# %% [markdown] id="write-denoising"
# **Write.** `denoising_loss`: encode, add noise, run the U-Net, and return the error.


# %% id="denoising-loss"
def denoising_loss(unet, pixels, words, noise, times):
    """Return the mean squared error of the noise that the U-Net predicts.

    Clean latents are `vae.encode(pixels).latent_dist.mode()`, minus `mean`, divided
    by `deviation`, without gradients. The U-Net sees
    `noising.add_noise(clean, noise, times)`, with `encoder_hidden_states=words`.
    """
    ### BEGIN SOLUTION
    with torch.no_grad():  # mode(), not sample(): draws nothing
        clean = (vae.encode(pixels).latent_dist.mode() - mean) / deviation
    noisy = noising.add_noise(clean, noise, times)
    seen = unet(noisy, times, encoder_hidden_states=words).sample
    return F.mse_loss(seen, noise)
    ### END SOLUTION


# %% id="check-denoising-loss"
# @title Check: run this cell
@blanks.check("denoising_loss", "return a loss")
def is_right_by_hand():
    trained = torch.full((2, 2, 8, 8), 3.0, requires_grad=True)
    posterior = SimpleNamespace(mode=lambda: trained * 1, sample=lambda: trained * 9)
    asked = {}

    def encode(_, return_dict=True):
        return AutoencoderKLOutput(posterior) if return_dict else (posterior,)

    encoder = SimpleNamespace(encode=encode)

    def silent(sample, timestep, encoder_hidden_states, return_dict=True):
        asked.update(x=sample, times=timestep, words=encoder_hidden_states)
        nothing = torch.zeros_like(sample, requires_grad=True)
        return UNet2DConditionOutput(nothing) if return_dict else (nothing,)

    times, words = torch.tensor([10, 900]), torch.randn(2, 1, 32)
    kept = noising.alphas_cumprod[times]
    known = {"vae": encoder, "mean": 1.0, "deviation": 2.0}
    for noise in (torch.zeros(2, 2, 8, 8), torch.full((2, 2, 8, 8), 2.0)):
        with patch.dict(globals(), known):
            loss = denoising_loss(silent, torch.ones(2, 1, 32, 32), words, noise, times)
        level = noise.mean().item()
        clean = asked["x"][:, 0, 0, 0] - (1 - kept) ** 0.5 * level
        clean = [round(number, 3) for number in (clean / kept**0.5).tolist()]
        said = f"With mode 3, mean 1 and deviation 2, clean latents are {clean}, not 1."
        assert clean == [1, 1], said
        assert not asked["x"].requires_grad, "The frozen encoder's graph is kept."
        assert torch.equal(asked["times"], times), "The U-Net gets the wrong times."
        assert torch.equal(asked["words"], words), "The U-Net gets the wrong words."
        said = f"A U-Net that predicts 0 for noise {level:g} has a loss of {loss:.3f}."
        assert loss == level**2, said
        assert loss.requires_grad, "The loss has no graph: only `clean` needs none."


# %% [markdown] id="write-update"
# **Write.** The rest of `update`. Micro-batches may differ in length; the loss is the mean over all
# images. `ema.step` takes the U-Net's parameters.


# %% id="update"
def update(unet, optimizer, ema, pixels, digits, num=1):
    """Do one update in `num` micro-batches, then `ema.step`; return the update's loss.

    Zipped, `pieces` are the arguments of `denoising_loss` after the U-Net, in order.
    """
    noise = torch.randn(len(pixels), 2, 8, 8)
    times = torch.randint(noising.config.num_train_timesteps, digits.shape)
    has_word = torch.rand(len(pixels), 1, 1) > 0.1
    pieces = [v.chunk(num) for v in (pixels, has_word * prompts[digits], noise, times)]
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    total = 0.0
    for piece in zip(*pieces, strict=True):
        loss = denoising_loss(unet, *piece) * len(piece[0]) / len(pixels)
        loss.backward()
        total += loss.item()
    optimizer.step()
    ema.step(unet.parameters())
    return total
    ### END SOLUTION


# %% id="check-update"
# @title Check: run this cell
@blanks.check("update", "return the update's loss")
def updates_once():
    unet, averaged = nn.Linear(1, 1, bias=False), []
    nn.init.ones_(unet.weight)
    pixels = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0]).view(5, 1)
    ema = SimpleNamespace(
        step=lambda weights: averaged.append(next(iter(weights)).item())
    )

    def squared(unet, pixels, words, noise, times):
        return unet(pixels).square().mean()

    calls, back = [], []
    unet.register_forward_pre_hook(lambda *_: calls.append(1))
    unet.weight.register_hook(lambda _: back.append(len(calls)))
    weight, per_weight = 1.0, pixels.square().mean().item()
    with patch.dict(globals(), denoising_loss=squared):
        for num in (1, 2, 2):
            digits = torch.zeros(5, dtype=torch.long)
            for seen in (averaged, calls, back):
                seen.clear()
            loss = update(
                unet, SGD(unet.parameters(), lr=0.01), ema, pixels, digits, num
            )
            said = f"num={num}: call backward for each micro-batch before the next."
            assert back == [*range(1, num + 1)], said
            right = weight**2 * per_weight
            said = f"num={num}, 5 images: the loss is {loss:.3f}, not {right:.3f}."
            assert abs(loss - right) < 1e-4, said
            weight -= 0.01 * 2 * weight * per_weight
            off = abs(unet.weight.item() - weight)
            said = f"num={num}: a weight is {unet.weight.item():.4f}, not {weight:.4f}."
            assert off < 1e-5, said
            times = len(averaged)
            assert times == 1, (
                f"num={num}: the average moved {times} times in an update, not once."
            )
            said = "The average moved before the weights did."
            assert averaged[0] == unet.weight.item(), said


# %% [markdown] id="same-text"
# Does the U-Net learn the same with checkpointing and accumulation? A U-Net normalizes channels
# within one image, not over the batch, and the random numbers are those of the effective batch. So
# accumulation changes only the order of a sum. Checkpointing changes nothing; on a CPU, not even a
# bit.


# %% id="same"
def checkpointed(unet, *others, **choices):
    unet.enable_gradient_checkpointing()
    return update(unet, *others, **choices)


window = {"pixels": images[:64].clone(), "digits": labels[:64].clone()}
plain = partial(update, **window)
assert_same_training(plain, partial(checkpointed, **window), make=make, bitwise=True)
assert_same_training(plain, partial(checkpointed, **window, num=4), make=make)

# %% id="trainer-peaks"
rows = {}
for num, step in product((1, 4), (update, checkpointed)):
    unet, optimizer, ema = make()
    whole = partial(step, unet, optimizer, ema, **window, num=num)
    report = memory.measure(whole, model=unet, optimizer=optimizer)
    rows[f"{step.__name__}, num={num}"] = {"peak": report.peak_bytes} | report.at_peak
in_mib = pd.DataFrame(rows).T / MIB
in_mib.loc[:, in_mib.max() >= 0.05].T.round(1).rename_axis("MiB")

# %% [markdown] id="read-trainer-peaks"
# Both techniques lower the activations. With micro-batches, the peak holds more gradients, because
# their sum stays in memory between micro-batches. `parameters` are the U-Net's and the
# autoencoder's. `inputs` are the images and **the average, one more copy of the U-Net's weights**.
# No technique of this course makes that copy smaller. (It's used once per update, so you can keep
# it in the host's memory.)
#
# Now we train, with checkpointing and two micro-batches. There is time for only a few updates, so
# the U-Net sees only the 30 images of each digit that are closest to the digit's mean. For
# comparison: a model that always predicts zero noise has a loss of 1.

# %% id="typical"
typical = []
for digit in range(10):
    (rows,) = torch.where(labels == digit)
    distances = (images[rows] - images[rows].mean(0)).flatten(1).norm(dim=1)
    typical.append(rows[distances.topk(30, largest=False).indices])
typical = torch.cat(typical)

# %% id="train"
# NBVAL_IGNORE_OUTPUT
unet, optimizer, ema = make()
schedule = schedules.get_constant_schedule_with_warmup(optimizer, 20)
torch.manual_seed(1)
losses = []
for _ in range(200):
    rows = typical[torch.randint(len(typical), (32,))]
    loss = checkpointed(unet, optimizer, ema, images[rows], labels[rows], num=2)
    losses.append(loss)
    schedule.step()
means = {n: statistics.mean(losses[n - 20 : n]) for n in range(20, 201, 20)}
words = {"xlabel": "updates", "ylabel": "loss", "title": "Loss, mean of 20 updates"}
plots.training_curves({"both techniques": means}, **words)

# %% [markdown] id="sample-text"
# Does a low loss mean good pictures? To draw, we start with pure noise and, step by step, remove
# the noise that the U-Net predicts. *Guidance* makes drawings clearer: the difference between the
# predictions with and without the word counts three times.
#
# A nearest-neighbor classifier then reads the drawings of three models: the untrained U-Net, the
# U-Net after the last update (*raw*), and the average.


# %% id="sample"
@torch.no_grad()
def draw(unet, words, steps=10):
    scheduler = DDIMScheduler.from_config(noising.config, clip_sample=False)
    scheduler.set_timesteps(steps)
    x = torch.randn(len(words), 2, 8, 8, generator=torch.Generator().manual_seed(1))
    for t in scheduler.timesteps:
        with_word = unet(x, t, encoder_hidden_states=words).sample
        without = unet(x, t, encoder_hidden_states=0 * words).sample
        guided = without + 3 * (with_word - without)
        x = scheduler.step(guided, t, x).prev_sample
    return vae.decode(x * deviation + mean).sample.clamp(-1, 1)


# %% id="samples"
# NBVAL_IGNORE_OUTPUT
asked = torch.arange(50) % 10
drawn = {"untrained": draw(make()[0], prompts[asked])}
drawn["raw"] = draw(unet, prompts[asked])
ema.copy_to(unet.parameters())
drawn["averaged"] = draw(unet, prompts[asked])
rows = {"most typical": images[typical[::30]]}
rows |= {name: pictures[:10] for name, pictures in drawn.items()}
rows["again"] = drawn["averaged"][10:20]
plots.image_rows(rows, title="Digits 0 to 9: from the data, and drawn")

# %% id="training-verdict"
reader = KNeighborsClassifier(1).fit(images.flatten(1), labels)
read = {name: reader.predict(pictures.flatten(1)) for name, pictures in drawn.items()}
shares = {name: float((found == asked.numpy()).mean()) for name, found in read.items()}
print("mean of the last 50 losses below 0.2:", statistics.mean(losses[-50:]) < 0.2)
print("untrained, at most three of ten are read as asked:", shares["untrained"] <= 0.3)
print("raw and averaged, at least seven of ten are:",
      min(shares["raw"], shares["averaged"]) >= 0.7)  # fmt: skip

# %% [markdown] id="frozen-encoder"
# At the published size, the frozen encoder may set the peak of the whole step. Companion
# [11b](11b_images_and_speed.ipynb) shows such a step.
#
# ## Verdicts

# %% id="verdicts"
sd, sdxl = grids.values()
called = {step: saved for step, saved in sd["saved"].items() if "switch" in step}
called |= {
    f"the source's pass, {k}": 100 * s for k, s in zip(kernels, by_source, strict=True)
}
predicted = {"how": "predicted", "device": "CUDA kernels", "cell": "grid"}
claims.Verdicts(
    claims.Verdict("E06", "holds if", "Its shares are right for the source's own "
        "latent size, in float32 with 8-bit states: the first at batch 4 with eager "
        "attention, the second at batch 15 with the fused kernel, and nearly with "
        "eager. An A100 fits many more images of that size than the table says, but "
        "fewer of 768 pixels with eager attention and float32 states.",
        ", ".join(f"{step}: {saves}" for step, saves in call.items()),
        tried={**sd, "saved by the call": called}, **predicted),
    claims.Verdict("E07", "holds if", "68 % is right for eager attention and 8-bit "
        "states. With fused attention and PyTorch's AdamW, the saving is far less, and "
        "under autocast, batch 4 needs no checkpointing.",
        f"a step saves {spread}",
        tried=sdxl, **predicted),
    claims.Verdict("E10", "built", "A latent diffusion trainer with a frozen encoder "
        "in the step and a checkpointed U-Net trains as the plain one does, learns, "
        "and needs less memory.", f"{in_mib.peak.iloc[0]:.1f} MiB; both techniques: "
        f"{in_mib.peak.iloc[-1]:.1f} MiB", "counted", "trainer-peaks"))  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Say where a U-Net's bytes are and what `enable_gradient_checkpointing()` wraps.
# - Find the settings under which a published table is right, or show that there are none.
# - Before you lower a peak, find out whether backward or the update sets it.
# - Train a latent diffusion model so that the micro-batch size changes only the memory.
