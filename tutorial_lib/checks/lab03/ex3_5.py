"""The check of 3.5: a region with several backwards and early stop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from tutorial_lib.checks import exam, expect, observe, outside, read
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.lab03 import chain


class _Keep(torch.autograd.Function):
    """Has autograd keep tensors, for as long as the output lives."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _ReadTwice(torch.autograd.Function):
    """Squares, and reads what it saved twice in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (first,), (second,) = ctx.saved_tensors, ctx.saved_tensors
        product: Tensor = grad * (first + second)
        return product


def _through(region_class: Callable[..., Any], *, early_stop: bool = True) -> chain.Call:
    """Call functions of tensors through regions of a class."""

    def call(function: Callable[..., Any], *tensors: Tensor) -> Any:
        anchor = torch.empty(0, requires_grad=True)
        keeper: Any = _Keep.apply(anchor, *tensors)  # type: ignore[no-untyped-call]

        def run(*again: Tensor) -> None:
            function(*again)

        region = region_class(run, lambda: (keeper.grad_fn.saved_tensors, {}), early_stop)
        with saved_tensors_hooks(region.pack, region.unpack):
            output = function(*tensors)
        region.forward_is_done = True
        return output

    return call


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {**chain.draw_case(draw), "num_blocks": 4, "input_needs_grad": True}
    return [{**case, "kind": kind} for kind in _RUNS]


def _run(answer: Answer, case: Case) -> Result:
    return _RUNS[case["kind"]](_through(answer), _through(answer, early_stop=False), case)


def _exact(case: Case) -> Result:
    run = _RUNS[case["kind"]]
    return run(chain.torch_checkpoint, chain.torch_without_early_stop, case)


def _passes(stopping: chain.Call, to_the_end: chain.Call, case: Case) -> Result:
    """Go backward four times: for one weight, for all, for one output and then for the other."""
    (left, right, *_), x, gate = chain.make_chain(case)

    def both(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        return left(x, gate).square().mean(), right(x, gate).square().mean()

    first, second = stopping(both, x, gate)
    weights, others = [*left.parameters()], [*right.parameters()]
    gradients = [*torch.autograd.grad(second, [right.wide.weight], retain_graph=True)]
    # What a backward that asks for one weight leaves in the slots is PyTorch's own behaviour.
    with memory.watch() as report:
        gradients += torch.autograd.grad(first + second, weights + others, retain_graph=True)
    stayed = chain.stayed_bytes(report)
    gradients += torch.autograd.grad(first, weights)
    with memory.watch() as report:
        gradients += torch.autograd.grad(second, others)
    return {
        "gradients": gradients,
        "begun": [left.begun, right.begun],
        "stayed": stayed,
        "peak": report.peak_bytes - report.baseline_bytes,
    }


def _inside(stopping: chain.Call, to_the_end: chain.Call, case: Case) -> Result:
    """Go backward inside the function, and twice through it."""
    gradients: list[Tensor | None] = []
    for call in (stopping, to_the_end):
        (block, other, *_), x, gate = chain.make_chain(case)

        def penalised(x: Tensor, gate: Tensor, block: Any = block, other: Any = other) -> Tensor:
            h = block(x, gate)
            (slope,) = torch.autograd.grad(h.square().sum(), x, create_graph=True)
            y: Tensor = other(h, gate).square().sum() + slope.square().sum()
            return y

        call(penalised, x, gate).backward()
        gradients += [x.grad, *(p.grad for p in block.parameters())]
    return {"gradients": gradients}


def _twice(stopping: chain.Call, to_the_end: chain.Call, case: Case) -> Result:
    """Go backward through a function that reads its saved tensor twice."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    squared: Any = stopping(_ReadTwice.apply, x).sum()
    return {"said": observe.error_said(squared.backward, "CheckpointError")}


def _dead(stopping: chain.Call, to_the_end: chain.Call, case: Case) -> Result:
    """Go backward through one of two results, when the other one and its slots are gone."""
    (left, right, *_), x, gate = chain.make_chain(case)

    def both(x: Tensor, gate: Tensor) -> list[Tensor]:
        return [left(x, gate).square().mean(), right(x, gate).square().mean()]

    kept = stopping(both, x, gate)
    del kept[1]
    kept[0].backward()
    return {"gradients": [p.grad for p in left.parameters()], "begun": [left.begun, right.begun]}


_RUNS: dict[str, Callable[[chain.Call, chain.Call, Case], Result]] = {
    "chain": chain.run_with_and_without_early_stop,
    "passes": _passes,
    "inside": _inside,
    "twice": _twice,
    "dead": _dead,
}


def _judge(case: Case, result: Result, exact: Result) -> None:
    if case["kind"] == "twice":
        _judge_twice(str(result.get("said")))
        return
    if "begun" in exact:
        wanted = exact["begun"]
        begun = outside.counts(result, "begun", len(wanted), "runs of each block")
        if begun != wanted and case["kind"] == "dead":
            raise CheckError(
                f"the blocks ran {begun} times, and {wanted} are wanted: the last slot is dead "
                "there, and the recomputation goes on to its number all the same, since 3.6 "
                "compares all that it saves."
            )
        if begun != wanted:
            side = "once for each backward" if max(begun) > max(wanted) else "for each backward"
            raise CheckError(
                f"the blocks ran {begun} times, and {wanted} are wanted: recompute {side}, "
                "and note its name in recomputed_for."
            )
    if case["kind"] == "chain":
        _judge_early_stop(case, result)
    chain.expect_gradients(result, exact["gradients"])
    stayed = read.integer(result.get("stayed", 0), "recomputed bytes that stayed")
    if stayed and case["kind"] == "passes":
        raise CheckError(
            f"{stayed} recomputed bytes stayed after a backward with retain_graph, and none need "
            "to: unpack takes the tensor out of its slot."
        )
    if "peak" in exact:
        advice = {
            "passes": "half of the graph is freed there, and its slots with it: fill only slots "
            "that are alive, and hold none yourself.",
            "chain": "does anything beside its slot hold a recomputed tensor?",
        }
        chain.expect_peak(result, exact["peak"], advice[case["kind"]])


def _judge_early_stop(case: Case, result: Result) -> None:
    ended, without = (
        read.integers(result.get(key), f"ends of each block{note}", case["num_blocks"])
        for key, note in (("ended", ""), ("ended_without_stop", ", with early_stop=False"))
    )
    faults = {
        f"the blocks came to their end {ended} times, and once is enough: stop when the last "
        "slot is filled.": max(ended) > 1,
        f"with early_stop=False the blocks came to their end {without} times: the whole "
        "function is to be run again then.": min(without) < 2,
    }
    expect.no_fault(faults)


def _judge_twice(said: str) -> None:
    faults = {
        "a backward read the same saved tensor twice, and your region gave it out twice: raise "
        "CheckpointError where this backward has taken it out before.": not said,
        "a backward read the same saved tensor twice, and the error was "
        f"{said[:100]!r}: look into the slot before you take out, and raise CheckpointError "
        "where nothing is there.": not said.startswith("CheckpointError"),
    }
    expect.no_fault(faults)


region = Check(
    "lab03.region",
    "3.5",
    "one recomputation a backward, nothing kept, early stop",
    _cases,
    _run,
    _judge,
    oracle=_exact,
    exam=exam.of_checkpoint(_through),
    forbidden=[chain.NO_TORCH_CHECKPOINT],
)
