"""The failing half of the check of 6.5: where a step fails, nothing of it may remain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.lab06.models import gpt_task, make_optimizer
from tutorial_lib.checks.vocabulary import expect

# In which ways a step fails: what the learner reads about it, and what the error has to name.
HOW = {
    "no steps": ("num_steps=0", "num_steps, and its value"),
    "too many steps": ("more micro-batches than rows", "both numbers, the steps and the rows"),
    "all masked": ("a batch without one target", ""),
    "nan": (
        "a loss of nan in the third micro-batch",
        "the third of the micro-batches by its number",
    ),
    "inf": (
        "an infinite loss in the third micro-batch",
        "the third of the micro-batches by its number",
    ),
    "raises": (
        "an interrupt (a BaseException) raised by the model in the third micro-batch",
        "what the model said",
    ),
}
_SAID = "the model itself raised this"
_SWITCH = "a mode of the model, a requires_grad or the grad mode is another than before."
_MESSAGES = {
    "weights": "an error was raised, and the parameters had been updated before.",
    "gradients": "the error came, and the .grad that were there before did not come back. Hold "
    "them in a list, set each to None, and put them back when something is raised.",
    "buffers": "the model's buffers stayed as the failed forward left them: call the function "
    "that remember gave you.",
    "random state": "the random state stayed where the failed step left it: the retry would draw "
    "other numbers.",
    **dict.fromkeys(surroundings.SWITCHES, _SWITCH),
}
_PASSED_BY = (
    "it came, and not everything is as it was, which it was after an error of your own: an except "
    "for Exception, or for less, lets it pass by."
)


class _FromTheModel(BaseException):
    """Stands for whatever stops a model in the middle of a step, and is no Exception: Ctrl-C."""


def _failing(loss_sum: Callable[..., Tensor], how: str) -> Callable[..., Tensor]:
    calls = itertools.count(1)

    def failing(model: nn.Module, *micro_batch: Tensor) -> Tensor:
        loss, is_third = loss_sum(model, *micro_batch), next(calls) == 3
        if is_third and how == "raises":
            raise _FromTheModel(_SAID)
        return loss * {"nan": math.nan, "inf": math.inf}.get(how, 1.0) if is_third else loss

    return failing


def _num_steps(case: Case) -> int:
    special: dict[str, int] = {"no steps": 0, "too many steps": case["rows"] + 3}
    return special.get(case["fails"], int(case["num_steps"]))


def run(answer: Callable[..., Any], case: Case) -> Result:
    """Have a step fail, and note what it left behind."""
    how, dtype = case["fails"], getattr(torch, case["dtype"])
    task = gpt_task(case["seed"], case["rows"], dtype, masked=how == "all masked")
    task.add_side_effects()
    task.loss_sum = _failing(task.loss_sum, how)
    optimizer = make_optimizer(case["optimizer"], task.model)
    observe.fill_gradients(task.model)
    optimizer.step()  # so that it has state to lose
    said, kind = "", "nothing"
    with surroundings.watched(task.model, optimizer=optimizer) as changed:
        try:
            task.call(answer, optimizer, _num_steps(case), case["max_norm"])
        except NotImplementedError:
            raise
        except (Exception, _FromTheModel) as error:
            said, kind = str(error), type(error).__name__
    return {"said": said, "raised": kind, "changed": changed}


def judge(case: Case, result: Result) -> None:
    """Demand an error that says what failed, and that nothing else happened.

    Raises:
        CheckError: When it is another, or none, or something remains.
    """
    how, raised, said = case["fails"], result.get("raised"), result.get("said")
    what, named = HOW[how]
    if raised == "nothing" or not isinstance(said, str):
        raise CheckError(
            f"{what}: nothing was raised. A step that cannot be made says so, and makes none."
        )
    wanted, advice = "ValueError", "a ValueError in your own words is wanted"
    if how == "raises":
        wanted, advice = "_FromTheModel", "what the model raises is passed on as it is"
    if raised != wanted:
        raise CheckError(f"{what}: a {raised} came ({said[:80]}), and {advice}.")
    # what came before an interrupt has passed, so what is put back is right
    expect.unchanged(
        result,
        {
            name: f"{what}: {_PASSED_BY if how == 'raises' else words}"
            for name, words in {**surroundings.MESSAGES, **_MESSAGES}.items()
        },
    )
    if how in ("nan", "inf") and "3" not in said and "2" in said:
        raise CheckError(f"{what}: {said[:120]!r} counts it from 0, and people count from 1.")
    words = {
        "no steps": ["0"],
        "too many steps": [str(case["rows"]), str(_num_steps(case))],
        "raises": [_SAID],
        "all masked": [],
    }
    if not all(word in said for word in words.get(how, ["3"])):
        raise CheckError(f"{what}: the message {said[:120]!r} does not name {named}.")
