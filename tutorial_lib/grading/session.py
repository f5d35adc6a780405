"""One submission's session: answers the judge's requests by runs in fresh, shut-in processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tutorial_lib.grading import processes, sandbox, student
from tutorial_lib.grading.wire import VALUE_BYTES, WireError, decode, frame, read_frame
from tutorial_lib.units import human_bytes, human_seconds

_TICK_SECONDS = 0.1
_ACCEPT_SECONDS = 120
# What stands outside of functions runs anew for each case: it may take a check's seconds once, and
# so many times over all its cases.
_CELLS_TIMES = 3
_EACH_TIME = (
    " What stands outside of functions runs anew for each case of a check: keep what you try out "
    "in cells of your own."
)


def longest(seconds: float) -> float:
    """Give the seconds after which a check has ended, whatever an answer does."""
    return (1 + _CELLS_TIMES) * seconds


@dataclass(frozen=True)
class Setting:
    """What is the same for every submission of a class.

    Args:
        limits: What one check may use; a function has the seconds for all its cases together.
        readable: What a student's code may read.
        package: Where checks are found.
        namespaces: One of `sandbox.NAMESPACE_CHOICES`, tried beforehand.
    """

    limits: sandbox.Limits
    readable: Sequence[Path]
    package: str
    namespaces: int


def start_session(folder: Path, setting: Setting) -> None:
    """Serve one judge, in namespaces of its own, until it hangs up.

    Args:
        folder: Holds `bundle.json`; the socket and the scratch folder are made in it.
        setting: The class's setting.
    """
    sandbox.die_with_parent()
    student.quiet([0, 1])  # what goes wrong here stands in the server's log
    bundle = json.loads((folder / "bundle.json").read_text())
    connection = _accept_one(folder / "socket")
    sandbox.enter_namespaces(setting.namespaces)
    first = os.fork()  # the first process of the new process namespace
    if first:
        connection.close()
        os.waitpid(first, 0)
        return
    sandbox.die_with_parent()
    os.setsid()
    sandbox.adopt_orphans()
    sandbox.hide_memory()
    Session(connection, folder, bundle, setting).serve()


def _accept_one(path: Path) -> socket.socket:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(_ACCEPT_SECONDS)
        connection = listener.accept()[0]
    path.unlink()  # nobody else may connect
    connection.settimeout(None)
    return connection


@dataclass
class _Spent:
    """Seconds that a check has spent, over all its cases."""

    in_cells: float = 0.0
    in_function: float = 0.0


class Session:
    """Runs checks of one submission, and remembers which of its cells cannot be run.

    Args:
        connection: To the judge.
        folder: The submission's own, in the workshop.
        bundle: `steps` (cells in order) and `problems` (exercises without an answer).
        setting: The class's setting.
    """

    def __init__(
        self,
        connection: socket.socket,
        folder: Path,
        bundle: Mapping[str, Any],
        setting: Setting,
    ) -> None:
        self.connection, self.folder, self.setting = connection, folder, setting
        self.steps: list[dict[str, Any]] = bundle["steps"]
        self.problems: dict[str, str] = dict(bundle["problems"])
        self.spent: dict[str, _Spent] = {}
        self.runs = 0

    def serve(self) -> None:
        """Answer requests until the judge hangs up."""
        while True:
            kind, content = read_frame(self.connection.recv)
            if not kind:
                return
            self.connection.sendall(frame(*self._answer(decode(content))))

    def _answer(self, request: dict[str, Any]) -> tuple[bytes, bytes]:
        exercise, check = request["exercise"], request["check"]
        if exercise in self.problems:
            return student.FAILURE, self.problems[exercise].encode("utf-8", "replace")
        upto = next(i for i, step in enumerate(self.steps) if step["exercise"] == exercise)
        steps = [step for step in self.steps[: upto + 1] if step["exercise"] not in self.problems]
        spent = self.spent.setdefault(check, _Spent())
        kind, content, last = self._run(steps, request, spent)
        if kind:
            left_out = [step["exercise"] for step in self.steps[:upto] if step not in steps]
            if kind == student.FAILURE and left_out:
                content += f"\n(Left out above it: exercise {', '.join(left_out)}.)".encode()
            return kind, content
        culprit = steps[last]["exercise"] if last < len(steps) else None
        what = (
            f"answer cell of exercise {culprit}" if culprit else f"function of exercise {exercise}"
        )
        message = f"the {what} {content.decode()}"
        if culprit:
            self.problems[culprit] = f"{message} It was left out from then on."
            if culprit != exercise:  # an earlier cell is to blame: go on without it
                del self.spent[check]
                return self._answer(request)
        return student.FAILURE, message.encode()

    def _run(
        self, steps: Sequence[Mapping[str, Any]], request: dict[str, Any], spent: _Spent
    ) -> tuple[bytes, bytes, int]:
        """Fork, wait, clean up; no kind when the process gave neither a result nor an error."""
        scratch = self._fresh_scratch()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._become_student(writing, scratch, steps, request)
        os.close(writing)
        watch = _Watch(reading, child, len(steps), spent, self.setting.limits)
        try:
            return watch.outcome()
        finally:
            watch.charge()
            os.close(reading)
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            processes.end_everything_below(first_of_namespace=bool(self.setting.namespaces))

    def _become_student(
        self,
        writing: int,
        scratch: Path,
        steps: Sequence[Mapping[str, Any]],
        request: dict[str, Any],
    ) -> None:
        try:
            os.setsid()  # a signal to its own group must reach nobody else
            student.quiet([0, 1, 2])
            self.connection.close()
            os.closerange(3, writing)
            os.closerange(writing + 1, 2**20)
            setting = self.setting
            sandbox.confine(setting.limits, setting.readable, scratch, flags=setting.namespaces)
            student.work(writing, steps, request, setting.package)
        finally:
            os._exit(1)

    def _fresh_scratch(self) -> Path:
        if self.setting.namespaces:
            # over the whole workshop: the sockets of other submissions stand in it
            sandbox.mount_scratch(self.folder.parent)
        self.runs += 1
        scratch = self.folder / "scratch" / str(self.runs)
        scratch.mkdir(parents=True)
        return scratch


class _Watch:
    """Waits for what a student's process sends, while it keeps within its limits."""

    def __init__(
        self, pipe: int, child: int, num_cells: int, spent: _Spent, limits: sandbox.Limits
    ) -> None:
        self.pipe, self.child, self.limits = pipe, child, limits
        self.num_cells, self.spent, self.began = num_cells, spent, time.monotonic()
        left = _CELLS_TIMES * limits.seconds - spent.in_cells
        self.deadline = self.began + min(limits.seconds, left)
        self.allowed = limits.seconds * (1 if left >= limits.seconds else _CELLS_TIMES)
        self.in_function = False
        self.started_with = processes.own_bytes(processes.number_outside())
        self.last = 0
        self.broken = ""
        self.looked_at = time.monotonic()

    def outcome(self) -> tuple[bytes, bytes, int]:
        """Wait for the last message: kind, content, and the number of the step then under way."""
        while True:
            try:
                kind, content = read_frame(self._read, VALUE_BYTES)
            except WireError as error:
                if self.broken:
                    return b"", self.broken.encode(), self.last
                return student.FAILURE, f"the result cannot be read: {error}".encode(), self.last
            if kind == student.STEP:
                self.last = int(content) if content.isdigit() and len(content) < 6 else 0
                if self.last == self.num_cells and not self.in_function:
                    self.charge()
                    self.in_function = True
                    self.allowed = self.limits.seconds
                    self.deadline = self.began + self.allowed - self.spent.in_function
            elif kind == student.RESULT:
                return kind, content, self.last
            elif kind == student.FAILURE:
                return kind, content[: 4 * student.ERROR_CHARACTERS], self.last
            else:
                return b"", (self.broken or self._how_it_ended()).encode(), self.last

    def charge(self) -> None:
        """Add the time since the last call to what the check has spent."""
        now = time.monotonic()
        if self.in_function:
            self.spent.in_function += now - self.began
        else:
            self.spent.in_cells += now - self.began
        self.began = now

    def _read(self, length: int) -> bytes:
        while not self.broken:
            ready = select.select([self.pipe], [], [], _TICK_SECONDS)[0]
            # looked at when something came, too: a flood of messages must not keep the watch busy
            if not ready or time.monotonic() > self.looked_at + _TICK_SECONDS:
                self.broken = self._over_the_limit()
                self.looked_at = time.monotonic()
            elif ready:
                return os.read(self.pipe, length)
        return b""

    def _over_the_limit(self) -> str:
        if time.monotonic() > self.deadline:
            seconds = human_seconds(self.allowed)
            again = "" if self.in_function else _EACH_TIME
            return f"was stopped after {seconds}: is there a loop that does not end?{again}"
        below = processes.descendants(processes.number_outside())
        if len(below) > self.limits.processes:
            return f"was stopped: it started more than {self.limits.processes} processes."
        used = sum(max(0, processes.own_bytes(pid) - self.started_with) for pid in below)
        if used > self.limits.memory_bytes:
            allowed = human_bytes(self.limits.memory_bytes)
            return f"was stopped: it used {human_bytes(used)} of memory, and {allowed} are allowed."
        return ""

    def _how_it_ended(self) -> str:
        if time.monotonic() > self.deadline:
            return self._over_the_limit()
        # The pipe may have been closed by a process that lives on: it gets a moment to end.
        give_up = time.monotonic() + 1
        while time.monotonic() < give_up:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                how = f"exit code {code}" if code >= 0 else _signal_name(-code)
                return f"ended the whole Python process ({how})."
            time.sleep(0.01)
        return "closed the pipe to the grader."


def _signal_name(number: int) -> str:
    # real-time signals have no name
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
