"""Third step of grading: judge the answers of each submission, several at a time.

What ran out of time beside others is judged once more, with no other beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from solutions.grader.bench import Bench, Order, blank, open_bench, solution
from solutions.grader.errors import GradingError
from solutions.grader.journal import Journal
from solutions.grader.lab import Lab
from solutions.grader.results import Graded, Submission

if TYPE_CHECKING:
    from solutions.grader.cluster import Cluster

_AGAIN = (
    "A check ran out of time when this file was graded beside others. It was graded again with no "
    "other beside it, and this is the second result."
)


def judge_class(
    order: Order,
    submissions: Sequence[Submission],
    journal: Journal,
    workers: int | None = None,
    dask: str | None = None,
) -> tuple[list[Graded], dict[str, Any]]:
    """Judge what has no result yet, after the solution and a blank answer; see `run.grade`.

    Returns:
        All results, and for `run.json` the facts about what judged them.
    """
    started, layers = time.monotonic(), journal.layers
    if not layers or not all(one.result for one in submissions):
        grading: AbstractContextManager[Bench | Cluster]
        if dask:
            # Dask takes a while to import
            from solutions.grader.cluster import open_cluster

            grading = open_cluster(dask, order)
        else:
            grading = open_bench(order)
        with grading as grader:
            layers, workers = grader.layers, workers or grader.workers
            this = Judging(order.lab, journal, grader, workers)
            self_test(this)
            submissions = judge_all(this, submissions)
    results = [one.result for one in submissions if one.result]
    seconds = round(time.monotonic() - started, 1)
    return results, {"layers": list(layers), "workers": workers, "seconds": seconds}


@dataclass(frozen=True)
class Judging:
    """What is the same for every submission of one run."""

    lab: Lab
    journal: Journal
    grader: Bench | Cluster
    workers: int


def self_test(this: Judging) -> None:
    """Judge the solution and a blank one: a lab that fails this would wrong everybody.

    Raises:
        GradingError: When the solution does not get all points, or the blank one gets some.
    """
    lab, full = this.lab, solution(this.lab)
    with ThreadPoolExecutor(min(2, this.workers)) as pool, _stopping(this, pool):
        solved, empty = pool.map(this.grader.judge, [full, blank(lab)])
        if solved.ran_out_of_time:
            solved = pool.submit(this.grader.judge, full).result()
    if solved.status != "graded" or solved.points(lab) != lab.maximum:
        failed = [f"{name}: {v.evidence}" for name, v in solved.verdicts.items() if not v.passed]
        raise GradingError(
            f"the solution of {lab.name} itself gets {solved.points(lab)} of {lab.maximum} "
            f"points, so nobody was graded. {' '.join(failed)}{solved.reason}"
        )
    if empty.points(lab):
        free = [c.id for c in lab.checks if (v := empty.verdicts.get(c.id)) and v.passed]
        raise GradingError(
            f"a blank answer passes {', '.join(free)} of {lab.name}, so nobody was graded: "
            "make these checks look at the answer."
        )


@contextmanager
def _stopping(this: Judging, pool: ThreadPoolExecutor) -> Iterator[None]:
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


def judge_all(this: Judging, submissions: Sequence[Submission]) -> list[Submission]:
    """Judge submissions, several at a time; then alone, one by one, those that ran out of time."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    console = Console(stderr=True)
    shown = (*Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn())
    new = [one for one in submissions if not one.result]
    judged = {one.name: one for one in submissions}
    with Progress(*shown, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"grading {this.lab.name}", total=len(new))
        alone = min(this.workers, len(new)) == 1
        with ThreadPoolExecutor(this.workers) as pool, _stopping(this, pool):
            for one in pool.map(lambda one: _judge(this, one, alone=alone), new):
                judged[one.name] = one
                progress.advance(task)
            results = [(one, judged[one.name].result) for one in new if not alone]
            late = [one for one, result in results if result and result.ran_out_of_time]
            progress.update(task, total=len(new) + len(late))
            for one in late:
                again = pool.submit(_judge, this, one, alone=True, notes=[_AGAIN])
                judged[one.name] = again.result()
                progress.advance(task)
    if late:
        console.print(f"Graded again, alone, since they ran out of time: {len(late)}.")
    return list(judged.values())


def _judge(this: Judging, one: Submission, *, alone: bool, notes: Sequence[str] = ()) -> Submission:
    def judge(one: Submission) -> Submission:
        assert one.answers is not None
        started = time.monotonic()
        result = this.grader.judge(one.answers)
        result = replace(
            result,
            name=one.name,
            seed=this.journal.seed,
            seconds=round(time.monotonic() - started, 2),
            alone=alone,
            notes=[*notes, *result.notes],
        )
        return replace(one, result=this.journal.add(one.digest, result))

    return one.through(judge)
