"""The check of lab 03's last exercise (3.6): checkpoint as a whole, beside PyTorch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_lib import memory
from tutorial_lib.checks import lab03_oracles as oracles
from tutorial_lib.checks import results
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.models.gpt import GPT, GPTConfig


def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case = {"seed": draw.randrange(10**6), "width": draw.choice([24, 32]), "dropout": 0.2}
    case |= {"rows": draw.randint(40, 60), "num_blocks": 4, "input_needs_grad": False}
    gpt = {"seq_len": draw.choice([16, 24]), "num_layers": 3, "num_heads": 2, "d_model": 32}
    return [
        {**case, "kind": "chain", "training": True},
        {**case, "kind": "chain", "training": False},
        {**case, "kind": "nested", "num_blocks": 12, "group": 4},
        {**case, "kind": "gpt", "config": {**gpt, "dropout": 0.1}, "autocast": draw.random() < 0.5},
        {**case, "kind": "call"},
        {**case, "kind": "not preserved"},
        *(
            {**case, "kind": "differs", "how": how, "options": options, "words": words}
            for how, options, words in _DIFFERENCES
        ),
    ]


def _run(answer: Callable[..., Any], case: Case) -> Result:
    with oracles.without_torchs():
        return _RUNS[case["kind"]](answer, case)


def _oracle(case: Case) -> Result:
    return _RUNS[case["kind"]](oracles.torch_checkpoint, case)


def _chain(call: oracles.Call, case: Case) -> Result:
    to_the_end = oracles.observe(partial(call, early_stop=False), case)["ended"]
    return {**oracles.observe(call, case), "ended_without_stop": to_the_end}


def _gpt(call: oracles.Call, case: Case) -> Result:
    torch.manual_seed(case["seed"])
    gpt = GPT(GPTConfig(**case["config"]))
    tokens = torch.randint(0, 256, (case["rows"] // 8, case["config"]["seq_len"]))
    for block in gpt.blocks:
        block.forward = partial(call, block.forward)
    with memory.watch(model=gpt) as report:
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            loss = gpt.loss(tokens)
        loss.backward()  # type: ignore[no-untyped-call]
    peak = report.peak_bytes - report.baseline_bytes
    return {"gradients": [p.grad for p in gpt.parameters()], "peak": peak}


def _call(call: oracles.Call, case: Case) -> Result:
    """Call with containers, keywords and contexts; and where gradients are off."""
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
    output = call(function, {"x": x}, scales=[scale], power=3, context_fn=contexts)
    output["y"].sum().backward()
    with torch.no_grad():
        quiet = call(function, {"x": x}, scales=[scale], power=3)
    return {
        "gradients": [linear.weight.grad, linear.bias.grad, scale.grad],
        "events": events,
        "output": [output["power"], quiet["power"]],
    }


def _not_preserved(call: oracles.Call, case: Case) -> Result:
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


def _differs(call: oracles.Call, case: Case) -> Result:
    """Recompute something else; gives the error."""
    torch.manual_seed(case["seed"])
    x = torch.randn(case["rows"], requires_grad=True)

    def fickle(runs: list[int], x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) == 1:
            return x.sin().cos()
        others = {
            "fewer": lambda: x.sin(),
            "more": lambda: x.sin().cos().tanh(),
            "shape": lambda: x[:3].sin().cos(),
            "dtype": lambda: x.double().sin().cos(),
            "operation": lambda: x.cos().cos(),
        }
        again: Tensor = others[case["how"]]()
        return again

    runs: list[int] = []
    said = ""
    before = torch.get_rng_state()
    try:
        call(lambda x: fickle(runs, x), x, **case["options"]).sum().backward()
    except RuntimeError as error:
        said = f"{type(error).__name__}: {error}"
    kept = torch.equal(before, torch.get_rng_state())
    return {"said": said, "random_state_kept": kept}


_RUNS: dict[str, Callable[[oracles.Call, Case], Result]] = {
    "chain": _chain,
    "nested": _chain,
    "gpt": _gpt,
    "call": _call,
    "not preserved": _not_preserved,
    "differs": _differs,
}


def _judge(case: Case, result: Result) -> None:
    if case["kind"] == "differs":
        _judge_differs(case, result)
        return
    if case["kind"] == "not preserved":
        if results.flag(result, "random_state_kept"):
            raise CheckError(
                "preserve_rng_state=False was passed, and the recomputation kept the random state "
                "all the same: hand that argument to remember_surroundings."
            )
        return
    exact = _oracle(case)
    if case["kind"] == "call":
        _judge_call(result, exact)
        return
    if case["kind"] == "chain":
        _judge_chain(case, result, exact)
    oracles.demand_gradients(result, exact)
    advice = {
        "chain": "something beside the slots holds recomputed tensors.",
        "gpt": "GPT's blocks keep more than their inputs.",
        "nested": "a checkpoint inside a checkpoint saves nothing while a closure holds its "
        "inputs: use save_arguments.",
    }
    oracles.demand_peak(result, exact, advice[case["kind"]])


def _judge_chain(case: Case, result: Result, exact: Result) -> None:
    number = case["num_blocks"]
    begun = results.counts(result.get("begun"), number, "runs of each block")
    ended = results.counts(
        result.get("ended_without_stop"), number, "ends of each block, with early_stop=False"
    )
    if max(begun) < 2 and not case["training"]:
        raise CheckError(
            "in eval mode nothing was checkpointed: gradients are on, so tensors are saved, and "
            "training flags have no say in it."
        )
    if min(begun) < 2:
        raise CheckError(
            f"the blocks ran {begun} times: one was recomputed in another's place. What a "
            "recomputation runs must belong to its own call."
        )
    if ended != exact["ended_without_stop"]:
        raise CheckError(
            f"with early_stop=False the blocks came to their end {ended} times, and "
            f"{exact['ended_without_stop']} are wanted: hand early_stop to the region."
        )


def _judge_call(result: Result, exact: Result) -> None:
    events = result.get("events")
    if events != exact["events"]:
        raise CheckError(
            f"the contexts of context_fn and the function came in the order {events}, and "
            f"{exact['events']} is wanted, the last run being the one without gradients."
        )
    if result.get("output") != exact["output"]:
        raise CheckError("the function's result came back changed, a dict with a number in it.")
    oracles.demand_gradients(result, exact)


_MAY_PASS = {
    "operation": "another operation made a tensor of the same shape, dtype and device, and the "
    "error says {!r}: operations may differ, so compare what comes after them.",
    "dtype": 'determinism_check="none" was passed, and the error says {!r}: hand describes to the '
    "region, which gives nothing to compare then.",
}


def _judge_differs(case: Case, result: Result) -> None:
    said, how = str(result.get("said")), case["how"]
    if not case["words"]:
        if said:
            raise CheckError(_MAY_PASS[how].format(said[:200]))
        return
    if not said:
        raise CheckError(
            f"a recomputation that saved another thing ({how}) went through: call compare when it "
            "is over, which takes forward_is_done."
        )
    if case["options"].get("debug") and case["words"] not in said:
        raise CheckError(
            "debug=True was passed, and the error does not name the first operation that differs: "
            "hand compares to the region, which is compare_logs then."
        )
    if case["words"] not in said:
        raise CheckError(
            f"the recomputation differed ({how}), and the error says {said[:200]!r}: the three "
            "messages of compare begin as its docstring says."
        )
    named = {"fewer": ["2", "1"], "more": ["2", "3"], "shape": ["(3,)", f"({case['rows']},)"]}
    named |= {"dtype": ["float64", "float32"]}
    missing = [word for word in named[how] if word not in said]
    if how in ("shape", "dtype") and "Backward" not in said:
        missing.append("the operation that made the tensor")
    if missing:
        raise CheckError(
            f"the error for a recomputation that differs ({how}) does not name "
            f"{' and '.join(missing)}: whoever reads it must find the line at fault."
        )
    if result.get("random_state_kept") is not True:
        raise CheckError("the random state was left changed by a recomputation that failed.")


checkpoint = Check(
    name="lab03.checkpoint",
    exercise="3.6",
    passed="gradients to the bit and peaks to the byte like PyTorch's, and errors that name",
    cases=_cases,
    run=_run,
    judge=_judge,
)
