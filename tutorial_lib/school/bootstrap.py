"""Makes the course's own Python environment, `.venv`, and knows when nothing is left to do.

Standard library only, and no syntax newer than Python 3.8, so that an unsuitable Python gets a
sentence and not a syntax error.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from tutorial_lib import __version__
from tutorial_lib.school import pythons

NEEDED_GB = 3
STAMP = ".tutorial-installed"
LOG = "tutorial-pip.log"

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


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to try."""


def python_with_course(root: Path, extra: str = "test") -> Path:
    """Find the Python that has the course, and make `.venv` first where none has.

    Args:
        root: The clone: the folder that holds pyproject.toml.
        extra: What it must hold beside the course: `lab`, `grade`, `author`, or `test`, which is
            all of them.

    Returns:
        The running Python when everything is there already, else that of `.venv`.

    Raises:
        SetupError: When no environment can be made.
    """
    venv = root / ".venv"
    if not is_running(venv) and not missing_packages(root, extra):
        return Path(sys.executable)
    if not is_ready(root, extra):
        _check_place(root)
        _make(root)
        _install(root, extra)
    return venv_python(venv)


def venv_python(venv: Path) -> Path:
    """Say where an environment's Python stands on this system."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_running(venv: Path) -> bool:
    """Tell whether this very Python is the environment's."""
    return Path(sys.prefix).resolve() == venv.resolve()


def is_ready(root: Path, extra: str = "test") -> bool:
    """Tell whether `.venv` holds what pyproject.toml and constraints.txt ask for.

    One without our stamp was made by hand: then the names of its packages decide.
    """
    venv = root / ".venv"
    python, stamp = venv_python(venv), venv / STAMP
    if not python.exists():
        return False
    if stamp.exists():
        return not {extra, "test"}.isdisjoint(_installed_extras(root))
    probe = (
        "import sys; from pathlib import Path; from tutorial_lib.school import bootstrap; "
        "sys.exit(bool(bootstrap.missing_packages(Path(sys.argv[1]), sys.argv[2])))"
    )
    return _run([python, "-c", probe, root, extra], root)[0] == 0


def _installed_extras(root: Path) -> list[str]:
    """Read from our stamp which extras `.venv` has; none when what it depends on has changed."""
    stamp = root / ".venv" / STAMP
    words = stamp.read_text(encoding="utf-8").split() if stamp.exists() else []
    return words[1:] if words[:1] == [fingerprint(root)] else []


def fingerprint(root: Path) -> str:
    """Hash what an installation depends on: the two files, the Python, the folder."""
    digest = hashlib.sha256(str(root).encode())
    for path in ("pyproject.toml", "constraints.txt", ".venv/pyvenv.cfg"):
        digest.update(b"\0" + (root / path).read_bytes())
    return digest.hexdigest()


def facts(root: Path) -> dict[str, str]:
    """Say what can be said of this machine and of the course without any package.

    Returns:
        Words by name; no names of users or folders other than the Python in use.
    """
    return {
        "course": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "free disk": f"{shutil.disk_usage(root).free / 1e9:.0f} GB",
    }


def missing_packages(root: Path, extra: str = "test") -> list[str]:
    """List what the running Python lacks to run the course from this clone.

    Only names are compared. Blind to versions, and to what the packages need in turn.
    """
    for course in importlib.metadata.distributions(name="tutorial-lib"):
        # A clone also holds an egg-info folder, which says nothing about this Python.
        origin = json.loads(course.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable") or not _is_folder(origin["url"], root):
            continue
        wanted = [
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in course.requires or []
            if "extra ==" not in line or extra == "test" or f"'{extra}'" in line.replace('"', "'")
        ]
        return [name for name in wanted if not _is_installed(name)]
    return ["tutorial-lib"]


def _is_installed(name: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=name))


def _is_folder(url: str, root: Path) -> bool:
    folder = Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))
    return folder.exists() and folder.samefile(root)


def check_version(version: tuple[int, ...], whose: str) -> None:
    """Refuse a Python that the course was not tried with.

    Raises:
        SetupError: When it is too old or too new; names a better Python where one is found.
    """
    refusal = pythons.refusal(version, whose)
    if refusal:
        raise SetupError(refusal)


def _check_place(root: Path) -> None:
    if not (root / "pyproject.toml").is_file() or not (root / "constraints.txt").is_file():
        raise SetupError(
            f"{root} is no clone of the course (no pyproject.toml and constraints.txt there): "
            "run this from the folder that holds README.md."
        )
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < NEEDED_GB:
        raise SetupError(
            f"{root} has {free_gb:.1f} GB free, and the environment needs about {NEEDED_GB} GB: "
            "free some space, then run this again."
        )


def _make(root: Path) -> None:
    venv = root / ".venv"
    status, version = _run([venv_python(venv), "-c", "import sys; print(*sys.version_info)"], root)
    if status == 0:
        major, minor = version.split()[:2]
        check_version((int(major), int(minor)), f"{venv} (delete it to start afresh)")
        return
    check_version(sys.version_info[:2], f"This ({sys.executable})")
    if venv.exists() and not (venv / "pyvenv.cfg").is_file() and any(venv.iterdir()):
        raise SetupError(f"{venv} is no Python environment: move it away, then run this again.")
    with _Step(f"Making .venv with Python {sys.version.split()[0]}"):
        status, said = _run([sys.executable, "-m", "venv", "--clear", venv], root)
        if status:
            shutil.rmtree(venv, ignore_errors=True)
            raise SetupError(explain(said, root, "venv could not make .venv"))


def _install(root: Path, extra: str) -> None:
    venv = root / ".venv"
    python, stamp, log = venv_python(venv), venv / STAMP, venv / LOG
    extras = sorted({extra, *_installed_extras(root)})
    stamp.write_text("unfinished", encoding="utf-8")  # until the last line of this function
    with _Step("Installing the course and what it needs (minutes the first time)"):
        status, said = _run([python, "-m", "pip", "--version"], root)
        if status:  # uv makes environments without pip
            status, said = _run([python, "-m", "ensurepip"], root)
        if status == 0:
            options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
            wanted = ["-c", "constraints.txt", "-e", f".[{','.join(extras)}]"]
            command = [python, "-m", "pip", "install", *options, *wanted]
            status, said = _run(command, root, report=_report_pip)
        log.write_text(said, encoding="utf-8")
        if status:
            reason = explain(said, root, "pip could not install the course")
            raise SetupError(f"{reason} All that pip said is in {log}.")
    stamp.write_text(" ".join([fingerprint(root), *extras]), encoding="utf-8")


class _Step:
    """Say what is being done, and how long it took."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        self.start = time.monotonic()
        print(f"{self.text} ...", flush=True)

    def __exit__(self, kind: object, *rest: object) -> None:
        outcome = "failed after" if kind else "took"
        print(f"  {outcome} {time.monotonic() - self.start:.0f} s", flush=True)


def _run(
    command: Sequence[object], root: Path, report: Callable[[str], None] | None = None
) -> tuple[int, str]:
    """Run a program in the clone; returns its exit status and all that it printed."""
    # PIP_USER=1 in someone's settings would make pip refuse every environment.
    environment = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1"}
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


def _report_pip(line: str) -> None:
    if line.startswith("Downloading") and line.endswith("MB)"):
        print(f"  {line}", flush=True)
    elif line.startswith("Installing collected packages:"):
        print(f"  Unpacking {line.count(',') + 1} packages", flush=True)


def explain(said: str, root: Path, what: str) -> str:
    """Turn what a tool printed into one sentence: its known cause, else its last error line."""
    lowered = said.lower()
    for signs, sentence in _CAUSES:
        if any(sign in lowered for sign in signs):
            return sentence.format(root=root, needed=NEEDED_GB)
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["nothing"]
    errors = [line for line in lines if line.lower().startswith("error")]
    return f"{what}, and said last: {(errors or lines)[-1]}"
