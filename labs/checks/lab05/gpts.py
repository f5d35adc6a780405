"""The GPTs of lab 05: their sizes, and gradients to the bit."""

from typing import Any

from torch import Tensor

from tutorial_lib.checks.vocabulary import Draw, Result, expect, read


def draw_sizes(draw: Draw) -> dict[str, Any]:
    """Draw the sizes of a GPT with dropout and written-out attention, and of its batch."""
    sizes = {"seq_len": draw.choice([12, 16, 20]), "d_model": draw.choice([16, 24])}
    return {"seed": draw.randrange(10**6), "sizes": sizes, "batch": draw.choice([2, 3])}


def expect_gradients(result: Result, wanted: list[Tensor | None], otherwise: str) -> None:
    """Expect the gradients of a result to the bit."""
    seen = read.tensors(result["gradients"], len(wanted), "gradients")
    expect.fact(all(map(expect.same_bits, seen, wanted)), otherwise)
