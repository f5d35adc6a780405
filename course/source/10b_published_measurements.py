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

from tutorial_lib import plots
from tutorial_lib.guesses import beside
from tutorial_lib.recorded.published import KINDS, misses, published_peaks, summary

peaks = published_peaks()
for source, number in Counter(
    peak.source.partition(" (")[0] for peak in peaks
).most_common():
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
NAMES = ("predicted", "emulated", "then")
print(f"{'kind of figure':<16}{'rows':>5}" + "".join(f"{name:>22}" for name in NAMES))
for kind in KINDS:
    ours = [peak for peak in peaks if peak.kind == kind]
    cells = ""
    for name in NAMES:
        off = [abs(miss) for miss in misses(ours, name)]
        cells += f"{statistics.median(off):>10.2%}, most {max(off):>4.0%}"
    print(f"{kind:<16}{len(ours):>5}{cells}")
    if kind == "allocated":
        print(
            beside(guess, 100 * statistics.median(map(abs, misses(ours, "emulated")))),
            end="",
        )

# %% id="figure"
ALLOCATOR = [peak for peak in peaks if peak.kind == "allocated"]
FIGURES = {
    "predicted": "predicted",
    "emulated": "emulated",
    "emulated, as then": "then",
}
points = {
    words: [
        (peak.published, getattr(peak, name) / peak.published) for peak in ALLOCATOR
    ]
    for words, name in FIGURES.items()
}
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
