"""Sharded tensors are counted as what a rank holds: FSDP2 and tensor parallel on two processes."""

import pytest

from tutorial_lib import ranks

WIDTH, ROWS = 128, 8


@pytest.fixture(scope="module")
def group():
    with ranks.start(2) as group:
        yield group


def fsdp(width, rows):
    import torch
    from torch import nn
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from tutorial_lib import memory

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(rows, width)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer)
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((x,))
    with tracker:
        step()
    (tracked,) = tracker.get_tracker_snapshot("peak").values()
    return report.peak_bytes, tracked["Total"], report.at_peak


def test_fsdps_peak_is_that_of_pytorchs_own_tracker(group):
    for peak, tracked, at_peak in group.run(fsdp, WIDTH, ROWS):
        assert peak == tracked
        layer = 4 * (WIDTH * WIDTH + WIDTH)
        assert at_peak["parameters"] == 2 * layer + layer  # half of four, and one gathered


def tensor_parallel(width, rows):
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from tutorial_lib import memory
    from tutorial_lib.memory.cap import capped

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(rows, width)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    report = memory.measure(step, model=model, optimizer=optimizer)
    saved = memory.saved(lambda: model(x), params_of=model)
    with capped(2**30, model=model, optimizer=optimizer) as cap:
        held = cap.held_bytes
        step()
    return report.at_peak, saved.num_bytes, held, cap.peak_bytes, report.peak_bytes


def test_tensor_parallel_counts_the_half_that_a_rank_holds(group):
    for at_peak, saved, held, capped_peak, peak in group.run(tensor_parallel, WIDTH, ROWS):
        half = 4 * (4 * WIDTH * WIDTH // 2 * 2 + 4 * WIDTH // 2 + WIDTH)
        steps = 4 * 4  # one float32 counter a parameter
        assert at_peak["parameters"] == at_peak["gradients"] == half
        assert at_peak["optimizer_state"] == 2 * half + steps
        x, hidden = 4 * ROWS * WIDTH, 4 * ROWS * 4 * WIDTH // 2
        assert saved == x + 2 * hidden  # the input, and the half before and after the GELU
        assert held == 4 * half + steps
        assert capped_peak == peak
