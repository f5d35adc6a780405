"""A pytest plugin for the judge: one JSON line per notebook cell, and nbval's kernel in here."""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbval import plugin
from traitlets.config import Config

from solutions.grader.judging.remote_function import OutOfTime
from solutions.grader.results import Verdict

_EVIDENCE_CHARACTERS = 6000


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
        for name in ("stdout", "stderr"):
            if text := getattr(shown, name):
                self._add("stream", name=name, text=text)
        for rich in shown.outputs:
            self._add("display_data", data=rich.data, metadata=rich.metadata or {})
        if error := done.error_before_exec or done.error_in_exec:
            self._add("error", ename=type(error).__name__, evalue=str(error), traceback=[])
        self._add("status", execution_state="idle")
        return ""

    def _add(self, kind: str, **content: Any) -> None:
        self.messages.append(
            {"msg_type": kind, "content": content, "parent_header": {"msg_id": ""}}
        )

    def _stop(self, *_: Any) -> NoReturn:
        self.late = True
        raise OutOfTime(f"this check took more than {self.seconds:g} s on the grader's machine.")

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """Return the next message; raise Empty when there is none."""
        if not self.messages:
            raise Empty
        return self.messages.pop(0)

    def await_reply(self, message: str, timeout: float | None = None) -> None:
        """Return: the cell has run."""

    def await_idle(self, message: str, timeout: float) -> None:
        """Return: the cell has run."""

    def is_alive(self) -> bool:
        """Tell whether nbval may run another cell."""
        return not self.late

    def stop(self) -> None:
        """Return: this process ends by itself."""


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
        line = {"id": item.cell.get("id"), "verdict": asdict(verdict)}
        line["lost"] = name == "SessionLost"
        with item.config.getoption("--outcomes").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _error(item: Any, call: pytest.CallInfo[None]) -> tuple[str, str]:
    """Name the error of a cell, and say in words why it failed; empty where it did not."""
    for output in item.test_outputs or []:
        if output.get("output_type") == "error":
            name, message = str(output["ename"]), str(output["evalue"])
            return name, message if name in ("CheckError", "OutOfTime") else f"{name}: {message}"
    return "", str(call.excinfo.value) if call.excinfo else ""
