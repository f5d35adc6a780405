"""Chapter 12: what its text says of its functions and no cell of it shows."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tutorial_lib.models.gpt import GPTConfig
from tutorial_lib.school import authoring


@pytest.fixture
def chapter(root):
    return authoring.load_definitions(root / "course" / "12_deep_and_recurrent.ipynb")


def gradients(read):
    torch.manual_seed(0)
    cell = nn.LSTMCell(2, 8)
    xs, zeros = torch.randn(4, 13, 2).unbind(dim=1), torch.zeros(4, 8)
    read(cell, xs, (zeros, zeros))[0].square().mean().backward()
    return [parameter.grad for parameter in cell.parameters()]


def test_every_plan_over_time_has_the_gradients_of_none(root):
    companion = authoring.load_definitions(root / "course" / "12b_back_through_time.ipynb")
    wanted = gradients(companion.unrolled)
    for read in (companion.segments, companion.halving, companion.halving_flat):
        assert all(map(torch.equal, gradients(read), wanted))


def test_copies_are_thrown_away_and_the_buffers_are_the_same_objects(chapter):
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = dict(block.named_buffers())
    values = {name: buffer.clone() for name, buffer in before.items()}

    def fail_on_copies():
        with chapter.on_copies(block):
            block(torch.randn(2, 3, 5, 5))
            raise KeyError(int(block[1].num_batches_tracked))

    with pytest.raises(KeyError, match="1"):
        fail_on_copies()
    assert all(buffer is before[name] for name, buffer in block.named_buffers())
    assert all(torch.equal(before[name], values[name]) for name in values)


@pytest.fixture
def mixtures(root):
    companion = authoring.load_definitions(root / "course" / "12c_recomputing_what_is_random.ipynb")
    companion.checkpoint = partial(checkpoint, use_reentrant=False)
    companion.CONFIG = GPTConfig(num_layers=1, num_heads=2, d_model=16)
    companion.x = torch.randn(4, 16, 16, requires_grad=True)
    return companion


@pytest.mark.parametrize("capacity", [None, 1, 9, 64])
def test_saved_routing_is_repeated_whatever_chose_it(mixtures, capacity):
    for choose in (lambda: mixtures.noisy, mixtures.with_own_generator, mixtures.Balancing):
        assert mixtures.outcome(mixtures.saving_routing, choose, capacity) == "equal"
