"""The installation of packages with uv or pip, which says how far it is.

Standard library only, and no syntax newer than Python 3.8, as `bootstrap`, which it serves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NEEDED_GB = 3
LOG = "tutorial-install.log"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"  # PyTorch without CUDA
ANSWER_SECONDS = 3.0
QUIET_SECONDS = 15.0  # after so long without a line, one says that the work goes on

# What pip, venv and the system say, in lower case, against the sentence for the user.
_CAUSES = (
    (
        ("no space left", "errno 28", "enough space on the disk", "disk quota exceeded"),
        "The disk is full: free some space (about {needed} GB are needed), then run this again.",
    ),
    (
        ("ensurepip", "no module named venv", "no module named 'venv'"),
        "This Python cannot make environments: install its venv module "
        "(Debian and Ubuntu: sudo apt install python3-venv), then run this again.",
    ),
    (
        ("permission denied", "read-only file system", "errno 13", "errno 30", "access is denied"),
        "{root} cannot be written: move the course into a folder of your own, or change its "
        "permissions, then run this again.",
    ),
    (
        ("connection broken", "establish a new connection", "name resolution", "timed out",
         "max retries exceeded", "could not fetch url", "network is unreachable"),
        "No package index answered: check the network or the proxy, then run this again.",
    ),
)  # fmt: skip


def install(root: Path, python: Path, extras: Sequence[str]) -> str:
    """Install the course from its clone, with the packages that constraints.txt allows.

    uv does it where it is on the PATH, with pip's settings; pip where it is not, or fails.

    Args:
        root: The clone.
        python: Of the environment.
        extras: Of pyproject.toml; none for the instruments alone.

    Returns:
        An empty text, or a sentence that says why it failed. All that was said is in `LOG`.
    """
    wanted = ["-c", "constraints.txt", "-e", f".[{','.join(extras)}]" if extras else "."]
    has_torch = _has_torch(root, python)
    wanted += [] if has_torch else _options_without_cuda()
    log = python.parent.parent / LOG
    uv = shutil.which("uv")
    if uv:
        with Step("Installing the course and what it needs, with uv") as step:
            command = [uv, "pip", "install", "--python", python, *wanted]
            status, said = run(command, root, step.hear, _settings_for_uv(root))
            log.write_text(said, encoding="utf-8")
        if status == 0:
            return ""
        print(f"  {explain(said, root, 'uv could not install the course')} Trying pip.", flush=True)
    what = "Adding a few packages" if has_torch else "Installing the course and what it needs"
    with Step(f"{what} (minutes the first time)") as step:
        status, said = run([python, "-m", "pip", "--version"], root)
        if status:  # uv makes environments without pip
            status, said = run([python, "-m", "ensurepip"], root)
        if status == 0:
            options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
            command = [python, "-m", "pip", "install", *options, *wanted]
            status, said = run(command, root, step.hear)
        log.write_text(said, encoding="utf-8")
    reason = explain(said, root, "pip could not install the course")
    return f"{reason} All that pip said is in {log}." if status else ""


def _has_torch(root: Path, python: Path) -> bool:
    """Tell whether an environment has the PyTorch that constraints.txt asks for, of any build."""
    pin = re.search(r"^torch==(\S+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.M)
    folder = f"[Ll]ib/**/site-packages/torch-{pin[1]}*.dist-info" if pin else ""
    return bool(folder) and any(python.parent.parent.glob(folder))


def _options_without_cuda() -> list[str]:
    """Name PyTorch's index of builds without CUDA, where no GPU could use PyPI's and it answers.

    Both pip and uv take `2.13.0+cpu`, which is found there, before PyPI's `2.13.0`.
    """
    has_gpu = shutil.which("nvidia-smi") or Path("/proc/driver/nvidia").exists()
    if not sys.platform.startswith("linux") or has_gpu:
        return []
    host = CPU_BUILDS.split("/")[2]
    try:
        urllib.request.urlopen(f"{CPU_BUILDS}/torch/", timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError):
        print(f"No NVIDIA GPU here, and {host} does not answer: PyTorch may bring CUDA (4 GB).")
        return []
    print(f"No NVIDIA GPU here: PyTorch comes without CUDA, from {host}. That saves 4 GB.")
    return ["--extra-index-url", CPU_BUILDS]


def _settings_for_uv(root: Path) -> dict[str, str]:
    """Return pip's settings of package indexes as uv's, which it does not read by itself."""
    status, said = run([sys.executable, "-m", "pip", "config", "list"], root)
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
    }
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the best of all indexes, as pip does
    for key, value in re.findall(r"^(\S+)='(.*)'$", said if status == 0 else "", re.MULTILINE):
        name = names.get(key.rpartition(".")[2])
        if name:
            values = value.replace("\\n", " ").split()
            settings[name] = ("," if name == "UV_FIND_LINKS" else " ").join(values)
    return {name: value for name, value in settings.items() if name not in os.environ}


class Step:
    """Say what is being done, how far it is where that takes long, and how long it took."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._ended = threading.Event()

    def __enter__(self) -> Step:
        self._start = self._said_at = time.monotonic()
        print(f"{self.text} ...", flush=True)
        threading.Thread(target=self._keep_talking, daemon=True).start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._ended.set()
        outcome = "failed after" if kind else "took"
        self._say(f"{outcome} {time.monotonic() - self._start:.0f} s")

    def hear(self, line: str) -> None:
        """Pass on what matters of a line of pip or uv."""
        if line.startswith("Downloading ") and re.search(r"\((\d{2,}[\d.]* ?M|.*G)i?B\)$", line):
            self._say(line)
        elif line.startswith("Installing collected packages:"):
            self._say(f"Unpacking {line.count(',') + 1} packages")
        elif line.startswith(("Resolved ", "Prepared ", "Installed ")):
            self._say(line)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        print(f"  {text}", flush=True)

    def _keep_talking(self) -> None:
        while not self._ended.wait(1.0):
            if time.monotonic() - self._said_at >= QUIET_SECONDS:
                self._say(f"at work, {time.monotonic() - self._start:.0f} s so far")


def run(
    command: Sequence[object],
    root: Path,
    report: Callable[[str], None] | None = None,
    settings: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a program in the clone; return its exit status, and all that it printed.

    Each line is reported as it comes; settings are environment variables on top of the others.
    """
    # PIP_USER=1 in someone's settings would make pip refuse every environment.
    environment = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", **(settings or {})}
    lines: list[str] = []
    try:
        with subprocess.Popen(
            [str(part) for part in command],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                if report:
                    report(line.strip())
    except OSError as error:
        return 1, str(error)
    return process.returncode, "".join(lines)


def explain(said: str, root: Path, what: str) -> str:
    """Turn what a tool printed into one sentence: its known cause, else its last error line."""
    lowered = said.lower()
    for signs, sentence in _CAUSES:
        if any(sign in lowered for sign in signs):
            return sentence.format(root=root, needed=NEEDED_GB)
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    errors = [line for line in lines if line.lower().startswith("error")]
    return f"{what}, and said last: {(errors or lines)[-1]}"
