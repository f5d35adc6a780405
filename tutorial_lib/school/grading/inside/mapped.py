"""How much memory this process has mapped: from /proc, or where there is none from its limits."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_ON_LINUX = sys.platform.startswith("linux")
_LIMITS = {"VmData": "RLIMIT_DATA", "VmSize": "RLIMIT_AS"}


def sees_memory() -> bool:
    """Tell whether processes can be watched from outside, which on Linux needs /proc."""
    return _STATUS.exists() or not _ON_LINUX


def mapped_bytes(kind: str) -> int:
    """Measure what this process has mapped.

    Args:
        kind: `VmData` for what is its own, `VmSize` for all.
    """
    if not _ON_LINUX:
        return 0
    if not sees_memory():
        return _lowest_limit(_LIMITS[kind])
    return int(_STATUS.read_text().split(f"{kind}:")[1].split()[0]) * 1024


def _lowest_limit(name: str) -> int:
    """Search the highest limit under which not one page more can be mapped."""
    import resource  # there is none on Windows

    kind = getattr(resource, name)
    before = resource.getrlimit(kind)
    low, high = 0, 2**35  # in pages of 4 KiB: all that an address can name
    try:
        while high - low > 1:
            middle = (low + high) // 2
            resource.setrlimit(kind, (middle * mmap.PAGESIZE, before[1]))
            try:
                mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
                high = middle
            except (OSError, MemoryError):
                low = middle
    finally:
        resource.setrlimit(kind, before)
    return low * mmap.PAGESIZE
