"""Second step of grading: match the cells of each submission with the exercises."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.request import default_workers
from tutorial_lib.school.grading.results import Submission
from tutorial_lib.school.grading.submissions.class_folder import read_content
from tutorial_lib.school.grading.submissions.reader import MEMORY_BYTES, read_submission


def match_class(lab: Lab, submissions: Sequence[Submission]) -> list[Submission]:
    """Find the answers in each file, in a process of its own; no line of them is run."""

    def match(one: Submission) -> Submission:
        return replace(one, answers=read_submission(lab, read_content(one.path)))

    with ThreadPoolExecutor(default_workers(MEMORY_BYTES)) as pool:
        return list(pool.map(lambda one: one.through(match), submissions))
