"""The findings of lab 09, from `findings.toml`, and their judge, for all of its exercises."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tutorial_lib.checks.given import RunHalf
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Exercise, Result, expect, read

from .given import CAUSES, run_mended

# Causes that an instrument seems to show where it is looking at the wrong module.
_MISREAD = {
    "not checkpointed": " A checkpointed module's own hooks see no recomputation: count the runs "
    "of a part of it."
}


@dataclass(frozen=True)
class Finding:
    """What is right of one broken run, and what to try where its mended function is not."""

    cause: str  # one of `CAUSES`
    reading: float  # the number that the notebook's script shows
    asked: str  # words for that reading
    symptom: str = ""
    forward: str = "Are modes, values and the order of the blocks those of the plain model?"


_TABLE = tomllib.loads((Path(__file__).parent / "findings.toml").read_text(encoding="utf-8"))
FINDINGS = {letter: Finding(**row) for letter, row in _TABLE.items()}
Oracle = Callable[[Case], Any]
Judge = Callable[[Case, Result, Any], None]  # of the case, what a mended function gave, oracle


def diagnosis(
    run: RunHalf,
    passed: str,
    scripts: Mapping[str, tuple[Oracle, Judge]],
    sits: Callable[[], Any] | None = None,
    also: Sequence[Case] = (),
) -> Exercise:
    """Make the check of an exercise whose answer returns a finding for each case, by its letter."""

    def cases(draw: Draw) -> Cases:
        for case in (*({"case": letter} for letter in scripts), *also):
            yield {**case, "seed": draw.randrange(10**6)}

    def judge(case: Case, result: Result, right: Callable[[], Any]) -> None:
        letter = case["case"]
        _judge_finding(result, FINDINGS[letter])
        scripts[letter][1](case, result, right())

    def oracle(case: Case) -> Callable[[], Any]:
        return cache(partial(scripts[case["case"]][0], case))  # computed when first asked for

    def where(case: Case) -> str:
        return f"case {case['case']}: "

    words: Any = {"oracle": oracle, "sits": sits, "again": run_mended, "where": where}
    return Exercise(run, passed, cases, judge, **words)


def only_update(result: Result, size: int) -> Tensor:
    """Read the one gradient, as a vector, that the optimizer's one step found."""
    updates = read.vectors(result["gradients"], size, "the gradients")
    expect.fact(len(updates) == 1, f"{len(updates)} updates were made, and one is wanted.")
    return updates[0]


def _judge_finding(result: Result, right: Finding) -> None:
    cause = result["cause"]
    is_known = isinstance(cause, str) and cause in CAUSES
    expect.fact(is_known, f"the cause must be one of {', '.join(CAUSES)}.")
    expect.fact(
        cause == right.cause,
        f"the cause is not {cause!r}. That one shows as follows: {CAUSES[cause]}. Does an "
        f"instrument read that here?{_MISREAD.get(cause, '')}",
    )
    reading = read.number(result["reading"], "the reading")
    expect.fact(
        abs(reading - right.reading) <= 0.01 * right.reading,
        f"the cause is right, and {reading:g} is not what shows it. The reading is {right.asked}.",
    )
