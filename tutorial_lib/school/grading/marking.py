"""Judging a class: several submissions at a time, and once more alone what ran out of time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tutorial_lib.school.grading.bench import Bench, blank, solution
from tutorial_lib.school.grading.errors import GradingError, NotGradable
from tutorial_lib.school.grading.journal import Journal
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.class_folder import handed_in, read_content

if TYPE_CHECKING:
    from tutorial_lib.school.grading.cluster import Cluster

_AGAIN = (
    "A check ran out of time when this file was graded beside others. It was graded again with no "
    "other beside it, and this is the second result."
)


@dataclass(frozen=True)
class Run:
    """What is the same for every submission of one run."""

    lab: Lab
    folder: Path
    journal: Journal
    grader: Bench | Cluster
    workers: int


def self_test(this: Run) -> None:
    """Grade the solution and a blank one: a lab that fails this would wrong everybody.

    Raises:
        GradingError: When the solution does not get all points, or the blank one gets some.
    """
    full = solution(this.lab)
    with ThreadPoolExecutor(min(2, this.workers)) as pool, _stopping(this, pool):
        solved, empty = pool.map(this.grader.judge, [full, blank(this.lab)])
        if solved.ran_out_of_time:
            solved = pool.submit(this.grader.judge, full).result()
    if solved.status != "graded" or solved.points(this.lab) != this.lab.maximum:
        failed = [
            f"{name}: {one.evidence}" for name, one in solved.verdicts.items() if not one.passed
        ]
        raise GradingError(
            f"the solution of {this.lab.name} itself gets {solved.points(this.lab)} of "
            f"{this.lab.maximum} points, so nobody was graded. {' '.join(failed)}{solved.reason}"
        )
    if empty.points(this.lab):
        free = [c.id for c in this.lab.checks if (v := empty.verdicts.get(c.id)) and v.passed]
        raise GradingError(
            f"a blank answer passes {', '.join(free)} of {this.lab.name}, so nobody was graded: "
            "make these checks look at the answer."
        )


@contextmanager
def _stopping(this: Run, pool: ThreadPoolExecutor) -> Iterator[None]:
    """On Ctrl-C, end every judge and the server, and write down no more."""
    try:
        yield
    except BaseException:
        this.journal.close()
        pool.shutdown(wait=False, cancel_futures=True)
        this.grader.stop()
        if this.journal.path.exists():
            print(f"Stopped; {this.journal.path} keeps what is graded so far.", file=sys.stderr)
        raise


def taken_over(journal: Journal, folder: Path, names: Sequence[str]) -> dict[str, Graded]:
    """Find what need not be judged: what an earlier run has graded, and what is no notebook.

    Returns:
        Results, by name.
    """
    done = {}
    for name in names:
        try:
            result = journal.earlier(read_content(folder / name))
        except NotGradable as finding:
            result = Graded(name, finding.status, reason=finding.reason)
        if result:
            done[name] = _dated(result, folder, name)
    return done


def grade_all(this: Run, names: Sequence[str]) -> dict[str, Graded]:
    """Grade submissions, several at a time; then alone, one by one, those that ran out of time.

    Returns:
        Results, by name; of two, the second.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    shown = (*Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn())
    with Progress(*shown, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"grading {this.lab.name}", total=len(names))
        results = {}
        alone = min(this.workers, len(names)) == 1
        with ThreadPoolExecutor(this.workers) as pool, _stopping(this, pool):
            graded = pool.map(lambda name: _grade_one(this, name, alone=alone), names)
            for name, result in zip(names, graded, strict=True):
                results[name] = result
                progress.advance(task)
            late = [name for name in names if results[name].ran_out_of_time and not alone]
            progress.update(task, total=len(names) + len(late))
            for name in late:
                again = pool.submit(_grade_one, this, name, alone=True, notes=[_AGAIN])
                results[name] = again.result()
                progress.advance(task)
    if late:
        console.print(f"Graded again, alone, since they ran out of time: {len(late)}.")
    return results


def _grade_one(this: Run, name: str, *, alone: bool, notes: Sequence[str] = ()) -> Graded:
    started = time.monotonic()
    try:
        content = read_content(this.folder / name)
        result = this.grader.grade(content)
        seconds, notes = round(time.monotonic() - started, 2), [*notes, *result.notes]
        seed = this.journal.seed
        result = replace(result, seed=seed, seconds=seconds, alone=alone, notes=notes)
        result = this.journal.add(content, result)
    except NotGradable as finding:
        result = Graded(name, finding.status, reason=finding.reason)
    except GradingError:  # it stops all
        raise
    except Exception as error:  # one submission must never stop a class
        reason = f"Grading stopped with {type(error).__name__}: tell the instructor."
        result = Graded(name, "crashed", reason=reason)
    return _dated(result, this.folder, name)


def _dated(result: Graded, folder: Path, name: str) -> Graded:
    when, dated_by = handed_in(folder / name)
    return replace(result, name=name, handed_in=when, dated_by=dated_by)
