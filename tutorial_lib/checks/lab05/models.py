"""What the exercises of lab 05 share: a small GPT with its batch, one counted step, tapes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tutorial_lib.checks import observe
from tutorial_lib.checks.core import Case
from tutorial_lib.models.gpt import GPT, GPTConfig


class Op(NamedTuple):
    """An operation of a tape; tensors go by the names of their storages."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class Tape:
    """The operations of a forward, the bytes of what they made, and what backward asks for."""

    ops: list[Op]
    num_bytes: dict[str, int]
    needed: set[str]


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


def stepped(
    model: nn.Module, loss: Callable[[], Tensor], seed: int
) -> tuple[float, int, list[Tensor | None]]:
    """Do one step and give the loss, the FLOPs of forward and backward, and the gradients."""
    model.zero_grad()
    torch.manual_seed(seed)
    with FlopCounterMode(display=False) as counter:
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [None if g is None else g.clone() for g in observe.gradients_of(model)]
    return value.item(), counter.get_total_flops(), gradients
