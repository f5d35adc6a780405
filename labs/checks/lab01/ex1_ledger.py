"""The checks of 1.1, 1.2 and 1.4: bytes of parameters, gradients, states and recipes."""

from typing import Any

import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks.given import answered
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect

from . import given
from .metered import OPTIMIZERS, Sizes, after_step, at_rest, make_optimizer

_PASSED_1_1 = "same bytes as the meter, also with tied, frozen and half-precision weights"
_PASSED_1_2 = "same bytes as the meter after a real step with SGD, momentum and AdamW"
_WORDS = {"gradients": "gradient", "optimizer_state": "state"}
_PASSED_1_4 = "same bytes as the meter for every recipe"
SWITCHED_OFF = dict.fromkeys(given.SWITCHES, False)


def model_cases(draw: Draw) -> list[Case]:
    """Draw a model as it comes, and tied ones, in half precision and frozen in part."""
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


def _faults_1_1(case: Case, sizes: Sizes) -> Faults:
    buffers, with_buffers = sizes["buffers"], sizes["parameters"] + sizes["buffers"]
    untied = at_rest({**case, "tied": False})["parameters"]
    single = at_rest({**case, "dtype": "float32"})["parameters"]
    trained = after_step({**case, "optimizer": "sgd"})["gradients"]
    yield from {
        "It is the number of elements: one element takes several bytes.": single // 4,
        "You counted four bytes for every element: look at each tensor's dtype.": single,
        "You counted the tied matrix twice: two modules share it, in one storage.": untied,
        "You counted buffers: a BatchNorm's running averages aren't parameters.": with_buffers,
        "It is the state_dict's size, which lists buffers, and a shared weight under each of its "
        "names.": untied + buffers,
        "Frozen parameters are missing: they get no gradient, but they are in memory.": trained,
    }.items()


@check(given.parameter_bytes, _PASSED_1_1, model_cases, oracle=at_rest)
def parameter_bytes(case: Case, result: Result, sizes: Sizes) -> None:
    name = "parameter_bytes(model)"
    expect.number_of_bytes(result["bytes"], sizes["parameters"], name, _faults_1_1(case, sizes))


def _cases_1_2(draw: Draw) -> Cases:
    plain, tied, *_ = model_cases(draw)
    tied = {**tied, "norm": False}
    frozen = {**tied, "frozen": [draw.randrange(3)]}
    for optimizer in ("sgd", "momentum", "adamw"):
        yield {**plain, "optimizer": optimizer}
    yield {**tied, "optimizer": "adamw"}
    yield {**frozen, "optimizer": "momentum"}
    yield {**frozen, "optimizer": "adamw", "dtype": "bfloat16"}


@check(given.gradient_and_state_bytes, _PASSED_1_2, _cases_1_2, oracle=after_step)
def gradient_and_state_bytes(case: Case, result: Result, sizes: Sizes) -> None:
    seen = answered.fields(result["ledger"], tuple(_WORDS))
    for key in _WORDS:
        name = f'{key} for "{case["optimizer"]}"'
        expect.number_of_bytes(seen[key], sizes[key], name, _faults_1_2(case, key))


def _faults_1_2(case: Case, key: str) -> Faults:
    def size_with(**changed: Any) -> int:
        return after_step({**case, **changed})[key]

    word, wide = _WORDS[key], size_with(dtype="float32")
    yield from {
        f"You counted frozen parameters: they get no {word}.": size_with(frozen=[]),
        f"You counted the tied matrix twice: it has one {word}.": size_with(tied=False),
        f"You counted in float32: torch keeps a {word} in the parameter's own dtype.": wide,
    }.items()
    if key == "optimizer_state":
        one, adam = (size_with(optimizer=name) for name in ("momentum", "adamw"))
        yield from _state_faults(case["optimizer"], one, adam - 2 * one).items()


def _state_faults(optimizer: str, one: int, step_counts: int) -> dict[str, int]:
    counted = "You counted step counters: AdamW keeps them; SGD doesn't, with or without momentum."
    if optimizer == "adamw":
        return {
            "You counted one tensor per parameter: Adam keeps two averages.": one,
            "Something small is missing: print optimizer.state for one parameter. What does it "
            "hold besides the two averages?": 2 * one,
            "You counted one step counter: each parameter tensor has its own.": 2 * one + 4,
        }
    if optimizer == "momentum":
        return {
            "You counted what AdamW keeps: momentum keeps one tensor per parameter.": 2 * one,
            "Momentum remembers something between two updates, so 0 can't be right.": 0,
            counted: one + step_counts,
        }
    return {"Plain SGD remembers nothing between two updates.": one, counted: step_counts}


def _cases_1_4(draw: Draw) -> Cases:
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


def _by_optimizer(case: Case) -> dict[str, int]:
    return {name: per_parameter({**case, "optimizer": name}) for name in case["optimizers"]}


@check(given.bytes_per_parameter, _PASSED_1_4, _cases_1_4, oracle=_by_optimizer)
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
    in_float32 = per_parameter({**case, "weights": "float32"})
    fewer = {
        "sgd": "The gradients are missing: training keeps more than the weights.",
        "momentum": "Momentum keeps one tensor as large as the weights.",
        "adamw": "Adam keeps two averages.",
    }
    yield from {
        fewer[case["optimizer"]]: wanted - element,
        "You counted four bytes for every element: use the dtype's itemsize.": in_float32,
        "You counted float32 state: torch keeps an optimizer's state in the parameter's own "
        "dtype.": wanted + OPTIMIZERS.index(case["optimizer"]) * (4 - element),
    }.items()


def _autocast_faults(case: Case, wanted: int) -> Faults:
    half = per_parameter({**case, "weights": "bfloat16", "autocast": False})
    yield from {
        "Autocast only casts inside an operation, while it runs: which dtype do the parameters "
        "themselves have, and their gradients and state?": half,
        "You counted autocast's bfloat16 copies of the weights: they are gone after the step, so "
        "count what stays.": wanted + 2,
        "The gradients of float32 weights are float32, under autocast too.": wanted - 2,
    }.items()


def _copy_faults(case: Case, wanted: int) -> Faults:
    without = per_parameter({**case, "master_copy": False})
    no_state = without + 4
    yield from {
        "The float32 copy is missing.": without,
        "The optimizer updates the float32 copy: which dtype does its state have?": no_state,
        "You counted the float32 copy's gradient: it's freed after the update.": wanted + 4,
        "You counted float32 gradients: the gradients that stay are in half precision.": wanted + 2,
    }.items()
