import re
from types import SimpleNamespace

import pytest
import torch

from tutorial_lib import device
from tutorial_lib.instruments.cap import memory_limit
from tutorial_lib.units import GIB

T4_BYTES = 15_636_824_064  # 14.56 GiB, as a Colab T4 reports


def fake_gpu(monkeypatch, name="Tesla T4", memory=T4_BYTES, major=7, count=1):
    properties = SimpleNamespace(name=name, total_memory=memory, major=major, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _=None: properties)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_a_laptop_is_a_cpu():
    assert device.pick() == torch.device("cpu")
    assert not device.has_gpu()
    assert device.describe("cpu") == "CPU"
    assert device.total_bytes("cpu") is None
    assert device.tier("cpu") == device.tier() == "cpu"
    assert device.supports_bfloat16("cpu")
    device.synchronize("cpu")
    device.reset_peak("cpu")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "meta", "gpu", "", "cpu:3"])
def test_a_device_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(ValueError, match=r"was asked for, but is not on .* It has cpu\. Try") as e:
        device.pick(name)
    assert repr(name) in str(e.value)


def test_a_fake_t4_is_a_small_gpu_without_bfloat16(monkeypatch):
    fake_gpu(monkeypatch)
    assert device.pick() == torch.device("cuda")
    assert device.pick("cuda:0") == torch.device("cuda:0")
    assert device.pick("cpu") == device.pick(torch.device("cpu")) == torch.device("cpu")
    assert device.describe("cuda") == "Tesla T4, 14.6 GiB"
    assert device.total_bytes("cuda") == T4_BYTES
    assert device.tier() == "small gpu"
    assert device.tier("cpu") == "cpu"
    assert device.pick_by_tier(cpu=1, small_gpu=2, large_gpu=3) == 2
    assert not device.supports_bfloat16("cuda")
    with pytest.raises(ValueError, match=r"'cuda:1' .* cpu, cuda:0"):
        device.pick("cuda:1")


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_numpy_cannot_take_is_refused(seed):
    with pytest.raises(ValueError, match=f"seed \\(={seed}\\)"):
        device.seed_everything(seed)


def test_a_memory_limit_is_set_and_undone(memory_fractions):
    with memory_limit("cuda", 20 * GIB), memory_limit("cuda:0", 10 * GIB):
        assert memory_fractions == [(0.25, 0), (0.125, 0)]
    assert memory_fractions[2:] == [(0.25, 0), (1.0, 0)]


@pytest.mark.parametrize("limit", [0, 81 * GIB])
def test_a_memory_limit_that_cannot_be_is_refused(memory_fractions, limit):
    refused = pytest.raises(ValueError, match=rf"limit_bytes \(={limit}\) must be from 1 to 8")
    with refused as error, memory_limit("cuda", limit):
        pass
    assert memory_fractions == []
    most = int(re.search(r"from 1 to (\d+)", str(error.value))[1])
    with memory_limit("cuda", most):
        assert memory_fractions == [(1.0, 0)]
