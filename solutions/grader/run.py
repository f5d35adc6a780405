"""Grading a class: read each file, find its answers, judge them, write the report.

What an answer returns is judged in another process, on cases drawn from a secret seed. How the
answer came by it is not known, but what its exercise forbids is gone from its process, and memory
is judged by a limit that the process cannot lift. Unusual answers are named in the column `review`,
for a person to read. What ran out of time beside others is judged once more, alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solutions.grader import GradingError, NotGradable, words
from solutions.grader.bench import Bench, Order, blank, default_workers, open_bench, solution
from solutions.grader.lab import Lab, load_lab
from solutions.grader.launch import interruptible
from solutions.grader.report.class_list import read_marks
from solutions.grader.report.report_class import check_folder, report_class
from solutions.grader.report.roster import Roster
from solutions.grader.results import Graded, Journal, course_version
from solutions.grader.submissions.answers import Answers
from solutions.grader.submissions.class_folder import find_submissions, read_content
from solutions.grader.submissions.reader import MEMORY_BYTES, open_reader
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd

    from solutions.grader.cluster import Cluster

_DAY = 86_400.0
_NEEDED = ("nbval", "pytest", "ipykernel", "pandas", "rich", "psutil", "jinja2")


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
        roster, marks: CSV files of the students, and of points and comments by hand.
        checks_package, import_path: Where checks are looked up, and more places for modules.

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
    journal.close(remove=True)
    return table


def judge_class(
    order: Order,
    folder: Path,
    names: Sequence[str],
    journal: Journal,
    workers: int | None = None,
    dask: str | None = None,
) -> tuple[list[Graded], dict[str, Any]]:
    """Return the results of files, and what `run.json` says of the run; see `grade`.

    What has no result yet is judged after the solution and a blank answer.
    """
    started, layers = time.monotonic(), journal.layers
    results, new = read_class(order.lab, folder, names, journal)
    if taken_over := sum(1 for one in results.values() if one.file):
        print(f"Graded before, and unchanged: {taken_over}.", file=sys.stderr)
    if new or not layers:
        grading: AbstractContextManager[Bench | Cluster] = open_bench(order)
        if dask:  # which takes a while to import
            from solutions.grader.cluster import open_cluster

            grading = open_cluster(dask, order)
        with grading as grader:
            layers, workers = grader.layers, workers or grader.workers
            with _stopping(grader, journal, workers) as pool:
                self_test(order.lab, grader, pool)
                results |= judge_all(grader, new, journal, pool, alone=min(workers, len(new)) == 1)
    facts = {"seed": journal.seed, "taken_over": taken_over, "layers": list(layers)}
    facts |= {"workers": workers, "seconds": round(time.monotonic() - started, 1)}
    return [results[name] for name in names], journal.order | facts


def read_class(
    lab: Lab, folder: Path, names: Sequence[str], journal: Journal
) -> tuple[dict[str, Graded], dict[str, tuple[str, Answers]]]:
    """Read files in a process of their own; no line of them is run.

    Return by name the results that are known already, and of the others digest and answers.
    """

    def read_one(name: str) -> Graded | tuple[str, Answers]:
        content = read_content(folder / name)
        digest = hashlib.sha256(content).hexdigest()
        return journal.earlier(name, digest) or (digest, read(content))

    with open_reader(lab) as read, ThreadPoolExecutor(default_workers(MEMORY_BYTES)) as pool:
        found = dict(zip(names, pool.map(lambda name: _result(name, read_one), names), strict=True))
    new = {name: one for name, one in found.items() if isinstance(one, tuple)}
    return {name: one for name, one in found.items() if isinstance(one, Graded)}, new


def _result(name: str, step: Callable[[str], Any]) -> Any:
    """Take a step with a file; a failure is its result, and stops no other."""
    try:
        return step(name)
    except NotGradable as finding:
        return Graded(name, finding.status, reason=finding.reason)
    except GradingError:
        raise
    except Exception as error:
        return Graded(name, "crashed", reason=words("crashed", error=type(error).__name__))


@contextmanager
def _stopping(
    grader: Bench | Cluster, journal: Journal, workers: int
) -> Iterator[ThreadPoolExecutor]:
    """Yield threads; on Ctrl-C, end every judge and the server, and write down no more."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            journal.close()
            pool.shutdown(wait=False, cancel_futures=True)
            grader.stop()
            if journal.path.exists():
                print(words("stopped", path=journal.path), file=sys.stderr)
            raise


def self_test(lab: Lab, grader: Bench | Cluster, pool: ThreadPoolExecutor) -> None:
    """Judge the solution and a blank one: a lab that fails this would wrong everybody.

    It's a GradingError when the solution does not get all points, or the blank one gets some.
    """
    full = solution(lab)
    solved, empty = pool.map(grader.judge, [full, blank(lab)])
    if solved.ran_out_of_time:
        solved = grader.judge(full)
    if solved.status != "graded" or solved.points(lab) != lab.maximum:
        failed = [f"{name}: {v.evidence}" for name, v in solved.verdicts.items() if not v.passed]
        facts = {"points": solved.points(lab), "failed": " ".join(failed) + solved.reason}
        raise GradingError(words("unfair", lab=lab.name, maximum=lab.maximum, **facts))
    if empty.points(lab):
        free = [name for name, verdict in empty.verdicts.items() if verdict.passed]
        raise GradingError(words("free points", checks=", ".join(free), lab=lab.name))


def judge_all(
    grader: Bench | Cluster,
    new: Mapping[str, tuple[str, Answers]],
    journal: Journal,
    pool: ThreadPoolExecutor,
    *,
    alone: bool,
) -> dict[str, Graded]:
    """Judge submissions, several at a time; then alone, one by one, those that ran out of time."""
    from rich.console import Console
    from rich.progress import track

    def judge(name: str, *, alone: bool, notes: Sequence[str] = ()) -> Graded:
        (digest, answers), started = new[name], time.monotonic()
        result = grader.judge(answers)
        seconds, notes = round(time.monotonic() - started, 2), [*notes, *result.notes]
        seed = journal.seed
        result = replace(result, name=name, seed=seed, seconds=seconds, alone=alone, notes=notes)
        return journal.add(digest, result)

    console, label, total = Console(stderr=True), f"grading {journal.order['lab']}", len(new)
    shown = partial(track, console=console, disable=not console.is_terminal)
    first, again = partial(judge, alone=alone), partial(judge, alone=True, notes=[words("again")])
    judging = pool.map(lambda name: _result(name, first), new)
    judged = {one.name: one for one in shown(judging, label, total=total)}
    late = [name for name, one in judged.items() if one.ran_out_of_time and not alone]
    for name in shown(late, "again, alone") if late else ():
        judged[name] = pool.submit(_result, name, again).result()
    if late:
        console.print(f"Graded again, alone, since they ran out of time: {len(late)}.")
    return judged


def check_request(seconds: float, memory_bytes: int, workers: int | None) -> None:
    """Refuse, as a GradingError, limits or a machine with which nothing could be graded."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    limits = {"seconds": seconds, "memory_bytes": memory_bytes, "workers": workers}
    if not 0 < seconds < _DAY or memory_bytes <= 0 or (workers is not None and workers < 1):
        raise GradingError(words("limits", **limits))
    if not hasattr(os, "fork"):
        raise GradingError(words("no fork"))
    if sys.platform.startswith("linux") and not Path("/proc/self/status").exists():
        raise GradingError(words("no proc"))
    if missing:
        raise GradingError(words("packages", missing=", ".join(missing)))
