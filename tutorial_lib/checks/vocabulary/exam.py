"""The judge of the memory exam (see `given.exam`)."""

import random
from collections.abc import Sequence

from torch import Tensor

from tutorial_lib.checks.given.exam import ALLOWED_BYTES, make
from tutorial_lib.checks.given.half import EXAM_BYTES, RunHalf
from tutorial_lib.checks.given.values import Answer, Case, Result
from tutorial_lib.checks.vocabulary import expect, read

_TOLERANCE = 1e-5  # float32, summed over the rows in any order
_PARTS = 16  # each with a small graph


def draw_case(seed: int) -> Case:
    """Draw the one case of an exam."""
    return {"seed": random.Random(seed).randrange(10**6), EXAM_BYTES: ALLOWED_BYTES}


def exact(half: RunHalf, sits: Answer | None, case: Case) -> Sequence[Tensor | None]:
    """Return the gradients of an answer that passes; without one, those of the chain, plain."""
    if sits is not None:
        gradients: list[Tensor | None] = half.run(sits, case)["gradients"]
        return gradients
    chain, rows = make(case)
    for part in rows.tensor_split(_PARTS):
        chain.loss_sum(part).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in chain.parameters()]


def judge(result: Result, right: Sequence[Tensor | None]) -> None:
    """Compare all gradients with the right ones."""
    seen = read.tensors(result.get("gradients"), len(right), "gradients")
    expect.fact(
        expect.is_close(seen, right, _TOLERANCE),
        "memory exam: the training step fitted into memory, and its gradients differ from those of "
        "plain backpropagation. Each must be exact, whatever is left out.",
    )
