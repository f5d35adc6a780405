"""Peaks that others measured on real GPUs and published, with predicted and emulated beside them.

`course/recorded/make/published.py` runs every row of the file anew.
"""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tutorial_lib.instruments.recorded import FOLDER

TABLE = FOLDER / "published.csv"
KINDS = ("allocated", "active", "reserved", "nvidia-smi")


@dataclass(frozen=True)
class PublishedPeak:
    """A published figure in GiB, and ours of the same step.

    Args:
        id: Its name in the file, where conditions and address stand too.
        source: Who published it.
        step: What was trained.
        gpu: On which card.
        kind: What was read: one of `KINDS`.
        published: The figure.
        predicted: The prediction of the step.
        emulated: The same kind of figure from the allocator on an emulated card; of nvidia-smi's
            figure the reserved bytes, which lack CUDA's context.
        as_then: What the source's PyTorch or launcher held beyond today's step, in words.
        then: The emulated figure with that; the same as `emulated` where there is none.
        why: What explains a miss.
    """

    id: str
    source: str
    step: str
    gpu: str
    kind: str
    published: float
    predicted: float
    emulated: float
    as_then: str
    then: float
    why: str


def published_peaks() -> list[PublishedPeak]:
    """Read all rows of the file."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [_peak(row) for row in csv.DictReader(file)]


def _peak(row: dict[str, str]) -> PublishedPeak:
    of_reserved = row["kind"] in ("reserved", "nvidia-smi")
    emulated = float(row["emulated_reserved_gib" if of_reserved else "emulated_gib"])
    return PublishedPeak(
        **{name: row[name] for name in ("id", "source", "step", "gpu", "kind")},
        published=float(row["published_gib"]),
        predicted=float(row["predicted_gib"]),
        emulated=emulated,
        as_then=row["as_then"],
        then=emulated if of_reserved or not row["as_then_gib"] else float(row["as_then_gib"]),
        why=row["why"],
    )


def misses(peaks: Sequence[PublishedPeak], figure: str) -> list[float]:
    """Return how far a figure (`predicted`, `emulated`, `then`) is from each published one."""
    return [getattr(peak, figure) / peak.published - 1 for peak in peaks]


def summary(peaks: Sequence[PublishedPeak]) -> str:
    """Say in one sentence how the allocator's figures agree: the sentence of the README."""
    ours = [peak for peak in peaks if peak.kind == "allocated"]
    predicted, emulated = (
        [abs(miss) for miss in misses(ours, name)] for name in ("predicted", "emulated")
    )
    near = sum(miss < 0.001 for miss in emulated)
    return (
        f"Of {len(ours)} peaks of GPU memory that others measured and published, `emulate` gives "
        f"{near} to a thousandth; it is off by {statistics.median(emulated):.2%} in the median and "
        f"by {max(emulated):.0%} at worst, `predict` by {statistics.median(predicted):.2%} in the "
        "median."
    )
