"""First two steps of grading: read the files of a class, and find the answers in each."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from solutions.grader.lab import Lab
from solutions.grader.request import default_workers
from solutions.grader.results import Submission
from solutions.grader.submissions.class_folder import find_submissions, read_content
from solutions.grader.submissions.reader import MEMORY_BYTES, open_reader


def read_class(folder: Path, only: Sequence[str] = (), lab: str = "") -> list[Submission]:
    """Read what `find_submissions` lists, once; what is no notebook has its result already."""

    def read(one: Submission) -> Submission:
        return replace(one, digest=hashlib.sha256(read_content(one.path)).hexdigest())

    found = [Submission(name, folder / name) for name in find_submissions(folder, only, lab)]
    return [one.through(read) for one in found]


def match_class(lab: Lab, submissions: Sequence[Submission]) -> list[Submission]:
    """Find the answers in each file, in a process of its own; no line of them is run."""

    def match(one: Submission) -> Submission:
        return replace(one, answers=read(read_content(one.path)))

    with open_reader(lab) as read, ThreadPoolExecutor(default_workers(MEMORY_BYTES)) as pool:
        return list(pool.map(lambda one: one.through(match), submissions))
