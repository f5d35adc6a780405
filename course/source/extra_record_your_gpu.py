# %% [markdown] id="title"
# # Record your GPU
#
# Most numbers in this course are counted, predicted or emulated, because we had few GPUs. You can
# add measurements from your own. This notebook runs training steps of published models on your GPU
# and writes a file that you can hand in. For each step it compares three numbers, all of them bytes
# at the peak:
#
# - **predicted:** computed for a GPU's kernels, with tensors that have no memory;
# - **emulated:** requested from PyTorch's own CUDA allocator on an emulated card, where no kernel
#   ran;
# - **measured:** requested from the same allocator on your GPU, including the kernels' workspaces.
#
# **Budget:** 10 minutes, 2 GiB of memory, on a T4. Without a GPU you see only the first two
# numbers.

# %% id="imports"
import sys
from pathlib import Path

import pandas as pd

from tutorial_lib import device
from tutorial_lib.instruments import recorded
from tutorial_lib.units import Bytes

pd.set_option("display.max_colwidth", None)  # show labels whole

# %% id="selection"
SELECTION = [
    row
    for start in ("gpt2, batch 8", "bert-base", "vit-b-16", "resnet50", "lstm")
    for row in recorded.find_rows(f"{start}, *")
    if row.recipe.label() == row.key  # no search for the largest batch
    and row.recipe.checkpointing in ("none", "per-block")
    and (row.recipe.optimizer, row.recipe.attention) == ("adamw", "sdpa")
]
print(f"{len(SELECTION)} steps, as in {SELECTION[0].key!r}")

# %% [markdown] id="record-text"
# Each step warms up once, is measured once, and is timed five times. A step that doesn't fit is
# recorded too. If you stop the cell, run it again to continue.

# %% id="record"
# NBVAL_IGNORE_OUTPUT
MINE = Path("my-gpu.json")
if device.has_gpu():
    print(device.describe("cuda"))
    recorded.record_rows(SELECTION, MINE, device.pick())

# %% [markdown] id="beside-text"
# ## Side by side
#
# The emulated card is the same model as your GPU if we have it, and an A100 otherwise. The measured
# bytes exceed the emulated bytes by the kernels' workspaces, mainly those of NVIDIA's library
# cuDNN.

# %% id="beside"
# NBVAL_IGNORE_OUTPUT
predicted = recorded.load("predicted").rows
mine = recorded.read(MINE) if MINE.exists() else recorded.Recording("no GPU here")
cards = {card.device.removeprefix("emulated "): card for card in recorded.emulated()}
card = cards.get(mine.device) or recorded.load("emulated NVIDIA A100-SXM4-80GB")
table = {}
for row in SELECTION:
    peak = predicted[row.key]["report"]["peak_bytes"]
    table[row.key] = {"predicted": str(Bytes(peak))}
    for name, gpu in {"emulated": card, "measured": mine}.items():
        found = gpu.rows.get(row.key, {})
        peak = found.get("report", {}).get("requested_bytes")
        table[row.key][name] = str(Bytes(peak)) if peak else found.get("status", "-")
print(f"emulated: {card.device}; measured: {mine.device}")
pd.DataFrame(table).T

# %% [markdown] id="hand-in-text"
# ## Hand it in
#
# The file names your GPU, its driver, and the versions of Python and PyTorch, and says nothing else
# about you. The next cell checks the file before you hand it in:

# %% id="hand-in"
# NBVAL_IGNORE_OUTPUT
if MINE.exists():
    for fault in recorded.faults(mine, recorded.load("predicted")):
        print(fault)
    print(f"Hand in {MINE} as course/recorded/{recorded.path_of(mine.device).name}")
else:
    print("There is no GPU here, so there is nothing to hand in.")

# %% id="download"
# NBVAL_IGNORE_OUTPUT
if MINE.exists() and "google.colab" in sys.modules:
    from google.colab import files

    files.download(str(MINE))

# %% [markdown] id="how"
# Open a pull request that adds the file to `course/recorded` under the name above, or attach the
# file to an issue. Chapter 10b then shows your GPU's rows next to the predicted and emulated ones.
#
# To record all the course's steps, run `python -m tutorial_lib record`. It takes an hour on a large
# card.
