"""Watching one run of a student's code: its messages, its time, its memory, its processes.

CPU time decides, so that other programs on the machine cost nobody points. The clock is a backstop
behind it, and generous: code that sleeps or waits for ever uses no CPU time.
"""

import contextlib
import operator
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from solutions.grader import wire, words
from solutions.grader.inside import sandbox, student
from tutorial_lib.units import human_bytes, human_seconds

_TICK_SECONDS = 0.1
_END_SECONDS = 60  # on a busy machine a hundred killed processes take a while to end
# What is outside of functions has a check's seconds each time that it runs: for the cases, for
# the exam, and once more for each with the student's own cells whole.
_CELLS_TIMES = 4
# What the clock may show: so many times the CPU seconds, and so much more.
_CLOCK_TIMES, _CLOCK_MORE = 5, 60.0
_MOST_COUNTS, _NAME_BYTES = 1000, 100  # of what a process reports


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

    Each comes after its parent, so that none counts twice when its parent reaps it meanwhile.
    """
    total = sum(os.times()[2:4])
    for process in below:
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # its own, and on Linux of those it has reaped
    return total


def held_bytes(process: psutil.Process) -> int:
    """Measure the memory of a process, with what it shares with others; 0 where it has ended."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


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


class Time(NamedTuple):
    """Seconds of CPU time, of all processes and threads of a run together, and on the clock."""

    cpu: float = 0.0
    clock: float = 0.0


def allowed_time(seconds: float) -> Time:
    """Return the time that a function has in one check, all its cases together."""
    return Time(seconds, _CLOCK_TIMES * seconds + _CLOCK_MORE)


def longest(seconds: float) -> float:
    """Return the most that the clock shows when a check has ended, whatever an answer does."""
    return (1 + _CELLS_TIMES) * allowed_time(seconds).clock


def _now(below: list[psutil.Process]) -> Time:
    return Time(cpu_seconds(below), time.monotonic())


@dataclass
class Watch:
    """A process of a student's code, and what it is waited for, within its limits.

    It runs `num_cells` cells, then the function on one case of its check after the other.
    """

    what: tuple[str, ...]  # what it runs
    channel: socket.socket
    marks: wire.Marks
    child: int
    num_cells: int
    spent: Time  # what the function has used in earlier processes of the same check
    limits: sandbox.Limits
    in_function: bool = False
    last: int = 0  # number of the step under way
    broken: str = ""
    timed_out: bool = False
    counts: Counter[str] = field(default_factory=Counter)  # what was reported for the last case

    def __post_init__(self) -> None:
        self.number = number_outside()
        self.began = _now([])  # of the child itself, all counts
        self.started_with = held_bytes(psutil.Process(self.number))
        self.looked_at = time.monotonic()

    def wait_for(self, judge: socket.socket) -> None:
        """Wait until the judge asks again: its own time is not the answer's."""
        began = time.monotonic()
        while not self.broken and not select.select([judge], [], [], _TICK_SECONDS)[0]:
            self.broken = self._too_large(descendants(self.number))
        self.began = self.began._replace(clock=self.began.clock + time.monotonic() - began)
        self.counts = Counter()

    def outcome(self) -> tuple[bytes, bytes, int]:
        """Wait for the last message: kind, content, and the number of the step then under way.

        The kind is `wire.TIMED_OUT`, or empty, when the process gave neither a result nor an error.
        """
        while True:
            try:
                kind, content = self.marks.read(self._read)
            except wire.WireError as error:
                if self.broken:
                    return self._stopped(self.broken)
                return wire.FAILURE, f"the result cannot be read: {error}".encode(), self.last
            if kind == wire.STEP:
                self.last = int(content) if content.isdigit() and len(content) < 6 else 0
                if self.last == self.num_cells and not self.in_function:
                    self.began = _now(descendants(self.number))
                    self.in_function = True
            elif kind == wire.REPORT:
                if len(self.counts) < _MOST_COUNTS:
                    self.counts[content[:_NAME_BYTES].decode("utf-8", "replace")] += 1
            elif kind == wire.RESULT:
                return kind, content, self.last
            elif kind == wire.FAILURE:
                return kind, content[: 4 * student.ERROR_CHARACTERS], self.last
            else:
                return self._stopped(self.broken or self._how_it_ended())

    def _stopped(self, reason: str) -> tuple[bytes, bytes, int]:
        return wire.TIMED_OUT if self.timed_out else b"", reason.encode(), self.last

    def total(self) -> Time:
        """Add up what the function has used, in earlier processes too."""
        used = self._used(descendants(self.number))
        return Time(*map(operator.add, self.spent, used)) if self.in_function else self.spent

    def _used(self, below: list[psutil.Process]) -> Time:
        return Time(*map(operator.sub, _now(below), self.began))

    def _read(self, length: int) -> bytes:
        while not self.broken:
            ready = select.select([self.channel], [], [], _TICK_SECONDS)[0]
            # looked at when something came, too: a flood of messages must not keep the watch busy
            if not ready or time.monotonic() > self.looked_at + _TICK_SECONDS:
                below = descendants(self.number)
                self.broken = self._out_of_time(below) or self._too_large(below)
                self.looked_at = time.monotonic()
            elif ready:
                return self.channel.recv(length)
        return b""

    def _too_large(self, below: list[psutil.Process]) -> str:
        if len(below) > self.limits.processes:
            return words("processes", most=self.limits.processes)
        used = sum(max(0, held_bytes(one) - self.started_with) for one in below)
        if used > self.limits.memory_bytes:
            most = human_bytes(self.limits.memory_bytes)
            return words("memory", used=human_bytes(used), most=most)
        return ""

    def _out_of_time(self, below: list[psutil.Process]) -> str:
        """Say which of the two times is over, and remember it; empty when neither is."""
        before = self.spent if self.in_function else Time()
        used = map(operator.add, before, self._used(below))
        allowed = allowed_time(self.limits.seconds)
        cpu, clock = (a if a < more else 0.0 for a, more in zip(allowed, used, strict=True))
        self.timed_out = bool(cpu or clock)
        if not (late := cpu or clock):
            return ""
        again = "" if self.in_function else words("each time")
        return words("endless" if cpu else "waits", seconds=human_seconds(late), again=again)

    def _how_it_ended(self) -> str:
        late, give_up = self._out_of_time(descendants(self.number)), time.monotonic() + 1
        # The channel may have been closed by a process that lives on: it gets a moment to end.
        while not late and time.monotonic() < give_up:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return self._described(os.waitstatus_to_exitcode(status))
            time.sleep(0.01)
        return late or "closed its channel to the grader."

    def _described(self, code: int) -> str:
        if code == -signal.SIGXCPU:  # where this watch sees no CPU times
            self.timed_out = True
            return words("no time left")
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if -code in set(signal.Signals):  # real-time signals have no name
            how = signal.Signals(-code).name
        return f"ended the whole Python process ({how})."
