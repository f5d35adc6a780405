# %% [markdown] id="title"
# # Published measurements: how far off are we?
#
# The memory in this course is counted, predicted or emulated. How near is that to a real GPU? This
# companion of chapter 10 compares it with peaks that other people measured on real GPUs and
# published with their conditions. It reads them from one file and shows all rows, not the best.
#
# **Budget:** 10 minutes, 1 GiB of memory, no GPU needed.

# %% id="imports"
import statistics
from collections import Counter

import pandas as pd

from tutorial_lib import plots
from tutorial_lib.guesses import beside
from tutorial_lib.recorded.published import KINDS, misses, published_peaks, summary

peaks = published_peaks()
sources = Counter(peak.source.partition(" (")[0] for peak in peaks)
for source, number in sources.most_common():
    print(f"{number:>3}  {source}")

# %% [markdown] id="how-text"
# Each row's step was rebuilt after its source and run in two ways.
#
# - **Predicted:** on fake tensors, for a GPU's kernels (`memory.predict`).
# - **Emulated:** by PyTorch's CUDA build on a card that is not there: its own allocator, no
#   kernel.
#
# Some sources used an older PyTorch. Before 1.11, softmax kept its input as well as its result.
# Some used DistributedDataParallel, which holds a copy of the gradients. For those a third figure
# includes the same: *emulated, as then*. The file `recorded/published.csv` has every condition and
# address, and `tests/benchmarks/published.py` runs all of it again.
#
# **Predict.** For peaks read from PyTorch's allocator, by how many per cent is the emulated card
# off, in the median?

# %% id="guess-median"
guess = None

# %% id="by-kind"
table, medians = {}, {}
for kind in KINDS:
    ours = [peak for peak in peaks if peak.kind == kind]
    table[kind] = {"rows": len(ours)}
    for name in ("predicted", "emulated", "then"):
        off = [abs(miss) for miss in misses(ours, name)]
        half = medians[kind, name] = statistics.median(off)
        table[kind][f"{name}, off by"] = f"{half:.2%}, most {max(off):.0%}"
half = 100 * medians["allocated", "emulated"]
print(f"half of the emulated ones are within {half:.2f} %{beside(guess, half)}")
pd.DataFrame(table).T

# %% id="figure"
allocated, points = [peak for peak in peaks if peak.kind == "allocated"], {}
for words in ("predicted", "emulated", "emulated, as then"):
    name = words.removeprefix("emulated, as ")
    pairs = [(peak.published, getattr(peak, name)) for peak in allocated]
    points[words] = [(theirs, ours / theirs) for theirs, ours in pairs]
plots.agreement(points, title="max_memory_allocated: ours against published")

# %% [markdown] id="read-kinds"
# Each kind of figure contains something else. What the allocator hands out, we know nearly to the
# byte. `nvidia-smi` shows what the allocator has *reserved*, and also CUDA's context and the
# libraries (chapter 02). The last row of the table is compared with reserved bytes, which lack
# that context.
#
# ## The misses
#
# Here is every row that the emulated card, as then, misses by more than one per cent, and why.

# %% id="misses"
for peak, miss in zip(peaks, misses(peaks, "then"), strict=True):
    if abs(miss) > 0.01:
        print(f"{miss:+7.1%}  {peak.id:<24} {peak.why}")

# %% id="summary"
print(summary(peaks))

# %% [markdown] id="what-follows"
# Two things follow. If a prediction is a few per cent below `max_memory_allocated`, it mostly
# lacks a workspace or a condition that the source did not state. And a figure of `nvidia-smi` can
# be a third above the tensors on the same run, so ask which of the two you have before you
# compare.
