"""The check of 9.1: cases A and B, where recomputation runs something else than forward did."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tutorial_lib.checks.core import Case
from tutorial_lib.checks.lab09.checkpointed import Made, patient
from tutorial_lib.checks.lab09.patients import ward
from tutorial_lib.models.gpt import GPT, GPTConfig
from tutorial_lib.models.lstm import LSTM, LSTMConfig


def make_gpt(case: Case) -> Made:
    """Make a GPT of three to five blocks, with sixteen rows of tokens."""
    torch.manual_seed(case["seed"])
    sizes: Any = {"vocab_size": 32, "seq_len": 12, "num_heads": 2, "d_model": 32}
    config = GPTConfig(num_layers=3 + case["seed"] % 3, tie_weights=False, **sizes)
    gpt, tokens = GPT(config).double(), torch.randint(32, (16, 12))
    return Made(gpt, list(gpt.blocks), "norm_1", (tokens,), lambda: gpt.loss(tokens))


def _lstm(case: Case) -> Made:
    torch.manual_seed(case["seed"])
    lstm = LSTM(LSTMConfig(vocab_size=32, d_model=16, chunk_len=8)).double()
    tokens = torch.randint(32, (3, 33))
    settings = {"scale": 1.5}

    def scale(module: Any, args: Any, embedded: Tensor) -> Tensor:
        return embedded * settings["scale"]

    def loss() -> Tensor:
        handle = lstm.embedding.register_forward_hook(scale)
        value = lstm.loss(tokens)
        handle.remove()
        settings["scale"] /= 2
        return value

    return Made(lstm, [lstm.chunk], "layers.0", (tokens, settings), loss)


changed_in_between = ward(
    "lab09.changed_in_between",
    "9.1",
    "cases A and B train as without checkpoints, in the memory of a checkpointed run",
    {
        "A": patient(
            make_gpt,
            "late binding",
            5,
            "how often the last block of make_a runs in one step of broken_a",
            "Which block does a recomputation run? A name in a lambda is looked up at each call.",
        ),
        "B": patient(
            _lstm,
            "changed state",
            0.5,
            "the scale that a recomputation of broken_b reads, where forward read 1",
            "Which scale does a recomputation read? It runs after the line that changes it.",
        ),
    },
)
