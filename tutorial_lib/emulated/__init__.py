"""PyTorch's CUDA build on a card that is not there: its own allocator, and no kernel runs.

A small library stands in for NVIDIA's. Memory is addresses with nothing behind them, and
launching a kernel does nothing, so values are zeros and times mean nothing. What PyTorch decides
on the host is its own: which kernels, which temporary tensors, and every byte of its allocator.
"""

from tutorial_lib.emulated.build import CudaTorch, find_torch, make_library
from tutorial_lib.emulated.cards import CARDS, Card, find_card

__all__ = ["CARDS", "Card", "CudaTorch", "find_card", "find_torch", "make_library"]
