"""The check of 6.5, an exact step: three models; steps that fail are in `ex6_5_failures`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tutorial_lib import memory
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import exam, observe
from tutorial_lib.checks.lab06 import ex6_5_failures as failures
from tutorial_lib.checks.lab06.models import TASKS, Task, make_optimizer, train
from tutorial_lib.checks.same_training.record import summation_tolerance
from tutorial_lib.checks.vocabulary import accumulation, expect, read

_MANY = 8  # micro-batches, from which on the memory is looked at


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    rows = draw.choice([7, 8, 12])  # Tensor.chunk(5) gives four pieces of each
    drawn: dict[str, Any] = {"seed": draw.randrange(10**6), "rows": rows, "num_steps": 5}
    drawn |= {"max_norm": 1e6, "fails": "", "dtype": "float64"}
    pairs = itertools.product(TASKS, ("SGD", "AdamW"))
    gpt = {**drawn, "model": "GPT", "optimizer": "SGD"}
    return [
        *({**drawn, "model": model, "optimizer": optimizer} for model, optimizer in pairs),
        {**gpt, "max_norm": 1e-3},
        {**gpt, "dtype": "float32"},
        {**gpt, "model": "ViT", "rows": 24, "num_steps": 12},
        *({**gpt, "optimizer": "AdamW", "fails": how} for how in failures.HOW),
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
    with memory.watch(model=task.model, optimizer=optimizer) as report:
        seen = train(step, task.model, optimizer)
    return {
        **seen,
        "activations": report.at_peak.get("activations", 0),
        "old_gradients": observe.is_filled(task.model),
        "moved": task.model.get_buffer("seen"),
        "next": torch.rand(3),
    }


def _task(case: Case) -> Task:
    return TASKS[case["model"]](case["seed"], case["rows"], getattr(torch, case["dtype"]))


class _Oracle:
    """Loss, gradient and bytes of activations of the whole batch at once."""

    def __init__(self, case: Case) -> None:
        if case["fails"]:
            return
        task = _task(case)
        with memory.watch(model=task.model) as report:
            loss = task.loss_sum(task.model, *task.batch) / task.count_terms(*task.batch)
            gradient = observe.gradient(loss, task.model)
        self.activations = report.at_peak.get("activations", 0)
        self.loss, self.gradient = loss.item(), gradient


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
    gradient = oracle.gradient
    if case["dtype"] == "float32":
        tolerance = summation_tolerance(torch.float32, task.batch[0].numel())
        error = expect.relative_error(updates[0], gradient)
        words = f"the gradient is off by {error:.1e}, and rounding explains {tolerance:.1e}."
        expect.no_fault({f"in float32 {words}": error > tolerance})
        return
    faults = list(_faults(case, task, gradient))
    wanted = accumulation.expect_clipped(updates[0], gradient, case["max_norm"], faults)
    expect.loss(result.get("returned"), oracle.loss)
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
    rows = sorted(read.integers(result.get("rows"), "rows"))
    if (len(rows), sum(rows)) == (len(sizes), sum(sizes)) and rows != sorted(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and the largest decides how much memory "
            "is needed: make them as equal as they can be, as Tensor.tensor_split does."
        )
    accumulation.expect_rows_at_most(result, sizes)
    if rows != sorted(sizes):
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
    end = "only what failed is put back."
    expect.no_fault(
        {
            f"the update was made, and the model's buffers are not what its forwards left: {end}": (
                bool((moved != case["num_steps"]).any())
            ),
            "the update was made, and the random state is not where its forwards left it, so the "
            f"next step would draw the same numbers: {end}": (
                not torch.equal(drawn, torch.rand(3).double())
            ),
            f"the update was made, and the .grad from before it are back: {end}": read.flag(
                result, "old_gradients"
            ),
        }
    )
    expect.unchanged(result)


def _faults(case: Case, task: Task, gradient: Tensor) -> expect.Faults:
    parts = list(zip(*(t.tensor_split(case["num_steps"]) for t in task.batch), strict=True))
    sums = [observe.gradient(task.loss_sum(task.model, *part), task.model) for part in parts]
    window = accumulation.Window(sums, [task.count_terms(*part) for part in parts])
    yield from accumulation.faults(window, "terms")
    yield (
        "the sum was divided by rows, and count_terms says what its terms are.",
        window.total / case["rows"],
    )
    yield "the gradient was not clipped to max_norm.", gradient


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
