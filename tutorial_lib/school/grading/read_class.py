"""First step of grading: read the files of a class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tutorial_lib.school.grading.results import Submission
from tutorial_lib.school.grading.submissions.class_folder import find_submissions, read_content


def read_class(folder: Path, only: Sequence[str] = ()) -> list[Submission]:
    """Read each file of a class once; one that is no notebook has its result already.

    Args:
        folder: The folder of the class.
        only: Names, or stems of names, of the few to grade; all when empty.

    Raises:
        GradingError: As `find_submissions` does.
    """
    found = [Submission(name, folder / name) for name in find_submissions(folder, only)]
    return [one.through(_read) for one in found]


def _read(one: Submission) -> Submission:
    return replace(one, digest=hashlib.sha256(read_content(one.path)).hexdigest())
