"""The check of 7.6: backward of a large batch, beside one large graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.core import Case, Check, Result
from tutorial_lib.checks.given import exam, observe, surroundings
from tutorial_lib.checks.lab07 import expectations, models
from tutorial_lib.checks.lab07.ex7_6_refusals import judge_refusals, run_refusals
from tutorial_lib.checks.vocabulary import expect, read

_ROWS = {"few": 24, "many": 96}  # of which the peaks are compared
_STATE_BYTES = 5056  # of the CPU's random generator; the meter sees them where they are cloned


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "width": 12, "hidden": 256}
    case |= {"features": 16, "micro_batch": draw.randint(4, 6), "towers": 2, "dropout": 0.0}
    case |= {"dtype": "float64", "rows": 4 * case["micro_batch"] + draw.randint(1, 3)}
    case |= {"kind": "gradients"}
    dropout = {**case, "dropout": 0.3, "dtype": "float32"}
    return [
        {**case, "whole": True},
        {**dropout, "dtype": "float64", "towers": 3, "moves": True},
        {**dropout, "shared": True},
        {**dropout, "autocast": True, "tolerance": 0.05},
        {**case, "frozen": True, "micro_batch": case["rows"] + 1},
        {**case, "kind": "peak", "hidden": 2048, "dtype": "float32", "micro_batch": 4},
        {
            **case,
            "kind": "refusals",
            "dropout": 0.3,
            "moves": True,
            "rows": 4 * case["micro_batch"] + 3,
        },
    ]


def _make(case: Case) -> tuple[list[models.CountingTower], list[Tensor], models.InBatch]:
    """Build towers, inputs and the loss of a case."""
    torch.manual_seed(case["seed"])
    number, shape = case["towers"], (case["towers"], case["rows"], case["width"])
    towers = [models.CountingTower(case) for _ in range(number)]
    towers = towers[:1] * number if case.get("shared") else towers
    inputs = list(torch.randn(shape, dtype=getattr(torch, case["dtype"])))
    torch.manual_seed(case["seed"] + 1)
    return towers, inputs, models.InBatch(case)


def _observe(backward: Callable[..., Any], case: Case) -> dict[str, Any]:
    towers, inputs, loss_of = _make(case)
    once = list(dict.fromkeys(towers))
    moved = ["gradients", "buffers", "random state"]
    with (
        surroundings.watched([*once, loss_of], inputs, but=moved) as changed,
        torch.autocast("cpu", torch.bfloat16, enabled=bool(case.get("autocast"))),
    ):
        loss = backward(towers, inputs, loss_of, case["micro_batch"])
    return {
        "changed": changed,
        "loss": loss,
        "gradients": observe.gradients_of([*once, loss_of]),
        "random_state": torch.get_rng_state(),
        "buffers": [buffer for tower in once for buffer in tower.buffers()],
        "rows": [tower.rows_seen for tower in once],
        "was_evaluated": any(tower.was_evaluated for tower in once),
    }


def _run(answer: Callable[..., Any], case: Case) -> Result:
    if case["kind"] == "peak":
        (few, _), (many, left) = (_peak(answer, {**case, "rows": n}) for n in _ROWS.values())
        return {"few": few, "many": many, "left": left}
    if case["kind"] == "refusals":
        return {"refused": run_refusals(answer, case, _make)}
    return _observe(answer, case)


def _peak(answer: Callable[..., Any], case: Case) -> tuple[int, int]:
    towers, inputs, loss_of = _make(case)
    call = partial(answer, towers, inputs, loss_of, case["micro_batch"])
    return observe.peak_above(call, [*towers, loss_of])


def _one_graph(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> float:
    """Go backward once from the loss of all rows, the towers run by micro-batches of `size`."""
    pairs = zip(towers, inputs, strict=True)
    loss = loss_of(*[torch.cat([tower(p) for p in torch.split(x, size)]) for tower, x in pairs])
    loss.backward()
    return float(loss.detach())


def _embedded_in_turn(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], size: int
) -> list[list[Tensor]]:
    """Give the embeddings of each micro-batch, run through all towers before the next."""
    parts = zip(*[torch.split(rows, size) for rows in inputs], strict=True)
    return [[tower(part) for tower, part in zip(towers, ours, strict=True)] for ours in parts]


def _in_turn(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> None:
    embeddings = zip(*_embedded_in_turn(towers, inputs, size), strict=True)
    loss_of(*map(torch.cat, embeddings)).backward()


def _accumulated(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> None:
    """Accumulate the losses of the micro-batches: another loss, with fewer negatives."""
    for embeddings in _embedded_in_turn(towers, inputs, size):
        if len(embeddings[0]) > 1:
            (loss_of(*embeddings) * len(embeddings[0]) / len(inputs[0])).backward()


def _right(case: Case) -> dict[str, Any]:
    """Give what one large graph gives in a case of gradients."""
    size = case["rows"] if case.get("whole") else case["micro_batch"]
    is_asked = case["kind"] == "gradients"
    return _observe(_one_graph, {**case, "micro_batch": size}) if is_asked else {}


def _judge(case: Case, result: Result, right: dict[str, Any]) -> None:
    if case["kind"] == "refusals":
        judge_refusals(case, result)
        return
    if case["kind"] == "peak":
        _judge_peak(case, result)
        return
    expect.unchanged(result)
    _judge_rows(case, result)
    expectations.expect_training_mode(result)
    _judge_gradients(case, result, *right["gradients"])
    expectations.expect_loss(result, right["loss"], 0.01)
    buffers = read.tensors(result.get("buffers"), len(right["buffers"]), "buffers")
    faults = {
        "a buffer is not what one forward of each micro-batch makes of it: it was counted twice, "
        "or put back too far.": not all(map(expect.same_bits, buffers, right["buffers"])),
        "the random state afterwards is not that of one forward of every micro-batch, tower after "
        "tower: the rest of the training would draw other numbers.": (
            not expect.same_bits(result.get("random_state"), right["random_state"])
        ),
    }
    expect.no_fault(faults)


def _judge_rows(case: Case, result: Result) -> None:
    total = case["rows"] * (case["towers"] if case.get("shared") else 1)
    lists = [read.integers(rows, "rows") for rows in read.items(result.get("rows"), "rows")]
    sums, limit = list(map(sum, lists)), case["micro_batch"]
    most = max((number for rows in lists for number in rows), default=0)
    faults = {
        f"{most} rows were in a tower at once, and micro_batch is {limit}.": (
            most > min(limit, case["rows"])
        ),
        "each row went through its tower once, so every graph was there until the loss was: embed "
        "without a graph, and run again to go backward.": all(seen == total for seen in sums),
        f"the towers saw {sums} rows, and each should see as many: push through all of them.": (
            len(set(sums)) > 1
        ),
        f"the towers saw {sums} rows, and each of {total} goes through exactly twice: once to "
        "embed it, once to go backward. Is a micro-batch left out, or run once more?": (
            sums[:1] != [2 * total]
        ),
    }
    expect.no_fault(faults)


def _judge_gradients(case: Case, result: Result, *wanted: Tensor) -> None:
    *seen, scale = read.tensors(result.get("gradients"), len(wanted), "gradients")
    traits = ("dropout", "moves", "shared", "autocast", "frozen")
    here = ", ".join(trait for trait in traits if case.get(trait))
    forgotten = case["dropout"] or case.get("moves")
    otherwise = "was the first pass given `remember`? If so, " if forgotten else ""
    otherwise += (
        f"each stage may be right, and then it is what they hand on{f' (with {here})' * bool(here)}"
        ": which embeddings, which gradients, which moments."
    )
    faults = _faults(case, wanted[:-1])
    expectations.expect_gradients(seen, wanted[:-1], case, faults, otherwise)
    tolerance = case.get("tolerance", expectations.TOLERANCES[case["dtype"]])
    expectations.expect_scale(scale, wanted[-1], tolerance)


def _faults(case: Case, wanted: Sequence[Tensor]) -> expect.Faults:
    of_one = len(wanted) // (1 if case.get("shared") else case["towers"])
    ones = [torch.ones_like(gradient) for gradient in wanted]
    yield from {
        "they are those of plain accumulation, whose rows know only the negatives of their own "
        "micro-batch.": _observe(_accumulated, case)["gradients"][:-1],
        "what .grad held before is gone: like backward, add to it.": [g - 1 for g in wanted],
        "the first tower got none: go backward through each.": [*ones[:of_one], *wanted[of_one:]],
        "only the last tower is missing: go backward through each.": (
            [*wanted[:-of_one], *ones[-of_one:]]
        ),
        "each micro-batch went through all towers before the next one came, which draws other "
        "masks: run one tower over all its micro-batches, then the next.": (
            _observe(_in_turn, case)["gradients"][:-1]
        ),
    }.items()


def _judge_peak(case: Case, result: Result) -> None:
    few, many = (read.integer(result.get(name), f"peak of {name}") for name in _ROWS)
    more = _ROWS["many"] - _ROWS["few"]
    embeddings = 2 * more * case["features"] * 4
    states = 2 * more // case["micro_batch"] * (_STATE_BYTES + 4)
    allowed = 2 * embeddings + states  # the gradients are as large
    square, left = _ROWS["many"] ** 2 * 4, read.integer(result.get("left"), "bytes left behind")
    faults = {
        f"four times the batch, and the peak went from {few} to {many} bytes, by {many - few}: "
        f"embeddings, their gradients and the moments account for {allowed}. Which graph lives "
        "on?": many - few > 1.25 * allowed,
        f"{left} bytes stayed behind, and a matrix of all pairs has {square}: somebody holds on to "
        "the loss.": left >= square,
    }
    expect.no_fault(faults)


def _exam(answer: Callable[..., Any], case: Case) -> Result:
    chain, rows = exam.make(case)
    halves = list(rows.tensor_split(2))
    answer([chain, chain], halves, exam.HalfSquares(), len(rows) // 16)
    return exam.gradients(chain)


cached_backward = Check(
    "lab07.cached_backward",
    "7.6",
    "the whole batch's gradients, dropout included, in the memory of a micro-batch",
    _cases,
    _run,
    _judge,
    oracle=_right,
    exam=exam.of(_exam),
    forbidden=[models.NO_CHECKPOINT],
)
