"""One submission's session: answers the judge's requests by runs in fresh, shut-in processes.

Each check has a process of its own, in which its cases run one after the other, as in a notebook.
So has each memory exam, and each case that asks for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.grader import wire
from solutions.grader.inside import sandbox, student
from solutions.grader.inside.watch import Time, Watch, end_everything_below
from solutions.grader.submissions.slice_cells import up_to
from tutorial_lib.checks.given.half import ANEW, EXAM_BYTES

if TYPE_CHECKING:
    from solutions.grader.submissions.answers import Step

_ACCEPT_SECONDS = 120
_ALONE = {EXAM_BYTES, ANEW}  # in cases with a process of their own
_SEND_SECONDS = 10  # a process that waits for its next case reads at once


@dataclass(frozen=True)
class Setting:
    """What is the same for every submission of a class."""

    limits: sandbox.Limits  # of one check; a function has the seconds for all its cases together
    readable: Mapping[Path, bool]  # what a student's code may read, as `sandbox.confine` wants it
    package: str  # where checks are found
    namespaces: int  # one of `sandbox.NAMESPACE_CHOICES`, tried beforehand
    holds_exams: bool = False  # whether this machine can hold a memory exam


def start_session(folder: Path, setting: Setting) -> None:
    """Serve one judge, in namespaces of its own, until it hangs up."""
    sandbox.die_with_parent()
    student.quiet([0, 1])  # what goes wrong here stands in the server's log
    bundle = json.loads((folder / "bundle.json").read_text())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        listener.settimeout(_ACCEPT_SECONDS)
        connection = listener.accept()[0]
    (folder / "socket").unlink()  # nobody else may connect
    connection.settimeout(None)
    sandbox.enter_namespaces(setting.namespaces)
    first = os.fork()  # the first process of the new process namespace
    if first:
        connection.close()
        os.waitpid(first, 0)
        return
    sandbox.die_with_parent()
    os.setsid()
    sandbox.adopt_orphans_and_hide_memory()
    Session(connection, folder, setting, **bundle).serve()


@dataclass
class Session:
    """Runs checks of one submission, and remembers which of its cells cannot be run."""

    connection: socket.socket  # to the judge
    folder: Path  # the submission's own, in the run's directory
    setting: Setting
    steps: list[Step]  # these three as in `Answers`
    cuts: dict[str, list[str]]
    problems: dict[str, str]
    spent: dict[str, Time] = field(default_factory=dict)  # by check
    late: set[str] = field(default_factory=set)  # what among the problems ran out of time
    num_runs: int = 0
    run: Watch | None = None  # of the last process, while it lives
    counts: Mapping[str, int] = field(default_factory=dict)  # what was reported for the last case

    def serve(self) -> None:
        """Answer requests until the judge hangs up."""
        while True:
            if self.run:
                self.run.wait_for(self.connection)
                if self.run.broken:
                    self._kill(self.run.child)
            kind, content = wire.read_frame(self.connection.recv)
            if not kind:
                return self._end_run()
            answer = wire.frame(*self._answer(wire.Request(**wire.decode(content))))
            counts = wire.frame(wire.COUNTS, json.dumps(self.counts).encode())
            self.connection.sendall(counts + answer)

    def _answer(self, request: wire.Request, whole: bool = False) -> tuple[bytes, bytes]:
        """Run a request; `whole` leaves the student's own cells as they are."""
        exercise = request.exercise
        if EXAM_BYTES in request.case and not self.setting.holds_exams:
            return wire.NOT_HELD, b""
        if exercise in self.problems:
            return self._failure([exercise]), self.problems[exercise].encode("utf-8", "replace")
        above = up_to(self.steps, exercise)
        steps = [step for step in above if _name(step) not in self.problems]
        is_cut = len(steps) == len(above) and not whole
        work = student.Work(steps, request, whole, self.cuts.get(exercise) if is_cut else None)
        kind, content, last = self._run(work)
        if not kind and b"(SIGSEGV)" in content:  # once in thousands of runs a library crashes
            kind, content, last = self._run(work)
        own = any("keep" in step for step in steps)
        if kind == wire.FAILURE and own and not whole and b"not define" in content:
            # a name that no statement of an own cell seems to define: now these cells run whole
            return self._answer(request, whole=True)
        if kind in (wire.RESULT, wire.FAILURE):
            left_out = [_name(step) for step in above if step not in steps]
            if kind == wire.FAILURE and left_out:
                said = ", ".join(n if n[0] == "<" else f"exercise {n}" for n in left_out)
                content += f"\n(Left out above it: {said}.)".encode("utf-8", "replace")
                kind = self._failure(left_out)
            return kind, content
        culprit = _name(steps[last]) if last < len(steps) else None
        what = f"{'answer cell' if culprit else 'function'} of exercise {culprit or exercise}"
        message = f"the {what} {content.decode()}"
        if culprit:
            self.problems[culprit] = f"{message} It was left out from then on."
            if kind == wire.TIMED_OUT:
                self.late.add(culprit)
            if culprit != exercise:  # an earlier cell is to blame: go on without it
                return self._answer(request, whole)
        return kind or wire.FAILURE, message.encode()

    def _failure(self, names: Sequence[str]) -> bytes:  # where cells were left out
        return wire.FAILURE if self.late.isdisjoint(names) else wire.TIMED_OUT

    def _run(self, work: student.Work) -> tuple[bytes, bytes, int]:
        """Have the process of a check run one more case, or a fresh one: `Watch.outcome`."""
        request = work.request
        exam_bytes = request.case.get(EXAM_BYTES, 0)
        what = (request.check, request.exercise, request.name)
        if self.run and self.run.what == what and request.case.keys().isdisjoint(_ALONE):
            with contextlib.suppress(OSError):  # where it does not read, the watch will say why
                self.run.channel.sendall(wire.frame(wire.REQUEST, wire.encode(request.case)))
        else:
            self._end_run()
            self.run = self._begin(what, work, exam_bytes)
        outcome = self.run.outcome()
        self.counts = self.run.counts
        if exam_bytes or outcome[0] != wire.RESULT:
            self._end_run()
        return outcome

    def _begin(self, what: tuple[str, ...], work: student.Work, exam_bytes: int) -> Watch:
        if self.setting.namespaces:
            # over the whole run's directory: the sockets of other submissions stand in it
            sandbox.mount_scratch(self.folder.parent)
        self.num_runs += 1
        scratch = self.folder / "scratch" / str(self.num_runs)
        scratch.mkdir(parents=True)
        # a socket, which unlike a pipe has no name in /proc that could be opened again
        ours, theirs = socket.socketpair()
        ours.settimeout(_SEND_SECONDS)
        writing = theirs.detach()
        marks = wire.Marks()
        limits = self.setting.limits
        limits = limits.in_exam(exam_bytes) if exam_bytes else limits
        child = os.fork()
        if not child:
            ours.close()
            self._run_as_student(writing, marks, scratch, work, limits)
        os.close(writing)
        spent = self.spent.get(work.request.check, Time())
        return Watch(what, ours, marks, child, len(work.steps), spent, limits)

    def _end_run(self) -> None:
        if self.run:
            self.run.channel.close()
            self._kill(self.run.child)
            self.spent[self.run.what[0]] = self.run.total()
        self.run = None

    def _kill(self, child: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        end_everything_below(first_of_namespace=bool(self.setting.namespaces))

    def _run_as_student(
        self, out: int, marks: wire.Marks, scratch: Path, work: student.Work, limits: sandbox.Limits
    ) -> None:
        try:
            os.setsid()  # a signal to its own group must reach nobody else
            student.quiet([0, 1, 2])
            self.connection.close()
            os.closerange(3, out)
            os.closerange(out + 1, 2**20)
            setting = self.setting
            half = student.find_half(setting.package, work.request.check)
            limits = replace(limits, threads=half.threads)
            sandbox.confine(limits, setting.readable, scratch, flags=setting.namespaces)
            student.do(work, half, out, marks)
        finally:
            os._exit(1)


def _name(step: Mapping[str, Any]) -> str:
    """Name an exercise, or a cell of the student's own; empty for a cell of the course."""
    return str(step["exercise"] or (step["file"] if "keep" in step else ""))
