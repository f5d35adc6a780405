"""The check of lab 06's exact step (6.5): three models, and whatever fails."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab06_tasks import TASKS, Task, gpt_task, make_optimizer
from tutorial_lib.checks.running import one_thread
from tutorial_lib.checks.training_record import summation_tolerance

_FAILURES = {
    "no steps": "num_steps=0",
    "too many steps": "more micro-batches than rows",
    "all masked": "a batch without one target",
    "nan": "a loss of nan in the third micro-batch",
    "raises": "an error raised by the model in the third micro-batch",
}


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    rows = draw.choice([5, 6, 9])  # Tensor.chunk(4) gives three pieces of each
    drawn: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "rows": rows,
        "num_steps": 4,
        "max_norm": 1e6,
    }
    drawn |= {"fails": "", "dtype": "float64"}
    exact: list[Case] = [
        {**drawn, "model": model, "optimizer": optimizer}
        for model in TASKS
        for optimizer in ("SGD", "AdamW")
    ]
    exact.append({**drawn, "model": "GPT", "optimizer": "SGD", "max_norm": 1e-3})
    exact.append({**drawn, "model": "GPT", "optimizer": "SGD", "dtype": "float32"})
    exact.append({**drawn, "model": "ViT", "optimizer": "SGD", "rows": 24, "num_steps": 12})
    failing: list[Case] = [
        {**drawn, "model": "GPT", "optimizer": "AdamW", "fails": failure} for failure in _FAILURES
    ]
    return exact + failing


def _task(case: Case) -> Task:
    dtype = getattr(torch, case["dtype"])
    if case["fails"] == "all masked":
        return gpt_task(case["seed"], case["rows"], dtype, masked=True)
    task = TASKS[case["model"]](case["seed"], case["rows"], dtype)
    if case["fails"] in ("nan", "raises"):
        task.loss_sum = _spoiled(task.loss_sum, case["fails"])
    return task


class _FromTheModelError(Exception):
    """Stands for whatever a model raises in the middle of a step, as an out-of-memory error."""


def _spoiled(loss_sum: Callable[..., Tensor], how: str) -> Callable[..., Tensor]:
    calls = 0

    def spoiled(model: nn.Module, *micro_batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        torch.rand(3)  # as dropout would
        for buffer in model.buffers():
            buffer.add_(1)  # as BatchNorm would
        if calls == 3 and how == "raises":
            raise _FromTheModelError("the model itself raised this")
        return loss_sum(model, *micro_batch) * (math.nan if calls == 3 else 1)

    return spoiled


def _run(answer: Callable[..., Any], case: Case) -> Result:
    with one_thread():
        return _run_failing(answer, case) if case["fails"] else _run_exact(answer, case)


def _call(answer: Callable[..., Any], task: Task, optimizer: Optimizer, case: Case) -> Any:
    num = {"no steps": 0, "too many steps": case["rows"] + 3}.get(case["fails"], case["num_steps"])
    options = {"loss_sum": task.loss_sum, "count_terms": task.count_terms}
    return answer(task.model, optimizer, task.batch, num, max_norm=case["max_norm"], **options)


def _run_exact(answer: Callable[..., Any], case: Case) -> Result:
    task = _task(case)
    optimizer = make_optimizer(case["optimizer"], task.model)
    for parameter in task.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with memory.watch(model=task.model, optimizer=optimizer) as report:
        seen = oracles.observe(lambda: _call(answer, task, optimizer, case), task.model, optimizer)
    activations = report.at_peak.get("activations", 0)
    return {**seen, "activations": activations}


def _run_failing(answer: Callable[..., Any], case: Case) -> Result:
    task = _task(case)
    task.model.register_buffer("seen", torch.zeros(3))
    optimizer = make_optimizer(case["optimizer"], task.model)
    for parameter in task.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # so that it has state to lose
    random_state = torch.get_rng_state()
    parameters = oracles.vector(list(task.model.parameters()))
    state = _state_of(optimizer)
    said, kind = "", "nothing"
    try:
        _call(answer, task, optimizer, case)
    except NotImplementedError:
        raise
    except Exception as error:
        said, kind = str(error), type(error).__name__
    gradients = [p.grad for p in task.model.parameters()]
    return {
        "said": said,
        "raised": kind,
        "parameters": torch.equal(parameters, oracles.vector(list(task.model.parameters()))),
        "optimizer": torch.equal(state, _state_of(optimizer)),
        "gradients": all(g is not None and bool((g == 1).all()) for g in gradients),
        "buffers": not bool(task.model.get_buffer("seen").any()),
        "random": torch.equal(random_state, torch.get_rng_state()),
    }


def _state_of(optimizer: Optimizer) -> Tensor:
    return oracles.vector([value for state in optimizer.state.values() for value in state.values()])


def _judge(case: Case, result: Result) -> None:
    if case["fails"]:
        _judge_failing(case, result)
    else:
        with one_thread():
            _judge_exact(case, result)


def _judge_exact(case: Case, result: Result) -> None:
    task = _task(case)
    sizes = [len(part) for part in task.batch[0].tensor_split(case["num_steps"])]
    rows = oracles.few_rows(result, sizes)
    if sum(rows) != sum(sizes) or len(rows) != case["num_steps"]:
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and {case['rows']} rows in "
            f"{case['num_steps']} were asked for: Tensor.tensor_split cuts into so many."
        )
    size = sum(parameter.numel() for parameter in task.model.parameters())
    updates = oracles.vectors(result.get("gradients"), size, "the gradients")
    if len(updates) != 1:
        raise CheckError(f"the optimizer made {len(updates)} updates, and one is wanted.")
    loss = task.loss_sum(task.model, *task.batch) / task.count_terms(*task.batch)
    plain = oracles.gradient(loss, task.model)
    wanted = plain * min(1.0, case["max_norm"] / (float(plain.norm()) + 1e-6))
    if case["dtype"] == "float32":
        _judge_float32(task, updates[0], wanted)
        return
    oracles.demand_gradient(updates[0], wanted, _slips(case, task, plain, wanted))
    oracles.demand_loss(result.get("returned"), loss.item(), "", {})
    _step_by(task.model, case["optimizer"], wanted)
    after = oracles.one_vector(result.get("parameters"), size, "the parameters")
    if not oracles.is_close(after, oracles.vector(list(task.model.parameters()))):
        raise CheckError("the gradient was right, and the parameters after the update are not.")
    _judge_memory(case, result, task)


def _judge_float32(task: Task, seen: Tensor, wanted: Tensor) -> None:
    tolerance = summation_tolerance(torch.float32, task.batch[0].numel())
    if not oracles.is_close(seen, wanted, tolerance):
        raise CheckError(
            f"in float32 the gradient is off by {oracles.off(seen, wanted):.1e}, and rounding "
            f"explains {tolerance:.1e}."
        )


def _slips(case: Case, task: Task, plain: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    parts = list(zip(*(t.tensor_split(case["num_steps"]) for t in task.batch), strict=True))
    sums = [oracles.gradient(task.loss_sum(task.model, *part), task.model) for part in parts]
    counts = [max(1, task.count_terms(*part)) for part in parts]
    means = sum((s / n for s, n in zip(sums, counts, strict=True)), torch.zeros_like(plain))
    return {
        "each micro-batch was divided by its own terms, and counts the same: count once, for the "
        "whole batch.": means / len(parts),
        "each micro-batch was divided by its own terms, and all were added up.": means,
        "the sum was not divided by the number of its terms.": plain * sum(counts),
        "the sum was divided by rows, and count_terms says what its terms are.": (
            plain * sum(counts) / case["rows"]
        ),
        "the gradient was not clipped to max_norm.": plain,
        "what was in .grad before was added to the batch.": wanted + 1,
        "only the last micro-batch is in the gradient.": sums[-1] / sum(counts),
    }


def _step_by(model: nn.Module, optimizer: str, gradient: Tensor) -> None:
    parameters = list(model.parameters())
    made = make_optimizer(optimizer, model)
    place = 0
    for parameter in parameters:
        part = gradient[place : place + parameter.numel()]
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
        place += parameter.numel()
    made.step()


def _judge_memory(case: Case, result: Result, task: Task) -> None:
    """Of many micro-batches no more than two may have their activations in memory at a time."""
    if case["num_steps"] < 8:
        return
    with memory.watch(model=task.model) as report:
        task.loss_sum(task.model, *task.batch).backward()  # type: ignore[no-untyped-call]
    whole = report.at_peak.get("activations", 0)
    seen = result.get("activations")
    if type(seen) is not int or seen > whole * 3 // case["num_steps"]:
        raise CheckError(
            f"{seen} bytes of activations are there at the peak, and the whole batch has {whole}: "
            f"with {case['num_steps']} micro-batches call backward for each, it frees its graph."
        )


_NAMES_IT = {
    "no steps": (["0"], "num_steps, and its value"),
    "too many steps": ([], "both numbers, the steps and the rows"),
    "all masked": ([], ""),
    "nan": (["3"], "the third of the micro-batches by its number"),
    "raises": (["the model itself raised this"], "what the model said"),
}


def _judge_failing(case: Case, result: Result) -> None:
    what = _FAILURES[case["fails"]]
    raised, said = result.get("raised"), result.get("said")
    if raised == "nothing" or not isinstance(said, str):
        raise CheckError(
            f"{what}: nothing was raised. A step that cannot be made says so, and makes none."
        )
    wanted = "_FromTheModelError" if case["fails"] == "raises" else "ValueError"
    if raised != wanted:
        advice = (
            "what the model raises is passed on as it is"
            if case["fails"] == "raises"
            else "a ValueError in your own words is wanted"
        )
        raise CheckError(f"{what}: a {raised} came ({said[:80]}), and {advice}.")
    for part, advice in _UNTOUCHED.items():
        if result.get(part) is not True:
            raise CheckError(f"{what}: {advice}")
    words, naming = _NAMES_IT[case["fails"]]
    numbers = (
        [str(case["rows"]), str(case["rows"] + 3)] if case["fails"] == "too many steps" else []
    )
    if case["fails"] == "nan" and "3" not in said and "2" in said:
        raise CheckError(f"{what}: {said[:120]!r} counts it from 0, and people count from 1.")
    if not all(word in said for word in [*words, *numbers]):
        raise CheckError(f"{what}: the message {said[:120]!r} does not name {naming}.")


_UNTOUCHED = {
    "parameters": "an error was raised, and the parameters had been updated before.",
    "optimizer": "the optimizer's state is no longer what it was: check before optimizer.step().",
    "gradients": "the error came, and the .grad that were there before did not come back. Hold "
    "them in a list, set each to None, and put them back when something is raised.",
    "buffers": "the model's buffers stayed as the failed forward left them: call the function "
    "that remember gave you.",
    "random": "the random state stayed where the failed step left it: the retry would draw other "
    "numbers.",
}

exact_step = Check(
    name="lab06.exact_step",
    exercise="6.5",
    passed="GPT, ViT and U-Net as in one batch, and five failures that leave nothing behind",
    cases=_cases,
    run=_run,
    judge=_judge,
)
