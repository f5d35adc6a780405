"""Grading a class: reads every submission, judges it, writes the report.

What an answer returns is judged in another process, on cases drawn from a secret seed. How the
answer came by it is not known: in its own process it can call the library's meters by a detour,
and what it says about itself there (how often it called something) is a claim. Answers with words
that hint at it are named in the column `review`, for a person to read.
"""

from __future__ import annotations

import os
import platform
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
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.grading import report
from tutorial_lib.grading.class_folder import (
    demand_notebook,
    find_submissions,
    notebooks_in,
    parse_notebook,
    read_content,
)
from tutorial_lib.grading.errors import GradingError, NotGradable
from tutorial_lib.grading.journal import Journal, as_data, course_version, results_to_keep
from tutorial_lib.grading.judge import preload, prepare, run_judge
from tutorial_lib.grading.lab import Lab, load_lab
from tutorial_lib.grading.processes import interruptible
from tutorial_lib.grading.request import demand_positive, demand_tools
from tutorial_lib.grading.server import isolation
from tutorial_lib.grading.submission import Answers, explain_missing_names, match_answers
from tutorial_lib.grading.workshop import fork_server, start_session, workshop
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = {
    "landlock+namespaces": "",
    "landlock": " No own network and process space could be made: a submission may reach the "
    "network and end other processes of yours.",
    "namespaces": " Submissions can read your files: this kernel has no usable Landlock.",
    "limits only": " Submissions can read your files and reach the network: grade only files "
    "of people you trust, or use Linux 5.13 or later.",
    "none": " Nothing holds a submission back: grade only files of people you trust.",
}


@dataclass(frozen=True)
class _Class:
    """What is the same for every submission of one run."""

    lab: Lab
    folder: Path
    workshop: Path
    journal: Journal
    seconds: float
    import_path: Sequence[Path]
    server: subprocess.Popen[str]
    stopped: threading.Event = field(default_factory=threading.Event)
    reading: threading.Lock = field(default_factory=threading.Lock)


def grade(
    lab: str,
    submissions: Path,
    out: Path,
    *,
    root: Path,
    jobs: int | None = None,
    seconds: float = 20.0,
    memory_bytes: int = 2 * GIB,
    only: Sequence[str] = (),
    seed: int | None = None,
    checks_package: str = "tutorial_lib.checks",
    import_path: Sequence[Path] = (),
) -> pd.DataFrame:
    """Grade a folder of submissions of one lab, and write scores and feedback.

    The solution itself and a blank answer are graded first: they must get all points and none.
    A run that is stopped keeps its results beside `out`, and the same request goes on from there.

    Args:
        lab: As in `lab01`.
        submissions: Folder with notebooks, or with one folder a student.
        out: Folder for `scores.csv`, `feedback/`, `index.html` and `run.json`. It must be new,
            empty, or hold an older report, which is replaced.
        root: The course folder.
        jobs: Submissions graded at the same time; by default one a core, at most 8.
        seconds: What a function may take in one check, all its cases together.
        memory_bytes: What a student's process may use beyond its imports.
        only: Names of the few to grade; an older report keeps the others. All when empty.
        seed: For repeating a run; by default a secret one is drawn, or that of the stopped run.
        checks_package: Where the names of checks are looked up.
        import_path: More places where Python looks for modules.

    Returns:
        The table of `scores.csv`: name, status, points, maximum, one column an exercise, and
        `review`, the exercises whose answer a person should read.

    Raises:
        GradingError: When the request cannot be met; nothing has been written then.
    """
    demand_positive(seconds, memory_bytes, jobs)
    demand_tools()
    course = load_lab(root.resolve(), lab)
    names = find_submissions(submissions, only)
    report.check_place(out, submissions)
    limits = {"seconds": seconds, "memory_bytes": memory_bytes}
    paths = [path.resolve() for path in import_path]
    version = course_version(course, paths)
    kept = results_to_keep(out, course, version, names) if only else []
    journal = Journal(out, {"lab": course.name, "version": version, "limits": limits}, seed)
    order = limits | _order(course, checks_package, paths)
    workers = jobs or min(8, os.cpu_count() or 1)
    started = time.monotonic()
    with interruptible(), workshop() as place, fork_server(place, order, paths) as (server, layers):
        this = _Class(course, submissions, place, journal, seconds, tuple(paths), server)
        _self_test(this, workers)
        results = _grade_all(this, names, workers)
    facts = {"lab": course.name, "version": version, "jobs": workers, "limits": limits}
    facts |= {"seconds": round(time.monotonic() - started, 1), "layers": layers}
    return _write(this, out, results, kept, facts)


def _write(
    this: _Class,
    out: Path,
    results: Sequence[report.Graded],
    kept: Sequence[report.Graded],
    facts: dict[str, Any],
) -> pd.DataFrame:
    """Write the report of what was graded and what is kept of an older one."""
    everybody = sorted([*kept, *results], key=lambda result: result.name)
    facts |= _facts(this.journal, facts["layers"], everybody)
    said = f"isolation: {facts['isolation']}.{_ADVICE.get(facts['isolation'], '')}"
    report.write_report(out, this.lab, everybody, said, facts, kept={one.name for one in kept})
    this.journal.remove()
    return _table(this.lab, everybody)


def _order(lab: Lab, package: str, import_path: Sequence[Path]) -> dict[str, Any]:
    """Say what the fork server needs to know; the seed is no part of it."""
    return {
        "package": package,
        "import_path": [str(path) for path in import_path],
        "preload": [*preload(lab), f"{package}.{lab.name.split('_')[0]}"],
        "forbidden": str(lab.path),
    }


def _facts(
    journal: Journal, layers: Sequence[str], results: Sequence[report.Graded]
) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("torch", "nbval", "pytest")}
    return {
        "seed": journal.seed,
        "taken_over": journal.taken_over,
        "isolation": isolation(layers),
        "versions": versions | {"python": platform.python_version(), "system": platform.platform()},
        "submissions": [as_data(one) for one in results],
    }


def _table(lab: Lab, results: Sequence[report.Graded]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(report.rows(lab, results), columns=report.columns(lab))


def _self_test(this: _Class, jobs: int) -> None:
    """Grade the solution and a blank one: a lab that fails this would wrong everybody."""
    answers = this.lab.answers.values()
    full = Answers({answer.exercise: answer.reference for answer in answers})
    blanks = {
        answer.exercise: "\n".join(
            f"def {name}(*_, **__):\n    raise NotImplementedError" for name in answer.names
        )
        for answer in answers
    }
    with ThreadPoolExecutor(min(2, jobs)) as pool, _stopping(this, pool):
        solved, blank = pool.map(lambda answers: _judge(this, answers), [full, Answers(blanks)])
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
def _stopping(this: _Class, pool: ThreadPoolExecutor) -> Iterator[None]:
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


def _grade_all(this: _Class, names: Sequence[str], jobs: int) -> list[report.Graded]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"grading {this.lab.name}", total=len(names))
        results = []
        with ThreadPoolExecutor(jobs) as pool, _stopping(this, pool):
            for result in pool.map(lambda name: _grade_one(this, name), names):
                results.append(result)
                progress.advance(task)
    if this.journal.taken_over:
        console.print(f"{this.journal.taken_over} results were taken over from a stopped run.")
    return results


def _grade_one(this: _Class, name: str) -> report.Graded:
    started = time.monotonic()
    try:
        demand_notebook(this.folder / name)
        content = read_content(this.folder / name)
        result = this.journal.earlier(content)
        if result is None:
            with this.reading:  # one at a time: what JSON holds takes many times its bytes
                answers = match_answers(this.lab, parse_notebook(content))
            result = _judge(this, answers)
            result = replace(
                result, seed=this.journal.seed, seconds=round(time.monotonic() - started, 2)
            )
            this.journal.add(content, result)
    except NotGradable as finding:
        result = report.Graded(name, finding.status, reason=finding.reason)
    except Exception as error:  # one submission must never stop a class
        reason = f"Grading stopped with {type(error).__name__}: tell the instructor."
        result = report.Graded(name, "crashed", reason=reason)
    return replace(result, name=name, notes=[*result.notes, *_beside(this.folder, name)])


def _beside(folder: Path, name: str) -> list[str]:
    """Note the other notebooks of a student's folder: each has a row, and none is preferred."""
    student, _, file = name.rpartition("/")
    others = [other for other in notebooks_in(folder / student) if other != file] if student else []
    if not others:
        return []
    return [f"The folder {student} holds other notebooks, each with a row: {', '.join(others)}."]


def _judge(this: _Class, answers: Answers) -> report.Graded:
    """Judge answers; once more in a fresh folder when the judge itself did not finish."""
    for attempt in (1, 2):
        folder = this.workshop / secrets.token_hex(8)  # no other submission can guess its socket
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
            return report.Graded("", "graded", verdicts, notes=notes, review=answers.review)
        except NotGradable as finding:
            if attempt == 2 or finding.status != "crashed":
                return report.Graded("", finding.status, reason=finding.reason)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable: the second attempt returns")
