"""Readings of CUDA's allocator and driver for a step, and the allocator's own snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tutorial_lib import device as devices
from tutorial_lib.memory import private_torch
from tutorial_lib.memory.report import MemoryReport


@dataclass(frozen=True)
class AllocatorReading:
    """What the allocator held before a block, in bytes asked of it; its peaks are reset then."""

    requested: int

    @classmethod
    def take(cls, device: torch.device) -> AllocatorReading | None:
        """Take a reading and reset the peaks; None where no CUDA allocator is at work.

        Up to PyTorch 2.14 cuBLAS keeps its workspaces once it has them. They are given back first,
        so that a step that needs them has them in its own peak, whatever ran before.
        """
        if device.type != "cuda":
            return None
        devices.synchronize(device)
        private_torch.release_cublas_workspaces()
        devices.reset_peak(device)
        return cls(torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0))

    def add_to(self, report: MemoryReport, device: torch.device) -> None:
        """Put the allocator's peak in place of the counted one; the difference is `other`."""
        devices.synchronize(device)
        stats = torch.cuda.memory_stats(device)
        foreign = max(0, self.requested - report.baseline_bytes)  # no tensor of this step
        requested = stats.get("requested_bytes.all.peak")
        report.requested_bytes = None if requested is None else requested - foreign
        report.counted_bytes = report.peak_bytes
        report.peak_bytes = torch.cuda.max_memory_allocated(device) - foreign
        # Rounding to blocks, kernel workspace and cuBLAS handles: no tensor holds them.
        report.at_peak["other"] += max(0, report.peak_bytes - report.counted_bytes)
        report.reserved_bytes = torch.cuda.max_memory_reserved(device)
        if devices.is_emulated(device):  # its driver holds no CUDA context
            report.method = "emulated"
            return
        free, total = torch.cuda.mem_get_info(device)
        report.driver_bytes = total - free
        report.method = "allocator"


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[None]:
    """Record the CUDA allocator's history in the `with` block, and write it to a file.

    It is written when the block ends in an error too, such as an `OutOfMemoryError`. It opens in
    https://docs.pytorch.org/memory_viz, in the browser alone.

    Args:
        path: File to write, a pickle; it holds the last 100,000 events at most.

    Raises:
        RuntimeError: Without a GPU: on a CPU there is no such history.
    """
    if not devices.has_gpu():
        raise RuntimeError(
            "a snapshot is the CUDA allocator's, but there is no GPU here: "
            "report.figure() and report.timeline show the same of a step on a CPU."
        )
    private_torch.record_allocations(max_entries=100_000)
    try:
        yield
    finally:
        try:
            private_torch.write_snapshot(str(path))
        finally:  # a folder that cannot be written must not leave the recording on
            private_torch.record_allocations(enabled=None)
