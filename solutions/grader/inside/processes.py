"""Processes of a student's code: their time and memory, from outside and inside; ending them."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

_ON_LINUX = sys.platform.startswith("linux")
_END_SECONDS = 60  # on a busy machine a hundred killed processes take a while to end


def descendants(number: int) -> list[psutil.Process]:
    """List all processes below one, by its `number_outside`, each behind its parent."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):  # it has ended
        if not Path("/proc/thread-self/children").exists():  # then all of the machine's are read
            return list(psutil.Process(number).children(recursive=True))
    numbers = [number]
    for one in numbers:  # which grow
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError, psutil.Error):
                for child in map(int, children.read_text().split()):
                    found.append(psutil.Process(child))
                    numbers.append(child)
    return found


def cpu_seconds(below: Sequence[psutil.Process]) -> float:
    """Sum the CPU time of all processes below this one, also of those that it has reaped.

    Each of its `descendants` comes after its parent, so that none counts twice when its parent
    reaps it meanwhile.
    """
    reaped = os.times()
    total = reaped.children_user + reaped.children_system
    for process in below:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own, and on Linux of those it has reaped
    return total


def held_bytes(process: psutil.Process | int) -> int:
    """Measure the memory of a process, with what it shares with others; 0 where it has ended."""
    with contextlib.suppress(psutil.Error):
        there = psutil.Process(process) if isinstance(process, int) else process
        return int(there.memory_info().rss)
    return 0


def mapped_bytes(kind: str) -> int:
    """Measure what this process has mapped: `VmData` for what is its own, `VmSize` for all."""
    if not _ON_LINUX:
        return 0
    return int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]) * 1024


def number_outside() -> int:
    """Ask /proc for the number of this process: not getpid() when in a process namespace."""
    try:
        return int(Path("/proc/self").readlink().name)
    except (OSError, ValueError):  # no Linux, and no namespaces either
        return os.getpid()


def end_everything_below(*, first_of_namespace: bool) -> None:
    """Kill and reap every process below this one; the first of its namespace needs one signal."""
    give_up = time.monotonic() + _END_SECONDS
    while time.monotonic() < give_up:
        if first_of_namespace and os.getpid() == 1:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for process in descendants(os.getpid()):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none is left
            return
        time.sleep(0.002)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Take a request to end, as `kill` or a closed terminal sends it, for a Ctrl-C.

    Only in the main thread, where Python lets signals be handled; elsewhere nothing changes.
    """

    def interrupt(number: int, frame: object) -> NoReturn:
        for name in taken:  # a second one must not stop the cleaning up
            signal.signal(name, signal.SIG_IGN)
        raise KeyboardInterrupt

    names = (signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    # nohup ignores one of them
    taken = [name for name in names if is_main and signal.getsignal(name) == signal.SIG_DFL]
    try:
        for name in taken:
            signal.signal(name, interrupt)
        yield
    finally:
        for name in taken:
            signal.signal(name, signal.SIG_DFL)
