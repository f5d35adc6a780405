"""A bench: the processes of one machine that fork sessions and judges, for one lab.

The notebook that nbval runs holds three kinds of cells, in their old order: what the check cells
need of the set-up, one cell of remote functions for each answer cell, and the check cells with
their stored outputs, untouched. No line of a submission is in it.
"""

import ast
import contextlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import psutil

from solutions.grader import NotGradable
from solutions.grader.inside.watch import longest
from solutions.grader.lab import Lab
from solutions.grader.launch import Server, open_server, run_directory
from solutions.grader.results import Graded, Verdict
from solutions.grader.submissions.answers import Answers, plain_answers
from solutions.grader.submissions.slice_cells import cut, statements
from tutorial_lib.checks.vocabulary.exercise import SEED_VARIABLE
from tutorial_lib.units import GIB

_MOST_WORKERS, _JUDGE_BYTES = 8, GIB // 4
_SPARE_SECONDS = 60.0  # for the judge's own work in one cell, on a busy machine
_REMOTE_FUNCTION = "solutions.grader.judge"
_OUTCOMES = "outcomes.jsonl"
_PYTEST = ["judge.ipynb", "-c", "judge.ini", "--rootdir=.", "-q", "--color=no", "--noconftest"]
_PYTEST += ["--nbval", "--capture=no", f"--outcomes={_OUTCOMES}"]
# and without what no notebook needs, and each judge would load
_WITHOUT = ("cacheprovider", "doctest", "junitxml", "logging", "unittest")
_PYTEST += [f"-pno:{name}" for name in _WITHOUT]
_OURS = "judge-"  # begins the id of every cell that is not the pristine notebook's


def judge_notebook(lab: Lab) -> dict[str, Any]:
    """Build the notebook that nbval runs; the same for every submission."""
    code = [cell for cell in lab.cells if cell.kind == "code"]
    checks = [cell.mark.number if cell.mark else None for cell in code]
    sources = ["" if cell.number else cell.source for cell in code]
    steps = [{"exercise": check, "source": s} for check, s in zip(checks, sources, strict=True)]
    cells: list[Any] = []
    empty: dict[str, Any] = {"metadata": {}, "execution_count": None, "outputs": []}
    for cell, source in zip(code, cut(steps), strict=True):
        if cell.mark and not cell.number:
            cells.append(dict(cell.raw))
            continue
        if cell.number:
            names = lab.answers[cell.number].names
            made = [f"{name} = RemoteFunction({cell.number!r}, {name!r})" for name in names]
            source = "\n".join([f"from {_REMOTE_FUNCTION} import RemoteFunction", *made])
        if source:
            cell_id = f"{_OURS}{len(cells)}"
            cells.append({"cell_type": "code", "id": cell_id, "source": source, **empty})
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def preload(lab: Lab) -> list[str]:
    """List the modules, and names in them, that the pristine notebook imports."""
    modules: list[str] = []
    tops = (top for cell in lab.cells if cell.kind == "code" for top in statements(cell.source))
    for node in (node for top in tops for node in ast.walk(top)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return list(dict.fromkeys(modules))


def prepare(folder: Path, lab: Lab, answers: Answers) -> None:
    """Write what one submission's judge and session need into a fresh folder."""
    folder.mkdir(parents=True)
    (folder / "judge.ini").write_text("[pytest]\n")
    (folder / "judge.ipynb").write_text(json.dumps(judge_notebook(lab)), encoding="utf-8")
    bundle = {name: getattr(answers, name) for name in ("steps", "cuts", "problems")}
    (folder / "bundle.json").write_text(json.dumps(bundle), encoding="utf-8")


@dataclass(frozen=True)
class Order:
    """The same for every submission of a run, as in `run.grade`; may go to another machine."""

    lab: Lab
    seed: int
    seconds: float
    memory_bytes: int
    checks_package: str
    import_path: Sequence[Path]

    @property
    def cell_seconds(self) -> float:
        """Return how many seconds a cell of the judge may take."""
        return longest(self.seconds) + _SPARE_SECONDS


@dataclass(frozen=True)
class Bench:
    """Judges submissions, in as many threads as call it."""

    order: Order
    place: Path  # where each submission gets a folder
    sessions: Server
    judges: Server
    layers: Sequence[str]  # what holds a submission back
    workers: int  # submissions that it should judge at the same time
    stopped: threading.Event = field(default_factory=threading.Event)

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
        folder = self.place / secrets.token_hex(8)  # no other submission can guess its socket
        try:
            prepare(folder, lab, answers)
            os.close(self.sessions.fork(folder)[1])
            verdicts = self._verdicts(folder, lab)
        except NotGradable as finding:
            return Graded("", finding.status, reason=finding.reason)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Graded("", "graded", verdicts, notes=answers.notes, sources=answers.sources)

    def _verdicts(self, folder: Path, lab: Lab) -> Mapping[str, Verdict]:
        """Run nbval on a prepared folder, in a process of its own: a verdict for every check."""
        most = _SPARE_SECONDS + self.order.cell_seconds * len(lab.checks)
        if not self.judges.run(folder, most, self.stopped.is_set):
            if self.stopped.is_set():
                raise NotGradable("stopped", "Grading was stopped.")
            raise NotGradable("timed out", "Grading this file took too long.")
        outcomes, lines = folder / _OUTCOMES, []
        if outcomes.exists():
            lines = [json.loads(line) for line in outcomes.read_text("utf-8").splitlines()]
        verdicts = {line["id"]: Verdict(**line["verdict"]) for line in lines}
        if any(line["lost"] for line in lines):
            raise NotGradable("crashed", "The process for this submission's code was lost.")
        if any(name.startswith(_OURS) and not one.passed for name, one in verdicts.items()):
            raise NotGradable("crashed", "The judge's own set-up failed.")
        if any(check.id not in verdicts for check in lab.checks):
            raise NotGradable("crashed", "The judge stopped before it had run every check.")
        return {check.id: verdicts[check.id] for check in lab.checks}


@contextlib.contextmanager
def open_bench(order: Order) -> Iterator[Bench]:
    """Start the two processes, or say why not, and end all that they forked afterwards."""
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
            timeout = f"--nbval-cell-timeout={order.cell_seconds}"
            for_judges |= {"arguments": [*_PYTEST, timeout]}
            with open_server("judge", place, for_judges, **{SEED_VARIABLE: seed}) as judges:
                workers = default_workers(order.memory_bytes)
                yield Bench(order, place, sessions, judges, sessions.ready, workers)


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


def default_workers(memory_bytes: int) -> int:
    """Return the number of submissions to grade at once: one for each core that this process has.

    Only as many as find room in the free memory, each using `memory_bytes` at most.
    """
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit: "max"
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    cores = int(joblib.cpu_count())
    return max(1, min(_MOST_WORKERS, cores, free // (memory_bytes + _JUDGE_BYTES)))
