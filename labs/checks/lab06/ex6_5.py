"""The check of 6.5, an exact step: three models, and steps that fail."""

import itertools
import tomllib
from pathlib import Path

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.given.surroundings import MESSAGES
from tutorial_lib.checks.same_training.record import summation_tolerance
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, accumulation, check, expect
from tutorial_lib.checks.vocabulary.read import flag, integer, integers, vector

from . import given, right_sums
from .given.models import Task, make_optimizer, task_of
from .given.steps import SAID

_PASSED = "GPT, ViT and U-Net train as in one batch, and seven failed steps leave no trace"
_MANY = 8  # micro-batches, from which on the memory is looked at
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HOW = _TABLE["how"]


def _cases(draw: Draw) -> Cases:
    rows = draw.choice([7, 8, 12])  # Tensor.chunk(5) gives four pieces of each
    drawn = {"seed": draw.randrange(10**6), "rows": rows, "fails": "", "dtype": "float64"}
    drawn |= {"num_steps": 5, "max_norm": 1e6}
    for model, optimizer in itertools.product(("GPT", "ViT", "U-Net"), ("SGD", "AdamW")):
        yield {**drawn, "model": model, "optimizer": optimizer}
    gpt = {**drawn, "model": "GPT", "optimizer": "SGD"}
    yield {**gpt, "max_norm": 1e-3}
    yield {**gpt, "dtype": "float32"}
    yield {**gpt, "model": "ViT", "rows": 24, "num_steps": 12}
    steps = {"no steps": 0, "too many steps": rows + 3}
    for how in HOW:
        yield {**gpt, "optimizer": "AdamW", "fails": how, "num_steps": steps.get(how, 5)}


class _Oracle:
    """Loss, gradient and bytes of activations of the whole batch at once."""

    def __init__(self, case: Case) -> None:
        if case["fails"]:
            return
        task = task_of(case)
        with memory.watch(model=task.model) as report:
            loss = task.loss_sum(task.model, *task.batch) / task.count_terms(*task.batch)
            gradient = observe.gradient(loss, task.model)
        self.activations = report.at_peak.get("activations", 0)
        self.loss, self.gradient = loss.item(), gradient


@check(given.exact_step, _PASSED, _cases, oracle=_Oracle)
def exact_step(case: Case, result: Result, oracle: _Oracle) -> None:
    if case["fails"]:
        with expect.about(f"{HOW[case['fails']]['what']}: "):
            _judge_failure(case, result)
        return
    task = task_of(case)
    _expect_rows(case, result, task)
    gradient, steps = oracle.gradient, case["num_steps"]
    words = "the optimizer made {} updates instead of one."
    update = right_sums.only_update(result, len(gradient), words)
    if case["dtype"] == "float32":
        tolerance = summation_tolerance(torch.float32, task.batch[0].numel())
        error = expect.relative_error(update, gradient)
        words = f"the gradient is off by {error:.1e}, but rounding explains only {tolerance:.1e}."
        expect.fact(error <= tolerance, f"in float32 {words}")
        return
    faults = list(_faults(case, task, gradient))
    wanted = accumulation.expect_clipped(update, gradient, case["max_norm"], faults)
    expect.loss(result["returned"], oracle.loss)
    _step_by(task.model, case["optimizer"], wanted)
    words = "the gradient was right, but the parameters after the update are not."
    right_sums.expect_parameters(result, observe.parameter_vector(task.model), words)
    _expect_nothing_put_back(case, result)
    activations = integer(result["activations"], "activations")
    expect.fact(
        steps < _MANY or activations <= oracle.activations * 3 // steps,
        f"the peak has {activations:,} bytes of activations, and the batch has "
        f"{oracle.activations:,}: with {steps} micro-batches call backward for each, it frees its "
        "graph.",
    )


def _expect_rows(case: Case, result: Result, task: Task) -> None:
    sizes = [len(part) for part in task.batch[0].tensor_split(case["num_steps"])]
    rows = sorted(integers(result["rows"], "rows"))
    is_equal, saw = rows == sorted(sizes), f"the model saw micro-batches of {rows} rows, and"
    expect.fact(
        is_equal or (len(rows), sum(rows)) != (len(sizes), sum(sizes)),
        f"{saw} the largest decides how much memory is needed: make them as equal as possible, as "
        "Tensor.tensor_split does.",
    )
    accumulation.expect_rows_at_most(result, sizes)
    expect.fact(
        is_equal,
        f"{saw} {case['rows']} rows in {case['num_steps']} were asked for: Tensor.tensor_split "
        "cuts into so many.",
    )


def _expect_nothing_put_back(case: Case, result: Result) -> None:
    torch.manual_seed(case["seed"])
    for _ in range(case["num_steps"]):
        torch.rand(3)
    moved = vector(result["moved"], 3, "the model's buffers") != case["num_steps"]
    drawn = vector(result["next"], 3, "the next random numbers")
    is_put_back, end = flag(result, "old_gradients"), "restore only after a failure."
    faults = {
        f"the update was made, but the model's buffers are not as its forwards left them: {end}": (
            bool(moved.any())
        ),
        "the update was made, but the random state is not as its forwards left it, so the next "
        f"step would draw the same numbers: {end}": not torch.equal(drawn, torch.rand(3).double()),
        f"the update was made, and the .grad from before it are back: {end}": is_put_back,
    }
    expect.no_fault(faults)
    expect.unchanged(result)


def _faults(case: Case, task: Task, gradient: Tensor) -> expect.Faults:
    parts = list(zip(*(t.tensor_split(case["num_steps"]) for t in task.batch), strict=True))
    sums = [observe.gradient(task.loss_sum(task.model, *part), task.model) for part in parts]
    window = accumulation.Window(sums, [task.count_terms(*part) for part in parts])
    yield from accumulation.faults(window, "terms")
    by_rows = "the sum was divided by the number of rows, but count_terms returns that of terms."
    yield by_rows, window.total / case["rows"]
    yield "the gradient was not clipped to max_norm.", gradient


def _step_by(model: nn.Module, optimizer: str, gradient: Tensor) -> None:
    parameters = list(model.parameters())
    parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
    make_optimizer(optimizer, model).step()


def _judge_failure(case: Case, result: Result) -> None:
    """Demand an error that names the failure, and that nothing else happened."""
    how, raised, said = case["fails"], result["raised"], str(result["said"])
    named, passed_on = HOW[how]["named"], HOW[how].get("passed_on")
    advice = "what the model raises is passed on as it is"
    advice = advice if passed_on else "raise a ValueError, as refuse_impossible does"
    silent = raised == "nothing" or not isinstance(result["said"], str)
    faults = {
        "nothing was raised. If no step is possible, raise an error.": silent,
        f"a {raised} came ({said[:80]}), but {advice}.": raised != (passed_on or "ValueError"),
    }
    expect.no_fault(faults)
    # what came before an interrupt has passed, so what is put back is right
    changed = dict.fromkeys(MESSAGES, HOW[how].get("changed"))
    expect.unchanged(result, changed if passed_on else _TABLE["changed"])
    words = {"no steps": ["0"], "too many steps": [str(case["rows"]), str(case["num_steps"])]}
    words |= {"backward": [SAID], "raises": [SAID], "all masked": []}
    is_named = all(word in said for word in words.get(how, ["3"]))
    is_third, every = how in ("nan", "inf"), {*range(1, case["num_steps"] + 1)}
    names_all = is_third and every <= expect.numbers_named(said)
    from_0 = is_third and "2" in said and "3" not in said
    faults = {
        f"{said[:120]!r} counts it from 0, but people count from 1.": from_0,
        f"the message {said[:120]!r} names every micro-batch: name only one.": names_all,
        f"the message {said[:120]!r} does not name {named}.": not is_named,
    }
    expect.no_fault(faults)
