"""The check of lab 06's exact step (6.5): three models; what fails is next door."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks import lab06_demands as demands
from tutorial_lib.checks import lab06_failures as failures
from tutorial_lib.checks import lab06_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab06_tasks import TASKS, Task, make_optimizer
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
    return failures.run(answer, case) if case["fails"] else _run_exact(answer, case)


def _run_exact(answer: Callable[..., Any], case: Case) -> Result:
    task = _task(case)
    task.stir()
    optimizer = make_optimizer(case["optimizer"], task.model)
    parameters = list(task.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(case["seed"])
    step = functools.partial(task.call, answer, optimizer, case["num_steps"], case["max_norm"])
    activations = 0
    if case["num_steps"] < _MANY:
        seen = oracles.observe(step, task.model, optimizer)
    else:
        with memory.watch(model=task.model, optimizer=optimizer) as report:
            seen = oracles.observe(step, task.model, optimizer)
        activations = report.at_peak.get("activations", 0)
    return {
        **seen,
        "activations": activations,
        "old_gradients": all(oracles.is_all_one(p.grad) for p in parameters),
        "moved": task.model.get_buffer("seen"),
        "next": torch.rand(3),
    }


def _task(case: Case) -> Task:
    return TASKS[case["model"]](case["seed"], case["rows"], getattr(torch, case["dtype"]))


def _judge(case: Case, result: Result) -> None:
    if case["fails"]:
        failures.judge(case, result)
    else:
        _judge_exact(case, result)


def _judge_exact(case: Case, result: Result) -> None:
    task = _task(case)
    sizes = [len(part) for part in task.batch[0].tensor_split(case["num_steps"])]
    rows = demands.rows_of(result)
    if (len(rows), sum(rows)) == (len(sizes), sum(sizes)) and sorted(rows) != sorted(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and the largest decides how much memory "
            "is needed: make them as equal as they can be, as Tensor.tensor_split does."
        )
    demands.few_rows(result, sizes)
    if sorted(rows) != sorted(sizes):
        raise CheckError(
            f"the model saw micro-batches of {rows} rows, and {case['rows']} rows in "
            f"{case['num_steps']} were asked for: Tensor.tensor_split cuts into so many."
        )
    size = sum(parameter.numel() for parameter in task.model.parameters())
    updates = demands.vectors(result.get("gradients"), size, "the gradients")
    if len(updates) != 1:
        raise CheckError(f"the optimizer made {len(updates)} updates, and one is wanted.")
    loss = task.loss_sum(task.model, *task.batch) / task.count_terms(*task.batch)
    plain = oracles.gradient(loss, task.model)
    if case["dtype"] == "float32":
        _judge_float32(task, updates[0], plain)
        return
    slips = _slips(case, task, plain)
    wanted = demands.demand_clipped(updates[0], plain, case["max_norm"], slips)
    demands.demand_loss(result.get("returned"), loss.item(), "", {})
    _step_by(task.model, case["optimizer"], wanted)
    after = demands.one_vector(result.get("parameters"), size, "the parameters")
    if not oracles.is_close(after, oracles.vector(list(task.model.parameters()))):
        raise CheckError("the gradient was right, and the parameters after the update are not.")
    _judge_rest(case, result)
    _judge_memory(case, result, task)


def _judge_rest(case: Case, result: Result) -> None:
    """Demand that nothing is put back where nothing failed."""
    torch.manual_seed(case["seed"])
    for _ in range(case["num_steps"]):
        torch.rand(3)
    moved = demands.one_vector(result.get("moved"), 3, "the model's buffers")
    drawn = demands.one_vector(result.get("next"), 3, "the next random numbers")
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
    if result.get("old_gradients") is not False:
        raise CheckError(
            "the update was made, and the .grad from before it are back: only what failed is put "
            "back."
        )
    demands.same_switches(result)


def _judge_float32(task: Task, seen: Tensor, wanted: Tensor) -> None:
    tolerance = summation_tolerance(torch.float32, task.batch[0].numel())
    if not oracles.is_close(seen, wanted, tolerance):
        raise CheckError(
            f"in float32 the gradient is off by {oracles.off(seen, wanted):.1e}, and rounding "
            f"explains {tolerance:.1e}."
        )


def _slips(case: Case, task: Task, plain: Tensor) -> dict[str, Tensor]:
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
        "what was in .grad before was added to the batch.": plain + 1,
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
    if case["num_steps"] < _MANY:
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


exact_step = Check(
    name="lab06.exact_step",
    exercise="6.5",
    passed="GPT, ViT and U-Net as in one batch, and five failures that leave nothing behind",
    cases=_cases,
    run=_run,
    judge=_judge,
)
