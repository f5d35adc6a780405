"""Grading a class: read its files, match their cells, judge the answers, write the report.

What an answer returns is judged in another process, on cases drawn from a secret seed. How the
answer came by it is not known, but what its exercise forbids is gone from its process, and memory
is judged by a limit that the process cannot lift. Unusual answers are named in the column `review`,
for a person to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.grader.bench import Order
from solutions.grader.inside.processes import interruptible
from solutions.grader.journal import Journal, course_version
from solutions.grader.judge_class import judge_class
from solutions.grader.lab import load_lab
from solutions.grader.report.marks import read_marks
from solutions.grader.report.report_class import check_folder, report_class
from solutions.grader.report.roster import Roster
from solutions.grader.request import check_request
from solutions.grader.submissions.class_folder import find_submissions
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd


def grade(
    lab: str,
    submissions: Path,
    out: Path,
    *,
    root: Path,
    workers: int | None = None,
    dask: str | None = None,
    seconds: float = 20.0,
    memory_bytes: int = 2 * GIB,
    only: Sequence[str] = (),
    seed: int | None = None,
    roster: Path | None = None,
    marks: Path | None = None,
    checks_package: str = "tutorial_lib.checks",
    import_path: Sequence[Path] = (),
) -> pd.DataFrame:
    """Grade a folder of submissions of one lab, and write scores and feedback.

    Args:
        lab: As in `lab01`.
        submissions: Folder with notebooks, or with one folder a student.
        out: Folder for the report; what an older report or a stopped run graded there is kept.
        root: The course folder.
        workers: Submissions graded at once; as many as cores and memory allow when None.
        dask: Address of a Dask scheduler, whose workers judge in place of this machine.
        seconds: CPU time of a function in one check, all its cases together.
        memory_bytes: What a student's process may use beyond its imports.
        only: Names of the few to grade; an older report keeps the others. All when empty.
        seed: For repeating a run; by default a secret one is drawn, or that of the stopped run.
        roster: A CSV file of the students.
        marks: A CSV file of points and comments by hand, which go before those of the checks.
        checks_package: Where the names of checks are looked up.
        import_path: More places where Python looks for modules.

    Returns:
        The table of `scores.csv`; its `attrs["said"]` lists what the instructor should know.

    Raises:
        GradingError: When the request cannot be met; nothing has been written then.
    """
    check_request(seconds, memory_bytes, workers)
    course, paths = load_lab(root.resolve(), lab), [path.resolve() for path in import_path]
    identity: dict[str, Any] = {"lab": course.name, "version": course_version(paths, course)}
    identity["limits"] = {"seconds": seconds, "memory_bytes": memory_bytes}

    with interruptible():
        chosen = find_submissions(submissions, only, course.name)
        check_folder(out, submissions)
        students, names = Roster(roster), find_submissions(submissions, lab=course.name)
        by_hand = read_marks(marks, course, names, students)
        journal = Journal(out, identity, seed, again=bool(only))
        kept = journal.kept(chosen) if only else []
        order = Order(course, journal.seed, seconds, memory_bytes, checks_package, paths)
        results, facts = judge_class(order, submissions, chosen, journal, workers, dask)
    table = report_class(out, course, [*kept, *results], students, names, facts, by_hand)
    journal.remove()
    return table
