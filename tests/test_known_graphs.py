"""The meter against arithmetic: graphs small enough to count by hand, to the byte.

Every graph ends in `.sum().backward()`. F is one float32 tensor of 8 x 16. Two scalars of 4 bytes
are there in every backward: the sum, and its gradient, which `expand` views without a copy.
"""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib import memory

F = 8 * 16 * 4
SCALARS = 8


def leaf(*shape):
    return torch.ones(*(shape or (8, 16)), requires_grad=True)


def exp():
    """Saves its output. Peak in backward: x, exp(x), and the gradient of x."""
    x = leaf()
    return lambda: x.exp(), 3 * F, F


def sin():
    """Saves its input, which is the leaf; its output dies with the sum. Backward makes cos(x)."""
    x = leaf()
    return lambda: x.sin(), 3 * F, 0


def chain_of_exps():
    """Three outputs are kept; the first gradient is born while all three and x are there."""
    x = leaf()
    return lambda: x.exp().exp().exp(), 5 * F, 3 * F


def relu_after_exp():
    """Both keep their output: two tensors, not three."""
    x = leaf()
    return lambda: x.exp().relu(), 4 * F, 2 * F


def in_place_relu():
    """The same in place: the one storage that exp made is kept."""
    x = leaf()
    return lambda: x.sin().relu_(), 4 * F, F


def product_of_leaves():
    """Keeps its two factors, which are leaves; makes two gradients."""
    x, y = leaf(), leaf()
    return lambda: x * y, 4 * F, 0


def a_view_is_free():
    """reshape and transpose move no byte: as exp alone."""
    x = leaf()
    return lambda: x.reshape(4, 32).t().exp(), 3 * F, F


def softmax():
    """Keeps its output; backward makes one gradient in one operation."""
    x = leaf()
    return lambda: x.softmax(-1), 3 * F, F


def linear():
    """x (8, 16) needs no gradient, W (32, 16): y dies at once, backward makes W's gradient."""
    x, layer = torch.ones(8, 16), nn.Linear(16, 32, bias=False)
    return lambda: layer(x), F + 2 * (32 * 16 * 4), 0


def layer_norm():
    """Keeps its input (the leaf) and two statistics a row; the two weights get gradients."""
    x, layer = leaf(), nn.LayerNorm(16)
    statistics, weights = 2 * 8 * 4, 2 * 16 * 4
    return lambda: layer(x), 2 * F + statistics + 2 * weights, statistics


def checkpointed_chain():
    """None of the three outputs is kept by forward; backward makes them all again."""
    x = leaf()

    def chain(x):
        return x.exp().exp().exp()

    return lambda: checkpoint(chain, x, use_reentrant=False), 5 * F, 0


def two_uses():
    """One output used twice is kept once; its two gradients meet in a sum."""
    x = leaf()

    def twice():
        y = x.exp()
        return y * y

    return twice, 5 * F, F


GRAPHS = [
    *(exp, sin, chain_of_exps, relu_after_exp, in_place_relu, product_of_leaves, a_view_is_free),
    *(softmax, linear, layer_norm, checkpointed_chain, two_uses),
]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.__name__)
def test_counted_by_hand(graph):
    forward, peak, activations = graph()
    with memory.watch() as report:
        forward().sum().backward()
    at_start = next(tick for tick, phase in report.phase_starts if phase == "backward")
    assert report.peak_bytes == peak + SCALARS
    assert report.curve()[at_start]["activations"] == activations + SCALARS
