"""Grading a class: reads every submission, judges it, writes the report.

What an answer returns is judged in another process, on cases drawn from a secret seed. How the
answer came by it is not known, but what its exercise forbids is gone from its process, and memory
is judged by a limit that the process cannot lift. Unusual answers are named
in the column `review`, for a person to read.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.school.grading import report
from tutorial_lib.school.grading.bench import Order, open_bench
from tutorial_lib.school.grading.inside.processes import interruptible
from tutorial_lib.school.grading.journal import Journal, course_version
from tutorial_lib.school.grading.lab import load_lab
from tutorial_lib.school.grading.marking import Run, grade_all, self_test, taken_over
from tutorial_lib.school.grading.report import scores
from tutorial_lib.school.grading.report.class_list import ClassList, Rules
from tutorial_lib.school.grading.request import check_request
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.class_folder import find_submissions
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd

    from tutorial_lib.school.grading.bench import Bench
    from tutorial_lib.school.grading.cluster import Cluster

_ADVICE = {
    "landlock+namespaces": "",
    "landlock": " No own network and process space could be made: a submission may reach the "
    "network and end other processes of yours.",
    "namespaces": " Submissions can read your files: this kernel has no usable Landlock.",
    "limits only": " Submissions can read your files and reach the network: grade only files "
    "of people you trust, or use Linux 5.13 or later.",
    "none": " Nothing holds a submission back: grade only files of people you trust.",
}
_UNWATCHED = (
    " This machine has no /proc: each answer has one process, whose memory the system limits, and "
    "an answer that starts processes gets an error."
)
_NO_EXAM = (
    " Memory exam not held: this machine cannot limit what one process maps. Memory was judged by "
    "meters alone, which an answer can change, and nobody lost points."
)


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
    checks_package: str = "tutorial_lib.checks",
    import_path: Sequence[Path] = (),
    rules: Rules | None = None,
) -> pd.DataFrame:
    """Grade a folder of submissions of one lab, and write scores and feedback.

    The solution itself and a blank answer are graded first: they must get all points and none.
    What a stopped run or an older report in `out` has graded, and is the same, is taken over. Where
    that is everything, only the report is written anew.

    Args:
        lab: As in `lab01`.
        submissions: Folder with notebooks, or with one folder a student.
        out: Folder for the report: a new one, or that of an older report, which is replaced.
        root: The course folder.
        workers: Submissions graded at the same time; as many as cores and memory allow when None.
        dask: Address of a Dask scheduler, whose workers grade in place of this machine.
        seconds: CPU time of a function in one check, all its cases together.
        memory_bytes: What a student's process may use beyond its imports.
        only: Names of the few to grade; an older report keeps the others. All when empty.
        seed: For repeating a run; by default a secret one is drawn, or that of the stopped run.
        checks_package: Where the names of checks are looked up.
        import_path: More places where Python looks for modules.
        rules: Roster, overrides, deadline, and which of several notebooks counts.

    Returns:
        The table of `scores.csv`; its `attrs["said"]` lists what the instructor should know.

    Raises:
        GradingError: When the request cannot be met; nothing has been written then.
    """
    check_request(seconds, memory_bytes, workers)
    course = load_lab(root.resolve(), lab)
    names = find_submissions(submissions, only)
    report.check_place(out, submissions)
    class_list = ClassList(rules or Rules(), course, find_submissions(submissions), out)
    paths = [path.resolve() for path in import_path]
    identity: dict[str, Any] = {"lab": course.name, "version": course_version(course, paths)}
    identity["limits"] = {"seconds": seconds, "memory_bytes": memory_bytes}
    journal = Journal(out, identity, seed, again=bool(only))
    kept = journal.kept(names) if only else []
    order = Order(course, journal.seed, seconds, memory_bytes, checks_package, paths)
    results, facts = _judged(order, submissions, names, journal, workers, dask)
    table = _write(class_list, out, [*kept, *results], identity | facts)
    journal.remove()
    return table


def _judged(
    order: Order,
    folder: Path,
    names: Sequence[str],
    journal: Journal,
    workers: int | None,
    dask: str | None,
) -> tuple[list[Graded], dict[str, Any]]:
    """Give a result for each name, taken over where that is possible, and facts about the run."""
    started = time.monotonic()
    done = taken_over(journal, folder, names)
    new = [name for name in names if name not in done]
    layers = journal.layers
    if same := len([one for one in done.values() if one.file]):
        print(f"Graded before, and unchanged: {same}.", file=sys.stderr)
    if new or not layers:  # else only the report is written anew
        with interruptible(), _graders(order, dask) as grader:
            layers, workers = grader.layers, workers or grader.workers
            this = Run(order.lab, folder, journal, grader, workers)
            self_test(this)
            done |= grade_all(this, new)
    versions = {name: metadata.version(name) for name in ("torch", "nbval", "pytest")}
    return list(done.values()), {
        "seed": journal.seed,
        "workers": workers,
        "seconds": round(time.monotonic() - started, 1),
        "taken_over": same,
        "layers": list(layers),
        "isolation": isolation(layers),
        "versions": versions | {"python": platform.python_version(), "system": platform.platform()},
    }


def _graders(order: Order, dask: str | None) -> AbstractContextManager[Bench | Cluster]:
    if not dask:
        return open_bench(order)
    from tutorial_lib.school.grading.cluster import open_cluster  # Dask takes a while to import

    return open_cluster(dask, order)


def isolation(layers: Sequence[str]) -> str:
    """Put the layers into the words of the report."""
    holes = {"solutions readable", "files writable"}
    landlock = "landlock" in layers and holes.isdisjoint(layers)
    names = ["landlock"] * landlock + ["namespaces"] * ("namespaces" in layers)
    if names:
        return "+".join(names)
    return "limits only" if "limits" in layers else "none"


def _write(
    class_list: ClassList, out: Path, results: Sequence[Graded], facts: dict[str, Any]
) -> pd.DataFrame:
    """Write the report of what was graded and what is kept of an older one."""
    import pandas as pd

    everybody = sorted(results, key=lambda result: result.name)
    lab, entries = class_list.lab, class_list.entries(everybody)
    isolated = f"isolation: {facts['isolation']}.{_ADVICE.get(facts['isolation'], '')}"
    isolated += _UNWATCHED if "unwatched" in facts["layers"] else ""
    isolated += "" if "memory exam" in facts["layers"] else _NO_EXAM
    said = [isolated, *class_list.warnings(entries)]
    facts["submissions"] = [asdict(one) for one in everybody]
    report.write_report(out, lab, entries, said, facts)
    table = pd.DataFrame(scores.rows(lab, entries))
    table.attrs["said"] = said
    return table
