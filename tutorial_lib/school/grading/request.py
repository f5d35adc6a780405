"""What a request to grade needs: sensible limits, and a machine with the tools."""

from __future__ import annotations

import os
from importlib import metadata

import joblib  # type: ignore[import-untyped]

from tutorial_lib.school.grading.errors import GradingError

_DAY = 86_400.0
_MOST_WORKERS = 8
_NEEDED = ("nbval", "pytest", "ipykernel", "pandas", "rich", "psutil", "jinja2")


def check_limits(seconds: float, memory_bytes: int, workers: int | None) -> None:
    """Refuse limits under which nothing could be graded.

    Raises:
        GradingError: When one is not positive, or the time longer than a day.
    """
    if not 0 < seconds < _DAY or memory_bytes <= 0 or (workers is not None and workers < 1):
        raise GradingError(
            f"seconds (={seconds}), memory_bytes (={memory_bytes}) and workers (={workers}) must "
            "be positive, and seconds less than a day."
        )


def default_workers() -> int:
    """Give the number of submissions to grade at once: one for each core, but not too many.

    Only cores that this process may use count, by its affinity and by its container's quota.
    """
    return min(_MOST_WORKERS, int(joblib.cpu_count()))


def check_tools() -> None:
    """Refuse a machine that cannot grade.

    Raises:
        GradingError: When it cannot fork, or a package is missing.
    """
    if not hasattr(os, "fork"):
        raise GradingError(
            "grading needs Linux or macOS, since it forks: on Windows, run it in WSL."
        )
    missing = []
    for name in _NEEDED:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise GradingError(
            f"grading needs {', '.join(missing)}: install with pip install -e '.[grade]'."
        )
