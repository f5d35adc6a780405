"""Does a lab grade fairly? Every answer whose verdict is known is graded, and must get it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from solutions.answers.known import KnownAnswer, known_answers
from solutions.grader.bench import Order, blank, open_bench, solution
from solutions.grader.lab import Lab, load_lab
from solutions.grader.launch import interruptible
from solutions.grader.results import Graded
from solutions.grader.run import check_request
from solutions.grader.submissions.answers import Answers, plain_answers
from tutorial_lib.units import GIB

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Case:
    """One answer to one exercise, the solution's to all others.

    Args:
        exercise: As in `1.2`.
        kind: `solution`, `blank`, `wrong` or `right`.
        name: Of a known answer.
        answers: What is judged.
        words: Parts of the message: the first must be in it, and none of the others.
    """

    exercise: str
    kind: str
    name: str
    answers: Answers
    words: Sequence[str] = ()

    def fault(self, lab: Lab, graded: Graded) -> str:
        """Say what is wrong with the verdict; empty when nothing is."""
        points, full = graded.points(lab, self.exercise), lab.maximum_of(self.exercise)
        wanted = full if self.kind in ("solution", "right") else 0
        verdicts = [graded.verdicts[c.id] for c in lab.checks if c.id in graded.verdicts]
        said = " ".join(one.evidence for one in verdicts if not one.passed) or graded.reason
        if graded.status != "graded" or points != wanted:
            return f"{points} of {full} points, and {wanted} are right. {said}".strip()
        if self.words and self.words[0] not in said:
            return f"the message lacks {self.words[0]!r}: {said}"
        others = [words for words in self.words[1:] if words in said]
        return f"the message is that of another answer ({others[0]!r}): {said}" if others else ""


def selftest(
    lab: str,
    *,
    root: Path,
    workers: int | None = None,
    seconds: float = 20.0,
    memory_bytes: int = 2 * GIB,
    seed: int = 0,
    checks_package: str = "tutorial_lib.checks",
    import_path: Sequence[Path] = (),
) -> tuple[pd.DataFrame, list[str]]:
    """Grade all answers of a lab whose verdict is known; of each kind one is graded twice.

    The arguments are those of `grade`; the known answers stand in the course folder's tests.

    Returns:
        A table, a line an exercise: how many answers of each kind got what they should get. And
        every fault, in a sentence.

    Raises:
        GradingError: When the request cannot be met.
    """
    check_request(seconds, memory_bytes, workers)
    course = load_lab(root.resolve(), lab)
    order = Order(course, seed, seconds, memory_bytes, checks_package, list(import_path))
    return _selftest(course, root, order, workers)


def only(lab: Lab, exercise: str) -> Lab:
    """Return a lab with the checks of one exercise alone."""
    cells = [
        cell
        for cell in lab.cells
        if not cell.mark or cell.mark.kind == "exercise" or cell.mark.number == exercise
    ]
    checks = [check for check in lab.checks if check.exercise == exercise]
    return replace(lab, cells=cells, checks=checks)


def _selftest(
    lab: Lab, root: Path, order: Order, workers: int | None
) -> tuple[pd.DataFrame, list[str]]:
    cases = list(_cases(lab, known_answers(root, lab)))
    twice = {(case.exercise, case.kind): case for case in reversed(cases)}
    views = {number: only(lab, number) for number in lab.exercises}
    with (
        interruptible(),
        open_bench(order) as bench,
        ThreadPoolExecutor(workers or bench.workers) as pool,
    ):

        def judge(case: Case) -> Graded:
            return bench.judge(case.answers, views[case.exercise])

        try:
            first = list(pool.map(judge, cases))
            second = dict(zip(twice.values(), pool.map(judge, twice.values()), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            bench.stop()
            raise
    faults = {case: case.fault(lab, graded) for case, graded in zip(cases, first, strict=True)}
    for case, graded in zip(cases, first, strict=True):
        if case in second and second[case].verdicts != graded.verdicts:
            faults[case] = faults[case] or "two runs with one seed gave two verdicts."
    said = [f"{case.exercise} {case.name or case.kind}: {text}" for case, text in faults.items()]
    return _table(lab, faults), [line for line in said if not line.endswith(": ")]


def _table(lab: Lab, faults: Mapping[Case, str]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"exercise": case.exercise, "kind": case.kind, "good": not fault}
        for case, fault in faults.items()
    ]
    counted = pd.DataFrame(rows).groupby(["exercise", "kind"])["good"].agg(["sum", "count"])
    text = counted["sum"].astype(str) + " of " + counted["count"].astype(str)
    table = text.unstack("kind", fill_value="none")
    order = [kind for kind in ("solution", "blank", "wrong", "right") if kind in table]
    return table.loc[lab.exercises, order]


def _cases(lab: Lab, known: Sequence[KnownAnswer]) -> Iterable[Case]:
    solved, empty = solution(lab).sources, blank(lab).sources
    for number in lab.exercises:
        yield Case(number, "solution", "", plain_answers(lab, solved))
        yield Case(number, "blank", "", plain_answers(lab, solved | {number: empty[number]}))
        here = [one for one in known if one.exercise == number]
        for one in here:
            others = {other.refused_with for other in here} - {one.refused_with, None}
            words = [one.refused_with, *sorted(filter(None, others))] if one.refused_with else []
            kind = "wrong" if one.refused_with else "right"
            yield Case(
                number, kind, one.name, plain_answers(lab, solved | {number: one.cell}), words
            )
