"""The program that a command becomes. Standard library only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from tutorial_lib.school import bootstrap


def become(
    command: list[str], changes: Mapping[str, str] | None = None, *, move: bool = True
) -> int:
    """Replace this program by another; on Windows, which cannot, wait for it and return its status.

    Environment variables of `changes` come on top of those that are there; with `move`, the
    program runs in the course's folder.
    """
    environment = {**os.environ, **(changes or {})}
    sys.stdout.flush()
    if move:
        os.chdir(bootstrap.ROOT)
    if os.name != "nt":
        os.execve(command[0], command, environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other program's to answer
    return subprocess.call(command, env=environment)
