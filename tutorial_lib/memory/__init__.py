"""Meters: measure a training step, and count what autograd saves.

`predict`, `predicting`, `capped` and `Cap` are names of this room too; they stand in
`instruments`, which is loaded when one of them is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tutorial_lib.memory.allocator import snapshot
from tutorial_lib.memory.meter import MeterWarning, measure, watch
from tutorial_lib.memory.private_torch import flop_counter, storage_key
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.saved import SavedTensors, saved
from tutorial_lib.memory.timeline import CATEGORIES, Life

if TYPE_CHECKING:
    from tutorial_lib.instruments.cap import Cap, capped
    from tutorial_lib.instruments.predicting.prediction import predict, predicting

# The one arrow upward: this wing imports nothing else of another.
_IN_INSTRUMENTS = {"predict": "predicting", "predicting": "predicting"}
_IN_INSTRUMENTS |= {"capped": "cap", "Cap": "cap"}

__all__ = ["CATEGORIES", "Cap", "Life", "MemoryReport", "MeterWarning", "SavedTensors", "capped"]
__all__ += ["flop_counter", "measure", "predict", "predicting", "saved", "snapshot", "storage_key"]
__all__ += ["watch"]


def __getattr__(name: str) -> Any:
    """Load an instrument when it is first used, as in `memory.predict`."""
    if name not in _IN_INSTRUMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(
        importlib.import_module(f"tutorial_lib.instruments.{_IN_INSTRUMENTS[name]}"), name
    )
