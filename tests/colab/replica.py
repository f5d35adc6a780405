"""Run notebooks on a replica of Colab: its Python, and its version of each package they touch.

    python3.13 tests/colab/replica.py                      all notebooks
    python3.13 tests/colab/replica.py course/0*.ipynb      some

The first time it makes `.venv-colab` (7 GB, since PyTorch is the CUDA build there too). What pip is
told to install is what the course needs; each package gets the version that Colab has, also where
another package brings it. nbval then compares every text that a notebook prints. There is no GPU in
it, no Google Drive, and no widget that anyone sees.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-colab"
PYTHON = (3, 13)  # of the runtime in `pip-freeze.gpu.txt`
RUNNERS = ("nbval", "pytest", "pytest-xdist", "nbformat")  # not Colab's


def make() -> Path:
    """Make the environment, unless it is there, and return its Python."""
    python = VENV / "bin/python"
    stamp = VENV / "complete"
    if stamp.exists():
        return python
    if sys.version_info[:2] != PYTHON:
        sys.exit(f"Colab has Python {PYTHON[0]}.{PYTHON[1]}: run this with python3.13.")
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    freeze = (ROOT / "tests/colab/pip-freeze.gpu.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("+")[0] for line in freeze if "==" in line and line[0] != "#"]
    # PyPI's build of the same PyTorch is for another CUDA, and brings that one's libraries
    pins = [pin for pin in pins if not pin.startswith(("nvidia-", "cuda-"))]
    (VENV / "constraints.txt").write_text("\n".join(pins), encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["frameworks"]]
    wanted += ["ipykernel", "ipython", "ipywidgets", *RUNNERS]
    options = ["-c", str(VENV / "constraints.txt"), *wanted]
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    subprocess.run([*install, *options], check=True)
    # as the set-up cell does on Colab: the course itself, and nothing in place of what is there
    course = [python, "-m", "pip", "install", "--no-deps", "-e", str(ROOT)]
    subprocess.run(course, check=True)
    stamp.touch()
    return python


def main(notebooks: list[str]) -> int:
    """Run notebooks; the status is pytest's."""
    found = notebooks or [
        str(path.relative_to(ROOT))
        for folder in ("course", "solutions")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
    ]
    options = ["--nbval", "-q", "-n", "2", "--dist", "loadfile"]
    return subprocess.run(
        [make(), "-m", "pytest", *options, *found], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
