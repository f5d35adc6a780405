"""Open the course in JupyterLab; sets up .venv first. Ctrl-C stops it."""

from __future__ import annotations

import argparse
import errno
import os
import socket

from tutorial_lib.school import bootstrap, workbook
from tutorial_lib.school.commands import process

SETTINGS = bootstrap.ROOT / "tutorial_lib" / "school" / "jupyterlab"


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--port", type=int, metavar="N", help="a port of your choice")


def run(options: argparse.Namespace) -> int:
    """Set up, bring the working copy up to date, and become JupyterLab."""
    if options.port is not None:
        _check_port(options.port)
    python = bootstrap.python_with_course(bootstrap.ROOT, "course")
    command = [
        str(python),
        *("-m", "jupyterlab"),
        f"--ServerApp.root_dir={bootstrap.ROOT / workbook.FOLDER}",
        f"--LabApp.default_url=/lab/tree/{workbook.START_PAGE}",
        f"--LabApp.app_settings_dir={SETTINGS}",
        "--Application.log_level=ERROR",  # 20 lines would bury the address
        "--ServerApp.answer_yes=True",  # one Ctrl-C stops it, without a question
    ]
    if options.no_browser:
        command.append("--no-browser")
    if options.port is not None:
        command += [f"--port={options.port}", "--ServerApp.port_retries=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers; the server listens on localhost only
    for note in workbook.update(bootstrap.ROOT):
        print(f"{workbook.FOLDER}/{note}")
    print(
        f"Your copy is {workbook.FOLDER}/. Starting JupyterLab; Ctrl-C here stops it.", flush=True
    )
    # Our own kernel, without the warning at each start that it talks to this machine in plain text.
    places = [str(SETTINGS), *filter(None, [os.environ.get("JUPYTER_PATH")])]
    return process.become(command, {"JUPYTER_PATH": os.pathsep.join(places)})


def _check_port(port: int) -> None:
    """Refuse a port that is none, or is taken or reserved, before minutes of set-up are spent."""
    if not 1 <= port <= 65535:
        raise bootstrap.SetupError(f"--port {port} isn't a port: choose from 1024 to 65535.")
    with socket.socket() as probe:
        if os.name != "nt":  # there the option would let two servers share a port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = "taken" if error.errno == errno.EADDRINUSE else f"refused ({error.strerror})"
            raise bootstrap.SetupError(
                f"Port {port} is {why}: choose another, or leave --port out to get a free one."
            ) from error
