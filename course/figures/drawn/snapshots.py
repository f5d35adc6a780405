"""The explorer of a snapshot of CUDA's allocator: pick a moment, see who holds the memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tutorial_lib.plots.base import CourseFigure

from .explorer import Control, Explorer
from .planning import holders

Events = Sequence[Mapping[str, Any]]


def snapshot_triage(traces: Mapping[str, Events]) -> Explorer:
    """Go through snapshots in time: which line of Python holds how much at each moment.

    Args:
        traces: Name of each snapshot; its events, `snapshot["device_traces"][0]`. What was held
            before its first event is not in them. A run that ran out of memory ends there.

    Raises:
        ValueError: When there is no snapshot, or one without an allocation.
    """
    if not traces:
        raise ValueError("traces is empty: give the events of at least one snapshot.")
    cut = {name: _until_memory_ran_out(events) for name, events in traces.items()}
    curves = {name: _held_after_each(events) for name, events in cut.items()}
    for name, curve in curves.items():
        if not any(curve):
            raise ValueError(f"snapshot {name!r} holds no allocation: record a step with work.")

    def draw(name: str, moment: int) -> CourseFigure:
        curve = curves[name]
        num_events = max(1, len(curve) * moment // 100)
        return holders(curve, num_events, _by_line(cut[name][:num_events]), title=name)

    names = list(traces)
    controls = {
        "name": Control("snapshot", names, names[0], menu=True),
        "moment": Control("moment, %", range(1, 101), 100),
    }
    return Explorer(draw, controls)


def _until_memory_ran_out(events: Events) -> Events:
    ends = (place for place, event in enumerate(events) if event["action"] == "oom")
    return events[: next(ends, len(events))]


def _held_after_each(events: Events) -> list[int]:
    living, held, curve = dict[int, int](), 0, []
    for event in events:
        if event["action"] == "alloc":
            living[event["addr"]] = event["size"]
            held += event["size"]
        elif event["action"] == "free_completed":
            held -= living.pop(event["addr"], 0)
        curve.append(held)
    return curve


def _by_line(events: Events) -> dict[str, tuple[int, int]]:
    """Bytes and number of tensors by the line that asked for them, the largest first."""
    living = dict[int, Mapping[str, Any]]()
    for event in events:
        if event["action"] == "alloc":
            living[event["addr"]] = event
        elif event["action"] == "free_completed":
            living.pop(event["addr"], None)
    size, count = Counter[str](), Counter[str]()
    for event in living.values():
        frames = event["frames"]
        line = "{filename}:{line}".format(**frames[0]) if frames else "(backward)"
        size[line] += event["size"]
        count[line] += 1
    return {line: (num_bytes, count[line]) for line, num_bytes in size.most_common()}
