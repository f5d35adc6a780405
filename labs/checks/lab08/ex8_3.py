"""The check of 8.3, the floor: bytes held whatever the technique, and the refusals."""

import json
import re
from functools import cache
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import Case, Cases, Draw, Faults, Result, check, expect, read

from .given import models, room

_PASSED = "the exact floor; refuses two impossible requests"


def _cases(draw: Draw) -> Cases:
    case: dict[str, Any] = {"seed": draw.randrange(10**6), "levels": 3, "optimizer": "adamw"}
    case |= {"channels": draw.choice([3, 4]), "side": 8, "frozen": False}
    too_small, wrong_side = draw.choice([1, 2, 3]), 8 + draw.choice([1, 2, 3])

    def capped(case: Case, more: int = 10**6, **changed: Any) -> Case:
        floor = sum(_floor(json.dumps(case)).values())
        return {**case, "more": more, "floor": floor, "cap_bytes": floor + more, **changed}

    yield capped({**case, "frozen": True, "levels": 2, "side": 6})
    yield capped({**case, "optimizer": "momentum", "side": 12, "on_meta": True})
    yield capped({**case, "levels": 4})  # up to 3 levels 2 * (levels - 1) is right as well
    yield from (capped(case, more) for more in (0, -1))
    yield from (capped(case, side=side) for side in (wrong_side, too_small))  # 0 if rounded down


@cache
def _floor(case_text: str) -> dict[str, int]:
    """Count the bytes after a real update, storage by storage."""
    case = json.loads(case_text)
    unet, drawn = room.with_buffers(case), models.make_drawn(case, 1)
    optimizer = observe.make_optimizer(case["optimizer"], unet.parameters(), foreach=False)
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


@check(room.room_for_activations, _PASSED, _cases)
def room_for_activations(case: Case, result: Result) -> None:
    said, cap = str(result["said"]), case["cap_bytes"]
    side, multiple = case["side"], room.multiple_of(case)
    if side % multiple:
        reason = f"{case['levels']} levels cannot halve images of {side} to a side"
        expect.refuses(said, ValueError, reason, [side, multiple])
        numbers = [int(digits) for digits in re.findall(r"\d+", said.replace(",", ""))]
        # one is the multiple itself, which may be the side to try as well
        expect.fact(
            len([number for number in numbers if number and number % multiple == 0]) > 1,
            f"the refusal of a side of {side} says {said[:150]!r}: it names no side to try, a "
            f"multiple of {multiple} and more than 0.",
        )
        return
    if case["more"] < 0:
        reason = f"a cap of {cap} bytes is one below the floor of {cap + 1}"
        expect.refuses(said, ValueError, reason, [cap, cap + 1])
        return
    expect.fact(
        not said,
        f"for images of {side} to a side and {case['levels']} levels, under a cap of {cap} bytes, "
        f"not below the floor, nothing should be refused, but a ValueError came: {said[:200]!r}.",
    )
    left = read.integer(result["room"], "the room")
    if left != case["more"]:
        _explain(case, cap - left)


def _explain(case: Case, floor: int) -> None:
    parts, wanted, left = _floor(json.dumps(case)), case["floor"], case["cap_bytes"] - floor
    is_bare = floor == parts["parameters"]
    faults = {
        "that is the floor itself: return what the cap leaves above it.": left == wanted,
        "the floor is only the parameters: a step needs more than that.": is_bare,
    }
    expect.no_fault(faults)
    side = "more" if floor > wanted else "less"
    expect.close(
        floor,
        wanted,
        _faults(_differences(case, parts), wanted),
        otherwise="it is none of the usual faults: print each part by itself.",
        tolerance=0,
        where=f"your floor for {case['optimizer']} is {floor:,} bytes, {abs(floor - wanted):,} "
        f"{side} than what is in memory after an update: ",
    )


def _faults(differences: dict[str, tuple[str, int]], wanted: int) -> Faults:
    """Yield each fault, then two and three at once: a first answer often has several."""
    yield from ((words, wanted + difference) for words, difference in differences.values())
    for together in (2, 3):
        for names in combinations(differences, together):
            difference = sum(differences[name][1] for name in names)
            yield f"look at {', '.join(names[:-1])} and {names[-1]}.", wanted + difference


def _differences(case: Case, parts: dict[str, int]) -> dict[str, tuple[str, int]]:
    """From a subject to words for the learner, and how far a floor is from the right one."""
    unet, frozen = room.with_buffers(case), parts["parameters"] - parts["gradients"]
    image, counts = case["channels"] * case["side"] ** 2 * 4, unet.get_buffer("counts").nbytes
    still = [p for p in unet.parameters() if not p.requires_grad]
    frozen_state = sum(map(room.STATE_BYTES[case["optimizer"]], still))
    all_buffers = "a buffer is missing that state_dict() leaves out: unet.buffers() has all."
    types = "not every buffer is float32: use its nbytes."
    sample = "the sample is missing: a noisy image, its noise and its timestep."
    images = "one image is missing in the sample: it has the noisy one and its noise."
    neither = "frozen parameters have neither gradient nor state."
    no_state = "the optimizer keeps nothing for frozen parameters."
    return {
        "states": ("the optimizer's state is missing.", -parts["optimizer state"]),
        "gradients": ("the gradients are missing.", -parts["gradients"]),
        "buffers": ("the buffers are missing.", -parts["buffers"]),
        "the sample": (sample, -parts["sample"]),
        "the sample's two images": (images, -image),
        "the sample's time": ("the sample's time is missing, an int64.", -8),
        "the bytes of a time": ("the sample's time is an int64, of 8 bytes.", -4),
        "all buffers": (all_buffers, -counts),
        "the types of buffers": (types, -counts // 2),
        "frozen parameters": (neither, frozen + frozen_state),
        "gradients of frozen parameters": ("frozen parameters have no gradient.", frozen),
        "states of frozen parameters": (no_state, frozen_state),
    }
