import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.memory.storages import StorageLog


def test_a_storage_is_born_and_dies_between_ticks():
    log = StorageLog("cpu")
    with log:
        a = torch.ones(10)
        a.add_(1)
        b = a + 1
        del a
        _c = b * 2
    log.finish()
    lives = log.lives()
    assert [(life.num_bytes, life.op, life.born, life.died) for life in lives] == [
        (40, "ones", 2, 3),
        (40, "add", 3, None),
        (40, "mul", 4, None),
    ]


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.from_numpy])
def test_an_input_made_of_other_data_lives_from_then_on(make):
    array = np.ones(10, np.float32)
    log = StorageLog("cpu")
    with log:
        torch.ones(3)
        torch.ones(3)
        x = make(array)
        x.sum()
        del x
        torch.ones(3)
    log.finish()
    ((born, died),) = [
        (life.born, life.died)
        for life in log.lives()
        if life.num_bytes == 40 and life.category == "inputs"
    ]
    assert born > 2
    assert died is not None


def step_with_a_loss_in_pieces(reduction):
    hidden, head = (nn.Parameter(torch.zeros(rows, 64)) for rows in (512, 2048))
    options, targets = nn.LinearCrossEntropyOptions(batch_chunk_size=64), torch.zeros(512).long()

    def step():
        losses = nn.functional.linear_cross_entropy(
            hidden, head, targets, reduction=reduction, options=options
        )
        losses.sum().backward()
        hidden.grad = head.grad = None

    return step, nn.Identity(), None


def profiled_peak(step):
    """Return the most bytes that were allocated in a step at once, by torch.profiler."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


@pytest.mark.skipif(
    not hasattr(nn, "LinearCrossEntropyOptions"), reason="this PyTorch has no such options"
)
@pytest.mark.parametrize(("reduction", "matmuls"), [("mean", 3), ("none", 4)])
def test_the_inside_of_a_loss_with_its_head_is_seen(reduction, matmuls):
    step, *_ = step_with_a_loss_in_pieces(reduction)
    report = memory.measure(step, flops=True)
    assert report.flops == matmuls * 2 * 512 * 64 * 2048
    leaves, targets = 4 * 64 * (512 + 2048), 8 * 512
    assert report.peak_bytes - leaves - targets == profiled_peak(step)
    predicted = memory.predict(lambda: step_with_a_loss_in_pieces(reduction), kernels="cpu")
    assert predicted.peak_bytes == report.peak_bytes
