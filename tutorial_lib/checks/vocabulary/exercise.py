"""One check of one exercise: its run half, its cases, and a half that judges plain data.

A check has two halves so that the same object serves a learner and a grader. In a notebook both
halves run in place. A grader puts a `RemoteAnswer` where the learner's function was: then the run
half happens in another process, and only plain data comes back to be judged.
"""

import contextlib
import gc
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Any, Protocol

import torch

from tutorial_lib.checks.given.half import EXAM_BYTES, HOW_TO_CALL, Run, RunHalf, run_in_place
from tutorial_lib.checks.given.seal import EXCHANGED
from tutorial_lib.checks.given.settings import usual_settings
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result
from tutorial_lib.checks.vocabulary import exam, expect

Draw = random.Random
Cases = Iterable[Case]
SEED_VARIABLE = "TUTORIAL_LIB_CHECK_SEED"
_IN_EXAM = "That was in the memory exam, which only graders hold."


class RemoteAnswer(Protocol):
    """Stands where the learner's function was while a grader runs the check."""

    def run_remotely(self, check: str, case: Case) -> Result | None:
        """Run a run half elsewhere; None for a memory exam that cannot be held."""


class Seen(dict[str, Any]):
    """A result as a judge reads it: a missing entry is None, which is no value of any kind."""

    def __missing__(self, key: str) -> None:
        """Return None."""


class Exercise:
    """One check of one exercise; call it with the answer.

    Args:
        run: The only half that touches the answer, from the lab's `given`; it names the check.
        passed: The line printed on success, the same on every machine.
        cases: Gives cases, which are plain data, drawn with the generator that it is handed.
        judge: Decides on a case and plain data alone; raises `CheckError`. Where there is an
            oracle, that is its third argument.
        oracle: Made from a case, and kept for the next time that this case is judged: a class
            whose cached properties compute what is right when the judge first asks.
        sits: An answer that passes the memory exam, where that is held with another model.
        again: What a learner calls again where the check fails, if that is not the run half.
        where: Words for a case, which begin each of the judge's messages.
    """

    def __init__(
        self,
        run: RunHalf,
        passed: str,
        cases: Callable[[Draw], Cases],
        judge: Callable[..., None],
        *,
        oracle: Callable[[Case], Any] | None = None,
        sits: Answer | None = None,
        again: Run | None = None,
        where: Callable[[Case], str] = lambda case: "",
    ) -> None:
        self.half, self.name, self.exercise, self.passed = run, run.name, run.exercise, passed
        self.again = again or run.run
        self._cases, self._judge, self._where = cases, judge, where
        # A check is run again and again on the same cases: by a class, by the tests.
        self._right = oracle and lru_cache(maxsize=64)(lambda text: oracle(json.loads(text)))
        self._sat = lru_cache(lambda text: exam.exact(run, sits, json.loads(text)))

    def __repr__(self) -> str:
        """Return the name."""
        return self.name

    def cases(self, seed: int) -> list[Case]:
        """Draw the cases, without that of a memory exam."""
        return list(self._cases(Draw(seed)))

    def judge(self, case: Case, result: Result) -> None:
        """Decide on a case and its result; raises `CheckError`."""
        with usual_settings():
            if EXAM_BYTES in case:
                exam.judge(result, self._sat(json.dumps(case)))
            else:
                right = [self._right(json.dumps(case))] if self._right else []
                with expect.about(self._where(case)):
                    self._judge(case, Seen(result), *right)
        if exchanged := result.get(EXCHANGED):  # last: a judge says more of an honest mistake
            raise CheckError(
                f"your code has replaced {exchanged}, which the check works with: leave it as it "
                "is, or put it back before your function returns."
            )

    def __call__(self, answer: Answer | RemoteAnswer) -> None:
        """Check an answer; a `CheckError` says that it is blank, fails, or is wrong."""
        remote = getattr(type(answer), "run_remotely", None)
        # Judging draws random numbers too, so the caller's state is kept around both halves.
        with torch.random.fork_rng(devices=[]), _quick_collections() as freeze:
            seed = int(os.environ.get(SEED_VARIABLE, "0"))
            exams = [exam.draw_case(seed)] if remote is not None and self.half.exam else []
            for number, case in enumerate([*self.cases(seed), *exams]):
                freeze()
                try:
                    if remote is not None:
                        result = remote(answer, self.name, case)
                    else:
                        result = run_in_place(self.half, answer, case)  # type: ignore[arg-type]
                    if result is not None:
                        self.judge(case, result)
                except CheckError as error:
                    if HOW_TO_CALL not in str(error):
                        raise
                    how = _IN_EXAM if case in exams else self._how_to_call(number, seed)
                    raise CheckError(str(error).replace(HOW_TO_CALL, how)) from error
        print(f"{self.exercise} passed: {self.passed}")

    def _how_to_call(self, number: int, seed: int) -> str:
        lab, seeded = self.name.partition(".")[0], f", seed={seed}" if seed else ""
        return (
            f'To call it as this check does: call = checks.{lab}.case("{self.exercise}", {number}'
            f"{seeded}), then call(your_function). Print call to see with what."
        )


def check(
    run: RunHalf, passed: str, cases: Callable[[Draw], Cases], **more: Any
) -> Callable[[Callable[..., None]], Exercise]:
    """Return a decorator that makes a judge the check of an exercise (see `Exercise`)."""
    return lambda judge: Exercise(run, passed, cases, judge, **more)


# Counting walks all objects: once a process. Freezing more later only costs time.
_count_frozen = cache(gc.get_freeze_count)


@contextlib.contextmanager
def _quick_collections() -> Iterator[Callable[[], None]]:
    # A meter collects garbage twice a reading: a quarter of a second where much is imported. It
    # need not look at what was there before a case (an optimizer's first step imports much, too).
    was_frozen = _count_frozen()
    try:
        yield gc.freeze
    finally:
        if not was_frozen:
            gc.unfreeze()
