"""Style and types of everything, notebooks too: what ruff and mypy say."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "words",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["lint", "format", "types"],
)
def test_nothing_to_complain_about(root, words):
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_fault_is_found(root, tmp_path):
    (tmp_path / "faulty.py").write_text("import os\ndef f(x): return x\n")
    settings = ["--config", str(root / "pyproject.toml"), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *settings], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert all(rule in done.stdout for rule in ("F401", "ANN"))
