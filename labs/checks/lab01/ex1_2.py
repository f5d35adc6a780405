"""The check of 1.2: the bytes of gradients and optimizer state."""

from typing import Any

from tutorial_lib.checks.given import answered
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect

from . import given
from .ex1_1 import model_cases
from .metered import Sizes, after_step

_PASSED = "equal to the meter after a real step of SGD, momentum and AdamW"
_WORDS = {"gradients": "gradient", "optimizer_state": "state"}


def _cases(draw: Draw) -> Cases:
    plain, tied, *_ = model_cases(draw)
    tied = {**tied, "norm": False}
    frozen = {**tied, "frozen": [draw.randrange(3)]}
    for optimizer in ("sgd", "momentum", "adamw"):
        yield {**plain, "optimizer": optimizer}
    yield {**tied, "optimizer": "adamw"}
    yield {**frozen, "optimizer": "momentum"}
    yield {**frozen, "optimizer": "adamw", "dtype": "bfloat16"}


@check(given.gradient_and_state_bytes, _PASSED, _cases, oracle=after_step)
def gradient_and_state_bytes(case: Case, result: Result, sizes: Sizes) -> None:
    seen = answered.fields(result["ledger"], tuple(_WORDS))
    for key in _WORDS:
        name = f'{key} for "{case["optimizer"]}"'
        expect.number_of_bytes(seen[key], sizes[key], name, _faults(case, key))


def _faults(case: Case, key: str) -> Faults:
    def size_with(**changed: Any) -> int:
        return after_step({**case, **changed})[key]

    word = _WORDS[key]
    yield from {
        f"Frozen parameters are in it: they get no {word}.": size_with(frozen=[]),
        f"The tied matrix is in it twice: a {word} belongs to a tensor, and the tensor is "
        "shared.": size_with(tied=False),
        f"It is what float32 gives: torch keeps a {word} in the parameter's own dtype.": (
            size_with(dtype="float32")
        ),
    }.items()
    if key == "optimizer_state":
        one, adam = (size_with(optimizer=name) for name in ("momentum", "adamw"))
        yield from _state_faults(case["optimizer"], one, adam - 2 * one).items()


def _state_faults(optimizer: str, one: int, step_counts: int) -> dict[str, int]:
    counted = "Counts of steps are in it: AdamW keeps them, and SGD none, with momentum or without."
    if optimizer == "adamw":
        return {
            "It is one tensor a parameter: Adam keeps two averages.": one,
            "Something small is missing: look at optimizer.state of one parameter. What is there "
            "beside the two averages?": 2 * one,
            "One count of steps is in it: each parameter tensor has its own.": 2 * one + 4,
        }
    if optimizer == "momentum":
        return {
            "It is what AdamW keeps: momentum keeps one tensor a parameter.": 2 * one,
            "Momentum remembers something between two updates, so 0 cannot be.": 0,
            counted: one + step_counts,
        }
    return {"Plain SGD remembers nothing between two updates.": one, counted: step_counts}
