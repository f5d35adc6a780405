"""Plans with a host on real models: gradients to the bit, peaks, and what is refused."""

import contextlib
from dataclasses import replace

import pytest
import torch
from plan_models import counted_peak, gradients, profiled
from torch import nn

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.planning.chain.moves import Move
from tutorial_lib.instruments.planning.run import moving

FAST = planning.Host(1e18)


def with_host(name, share, host=FAST):
    torch.manual_seed(0)
    model, loss, profile, floor, whole = profiled(name)
    budget = floor + int(share * (whole - floor))
    return model, loss, planning.solve_with_host(profile, budget_bytes=budget, host=host)


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("gpt", 0.999),
        ("unet", 0.97),
        pytest.param("vit", 0.999, marks=pytest.mark.weekly),
        pytest.param("resnet", 0.97, marks=pytest.mark.weekly),
        pytest.param("hf-llama", 0.999, marks=pytest.mark.weekly),
        pytest.param("hf-gpt2", 0.999, marks=pytest.mark.weekly),
        pytest.param("hf-bert", 0.999, marks=pytest.mark.weekly),
    ],
)
def test_what_waits_on_the_host_comes_back_to_the_bit(name, lowest):
    model, loss, found = with_host(name, 0.4)
    assert found.moves
    assert found.peak_bytes <= found.budget_bytes < found.simulation.peak_bytes
    before = gradients(model, loss)
    planning.apply(model, found)
    after, peak = gradients(model, loss), counted_peak(model, loss)
    planning.undo(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert lowest <= peak / found.peak_bytes <= 1.0001


def test_moved_boundaries_of_recomputed_blocks_come_back_to_the_bit():
    torch.manual_seed(0)
    model, loss, profile, *_ = profiled("gpt")
    last = len(profile.stages) - 1
    tree = (0, *((n,) for n in range(1, last)), last)
    stays = planning.Plan(profile.stages, tree, profile.skips, calls=profile.calls)
    moves = tuple(Move(n, n + 2, n + 2) for n in range(1, last - 2))
    found = replace(stays, moves=moves, bytes_per_second=1e18)
    before, peaks = gradients(model, loss), []
    for plan in (stays, found):
        planning.apply(model, plan)
        after = gradients(model, loss)
        assert all(torch.equal(before[name], after[name]) for name in before)
        peaks.append(int(counted_peak(model, loss)))
        planning.undo(model)
    planned = [stays.peak_bytes, found.peak_bytes]
    # each recomputation stops early, and never makes the last temporaries that are priced
    assert all(0.95 < peak / plan <= 1.0001 for peak, plan in zip(peaks, planned, strict=True))
    assert planned[0] - planned[1] == pytest.approx(peaks[0] - peaks[1], rel=0.1)
    assert found.host_bytes == (last - 3) * profile.stages[1].input_bytes


class Overwriting(nn.Module):
    """A layer that doubles its input in place, after it was saved for backward."""

    def __init__(self, is_first):
        super().__init__()
        self.linear, self.is_first = nn.Linear(8, 8), is_first

    def forward(self, x):
        y = self.linear(x).exp()  # saves y
        if not self.is_first:
            with torch.no_grad():
                x.mul_(2)
        return y


def test_what_is_overwritten_while_it_waits_is_refused_by_name():
    model = nn.Sequential(*(Overwriting(n != 3) for n in range(6)))
    x = torch.ones(4, 8)
    profile = planning.profile(model, lambda: model(x).sum(), keep=["3"])
    kept = planning.Plan(profile.stages, tuple(range(8)), calls=profile.calls)
    plan = replace(kept, moves=(Move(3, 5, 5),), bytes_per_second=1.0)
    planning.apply(model, plan)
    with pytest.raises(RuntimeError, match=r"What 2 saved .* changed in place .*stay=\['2'\]"):
        model(x).sum().backward()


class OnCard(torch.Tensor):
    """A CPU's tensor that says it's a GPU's: `apply`'s way on one, without a GPU."""

    is_cuda = True


class Lane:
    """A stream that writes down what waits for it, and for what it waits."""

    def __init__(self, name, log):
        self.name, self.log, self.device = name, log, None

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self):
        return f"{self.name}'s copy"


def test_on_a_gpu_each_copy_waits_for_what_it_needs(monkeypatch):
    log, empty = [], torch.empty
    compute, out, back = (Lane(name, log) for name in ("compute", "out", "back"))
    monkeypatch.setattr(moving, "_streams", lambda device: (out, back))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    monkeypatch.setattr(moving, "_BLOCK", 1000)
    pinned = moving._Pinned()
    for size in (300, 500, 3):  # 1200, 2000 and 12 bytes: in parts of five blocks
        values = torch.rand(size)
        like = empty(0, dtype=torch.uint8).as_subclass(OnCard)
        memory = moving._Memory(values.as_subclass(OnCard), 0, values.nbytes, like)
        moving._copy_out(memory, pinned)
        assert sum(part.numel() for part in memory.host) == values.nbytes
        moving._wait_for(memory)
        memory.there = None
        moving._copy_in(memory)
        moving._wait_for(memory)
        assert torch.equal(memory.there.as_subclass(torch.Tensor).view(torch.float32), values)
        assert log == [
            "out waits for compute",
            "compute waits for out's copy",
            "back waits for compute",
            "compute waits for back's copy",
        ]
        log.clear()


def test_a_stage_may_stay():
    *_, found = with_host("gpt", 0.4)
    name = next(found.names[move.item] for move in found.moves)
    torch.manual_seed(0)
    _, _, profile, *_ = profiled("gpt")
    asked = {"budget_bytes": found.budget_bytes, "host": FAST}
    again = planning.solve_with_host(profile, **asked, stay=[name])
    assert name not in {again.names[move.item] for move in again.moves}
    with pytest.raises(ValueError, match="no stage has that name"):
        planning.solve_with_host(profile, **asked, stay=["nothing"])
