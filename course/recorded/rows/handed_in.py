"""What is wrong with a recording that somebody hands in: its form, its versions, its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .rows import Row, find_rows
from .store import Recording
from tutorial_lib.units import human_bytes, parse_bytes

STATUSES = ("measured", "emulated", "out of memory", "not possible")
_PLAUSIBLE = (0.8, 2.0)  # measured by predicted: a kernel's workspace comes on top


def faults(recording: Recording, predicted: Recording) -> list[str]:
    """Say what is wrong with a recording; nothing when it can be handed in.

    Args:
        recording: What a GPU measured, or an emulated card gave.
        predicted: The recorded predictions, to compare with.
    """
    return [*_form(recording), *_rows(recording, predicted)]


def _form(recording: Recording) -> Iterator[str]:
    name, _, memory = recording.device.partition(", ")
    if not name or not memory:
        yield f"device (={recording.device!r}) must be as in 'Tesla T4, 14.6 GiB'"
    for package in ("python", "torch", "transformers", "diffusers"):
        if package not in recording.versions:
            yield f"versions must name {package}: record with the course's own command"
    if not recording.rows:
        yield "rows are missing: record at least one"


def _rows(recording: Recording, predicted: Recording) -> Iterator[str]:
    known = {row.key: row for row in find_rows()}
    for key, results in recording.rows.items():
        if key not in known:
            yield f"{key!r} is no row of this course: record it with the course's newest version"
        elif results.get("status") not in STATUSES or "date" not in results:
            yield f"{key}: status and date must be there, the status one of {', '.join(STATUSES)}"
        elif results["status"] in ("measured", "emulated"):
            beside = predicted.rows.get(key, {}).get("report", {})
            yield from (f"{key}: {text}" for text in _row(known[key], results, beside, recording))


def _row(
    row: Row, results: dict[str, Any], beside: dict[str, Any], recording: Recording
) -> Iterator[str]:
    if row.largest:
        if not isinstance(results.get("micro_batch"), int):
            yield "micro_batch, the largest that fits, is missing"
        return
    sizes = ["requested_bytes", "peak_bytes", "reserved_bytes"]
    peaks = [results.get("report", {}).get(name) for name in sizes]
    if not all(isinstance(peak, int) for peak in peaks):
        yield f"{', '.join(sizes)} must be there, in bytes"
        return
    card = parse_bytes(recording.device.partition(", ")[2] or "1 TiB")
    if not 0 < peaks[0] <= peaks[1] <= peaks[2] <= 1.01 * card:
        words = ", ".join(map(human_bytes, peaks))
        yield f"requested, allocated, reserved ({words}) must rise, up to the {recording.device}"
    if beside and not _PLAUSIBLE[0] <= peaks[0] / beside["peak_bytes"] <= _PLAUSIBLE[1]:
        yield f"{human_bytes(peaks[0])}, where {human_bytes(beside['peak_bytes'])} is predicted"
