"""Requests to grade: sensible limits, a machine with the tools, and its number of workers."""

import contextlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import joblib  # type: ignore[import-untyped]
import psutil

from solutions.grader import GradingError
from tutorial_lib.units import GIB

_DAY = 86_400.0
_MOST_WORKERS = 8
_JUDGE_BYTES = GIB // 4
_NEEDED = ("nbval", "pytest", "ipykernel", "pandas", "rich", "psutil", "jinja2")


def check_request(seconds: float, memory_bytes: int, workers: int | None) -> None:
    """Refuse, as a GradingError, limits or a machine with which nothing could be graded."""
    if not 0 < seconds < _DAY or memory_bytes <= 0 or (workers is not None and workers < 1):
        raise GradingError(
            f"seconds (={seconds}), memory_bytes (={memory_bytes}) and workers (={workers}) must "
            "be positive, and seconds less than a day."
        )
    if not hasattr(os, "fork"):
        raise GradingError(
            "grading needs Linux or macOS, since it forks: on Windows, run it in WSL."
        )
    if sys.platform.startswith("linux") and not Path("/proc/self/status").exists():
        raise GradingError("grading needs /proc, where it watches processes: mount it.")
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise GradingError(
            f"grading needs {', '.join(missing)}: install with pip install -e '.[grade]'."
        )


def default_workers(memory_bytes: int) -> int:
    """Return the number of submissions to grade at once, each using `memory_bytes` at most.

    One for each core that this process may use, by its affinity and by its container's quota, and
    only as many as find room in the free memory.
    """
    cores = int(joblib.cpu_count())
    return max(1, min(_MOST_WORKERS, cores, _free_bytes() // (memory_bytes + _JUDGE_BYTES)))


def _free_bytes() -> int:
    """Read how much memory is free, on the machine and in this process's container."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit: "max"
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return free
