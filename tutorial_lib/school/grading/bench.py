"""One machine's place for judging: the processes that fork sessions and judges, for one lab."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tutorial_lib.checks.core import SEED_VARIABLE
from tutorial_lib.school.grading.errors import NotGradable
from tutorial_lib.school.grading.judging.judge import Verdict, preload, prepare, run_judge
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.launch import (
    Judges,
    fork_server,
    judge_server,
    run_directory,
    start_session,
)
from tutorial_lib.school.grading.request import default_workers
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.class_folder import parse_notebook
from tutorial_lib.school.grading.submissions.look import looked_through
from tutorial_lib.school.grading.submissions.submission import Answers, match_answers, one_part_each


@dataclass(frozen=True)
class Order:
    """What is the same for every submission of a run; may be sent to another machine.

    Args:
        lab: The lab.
        seed: The checks draw their cases from it.
        seconds: CPU time of a function in one check.
        memory_bytes: What a student's process may use beyond its imports.
        checks_package: Where the names of checks are looked up.
        import_path: More places where Python looks for modules.
    """

    lab: Lab
    seed: int
    seconds: float
    memory_bytes: int
    checks_package: str
    import_path: Sequence[Path]


@dataclass(frozen=True)
class Bench:
    """Judges submissions, in as many threads as call it.

    Args:
        order: What is the same for all.
        place: Where each submission gets a folder.
        server: Forks sessions.
        judges: Forks judges.
        layers: What holds a submission back.
        stopped: Set when the whole run comes to an end.
    """

    order: Order
    place: Path
    server: subprocess.Popen[str]
    judges: Judges
    layers: Sequence[str]
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def workers(self) -> int:
        """Say how many submissions it should judge at the same time."""
        return default_workers(self.order.memory_bytes)

    def stop(self) -> None:
        """End every judge and every session."""
        self.stopped.set()
        self.server.kill()

    def grade(self, content: bytes) -> Graded:
        """Judge a submitted file; it has no name here."""
        try:
            answers = match_answers(self.order.lab, parse_notebook(content))
        except NotGradable as finding:
            return Graded("", finding.status, reason=finding.reason)
        return looked_through(self.order.lab, answers, self.judge(answers))

    def judge(self, answers: Answers, lab: Lab | None = None) -> Graded:
        """Judge answers; once more in a fresh folder when the judge itself did not finish.

        Args:
            answers: Of one submission.
            lab: A part of the lab, as in `Lab.only`; all of it when None.
        """
        for attempt in (1, 2):
            try:
                verdicts = self._verdicts(answers, lab or self.order.lab)
            except NotGradable as finding:
                if attempt == 2 or finding.status != "crashed":
                    return Graded("", finding.status, reason=finding.reason)
            else:
                return Graded("", "graded", verdicts, notes=answers.notes, sources=answers.sources)
        raise AssertionError("unreachable: the second attempt returns")

    def _verdicts(self, answers: Answers, lab: Lab) -> Mapping[str, Verdict]:
        seconds = self.order.seconds
        folder = self.place / secrets.token_hex(8)  # no other submission can guess its socket
        try:
            prepare(folder, lab, answers)
            start_session(self.server, folder)
            return run_judge(self.judges, folder, lab, seconds=seconds, stopped=self.stopped)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_bench(order: Order) -> Iterator[Bench]:
    """Start the two processes, and end all that they forked afterwards.

    Raises:
        GradingError: When one does not start.
    """
    path = [str(folder) for folder in order.import_path]
    for_students: dict[str, Any] = {
        "seconds": order.seconds,
        "memory_bytes": order.memory_bytes,
        "package": order.checks_package,
        "import_path": path,
        "preload": [
            *preload(order.lab),
            f"{order.checks_package}.{order.lab.name.split('_')[0]}",
        ],
        "forbidden": str(order.lab.path),
    }
    with run_directory() as place, fork_server(place, for_students) as (server, layers):
        rehearsal = place / secrets.token_hex(8)
        prepare(rehearsal, order.lab, solution(order.lab))
        start_session(server, rehearsal)
        for_judges = {"preload": for_students["preload"], "rehearsal": str(rehearsal)}
        seed = {SEED_VARIABLE: str(order.seed)}
        with judge_server(place, for_judges, order.import_path, **seed) as judges:
            yield Bench(order, place, server, judges, layers)


def solution(lab: Lab) -> Answers:
    """Give the solution's own answers."""
    return one_part_each({answer.exercise: answer.reference for answer in lab.answers.values()})


def blank(lab: Lab) -> Answers:
    """Give answers that define what is asked for and do nothing."""
    return one_part_each(
        {
            answer.exercise: "\n".join(
                f"def {name}(*_, **__):\n    raise NotImplementedError" for name in answer.names
            )
            for answer in lab.answers.values()
        }
    )
