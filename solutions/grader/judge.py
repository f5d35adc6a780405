"""The judges' server: has torch, the checks and their oracles in memory, and forks judges.

A judge is pytest with nbval, whose kernel is in here, on the pristine lab; remote functions stand
in place of a student's. Started from nothing, it imports for three seconds and computes every
oracle again. Forked from here, it begins at once. No line of a submission runs in here, nor in any
judge.
"""

import contextlib
import functools
import gc
import json
import os
import pkgutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn

# Before nbval: it says which part of its imports is left out.
import tutorial_lib.school  # noqa: F401  # isort: skip
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbval import plugin
from traitlets.config import Config

from solutions.grader import wire
from solutions.grader.inside import sandbox
from solutions.grader.launch import FOLDER_VARIABLES, serve_forks, take_order
from solutions.grader.results import Verdict
from tutorial_lib.checks.given import Case, CheckError, Result, outside

SOCKET_VARIABLE = "TUTORIAL_LIB_GRADE_SOCKET"
_CONNECT_SECONDS = 60.0
_EVIDENCE_CHARACTERS = 6000


class SessionLost(RuntimeError):  # noqa: N818 - named for what happened
    """The session ended: no fault of the answer, so the submission is judged once more."""


class OutOfTime(CheckError):  # noqa: N818 - named for what happened
    """The answer was stopped for its time: no points, but a busy machine may be to blame."""


class RemoteFunction:
    """Names a function that an answer cell defines in the student's process, for a check alone."""

    def __init__(self, exercise: str, name: str) -> None:
        self.exercise, self.name = exercise, name

    def run_remotely(self, check: str, case: Case) -> Result | None:
        """Have the `run` half of a check done in the student's process.

        Its plain data may be anything, even malicious; it is None for a memory exam not held. A
        CheckError says why an answer gave nothing usable, and is OutOfTime where its time ran out;
        SessionLost says that its process could not be reached.
        """
        request = vars(wire.Request(check, self.exercise, self.name, case))
        try:
            connection = _connection()
            connection.sendall(wire.frame(wire.REQUEST, wire.encode(request)))
            counts = wire.read_frame(connection.recv, wire.TEXT_BYTES)[1]
            kind, content = wire.read_frame(connection.recv)
        except (OSError, wire.WireError) as error:
            raise SessionLost(str(error)) from error
        if kind in (wire.FAILURE, wire.TIMED_OUT):
            failed = OutOfTime if kind == wire.TIMED_OUT else CheckError
            raise failed(content.decode("utf-8", "replace"))
        if kind == wire.NOT_HELD:
            return None
        if kind != wire.RESULT:
            raise SessionLost("it ended without an answer.")
        try:
            result = wire.decode(content)
        except wire.WireError as error:
            raise CheckError(f"the result of your code cannot be read: {error}") from error
        if not isinstance(result, dict):
            raise CheckError("your code gave no result.")
        return result | {outside.COUNTS: json.loads(counts)}

    def __call__(self, *arguments: object, **options: object) -> None:
        """Refuse to be called: a student's code never runs in the judge's process."""
        raise CheckError(f"{self.name} can only be handed to a check while a lab is graded.")


@functools.cache
def _connection() -> socket.socket:
    give_up, path = time.monotonic() + _CONNECT_SECONDS, os.environ[SOCKET_VARIABLE]
    while number := (connection := socket.socket(socket.AF_UNIX)).connect_ex(path):
        connection.close()
        if time.monotonic() > give_up:
            raise OSError(number, os.strerror(number))
        time.sleep(0.02)  # the other side is still being started
    return connection


def hang_up() -> None:
    """End this process's session; the next request opens the one that is then named."""
    if _connection.cache_info().currsize:
        _connection().close()
    _connection.cache_clear()


class _Shell(InteractiveShell):  # type: ignore[misc]
    """IPython without a history; an error goes into its result, and is not shown."""

    def __init__(self) -> None:
        super().__init__(config=Config({"HistoryManager": {"enabled": False}}))

    def showtraceback(self, *_: Any, **__: Any) -> None:
        pass

    showsyntaxerror = showtraceback


class Kernel:
    """Runs cells in nbval's own process: a judge's notebook has no line of a submission.

    It has what nbval calls of its `RunningKernel`. What a cell gave waits in `messages`.
    """

    seconds = 0.0  # that a cell may take

    def __init__(self, kernel_name: str, cwd: str | None = None, startup_timeout: int = 0) -> None:
        self.shell = _Shell.instance()
        self.shell.reset(new_session=False)
        self.messages: list[dict[str, Any]] = []
        self.late = False  # a cell was stopped, and what it waited for may come yet

    def execute_cell_input(self, cell_input: str, allow_stdin: bool | None = None) -> str:
        """Run a cell; return the id of its messages, which is the same for all cells."""
        signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            with capture_output() as shown:
                self.shell.display_trap.hook = sys.displayhook  # a cell's last value is shown too
                done = self.shell.run_cell(cell_input)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.messages.clear()
        for name, text in (("stdout", shown.stdout), ("stderr", shown.stderr)):
            if text:
                self._add("stream", name=name, text=text)
        for rich in shown.outputs:
            self._add("display_data", data=rich.data, metadata=rich.metadata or {})
        if error := done.error_before_exec or done.error_in_exec:
            self._add("error", ename=type(error).__name__, evalue=str(error), traceback=[])
        self._add("status", execution_state="idle")
        return ""

    def _add(self, kind: str, **content: Any) -> None:
        message = {"msg_type": kind, "content": content, "parent_header": {"msg_id": ""}}
        self.messages.append(message)

    def _stop(self, *_: Any) -> NoReturn:
        self.late = True
        raise OutOfTime(f"this check took more than {self.seconds:g} s on the grader's machine.")

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message; raise Empty when there is none."""
        if not self.messages:
            raise Empty
        return self.messages.pop(0)

    def is_alive(self) -> bool:
        """Tell whether nbval may run another cell."""
        return not self.late

    def stop(self, *_: Any, **__: Any) -> None:
        """Return: the cell has run, and this process ends by itself."""

    await_reply = await_idle = stop


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where the lines go."""
    parser.addoption("--outcomes", type=Path, help="file for one JSON line per cell")


def pytest_configure(config: pytest.Config) -> None:
    """Have nbval use the kernel in here."""
    plugin.RunningKernel, Kernel.seconds = Kernel, config.getoption("nbval_cell_timeout")


def pytest_collectstart(collector: Any) -> None:
    """Compare what is printed, and no warning of a library on stderr."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare = (*collector.skip_compare, "stderr")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write a cell's outcome; only `passed` is worth points."""
    result = yield
    report = result.get_result()  # type: ignore[attr-defined]
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        name, evidence = _error(item, call)
        passed = report.when == "call" and report.outcome == "passed"
        verdict = Verdict(passed, evidence[:_EVIDENCE_CHARACTERS], name == "OutOfTime")
        line = {"verdict": asdict(verdict), "lost": name == "SessionLost"}
        with item.config.getoption("--outcomes").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": item.cell.get("id"), **line}) + "\n")


def _error(item: Any, call: pytest.CallInfo[None]) -> tuple[str, str]:
    """Name the error of a cell, and say in words why it failed; empty where it did not."""
    for output in item.test_outputs or []:
        if output.get("output_type") == "error":
            name, message = str(output["ename"]), str(output["evalue"])
            return name, message if name in ("CheckError", "OutOfTime") else f"{name}: {message}"
    return "", str(call.excinfo.value) if call.excinfo else ""


def serve() -> None:
    """Prepare, then fork a judge for each folder that comes.

    The order holds `preload`, `arguments` for pytest, and `rehearsal`, a prepared folder with a
    session of the solution. What its judge has computed, no other one computes again.
    """
    channel, order = take_order()
    for name in order["preload"]:
        with contextlib.suppress(Exception):  # each judge will say what cannot be imported
            pkgutil.resolve_name(name)

    def judge(folder: Path) -> None:
        os.environ[SOCKET_VARIABLE] = str(folder / "socket")
        with contextlib.chdir(folder):
            pytest.main(order["arguments"], [plugin, sys.modules[__name__]])

    def begin(folder: Path) -> None:
        sandbox.die_with_parent()
        os.setsid()
        os.environ.update(dict.fromkeys(FOLDER_VARIABLES, str(folder)))
        tempfile.tempdir = None
        log = os.open(folder / "judge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        judge(folder)

    gc.freeze()  # an oracle that measures collects garbage dozens of times, 0.1 s each
    judge(Path(order["rehearsal"]))  # a check that fails is the self-test's business
    hang_up()
    serve_forks(channel, True, begin)
