"""The halves that run the answers to 3.5 and 3.6; their runs take PyTorch's checkpoint too."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tutorial_lib import memory
from tutorial_lib.checks.given import Answer, Case, CheckError, Result, exam, observe, run_half

from . import chain


class _Keep(torch.autograd.Function):
    """Has autograd keep tensors, for as long as the output lives."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _ReadTwice(torch.autograd.Function):
    """Squares, and reads its saved tensor twice in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (first,), (second,) = ctx.saved_tensors, ctx.saved_tensors
        product: Tensor = grad * (first + second)
        return product


def _through(region_class: Callable[..., Any]) -> chain.Call:
    """Call functions of tensors through regions of a class."""

    def call(function: Callable[..., Any], *tensors: Tensor, early_stop: bool = True) -> Any:
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


@run_half("3.5", forbidden=[chain.NO_TORCH_CHECKPOINT], exam=exam.of_checkpoint(_through))
def region(answer: Answer, case: Case) -> Result:
    try:
        return REGION_RUNS[case["kind"]](_through(answer), case)
    except (IndexError, KeyError) as error:
        words = "has each number in fill a slot, and each slot in unpack a tensor?"
        raise CheckError(f"{type(error).__name__}: {error}: {words}") from error


def _passes(call: chain.Call, case: Case) -> Result:
    """Go backward four times: for one weight, for all, for one output and then for the other."""
    (left, right, *_), x, gate = chain.make_chain(case)

    def both(x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        return left(x, gate).square().mean(), right(x, gate).square().mean()

    first, second = call(both, x, gate)
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


def _inside(call: chain.Call, case: Case) -> Result:
    """Go backward inside the function, and twice through it."""
    gradients: list[Tensor | None] = []
    for early_stop in (True, False):
        (block, other, *_), x, gate = chain.make_chain(case)

        def penalised(x: Tensor, gate: Tensor, block: Any = block, other: Any = other) -> Tensor:
            h = block(x, gate)
            (slope,) = torch.autograd.grad(h.square().sum(), x, create_graph=True)
            y: Tensor = other(h, gate).square().sum() + slope.square().sum()
            return y

        call(penalised, x, gate, early_stop=early_stop).backward()
        gradients += [x.grad, *(p.grad for p in block.parameters())]
    return {"gradients": gradients}


def _twice(call: chain.Call, case: Case) -> Result:
    """Go backward through a function that reads its saved tensor twice."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    squared: Any = call(_ReadTwice.apply, x).sum()
    return {"said": observe.error_said(squared.backward, "CheckpointError")}


def _one_dead(call: chain.Call, case: Case) -> Result:
    """Go backward through one of two results, when the other one and its slots are gone."""
    (left, right, *_), x, gate = chain.make_chain(case)

    def both(x: Tensor, gate: Tensor) -> list[Tensor]:
        return [left(x, gate).square().mean(), right(x, gate)]

    kept = call(both, x, gate)
    del kept[1]
    kept[0].backward()
    counts = {"begun": [left.begun, right.begun], "ended": [left.ended, right.ended]}
    return {"gradients": [p.grad for p in left.parameters()], **counts}


REGION_RUNS: dict[str, Callable[[chain.Call, Case], Result]] = {
    "chain": chain.run_with_and_without_early_stop,
    "passes": _passes,
    "inside": _inside,
    "twice": _twice,
    "dead": _one_dead,
}


@run_half("3.6", forbidden=[chain.NO_TORCH_CHECKPOINT], exam=exam.of_checkpoint())
def checkpoint(answer: Answer, case: Case) -> Result:
    chains = dict.fromkeys(("chain", "nested"), chain.run_with_and_without_early_stop)
    runs = {"call": _call, "not preserved": _not_preserved, "dead": _dead, "differs": _differs}
    return (chains | runs)[case["kind"]](answer, case)


def _call(call: chain.Call, case: Case) -> Result:
    """Call with containers, keywords, contexts and autocast; and where gradients are off."""
    torch.manual_seed(case["seed"])
    linear, x = nn.Linear(case["width"], 4), torch.randn(case["rows"], case["width"])
    scale, events = torch.rand(4, requires_grad=True), []

    @contextlib.contextmanager
    def noted(event: str) -> Iterator[None]:
        events.append(event)
        yield

    def function(inputs: dict[str, Tensor], *, scales: list[Tensor], power: int) -> dict[str, Any]:
        events.append("run")
        return {"y": (linear(inputs["x"]) * scales[0]).tanh() ** power, "power": power}

    contexts = partial(map, noted, ("forward", "again"))
    with torch.autocast("cpu", torch.bfloat16):
        output = call(function, {"x": x}, scales=[scale], power=3, context_fn=contexts)
    output["y"].sum().backward()
    with torch.no_grad():
        quiet = call(function, {"x": x}, scales=[scale], power=3, context_fn=contexts)
    return {
        "gradients": [linear.weight.grad, linear.bias.grad, scale.grad],
        "events": events,
        "output": [output["power"], quiet["power"]],
    }


def _not_preserved(call: chain.Call, case: Case) -> Result:
    """Tell whether a recomputation draws on, as it should where the state is not to be kept."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    output = call(lambda x: nn.functional.dropout(x).sin(), x, preserve_rng_state=False)
    before = torch.get_rng_state()
    output.sum().backward()
    return {"random_state_kept": torch.equal(before, torch.get_rng_state())}


def _dead(call: chain.Call, case: Case) -> Result:
    """Go backward through one of two results; the other, its slots and the argument are gone."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    kept = call(lambda held: [held[0].sin(), held.pop().cos()], [x])
    del kept[1]
    return {"said": observe.error_said(kept[0].sum().backward)}


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "in forward": lambda x: x.sin().cos(),
    "fewer": lambda x: x.sin(),
    "more": lambda x: x.sin().cos().tanh(),
    "shape": lambda x: x[:3].sin().cos(),
    "dtype": lambda x: x.double().sin().cos(),
    "operation": lambda x: x.cos().cos(),
}


def _differs(call: chain.Call, case: Case) -> Result:
    """Recompute something else; gives the error."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)
    runs: list[str] = []

    def function(x: Tensor) -> Tensor:
        runs.append(case["how"] if runs else "in forward")
        return _FUNCTIONS[runs[-1]](x)

    said, before = "", torch.get_rng_state()
    try:
        call(function, x, **case["options"]).sum().backward()
    except RuntimeError as error:
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "random_state_kept": torch.equal(before, torch.get_rng_state())}
