"""Environments whose PyTorch was built for CUDA: find one."""

import hashlib
import importlib.util
import json
import sys
import tomllib
from pathlib import Path

from tutorial_lib.instruments.emulated import build

FOLDER = ".venv-cuda"
STAMP = ".tutorial-installed"
TORCH = "torch===2.13.0"  # three equals signs: a local CPU build of the same version is refused


def find_cuda_torch(root: Path) -> build.CudaTorch:
    """Find a PyTorch that was built for CUDA: this Python's, `.venv`'s or `.venv-cuda`'s.

    Raises:
        ValueError: When there is none; says what this Python has. On another system than Linux.
    """
    build.check_system()
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
    """Tell whether `.venv-cuda` was made to the end, from today's dependencies."""
    stamp = root / FOLDER / STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == fingerprint(root)


def fingerprint(root: Path) -> str:
    """Hash what `.venv-cuda` is made from, and nothing else that pyproject.toml says."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [TORCH, project["dependencies"], project["optional-dependencies"]]
    pinned = (root / "constraints.txt").read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps([needed, pinned]).encode()).hexdigest()


def _packages(venv: Path) -> list[Path]:
    return sorted((venv.absolute() / "lib").glob("python3*/site-packages"))


def _own_packages() -> list[Path]:
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return [Path(spec.origin).parent.parent]
    return [Path(path) for path in sys.path if path.endswith("-packages")][:1]
