"""The check of 6.5, an exact step: three models; steps that fail are in `ex6_5_failures`."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.checks import accumulation, exam, expect, observe, read, surroundings
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab06 import ex6_5_failures as failures
from tutorial_lib.checks.lab06.models import TASKS, Task, make_optimizer, train
from tutorial_lib.checks.training_record import summation_tolerance

_MANY = 8  # micro-batches, from which on the memory is looked at


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    rows = draw.choice([7, 8, 12])  # Tensor.chunk(5) gives four pieces of each
    drawn: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "rows": rows,
        "num_steps": 5,
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
    return exact + [
        {**drawn, "model": "GPT", "optimizer": "AdamW", "fails": how} for how in failures.HOW
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    if case["fails"]:
        return failures.run(answer, case)
    task = _task(case)
    task.add_side_effects()
    optimizer = make_optimizer(case["optimizer"], task.model)
    observe.fill_gradients(task.model)
    torch.manual_seed(case["seed"])
    step = partial(task.call, answer, optimizer, case["num_steps"], case["max_norm"])
    activations = 0
    if case["num_steps"] < _MANY:
        seen = train(step, task.model, optimizer)
    else:
        with memory.watch(model=task.model, optimizer=optimizer) as report:
            seen = train(step, task.model, optimizer)
        activations = report.at_peak.get("activations", 0)
    return {
        **seen,
        "activations": activations,
        "old_gradients": observe.is_filled(task.model),
        "moved": task.model.get_buffer("seen"),
        "next": torch.rand(3),
    }


def _task(case: Case) -> Task:
    return TASKS[case["model"]](case["seed"], case["rows"], getattr(torch, case["dtype"]))


class _Oracle:
    """The whole batch at once."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def whole(self) -> tuple[float, Tensor]:
        """Its loss, and the gradient of it."""
        task = _task(self.case)
        loss = task.loss_sum(task.model, *task.batch) / task.count_terms(*task.batch)
        return loss.item(), observe.gradient(loss, task.model)

    @cached_property
    def activations(self) -> int:
        """The bytes of its activations at the peak."""
        task = _task(self.case)
        with memory.watch(model=task.model) as report:
            task.loss_sum(task.model, *task.batch).backward()  # type: ignore[no-untyped-call]
        return report.at_peak.get("activations", 0)


def _judge(case: Case, result: Result, oracle: _Oracle) -> None:
    if case["fails"]:
        failures.judge(case, result)
        return
    task = _task(case)
    _expect_rows(case, result, task)
    size = len(observe.parameter_vector(task.model))
    updates = read.vectors(result.get("gradients"), size, "the gradients")
    if len(updates) != 1:
        raise CheckError(f"the optimizer made {len(updates)} updates, and one is wanted.")
    loss, gradient = oracle.whole
    if case["dtype"] == "float32":
        _expect_within_rounding(task, updates[0], gradient)
        return
    faults = list(_faults(case, task, gradient))
    wanted = accumulation.expect_clipped(updates[0], gradient, case["max_norm"], faults)
    expect.loss(result.get("returned"), loss)
    _step_by(task.model, case["optimizer"], wanted)
    after = read.vector(result.get("parameters"), size, "the parameters")
    if not expect.is_close(after, observe.parameter_vector(task.model)):
        raise CheckError("the gradient was right, and the parameters after the update are not.")
    _expect_nothing_put_back(case, result)
    activations = read.integer(result.get("activations"), "activations")
    if case["num_steps"] >= _MANY and activations > oracle.activations * 3 // case["num_steps"]:
        raise CheckError(
            f"{activations:,} bytes of activations are there at the peak, and the whole batch has "
            f"{oracle.activations:,}: with {case['num_steps']} micro-batches call backward for "
            "each, it frees its graph."
        )


def _expect_rows(case: Case, result: Result, task: Task) -> None:
    sizes = [len(part) for part in task.batch[0].tensor_split(case["num_steps"])]
    rows = read.integers(result.get("rows"), "rows")
    if (len(rows), sum(rows)) == (len(sizes), sum(sizes)) and sorted(rows) != sorted(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and the largest decides how much memory "
            "is needed: make them as equal as they can be, as Tensor.tensor_split does."
        )
    accumulation.expect_rows_at_most(result, sizes)
    if sorted(rows) != sorted(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and {case['rows']} rows in "
            f"{case['num_steps']} were asked for: Tensor.tensor_split cuts into so many."
        )


def _expect_nothing_put_back(case: Case, result: Result) -> None:
    torch.manual_seed(case["seed"])
    for _ in range(case["num_steps"]):
        torch.rand(3)
    moved = read.vector(result.get("moved"), 3, "the model's buffers")
    drawn = read.vector(result.get("next"), 3, "the next random numbers")
    if not bool((moved == case["num_steps"]).all()):
        raise CheckError(
            "the update was made, and the model's buffers are not what its forwards left: only "
            "what failed is put back."
        )
    if not torch.equal(drawn, torch.rand(3).double()):
        raise CheckError(
            "the update was made, and the random state is not where its forwards left it, so the "
            "next step would draw the same numbers: only what failed is put back."
        )
    if read.flag(result, "old_gradients"):
        raise CheckError(
            "the update was made, and the .grad from before it are back: only what failed is put "
            "back."
        )
    surroundings.expect_kept(result)


def _expect_within_rounding(task: Task, seen: Tensor, wanted: Tensor) -> None:
    tolerance = summation_tolerance(torch.float32, task.batch[0].numel())
    error = expect.relative_error(seen, wanted)
    if error > tolerance:
        raise CheckError(
            f"in float32 the gradient is off by {error:.1e}, and rounding explains {tolerance:.1e}."
        )


def _faults(case: Case, task: Task, gradient: Tensor) -> expect.Faults:
    parts = list(zip(*(t.tensor_split(case["num_steps"]) for t in task.batch), strict=True))
    sums = [observe.gradient(task.loss_sum(task.model, *part), task.model) for part in parts]
    window = accumulation.Window(sums, [task.count_terms(*part) for part in parts])
    yield (
        "each micro-batch was divided by its own terms, and counts the same: count once, for the "
        "whole batch.",
        window.mean_of_means,
    )
    yield (
        "each micro-batch was divided by its own terms, and all were added up.",
        window.sum_of_means,
    )
    yield "the sum was not divided by the number of its terms.", window.total
    yield (
        "the sum was divided by rows, and count_terms says what its terms are.",
        window.total / case["rows"],
    )
    yield "the gradient was not clipped to max_norm.", gradient
    yield "what was in .grad before was added to the batch.", gradient + 1
    yield "only the last micro-batch is in the gradient.", window.last_alone


def _step_by(model: nn.Module, optimizer: str, gradient: Tensor) -> None:
    parameters = list(model.parameters())
    parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
    make_optimizer(optimizer, model).step()


def _one_batch(
    answer: Callable[..., Any], chain: exam.Chain, optimizer: Optimizer, rows: Tensor
) -> None:
    answer(chain, optimizer, (rows,), 16, loss_sum=exam.Chain.loss_sum, count_terms=len)


exact_step = Check(
    "lab06.exact_step",
    "6.5",
    "GPT, ViT and U-Net as in one batch, and five failures that leave nothing behind",
    _cases,
    _run,
    _judge,
    oracle=_Oracle,
    exam=exam.of_update(_one_batch),
)
