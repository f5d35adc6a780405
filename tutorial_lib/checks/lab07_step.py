"""The check of lab 07's last exercise (7.6): backward of a large batch, beside one large graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks import lab07_demands as demands
from tutorial_lib.checks import lab07_kept as kept
from tutorial_lib.checks import lab07_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab07_refusals import judge_refusal, refusal_cases, run_refusal
from tutorial_lib.checks.results import tensors, whole_number

_FEW, _MANY = 24, 96  # rows of which the peaks are compared
_STATE_BYTES = 5056  # of the CPU's random generator; the meter sees them where they are cloned


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "width": 12,
        "hidden": 256,
        "features": 16,
    }
    case |= {"micro_batch": draw.randint(4, 6), "towers": 2, "dropout": 0.0, "dtype": "float64"}
    case |= {"rows": 4 * case["micro_batch"] + draw.randint(1, 3), "kind": "gradients"}
    dropout = {**case, "dropout": 0.3, "dtype": "float32"}
    return [
        {**case, "whole": True},
        {**dropout, "moves": True},
        {**dropout, "dtype": "float64", "towers": 3},
        {**dropout, "shared": True},
        {**dropout, "autocast": True, "tolerance": 0.05},
        {**case, "frozen": True, "micro_batch": case["rows"] + 1},
        {**case, "kind": "peak", "hidden": 2048, "dtype": "float32", "micro_batch": 4},
        *({**case, **refusal} for refusal in refusal_cases(case["micro_batch"])),
    ]


def make(case: Case) -> tuple[list[nn.Module], list[Tensor], oracles.InBatch]:
    """Build towers, inputs and the loss of a case."""
    torch.manual_seed(case["seed"])
    number, dtype = case["towers"], oracles.dtype_of(case)
    norms = [nn.BatchNorm1d(case["hidden"]).eval() if case.get("frozen") else None] * number
    towers: list[nn.Module] = [oracles.tower_of(case, norm=norm) for norm in norms]
    towers = towers[:1] * number if case.get("shared") else towers
    loss_of = oracles.InBatch().to(dtype)
    oracles.add_gradients(loss_of)
    inputs = torch.randn(number, case["rows"], case["width"], dtype=dtype)
    torch.manual_seed(case["seed"] + 1)
    return towers, list(inputs.unbind()), loss_of


def _autocast(case: Case) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(case.get("autocast")))


def _observe(
    backward: Callable[..., Any], case: Case
) -> tuple[dict[str, Any], list[oracles.CountingTower]]:
    towers, inputs, loss_of = make(case)
    once: list[Any] = list(dict.fromkeys(towers))
    before = kept.note([*once, loss_of], inputs)
    with _autocast(case):
        loss = backward(towers, inputs, loss_of, case["micro_batch"])
    after = kept.note([*once, loss_of], inputs)
    return {
        "changed": kept.changed(before, after, but=["gradients", "buffers", "random state"]),
        "loss": loss,
        "gradients": oracles.gradients_of([*once, loss_of]),
        "random_state": torch.get_rng_state(),
        "buffers": [buffer for tower in once for buffer in tower.buffers()],
    }, once


def _run(answer: Callable[..., Any], case: Case) -> Result:
    with oracles.without_torchs():
        if case["kind"] == "peak":
            (few, _), (many, left) = (_peak(answer, case, rows) for rows in (_FEW, _MANY))
            return {"few": few, "many": many, "left": left}
        if case["kind"] == "refusal":
            return run_refusal(answer, case, make(case))
        seen, towers = _observe(answer, case)
    if not isinstance(seen["loss"], float):
        raise CheckError(f"the loss comes as {type(seen['loss']).__name__}: a float is wanted.")
    return {**seen, "runs": [tower.runs for tower in towers]}


def _peak(answer: Callable[..., Any], case: Case, rows: int) -> tuple[int, int]:
    towers, inputs, loss_of = make({**case, "rows": rows})
    call = (towers, inputs, loss_of, case["micro_batch"])
    return oracles.peak_and_rest_of(lambda: answer(*call), [*towers, loss_of])


def _one_graph(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> float:
    """Go backward once from the loss of all rows, the towers run by micro-batches of `size`."""
    parts = [torch.split(rows, size) for rows in inputs]
    pairs = zip(towers, parts, strict=True)
    loss = loss_of(*[torch.cat([tower(part) for part in ours]) for tower, ours in pairs])
    loss.backward()
    return float(loss.detach())


def _in_turn(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> float:
    """Do as `_one_graph`, with each micro-batch through all towers before the next."""
    parts = zip(*[torch.split(rows, size) for rows in inputs], strict=True)
    out = [[tower(part) for tower, part in zip(towers, ours, strict=True)] for ours in parts]
    loss_of(*map(torch.cat, zip(*out, strict=True))).backward()
    return 0.0


def _accumulated(
    towers: Sequence[nn.Module], inputs: Sequence[Tensor], loss_of: nn.Module, size: int
) -> float:
    """Accumulate the losses of the micro-batches: another loss, with fewer negatives."""
    rows = len(inputs[0])
    for parts in zip(*[torch.split(rows, size) for rows in inputs], strict=True):
        if len(parts[0]) > 1:
            out = [tower(part) for tower, part in zip(towers, parts, strict=True)]
            (loss_of(*out) * len(parts[0]) / rows).backward()
    return 0.0


def _judge(case: Case, result: Result) -> None:
    if case["kind"] == "refusal":
        judge_refusal(case, result)
        return
    if case["kind"] == "peak":
        _judge_peak(case, result)
        return
    kept.demand_kept(result)
    _judge_runs(case, result)
    whole = {**case, "micro_batch": case["rows"]} if case.get("whole") else case
    exact, _ = _observe(_one_graph, whole)
    _judge_gradients(case, result, exact)
    demands.demand_loss(result, exact["loss"], 0.01)
    buffers = result.get("buffers")
    if not isinstance(buffers, list) or not all(map(_equal, buffers, exact["buffers"])):
        raise CheckError(
            "a buffer is not what one forward of each micro-batch makes of it: it was counted "
            "twice, or put back too far."
        )
    if not _equal(result.get("random_state"), exact["random_state"]):
        raise CheckError(
            "the random state afterwards is not that of one forward of every micro-batch, tower "
            "after tower: the rest of the training would draw other numbers."
        )


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and one.shape == other.shape and torch.equal(one, other)


def _judge_runs(case: Case, result: Result) -> None:
    all_runs = result.get("runs")
    if not isinstance(all_runs, list):
        raise CheckError("runs: a list for each tower is wanted, and something else came.")
    total = case["rows"] * (case["towers"] if case.get("shared") else 1)
    sums = [_rows_of(case, number, runs) for number, runs in enumerate(all_runs)]
    if all(seen == total for seen in sums):
        raise CheckError(
            "each row went through its tower once, so every graph was there until the loss was: "
            "embed without a graph, and run again to go backward."
        )
    if len(set(sums)) > 1:
        raise CheckError(
            f"the towers saw {sums} rows, and each should see as many: push through all of them."
        )
    if any(seen != 2 * total for seen in sums):
        raise CheckError(
            f"the towers saw {sums} rows, and each of {total} goes through exactly twice: once to "
            "embed it, once to go backward. Is a micro-batch left out, or run once more?"
        )
    for runs in all_runs:
        demands.demand_training_mode(runs)


def _rows_of(case: Case, number: int, runs: Any) -> int:
    seen = demands.rows_at_once(runs)
    if max(seen, default=0) > min(case["micro_batch"], case["rows"]):
        raise CheckError(
            f"{max(seen)} rows were in tower {number} at once, and micro_batch is "
            f"{case['micro_batch']}."
        )
    return sum(seen)


def _judge_gradients(case: Case, result: Result, exact: dict[str, Any]) -> None:
    *wanted, of_scale = exact["gradients"]
    *seen, scale = tensors(result.get("gradients"), len(wanted) + 1, "gradients")

    def those_of(other: Callable[..., float]) -> list[Tensor | None]:
        return list(_observe(other, case)[0]["gradients"][:-1])

    def untouched(which: int) -> list[Tensor | None]:
        once = list(dict.fromkeys(make(case)[0]))
        left = list(wanted)
        start = sum(len(list(tower.parameters())) for tower in once[:which])
        number = len(list(once[which].parameters()))
        left[start : start + number] = [torch.ones_like(g) for g in left[start : start + number]]
        return left

    mistakes: dict[str, Callable[[], Sequence[Tensor | None]]] = {
        "they are those of plain accumulation, whose rows know only the negatives of their own "
        "micro-batch.": lambda: those_of(_accumulated),
        "what .grad held before is gone: like backward, add to it.": (
            lambda: [None if g is None else g - 1 for g in wanted]
        ),
        "the first tower got none: go backward through each.": lambda: untouched(0),
        "only the last tower is missing: go backward through each.": lambda: untouched(-1),
        "each micro-batch went through all towers before the next one came, which draws other "
        "masks: run one tower over all its micro-batches, then the next.": (
            lambda: those_of(_in_turn)
        ),
    }
    where = [
        name for name in ("dropout", "moves", "shared", "autocast", "frozen") if case.get(name)
    ]
    told = f" (with {', '.join(where)})" if where else ""
    forgotten = case["dropout"] or case.get("moves")
    otherwise = "was the first pass given `remember`? If so, " if forgotten else ""
    otherwise += (
        f"each stage may be right, and then it is what they hand on{told}: which embeddings, which "
        "gradients, which moments."
    )
    demands.demand_close({"gradients": seen}, wanted, case, mistakes, lambda _: otherwise)
    tolerance = case.get("tolerance", demands.TOLERANCES[case["dtype"]])
    demands.demand_scale(scale, of_scale, tolerance)


def _judge_peak(case: Case, result: Result) -> None:
    few, many = (whole_number(result.get(name), f"peak of {name}") for name in ("few", "many"))
    more = _MANY - _FEW
    embeddings = 2 * more * case["features"] * 4
    states = 2 * more // case["micro_batch"] * (_STATE_BYTES + 4)
    allowed = 2 * embeddings + states  # the gradients are as large
    if many - few > 1.25 * allowed:
        raise CheckError(
            f"four times the batch, and the peak went from {few} to {many} bytes, by "
            f"{many - few}: embeddings, their gradients and the moments account for {allowed}. "
            "Which graph lives on?"
        )
    square = _MANY**2 * 4
    if whole_number(result.get("left"), "bytes left behind") >= square:
        raise CheckError(
            f"{result.get('left')} bytes stayed behind, and a matrix of all pairs has {square}: "
            "somebody holds on to the loss."
        )


cached_backward = Check(
    name="lab07.cached_backward",
    exercise="7.6",
    passed="the whole batch's gradients, dropout included, in the memory of a micro-batch",
    cases=_cases,
    run=_run,
    judge=_judge,
)
