"""The check of 1.4: the bytes that training takes for each parameter."""

from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect

from . import given
from .metered import OPTIMIZERS, make_optimizer

_PASSED = "equal to the meter for every recipe"
SWITCHED_OFF = dict.fromkeys(given.SWITCHES, False)


def _cases(draw: Draw) -> Cases:
    half, other = draw.sample(["bfloat16", "float16"], 2)
    recipes: list[tuple[str, dict[str, Any]]] = [("float32", {}), (half, {})]
    recipes += [("float32", {"autocast": True}), (other, {"master_copy": True}), ("float64", {})]
    for weights, switches in recipes:
        yield {"weights": weights, "optimizers": [*OPTIMIZERS], **SWITCHED_OFF, **switches}


def per_parameter(case: Case) -> int:
    """Meter a training step of one matrix by the case's recipe, per element of the matrix.

    What the step leaves behind for the next one is counted: weights, their gradients, the
    optimizer's state and the master copy.
    """
    dtype = getattr(torch, case["weights"])
    layer = nn.Linear(64, 64, bias=False, dtype=dtype)
    weight, x = layer.weight, torch.randn(4, 64, dtype=dtype)
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


@check(
    given.bytes_per_parameter,
    _PASSED,
    _cases,
    oracle=lambda case: {
        name: per_parameter({**case, "optimizer": name}) for name in case["optimizers"]
    },
)
def bytes_per_parameter(case: Case, result: Result, wanted: dict[str, int]) -> None:
    switches = [name for name in given.SWITCHES if case[name]]
    faults = _autocast_faults if case["autocast"] else _plain_faults
    faults = _copy_faults if case["master_copy"] else faults
    # From no state to two: a fault in weights and gradients is told before one in the state.
    for optimizer, num_bytes in wanted.items():
        name = f"bytes_per_parameter for {', '.join([case['weights'], optimizer, *switches])}"
        recipe = {**case, "optimizer": optimizer}
        expect.number_of_bytes(result[optimizer], num_bytes, name, faults(recipe, num_bytes))


def _plain_faults(case: Case, wanted: int) -> Faults:
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


def _autocast_faults(case: Case, wanted: int) -> Faults:
    half = per_parameter({**case, "weights": "bfloat16", "autocast": False})
    yield from {
        "Autocast casts inside the operations, for as long as they need it: what is the dtype of "
        "the parameters themselves, of their gradients and states?": half,
        "Autocast's bfloat16 copies of the weights are gone when the step is over: count what "
        "stays.": wanted + 2,
        "The gradients of float32 weights are float32, under autocast too.": wanted - 2,
    }.items()


def _copy_faults(case: Case, wanted: int) -> Faults:
    without = per_parameter({**case, "master_copy": False})
    yield from {
        "The float32 copy is missing.": without,
        "The optimizer steps the float32 copy: what dtype has the state that it keeps?": without
        + 4,
        "The copy's own gradient is in it: it is cast for the update and dropped.": wanted + 4,
        "Float32 gradients are in it: those that stay are in half precision.": wanted + 2,
    }.items()
