"""The check of 1.4: the bytes that training takes for each parameter."""

from __future__ import annotations

import random

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks import expect
from tutorial_lib.checks.core import Answer, Case, Check, Result
from tutorial_lib.checks.lab01.models import NO_METER, OPTIMIZERS, make_optimizer

SWITCHED_OFF = {"autocast": False, "master_copy": False}


def _cases(seed: int) -> list[Case]:
    half = random.Random(seed).sample(["bfloat16", "float16"], 2)
    recipes = [
        ("float32", {}),
        (half[0], {}),
        ("float32", {"autocast": True}),
        (half[1], {"master_copy": True}),
        ("float64", {}),
    ]
    # From no state to two: a fault in the weights and gradients is told before one in the state.
    return [
        {"weights": weights, "optimizer": optimizer, **SWITCHED_OFF, **switches}
        for weights, switches in recipes
        for optimizer in OPTIMIZERS
    ]


def per_parameter(case: Case, side: int = 64) -> int:
    """Meter a training step of one matrix by the case's recipe, per element of the matrix.

    What the step leaves behind for the next one is counted: weights, their gradients, the
    optimizer's state and the master copy.
    """
    dtype = getattr(torch, case["weights"])
    layer = nn.Linear(side, side, bias=False, dtype=dtype)
    weight, x = layer.weight, torch.randn(4, side, dtype=dtype)
    stepped = nn.Parameter(weight.detach().float()) if case["master_copy"] else weight
    optimizer = make_optimizer(case["optimizer"], [stepped])

    def step() -> None:
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case["autocast"]):
            loss = layer(x).sum()
        loss.backward()
        if stepped is not weight:
            stepped.grad = weight.grad.float() if weight.grad is not None else None
        optimizer.step()
        if stepped is not weight:
            stepped.grad = None
            weight.data.copy_(stepped)

    left = memory.measure(step, model=layer, optimizer=optimizer).curve()[-1]
    kept = left["parameters"] + left["gradients"] + left["optimizer_state"]
    return kept // weight.numel()  # the rest is Adam's one step count


def _run(answer: Answer, case: Case) -> Result:
    weights = getattr(torch, case["weights"])
    switches = {name: case[name] for name in SWITCHED_OFF}
    return {"bytes": answer(weights, case["optimizer"], **switches)}


def _judge(case: Case, result: Result, wanted: int) -> None:
    switches = [name for name in SWITCHED_OFF if case[name]]
    recipe = ", ".join([case["weights"], case["optimizer"], *switches])
    faults = _autocast_faults if case["autocast"] else _plain_faults
    faults = _copy_faults if case["master_copy"] else faults
    name = f"bytes_per_parameter for {recipe}"
    expect.number_of_bytes(result.get("bytes"), wanted, name, faults(case, wanted))


def _plain_faults(case: Case, wanted: int) -> expect.Faults:
    element = getattr(torch, case["weights"]).itemsize
    fewer = {
        "sgd": "The gradients are missing: training keeps more than a file does.",
        "momentum": "Momentum keeps one tensor as large as the weights.",
        "adamw": "Adam keeps two averages.",
    }
    yield from {
        fewer[case["optimizer"]]: wanted - element,
        "It is what four bytes for every element give: ask the dtype for its size.": per_parameter(
            {**case, "weights": "float32"}
        ),
        "It is what float32 state takes: torch keeps an optimizer's state in the parameter's own "
        "dtype.": wanted + OPTIMIZERS.index(case["optimizer"]) * (4 - element),
    }.items()


def _autocast_faults(case: Case, wanted: int) -> expect.Faults:
    half = per_parameter({**case, "weights": "bfloat16", "autocast": False})
    yield from {
        "Autocast casts inside the operations, for as long as they need it: what is the dtype of "
        "the parameters themselves, of their gradients and states?": half,
        "Autocast's bfloat16 copies of the weights are gone when the step is over: count what "
        "stays.": wanted + 2,
        "The gradients of float32 weights are float32, under autocast too.": wanted - 2,
    }.items()


def _copy_faults(case: Case, wanted: int) -> expect.Faults:
    without = per_parameter({**case, "master_copy": False})
    yield from {
        "The float32 copy is missing.": without,
        "The optimizer steps the float32 copy: what dtype has the state that it keeps?": without
        + 4,
        "The copy's own gradient is in it: it is cast for the update and dropped.": wanted + 4,
        "Float32 gradients are in it: those that stay are in half precision.": wanted + 2,
    }.items()


bytes_per_parameter = Check(
    "lab01.bytes_per_parameter",
    "1.4",
    "equal to the meter for every recipe",
    _cases,
    _run,
    _judge,
    oracle=per_parameter,
    forbidden=[NO_METER],
)
