"""The checks of lab 01, the memory ledger of a training step."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tutorial_lib import memory
from tutorial_lib.checks import lab01_oracles as oracles
from tutorial_lib.checks.calls import calls_of
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.lab01_peak import bytes_per_parameter, predict_peak
from tutorial_lib.checks.results import expect_bytes
from tutorial_lib.checks.running import refused

__all__ = [
    "bytes_per_parameter",
    "chain_saved_bytes",
    "gradient_and_state_bytes",
    "parameter_bytes",
    "predict_peak",
]

case = calls_of(__name__)


# 1.1


def _parameter_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    first, second, third = draw.sample(range(8, 40), 3)
    vocab = draw.randint(50, 90)
    plain = {"vocab": vocab, "widths": [first, second, third], "dtype": "float32"}
    plain |= {"tied": False, "frozen": [], "norm": False}
    tied = plain | {"widths": [first, second, third, first], "tied": True}
    # Tied, and with buffers: here a state_dict gives a number of its own.
    return [
        plain,
        tied | {"norm": True},
        tied | {"dtype": draw.choice(["bfloat16", "float16"]), "norm": True},
        tied | {"frozen": draw.sample(range(3), draw.randint(1, 2)), "dtype": "float64"},
    ]


def _run_parameter_bytes(answer: Callable[..., Any], case: Case) -> Result:
    model = oracles.Words(case)
    with oracles.without_meter():
        return {"bytes": answer(model)}


def _judge_parameter_bytes(case: Case, result: Result) -> None:
    now, untied = oracles.resident(case), oracles.resident({**case, "tied": False})
    single = oracles.resident({**case, "dtype": "float32"})["parameters"]
    mistakes = {
        "It is the number of elements: one element takes several bytes.": single // 4,
        "It is what four bytes for every element give: ask each tensor for its dtype.": single,
        "The tied matrix is in it twice: a weight that two modules share is stored once.": untied[
            "parameters"
        ],
        "Buffers are in it: a BatchNorm's running averages are no parameters.": now["parameters"]
        + now["buffers"],
        "It is the state_dict's size, which lists buffers, and a shared weight under each of its "
        "names.": untied["parameters"] + now["buffers"],
        "Frozen parameters are missing: they get no gradient, and lie in memory all the same.": (
            oracles.after_step({**case, "optimizer": "sgd"})["gradients"]
        ),
    }
    expect_bytes(result.get("bytes"), now["parameters"], "parameter_bytes(model)", mistakes)


parameter_bytes = Check(
    name="lab01.parameter_bytes",
    exercise="1.1",
    passed="equal to the meter, with tied, frozen and half-precision weights",
    cases=_parameter_cases,
    run=_run_parameter_bytes,
    judge=_judge_parameter_bytes,
)

# 1.2


def _state_cases(seed: int) -> list[Case]:
    plain, tied, *_ = _parameter_cases(seed + 1)
    tied = {**tied, "norm": False}
    draw = random.Random(seed)
    frozen = {"frozen": [draw.randrange(3)]}
    return [
        {**plain, "optimizer": "sgd"},
        {**plain, "optimizer": "momentum"},
        {**plain, "optimizer": "adamw"},
        {**tied, "optimizer": "adamw"},
        {**tied, **frozen, "optimizer": "momentum"},
        {**tied, **frozen, "optimizer": "adamw", "dtype": "bfloat16"},
    ]


def _run_state(answer: Callable[..., Any], case: Case) -> Result:
    model = oracles.Words(case)
    with oracles.without_meter():
        return {"ledger": answer(model, case["optimizer"])}


def _judge_state(case: Case, result: Result) -> None:
    keys = ("gradients", "optimizer_state")
    seen = result.get("ledger")
    if not isinstance(seen, Mapping) or set(seen) != set(keys):
        shown = sorted(seen) if isinstance(seen, Mapping) else type(seen).__name__
        raise CheckError(f"a dict with the keys {', '.join(keys)} is needed, and {shown} came.")
    wanted = oracles.after_step(case)
    name = f'{{}} for "{case["optimizer"]}"'
    frozen = "Frozen parameters are in it: they get no {}."
    tied = "The tied matrix is in it twice: a {} belongs to a tensor, and the tensor is shared."
    single = "It is what float32 gives: torch keeps a {} in the parameter's own dtype."
    siblings = {
        frozen: oracles.after_step({**case, "frozen": []}),
        tied: oracles.after_step({**case, "tied": False}),
        single: oracles.after_step({**case, "dtype": "float32"}),
    }
    gradients = {words.format("gradient"): sizes["gradients"] for words, sizes in siblings.items()}
    expect_bytes(seen["gradients"], wanted["gradients"], name.format("gradients"), gradients)
    states = {words.format("state"): sizes["optimizer_state"] for words, sizes in siblings.items()}
    states |= _state_slips(case, wanted)
    state = seen["optimizer_state"]
    expect_bytes(state, wanted["optimizer_state"], name.format("optimizer_state"), states)


def _state_slips(case: Case, wanted: Mapping[str, int]) -> dict[str, int]:
    """List the slips that belong to one optimizer."""
    one = oracles.after_step({**case, "optimizer": "momentum"})["optimizer_state"]
    if case["optimizer"] == "adamw":
        return {
            "It is one tensor a parameter: Adam keeps two averages.": one,
            "Something small is missing: look at optimizer.state of one parameter. What is there "
            "beside the two averages?": 2 * one,
            "One count of steps is in it: each parameter tensor has its own.": 2 * one + 4,
        }
    if case["optimizer"] == "momentum":
        return {
            "It is what AdamW keeps: momentum keeps one tensor a parameter.": 2 * one,
            "Momentum remembers something between two updates, so 0 cannot be.": 0,
        }
    return {"Plain SGD remembers nothing between two updates.": one}


gradient_and_state_bytes = Check(
    name="lab01.gradient_and_state_bytes",
    exercise="1.2",
    passed="equal to the meter after a real step of SGD, momentum and AdamW",
    cases=_state_cases,
    run=_run_state,
    judge=_judge_state,
)

# 1.3


def _chain_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    a, b, c, d = draw.sample(range(6, 50), 4)
    rows, positions = draw.randint(3, 9), (3, 5, 6, 7)  # not 4, the bytes of an element
    free = [["relu"], ["gelu"], ["norm"], ["linear", b], ["linear", d]]
    chance = [["linear", a], *(draw.choice(free) for _ in range(7)), ["gelu"], ["linear", c]]
    return [
        {"layers": [["linear", b], ["relu"], ["linear", c]], "shape": [rows, a]},
        {"layers": [["linear", b], ["gelu"], ["linear", c]], "shape": [rows, a]},
        {"layers": [["linear", b], ["norm"], ["linear", c], ["relu"]], "shape": [rows, a]},
        {
            "layers": [["linear", d], ["gelu"], ["linear", b]],
            "shape": [rows, draw.choice(positions), c],
        },
        {"layers": chance, "shape": [rows, draw.choice(positions), d]},
    ]


def _run_chain(answer: Callable[..., Any], case: Case) -> Result:
    chain = oracles.make_chain(case)
    said = "{} the oracle here, so your function may not {} them. Go through the layers yourself."
    no_instrument = refused(
        sys.modules[memory.saved.__module__],
        "_Recorder",
        said.format("memory.saved, and the hooks below it, are", "call"),
    )
    # under whatever name they were imported
    no_hooks = refused(
        torch.autograd.graph.saved_tensors_hooks,
        "__enter__",
        said.format("autograd's hooks lie below memory.saved,", "use"),
    )
    with no_instrument, no_hooks, oracles.without_meter():
        return {"bytes": answer(chain, tuple(case["shape"]))}


def _swapped(case: Case, old: str, new: str) -> Case:
    return {**case, "layers": [[new] if name == [old] else name for name in case["layers"]]}


def _judge_chain(case: Case, result: Result) -> None:
    wanted = oracles.saved_by(case)
    outputs = oracles.output_bytes(case)
    x = torch.empty(case["shape"]).nbytes
    mistakes = {
        "It is the number of elements: float32 takes four bytes.": wanted // 4,
        "The input of the first layer is missing: its weight's gradient needs it.": wanted - x,
        "The weights are in it: they are parameters, resident whether autograd refers to them "
        "or not.": oracles.saved_by(case, weights=True),
        "A ReLU costs nothing here: it keeps its output, not its input, and that output is the "
        "very tensor that the next layer keeps. One storage counts once.": oracles.saved_by(
            _swapped(case, "relu", "gelu")
        ),
        "A GELU is no ReLU: its slope cannot be read off its output, so it keeps its "
        "input.": oracles.saved_by(_swapped(case, "gelu", "relu")),
        "LayerNorm keeps something beside its input: what did it compute for each "
        "row?": oracles.saved_by(_swapped(case, "norm", "gelu")),
        "It is the sum of all outputs: autograd does not keep what each layer makes, but what "
        "each backward needs.": sum(outputs),
        "It is the input and all outputs: who would need the output of the last layer?": x
        + sum(outputs),
        "The output of the last layer is in it: nothing in the chain keeps it.": wanted
        + outputs[-1],
        "It is what one position of the sequence takes: all dimensions but the last are "
        "rows.": oracles.saved_by({**case, "shape": [case["shape"][0], case["shape"][-1]]}),
    }
    layers = ", ".join(" ".join(map(str, layer)) for layer in case["layers"])
    name = f"chain_saved_bytes for [{layers}] on {tuple(case['shape'])}"
    expect_bytes(result.get("bytes"), wanted, name, mistakes)


chain_saved_bytes = Check(
    name="lab01.chain_saved_bytes",
    exercise="1.3",
    passed="equal to autograd's own count, to the byte",
    cases=_chain_cases,
    run=_run_chain,
    judge=_judge_chain,
)
