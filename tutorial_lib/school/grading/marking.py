"""Judging a class: several submissions at a time, and once more alone what ran out of time."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tutorial_lib.school.grading.class_folder import (
    check_is_notebook,
    notebooks_in,
    parse_notebook,
    read_content,
)
from tutorial_lib.school.grading.errors import GradingError, NotGradable
from tutorial_lib.school.grading.journal import Journal
from tutorial_lib.school.grading.judge import prepare, run_judge
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.launch import start_session
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submission import Answers, explain_missing_names, match_answers

_AGAIN = (
    "A check ran out of time when this file was graded beside others. It was graded again with no "
    "other beside it, and this is the second result."
)


@dataclass(frozen=True)
class Run:
    """What is the same for every submission of one run.

    Args:
        lab: The lab.
        folder: Of the class.
        run_directory: Where each submission gets a folder.
        journal: Keeps the results so far.
        seconds: CPU time of a function in one check.
        import_path: More places where Python looks for modules.
        server: The fork server.
        stopped: Set when the whole run comes to an end.
    """

    lab: Lab
    folder: Path
    run_directory: Path
    journal: Journal
    seconds: float
    import_path: Sequence[Path]
    server: subprocess.Popen[str]
    stopped: threading.Event = field(default_factory=threading.Event)


def self_test(this: Run, workers: int) -> None:
    """Grade the solution and a blank one: a lab that fails this would wrong everybody.

    Raises:
        GradingError: When the solution does not get all points, or the blank one gets some.
    """
    answers = this.lab.answers.values()
    full = Answers({answer.exercise: answer.reference for answer in answers})
    blanks = {
        answer.exercise: "\n".join(
            f"def {name}(*_, **__):\n    raise NotImplementedError" for name in answer.names
        )
        for answer in answers
    }
    with ThreadPoolExecutor(min(2, workers)) as pool, _stopping(this, pool):
        solved, blank = pool.map(lambda answers: _judge(this, answers), [full, Answers(blanks)])
        if solved.ran_out_of_time:
            solved = pool.submit(_judge, this, full).result()
    if solved.status != "graded" or solved.points(this.lab) != this.lab.maximum:
        failed = [verdict.evidence for verdict in solved.verdicts.values() if not verdict.passed]
        raise GradingError(
            f"the solution of {this.lab.name} itself gets {solved.points(this.lab)} of "
            f"{this.lab.maximum} points, so nobody was graded. {' '.join(failed)}{solved.reason}"
        )
    if blank.points(this.lab):
        free = [c.id for c in this.lab.checks if (v := blank.verdicts.get(c.id)) and v.passed]
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
        this.stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        this.server.kill()
        if this.journal.path.exists():
            print(f"Stopped; {this.journal.path} keeps what is graded so far.", file=sys.stderr)
        raise


def grade_all(this: Run, names: Sequence[str], workers: int) -> list[Graded]:
    """Grade submissions, several at a time; then alone, one by one, those that ran out of time.

    Args:
        this: The run.
        names: Of the submissions.
        workers: How many are graded at the same time.

    Returns:
        A result for each name, in their order; of two, the second.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"grading {this.lab.name}", total=len(names))
        results = []
        alone = min(workers, len(names)) == 1
        with ThreadPoolExecutor(workers) as pool, _stopping(this, pool):
            for result in pool.map(lambda name: _grade_one(this, name, alone=alone), names):
                results.append(result)
                progress.advance(task)
            late = [i for i, one in enumerate(results) if one.ran_out_of_time and not one.alone]
            progress.update(task, total=len(names) + len(late))
            for i in late:
                again = pool.submit(_grade_one, this, names[i], alone=True, notes=[_AGAIN])
                results[i] = again.result()
                progress.advance(task)
    if late:
        console.print(f"Graded again, alone, since they ran out of time: {len(late)}.")
    if this.journal.taken_over:
        console.print(f"{this.journal.taken_over} results were taken over from a stopped run.")
    return results


def _grade_one(this: Run, name: str, *, alone: bool, notes: Sequence[str] = ()) -> Graded:
    started = time.monotonic()
    try:
        check_is_notebook(this.folder / name)
        content = read_content(this.folder / name)
        result = this.journal.earlier(content)
        if result is None:
            answers = match_answers(this.lab, parse_notebook(content))
            result = _judge(this, answers)
            seconds = round(time.monotonic() - started, 2)
            result = replace(
                result,
                seed=this.journal.seed,
                seconds=seconds,
                alone=alone,
                notes=[*notes, *result.notes],
            )
            this.journal.add(content, result)
    except NotGradable as finding:
        result = Graded(name, finding.status, reason=finding.reason)
    except Exception as error:  # one submission must never stop a class
        reason = f"Grading stopped with {type(error).__name__}: tell the instructor."
        result = Graded(name, "crashed", reason=reason)
    return replace(result, name=name, notes=[*result.notes, *_beside(this.folder, name)])


def _beside(folder: Path, name: str) -> list[str]:
    """Note the other notebooks of a student's folder: each has a row, and none is preferred."""
    student, _, file = name.rpartition("/")
    others = [other for other in notebooks_in(folder / student) if other != file] if student else []
    if not others:
        return []
    return [f"The folder {student} holds other notebooks, each with a row: {', '.join(others)}."]


def _judge(this: Run, answers: Answers) -> Graded:
    """Judge answers; once more in a fresh folder when the judge itself did not finish."""
    for attempt in (1, 2):
        folder = this.run_directory / secrets.token_hex(
            8
        )  # no other submission can guess its socket
        try:
            prepare(folder, this.lab, answers)
            start_session(this.server, folder)
            verdicts = run_judge(
                folder,
                this.lab,
                seed=this.journal.seed,
                seconds=this.seconds,
                import_path=this.import_path,
                stopped=this.stopped,
            )
            evidence = [one.evidence for one in verdicts.values() if not one.passed]
            notes = [*answers.notes, *explain_missing_names(evidence, answers)]
            return Graded(
                "", "graded", verdicts, notes=notes, review=answers.review, sources=answers.sources
            )
        except NotGradable as finding:
            if attempt == 2 or finding.status != "crashed":
                return Graded("", finding.status, reason=finding.reason)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable: the second attempt returns")
