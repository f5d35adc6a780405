"""Answers to the real labs, as different students write them: right ones, and lazy or hostile ones.

A file for each lab stands in `answers`. `#% 3.1 right NAME` begins an answer that is worth all
points, `#% 3.1 wrong NAME => WORDS` one that must be refused with these words in the message. What
stands above a line `#%%` is a cell of the student's own above the answer cell. A line `#+ NAME`
stands for the text below `#% 0 part NAME`, further up in the file.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toy import code

from solutions.answers.known import handed_in
from solutions.answers.selftest import Case, only
from solutions.grader.bench import Order, open_bench
from solutions.grader.lab import load_lab
from solutions.grader.submissions.reader import read_submission
from tutorial_lib.units import GIB

FOLDER = Path(__file__).parent / "answers"
LABS = sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(name):
    """Yield exercise, kind, title, words and cells of each answer; its own cell is the last."""
    parts = {}
    for block in re.split(r"(?m)^#% ", (FOLDER / f"{name}.txt").read_text(encoding="utf-8"))[1:]:
        head, _, text = block.partition("\n")
        text = re.sub(r"(?m)^#\+ (\w+)\n", lambda found: parts[found[1]], text)
        exercise, kind, title = head.split(None, 2)
        title, _, words = title.partition(" => ")
        if kind == "part":
            parts[title] = text
        else:
            yield exercise, kind, title, words, re.split(r"(?m)^#%%\n", text)


def by_title(name, kind):
    """Return the last cell of each answer of one kind."""
    return {one[2]: one[4][-1].rstrip("\n") for one in read(name) if one[1] == kind}


def submission(lab, exercise, cells):
    """Hand in the solution, with another answer to one exercise and cells above it."""
    *own, answer = cells
    sources = {number: one.reference for number, one in lab.answers.items()}
    notebook = handed_in(lab, sources | {exercise: f"# exercise {exercise}\n{answer}"})
    ids = [cell["id"] for cell in notebook["cells"]]
    place = ids.index(lab.answers[exercise].id)
    notebook["cells"][place:place] = [code(f"own-{i}", source) for i, source in enumerate(own)]
    return json.dumps(notebook).encode()


def faults(root, name):
    """Grade the answers to a lab; gives what is wrong with a verdict."""
    lab = load_lab(root, name)
    cases = [
        Case(
            exercise,
            kind,
            f"{exercise} {title}",
            read_submission(lab, submission(lab, exercise, cells)),
            [words] if words else [],
        )
        for exercise, kind, title, words, cells in read(name)
    ]
    order = Order(lab, 0, 20.0, 2 * GIB, "tutorial_lib.checks", [])
    with open_bench(order) as bench, ThreadPoolExecutor(bench.workers) as pool:

        def fault(case):
            return case.fault(lab, bench.judge(case.answers, only(lab, case.exercise)))

        found = zip(cases, pool.map(fault, cases), strict=True)
        return {case.name: said for case, said in found if said}
