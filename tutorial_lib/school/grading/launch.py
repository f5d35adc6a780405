"""What a run needs: a directory of its own, and the two processes that fork."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.school.grading.errors import GradingError

# All that a process of ours finds where programs look for their files.
FOLDER_VARIABLES = (
    *("HOME", "TMPDIR", "IPYTHONDIR"),
    *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"),
)
_LONGEST_PATH = 68  # a socket's path may have 104 bytes on macOS, and 26 come behind the folder
_START = "from tutorial_lib.school.grading.{} import serve; serve()"
_ASKING = threading.Lock()
_PACKAGE_FOLDER = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def run_directory() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it whatever has been put there.

    Submissions get folders in the one that is given. An answer's process finds something else in
    its place, and sees the course's copy, which lies beside it.
    """
    folder = Path(tempfile.mkdtemp(prefix="grade-")).resolve()
    try:
        if len(os.fsencode(folder)) > _LONGEST_PATH:
            raise GradingError(
                f"{folder} is too long a name for the sockets in it: set TMPDIR to a shorter one."
            )
        (folder / "r").mkdir()
        yield folder / "r"
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
    import_path = [Path(path) for path in order["import_path"]]
    with _process("inside.server", folder, import_path, subprocess.PIPE) as server:
        with contextlib.suppress(GradingError):  # it has ended: its log says why
            _tell(server, order | {"view": str(folder.parent / "view")})
        assert server.stdout is not None
        answer = server.stdout.readline()
        if not answer:
            raise _did_not_start("the process for submissions", folder / "inside.server")
        yield server, json.loads(answer)


@contextlib.contextmanager
def _process(
    module: str, folder: Path, import_path: Sequence[Path], stdin: Any, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run the `serve` of a module of this package in a process, and end all of its group."""
    home = folder / module / "home"
    home.mkdir(parents=True)
    with (folder / module / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module)],
            cwd=home,
            env=clean_environment(home, import_path) | environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # killed together: what it forked would end by itself, but only a moment later
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _did_not_start(what: str, folder: Path) -> GradingError:
    last = (folder / "log").read_text(errors="replace").strip()[-500:]
    return GradingError(f"{what} did not start: {last}")


def start_session(server: subprocess.Popen[str], folder: Path) -> None:
    """Have a session forked for a prepared folder."""
    with _ASKING:
        _tell(server, str(folder))


def _tell(server: subprocess.Popen[str], message: Any) -> None:
    """Write one line of JSON: all that the server is ever told, its order first."""
    assert server.stdin is not None
    try:
        server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
    except BrokenPipeError as error:
        raise _ended("the process for submissions") from error


def _ended(what: str) -> GradingError:
    return GradingError(f"{what} has ended: grade once more, and what is done so far is kept.")


@dataclass(frozen=True)
class Judges:
    """The process that forks judges.

    Args:
        channel: To it, as `judge_server.serve` describes.
    """

    channel: socket.socket
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, folder: Path, arguments: Sequence[str]) -> tuple[int, int]:
        """Have a judge forked.

        Returns:
            Its process number, and a pipe that comes to its end when the judge does.
        """
        message = json.dumps({"folder": str(folder), "arguments": list(arguments)}).encode()
        reading, writing = os.pipe()
        try:
            with self._asking:
                socket.send_fds(self.channel, [message], [writing])
                answer = self.channel.recv(64)
        except OSError:
            answer = b""
        finally:
            os.close(writing)
        if not answer:
            os.close(reading)
            raise _ended("the process for judges")
        return int(answer), reading


@contextlib.contextmanager
def judge_server(
    folder: Path, order: dict[str, Any], import_path: Sequence[Path], **environment: str
) -> Iterator[Judges]:
    """Start the process that forks judges, and end all of it afterwards.

    Args:
        folder: The run's directory.
        order: What `judge_server.serve` needs.
        import_path: More places where Python looks for modules.
        environment: For it and its judges.

    Raises:
        GradingError: When it does not start.
    """
    ours, theirs = socket.socketpair()
    with ours, _process("judging.judge_server", folder, import_path, theirs, **environment):
        theirs.close()
        ours.sendall(json.dumps(order).encode())
        if not ours.recv(64):
            raise _did_not_start("the process for judges", folder / "judging.judge_server")
        yield Judges(ours)


def clean_environment(home: Path, import_path: Sequence[Path]) -> dict[str, str]:
    """Make the environment of a process of ours: nothing of the caller's but the PATH."""
    here = [str(path) for path in (_PACKAGE_FOLDER, *import_path)]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join(here),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # every submission on the same kind of device
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # some machines find torch's libraries there
    environment |= {name: os.environ[name] for name in kept if name in os.environ}
    if site.ENABLE_USER_SITE:  # packages below the real home stay importable
        environment["PYTHONUSERBASE"] = site.getuserbase()
    environment |= dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        "1",
    )
    return environment | dict.fromkeys(FOLDER_VARIABLES, str(home))
