"""What `save_on_cpu` leaves on a card and puts into the host's pinned memory, for chapter 07d.

    python -m tutorial_lib emulate --card a100 -- python course/recorded/make/offload.py

Writes course/recorded/snapshots/offload.json: forward and backward of ViT-B/16, 16 images.
"""

import json
from contextlib import nullcontext
from functools import partial

import torch
from torch.autograd.graph import save_on_cpu

from tutorial_lib import device, memory
from tutorial_lib.instruments import segments
from tutorial_lib.instruments.recorded import snapshots
from tutorial_lib.instruments.training import Recipe

moved = partial(save_on_cpu, pin_memory=True)
WAYS = {
    "kept": ("none", nullcontext),
    "moved": ("none", moved),
    "per block": ("per-block", nullcontext),
}


def peaks(strategy, around):
    """Return the bytes above the start on the card, and those that a step pins on the host."""
    loss, model = Recipe("vit-b-16", 16).make_loss("cuda")

    def step():
        with segments.applied(model, strategy), around():
            loss().backward()
        model.zero_grad()

    report = memory.measure(step, model=model)
    before = torch.cuda.host_memory_stats()["active_bytes.allocated"]
    step()
    pinned = torch.cuda.host_memory_stats()["active_bytes.allocated"] - before
    card = int(report.counted_bytes - report.baseline_bytes)
    return {"card": card, "host": pinned}


rows = {}
for name, way in WAYS.items():
    rows[name] = peaks(*way)
    print(name, rows[name], flush=True)
about = {"device": device.describe("cuda"), "torch": torch.__version__}
text = json.dumps(about | {"peaks": rows}, indent=1) + "\n"
(snapshots.SNAPSHOTS / "offload.json").write_text(text, encoding="utf-8")
