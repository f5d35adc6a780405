"""The check of lab 03's region (3.5): several backwards, early stop, nesting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from tutorial_lib.checks import lab03_oracles as oracles
from tutorial_lib.checks import results
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.running import error_said


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


def _through(region_class: Callable[..., Any], *, early_stop: bool = True) -> oracles.Call:
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
    case = {"seed": draw.randrange(10**6), "width": draw.choice([24, 32]), "dropout": 0.0}
    case |= {"rows": draw.randint(40, 60), "num_blocks": 4, "input_needs_grad": True}
    nested = {"nested": {"group": 2}}
    return [{**case, **nested.get(kind, {}), "kind": kind} for kind in _RUNS]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    with oracles.without_torchs():
        return _RUNS[case["kind"]](_through(answer), _through(answer, early_stop=False), case)


def _oracle(case: Case) -> Result:
    return _RUNS[case["kind"]](oracles.torch_checkpoint, oracles.torch_to_the_end, case)


def _chain(stopping: oracles.Call, to_the_end: oracles.Call, case: Case) -> Result:
    ended = oracles.observe(to_the_end, case)["ended"]
    return {**oracles.observe(stopping, case), "ended_without_stop": ended}


def _passes(stopping: oracles.Call, to_the_end: oracles.Call, case: Case) -> Result:
    """Go backward four times: for one weight, for all, for one output and then for the other."""
    (left, right, *_), x, gate = oracles.chain_of(case)

    def both(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        return left(x, gate).square().mean(), right(x, gate).square().mean()

    first, second = stopping(both, x, gate)
    weights, others = [*left.parameters()], [*right.parameters()]
    gradients = [*torch.autograd.grad(second, [right.wide.weight], retain_graph=True)]
    # What a backward that asks for one weight leaves in the slots is PyTorch's own behaviour.
    with memory.watch() as report:
        gradients += torch.autograd.grad(first + second, weights + others, retain_graph=True)
    stayed = oracles.stayed(report)
    gradients += torch.autograd.grad(first, weights)
    with memory.watch() as report:
        gradients += torch.autograd.grad(second, others)
    return {
        "gradients": gradients,
        "begun": [left.begun, right.begun],
        "stayed": stayed,
        "peak": report.peak_bytes - report.baseline_bytes,
    }


def _inside(stopping: oracles.Call, to_the_end: oracles.Call, case: Case) -> Result:
    """Go backward inside the function, and twice through it."""
    gradients: list[Tensor | None] = []
    for call in (stopping, to_the_end):
        (block, other, *_), x, gate = oracles.chain_of(case)

        def penalised(x: Tensor, gate: Tensor, block: Any = block, other: Any = other) -> Tensor:
            h = block(x, gate)
            (slope,) = torch.autograd.grad(h.square().sum(), x, create_graph=True)
            y: Tensor = other(h, gate).square().sum() + slope.square().sum()
            return y

        call(penalised, x, gate).backward()
        gradients += [x.grad, *(p.grad for p in block.parameters())]
    return {"gradients": gradients}


def _twice(stopping: oracles.Call, to_the_end: oracles.Call, case: Case) -> Result:
    """Go backward through a function that reads its saved tensor twice."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    squared: Any = stopping(_ReadTwice.apply, x).sum()
    return {"said": error_said(squared.backward)}


_RUNS: dict[str, Callable[[oracles.Call, oracles.Call, Case], Result]] = {
    "chain": _chain,
    "passes": _passes,
    "nested": _chain,
    "inside": _inside,
    "twice": _twice,
}


def _judge(case: Case, result: Result) -> None:
    if case["kind"] == "twice":
        _judge_twice(str(result.get("said")))
        return
    exact = _oracle(case)
    if "begun" in exact:
        wanted = exact["begun"]
        begun = results.counts(result.get("begun"), len(wanted), "runs of each block")
        if begun != wanted:
            side = "once for each backward" if max(begun) > max(wanted) else "for each backward"
            raise CheckError(
                f"the blocks ran {begun} times, and {wanted} are wanted: recompute {side}, "
                "and note its name in recomputed_for."
            )
    if case["kind"] == "chain":
        _judge_early_stop(result, exact)
    oracles.demand_gradients(result, exact)
    if result.get("stayed", 0) != 0:
        raise CheckError(
            f"{result.get('stayed')} recomputed bytes stayed after a backward with retain_graph, "
            "and none need to: unpack takes the tensor out of its slot."
        )
    if "peak" in exact:
        advice = {
            "passes": "half of the graph is freed there, and its slots with it: fill only slots "
            "that are alive, and hold none yourself.",
            "nested": "does anything but its slot hold what an outer region recomputed?",
            "chain": "does anything beside its slot hold a recomputed tensor?",
        }
        oracles.demand_peak(result, exact, advice[case["kind"]])


def _judge_early_stop(result: Result, exact: Result) -> None:
    ended = results.counts(result.get("ended"), len(exact["ended"]), "ends of each block")
    if max(ended) > 1:
        raise CheckError(
            f"the blocks came to their end {ended} times, and once is enough: stop when the last "
            "slot is filled."
        )
    without = results.counts(
        result.get("ended_without_stop"), len(ended), "ends of each block, with early_stop=False"
    )
    if min(without) < 2:
        raise CheckError(
            f"with early_stop=False the blocks came to their end {without} times: the whole "
            "function is to be run again then."
        )


def _judge_twice(said: str) -> None:
    if not said:
        raise CheckError(
            "a backward read the same saved tensor twice, and your region gave it out twice: raise "
            "CheckpointError where this backward has taken it out before."
        )
    if not said.startswith("CheckpointError"):
        raise CheckError(
            f"a backward read the same saved tensor twice, and the error was {said[:100]!r}: look "
            "into the slot before you take out, and raise CheckpointError where nothing is there."
        )


region = Check(
    name="lab03.region",
    exercise="3.5",
    passed="one recomputation a backward, nothing kept, early stop, nesting like PyTorch's",
    cases=_cases,
    run=_run,
    judge=_judge,
)
