"""What lab 02's checks share: numbers compared, instruments refused, and the training steps.

No function here computes what the lab asks for. Bytes come from `memory.measure` and
`memory.saved`, and seconds from the script that the pretended machine follows.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tutorial_lib import memory
from tutorial_lib.checks.core import CheckError, Opaque
from tutorial_lib.checks.running import refused
from tutorial_lib.memory.storages import StorageLog

TOLERANCE = 1e-3  # a launch takes 20 µs, and a step at least a thousand times as long


@contextlib.contextmanager
def by_hand() -> Iterator[None]:
    """Refuse the course's own instruments while an answer runs."""
    message = (
        "{} the oracle here, so your function may not call {}. Build the instrument from what "
        "PyTorch gives you."
    )
    several = message.format("memory.measure, memory.watch and memory.predict are", "them")
    one = message.format("memory.saved is", "it")
    with (
        refused(StorageLog, "__init__", several),
        refused(sys.modules[memory.saved.__module__], "_Recorder", one),
    ):
        yield


def positive(value: Any, name: str) -> float:
    """Read a positive finite number out of a result, or say what stood there instead.

    Raises:
        CheckError: For anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        seen = value.type_name if isinstance(value, Opaque) else repr(value)[:100]
        raise CheckError(f"{name} should be a number, and is {seen}: what does it return?")
    if not 0 < value < math.inf or value > sys.float_info.max:  # nan is not
        raise CheckError(f"{name} should be positive, and is {value}: which clock was read first?")
    return float(value)


def close(value: float, number: float) -> bool:
    """Tell whether two pretended times are the same but for launches."""
    return math.isclose(value, number, rel_tol=TOLERANCE)


def expect_close(value: float, wanted: float, name: str, mistakes: Mapping[str, float]) -> None:
    """Compare a number with an oracle's; a known mistake is named by its own number.

    Args:
        value: What the answer gave.
        wanted: What is right.
        name: Words for what was asked, which begin the message.
        mistakes: From what to tell the learner to the number that this mistake gives.

    Raises:
        CheckError: When the two differ by more than `TOLERANCE`.
    """
    if close(value, wanted):
        return
    for explanation, number in mistakes.items():
        if close(value, number):
            raise CheckError(
                f"{name}: {value:.4g} is off by {value / wanted - 1:+.0%}. {explanation}"
            )
    raise CheckError(
        f"{name}: {value:.4g} is off by {value / wanted - 1:+.0%}, and is none of the usual slips. "
        "Run it on a PretendGPU in a cell of your own, and print each time that it takes."
    )
