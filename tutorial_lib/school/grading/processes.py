"""Watching the processes that a student's code starts, and ending all of them; ending our own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

_PROC = Path("/proc")
# Fields of /proc/NUMBER/stat, counted from behind the name.
_PARENT, _TIMES, _CHILDREN_TIMES = 1, slice(11, 15), slice(13, 15)


def descendants(pid: int) -> list[int]:
    """List all processes below one, by the numbers that this machine's /proc uses."""
    parents: dict[int, int] = {}
    for entry in _numbered():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[entry] = int(_stat(entry)[_PARENT])
    found, layer = [], {pid}
    while layer:
        layer = {child for child, parent in parents.items() if parent in layer}
        found += sorted(layer)
    return found


def _stat(pid: int) -> list[str]:
    # the name stands in brackets and may hold anything, so count from behind it
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def cpu_seconds(pid: int, below: Sequence[int]) -> float:
    """Sum the CPU time of all processes below one, also of those that it has buried.

    0 where there is no /proc, as on macOS.

    Args:
        pid: The one above; its own time does not count.
        below: Its `descendants`. Each stands behind its parent, so that none counts twice when its
            parent buries it meanwhile.
    """
    ticks = 0
    for number, fields in ((pid, _CHILDREN_TIMES), *((one, _TIMES) for one in below)):
        with contextlib.suppress(OSError, ValueError):
            ticks += sum(map(int, _stat(number)[fields]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _numbered() -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def own_bytes(pid: int) -> int:
    """Measure the memory that a process holds for itself or shares with its own children."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # one that has ended has no memory
        fields = dict(
            line.split(":", 1) for line in (_PROC / str(pid) / "status").read_text().splitlines()
        )
        return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return 0


def number_outside() -> int:
    """Ask /proc for the number of this process: not getpid() when in a process namespace."""
    try:
        return int((_PROC / "self").readlink().name)
    except (OSError, ValueError):
        return os.getpid()


def end_everything_below(*, first_of_namespace: bool) -> None:
    """Kill and bury every process below this one; returns when none is left.

    Args:
        first_of_namespace: This process is number 1 of its own process namespace, so that one
            signal reaches everything in it, and nothing else.
    """
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        if first_of_namespace and os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        if not _bury():
            return
        time.sleep(0.002)


def _bury() -> bool:
    """Collect what has ended; True while children are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Take a request to end, as `kill` or a closed terminal sends it, for a Ctrl-C.

    Only in the main thread, where Python lets signals be handled; elsewhere nothing changes.
    """
    taken: list[signal.Signals] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        for name in taken:  # a second one must not stop the cleaning up
            signal.signal(name, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(name) == signal.SIG_DFL:  # nohup ignores one of them
                    signal.signal(name, interrupt)
                    taken.append(name)
        yield
    finally:
        for name in taken:
            signal.signal(name, signal.SIG_DFL)
