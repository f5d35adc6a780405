"""Processes of a student's code: their time and memory, from outside and inside; ending them."""

import contextlib
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

_STATUS = Path("/proc/self/status")
_ON_LINUX = sys.platform.startswith("linux")
_END_SECONDS = 60  # on a busy machine a hundred killed processes take a while to end
_LIMITS = {"VmData": "RLIMIT_DATA", "VmSize": "RLIMIT_AS"}


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


def cpu_seconds(below: Sequence[psutil.Process], child: int) -> float:
    """Sum the CPU time of all processes below this one, also of those that it has reaped.

    Args:
        below: Its `descendants`. Each stands behind its parent, so that none counts twice when its
            parent reaps it meanwhile.
        child: The one that this process started; without /proc it is alone, and in no list.
    """
    reaped = os.times()
    total = reaped.children_user + reaped.children_system
    for process in below:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own, and on Linux of those it has reaped
    if not below:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(~child << 3 | 2)  # Linux's number of a process's CPU clock
    return total


def held_bytes(process: psutil.Process | int) -> int:
    """Measure the memory of a process, what it shares with others included; 0 where it has ended.

    Without /proc it is 0 too: then `sandbox` limits memory, and lets no process start another.
    """
    with contextlib.suppress(psutil.Error):
        there = psutil.Process(process) if isinstance(process, int) else process
        return int(there.memory_info().rss)
    return 0


def sees_memory() -> bool:
    """Tell whether processes can be watched from outside, which on Linux needs /proc."""
    return _STATUS.exists() or not _ON_LINUX


def mapped_bytes(kind: str) -> int:
    """Measure what this process has mapped: `VmData` for what is its own, `VmSize` for all."""
    if not _ON_LINUX:
        return 0
    if not sees_memory():
        return _lowest_limit(_LIMITS[kind])
    return int(_STATUS.read_text().split(f"{kind}:")[1].split()[0]) * 1024


def _lowest_limit(name: str) -> int:
    """Search the highest limit under which not one page more can be mapped."""
    import resource  # there is none on Windows

    kind = getattr(resource, name)
    before = resource.getrlimit(kind)
    low, high = 0, 2**35  # in pages of 4 KiB: all that an address can name
    try:
        while high - low > 1:
            middle = (low + high) // 2
            resource.setrlimit(kind, (middle * mmap.PAGESIZE, before[1]))
            try:
                mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
                high = middle
            except (OSError, MemoryError):
                low = middle
    finally:
        resource.setrlimit(kind, before)
    return low * mmap.PAGESIZE


def number_outside() -> int:
    """Ask /proc for the number of this process: not getpid() when in a process namespace."""
    try:
        return int(Path("/proc/self").readlink().name)
    except (OSError, ValueError):  # no /proc, and no namespaces either
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
