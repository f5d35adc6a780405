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
from small_models import with_loss
from torch import nn

from solutions.answers import solved
from tutorial_lib import memory
from tutorial_lib.checks import CheckError, lab03
from tutorial_lib.checks.given.half import run_in_place
from tutorial_lib.checks.lab03 import beside_torch
from tutorial_lib.checks.vocabulary.expect import same_bits
from tutorial_lib.models.gpt import GPT
from tutorial_lib.models.lstm import LSTM
from tutorial_lib.models.unet import UNet
from tutorial_lib.models.vit import ViT

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


# gradients, bit for bit, on the course's models


CASES = {
    "gpt": with_loss(GPT, 2, 16, num_layers=3, dropout=0.1),
    "vit": with_loss(ViT, 3, 8, dropout=0.1),
    "unet": with_loss(UNet, 2, 16, dropout=0.1),
    "lstm": with_loss(LSTM, 2, 24, dropout=0.1),
}


def gradients_and_peak(case, call, autocast):
    torch.manual_seed(1)
    model, loss = case()
    for block in model.blocks if call else ():
        block.forward = partial(call, partial(type(block).forward, block))
    with memory.watch(model=model) as report:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss()
        value.backward()
    return [p.grad for p in model.parameters()], report.peak_bytes


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_models_train_as_without_and_peak_as_with_torch_checkpoint(case, autocast):
    exact, plain_peak = gradients_and_peak(case, None, autocast)
    mine, my_peak = gradients_and_peak(case, MINE, autocast)
    theirs, their_peak = gradients_and_peak(case, TORCH_CHECKPOINT, autocast)
    assert all(map(same_bits, mine, exact))
    assert all(map(same_bits, theirs, exact))
    assert my_peak == their_peak < plain_peak


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
