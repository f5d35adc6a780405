# %% [markdown] id="title"
# # Images and speed
#
# This companion of chapter 11 is optional: no lab and no later chapter needs it. You compare
# segments on two U-Nets, find out how large an image may be and what an autoencoder costs, and
# measure how many images a second your GPU processes.
#
# **Budget:** 45 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import contextlib
import statistics
from functools import partial
from itertools import product

import pandas as pd
import torch
from diffusers.training_utils import EMAModel
from torch.utils.checkpoint import checkpoint

from tutorial_lib import claims, device, memory, plots
from tutorial_lib.instruments import recorded, segments
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.units import GIB, Bytes

# %% [markdown] id="segments-text"
# ## Which segments suit which U-Net?
#
# You can choose your own segments by replacing a module's `forward`, as in chapter 05. We cut
# Stable Diffusion 2.1 in three ways: into chapter 11's nine levels, into residual blocks and
# *whole* attention layers ("blocks"), and by the library's call, `enable_gradient_checkpointing()`.
# The next table predicts how much memory one image takes, besides parameters and gradients.


# %% id="through"
@contextlib.contextmanager
def through(modules):
    """Within the context, run modules in `checkpoint(..., use_reentrant=False)`."""
    for module in modules:
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    try:
        yield
    finally:
        for module in modules:
            del module.forward  # its class's forward is back


# %% id="bench"
levels = [*(f"down_blocks.{i}" for i in range(4)), "mid_block",
          *(f"up_blocks.{i}" for i in range(4))]  # fmt: skip
an_image = {}
with memory.predicting():
    loss, unet = Recipe("sd21-unet", 16).make_loss()
    for p in unet.parameters():
        p.grad = torch.zeros_like(p)  # as when accumulating
    ways = {
        "none": contextlib.nullcontext(),
        "levels": through([unet.get_submodule(name) for name in levels]),
        "blocks": segments.applied(unet, "per-block"),
        "the library's call": segments.applied(unet, "library-switch"),
    }
    for name, way in ways.items():
        with way:
            report = memory.measure(lambda: loss().backward(), model=unet, warmup=0)
        added = report.peak_bytes - report.baseline_bytes
        an_image[name] = str(Bytes(added / 16))
pd.DataFrame({"per image": an_image})

# %% [markdown] id="sdxl-text"
# The coarsest segments, the nine levels, need more memory than the others. They keep next to
# nothing, only the levels' inputs. But while the last level is recomputed, all of its activations
# are in memory at once. "Blocks" need less memory than the library's call, because they include the
# layers that the call leaves out.
#
# Do "blocks" need less than the call in every U-Net? The next cell compares the two on SDXL, with
# one image of 1024 x 1024 pixels. From recorded predictions, it prints how much memory backward
# needs besides parameters and states. Most of that is gradients, which take the same memory in
# both.

# %% id="bench-sdxl"
rows = recorded.load("predicted").rows
for way in ("per-block", "library-switch"):
    report = rows[Recipe("sdxl-unet", 1, checkpointing=way).label()]["report"]
    print(f"{way:<14} {Bytes(report['phases']['backward'] - report['baseline_bytes'])}")

# %% [markdown] id="sizes-text"
# On SDXL, the library's call needs less memory than "blocks", because one attention layer of SDXL
# holds two to ten transformer blocks. "Blocks" recomputes them all at once; the library's call
# recomputes one at a time.
#
# ## How large may the image be?
#
# Twice the side means four times the pixels, and sixteen times the *pairs* of pixels. A fused
# attention kernel keeps a few numbers for each pixel. Eager attention also keeps the scores, one
# number for each pair.
#
# **Predict.** With eager attention, by what factor do SD 2.1's saved bytes grow if an image's side
# grows from 512 to 1024 pixels?

# %% id="guess-factor"
guess = None  # times


# %% id="image-sizes"
def saved_bytes(side, attention):  # eight pixels to a latent
    with memory.predicting():
        recipe = Recipe("sd21-unet", size=side // 8, attention=attention)
        loss, unet = recipe.make_loss()
        return memory.saved(loss, params_of=unet).num_bytes


sides = (256, 512, 768, 1024)
fused = {side: saved_bytes(side, "sdpa") for side in sides}
eager = {side: saved_bytes(side, "eager") for side in sides}
factor = eager[1024] / eager[512]
print(f"fused: {fused[1024] / fused[512]:.1f} times")
print(f"eager: {factor:.1f} times{beside(guess, factor)}")
curves = {"fused attention": fused, "eager attention": eager}
plots.growth(curves, xlabel="side of the image in pixels (both axes logarithmic)",
             predicted=list(curves),
             title="SD 2.1's U-Net, saved for one image, float32")  # fmt: skip

# %% [markdown] id="read-sizes"
# The fused line is straight: four times the bytes for four times the pixels. The eager line bends
# upwards: for small images, most of the memory holds numbers for single pixels, and for large
# images, scores for pairs of pixels.
#
# So with fused attention, one number describes what this U-Net keeps: its bytes per pixel. From
# that number we can compute how large an image fits on a card:

# %% id="largest-image"
states = 16 * Recipe("sd21-unet").num_parameters  # parameters, gradients, two states
per_pixel = fused[1024] / 1024**2
side = int(((80 * GIB - states) / per_pixel) ** 0.5) // 64 * 64
print(f"{per_pixel / 1024:.2f} KiB per pixel; 80 GiB fit one image of {side} x {side}")

# %% [markdown] id="frozen-text"
# Because the image's size matters so much, Stable Diffusion trains on latents: 64 x 64 x 4 values
# instead of 512 x 512 x 3.
#
# ## What does the frozen autoencoder cost?
#
# The trainer of chapter 11's tutorial freezes the autoencoder only `if use_checkpointing`, but it
# always encodes under `no_grad`. Is either precaution enough by itself? The next cell encodes an
# image of 512 x 512 pixels in three ways: with trainable weights, with `requires_grad_(False)`, and
# under `no_grad`.
#
# **Predict.** With trainable weights, how many GiB does the encoder keep for backward?

# %% id="guess-frozen"
guess = None  # GiB

# %% id="frozen"
rows = {}
with memory.predicting():
    encoder, image = Recipe("sd-vae").make_model(), torch.randn(1, 3, 512, 512)
    for way in ("trainable", "frozen", "no_grad"):
        encoder.requires_grad_(way == "trainable")
        gradients = torch.set_grad_enabled(way != "no_grad")
        with memory.watch(way, model=encoder) as report, gradients:
            latent = encoder.encode(image).latent_dist.sample()
        most = Bytes(report.peak_bytes - report.baseline_bytes)
        rows[way] = {"peak": str(most), "left behind": str(report.leaked_bytes)}
        if way == "trainable":
            print(f"{report.leaked_bytes}{beside(guess, report.leaked_bytes / GIB)}")
        del latent
pd.DataFrame(rows).T

# %% [markdown] id="read-frozen"
# Frozen weights are enough, and so is `no_grad`: nothing is saved for backward, and only a short
# peak is left. If the autoencoder is trainable by mistake, it keeps gigabytes for gradients that no
# optimizer uses.
#
# ## The whole step at the published size
#
# Next we predict chapter 11's training step at the published size. It trains Stable Diffusion 2.1
# on eight images of 768 x 768 pixels, with fused AdamW, a checkpointed U-Net, and the weights'
# moving average (EMA) on the GPU. The autoencoder runs *inside* the step, frozen and under
# `no_grad`.
#
# **Predict.** At the step's peak, how many GiB does the frozen autoencoder's encoding take?

# %% id="guess-encoder"
guess = None  # GiB


# %% id="published-step"
def make_step():
    recipe = Recipe("sd21-unet", 8, optimizer="adamw-fused")
    loss, unet = recipe.make_loss()
    unet.enable_gradient_checkpointing()
    encoder = Recipe("sd-vae").make_model().requires_grad_(False)
    optimizer, average = recipe.make_optimizer(unet), EMAModel(unet.parameters())
    pixels = torch.randn(8, 3, 768, 768)

    def step():
        with torch.no_grad():
            encoder.encode(pixels).latent_dist.mode()
        loss().backward()  # of random latents of that size
        optimizer.step()
        optimizer.zero_grad()
        average.step(unet.parameters())

    return step, unet, optimizer


report = memory.predict(make_step)
encoding = report.at_peak["temporary"] / GIB
print(f"the encoder's: {encoding:.1f} GiB{beside(guess, encoding)}")
report

# %% [markdown] id="read-published"
# With the U-Net checkpointed, the peak is **not the U-Net's**. It comes before the U-Net's forward
# (the report calls that phase `zero`), while the encoder processes images of 768 x 768. The
# encoder's tensors are freed one after the other, so the report calls them `temporary`.
#
# There are three fixes. With `vae.enable_slicing()` the encoder takes one image at a time, and the
# peak is then in the U-Net's backward. Smaller micro-batches lower both peaks. If the latents are
# computed once, before training, the encoder isn't in the step at all.
#
# ## Images a second
#
# The tutorial promises "2.7 times the throughput" for a transformer of 50 layers that goes from
# batch 4 to a checkpointed batch of 12. It uses the same two batches for SD 2.1's U-Net. Can either
# model process 2.7 times as many samples *a second*?
#
# For that, a step with 12 samples may take only 11 % longer than a step with 4, since 3 / 1.11 is
# 2.7. But the larger step does more than three times the work: it has three times the samples, and
# runs each block's forward twice. We count that work:


# %% id="throughput-flops"
def flops(model, way):
    with memory.predicting():
        loss, built = Recipe(model).make_loss()
        with segments.applied(built, way):
            run = memory.measure(lambda: loss().backward(), warmup=0, flops=True)
    return run.flops


ratio = {}
for model, way in (("transformer-50", "per-block"), ("sd21-unet", "library-switch")):
    ratio[model] = 3 * flops(model, way) / flops(model, "none")
    print(f"{model}: three times the batch takes {ratio[model]:.1f} times the FLOPs;")
    print(f"a busy GPU then does {3 / ratio[model]:.2f} times the samples per second")

# %% [markdown] id="batch-text"
# Does the larger batch fit? Take a GPU on which a plain step with 4 samples just fits. Does a step
# with 12 samples fit there too, if each block is checkpointed? For the transformer of 50 layers,
# the next cell predicts both peaks with fused AdamW, in two settings: fused attention under
# autocast to bfloat16, and eager attention in float32.

# %% id="threefold"
peaks, batches = {}, {"4, plain": (4, "none"), "12, checkpointed": (12, "per-block")}
for kernel, precision in (("sdpa", "bf16-amp"), ("eager", "fp32")):
    shape = {"attention": kernel, "precision": precision, "optimizer": "adamw-fused"}
    steps = {name: Recipe("transformer-50", num, **shape, checkpointing=way).make_step
             for name, (num, way) in batches.items()}  # fmt: skip
    peaks[f"{kernel}, {precision}"] = {
        name: memory.predict(step).peak_bytes for name, step in steps.items()
    }
peaks = pd.DataFrame(peaks).T
share = peaks["12, checkpointed"] / peaks["4, plain"]
faster = {model: 3 / times for model, times in ratio.items()}
speed = f"{min(faster.values()):.2f} to {max(faster.values()):.2f} times the samples"
speed += " per second"
needed = f"need {share.min():.0%} to {share.max():.0%} of what 4 need"
print(f"12, checkpointed, {needed}; a busy GPU does {speed}. Peaks in GiB, predicted:")
(peaks / GIB).round(1)

# %% [markdown] id="busy"
# Three times the batch fits. But a GPU that is already busy at batch 4 processes fewer samples a
# second at a checkpointed batch of 12. Is yours busy? The next cell, which needs a GPU, measures SD
# 2.1's training step at growing batches, with and without the library's call.


# %% id="on-a-gpu"
# NBVAL_IGNORE_OUTPUT
def reading(num, way, **choices):
    recipe = Recipe("sd21-unet", num, checkpointing=way, **choices)
    step, model, optimizer = recipe.make_step("cuda")
    report = memory.measure(step, model=model, optimizer=optimizer, repeats=5)
    speed = num / statistics.median(report.step_seconds or [float("nan")])
    return {"peak": str(report.peak_bytes), "images per second": round(speed, 2)}


speeds, ways = {}, ("none", "library-switch")
if torch.cuda.is_available():
    small = {"size": 32, "optimizer": "adamw-8bit"}
    large = {"size": 64, "optimizer": "adamw-fused"}
    choices = device.pick_by_tier(cpu={}, small_gpu=small, large_gpu=large)
    for num, way in product((1, 2, 4, 8, 12, 16), ways):
        try:
            speeds[num, way] = reading(num, way, **choices)
        except torch.OutOfMemoryError:
            speeds[num, way] = {"peak": "does not fit"}
        torch.cuda.empty_cache()
pd.DataFrame(speeds).T

# %% [markdown] id="read-speed"
# (The table is empty without a GPU.) Compare the rows (12, `library-switch`) and (4, `none`): does
# batch 12 process the promised 2.7 times as many images a second? If images per second still grow
# with the batch, the smaller batch didn't keep the GPU busy.

# %% id="verdict-throughput"
fits = {name: 3 if part <= 1 else 1 for name, part in share.items()}  # times the batch
claims.Verdicts(
    claims.Verdict("E02", "partly", "Three times the batch fits if the blocks need far "
        "more than the logits. It costs more than three times the arithmetic, so a "
        "busy GPU gets slower; only a GPU that idled at the small batch could gain.",
        f"12, checkpointed, {needed}; {speed} when busy",
        "computed", "threefold", tried={"largest batch": fits, "throughput": faster}),
)  # fmt: skip

# %% [markdown] id="end"
# ## What you can now do
#
# - Say how a U-Net's memory grows with the image, for each kind of attention kernel.
# - Notice when a model that should be frozen isn't.
# - Find the smallest batch that keeps your GPU busy.
