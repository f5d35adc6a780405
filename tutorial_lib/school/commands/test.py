"""Set up .venv, then run the daily tests, without a network.

The daily tests are all rules, a handful of notebooks, and the notebooks that differ from the commit
before the last.
"""

from __future__ import annotations

import argparse
import os

from tutorial_lib.school import bootstrap, changed
from tutorial_lib.school.commands import process


def options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes; the rest is pytest's."""
    parser.usage = "%(prog)s [options] [arguments of pytest]"
    parser.epilog = (
        "All else goes to pytest: tests/test_units.py runs only these tests; -k WORD, -x. "
        "`pytest --help` lists pytest's own options."
    )
    parser.add_argument(
        "--all", action="store_true", help="every notebook and test, the weekly ones too: hours"
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="run the GPU cells of all notebooks, or of those named, on emulated cards",
    )


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
    paths = [] if chosen else [*changed.daily_notebooks(bootstrap.ROOT), "tests"]
    if options.all:
        paths = ["course", "solutions", "tests", "-m", ""]
    workers = str(min(4, (os.cpu_count() or 1) + 1))  # one more, since some tests wait
    command = [python, "-m", "pytest", "--nbval", "-n", workers, "--dist", "loadfile"]
    return process.become([*command, *paths, *words], changes)
