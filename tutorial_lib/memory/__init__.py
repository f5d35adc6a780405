"""Meters: measure a training step, and count what autograd saves.

`predict`, `predicting`, `capped` and `Cap` are names of this room too, from `instruments`; they,
`saved`, `snapshot` and `flop_counter` are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from tutorial_lib import load_when_used
from tutorial_lib.memory.meter import MeterWarning, measure, watch
from tutorial_lib.memory.private_torch import storage_key
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.timeline import CATEGORIES, Life

if TYPE_CHECKING:
    from tutorial_lib.instruments.cap import Cap, capped
    from tutorial_lib.instruments.predicting.prediction import predict, predicting
    from tutorial_lib.memory.allocator import snapshot
    from tutorial_lib.memory.private_torch_unseen import flop_counter
    from tutorial_lib.memory.saved_tensors import SavedTensors, saved

# The one arrow upward: this wing imports nothing else of another.
_, __getattr__ = load_when_used(
    __name__,
    {
        ".instruments.cap": "Cap capped",
        ".instruments.predicting": "predict predicting",
        "allocator": "snapshot",
        "private_torch_unseen": "flop_counter",
        "saved_tensors": "SavedTensors saved",
    },
)
__all__ = ["CATEGORIES", "Cap", "Life", "MemoryReport", "MeterWarning", "SavedTensors", "capped"]
__all__ += ["flop_counter", "measure", "predict", "predicting", "saved", "snapshot", "storage_key"]
__all__ += ["watch"]
