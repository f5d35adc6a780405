"""The check of 8.3, the floor: what is there whatever the technique, and what is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tutorial_lib.checks.core import Case, Check, CheckError, Result
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.lab08 import models
from tutorial_lib.checks.vocabulary import expect, read

_ROOM = 10**6
_COUNTS = 30  # of 8 bytes
_MAKE: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3),
}
STATE_BYTES: dict[str, Callable[[Tensor], int]] = {
    "momentum": lambda parameter: parameter.nbytes,
    "adamw": lambda parameter: 2 * parameter.nbytes + 4,
}


@cache  # each floor is counted from a real update
def _cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "levels": 3, "optimizer": "adamw"}
    case |= {"channels": draw.choice([3, 4]), "side": 8, "frozen": False, "more": _ROOM}
    frozen = {**case, "frozen": True, "levels": 2, "side": 6}
    on_meta = {**case, "optimizer": "momentum", "side": 12, "on_meta": True}
    for each in (case, frozen, on_meta):
        each["floor"] = sum(_floor(each).values())
    too_small, wrong_side = draw.choice([1, 2, 3]), 8 + draw.choice([1, 2, 3])
    cases = [
        *(frozen, on_meta, {**case, "more": 0}, {**case, "more": -1}),
        *({**case, "side": side} for side in (wrong_side, too_small)),  # one is rounded down to 0
    ]
    return [{**case, "cap_bytes": case["floor"] + case["more"]} for case in cases]


def _make(case: Case) -> nn.Module:
    unet = models.make_unet(case)
    unet.register_buffer("average", torch.zeros(100))
    unet.register_buffer("counts", torch.zeros(_COUNTS, dtype=torch.int64), persistent=False)
    if case["frozen"]:
        unet.down_blocks.requires_grad_(False)
    return unet


def _floor(case: Case) -> dict[str, int]:
    """Count what is there after a real update, storage by storage."""
    unet, drawn = _make(case), models.make_drawn(case, 1)
    optimizer = _MAKE[case["optimizer"]](unet.parameters())
    models.backward(unet, drawn, 1)
    optimizer.step()
    image = torch.empty(1, case["channels"], case["side"], case["side"])
    kinds: dict[str, list[Any]] = {
        "parameters": list(unet.parameters()),
        "buffers": list(unet.buffers()),
        "gradients": observe.gradients_of(unet),
        "optimizer state": [t for values in optimizer.state.values() for t in values.values()],
        "sample": [image, image, drawn[1]],
    }
    return {k: sum(t.nbytes for t in v if isinstance(t, Tensor)) for k, v in kinds.items()}


def _multiple(case: Case) -> int:
    return int(2 ** (case["levels"] - 1))


def _run(answer: Callable[..., Any], case: Case) -> Result:
    unet = _make(case)
    if case.get("on_meta"):
        unet = unet.to("meta")
    state_bytes = STATE_BYTES[case["optimizer"]]
    ask = partial(answer, unet, case["side"], state_bytes, case["cap_bytes"])
    if case["more"] < 0 or case["side"] % _multiple(case):
        return {"said": observe.error_said(ask, "ValueError")}
    try:
        return {"said": "", "room": ask()}
    except ValueError as error:
        return {"said": str(error), "room": None}


def _judge(case: Case, result: Result) -> None:
    said, cap = str(result.get("said")), case["cap_bytes"]
    side, multiple = case["side"], _multiple(case)
    if side % multiple:
        reason = f"{case['levels']} levels cannot halve images of {side} to a side"
        expect.refuses(said, ValueError, reason, [side, multiple])
        _expect_side_to_try(said, side, multiple)
        return
    if case["more"] < 0:
        reason = f"a cap of {cap} bytes is one below the floor of {cap + 1}"
        expect.refuses(said, ValueError, reason, [cap, cap + 1])
        return
    if said:
        raise CheckError(
            f"for images of {side} to a side and {case['levels']} levels, under a cap of {cap} "
            "bytes that is not below the floor, nothing is to be refused, and a ValueError came: "
            f"{said[:200]!r}."
        )
    room = read.integer(result.get("room"), "the room")
    if room != case["more"]:
        _explain(case, cap - room)


def _expect_side_to_try(said: str, side: int, multiple: int) -> None:
    numbers = [int(digits) for digits in re.findall(r"\d+", said.replace(",", ""))]
    fitting = [number for number in numbers if number and number % multiple == 0]
    if len(fitting) < 2:  # one is the multiple itself, which may be the side to try as well
        raise CheckError(
            f"the refusal of a side of {side} says {said[:150]!r}: it names no side to try, a "
            f"multiple of {multiple} and more than 0."
        )


def _explain(case: Case, floor: int) -> None:
    parts, name, wanted = _floor(case), case["optimizer"], case["floor"]
    faults = {
        "that is the floor itself: what the cap leaves above it is wanted.": (
            case["cap_bytes"] - floor == wanted
        ),
        "the floor is the parameters alone: a step needs more than that.": (
            floor == parts["parameters"]
        ),
    }
    expect.no_fault(faults)
    side = "more" if floor > wanted else "less"
    expect.close(
        floor,
        wanted,
        _faults(_differences(case, parts), wanted),
        otherwise="it is none of the usual faults: print each part by itself.",
        tolerance=0,
        where=f"your floor for {name} is {floor:,} bytes, {abs(floor - wanted):,} {side} than what "
        "is there after an update: ",
    )


Differences = dict[str, tuple[str, int]]


def _faults(differences: Differences, wanted: int) -> expect.Faults:
    """Give each fault, then two and three at once: a first answer often has several."""
    yield from ((words, wanted + difference) for words, difference in differences.values())
    for together in (2, 3):
        for names in combinations(differences, together):
            difference = sum(differences[name][1] for name in names)
            yield f"look at {', '.join(names[:-1])} and {names[-1]}.", wanted + difference


def _differences(case: Case, parts: dict[str, int]) -> Differences:
    """From a subject to what to tell the learner, and how far a floor is from the right one."""
    frozen = parts["parameters"] - parts["gradients"]
    image = case["channels"] * case["side"] ** 2 * 4
    still = [p for p in _make(case).parameters() if not p.requires_grad]
    frozen_state = sum(map(STATE_BYTES[case["optimizer"]], still))
    all_buffers = "a buffer is missing that state_dict() leaves out: unet.buffers() has all."
    sample = "the sample is not in it: a noisy image, its noise, its time."
    image_words = "of the sample one image is missing: the noisy one and its noise are both there."
    return {
        "states": ("the optimizer's state is not in it.", -parts["optimizer state"]),
        "gradients": ("the gradients are not in it.", -parts["gradients"]),
        "buffers": ("the buffers are not in it.", -parts["buffers"]),
        "the sample": (sample, -parts["sample"]),
        "the sample's two images": (image_words, -image),
        "the sample's time": ("the sample's time is missing, an int64.", -8),
        "the bytes of a time": ("the sample's time is an int64, of 8 bytes.", -4),
        "all buffers": (all_buffers, -8 * _COUNTS),
        "the types of buffers": (
            "not every buffer is float32: nbytes knows how long its numbers are.",
            -4 * _COUNTS,
        ),
        "frozen parameters": (
            "frozen parameters have neither gradient nor state.",
            frozen + frozen_state,
        ),
        "gradients of frozen parameters": ("frozen parameters have no gradient.", frozen),
        "states of frozen parameters": (
            "the optimizer keeps nothing for frozen parameters.",
            frozen_state,
        ),
    }


room_for_activations = Check(
    "lab08.room_for_activations",
    "8.3",
    "the floor to the byte, and two requests refused",
    _cases,
    _run,
    _judge,
)
