"""Lab 10's loss in a training, its bytes against the formula, and its refusals."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from solutions.answers import solved
from tutorial_lib import data, memory
from tutorial_lib.checks import assert_same_training
from tutorial_lib.checks.lab10.ex10_6 import Needs
from tutorial_lib.models.gpt import GPT, GPTConfig

LAB = functools.partial(solved, "lab10")  # loaded when a test asks


def hidden_of(gpt, tokens):
    """Give what a GPT's head is given."""
    found = []
    with gpt.head.register_forward_pre_hook(lambda _, args: found.append(args[0])):
        gpt(tokens)
    return found[0]


def test_a_tied_gpt_trains_the_same():
    tokens = next(data.text_batches(3, 33))
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 32, LAB().IGNORED)

    def make():
        gpt = GPT(GPTConfig(num_layers=2, d_model=32, seq_len=32, num_heads=2)).double()
        assert gpt.head.weight is gpt.token_embedding.weight
        return gpt, torch.optim.AdamW(gpt.parameters(), lr=1e-3)

    def update(loss_of, gpt, optimizer):
        optimizer.zero_grad()
        loss = loss_of(gpt.head, hidden_of(gpt, tokens[:, :-1]))
        loss.backward()
        optimizer.step()
        return loss.item()

    def usual(head, hidden):
        return F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten())

    def in_chunks(head, hidden):
        return LAB().head_loss(head, hidden, targets, 7)

    steps = (functools.partial(update, loss_of) for loss_of in (usual, in_chunks))
    assert_same_training(*steps, make=make, calls=3)


@pytest.mark.parametrize(
    ("dtype", "learns"), [*itertools.product(["float32", "bfloat16"], [True, False])]
)
def test_the_solution_stays_within_the_bytes_that_10_6_adds_up(dtype, learns):
    case = {"dtype": dtype, "learns": learns, "bias": False, "vocab": 4096, "width": 32}
    needs, kind = Needs({**case, "shape": [4, 128]}), getattr(torch, dtype)
    head, rows = nn.Linear(32, 4096, bias=False, dtype=kind), torch.randn(4, 128, 32, dtype=kind)
    head.requires_grad_(learns)
    targets = torch.randint(4096, (4, 128))
    for size in (16, 64):
        hidden = nn.Parameter(copy.deepcopy(rows))
        for parameter in (hidden, head.weight):
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        model = nn.ModuleList([head, nn.ParameterList([hidden])])
        with memory.watch(model=model) as report:
            LAB().head_loss(head, hidden, targets, size).backward()
        peak = report.peak_bytes - report.baseline_bytes
        # log_softmax with a dtype copies its input on a CPU, and not on a GPU
        copied = 4 * size * needs.vocab if dtype == "bfloat16" else 0
        assert 0.5 < peak / (needs.floor + size * needs.token + copied) <= 1.01
