# %% [markdown] id="title"
# # Record your GPU
#
# Most numbers of this course are counted, predicted or emulated, because few GPUs have been at
# hand. Yours can change that. This notebook runs a few training steps of published models on it,
# puts three figures side by side, and writes a file that you can hand in.
#
# - **predicted:** tensors without memory, a GPU's kernels;
# - **emulated:** PyTorch's own CUDA allocator on a card that is not there; no kernel ran;
# - **measured:** the same allocator on your GPU, with all that its kernels take.
#
# **Budget:** 10 minutes, 2 GiB of memory. (On a T4. Without a GPU it shows the first two figures.)

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
# Each step warms up once, is measured once, and is timed five times. A step that does not fit is a
# result too. If you stop the cell, run it again to go on.

# %% id="record"
# NBVAL_IGNORE_OUTPUT
MINE = Path("my-gpu.json")
if device.has_gpu():
    print(device.describe("cuda"))
    recorded.record_rows(SELECTION, MINE, device.pick())

# %% [markdown] id="beside-text"
# ## Side by side
#
# The table has the bytes requested at the peak. The emulated card is your GPU's model, or else an
# A100. The measured bytes exceed the emulated ones by the kernels' workspaces, above all cuDNN's.

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
# The file names your GPU, its driver and the versions of Python and PyTorch, and nothing else about
# you. The course's tests check each file before it is accepted. The next cell runs the same check:

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
# Open a pull request that adds the file under that name to `course/recorded`, or attach it to an
# issue. Chapter 10b then shows your GPU's rows next to the predicted and the emulated ones.
#
# `python -m tutorial_lib record` records all rows, in an hour on a large card. You can stop it and
# run it again, too.
