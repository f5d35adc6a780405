"""PyTorch's CUDA build on a card that is not there: its own allocator, and no kernel runs.

A small library stands in for NVIDIA's. Memory is addresses with nothing behind them, and
launching a kernel does nothing, so values are zeros and times mean nothing. Real are the values of
small integers and booleans that come from the host, such as masks: programs decide by them. What
PyTorch decides on the host is its own: which kernels, which temporary tensors, and every byte of
its allocator.
"""

from tutorial_lib.instruments.emulated.blocks import Placed, place
from tutorial_lib.instruments.emulated.build import CudaTorch
from tutorial_lib.instruments.emulated.cards import CARDS, Card, find_card
from tutorial_lib.instruments.emulated.environment import find_cuda_torch
from tutorial_lib.instruments.emulated.run import OUT_OF_MEMORY, Emulated, emulate
from tutorial_lib.instruments.emulated.verdict import Room, Verdict, on_cards

__all__ = [
    "CARDS",
    "OUT_OF_MEMORY",
    "Card",
    "CudaTorch",
    "Emulated",
    "Placed",
    "Room",
    "Verdict",
    "emulate",
    "find_card",
    "find_cuda_torch",
    "on_cards",
    "place",
]
