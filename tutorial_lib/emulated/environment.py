"""Finds an environment whose PyTorch was built for CUDA, and makes `.venv-cuda` when asked."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tutorial_lib import bootstrap
from tutorial_lib.emulated import build

FOLDER = ".venv-cuda"
STAMP = ".tutorial-installed"
NEEDED_GB = 9  # 6 GB unpacked, and the downloads beside them
TORCH = "torch===2.13.0"  # three equals signs: a local CPU build of the same version is refused


def find_cuda_torch(root: Path) -> build.CudaTorch:
    """Find a PyTorch that was built for CUDA: this Python's, `.venv`'s or `.venv-cuda`'s.

    Args:
        root: The clone: the folder that holds pyproject.toml.

    Raises:
        ValueError: When there is none; says what this Python has.
    """
    folders = [*_own_packages(), *_packages(root / ".venv")]
    if is_complete(root):
        folders += _packages(root / FOLDER)
    reason: ValueError | None = None
    for folder in folders:
        try:
            return build.read_torch(folder)
        except ValueError as error:
            reason = reason or error
    raise reason or ValueError(f"This Python has no packages: {build.ADVICE}")


def is_complete(root: Path) -> bool:
    """Tell whether `.venv-cuda` was made to the end, from today's pyproject.toml."""
    stamp = root / FOLDER / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _fingerprint(root)


def _fingerprint(root: Path) -> str:
    texts = [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([TORCH.encode(), *texts])).hexdigest()


def _packages(venv: Path) -> list[Path]:
    return sorted((venv / "lib").glob("python3*/site-packages"))


def _own_packages() -> list[Path]:
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return [Path(spec.origin).parent.parent]
    return [Path(path) for path in sys.path if path.endswith("-packages")][:1]


def make(root: Path) -> build.CudaTorch:
    """Make `.venv-cuda` with PyTorch's CUDA build and the course, unless one is there already.

    Says first what it takes. Interrupted, it goes on when it is called again: pip keeps what it
    has downloaded.

    Raises:
        ValueError: When there is no room for it, or pip fails.
    """
    build.check_system()
    try:
        found = find_cuda_torch(root)
    except ValueError:
        pass
    else:
        print(f"PyTorch {found.version} in {found.packages} was built for CUDA: nothing to do.")
        return found
    venv = root / FOLDER
    free_gb = shutil.disk_usage(root).free / 1e9
    if free_gb < NEEDED_GB:
        raise ValueError(
            f"{root} has {free_gb:.1f} GB free, and PyTorch's CUDA build needs about {NEEDED_GB} "
            "GB while it is installed: free some space, then run this again."
        )
    bootstrap.check_version(sys.version_info[:2], f"This ({sys.executable})")
    print(
        f"Making {venv}: about 6 GB, once. Stopped by Ctrl-C, it goes on the next time.", flush=True
    )
    python = str(bootstrap.venv_python(venv))
    if not _has_pip(python):
        _run([sys.executable, "-m", "venv", "--clear", str(venv)], root)
    options = ["--no-input", "--disable-pip-version-check", "-c", "constraints.txt"]
    _run([python, "-m", "pip", "install", *options, TORCH, "-e", ".[test]"], root)
    (venv / STAMP).write_text(_fingerprint(root), encoding="utf-8")
    return find_cuda_torch(root)


def _has_pip(python: str) -> bool:
    """Tell whether an environment is there, and was not stopped while it was made."""
    command = [python, "-m", "pip", "--version"]
    return (
        bool(shutil.which(python)) and not subprocess.run(command, capture_output=True).returncode
    )


def _run(command: list[str], root: Path) -> None:
    """Run a program that shows its own progress."""
    status = subprocess.call(command, cwd=root, env={**os.environ, "PIP_USER": "0"})
    if status:
        raise ValueError(
            f"`{' '.join(command[1:4])}` ended with status {status}: mend what it says above, then "
            "run `emulate --setup` again, which goes on where it stopped."
        )
