"""A step's tensors in the blocks of PyTorch's allocator, without expandable segments.

Source:
    c10/cuda/CUDACachingAllocator.cpp (1.12 to 2.13): `get_free_block`, `should_split`,
    `free_block`, `release_cached_blocks`, and the sizes at its top.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tutorial_lib.units import MIB

if TYPE_CHECKING:
    from tutorial_lib.memory import Life

WORKSPACES = 65 * MIB  # that cuBLAS keeps up to PyTorch 2.14, on an H200; 16 on older cards
_STEPS = 4  # the first puts the optimizer's state where the activations of the others want to be
_BLOCK, _SMALL, _SEGMENT, _LARGE = 512, MIB, 2 * MIB, 10 * MIB


class Placed(NamedTuple):
    """Bytes of the segments in which a step's tensors lie."""

    needs: int  # about the fewest with which such steps run
    reserves: int  # what they take when nothing limits PyTorch


def place(lives: Sequence[Life], peak: int, workspace: int) -> Placed:
    """Return what steps with these tensors' lives need; each thread has a workspace of cuBLAS's."""
    lives = sorted(lives, key=lambda x: (x.born, "dropout" in x.op and x.num_bytes))  # masks first
    matmuls = {x.phase == "backward": x.born for x in reversed(lives) if x.op.endswith("mm")}
    order = [(float(born), 0, len(lives) + n) for n, born in enumerate(matmuls.values())]
    sizes = [life.num_bytes for life in lives] + [workspace] * len(order)
    last = lives[-1].born if lives else 0
    update = next((x.born for x in lives if x.born and x.phase == "optimizer"), last + 1)
    for n, life in enumerate(lives):
        order.append((life.born or (life.category == "optimizer_state") * update, 0, n))
        if life.born or life.died is not None:
            order.append((math.inf if life.died is None else life.died, 1, n))
    order.sort()
    reserves = _reserved(order, sizes, sys.maxsize)
    low, high = peak, max(peak, reserves)
    while high - low > peak // 500 + _SEGMENT:
        middle = (low + high) // 2
        low, high = (low, middle) if _reserved(order, sizes, middle) else (middle, high)
    return Placed(high, reserves)


def _reserved(order: list[tuple[float, int, int]], sizes: Sequence[int], room: int) -> int:
    """Return the bytes of all segments after some steps; 0 where the room was too little."""
    left, top = room, 0  # bytes, and the next segment's address
    segments, free, ends = dict[int, int](), dict[int, int](), dict[int, int]()
    pools: tuple[list[tuple[int, int]], ...] = ([], [])  # free blocks, sorted: small ones, large
    placed = dict[int, tuple[int, int, bool]]()  # address, bytes, and whether it's large

    def drop(start: int, large: bool) -> int:
        size, pool = free.pop(start), pools[large]
        del ends[start + size], pool[bisect_left(pool, (size, start))]
        return size

    def give(start: int, size: int, large: bool) -> None:
        if start + size in free:  # joined with its free neighbours
            size += drop(start + size, large)
        if start in ends:
            start = ends[start]
            size += drop(start, large)
        free[start], ends[start + size] = size, start
        insort(pools[large], (size, start))

    for _, goes, n in order * _STEPS:  # when, whether something goes, and which
        if goes and n in placed:
            give(*placed.pop(n))
        if goes or n in placed or not sizes[n]:
            continue
        size = math.ceil(sizes[n] / _BLOCK) * _BLOCK
        pool = pools[large := size > _SMALL]
        if not pool or pool[-1][0] < size:
            need = 2 * _LARGE if large and size < _LARGE else math.ceil(size / _SEGMENT) * _SEGMENT
            if need > left:  # segments that are free as a whole go back
                for start in [at for at, held in segments.items() if free.get(at) == held]:
                    left += drop(start, segments.pop(start) > _SEGMENT)
            if need > left:
                return 0
            segments[top] = need
            give(top, need, large)
            left, top = left - need, top + need + _BLOCK  # segments don't touch
        held, start = pool[bisect_left(pool, (size, 0))]
        drop(start, large)
        if held - size > large * _SMALL:  # the rest is cut off
            give(start + size, held - size, large)
            held = size
        placed[n] = start, held, large
    return room - left
