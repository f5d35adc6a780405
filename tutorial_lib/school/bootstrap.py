"""The course's own Python environment, `.venv`: made once, and again when its lists change.

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
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from tutorial_lib import __version__
from tutorial_lib.school import installer, pythons

NAME = "training-that-fits"  # of the package, and of its command
ROOT = Path(__file__).resolve().parent.parent.parent  # the clone
STAMP = ".tutorial-installed"


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to try."""


def python_with_course(root: Path, extra: str = "test") -> Path:
    """Find the Python that has the course, and make `.venv` first where none has.

    Args:
        root: The clone: the folder that holds pyproject.toml.
        extra: What it must hold beside the instruments: `course`, `grade`, `author`, or `test`,
            which is all of them; nothing where it is empty.
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
    return installer.run([python, "-c", probe, root, extra], root)[0] == 0


def _installed_extras(root: Path) -> set[str]:
    """Read from our stamp which extras `.venv` has, and "" for the course itself.

    Empty when what it depends on has changed.
    """
    stamp = root / ".venv" / STAMP
    words = stamp.read_text(encoding="utf-8").split() if stamp.exists() else []
    return {"", *words[1:]} if words[:1] == [fingerprint(root)] else set()


def fingerprint(root: Path) -> str:
    """Hash what an installation depends on: the two files, the Python, the folder."""
    digest = hashlib.sha256(str(root).encode())
    for path in ("pyproject.toml", "constraints.txt", ".venv/pyvenv.cfg"):
        digest.update(b"\0" + (root / path).read_bytes())
    return digest.hexdigest()


def facts(root: Path) -> dict[str, str]:
    """Say what can be said of this machine and of the course without any package.

    No names of users or folders are said, other than the Python in use.
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
    for course in importlib.metadata.distributions(name=NAME):
        # A clone also holds an egg-info folder, which says nothing about this Python.
        origin = json.loads(course.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable") or not _is_folder(origin["url"], root):
            continue
        wanted = [
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in course.requires or []
            if "extra ==" not in line or extra == "test" or f"'{extra}'" in line.replace('"', "'")
        ]
        return [name for name in wanted if not any(importlib.metadata.distributions(name=name))]
    return [NAME]


def _is_folder(url: str, root: Path) -> bool:
    folder = Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))
    return folder.exists() and folder.samefile(root)


def check_version(version: tuple[int, ...], whose: str) -> None:
    """Refuse a Python that the course was not tried with; name a better one where it is found."""
    refusal = pythons.refusal(version, whose)
    if refusal:
        raise SetupError(refusal)


def _check_place(root: Path) -> None:
    if not (root / "pyproject.toml").is_file() or not (root / "constraints.txt").is_file():
        raise SetupError(
            f"{root} holds the package but no notebooks: run `python -m tutorial_lib` in the "
            "course's own folder, the one that holds README.md and constraints.txt."
        )
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < installer.NEEDED_GB:
        raise SetupError(
            f"{root} has {free_gb:.1f} GB free, but the environment needs about "
            f"{installer.NEEDED_GB} GB: free some space, then run this again."
        )


def _make(root: Path) -> None:
    venv = root / ".venv"
    status, version = installer.run(
        [venv_python(venv), "-c", "import sys; print(*sys.version_info)"], root
    )
    if status == 0:
        major, minor = version.split()[:2]
        check_version((int(major), int(minor)), f"{venv} (delete it to start afresh)")
        return
    check_version(sys.version_info[:2], f"This ({sys.executable})")
    if venv.exists() and not (venv / "pyvenv.cfg").is_file() and any(venv.iterdir()):
        raise SetupError(f"{venv} isn't a Python environment: move it away, then run this again.")
    with installer.Step(f"Making .venv with Python {sys.version.split()[0]}"):
        status, said = installer.run([sys.executable, "-m", "venv", "--clear", venv], root)
        if status:
            shutil.rmtree(venv, ignore_errors=True)
            raise SetupError(installer.explain(said, root, "venv could not make .venv"))


def _install(root: Path, extra: str) -> None:
    stamp = root / ".venv" / STAMP
    extras = sorted({extra, *_installed_extras(root)} - {""})
    stamp.write_text("unfinished", encoding="utf-8")  # until the last line of this function
    failed = installer.install(root, venv_python(root / ".venv"), extras)
    if failed:
        raise SetupError(failed)
    stamp.write_text(" ".join([fingerprint(root), *extras]), encoding="utf-8")
