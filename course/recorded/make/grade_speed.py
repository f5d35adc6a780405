"""Seconds a submission of lab 01, for classes of 10 to 300, and beside them nbgrader's.

    python course/recorded/make/grade_speed.py [--sizes 10,30,300] [--workers 2] [--lab lab01]

Classes are examples as `grade --example` writes them: the solution, the blank, wrong and right
answers mixed. Each is graded from nothing, self-test included. With NBGRADER_PYTHON set to the
Python of a venv with nbgrader and this course, nbgrader grades a few of the same files, in the same
run. The load is shown, since it changes every number here but the last: the CPU seconds of all
processes.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "grading_corpus")]

import nbgrader_run

from solutions.answers.known import write_example
from solutions.grader import launch
from solutions.grader.lab import load_lab
from solutions.grader.run import grade

FEW = 4  # for nbgrader
# The servers let the system forget children; here they wait for them, whose CPU time then counts.
HOOK = """
import os, signal
real = signal.signal
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
signal.signal = lambda n, h: real(n, reap if n == signal.SIGCHLD and h == signal.SIG_IGN else h)
"""


def cpu_seconds():
    """CPU seconds of this process and of all that were waited for."""
    return sum(os.times()[:4])


def ours(lab, folder, size, workers):
    """Grade an example class; gives the seconds, and the CPU seconds."""
    write_example(lab, folder / "class", root=ROOT, num_students=size)
    start = launch._START
    launch._START = f"exec({HOOK!r}, {{{{}}}}); {start}"
    began, before = time.monotonic(), cpu_seconds()
    table = grade(lab, folder / "class", folder / "report", root=ROOT, workers=workers)
    seconds, launch._START = time.monotonic() - began, start
    facts = json.loads((folder / "report" / "run.json").read_text(encoding="utf-8"))
    assert len(table) == size
    assert not [one for one in facts["submissions"] if one["status"] == "crashed"]
    return seconds, cpu_seconds() - before


def theirs(lab, folder):
    """Grade a few files of an example class with nbgrader; gives seconds a file, or None."""
    python = nbgrader_run.nbgrader_python()
    if python is None:
        return None
    write_example(lab, folder / "class", root=ROOT, num_students=2 * FEW)
    readable = {}
    for number, path in enumerate(sorted((folder / "class").rglob("*.ipynb"))):
        try:
            readable[f"s{number}"] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # the broken one ends nbgrader's batch
            continue
    few = dict(list(readable.items())[:FEW])
    path = load_lab(ROOT, lab).path
    return nbgrader_run.autograde(python, folder / "nbgrader", path, few)[1] / FEW


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="10,30,300")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lab", default="lab01")
    asked = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "nbgrader").mkdir()
        each = theirs(asked.lab, Path(place) / "nbgrader")
        shown = "not installed" if each is None else f"{each:.1f} s a submission"
        print(f"nbgrader {asked.lab}: {shown}", flush=True)
        for size in map(int, asked.sizes.split(",")):
            (Path(place) / str(size)).mkdir()
            seconds, cpu = ours(asked.lab, Path(place) / str(size), size, asked.workers)
            line = f"{size:4} submissions, {asked.workers} workers: {seconds:6.1f} s"
            line += f", {seconds / size:5.2f} s a submission, start and self-test included"
            line += f"; load {os.getloadavg()[0]:.1f}; CPU {cpu / size:.2f} s a submission"
            print(line, flush=True)


if __name__ == "__main__":
    main()
