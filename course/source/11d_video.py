# %% [markdown] id="title"
# # Video diffusion
#
# A video model is a diffusion transformer (companion 11c) with many more tokens: thousands for each
# second of video. You count a video's tokens, compare predictions with what others measured on an
# A100, and see what really doesn't fit: a backward pass through the decoder of the autoencoder
# (VAE).
#
# No lab and no later chapter needs this companion.
#
# **Budget:** 30 minutes, 2 GiB of memory, no GPU needed.

# %% id="imports"
import pandas as pd
import torch
from diffusers import AutoencoderKLCogVideoX, CogVideoXTransformer3DModel
from peft import LoraConfig

from tutorial_lib import blanks, memory, plots
from tutorial_lib.guesses import beside
from tutorial_lib.instruments.published.libraries import making_lora
from tutorial_lib.units import GIB

torch.set_num_threads(1)  # sums in one order

# %% [markdown] id="tokens-text"
# ## How many tokens does a video have?
#
# CogVideoX's VAE (Yang et al., 2024) turns a video into latents. Height and width shrink to an
# eighth. The first frame is encoded alone; after that, every four frames become one latent frame.
# The transformer cuts each latent frame into patches of 2 x 2, and each patch becomes a token.
#
# **Write.** `video_tokens`, two lines.


# %% id="video-tokens"
def video_tokens(frames, height, width):
    """Return the tokens of a video of `1 + 4 n` frames; sizes are in pixels."""
    ### BEGIN SOLUTION
    latent_frames = 1 + (frames - 1) // 4
    return latent_frames * (height // 16) * (width // 16)
    ### END SOLUTION


# %% id="check-video-tokens"
# @title Check: run this cell
@blanks.check("video_tokens", "return a number of tokens")
def tokens_are_right():
    cases = {(1, 64, 32): 8, (9, 64, 32): 24, (49, 480, 720): 17550}
    for case, true in cases.items():
        seen = video_tokens(*case)
        assert seen == true, (
            f"Frames, height, width = {case}: {true} tokens, not {seen}."
        )


# %% [markdown] id="depth-text"
# Six seconds of video are 49 frames, here of 480 x 720 pixels. The transformer also gets 226 text
# tokens. The next cell predicts what CogVideoX-2B's transformer keeps for backward, by number of
# blocks, if all its weights are trained in bfloat16.
#
# **Predict.** By what factor do the saved bytes of all 30 blocks fall if each block is
# checkpointed?

# %% id="guess-factor"
guess = None  # times


# %% id="depth"
def transformer(blocks=30, checkpointed=False):
    model = CogVideoXTransformer3DModel(num_layers=blocks).bfloat16().train()
    if checkpointed:
        model.enable_gradient_checkpointing()
    return model


def inputs(batch=1):
    kind = {"dtype": torch.bfloat16}
    video, text = (
        torch.randn(batch, 13, 16, 60, 90, **kind),
        torch.randn(batch, 226, 4096, **kind),
    )
    time = torch.full((batch,), 500)
    return {"hidden_states": video, "encoder_hidden_states": text, "timestep": time}


def kept(blocks, checkpointed):
    with memory.predicting():
        model = transformer(blocks, checkpointed)
        forward = lambda: model(**inputs()).sample  # noqa: E731
        return memory.saved(forward, params_of=model).num_bytes


curves, sums = {}, {}
for name, on in {"plain": False, "each block checkpointed": True}.items():
    one, two = kept(1, on), kept(2, on)
    curves[name] = {n: one + (n - 1) * (two - one) for n in (1, 10, 20, 30)}
    sums[name] = curves[name][30]
factor = sums["plain"] / sums["each block checkpointed"]
print(f"{factor:.0f} times less{beside(guess, factor)}")
plots.growth(curves, xlabel="blocks", title="What CogVideoX-2B keeps, predicted")

# %% [markdown] id="depth-read"
# The blocks are alike, and each block's input is a small part of what the block keeps. So one
# segment per block saves most of the bytes.
#
# ## Others measured it
#
# `cogvideox-factory` publishes peaks of LoRA training on an A100, in bf16 with AdamW. Latents and
# text embeddings are precomputed. The published peak is `max_memory_reserved` before validation. In
# the third row (one video, with checkpoints), loading the model set the peak, so the published
# number is only an upper bound for the step.

# %% id="measured"
# a-r-r-o-w/cogvideox-factory, README, CogVideoX-2b: videos, rank, checkpoints, GiB
ROWS = [(1, 16, False, 43.76), (1, 256, False, 45.83), (1, 16, True, 12.95)]
ROWS += [(4, 256, True, 22.02)]


def peak(batch, rank, checkpointed):
    def make_step():
        model = transformer(30, checkpointed).requires_grad_(False)
        targets = ["to_q", "to_k", "to_v", "to_out.0"]
        with making_lora():
            model.add_adapter(
                LoraConfig(r=rank, lora_alpha=rank, target_modules=targets)
            )
        learning = [p for p in model.parameters() if p.requires_grad]
        for weight in learning:
            weight.data = weight.data.float()
        optimizer, given = torch.optim.AdamW(learning), inputs(batch)

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                made = model(**given).sample
            (made.float() - given["hidden_states"]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, optimizer

    return memory.predict(make_step, release="2.13").peak_bytes / GIB  # theirs is older


table = {}
for batch, rank, on, reserved in ROWS:
    name = f"{batch} x, rank {rank}, {'checkpointed' if on else 'plain'}"
    table[name] = f"{peak(batch, rank, on):.2f}", f"{reserved:.2f}"
pd.DataFrame(table, index=["predicted, GiB", "reserved on an A100"]).T

# %% [markdown] id="measured-read"
# Our predictions are lower, because the allocator reserves more than the tensors take (chapter 02).
# Leaving out the third row, the difference is largest with checkpoints, since a recomputation
# allocates and frees large tensors of many sizes.
#
# ## The decoder in a backward pass
#
# Training compares *latents*, so it needs no backward pass through the VAE. A loss on pixels (a
# reward model, a perceptual loss, distillation of the decoder) does need one.
#
# **Predict.** Nine frames of 480 x 720 are three latent frames. How many GiB does the decoder keep
# for backward when it decodes them?

# %% id="guess-decoder"
guess = None  # GiB

# %% id="decoder"
PUBLISHED = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "latent_channels": 16}
PUBLISHED |= {"up_block_types": ("CogVideoXUpBlock3D",) * 4, "layers_per_block": 3}
PUBLISHED["block_out_channels"] = (128, 256, 256, 512)


def decoder_keeps(latent_frames, checkpointed):
    with memory.predicting():
        vae = (
            AutoencoderKLCogVideoX(**PUBLISHED).bfloat16().train().requires_grad_(False)
        )
        if checkpointed:
            vae.enable_gradient_checkpointing()
        kind = {"dtype": torch.bfloat16, "requires_grad": True}
        latents = torch.randn(1, 16, latent_frames, 60, 90, **kind)
        forward = lambda: vae.decode(latents).sample  # noqa: E731
        return memory.saved(forward, params_of=vae).num_bytes / GIB


rows = {}
for latent_frames in (1, 3):
    rows[4 * latent_frames - 3] = [
        decoder_keeps(latent_frames, on) for on in (False, True)
    ]
nine = rows[9][0]
print(f"nine frames: {nine:.0f} GiB{beside(guess, nine)}")
pd.DataFrame(rows, index=["plain, GiB", "checkpointed"]).T.round(1).rename_axis(
    "frames"
)

# %% [markdown] id="decoder-read"
# For nine frames, about a second, the decoder keeps more than the whole transformer does for six
# seconds. Checkpoints help here, too. But this decoder is causal in time: it processes a few latent
# frames at a time, and caches the last of them for the next few. A recomputation that reads a
# changed cache gives wrong gradients (`14b_gallery`, case 34). So compare gradients before you
# train:


# %% id="same"
def gradient(checkpointed):
    torch.manual_seed(0)
    sizes = {"block_out_channels": (8, 8, 8, 8), "norm_num_groups": 2}
    vae = AutoencoderKLCogVideoX(**PUBLISHED | sizes | {"layers_per_block": 1}).double()
    if checkpointed:
        vae.train().enable_gradient_checkpointing()
    latents = torch.randn(1, 16, 5, 4, 4).double().requires_grad_()
    vae.decode(latents).sample.square().sum().backward()
    return latents.grad


plain, again = gradient(False), gradient(True)
print(f"off by {((again - plain).norm() / plain.norm()).item():.0%}")

# %% [markdown] id="same-read"
# The gradients are the same. This decoder takes the cache as an argument, returns a new one, and
# changes nothing in place, so the second run reads what the first one read.
#
# ## On paper
#
# **1.** How many tokens does a video of 81 frames of 480 x 832 have?
#
# <details><summary>Answer</summary>
#
# $21 \cdot 30 \cdot 52 = 32760$.
# </details>
#
# **2.** Tokens grow with the product of frames, height and width. If a video gets twice as long, by
# what factors do the saved bytes and attention's time grow?
#
# <details><summary>Answer</summary>
#
# The bytes double (a fused kernel doesn't keep scores), and attention takes four times as long.
# </details>
#
# ## What you can now do
#
# - Count a video's tokens, and say how much memory checkpoints save in the transformer.
# - Say why a loss on pixels does not fit, and check that checkpoints in the decoder keep the
#   gradients right.
