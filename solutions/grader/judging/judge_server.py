"""The judges' server: has torch, the checks and their oracles in memory, and forks judges.

A judge is pytest with nbval, and a Jupyter kernel. Started from nothing, the two of them import for
three seconds and compute every oracle again. Forked from here, they begin at once. No line of a
submission runs in here, nor in any judge.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pkgutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

# Before nbval and ipykernel: they say which parts of its imports are left out.
import tutorial_lib.school  # noqa: F401  # isort: skip
from solutions.grader.inside import sandbox  # isort: skip
from solutions.grader.judging import nbval_plugin, remote_function  # isort: skip

import ipykernel.debugger  # noqa: F401 - here and below: what each kernel would import anew
import pytest
import tornado.platform.asyncio  # noqa: F401
from ipykernel.kernelapp import IPKernelApp
from IPython.extensions import storemagic  # noqa: F401
from jupyter_client.localinterfaces import local_ips
from jupyter_client.provisioning import local_provisioner
from nbval import plugin

from solutions.grader.judging.judge import PYTEST
from solutions.grader.launch import FOLDER_VARIABLES, serve_forks, take_order

_PLUGINS = [plugin, nbval_plugin]


def serve() -> None:
    """Prepare, then fork a judge for each folder that comes, with its arguments for pytest.

    The order holds `preload`, and `rehearsal`, a prepared folder with a session of the solution.
    """
    channel, order = take_order()
    for name in order["preload"]:
        with contextlib.suppress(Exception):  # each judge will say what cannot be imported
            pkgutil.resolve_name(name)
    _rehearse(Path(order["rehearsal"]))
    serve_forks(channel, True, _be_judge)


def _rehearse(folder: Path) -> None:
    """Run the judge's notebook here, with the solution's answers: the oracles stay in memory."""
    local_ips()  # asks the system, once
    os.environ[remote_function.SOCKET_VARIABLE] = str(folder / "socket")
    names: dict[str, Any] = {}
    for cell in json.loads((folder / "judge.ipynb").read_text(encoding="utf-8"))["cells"]:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            exec("".join(cell["source"]), names)  # a check that fails is the self-test's business
    remote_function.hang_up()
    with contextlib.chdir(folder):
        pytest.main(
            ["--collect-only", *PYTEST], _PLUGINS
        )  # what it imports, no judge imports again


def _be_judge(alive: int, folder: str, *arguments: str) -> None:
    """Run pytest in a judge's folder, beside the kernel that it will ask for."""
    sandbox.die_with_parent()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.update(dict.fromkeys(FOLDER_VARIABLES, folder))
    os.environ[remote_function.SOCKET_VARIABLE] = f"{folder}/socket"
    tempfile.tempdir = None
    for descriptor in (1, 2):
        os.dup2(os.open("judge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    local_provisioner.launch_kernel = _Kernel(alive).launch  # type: ignore[assignment,attr-defined]
    pytest.main([*arguments], _PLUGINS)


class _Kernel:
    """A kernel's process, forked before pytest has threads and sockets; waits to be launched.

    It has as much of `subprocess.Popen` as jupyter_client asks for.
    """

    stdin = stdout = stderr = None

    def __init__(self, alive: int) -> None:
        reading, self._writing = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.close(alive)
            os.close(self._writing)
            _become_kernel(reading)
        os.close(reading)

    def launch(self, command: Sequence[str], **options: Any) -> _Kernel:
        # with the arguments of a command that would start a kernel from nothing
        os.write(self._writing, json.dumps(command[command.index("-f") :]).encode())
        os.close(self._writing)
        return self

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    wait = poll  # jupyter_client asks when it has ended

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become_kernel(reading: int) -> NoReturn:
    try:
        sandbox.die_with_parent()
        os.setsid()  # jupyter_client signals its group, in which pytest must not be
        with os.fdopen(reading) as pipe:
            words = pipe.read()
        if words:
            IPKernelApp.launch_instance([*json.loads(words), "--HistoryManager.enabled=False"])
    finally:
        os._exit(0)
