"""What the exercises of lab 05 share: a small GPT with its batch, one counted step, contexts."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib.checks.core import Case, CheckError, Result
from tutorial_lib.checks.given import observe
from tutorial_lib.checks.vocabulary import expect, read
from tutorial_lib.models.gpt import GPT, GPTConfig


class Step(NamedTuple):
    """What one step of training gave and took."""

    loss: float
    flops: int
    gradients: list[Tensor | None]
    saved: int = 0  # bytes, where they are counted


def draw_sizes(draw: random.Random) -> dict[str, Any]:
    """Draw the sizes of a GPT with dropout and written-out attention, and of its batch."""
    sizes = {"seq_len": draw.choice([12, 16, 20]), "d_model": draw.choice([16, 24])}
    return {"seed": draw.randrange(10**6), "sizes": sizes, "batch": draw.choice([2, 3])}


def make_gpt(case: Case, **others: Any) -> tuple[GPT, Tensor]:
    """Make a case's GPT of two blocks, all gradients there, and tokens `(batch, seq)`."""
    torch.manual_seed(case["seed"])
    config = {"vocab_size": 32, "num_layers": 2, "num_heads": 2, "attention": "eager"}
    gpt = GPT(GPTConfig(**{**config, "dropout": 0.2, **case["sizes"], **others}))
    fill_with_zeros(gpt)
    return gpt, torch.randint(32, (case["batch"], gpt.config.seq_len))


def fill_with_zeros(model: nn.Module) -> None:
    """Give each parameter a gradient of zeros: their arrival would hide what activations take."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


def stepped(model: nn.Module, loss: Callable[[], Tensor], seed: int) -> Step:
    """Do one step of forward and backward, counted."""
    model.zero_grad()
    torch.manual_seed(seed)
    with FlopCounterMode(display=False) as counter:
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [None if g is None else g.clone() for g in observe.gradients_of(model)]
    return Step(value.item(), counter.get_total_flops(), gradients)


def context_of(returned: Any, name: str) -> AbstractContextManager[Any]:
    """Expect that an answer returned a context manager.

    Raises:
        CheckError: When it is anything else: `with` would say so in fewer words.
    """
    if hasattr(type(returned), "__enter__") and hasattr(type(returned), "__exit__"):
        return returned  # type: ignore[no-any-return]
    kind = type(returned).__name__
    raise CheckError(f"{name} should return a context manager, for `with`, and {kind} came.")


def expect_gradients(result: Result, wanted: list[Tensor | None], otherwise: str) -> None:
    """Expect the gradients of a result to the bit.

    Raises:
        CheckError: With the words for any difference.
    """
    seen = read.tensors(result.get("gradients"), len(wanted), "gradients")
    if not all(map(expect.same_bits, seen, wanted)):
        raise CheckError(otherwise)
