"""All rows as one table: predicted by category, and beside it what GPUs measured."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tutorial_lib.instruments.recorded.rows import Row
from tutorial_lib.instruments.recorded.store import Recording
from tutorial_lib.memory import MemoryReport
from tutorial_lib.units import human_bytes

_CATEGORIES = (
    *("parameters", "gradients", "optimizer_state", "activations", "recomputed", "temporary"),
)
_PREDICTED = ("forward and backward", "whole step", *_CATEGORIES, "rest", "CPU s", "process")
_MEASURED = ("requested", "allocated", "reserved", "predicted / requested", "samples per s")


def as_table(rows: Iterable[Row], predicted: Recording, measured: Sequence[Recording] = ()) -> str:
    """Write rows as a table in Markdown.

    Args:
        rows: Which rows, in which order.
        predicted: Their predictions: peak of forward and backward, peak of the whole step, what
            is held at that moment, and what predicting took (CPU seconds, memory of the process).
        measured: Recordings of GPUs, each with columns of its own.

    Returns:
        One line a row. A row that is not possible, or ran out of memory, says so.
    """
    heads = ["step", *_PREDICTED]
    for recording in measured:
        gpu = recording.device.partition(",")[0]
        heads += [f"{gpu}: {name}" for name in _MEASURED]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        beside = predicted.rows.get(row.key, {})
        cells = _of_prediction(beside)
        for recording in measured:
            cells += _of_measurement(recording.rows.get(row.key, {}), _report(beside))
        lines.append([row.key, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _report(results: dict[str, Any]) -> MemoryReport | None:
    return MemoryReport.from_json(json.dumps(results["report"])) if "report" in results else None


def _of_prediction(results: dict[str, Any]) -> list[str]:
    report = _report(results)
    if report is None:
        return [results.get("status", "-"), *[""] * (len(_PREDICTED) - 1)]
    held = [report.at_peak[name] for name in _CATEGORIES]
    peaks = (report.forward_backward_bytes, report.peak_bytes, *held, report.peak_bytes - sum(held))
    resident = results["predicting_process_bytes"]
    return [
        *map(human_bytes, peaks),
        f"{results['predicting_cpu_seconds']:.1f}",
        "-" if resident is None else human_bytes(resident),
    ]


def _of_measurement(results: dict[str, Any], predicted: MemoryReport | None) -> list[str]:
    report, rates = _report(results), results.get("samples_per_second", [])
    rate = f"{sorted(rates)[len(rates) // 2]:.1f}" if rates else ""
    if report is None:
        found = results.get("micro_batch")
        words = results.get("status", "-") if found is None else f"largest micro-batch {found}"
        return [words, "", "", "", rate]
    requested = report.requested_bytes
    ratio = f"{predicted.peak_bytes / requested:.3f}" if predicted and requested else "-"
    sizes = (requested, report.peak_bytes, report.reserved_bytes)
    return [*("-" if size is None else human_bytes(size) for size in sizes), ratio, rate]
