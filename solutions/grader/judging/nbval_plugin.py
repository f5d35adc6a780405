"""A pytest plugin for the judge: one JSON line per notebook cell, and no waiting for the dead."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Empty
from typing import Any

# A kernel imports its debugger where it can: half the time of its start. So this plugin must be
# loaded before nbval's.
sys.modules.setdefault("debugpy", None)  # type: ignore[arg-type]

import pytest  # noqa: E402
from nbval import kernel  # noqa: E402

from solutions.grader.results import Verdict  # noqa: E402

_POLL_SECONDS = 0.25
_OUTPUT_SECONDS = 60  # nbval's own 5 s fail right answers on a busy machine
_EVIDENCE_CHARACTERS = 6000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where the lines go."""
    parser.addoption("--outcomes", type=Path, help="file for one JSON line per cell")


def pytest_configure(config: pytest.Config) -> None:
    """Make nbval notice a dead kernel at once, and write no message down for its log."""
    kernel.RunningKernel.await_reply, kernel.pformat = _await_reply, str


def _await_reply(self: Any, message: str, timeout: float | None = None) -> None:
    give_up = time.monotonic() + (timeout if timeout is not None else float("inf"))
    while True:
        try:
            reply = self.get_message(stream="shell", timeout=_POLL_SECONDS)
        except Empty:
            if not self.is_alive():
                raise RuntimeError("the judge's kernel died.") from None
            if time.monotonic() > give_up:
                raise
        else:
            if reply["parent_header"].get("msg_id") == message:
                return


def pytest_collectstart(collector: Any) -> None:
    """Compare what is printed, and no warning of a library on stderr."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare = (*collector.skip_compare, "stderr")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend each cell's time to hand over its output."""
    for item in items:
        item.output_timeout = _OUTPUT_SECONDS  # type: ignore[attr-defined]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write a cell's outcome; only `passed` is worth points."""
    result = yield
    report = result.get_result()  # type: ignore[attr-defined]
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        name, evidence = _error(item, call)
        # nbval sets the second one where the judge itself is too slow
        late = name == "OutOfTime" or item.parent.timed_out
        passed = report.when == "call" and report.outcome == "passed"
        verdict = Verdict(passed, evidence[:_EVIDENCE_CHARACTERS], late)
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
