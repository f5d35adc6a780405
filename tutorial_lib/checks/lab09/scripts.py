"""What the exercises of lab 09 share: the causes to choose from, and how a case is judged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import answered
from tutorial_lib.checks.vocabulary import read

# Each cause, and what an instrument shows where it is the one.
CAUSES = {
    "late binding": "one module runs more often than all others",
    "changed state": "recomputation reads another Python value than forward did",
    "random state": "modules begin their recomputation in another random state than forward",
    "counted twice": "a buffer has moved twice after one step",
    "frozen input": "what enters a checkpoint needs no gradient; its parameters get none",
    "not checkpointed": "modules run once a step: nothing is recomputed",
    "nested checkpoints": "modules run three times a step",
    "one segment": "all is recomputed at once; the peak is that of the plain model",
    "kept graphs": "bytes stay behind, as many graphs as there were batches",
    "unequal weights": "a target of one micro-batch counts more than one of another",
    "not divided": "the gradient is as many times too long as there are micro-batches",
    "optimizer states": "memory rises in the first update, however small the batch is",
    "more traffic": "gradients are exchanged once a micro-batch",
    "precision": "in float64 the difference is gone",
}
_NAMES = "cause, reading, mended function"
_SCRIPTS: dict[str, Mapping[str, BrokenScript]] = {}


@dataclass(frozen=True)
class BrokenScript:
    """One broken run.

    Args:
        cause: One of `CAUSES`.
        reading: The number that the notebook's script shows.
        asked: Words for that reading.
        run: Runs a mended function on fresh data; gives plain data.
        oracle: From a case to what is right.
        judge: Decides on the case, that data and the oracle.
    """

    cause: str
    reading: float
    asked: str
    run: Callable[[Callable[..., Any], Case], Result]
    oracle: Callable[[Case], Any]
    judge: Callable[[Case, Result, Any], None]


def check_scripts(
    name: str, exercise: str, passed: str, scripts: Mapping[str, BrokenScript]
) -> Check:
    """Make the check of one exercise, whose answer returns a dict: a finding for each case.

    Args:
        name: As in `lab09.died_in_update`.
        exercise: As in `9.6`.
        passed: What is printed on success.
        scripts: By the letter of their case.
    """
    _SCRIPTS[name] = scripts

    def cases(seed: int) -> list[Case]:
        draw = random.Random(seed)
        return [{"case": letter, "seed": draw.randrange(10**6)} for letter in scripts]

    def run(answer: Callable[..., Any], case: Case) -> Result:
        cause, reading, mended = _finding(answer(), case["case"], scripts)
        if not callable(mended):
            raise CheckError(f"case {case['case']}: the third value should be your function.")
        seen = scripts[case["case"]].run(mended, case)
        return {"cause": cause, "reading": reading, **seen}

    def judge(case: Case, result: Result, right: Callable[[], Any]) -> None:
        letter = case["case"]
        _judge_finding(f"case {letter}: ", result, scripts[letter])
        scripts[letter].judge(case, result, right())

    def oracle(case: Case) -> Callable[[], Any]:
        return cache(partial(scripts[case["case"]].oracle, case))  # computed when first asked for

    return Check(name, exercise, passed, cases, run, judge, oracle)


def run_of(check: Check) -> Callable[..., Result]:
    """Give what tries a mended function in a check's cases: that is what a learner calls again."""
    return lambda mended, case: _SCRIPTS[check.name][case["case"]].run(mended, case)


def only_update(result: Result, size: int, where: str) -> Tensor:
    """Read the one gradient, as a vector, that the optimizer's one step found.

    Raises:
        CheckError: When there were other updates, or none.
    """
    updates = read.vectors(result.get("gradients"), size, f"{where}the gradients")
    if len(updates) != 1:
        raise CheckError(f"{where}{len(updates)} updates were made, and one is wanted.")
    return updates[0]


def _finding(returned: Any, letter: str, scripts: Mapping[str, BrokenScript]) -> list[Any]:
    findings = answered.fields(returned, list(scripts))
    return answered.several(findings[letter], 3, _NAMES)


def _judge_finding(where: str, result: Result, script: BrokenScript) -> None:
    cause = result.get("cause")
    if not isinstance(cause, str) or cause not in CAUSES:
        raise CheckError(f"{where}the cause must be one of {', '.join(CAUSES)}.")
    if cause != script.cause:
        raise CheckError(
            f"{where}the cause is not {cause!r}. That one shows as follows: {CAUSES[cause]}. Does "
            "an instrument read that here?"
        )
    reading = read.number(result.get("reading"), f"{where}the reading")
    if abs(reading - script.reading) > 0.01 * script.reading:
        raise CheckError(
            f"{where}the cause is right, and {reading:g} is not what shows it. The reading is "
            f"{script.asked}."
        )
