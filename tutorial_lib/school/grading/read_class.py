"""First step of grading: read the files of a class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tutorial_lib.school.grading.results import Submission
from tutorial_lib.school.grading.submissions.class_folder import find_submissions, read_content


def read_class(folder: Path, only: Sequence[str] = ()) -> list[Submission]:
    """Read what `find_submissions` lists, once; what is no notebook has its result already."""

    def read(one: Submission) -> Submission:
        return replace(one, digest=hashlib.sha256(read_content(one.path)).hexdigest())

    found = [Submission(name, folder / name) for name in find_submissions(folder, only)]
    return [one.through(read) for one in found]
