"""One row, measured, emulated or predicted, whatever happens on the way."""

import contextlib
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tutorial_lib import device as devices
from tutorial_lib import memory
from .rows import Row
from tutorial_lib.instruments.cap import memory_limit
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.memory.meter import timed
from tutorial_lib.memory.private_torch import release_cublas_workspaces
from tutorial_lib.memory.report import as_data
from tutorial_lib.units import GIB

REPEATS = 5
LARGEST_TRIED = 4096
_LETS_GO_SECONDS = 20.0  # on a machine that does other work besides
_OF_ALLOCATOR = (
    *("method", "peak_phase", "peak_bytes", "counted_bytes", "requested_bytes", "reserved_bytes"),
)


def measured(row: Row, device: torch.device) -> dict[str, Any]:
    """Measure a row; running out of memory is a result, and leaves the device as it was.

    Returns:
        `status` (`measured`, `emulated`, `out of memory`, `not possible`) and what was found; of
        an emulated card the allocator's figures alone.
    """

    def measure() -> dict[str, Any]:
        with _card_of(row.card_gib, device), _ranks_of(row, device):
            return _largest(row, device) if row.largest else _step(row, device)

    devices.seed_everything(0)
    results = _attempt(measure)
    _release(device)
    if not devices.is_emulated(device):
        return results
    words = {"status": "emulated"} if results["status"] == "measured" else {}
    report = results.get("report", {})
    bytes_of_it = {"report": {key: report[key] for key in _OF_ALLOCATOR}} if report else {}
    results.pop("samples_per_second", None)
    return results | words | bytes_of_it


def predicted(row: Row) -> dict[str, Any]:
    """Predict a row for CUDA kernels, on any machine.

    Returns:
        `status` and the report; the CPU seconds it took, and the most memory that this process
        had so far.
    """
    start = time.process_time()

    def predict() -> dict[str, Any]:
        with _ranks_of(row):
            report = memory.predict(row.recipe.make_step, label=row.key)
        return {"status": "predicted", "report": as_data(report)}

    results = _attempt(predict)
    return results | {
        "predicting_cpu_seconds": round(time.process_time() - start, 1),
        "predicting_process_bytes": _most_resident(),
    }


def _attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except torch.OutOfMemoryError:
        return {"status": "out of memory"}
    except ValueError as error:  # a strategy or a size that this model has not
        return {"status": "not possible", "why": str(error)}


def _step(row: Row, device: torch.device) -> dict[str, Any]:
    try:
        step, model, optimizer = row.recipe.make_step(device)
    except torch.OutOfMemoryError:
        if row.recipe.shard is None:
            raise
        raise ValueError("The whole model is on the card before it is divided.") from None
    report = memory.measure(step, model=model, optimizer=optimizer, label=row.key, repeats=REPEATS)
    samples = row.recipe.micro_batch * row.recipe.accumulation
    rates = [samples / seconds for seconds in report.step_seconds]
    return {"status": "measured", "report": as_data(report), "samples_per_second": rates}


def _largest(row: Row, device: torch.device) -> dict[str, Any]:
    """Double the micro-batch until it does not fit, then halve the gap."""
    fits, too_large = 0, LARGEST_TRIED + 1
    seconds = 0.0
    while too_large - fits > 1:
        tried = (
            min(2 * fits or 1, LARGEST_TRIED)
            if too_large > LARGEST_TRIED
            else (fits + too_large) // 2
        )
        taken = _fits(replace(row.recipe, micro_batch=tried), device)
        if taken is None:
            too_large = tried
        else:
            fits, seconds = tried, taken
    rate = fits / seconds if fits else 0.0
    return {"status": "measured", "micro_batch": fits, "samples_per_second": [rate]}


def _fits(recipe: Recipe, device: torch.device) -> float | None:
    """Seconds of a steady step, or None when memory runs out."""
    try:
        step = recipe.make_step(device)[0]  # it alone holds the model, which has to go
        step()
        return timed(step, device)
    except torch.OutOfMemoryError:
        return None
    finally:
        step = None  # type: ignore[assignment]
        _release(device)


def _ranks_of(
    row: Row, device: torch.device | None = None
) -> contextlib.AbstractContextManager[None]:
    """Make this process one of a row's ranks.

    Raises:
        ValueError: For DDP on a device, which is an emulated card: it crashes there.
    """
    if device is not None and row.recipe.shard == "ddp":
        raise ValueError(
            "After its first step DDP reads the order of its buckets back from the card, and on an "
            "emulated card that is zeros."
        )
    return row.recipe.one_rank()


def _card_of(gib: int | None, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Limit the allocator to what a smaller card would have.

    Raises:
        ValueError: When this card is the smaller one.
    """
    total = devices.total_bytes(device)
    if gib is None or total is None:
        return contextlib.nullcontext()
    if gib * GIB > total:
        raise ValueError(f"{devices.describe(device)} is smaller than a card of {gib} GiB.")
    return memory_limit(device, gib * GIB)


def _release(device: torch.device) -> None:
    """Leave nothing behind: a row reserves what it would reserve alone in its process."""
    gc.collect()
    if device.type == "cuda":
        release_cublas_workspaces()
        # autograd's own thread lets go of a graph that ran out of memory a moment later
        end = time.monotonic() + _LETS_GO_SECONDS
        while torch.cuda.memory_allocated(device) and time.monotonic() < end:
            time.sleep(0.1)
            gc.collect()
        torch.cuda.empty_cache()


def _most_resident() -> int | None:
    """Largest resident size that this process has had; None where nobody says."""
    if sys.platform == "win32":
        return None
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
