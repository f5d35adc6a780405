"""Small snapshots of CUDA's allocator during real steps, of one model of each family.

They open in https://docs.pytorch.org/memory_viz. What a viewer does not need is left out, and of
each event's lines of Python the innermost one outside PyTorch is kept.
"""

import contextlib
import pickle
import pickletools
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tutorial_lib import memory
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.instruments.training import Recipe

SNAPSHOTS = FOLDER / "snapshots"
RECIPES = {
    "gpt2": Recipe("gpt2", 4, 1024),
    "gpt2-per-block": Recipe("gpt2", 4, 1024, checkpointing="per-block"),
    "bert-base": Recipe("bert-base", 8, 512),
    "vit-b-16": Recipe("vit-b-16", 8),
    "clip-two-tower": Recipe("clip-two-tower", 8),
    "sd15-unet": Recipe("sd15-unet", 1, overrides={"layers_per_block": 1}),  # to be small
    "sd-vae": Recipe("sd-vae", 1),
    "resnet50": Recipe("resnet50", 8),
    "lstm": Recipe("lstm", 2),
    "unet3d": Recipe("unet3d", 1),
}
# A file of a package begins with the package; any other one is its bare name.
_LONG_PATH = re.compile(r"^.*/site-packages/|^.*/(?=tutorial_lib/)|^.*/")
_KEYS = frozenset({
    *("action", "addr", "size", "stream", "time_us", "device_free"),  # of an event
    *("device", "address", "total_size", "allocated_size", "active_size", "requested_size"),
    *("segment_type", "is_expandable", "state"),  # of a segment and its blocks
})  # fmt: skip


def take(name: str, device: torch.device | str = "cuda") -> Path:
    """Record a steady step of `RECIPES` on a GPU or an emulated card, and keep it small.

    Returns:
        The file, below `SNAPSHOTS`.

    Raises:
        RuntimeError: Without a GPU.
    """
    path = SNAPSHOTS / f"{name}.pickle"
    path.parent.mkdir(parents=True, exist_ok=True)
    step, *_ = RECIPES[name].make_step(device)
    step()  # brings the optimizer's state
    with memory.snapshot(path):
        step()
    return _made_slim(path)


def take_failures() -> list[Path]:
    """Record each script `oom_N.py` beside the snapshots, from its start until memory runs out.

    For a card of 16 GB, such as an emulated T4: on a larger one they end well.
    """
    paths = []
    for script in sorted(SNAPSHOTS.glob("oom_*.py")):
        path = script.with_suffix(".pickle")
        with contextlib.suppress(torch.OutOfMemoryError), memory.snapshot(path):
            runpy.run_path(str(script))
        paths.append(_made_slim(path))
    return paths


def _made_slim(path: Path) -> Path:
    whole = pickle.loads(path.read_bytes())
    path.write_bytes(pickletools.optimize(pickle.dumps(slim(whole), protocol=4)))
    return path


def slim(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a viewer does not need; addresses and times begin at zero."""
    events = [event for trace in snapshot["device_traces"] for event in trace]
    base = min((part["address"] for part in snapshot["segments"]), default=0)
    base = min([base, *(event["addr"] for event in events if "addr" in event)])
    start = min((event["time_us"] for event in events), default=0)
    lines: dict[tuple[str, int, str], list[dict[str, Any]]] = {}

    def part(whole: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in whole.items() if key in _KEYS}
        for key, zero in (("addr", base), ("address", base), ("time_us", start)):
            if key in kept:
                kept[key] -= zero
        if "blocks" in whole:
            kept["blocks"] = [part(block) for block in whole["blocks"]]
        return {**kept, "frames": _line(whole.get("frames", []), lines.setdefault)}

    traces = [[part(e) for e in t if e["action"] != "free_requested"] for t in _traces(snapshot)]
    return {"segments": [part(s) for s in snapshot["segments"]], "device_traces": traces}


def _traces(snapshot: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [trace for trace in snapshot["device_traces"] if trace]


def _line(frames: list[dict[str, Any]], share: Callable[..., Any]) -> list[dict[str, Any]]:
    for frame in frames:
        name = frame["filename"]
        if name.endswith(".py") and "/torch/" not in name:
            short = {**frame, "filename": _LONG_PATH.sub("", name)}
            found: list[dict[str, Any]] = share(tuple(short.values()), [short])
            return found
    return []
