"""The check of lab 08's floor (8.3): what is there whatever the technique, and what is refused."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks import lab08_oracles as oracles
from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.running import error_said

_ROOM = 10**6
_COUNTS = 30  # of 8 bytes
_MAKE: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3),
}
_STATE: dict[str, Callable[[Tensor], int]] = {
    "sgd": lambda parameter: 0,
    "momentum": lambda parameter: parameter.nbytes,
    "adamw": lambda parameter: 2 * parameter.nbytes + 4,
}


@functools.cache  # each cap is counted from a real update
def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "seed": draw.randrange(10**6),
        "levels": 3,
        "channels": draw.choice([3, 4]),
    }
    case |= {"optimizer": "adamw", "side": 8, "frozen": False, "cap": "floor", "more": _ROOM}
    cases = [
        {**case, "optimizer": "sgd"},
        {**case, "frozen": True, "levels": 2, "side": 6},
        {**case, "optimizer": "momentum", "side": 12, "on_meta": True},
        {**case, "more": 0},
        {**case, "more": -1},
        {**case, "side": 8 + draw.choice([1, 2, 3])},
        {**case, "side": 8 + draw.choice([1, 3]), "levels": 2},
        {**case, "side": draw.choice([1, 2, 3])},  # rounded down, none is left
    ]
    return [{**case, "cap_bytes": _cap(case)} for case in cases]


def _make(case: Case) -> nn.Module:
    unet = oracles.make_unet(case)
    unet.register_buffer("average", torch.zeros(100))
    unet.register_buffer("counts", torch.zeros(_COUNTS, dtype=torch.int64), persistent=False)
    if case["frozen"]:
        unet.down_blocks.requires_grad_(False)
    return unet


def _floor(case: Case) -> dict[str, int]:
    """Count what is there after a real update, storage by storage."""
    unet, drawn = _make(case), oracles.make_drawn(case, 1)
    optimizer = _MAKE[case["optimizer"]](unet.parameters())
    oracles.backward(unet, drawn, 1)
    optimizer.step()
    side = case["side"]
    images = [torch.empty(1, case["channels"], side, side) for _ in range(2)]
    state = [t for values in optimizer.state.values() for t in values.values()]
    kinds: dict[str, list[Any]] = {
        "parameters": list(unet.parameters()),
        "buffers": list(unet.buffers()),
        "gradients": oracles.gradients_of(unet),
        "optimizer state": state,
        "sample": [*images, drawn[1]],
    }
    return {k: sum(t.nbytes for t in v if isinstance(t, Tensor)) for k, v in kinds.items()}


def _run(answer: Callable[..., Any], case: Case) -> Result:
    unet, cap = _make(case), case["cap_bytes"]
    if case.get("on_meta"):
        unet = unet.to("meta")
    rooms: list[Any] = []

    def ask() -> None:
        rooms.append(answer(unet, case["side"], _STATE[case["optimizer"]], cap))

    if _is_refused(case):
        return {"said": error_said(ask, ValueError)}
    try:
        ask()
    except ValueError as error:
        return {"said": str(error), "room": None}
    return {"said": "", "room": rooms[0]}


def _cap(case: Case) -> int:
    # a side that no U-Net of so many levels takes: its floor is of no interest
    known = {**case, "side": 8} if case["side"] % _multiple(case) else case
    return sum(_floor(known).values()) + int(case["more"])


def _is_refused(case: Case) -> bool:
    return bool(case["more"] < 0 or case["side"] % _multiple(case))


def _multiple(case: Case) -> int:
    return int(2 ** (case["levels"] - 1))


def _judge(case: Case, result: Result) -> None:
    said, cap = str(result.get("said")), case["cap_bytes"]
    of_side = f"for images of {case['side']} to a side and {case['levels']} levels"
    if case["side"] % _multiple(case):
        oracles.demand_words(said, "ValueError", [case["side"], _multiple(case)], of_side)
        _demand_side_to_try(said, case["side"], _multiple(case))
        return
    if case["more"] < 0:
        where = f"for a cap of {cap} bytes, one below the floor of {cap + 1}"
        oracles.demand_words(said, "ValueError", [cap, cap + 1], where)
        return
    if said:
        raise CheckError(
            f"{of_side}, under a cap of {cap} bytes that is not below the floor, nothing is to be "
            f"refused, and a ValueError came: {said[:200]!r}."
        )
    room = result.get("room")
    if isinstance(room, bool) or not isinstance(room, int):
        kind = type(room).__name__
        raise CheckError(f"the room comes as {kind}: an int is wanted, the bytes above the floor.")
    if room != case["more"]:
        _explain(case, cap - room)


def _demand_side_to_try(said: str, side: int, multiple: int) -> None:
    numbers = [int(digits) for digits in re.findall(r"\d+", said.replace(",", ""))]
    fitting = [number for number in numbers if number and number % multiple == 0]
    if len(fitting) < 2:  # one is the multiple itself, which may be the side to try as well
        raise CheckError(
            f"the refusal of a side of {side} says {said[:150]!r}: it names no side to try, a "
            f"multiple of {multiple} and more than 0."
        )


def _explain(case: Case, floor: int) -> None:
    parts = _floor(case)
    trained = parts["gradients"]
    off = floor - sum(parts.values())
    if case["cap_bytes"] - floor == sum(parts.values()):
        raise CheckError("that is the floor itself: what the cap leaves above it is wanted.")
    image = case["channels"] * case["side"] ** 2 * 4
    frozen = parts["parameters"] - trained
    state_of = _STATE[case["optimizer"]]
    frozen_state = sum(state_of(p) for p in _make(case).parameters() if not p.requires_grad)
    slips = {
        -parts["gradients"]: "the gradients are not in it.",
        -parts["optimizer state"]: "the optimizer's state is not in it.",
        -parts["buffers"]: "the buffers are not in it.",
        -parts["sample"]: "the sample is not in it: a noisy image, its noise, its time.",
        -image: "of the sample one image is missing: the noisy one and its noise are both there.",
        -8: "the sample's time is missing, an int64.",
        -4: "the sample's time is an int64, of 8 bytes.",
        -8 * _COUNTS: "a buffer is missing that state_dict() leaves out: unet.buffers() has all.",
        -4 * _COUNTS: "not every buffer is float32: nbytes knows how long its numbers are.",
        frozen: "frozen parameters have no gradient.",
        frozen_state: "the optimizer keeps nothing for frozen parameters.",
        frozen + frozen_state: "frozen parameters have neither gradient nor state.",
    }
    if floor == parts["parameters"]:
        raise CheckError("the floor is the parameters alone: a step needs more than that.")
    said = (
        slips.get(off, "it is none of the usual slips: print each part by itself.") if off else ""
    )
    side = "more" if off > 0 else "less"
    raise CheckError(
        f"your floor for {case['optimizer']} is {floor:,} bytes, {abs(off):,} {side} than what is "
        f"there after an update: {said}"
    )


room_for_activations = Check(
    name="lab08.room_for_activations",
    exercise="8.3",
    passed="the floor to the byte, and two requests refused",
    cases=_cases,
    run=_run,
    judge=_judge,
)
