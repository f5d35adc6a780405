"""Lab 03's checkpoint against what PyTorch expects of its own, beyond what the lab's checks ask.

Most expectations run twice: with the solution's `checkpoint`, and with PyTorch's as a control. What
checks 3.1 to 3.6 compare (peaks, masks, autocast, arguments, options, errors) is not repeated here:
`test_wrong_answers` runs them on the solution.
"""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from solutions.answers import solved
from tutorial_lib.checks import CheckError, lab03
from tutorial_lib.checks.given.half import run_in_place
from tutorial_lib.checks.lab03 import beside_torch

MINE = solved("lab03").checkpoint
TORCH_CHECKPOINT = beside_torch.torch_checkpoint
both = pytest.mark.parametrize("call", [MINE, TORCH_CHECKPOINT], ids=["mine", "torch's"])
stopping = pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "to the end"])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def waves(x):
    return x.sin().exp().sin()


# several backwards


@both
@stopping
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_higher_derivatives_through_nested_checkpoints(call, early_stop, depth):
    c = partial(partial, call, early_stop=early_stop)

    def slope(function):
        def at(x):
            return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

        return at

    x = leaf(3)
    exact, seen, outside = waves, c(waves), c(c(waves))
    for _ in range(depth):
        exact, seen, outside = slope(exact), slope(c(seen)), c(slope(c(outside)))
    assert torch.allclose(seen(x), exact(x))
    assert torch.allclose(outside(x), exact(x))


@both
@stopping
def test_the_graph_dies_with_its_output(call, early_stop):
    def refs():
        x, block = leaf(3) * 1, nn.Tanh()
        y = call(lambda x: call(block, waves(x)), x, early_stop=early_stop)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        return weakref.ref(x), weakref.ref(block)

    gc.disable()
    try:
        assert [ref() for ref in refs()] == [None, None]
    finally:
        gc.enable()


# what a check is told of an answer's memory


METERED = {"hooked": "hooked", "region": "Region", "checkpoint": "checkpoint"}


@pytest.mark.parametrize(("name", "asked"), METERED.items())
def test_a_judge_refuses_a_claimed_peak_that_nothing_fits_into(name, asked):
    check, answer = getattr(lab03, name), getattr(solved("lab03"), asked)
    metered = 0
    for case in check.cases(0):
        result = run_in_place(check.half, answer, case)
        check.judge(case, result)
        compared = case["input_needs_grad"] is False if name == "hooked" else "peak" in result
        for claim in (1, -(10**9), result.get("peak", 0) // 2) if compared else ():
            with pytest.raises(CheckError, match="peak"):
                check.judge(case, {**result, "peak": claim})
            metered += 1
    assert metered
