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
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutorial_lib.grading import report
from tutorial_lib.grading.errors import GradingError, NotGradable
from tutorial_lib.grading.judge import preload, prepare, run_judge
from tutorial_lib.grading.lab import Lab, load_lab
from tutorial_lib.grading.server import isolation
from tutorial_lib.grading.submission import (
    Answers,
    find_submissions,
    match_answers,
    read_submission,
)
from tutorial_lib.grading.workshop import fork_server, start_session, workshop
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd

_DAY = 86_400.0
_NEEDED = ("nbval", "pytest", "ipykernel", "pandas", "rich")
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
    seed: int
    seconds: float
    import_path: Sequence[Path]
    server: subprocess.Popen[str]


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

    Args:
        lab: As in `lab01`.
        submissions: Folder with notebooks, or with one folder a student.
        out: Folder for `scores.csv`, `feedback/`, `index.html` and `run.json`. It must be new,
            empty, or hold an older report, which is replaced.
        root: The course folder.
        jobs: Submissions graded at the same time; by default one a core, at most 8.
        seconds: What one check may take in a student's process, all its cases together.
        memory_bytes: What a student's process may use beyond its imports.
        only: Names of the few submissions to grade; all when empty.
        seed: For repeating a run; by default a secret one is drawn.
        checks_package: Where the names of checks are looked up.
        import_path: More places where Python looks for modules.

    Returns:
        The table of `scores.csv`: name, status, points, maximum, one column an exercise, and
        `review`, the exercises whose answer a person should read.

    Raises:
        GradingError: When the request cannot be met; nothing has been written then.
    """
    _demand_positive(seconds, memory_bytes, jobs)
    _demand_tools()
    course = load_lab(root.resolve(), lab)
    names = find_submissions(submissions, only)
    report.check_place(out, submissions)
    limits = {"seconds": seconds, "memory_bytes": memory_bytes}
    paths = [path.resolve() for path in import_path]
    order = limits | _order(course, checks_package, paths)
    workers = jobs or min(8, os.cpu_count() or 1)
    number = secrets.randbelow(2**31) if seed is None else seed
    started = time.monotonic()
    with workshop() as folder, fork_server(folder, order, paths) as (server, layers):
        this = _Class(course, submissions, folder, number, seconds, tuple(paths), server)
        _self_test(this, workers)
        results = _grade_all(this, names, workers)
    facts: dict[str, Any] = {"lab": course.name, "seed": number, "jobs": workers, "limits": limits}
    facts |= {"seconds": round(time.monotonic() - started, 1)} | _facts(layers, results)
    kind = facts["isolation"]
    report.write_report(out, course, results, f"isolation: {kind}.{_ADVICE.get(kind, '')}", facts)
    return _table(course, results)


def _demand_positive(seconds: float, memory_bytes: int, jobs: int | None) -> None:
    if not 0 < seconds < _DAY or memory_bytes <= 0 or (jobs is not None and jobs < 1):
        raise GradingError(
            f"seconds (={seconds}), memory_bytes (={memory_bytes}) and jobs (={jobs}) must be "
            "positive, and seconds less than a day."
        )


def _order(lab: Lab, package: str, import_path: Sequence[Path]) -> dict[str, Any]:
    """Say what the fork server needs to know; the seed is no part of it."""
    return {
        "package": package,
        "import_path": [str(path) for path in import_path],
        "preload": [*preload(lab), f"{package}.{lab.name.split('_')[0]}"],
        "forbidden": str(lab.path),
    }


def _facts(layers: Sequence[str], results: Sequence[report.Graded]) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("torch", "nbval", "pytest")}
    return {
        "isolation": isolation(layers),
        "layers": layers,
        "versions": versions | {"python": platform.python_version(), "system": platform.platform()},
        "submissions": [
            {
                "name": report.readable(one.name),
                "seconds": round(one.seconds, 2),
                "notes": [report.readable(note) for note in one.notes],
            }
            for one in results
        ],
    }


def _demand_tools() -> None:
    if not hasattr(os, "fork"):
        raise GradingError(
            "grading needs Linux or macOS, since it forks: on Windows, run it in WSL."
        )
    missing = []
    for name in _NEEDED:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise GradingError(
            f"grading needs {', '.join(missing)}: install with pip install -e '.[grade]'."
        )


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
    with ThreadPoolExecutor(min(2, jobs)) as pool:
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


def _grade_all(this: _Class, names: Sequence[str], jobs: int) -> list[report.Graded]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    pool = ThreadPoolExecutor(jobs)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"grading {this.lab.name}", total=len(names))
        try:
            results = []
            for result in pool.map(lambda name: _grade_one(this, name), names):
                results.append(result)
                progress.advance(task)
        except BaseException:  # Ctrl-C: without its server, every judge comes to an end
            this.server.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return results


def _grade_one(this: _Class, name: str) -> report.Graded:
    started = time.monotonic()
    try:
        cells = read_submission(this.folder / name)
        answers = match_answers(this.lab, cells)
        result = _judge(this, answers)
    except NotGradable as finding:
        result = report.Graded(name, finding.status, reason=finding.reason)
    except Exception as error:  # one submission must never stop a class
        reason = f"Grading stopped with {type(error).__name__}: tell the instructor."
        result = report.Graded(name, "crashed", reason=reason)
    return replace(result, name=name, seconds=time.monotonic() - started)


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
                seed=this.seed,
                seconds=this.seconds,
                import_path=this.import_path,
            )
            return report.Graded("", "graded", verdicts, notes=answers.notes, review=answers.review)
        except NotGradable as finding:
            if attempt == 2 or finding.status != "crashed":
                return report.Graded("", finding.status, reason=finding.reason)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable: the second attempt returns")
