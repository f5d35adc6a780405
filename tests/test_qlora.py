"""The fine-tuning script: each lever can be left out, and the losses stay the same."""

import sys

import pytest
import torch

from tutorial_lib import data, memory


@pytest.fixture
def qlora(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "course/train")
    yield pytest.importorskip("qlora")
    for name in ("qlora", "planned"):
        sys.modules.pop(name, None)


def trained(qlora, levers):
    """Losses of three updates of the twin, and the peak of the last one, in bytes."""
    rows = data.encode(data.text())[:120].split([80, 20, 12, 8])
    model, optimizer, scaler = qlora.make(qlora.TWIN, levers)
    losses = []
    for _ in range(3):
        with memory.watch(model=model) as report:
            losses.append(qlora.update(rows, levers, model, optimizer, scaler))
    return torch.stack(losses), report.peak_bytes


def test_without_a_lever_the_losses_are_the_same(qlora):
    wanted, _ = trained(qlora, {*qlora.LEVERS})
    assert wanted[2] < wanted[0]
    for lever in qlora.LEVERS:
        seen, _ = trained(qlora, {*qlora.LEVERS} - {lever})
        assert torch.allclose(seen, wanted, atol=1e-4), lever


@pytest.mark.weekly
def test_each_lever_lowers_the_peak_of_the_full_size(qlora):
    def peak(without):
        return memory.predict(lambda: qlora.make_step(without)).peak_bytes

    least = peak("")
    assert all(peak(lever) > 1.1 * least for lever in qlora.LEVERS)


def test_only_lora_is_trained_in_float32(qlora):
    model, optimizer, _ = qlora.make(qlora.TWIN | {"dtype": torch.bfloat16}, {"four-bits"})
    trained = {p for p in model.parameters() if p.requires_grad}
    assert trained == {*optimizer.param_groups[0]["params"]}
    assert {p.dtype for p in trained} == {torch.float32}
    assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)
