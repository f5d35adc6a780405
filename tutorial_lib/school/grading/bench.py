"""One machine's place for judging: the processes that fork sessions and judges, for one lab."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE
from tutorial_lib.school.grading.errors import NotGradable
from tutorial_lib.school.grading.judging.judge import Verdict, preload, prepare, run_judge
from tutorial_lib.school.grading.lab import Lab
from tutorial_lib.school.grading.launch import Server, open_server, run_directory
from tutorial_lib.school.grading.request import default_workers
from tutorial_lib.school.grading.results import Graded
from tutorial_lib.school.grading.submissions.reader import read_submission
from tutorial_lib.school.grading.submissions.submission import Answers, one_part_each


@dataclass(frozen=True)
class Order:
    """What is the same for every submission of a run; may be sent to another machine.

    Args as in `run.grade`.
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
        sessions: Forks sessions.
        judges: Forks judges.
        stopped: Set when the whole run comes to an end.
    """

    order: Order
    place: Path
    sessions: Server
    judges: Server
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def workers(self) -> int:
        """Say how many submissions it should judge at the same time."""
        return default_workers(self.order.memory_bytes)

    @property
    def layers(self) -> Sequence[str]:
        """List what holds a submission back."""
        layers: list[str] = self.sessions.ready
        return layers

    def stop(self) -> None:
        """End every judge and every session."""
        self.stopped.set()
        self.sessions.process.kill()

    def grade(self, content: bytes) -> Graded:
        """Judge a submitted file; it has no name here."""
        try:
            answers = read_submission(self.order.lab, content)
        except NotGradable as finding:
            return Graded("", finding.status, reason=finding.reason)
        return self.judge(answers).with_seen(self.order.lab, answers.seen)

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
            os.close(self.sessions.fork(folder)[1])
            return run_judge(self.judges, folder, lab, seconds=seconds, stopped=self.stopped)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def open_bench(order: Order) -> Iterator[Bench]:
    """Start the two processes, and end all that they forked afterwards.

    Raises:
        GradingError: When one does not start.
    """
    shared = {
        "import_path": [str(folder) for folder in order.import_path],
        "preload": [
            *preload(order.lab),
            f"{order.checks_package}.{order.lab.name.split('_')[0]}",
        ],
    }
    with run_directory() as place:
        for_students = shared | {
            "seconds": order.seconds,
            "memory_bytes": order.memory_bytes,
            "package": order.checks_package,
            "view": str(place.parent / "view"),
            "forbidden": str(order.lab.path),
        }
        with open_server("inside.server", place, for_students) as sessions:
            rehearsal = place / secrets.token_hex(8)
            prepare(rehearsal, order.lab, solution(order.lab))
            os.close(sessions.fork(rehearsal)[1])
            for_judges = shared | {"rehearsal": str(rehearsal)}
            seed = {SEED_VARIABLE: str(order.seed)}
            with open_server("judging.judge_server", place, for_judges, **seed) as judges:
                yield Bench(order, place, sessions, judges)


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
