"""What a run needs: a directory of its own, and the process that forks sessions."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError
from tutorial_lib.school.grading.judge import clean_environment

_LONGEST_PATH = 70  # a socket's path may have 104 bytes on macOS, and 24 come behind the folder
_ASKING = threading.Lock()
_START = "from tutorial_lib.school.grading.server import serve; serve()"


@contextlib.contextmanager
def run_directory() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it whatever has been put there."""
    folder = Path(tempfile.mkdtemp(prefix="grade-")).resolve()
    try:
        if len(os.fsencode(folder)) > _LONGEST_PATH:
            raise GradingError(
                f"{folder} is too long a name for the sockets in it: set TMPDIR to a shorter one."
            )
        yield folder
    finally:
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):  # a submission may nest folders deeper than Python can
            subprocess.run(["rm", "-rf", "--", folder], check=False)


@contextlib.contextmanager
def fork_server(
    folder: Path, order: dict[str, Any]
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start the process that forks a session for every submission, and end all of it afterwards.

    Args:
        folder: The run's directory.
        order: What `server.serve` needs.

    Yields:
        The process, and the layers of its sandbox.

    Raises:
        GradingError: When it does not start.
    """
    home = folder / "server" / "home"
    home.mkdir(parents=True)
    with (folder / "server" / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", _START],
            cwd=home,
            env=clean_environment(home, [Path(path) for path in order["import_path"]]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended: its log says why
            _tell(server, order)
        assert server.stdout is not None
        answer = server.stdout.readline()
        if not answer:
            last = (folder / "server" / "log").read_text(errors="replace").strip()[-500:]
            raise GradingError(f"the process for submissions did not start: {last}")
        yield server, json.loads(answer)
    finally:
        # killed together: sessions would end by themselves, but only a moment later
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def start_session(server: subprocess.Popen[str], folder: Path) -> None:
    """Have a session forked for a prepared folder."""
    with _ASKING:
        _tell(server, str(folder))


def _tell(server: subprocess.Popen[str], message: Any) -> None:
    """Write one line of JSON: all that the server is ever told, its order first."""
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()
