"""The check of 7.6: backward of a large batch, beside one large graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Result, check, expect, read

from . import expectations, given

_PASSED = "the whole batch's gradients, also with dropout, in the memory of one micro-batch"
_STATE_BYTES = 5056  # of the CPU's random generator; the meter sees them where they are cloned


def _cases(draw: Draw) -> Cases:
    seed, size = draw.randrange(10**6), draw.randint(4, 6)
    rows = 4 * size + draw.randint(1, 3)
    case: dict[str, Any] = {"seed": seed, "width": 12, "hidden": 256, "features": 16}
    case |= {"micro_batch": size, "towers": 2, "rows": rows, "dropout": 0.0}
    case |= {"kind": "gradients", "dtype": "float64", "tolerance": expect.EXACT}
    single = {**case, "dropout": 0.3, "dtype": "float32", "tolerance": 1e-6}
    yield {**case, "whole": True}
    yield {**case, "dropout": 0.3, "towers": 3, "moves": True}
    yield {**single, "shared": True}
    yield {**single, "autocast": True, "tolerance": 0.05}
    yield {**case, "frozen": True, "micro_batch": rows + 1}
    large = {"hidden": 2048, "dtype": "float32", "micro_batch": 4}
    yield {**case, **large, "kind": "peak", "of_rows": [24, 96]}
    refused = {**case, "kind": "refusal", "dropout": 0.3, "moves": True, "rows": 4 * size + 3}
    yield from ({**refused, **wrong} for wrong in _wrongs(4 * size + 3))


def _wrongs(rows: int) -> Cases:
    """Yield the changes of a case, why they are refused, and the names that the error must have."""

    def wrong(reason: str, *names: int | str, **another: Any) -> Case:
        return {**another, "refused": reason, "names": [*names]}

    uneven = "the towers get different numbers of rows, so some have no partner"
    yield wrong(uneven, rows, rows - 1, spoiled="uneven", towers=3)
    yield wrong("a batch of one row has no negatives", 1, rows=1)
    yield wrong("a batch of no rows has no pairs", 0, rows=0)
    yield wrong("a micro_batch of 0 rows is impossible", 0, micro_batch=0)
    yield wrong("a micro_batch of -1 rows is impossible", "-1", micro_batch=-1)
    norm = (
        "a BatchNorm in training takes its statistics from a micro-batch, and no second pass makes "
        "that the whole batch"
    )
    yield wrong(norm, "norm.1", spoiled="norm")
    yield wrong("the loss is not finite", "nan", spoiled="nan")
    yield wrong("finite embeddings gave an infinite loss", "inf", spoiled="inf")


Modules = Sequence[nn.Module]
Inputs = Sequence[Tensor]


def _one_graph(towers: Modules, inputs: Inputs, loss_of: nn.Module, size: int) -> float:
    """Go backward once from the loss of all rows, the towers run by micro-batches of `size`."""
    pairs = zip(towers, inputs, strict=True)
    loss = loss_of(*[torch.cat([tower(p) for p in torch.split(x, size)]) for tower, x in pairs])
    loss.backward()
    return float(loss.detach())


def _embedded_in_turn(towers: Modules, inputs: Inputs, size: int) -> list[list[Tensor]]:
    """Return the embeddings of each micro-batch, run through all towers before the next."""
    parts = zip(*[torch.split(rows, size) for rows in inputs], strict=True)
    return [[tower(part) for tower, part in zip(towers, ours, strict=True)] for ours in parts]


def _in_turn(towers: Modules, inputs: Inputs, loss_of: nn.Module, size: int) -> None:
    embeddings = zip(*_embedded_in_turn(towers, inputs, size), strict=True)
    loss_of(*map(torch.cat, embeddings)).backward()


def _accumulated(towers: Modules, inputs: Inputs, loss_of: nn.Module, size: int) -> None:
    """Accumulate the losses of the micro-batches: another loss, with fewer negatives."""
    for embeddings in _embedded_in_turn(towers, inputs, size):
        if len(embeddings[0]) > 1:
            (loss_of(*embeddings) * len(embeddings[0]) / len(inputs[0])).backward()


def _right(case: Case) -> Result:
    """Return the outcome of one large graph in a case of gradients."""
    if case["kind"] != "gradients":
        return {}
    size = case["rows"] if case.get("whole") else case["micro_batch"]
    return given.cached_backward.run(_one_graph, {**case, "micro_batch": size})


@check(given.cached_backward, _PASSED, _cases, oracle=_right)
def cached_backward(case: Case, result: Result, right: Result) -> None:
    if case["kind"] != "gradients":
        (_judge_peak if case["kind"] == "peak" else _judge_refusal)(case, result)
        return
    expect.unchanged(result)
    _judge_rows(case, result)
    expectations.expect_training_mode(result)
    _judge_gradients(case, result, *right["gradients"])
    expectations.expect_loss(result, right["loss"], 0.01)
    buffers = read.tensors(result["buffers"], len(right["buffers"]), "buffers")
    is_moved = not expect.same_bits(result["random_state"], right["random_state"])
    faults = {
        "a buffer is not as one forward of each micro-batch leaves it: it was counted "
        "twice, or put back too far.": not all(map(expect.same_bits, buffers, right["buffers"])),
        "the random state afterwards differs from what one forward of every micro-batch, tower "
        "after tower, leaves: the rest of the training would draw other numbers.": is_moved,
    }
    expect.no_fault(faults)


def _judge_rows(case: Case, result: Result) -> None:
    total = case["rows"] * (case["towers"] if case.get("shared") else 1)
    lists = [read.integers(rows, "rows") for rows in read.items(result["rows"], "rows")]
    sums, limit = list(map(sum, lists)), case["micro_batch"]
    most = max(map(max, filter(None, lists)), default=0)
    is_over = most > min(limit, case["rows"])
    faults = {
        f"{most} rows were in a tower at once, but micro_batch is {limit}.": is_over,
        "each row went through its tower once, so every graph was kept until the loss: embed "
        "without a graph, and run again to go backward.": all(seen == total for seen in sums),
        f"the towers saw {sums} rows, but each should see as many: push through all of them.": (
            len(set(sums)) > 1
        ),
        f"the towers saw {sums} rows, but each of {total} goes through twice: once to embed it, "
        "once to go backward. Is a micro-batch left out, or repeated?": sums[:1] != [2 * total],
    }
    expect.no_fault(faults)


def _judge_gradients(case: Case, result: Result, *wanted: Tensor) -> None:
    *seen, scale = read.tensors(result["gradients"], len(wanted), "gradients")
    traits = ("dropout", "moves", "shared", "autocast", "frozen")
    here = ", ".join(trait for trait in traits if case.get(trait))
    forgotten = case["dropout"] or case.get("moves")
    otherwise = "was the first pass given `remember`? If so, " if forgotten else ""
    otherwise += (
        f"each stage may be right: then look at what they pass on{f' (with {here})' * bool(here)}: "
        "which embeddings, which gradients, which moments."
    )
    faults, tolerance = _faults(case, wanted[:-1]), case["tolerance"]
    expectations.expect_gradients(seen, wanted[:-1], faults, otherwise, tolerance)
    expectations.expect_scale(scale, wanted[-1], tolerance)


def _faults(case: Case, wanted: Sequence[Tensor]) -> expect.Faults:
    accumulated, in_turn = (
        given.cached_backward.run(step, case)["gradients"][:-1] for step in (_accumulated, _in_turn)
    )
    yield from {
        "they are those of plain accumulation: each row sees only the negatives of its own "
        "micro-batch.": accumulated,
        "the old .grad is gone: add to it, as backward does.": [g - 1 for g in wanted],
        "you ran each micro-batch through all towers before the next one, which draws different "
        "masks: run one tower over all its micro-batches, then the next.": in_turn,
    }.items()


def _judge_peak(case: Case, result: Result) -> None:
    (few, many), (_, most) = expectations.read_peaks(result), case["of_rows"]
    more = most - case["of_rows"][0]
    embeddings = 2 * more * case["features"] * 4
    states = 2 * more // case["micro_batch"] * (_STATE_BYTES + 4)
    allowed = 2 * embeddings + states  # the gradients are as large
    square, left = most**2 * 4, read.integer(result["left"], "bytes left behind")
    faults = {
        f"four times the batch, and the peak went from {few} to {many} bytes, by {many - few}: "
        f"embeddings, their gradients and the moments account for {allowed}. Which graph is still "
        "held?": many - few > 1.25 * allowed,
        f"{left} bytes stayed behind, and a matrix of all pairs has {square}: something still "
        "holds the loss.": left >= square,
    }
    expect.no_fault(faults)


def _judge_refusal(case: Case, result: Result) -> None:
    is_late, reason = case.get("spoiled") in ("nan", "inf"), case["refused"]
    kind = FloatingPointError if is_late else ValueError
    expect.refuses(result["said"], kind, reason, case["names"])
    if is_late:
        expectations.expect_told_apart(result, case["spoiled"])
    changed = expect.changes(result)
    faults = {
        f"{reason}, the right error came, but this had changed: {changed}. Check before anything "
        "runs; where you can't, check inside undone_on_error.": bool(changed),
        f"{reason}, which you could see before a tower ran: check the arguments first.": not is_late
        and read.flag(result, "ran"),
    }
    expect.no_fault(faults)
