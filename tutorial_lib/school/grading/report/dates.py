"""When something was handed in, and how late that was."""

from __future__ import annotations

import contextlib
import math
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tutorial_lib.school.grading.errors import GradingError

_TIMESTAMP = "timestamp.txt"  # nbgrader's, beside the notebook
_DAY = timedelta(days=1)


def handed_in(path: Path) -> tuple[str, str]:
    """Say when a submission was handed in, and how that is known.

    Args:
        path: Of the submission.

    Returns:
        The date in ISO 8601, and `timestamp.txt` or `file time`; both empty where it is gone.
    """
    with contextlib.suppress(OSError, ValueError):
        written = _small_text(path.parent / _TIMESTAMP).strip().replace(" UTC", "+00:00")
        return _aware(datetime.fromisoformat(written)).isoformat(timespec="seconds"), _TIMESTAMP
    with contextlib.suppress(OSError, ValueError, OverflowError):
        time = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
        return time.astimezone().isoformat(timespec="seconds"), "file time"
    return "", ""


def _small_text(path: Path) -> str:
    """Read what nbgrader writes; a link, a pipe or a long file is none of it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file.")
        return file.read(100).decode("ascii")


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.astimezone()


def read_deadline(text: str) -> datetime:
    """Read a date, as in `2026-11-30T23:59+01:00`; without a zone, it is this machine's.

    Raises:
        GradingError: When it is no such date.
    """
    try:
        return _aware(datetime.fromisoformat(text))
    except ValueError as error:
        raise GradingError(
            f"the deadline {text!r} is no date: write it like 2026-11-30T23:59."
        ) from error


def late_days(when: str, deadline: datetime | None) -> int:
    """Count the days after a deadline that have begun; 0 without a date or a deadline."""
    if not when or deadline is None:
        return 0
    return max(0, math.ceil((datetime.fromisoformat(when) - deadline) / _DAY))
