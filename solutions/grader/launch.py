"""Servers of a run, which fork a process when asked, and the run's directory.

Grader and server speak JSON over a socket: an order and what is ready; then, for each process, a
path, with a pipe that it holds open while it lives, and its number.
"""

import contextlib
import ctypes
import gc
import json
import os
import re
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from solutions.grader import GradingError, words

# All that a process of ours finds where programs look for their files.
FOLDER_VARIABLES = (
    *("HOME", "TMPDIR", "IPYTHONDIR"),
    *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"),
)
_LONGEST_PATH = 68  # a socket's path may have 104 bytes on macOS, and 26 come behind the folder
_START = "from solutions.grader.{} import serve; serve()"
_MOST_BYTES, _POLL_SECONDS = 2**16, 0.05
# Linux's: a line of what a process has mapped for itself alone, of no file; and a number of madvise
_OWN_MEMORY = re.compile(r"(?m)^(\w+)-(\w+) rw-p \w+ 00:00 0 *(?:\[heap\])?$")
_LARGE_PAGE, _MADV_COLLAPSE = 2 * 1024**2, 25
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_COURSE = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def run_directory() -> Iterator[Path]:
    """Make a folder for submissions that only this user can enter, and remove it in the end.

    An answer's process finds something else there, and the course's copy beside it.
    """
    folder = Path(tempfile.mkdtemp(prefix="grade-")).resolve()
    try:
        if len(os.fsencode(folder)) > _LONGEST_PATH:
            raise GradingError(words("long path", folder=folder))
        (folder / "r").mkdir()
        yield folder / "r"
    finally:
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):  # a submission may nest folders deeper than Python can
            subprocess.run(["rm", "-rf", "--", folder], check=False)


@dataclass(frozen=True)
class Server:
    """A process of ours that has what a run needs in memory, and forks."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: Any  # what it said when it was ready
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, path: Path) -> tuple[int, int]:
        """Fork a process for a folder or file: return its number, and a pipe that ends with it."""
        reading, writing = os.pipe()
        try:
            with self._asking:
                socket.send_fds(self.channel, [os.fsencode(path)], [writing])
                answer = self.channel.recv(64)
        except OSError:
            answer = b""
        finally:
            os.close(writing)
        if not answer:
            os.close(reading)
            raise GradingError(words("server ended"))
        return int(answer), reading

    def run(self, path: Path, seconds: float, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Fork a process, and wait for its end; False when it was killed: stopped or too slow."""
        number, alive = self.fork(path)
        give_up = time.monotonic() + seconds
        try:
            while not select.select([alive], [], [], _POLL_SECONDS)[0]:
                if stopped() or time.monotonic() > give_up:
                    for end in (os.killpg, os.kill):  # a judge leads a group, a reader doesn't
                        with contextlib.suppress(ProcessLookupError):
                            end(number, signal.SIGKILL)
                    return False
        finally:
            os.close(alive)
        return True


@contextlib.contextmanager
def open_server(
    module: str, folder: Path, order: dict[str, Any], **environment: str
) -> Iterator[Server]:
    """Start the `serve` of a module, as in `inside.view`, in a process; end all of its group."""
    place = folder / module
    (place / "home").mkdir(parents=True)
    ours, theirs = socket.socketpair()
    with ours, theirs, (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module)],
            cwd=place / "home",
            env=clean_environment(place / "home", order["import_path"]) | environment,
            stdin=theirs.fileno(),
            stdout=log,  # an import may print
            stderr=log,
            start_new_session=True,
        )
        theirs.close()
        try:
            ready = b""
            with contextlib.suppress(OSError):  # it has ended: its log says why
                ours.sendall(json.dumps(order).encode())
                ready = ours.recv(_MOST_BYTES)
            if not ready:
                last = (place / "log").read_text(errors="replace").strip()[-500:]
                raise GradingError(words("no start", module=module, last=last))
            yield Server(process, ours, json.loads(ready))
        finally:
            # killed together: what it forked would end by itself, but only a moment later
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def take_order() -> tuple[socket.socket, dict[str, Any]]:
    """Read the order in a server, from its standard input, which is a socket."""
    channel = socket.socket(fileno=os.dup(0))
    return channel, json.loads(channel.recv(_MOST_BYTES))


def serve_forks(channel: socket.socket, ready: Any, begin: Callable[[Path], None]) -> None:
    """Say what is ready, then fork for each path, which `begin` gets, until the grader hangs up."""
    gc.collect()
    gc.freeze()  # what was imported is shared by all forks, and collected by none
    _use_large_pages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped by the kernel
    channel.sendall(json.dumps(ready).encode())
    while True:
        message, pipes, *_ = socket.recv_fds(channel, _MOST_BYTES, 1)
        if not message:
            return
        child = os.fork()
        if not child:
            channel.close()
            try:
                begin(Path(os.fsdecode(message)))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        os.close(pipes[0])
        channel.sendall(str(child).encode())


def _use_large_pages() -> None:
    """Move this process's own memory to pages of 2 MiB, where the kernel can (Linux 6.1 and later).

    A fork copies the table of all pages: with pages of 4 KiB, for longer than most checks run.
    """
    with contextlib.suppress(OSError, AttributeError):  # no /proc, no madvise
        madvise = ctypes.CDLL(None).madvise
        for ends in _OWN_MEMORY.findall(Path("/proc/self/maps").read_text()):
            first, last = (int(end, 16) for end in ends)
            first = -(-first // _LARGE_PAGE) * _LARGE_PAGE
            length = last // _LARGE_PAGE * _LARGE_PAGE - first
            if length > 0:
                madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_COLLAPSE)


def clean_environment(home: Path, import_path: Sequence[str]) -> dict[str, str]:
    """Make the environment of a process of ours: the caller's PATH, and what sets arithmetic."""
    kept = tuple(_TABLE["kept"].split())
    environment: dict[str, str] = {**_TABLE["environment"]}
    environment |= {name: os.environ[name] for name in os.environ if name.startswith(kept)}
    environment["PATH"] = os.environ.get("PATH", os.defpath)
    environment["PYTHONPATH"] = os.pathsep.join([str(_COURSE), *import_path])
    if site.ENABLE_USER_SITE:  # packages below the real home stay importable
        environment["PYTHONUSERBASE"] = site.getuserbase()
    return {**environment, **_TABLE["threads"], **dict.fromkeys(FOLDER_VARIABLES, str(home))}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat a request to end, as `kill` or a closed terminal sends it, like Ctrl-C.

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
