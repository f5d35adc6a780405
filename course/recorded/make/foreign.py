"""Print what `measure`, PyTorch's MemTracker and `predict` say of foreign models, and a verdict.

python course/recorded/make/foreign.py [--write] [NAMES ...]

With `--write` the table goes to course/recorded/foreign.csv. The models of `timm` are tried where
it is installed.
"""

import csv
import gc
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from foreign_models import KINDS

from tutorial_lib import memory
from tutorial_lib.device import seed_everything
from tutorial_lib.instruments import ranks

TABLE = Path(__file__).resolve().parents[1] / "foreign.csv"


@dataclass
class Row:
    """One foreign model or step; bytes, or what was said instead."""

    name: str
    measured: int | str
    tracked: int | str
    predicted: int | str
    warned: str = ""

    @property
    def verdict(self):
        if isinstance(self.measured, str) or isinstance(self.predicted, str):
            return "not measured" if isinstance(self.measured, str) else "refused"
        if self.predicted == self.measured:
            return "equal"
        return f"{self.predicted / self.measured - 1:+.2%}"

    @property
    def said(self):
        found = (v for v in (self.measured, self.predicted) if isinstance(v, str))
        return next(found, self.warned)

    def as_data(self):
        sizes = {name: getattr(self, name) for name in ("measured", "tracked", "predicted")}
        numbers = {k: v if isinstance(v, int) else "" for k, v in sizes.items()}
        return {"name": self.name, **numbers, "verdict": self.verdict, "said": self.said}

    def __str__(self):
        numbers = [
            f"{value:>12,}" if isinstance(value, int) else f"{value[:12]:>12}"
            for value in (self.measured, self.tracked, self.predicted)
        ]
        return f"{self.name:<30}{''.join(numbers)}  {self.verdict:<9} {self.said[:300]}"


def compared(name, *, track=True):
    """Measure, track and predict a step of this name."""
    build = KINDS[name]
    with ranks.pretend(4), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = _bytes(lambda: _measured(build))
        tracked = _bytes(lambda: _tracked(build)) if track else "not asked"
        caught.clear()
        predicted = _bytes(lambda: memory.predict(build, kernels="cpu").peak_bytes)
        said = "; ".join(str(one.message) for one in caught if one.category is memory.MeterWarning)
    return Row(name, measured, tracked, predicted, said)


def _bytes(work):
    gc.collect()
    try:
        return int(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")


def _measured(build):
    seed_everything(0)
    step, model, optimizer = build()
    return memory.measure(step, model=model, optimizer=optimizer).peak_bytes


def _tracked(build):
    seed_everything(0)
    step, model, optimizer = build()
    step()
    return tracked_peak(step, model, *([optimizer] if optimizer else []))


def tracked_peak(step, *tracked, tracker=None):
    """What PyTorch's own tracker, or one that is given, says of a further step."""
    from torch.distributed._tools.mem_tracker import MemTracker  # it imports much

    if tracker is None:
        tracker = MemTracker()
        tracker.track_external(*tracked)
    gc.collect()
    gc.disable()  # as the meter does: sharded tensors are part of reference cycles
    try:
        with tracker:
            step()
    finally:
        gc.enable()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


def main(words):
    rows = []
    for name in [word for word in words if word != "--write"] or KINDS:
        rows.append(compared(name))
        print(rows[-1], flush=True)
    verdicts = [row.verdict for row in rows]
    print(", ".join(f"{verdicts.count(one)} {one}" for one in sorted(set(verdicts))))
    if "--write" in words:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0].as_data()), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row.as_data() for row in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
