"""Lab 10's loss against the bytes that exercise 10.6 adds up."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn

from solutions.answers import solved
from tutorial_lib import memory
from tutorial_lib.checks.lab10.ex10_6 import Needs

LAB = functools.partial(solved, "lab10")  # loaded when a test asks


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
