"""The cap: what fits is counted as the meter counts, what does not fit fails as on a GPU."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tutorial_lib import memory
from tutorial_lib.memory import capped


def chain():
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())])


def step(model, rows):
    model(torch.ones(rows, 32)).sum().backward()


def test_the_peak_is_the_meters():
    model, x = chain(), torch.ones(64, 32)
    model(x).sum().backward()
    with memory.watch(model=model) as report:
        model(x).sum().backward()
    with capped(10**9, model=model) as cap:
        model(x).sum().backward()
    assert cap.peak_bytes == report.peak_bytes


@pytest.mark.parametrize("below", [0, 1])
def test_it_fails_at_the_byte(below):
    model = chain()
    step(model, 64)
    with capped(10**9, model=model) as cap:
        step(model, 64)
    with capped(cap.peak_bytes - below, model=model) as again:
        if below:
            with pytest.raises(torch.OutOfMemoryError, match=r"needed .* more .* the cap is"):
                step(model, 64)
        else:
            step(model, 64)
    assert again.peak_bytes <= cap.peak_bytes - below


def test_gradients_and_optimizer_state_count_from_the_beginning():
    model = chain()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, 4)
    optimizer.step()
    with capped(10**9, model=model, optimizer=optimizer) as cap:
        assert cap.held_bytes == 3 * sum(p.nbytes for p in model.parameters())


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match=r"limit_bytes \(=0\) must be at least 1"), capped(0):
        pass
