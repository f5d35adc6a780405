"""The failing half of the check of 6.5: where a step fails, nothing of it may remain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks import observe, surroundings
from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.lab06.models import Task, gpt_task, make_optimizer

# In which ways a step fails, and what the learner reads about each.
HOW = {
    "no steps": "num_steps=0",
    "too many steps": "more micro-batches than rows",
    "all masked": "a batch without one target",
    "nan": "a loss of nan in the third micro-batch",
    "inf": "an infinite loss in the third micro-batch",
    "raises": "an interrupt (a BaseException) raised by the model in the third micro-batch",
}
_NAMES_IT = {
    "no steps": "num_steps, and its value",
    "too many steps": "both numbers, the steps and the rows",
    "nan": "the third of the micro-batches by its number",
    "inf": "the third of the micro-batches by its number",
    "raises": "what the model said",
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
    calls = 0

    def failing(model: nn.Module, *micro_batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        loss = loss_sum(model, *micro_batch)
        if calls == 3 and how == "raises":
            raise _FromTheModel(_SAID)
        return loss * {"nan": math.nan, "inf": math.inf}[how] if calls == 3 else loss

    return failing


def _num_steps(case: Case) -> int:
    if case["fails"] == "no steps":
        return 0
    return int(case["rows"] + 3 if case["fails"] == "too many steps" else case["num_steps"])


def _task(case: Case) -> Task:
    how = case["fails"]
    dtype = getattr(torch, case["dtype"])
    task = gpt_task(case["seed"], case["rows"], dtype, masked=how == "all masked")
    task.add_side_effects()
    if how in ("nan", "inf", "raises"):
        task.loss_sum = _failing(task.loss_sum, how)
    return task


def run(answer: Callable[..., Any], case: Case) -> Result:
    """Have a step fail, and note what it left behind."""
    task = _task(case)
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
    how = case["fails"]
    what, raised, said = HOW[how], result.get("raised"), result.get("said")
    if raised == "nothing" or not isinstance(said, str):
        raise CheckError(
            f"{what}: nothing was raised. A step that cannot be made says so, and makes none."
        )
    if raised != ("_FromTheModel" if how == "raises" else "ValueError"):
        advice = (
            "what the model raises is passed on as it is"
            if how == "raises"
            else "a ValueError in your own words is wanted"
        )
        raise CheckError(f"{what}: a {raised} came ({said[:80]}), and {advice}.")
    for name in surroundings.names_in(result):
        # what came before has passed, so what is put back is right
        advice = _MESSAGES.get(name, surroundings.MESSAGES[name])
        raise CheckError(f"{what}: {_PASSED_BY if how == 'raises' else advice}")
    if how in ("nan", "inf") and "3" not in said and "2" in said:
        raise CheckError(f"{what}: {said[:120]!r} counts it from 0, and people count from 1.")
    if not all(word in said for word in _words(case)):
        raise CheckError(f"{what}: the message {said[:120]!r} does not name {_NAMES_IT[how]}.")


def _words(case: Case) -> list[str]:
    """List what the error has to say."""
    numbers = [str(case["rows"]), str(_num_steps(case))]
    words = {"no steps": ["0"], "too many steps": numbers, "nan": ["3"], "inf": ["3"]}
    return [_SAID] if case["fails"] == "raises" else words.get(case["fails"], [])
