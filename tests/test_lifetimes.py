"""The picture of lives, against lives written by hand and against a measured step."""

import pytest
import torch
from matplotlib.patches import Rectangle
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory
from tutorial_lib.instruments import figures
from tutorial_lib.memory.timeline import Life
from tutorial_lib.models.gpt import GPT, GPTConfig

FORWARD = [
    Life(10, 1, 8, "activations", "forward", "mul", "a"),
    Life(30, 2, 3, "temporary", "forward", "exp", "a"),
    Life(30, 3, 4, "temporary", "forward", "exp", "b"),
    Life(99, 1, 9, "parameters", "forward", "mul", "a"),
]
STARTS = [(0, "zero"), (1, "forward"), (5, "backward")]


def again(born, op, module, num_bytes=30):
    return Life(num_bytes, born, born + 1, "recomputed", "backward", op, module)


def bottoms(*recomputed):
    """Where the bars stand, from left to right: first tick and lower edge of each."""
    report = memory.MemoryReport(timeline=[*FORWARD, *recomputed], phase_starts=STARTS)
    axes = figures.lifetimes({"by hand": report}).axes[0]
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [box.get_xy() for box in boxes]


def test_forward_is_stacked_in_order_of_birth_without_the_parameters():
    assert bottoms() == [(1, 0), (2, 10), (3, 40)]


@pytest.mark.parametrize(
    ("recomputed", "expected"),
    [
        ([again(6, "exp", "b"), again(7, "exp", "a")], [40, 10]),
        # Without a name: forward's order, and from the first one again when that is used up.
        ([again(6, "exp", ""), again(7, "exp", ""), again(8, "exp", "")], [10, 40, 10]),
        ([again(6, "exp", "a"), again(7, "exp", "a")], [10, 10]),
        ([again(6, "tanh", "a"), again(7, "exp", "a", num_bytes=31)], []),
    ],
    ids=["named", "nameless", "twice", "not in forward"],
)
def test_what_is_computed_again_stands_where_it_stood(recomputed, expected):
    assert [bottom for _, bottom in bottoms(*recomputed)[3:]] == expected


def test_the_sentence_tells_the_plans_apart():
    model = GPT(GPTConfig(num_layers=2, d_model=32, num_heads=2, seq_len=16))
    tokens = torch.zeros(2, 16, dtype=torch.int64)

    def step():
        model.zero_grad()
        model.loss(tokens).backward()

    plain = memory.measure(step, model=model)
    for block in model.blocks:
        block.forward = lambda x, f=block.forward: checkpoint(f, x, use_reentrant=False)
    frugal = memory.measure(step, model=model)
    figure = figures.lifetimes({"plain": plain, "frugal": frugal})
    assert "plain: " in figure.alt
    assert figure.alt.count("0 B are recomputed") == 1


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ({}, "there are 0 reports"),
        ({str(n): memory.MemoryReport() for n in range(5)}, "there are 5 reports"),
        ({"empty": memory.MemoryReport(phase_starts=STARTS)}, "no timeline"),
        ({"forward": memory.MemoryReport(timeline=FORWARD, phase_starts=STARTS[:2])}, "backward"),
    ],
    ids=["none", "five", "no timeline", "no backward"],
)
def test_what_cannot_be_drawn_is_refused(reports, message):
    with pytest.raises(ValueError, match=message):
        figures.lifetimes(reports)
