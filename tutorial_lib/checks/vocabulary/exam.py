"""The judge of the memory exam (see `given.exam`)."""

import random

from tutorial_lib.checks.given.exam import ALLOWED_BYTES, DEPTH, NUM_BLOCKS, WIDTH, make
from tutorial_lib.checks.given.half import EXAM_BYTES
from tutorial_lib.checks.given.values import Case, CheckError, Result
from tutorial_lib.checks.vocabulary import expect, read

_TOLERANCE = 1e-5  # float32, summed over the rows in any order
_LOOKED_AT = 8  # columns; unknown to the answer, so all must be right


def draw_case(seed: int) -> Case:
    """Draw the one case of an exam."""
    return {"seed": random.Random(seed).randrange(10**6), EXAM_BYTES: ALLOWED_BYTES}


def judge(case: Case, result: Result) -> None:
    """Compare some columns of the gradients with those of plain backpropagation."""
    seen = read.tensors(result.get("gradients"), NUM_BLOCKS, "gradients")
    columns = random.SystemRandom().sample(range(WIDTH), _LOOKED_AT)
    chain, rows = make(case, columns)
    chain.loss_sum(rows).backward()  # type: ignore[no-untyped-call]
    for found, wanted in zip(seen, chain.parameters(), strict=True):
        is_whole = found is not None and found.shape == (DEPTH, WIDTH)
        part = found[:, columns] if is_whole else None  # type: ignore[index]
        if not expect.is_close(part, wanted.grad, _TOLERANCE):
            raise CheckError(
                "memory exam: the training step fitted into memory, and its gradients differ from "
                "those of plain backpropagation. Each must be exact, whatever is left out."
            )
