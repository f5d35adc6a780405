"""Instruments: measure a training step, count what autograd saves, predict without allocating."""

from tutorial_lib.memory.allocator import snapshot
from tutorial_lib.memory.cap import Cap, capped
from tutorial_lib.memory.meter import MeterWarning, measure, watch
from tutorial_lib.memory.predict import predict, predicting
from tutorial_lib.memory.report import MemoryReport
from tutorial_lib.memory.saved import SavedTensors, saved
from tutorial_lib.private_torch import storage_key
from tutorial_lib.private_torch.operations import flop_counter
from tutorial_lib.timeline import CATEGORIES, Life

__all__ = [
    "CATEGORIES",
    "Cap",
    "Life",
    "MemoryReport",
    "MeterWarning",
    "SavedTensors",
    "capped",
    "flop_counter",
    "measure",
    "predict",
    "predicting",
    "saved",
    "snapshot",
    "storage_key",
    "watch",
]
