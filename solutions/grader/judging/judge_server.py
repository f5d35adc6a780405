"""The judges' server: has torch, the checks and their oracles in memory, and forks judges.

A judge is pytest with nbval. Started from nothing, it imports for three seconds and computes every
oracle again. Forked from here, it begins at once. No line of a submission runs in here, nor in any
judge.
"""

import contextlib
import os
import pkgutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before nbval: it says which part of its imports is left out.
import tutorial_lib.school  # noqa: F401  # isort: skip
import pytest
from nbval import plugin

from solutions.grader.inside import sandbox
from solutions.grader.judging import nbval_plugin, remote_function
from solutions.grader.launch import FOLDER_VARIABLES, serve_forks, take_order


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
        os.environ[remote_function.SOCKET_VARIABLE] = str(folder / "socket")
        with contextlib.chdir(folder):
            pytest.main(order["arguments"], [plugin, nbval_plugin])

    judge(Path(order["rehearsal"]))  # a check that fails is the self-test's business
    remote_function.hang_up()
    serve_forks(channel, True, lambda _, folder: _in_its_folder(folder, judge))


def _in_its_folder(folder: Path, judge: Callable[[Path], None]) -> None:
    sandbox.die_with_parent()
    os.setsid()
    os.environ.update(dict.fromkeys(FOLDER_VARIABLES, str(folder)))
    tempfile.tempdir = None
    for descriptor in (1, 2):
        os.dup2(os.open(folder / "judge.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    judge(folder)
