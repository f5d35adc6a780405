"""The least room in which a training step runs, on this machine's GPU or on an emulated card.

    python course/recorded/make/least_room.py                       all steps, on a GPU
    python course/recorded/make/least_room.py 'gpt2*'               these steps
    python -m tutorial_lib emulate --card h200 -- python course/recorded/make/least_room.py ...

A step runs four times free, then in one cap after the other, each halving the gap between the
largest that it ran out in and the least that it ran in, down to a five-hundredth. Steps are the
rows of `record` and the loops of `peers.csv`; each has a process of its own, once with the
allocator as it is and once with expandable segments (not emulated). What an H200 said with PyTorch
2.11, and beside it the same of an emulated one, is kept in `course/recorded/least_room.csv`.
When those rows were made, a run began with the free blocks of the one before it still in PyTorch's
cache; now it gives them back first. `placed` is what the predicted tensors need in the allocator's
blocks, and `placed_reserves` what they take when nothing limits them.
"""

from __future__ import annotations

import csv
import fnmatch
import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
import fits

from tutorial_lib import device, memory
from tutorial_lib.instruments import recorded
from tutorial_lib.instruments.emulated import Room, place
from tutorial_lib.memory import private_torch

PEERS = {f"{row['model']} {row['optimizer']} {row['batch']}": row for row in fits.read("peers")}
ROWS = {row.key: row for row in recorded.find_rows() if not row.largest and not row.recipe.shard}
WITHIN = 0.002
FIELDS = ("step", "allocator", "predicted", "placed", "placed_reserves", "requested", "reserved")
FIELDS = (*FIELDS, "ran_out", "ran")
fits.TRANSFORMERS = transformers.__version__  # the loops as such are tried here, not the source's


def make_step(name: str, device: str) -> Any:
    if name in PEERS:
        return fits.make_step(PEERS[name], device)
    return ROWS[name].recipe.make_step(device)


def peaks(make: Callable[[], Any], share: float) -> dict[str, int] | None:
    """Run a step four times with a share of the card: its peaks, or None where it ran out."""
    torch.cuda.set_per_process_memory_fraction(share)
    torch.cuda.reset_peak_memory_stats()
    try:
        made = make()
        for _ in range(fits.ITERATIONS):
            made[0]()
        stats = torch.cuda.memory_stats()
        return {name: stats[f"{name}_bytes.all.peak"] for name in ("requested", "reserved")}
    except torch.OutOfMemoryError:
        return None
    finally:
        made = None  # the model and its optimizer too
        gc.collect()
        private_torch.release_cublas_workspaces()
        torch.cuda.empty_cache()


def least_room(name: str, allocator: str) -> dict[str, Any]:
    """Halve the gap between too little and enough."""
    total = torch.cuda.get_device_properties(0).total_memory
    make = lambda: make_step(name, "cuda")  # noqa: E731
    free = peaks(make, 1.0)
    if free is None:
        raise SystemExit(f"{name} does not fit on {device.describe('cuda')}.")
    ran_out, ran = int(0.9 * free["requested"]), free["reserved"]
    while ran - ran_out > WITHIN * ran:
        cap = (ran_out + ran) // 2
        if peaks(make, cap / total) is None:
            ran_out = cap
        else:
            ran = cap
    report = memory.predict(lambda: make_step(name, "cpu"))
    workspace = Room.of("h200").workspace
    placed = place(report.timeline, peak := int(report.peak_bytes), workspace)
    found = {"step": name, "allocator": allocator, "predicted": peak}
    found |= {"placed": placed.needs, "placed_reserves": placed.reserves}
    return found | free | {"ran_out": ran_out, "ran": ran}


def main(patterns: list[str]) -> None:
    warnings.simplefilter("ignore")
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    sys.stdout.flush()
    allocators = ("default",) if device.is_emulated() else ("default", "expandable segments")
    for name in [*PEERS, *ROWS]:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns or ("*",)):
            continue
        for allocator in allocators:
            if os.fork() == 0:  # before this process has touched the card
                if allocator != "default":
                    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
                writer.writerow(least_room(name, allocator))
                return
            os.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
