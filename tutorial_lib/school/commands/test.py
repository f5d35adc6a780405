"""Set up .venv, then run the daily tests, without a network.

The daily tests are all rules, a handful of notebooks, and the notebooks that differ from the commit
before the last.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path

from tutorial_lib.school import bootstrap
from tutorial_lib.school.commands import process

# Where learners begin, what they build, and the labs of both; the others run when they change.
HANDFUL = ("course/0[04]_*.ipynb", "solutions/lab0[13]_*.ipynb")
_NOTEBOOK = re.compile(r"(course|solutions)/[^/]+\.ipynb")


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes; the rest is pytest's."""
    parser.usage = "%(prog)s [options] [arguments of pytest]"
    parser.epilog = (
        "Everything else goes to pytest: tests/test_units.py runs only these tests; -k WORD, -x. "
        "`pytest --help` lists pytest's own options."
    )
    emulated = "run the GPU cells of all notebooks, or of those named, on emulated cards"
    add = parser.add_argument
    add("--all", action="store_true", help="every notebook and test, the weekly ones too: hours")
    add("--emulated", action="store_true", help=emulated)


def run(options: argparse.Namespace) -> int:
    """Run pytest on notebooks and tests, network refused, so that its last line stays last."""
    if not (bootstrap.ROOT / "tests").is_dir():
        raise bootstrap.SetupError(
            f"{bootstrap.ROOT} has no tests: run this in a clone of the course."
        )
    if options.emulated:
        from tutorial_lib.school.commands.emulate import run_gpu_cells

        return run_gpu_cells(options.rest)
    python = str(bootstrap.python_with_course(bootstrap.ROOT, "test"))
    offline = (str(bootstrap.ROOT / "tests" / "offline"), os.environ.get("PYTHONPATH"))
    changes = {
        "PYTHONPATH": os.pathsep.join(path for path in offline if path),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        # Hundreds of processes import the course: compiled once, whatever is set elsewhere.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    if "gpu" not in options.rest:  # all but `-m gpu` is about the CPU, on every machine
        changes["CUDA_VISIBLE_DEVICES"] = ""
    words = options.rest
    named = [word.split("::")[0] for word in words if word[:1] != "-"]
    chosen = any((bootstrap.ROOT / name).exists() for name in named)
    # Notebooks take longest, so they start first; what belongs together stays with one worker.
    paths = [] if chosen else [*daily_notebooks(bootstrap.ROOT), "tests"]
    if options.all:
        paths = ["course", "solutions", "tests", "-m", ""]
    workers = str(min(4, (os.cpu_count() or 1) + 1))  # one more, since some tests wait
    command = [python, "-m", "pytest", "--nbval", "-n", workers, "--dist", "loadfile"]
    return process.become([*command, *paths, *words], changes)


def daily_notebooks(root: Path) -> list[str]:
    """List the notebooks that `test` runs: a handful, and those that differ from HEAD's parent.

    Without git, or at a first commit, the handful alone.
    """
    found = {path.relative_to(root).as_posix() for name in HANDFUL for path in root.glob(name)}
    found |= {path for path in changed_files(root, "HEAD~1") if _NOTEBOOK.fullmatch(path)}
    return sorted(path for path in found if (root / path).exists())


def changed_files(root: Path, since: str) -> list[str]:
    """List the files that differ from a commit, new ones too; none where git cannot say."""
    listed: list[str] = []
    for words in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        try:
            done = subprocess.run(
                ["git", *words], cwd=root, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return []
        listed += done.stdout.splitlines()
    return sorted({*listed})
