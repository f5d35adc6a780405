"""A bench of foreign models: measured, MemTracker's, predicted. The rest runs weekly."""

import gc
import warnings
from dataclasses import dataclass

import pytest
import torch
from foreign_models import KINDS, QUICK
from torch.distributed._tools.mem_tracker import MemTracker

from tutorial_lib import memory, ranks
from tutorial_lib.device import seed_everything


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

    def __str__(self):
        numbers = [
            f"{value:>12,}" if isinstance(value, int) else f"{value[:12]:>12}"
            for value in (self.measured, self.tracked, self.predicted)
        ]
        said = next((v for v in (self.measured, self.predicted) if isinstance(v, str)), self.warned)
        return f"{self.name:<30}{''.join(numbers)}  {self.verdict:<9} {said[:300]}"


def compared(name):
    """Measure, track and predict a step of this name."""
    build = KINDS[name]
    with ranks.pretend(4), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = _bytes(lambda: _measured(build))
        tracked = _bytes(lambda: _tracked(build))
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
    tracker = MemTracker()
    tracker.track_external(model, *([optimizer] if optimizer else []))
    gc.collect()
    gc.disable()
    try:
        with tracker:
            step()
    finally:
        gc.enable()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


DIFFER = {}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.weekly) for name in KINDS],
)
def test_a_foreign_step_is_predicted_as_it_is_measured(name):
    row = compared(name)
    assert isinstance(row.measured, int), row.measured
    assert row.verdict == DIFFER.get(name, "equal"), row
