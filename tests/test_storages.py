import numpy as np
import pytest
import torch

from tutorial_lib.memory.private_torch import FakeTensorMode
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


def test_other_devices_are_not_counted():
    log = StorageLog("cpu")
    with log:
        torch.ones(10, device="meta")
    assert log.lives() == []


def test_a_fake_tensor_counts_in_a_prediction_alone():
    log, predicting = StorageLog("cpu"), StorageLog("cpu")
    with log, FakeTensorMode():
        torch.ones(10)  # as sharded tensors do in PyTorch 2.11, to know a result's shape
    with FakeTensorMode(), predicting:
        torch.ones(10)
    assert [len(seen.lives()) for seen in (log, predicting)] == [0, 1]


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


def test_what_was_there_before_is_an_input_from_the_start():
    x = torch.ones(10)
    log = StorageLog("cpu")
    with log:
        torch.ones(3)
        x.sum()
    assert [(life.category, life.born) for life in log.lives() if life.num_bytes == 40] == [
        ("inputs", 0)
    ]


def test_a_label_given_late_holds_from_birth():
    log = StorageLog("cpu")
    with log:
        grad = torch.zeros(5)
        log.label_storages([grad, None], "gradients")
    (life,) = log.lives()
    assert (life.category, life.op) == ("gradients", "zeros")
