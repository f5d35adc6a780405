"""Fragmentation: batches of different lengths leave pieces in CUDA's allocator that fit nothing.

The peak of what is allocated is that of the longest batch. What is reserved depends on the order
in which the lengths come, and on PyTorch's setting `expandable_segments`
(https://github.com/pytorch/pytorch/issues/1529).
"""

import gc
import json
import os
import random
from pathlib import Path

import torch

from tutorial_lib import device as devices
from tutorial_lib.instruments.recorded import FOLDER

PATH = FOLDER / "snapshots" / "fragmentation.json"
MODEL, MICRO_BATCH = "gpt2", 8
_DRAWN = random.Random(0).choices(range(256, 1024), k=29)
LENGTHS = {
    "always 1024": [1024] * 30,
    "512 and 1024 in turn": [512, 1024] * 15,
    "as drawn": [*_DRAWN, 1024],
    "ascending": [*sorted(_DRAWN), 1024],
    "descending": [1024, *sorted(_DRAWN, reverse=True)],
    "longest first, then as drawn": [1024, *_DRAWN],
}


def record(device: torch.device, path: Path = PATH) -> None:
    """Train on each order of lengths, and write what was allocated and reserved after each step.

    The allocator's setting is that of the environment (`PYTORCH_ALLOC_CONF`), `default` where it
    has none; what the file holds of another setting stays.
    """
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    setting = os.environ.get("PYTORCH_ALLOC_CONF", "default")
    about = {"device": devices.describe(device), "torch": torch.__version__}
    curves = {name: _curve(lengths, device) for name, lengths in LENGTHS.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(before | about | {setting: curves}) + "\n", encoding="utf-8")


def _curve(lengths: list[int], device: torch.device) -> list[list[int]]:
    """Tokens, allocated peak and reserved peak so far, in bytes, after each step."""
    from tutorial_lib.instruments import published

    gc.collect()
    torch.cuda.empty_cache()
    devices.reset_peak(device)
    model = published.build(MODEL, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for seq in lengths:
        batch = published.batch(MODEL, MICRO_BATCH, seq=seq, device=device)
        published.loss(MODEL, model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        peaks = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        found.append([seq, *peaks])
    return found
