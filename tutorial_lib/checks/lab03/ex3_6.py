"""The check of 3.6: checkpoint as a whole, beside PyTorch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib.checks import exam, expect, observe, outside, read
from tutorial_lib.checks.core import Answer, Case, Check, CheckError, Result
from tutorial_lib.checks.lab03 import chain


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {**chain.draw_case(draw, dropout=0.2), "num_blocks": 4, "input_needs_grad": False}
    return [
        {**case, "kind": "chain", "training": False},
        {**case, "kind": "nested", "num_blocks": 12, "group": 4},
        {**case, "kind": "call"},
        {**case, "kind": "not preserved"},
        {**case, "kind": "dead"},
        *(
            {**case, "kind": "differs", "how": how, "options": options, "words": words}
            for how, options, words in _DIFFERENCES
        ),
    ]


def _run(answer: Answer, case: Case) -> Result:
    return _RUNS[case["kind"]](answer, case)


def _exact(case: Case) -> Result:
    is_compared = case["kind"] in ("call", *_ADVICE)
    return _RUNS[case["kind"]](chain.torch_checkpoint, case) if is_compared else {}


def _chain(call: chain.Call, case: Case) -> Result:
    to_the_end = partial(call, early_stop=False)
    return chain.run_with_and_without_early_stop(call, to_the_end, case)


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


# what differs, the options, and what the error says: nothing where the recomputation may pass
_DIFFERENCES: list[tuple[str, dict[str, Any], str]] = [
    ("more", {"early_stop": False}, "trying to save more tensors during recomputation"),
    ("fewer", {}, "A different number of tensors was saved"),
    ("shape", {}, "different metadata"),
    ("dtype", {}, "different metadata"),
    ("operation", {}, ""),
    ("dtype", {"determinism_check": "none"}, ""),
    ("shape", {"debug": True}, "You are seeing this error because"),
]


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


def _dead(call: chain.Call, case: Case) -> Result:
    """Go backward through one of two results, when the other one and its slots are gone."""
    torch.manual_seed(case["seed"])
    kept = call(lambda x: [x.sin(), x.cos()], torch.randn(case["rows"], requires_grad=True))
    del kept[1]
    return {"said": observe.error_said(kept[0].sum().backward)}


_RUNS: dict[str, Callable[[chain.Call, Case], Result]] = {
    "chain": _chain,
    "nested": _chain,
    "call": _call,
    "not preserved": _not_preserved,
    "dead": _dead,
    "differs": _differs,
}


def _judge(case: Case, result: Result, exact: Result) -> None:
    kind = case["kind"]
    if kind == "differs":
        _judge_differs(case, result)
        return
    if kind == "dead":
        if said := str(result.get("said", "")):
            raise CheckError(
                f"one of two results was let go, backward through the other raised {said[:120]!r}, "
                "and the recomputation was the same: it stops when the last slot is filled, "
                "dead or alive."
            )
        return
    if kind == "not preserved":
        if read.flag(result, "random_state_kept"):
            raise CheckError(
                "preserve_rng_state=False was passed, and the recomputation kept the random state "
                "all the same: hand that option to remember_surroundings."
            )
        return
    if kind == "call":
        _judge_call(result, exact)
    if kind == "chain":
        _judge_chain(case, result, exact)
    chain.expect_gradients(result, exact["gradients"])
    if kind in _ADVICE:
        chain.expect_peak(result, exact["peak"], _ADVICE[kind])


_ADVICE = {
    "chain": "something beside the slots holds recomputed tensors.",
    "nested": "a checkpoint inside a checkpoint saves nothing while a closure holds its inputs: "
    "use save_arguments.",
}


def _judge_chain(case: Case, result: Result, exact: Result) -> None:
    number, wanted = case["num_blocks"], exact["ended_without_stop"]
    begun = outside.counts(result, "begun", number, "runs of each block")
    name = "ends of each block, with early_stop=False"
    ended = outside.counts(result, "ended_without_stop", number, name)
    faults = {
        "in eval mode nothing was checkpointed: gradients are on, so tensors are saved, and "
        "training flags have no say in it.": max(begun) < 2,
        f"the blocks ran {begun} times: one was recomputed in another's place. What a "
        "recomputation runs must belong to its own call.": min(begun) < 2,
        f"with early_stop=False the blocks came to their end {ended} times, and {wanted} are "
        "wanted: hand options.early_stop to the region.": ended != wanted,
    }
    expect.no_fault(faults)


def _judge_call(result: Result, exact: Result) -> None:
    events, wanted = result.get("events"), exact["events"]
    changed = result.get("output") != exact["output"]
    faults = {
        "where gradients are off, a context of context_fn was entered, and nothing is saved there: "
        "call the function and be done.": events == [*wanted[:-1], "forward", "run"],
        f"the contexts of context_fn and the function came in the order {events}, and {wanted} is "
        "wanted, the last run being the one without gradients.": events != wanted,
        "the function's result came back changed, a dict with a number in it.": changed,
    }
    expect.no_fault(faults)


def _judge_differs(case: Case, result: Result) -> None:
    said, how, words = str(result.get("said")), case["how"], case["words"]
    if not words:
        if said:
            raise CheckError(_MAY_PASS[how].format(said[:200]))
        return
    named = {"fewer": ["2", "1"], "more": ["2", "3"], "shape": ["(3,)", f"({case['rows']},)"]}
    named |= {"dtype": ["float64", "float32"]}
    missing = [word for word in named[how] if word not in said]
    if how in ("shape", "dtype") and "Backward" not in said:
        missing.append("the operation that made the tensor")
    debug, kept = "debug" in case["options"], read.flag(result, "random_state_kept")
    faults = {
        f"a recomputation that saved another thing ({how}) went through: call compare when it "
        "is over, which takes forward_is_done.": not said,
        "debug=True was passed, and the error does not name the first operation that differs: hand "
        "options.compare to the region.": debug and words not in said,
        f"the recomputation differed ({how}), and the error says {said[:200]!r}: the three "
        "messages of compare begin as those of the given one.": words not in said,
        f"the error for a recomputation that differs ({how}) does not name "
        f"{' and '.join(missing)}: whoever reads it must find the line at fault.": bool(missing),
        "the random state was left changed by a recomputation that failed.": not kept,
    }
    expect.no_fault(faults)


_MAY_PASS = {
    "operation": "another operation made a tensor of the same shape, dtype and device, and the "
    "error says {!r}: operations may differ, so compare what comes after them.",
    "dtype": 'determinism_check="none" was passed, and the error says {!r}: hand '
    "options.describe to the region, which gives nothing to compare then.",
}


checkpoint = Check(
    "lab03.checkpoint",
    "3.6",
    "gradients to the bit and peaks to the byte like PyTorch's, and errors that name",
    _cases,
    _run,
    _judge,
    oracle=_exact,
    exam=exam.of_checkpoint(),
    forbidden=[chain.NO_TORCH_CHECKPOINT],
)
