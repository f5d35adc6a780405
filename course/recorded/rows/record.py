"""The recording of rows into a file, one after the other; stopped, it goes on where it was."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tutorial_lib import device as devices
from . import run, store
from .rows import Row
from tutorial_lib.instruments.recorded import FOLDER
from tutorial_lib.units import human_bytes


def record_rows(
    rows: Sequence[Row],
    path: Path | None = None,
    device: torch.device | None = None,
    *,
    again: bool = False,
    anew: bool = False,
    max_minutes: float = float("inf"),
) -> int:
    """Record rows, print a line for each, and write the file after each.

    Args:
        rows: Which rows.
        path: The file; left out, the one that belongs to the device.
        device: A GPU or an emulated card; without one the rows are predicted.
        again: Whether rows that are in the file are recorded too.
        anew: Whether to begin the file anew: other rows in it are lost.
        max_minutes: Begin no row after that.

    Returns:
        How many rows are left.

    Raises:
        ValueError: When the file is of another device or of other versions.
    """
    recording = _begin(device)
    path = path or store.path_of(store.PREDICTED if device is None else recording.device)
    if not anew:
        recording.resume(path)
    if device is not None and not devices.is_emulated(device):  # the other ranks are not there
        rows = [row for row in rows if row.recipe.shard is None]
    start = time.monotonic()
    left = [row for row in rows if again or row.key not in recording.rows]
    for number, row in enumerate(left, 1):
        if time.monotonic() - start > 60 * max_minutes:
            return len(left) - number + 1
        results = run.predicted(row) if device is None else run.measured(row, device)
        recording.add(path, row.key, results | _about(row, device))
        print(f"{number}/{len(left)} {row.key}: {_in_words(results)}", flush=True)
    print(f"{len(rows)} rows are in {path}.")
    return 0


def _begin(device: torch.device | None) -> store.Recording:
    import diffusers  # noqa: F401  (named among the versions)
    import transformers  # noqa: F401

    commit = _said_by("git", "-C", str(FOLDER.parent), "rev-parse", "HEAD")
    if device is None:
        return store.Recording("predicted, CUDA kernels", "", devices.versions(), commit)
    driver = _said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return store.Recording(devices.describe(device), driver, devices.versions(), commit)


def _about(row: Row, device: torch.device | None) -> dict[str, object]:
    is_short = device is not None and devices.is_emulated(device)
    return ({} if is_short else {"recipe": row.recipe.as_data()}) | {
        "claims": list(row.claims),
        "card_gib": row.card_gib,
        "date": time.strftime("%Y-%m-%d"),
    }


def _in_words(results: dict[str, object]) -> str:
    report = results.get("report")
    if isinstance(report, dict):
        return f"{human_bytes(report['peak_bytes'])} in {report['peak_phase']}"
    if "micro_batch" in results:
        return f"largest micro-batch {results['micro_batch']}"
    return str(results["status"])


def _said_by(*command: str) -> str:
    """First line that a program prints; nothing where it is missing or refuses."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()
