"""The old form of a check, until every lab has the new one: what `given` and `exN_M` replace."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tutorial_lib.checks.given import forbid
from tutorial_lib.checks.given.half import Run, RunHalf
from tutorial_lib.checks.given.values import Answer, Case, CheckError, Result, plain
from tutorial_lib.checks.vocabulary.calls import Call, case_of
from tutorial_lib.checks.vocabulary.exercise import Exercise

__all__ = ["Answer", "Case", "Check", "CheckError", "Result", "calls_of", "plain"]


class Check(Exercise):
    """An exercise with everything in one module; `exam` is what `given.exam` makes."""

    def __init__(
        self,
        name: str,
        exercise: str,
        passed: str,
        cases: Callable[[int], Sequence[Case]],
        run: Run,
        judge: Callable[..., None],
        oracle: Callable[[Case], Any] | None = None,
        forbidden: Sequence[forbid.Forbidden] = (),
        exam: Run | None = None,
    ) -> None:
        half = RunHalf(name, exercise, run, forbidden, exam)

        def drawn(generator: random.Random) -> Sequence[Case]:
            return cases(self.seed)

        super().__init__(run=half, passed=passed, cases=drawn, judge=judge, oracle=oracle)

    def cases(self, seed: int) -> list[Case]:
        """Draw the cases."""
        self.seed = seed
        return super().cases(seed)


def calls_of(module: str, run_of: Callable[[Check], Run] | None = None) -> Callable[..., Call]:
    """Make the function `case` of a lab's checks."""

    def case(exercise: str, number: int = 0, *, seed: int = 0) -> Call:
        values = vars(sys.modules[module]).values()
        checks = [value for value in values if isinstance(value, Check)]
        for check in checks if run_of else ():
            check.again = run_of(check)  # type: ignore[misc]
        return case_of([*checks])(exercise, number, seed=seed)

    return case
