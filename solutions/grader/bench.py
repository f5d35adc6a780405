"""A bench: the processes of one machine that fork sessions and judges, for one lab."""

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from solutions.grader import NotGradable
from solutions.grader.judging.judge import preload, prepare, pytest_arguments, run_judge
from solutions.grader.lab import Lab
from solutions.grader.launch import Server, open_server, run_directory
from solutions.grader.request import default_workers
from solutions.grader.results import Graded
from solutions.grader.submissions.answers import Answers, plain_answers
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE


@dataclass(frozen=True)
class Order:
    """The same for every submission of a run, as in `run.grade`; may go to another machine."""

    lab: Lab
    seed: int
    seconds: float
    memory_bytes: int
    checks_package: str
    import_path: Sequence[Path]


@dataclass(frozen=True)
class Bench:
    """Judges submissions, in as many threads as call it."""

    order: Order
    place: Path  # where each submission gets a folder
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
        return list(self.sessions.ready)

    def stop(self) -> None:
        """End every judge and every session."""
        self.stopped.set()
        self.sessions.process.kill()

    def judge(self, answers: Answers, lab: Lab | None = None) -> Graded:
        """Judge answers; once more in a fresh folder when the judge itself did not finish.

        The result has no name: the submission's is not known here. A `lab` has some of the checks.
        """
        lab = lab or self.order.lab
        result = self._attempt(answers, lab)
        if result.status == "crashed":
            result = self._attempt(answers, lab)
        return result.with_findings(lab, answers)

    def _attempt(self, answers: Answers, lab: Lab) -> Graded:
        seconds = self.order.seconds
        folder = self.place / secrets.token_hex(8)  # no other submission can guess its socket
        try:
            prepare(folder, lab, answers)
            os.close(self.sessions.fork(folder)[1])
            verdicts = run_judge(self.judges, folder, lab, seconds=seconds, stopped=self.stopped)
        except NotGradable as finding:
            return Graded("", finding.status, reason=finding.reason)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Graded("", "graded", verdicts, notes=answers.notes, sources=answers.sources)


@contextlib.contextmanager
def open_bench(order: Order) -> Iterator[Bench]:
    """Start the two processes, and end all that they forked afterwards.

    Raises:
        GradingError: When one does not start.
    """
    lab, package = order.lab, order.checks_package
    names = [*preload(lab), f"{package}.{lab.name.split('_')[0]}"]
    shared = {"import_path": list(map(str, order.import_path)), "preload": names}
    limits = {"seconds": order.seconds, "memory_bytes": order.memory_bytes}
    with run_directory() as place:
        for_students = shared | limits | {"package": package, "forbidden": str(lab.path)}
        for_students["view"] = str(place.parent / "view")
        with open_server("inside.view", place, for_students) as sessions:
            rehearsal = place / secrets.token_hex(8)
            prepare(rehearsal, lab, solution(lab))
            os.close(sessions.fork(rehearsal)[1])
            for_judges, seed = shared | {"rehearsal": str(rehearsal)}, str(order.seed)
            for_judges |= {"arguments": pytest_arguments(order.seconds)}
            with open_server(
                "judging.judge_server", place, for_judges, **{SEED_VARIABLE: seed}
            ) as judges:
                yield Bench(order, place, sessions, judges)


def solution(lab: Lab) -> Answers:
    """Return the solution's own answers."""
    return plain_answers(lab, {name: answer.reference for name, answer in lab.answers.items()})


def blank(lab: Lab) -> Answers:
    """Return answers that define what is asked for and do nothing."""
    body = "(*_, **__):\n    raise NotImplementedError"
    sources = {
        number: "\n".join(f"def {name}{body}" for name in answer.names)
        for number, answer in lab.answers.items()
    }
    return plain_answers(lab, sources)
