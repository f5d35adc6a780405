"""Sharded tensors are counted as what a rank holds: FSDP2 and tensor parallel on two processes."""

import pytest

from tutorial_lib import ranks

WIDTH, ROWS = 128, 8
LATE = 0.04  # gloo's threads let go of a few tensors sooner or later, from run to run


@pytest.fixture(scope="module")
def group():
    with ranks.start(2) as group:
        yield group


def fsdp(width, rows):
    import gc

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
    gc.collect()
    gc.disable()  # as the meter does: sharded tensors are part of reference cycles
    with tracker:
        step()
    gc.enable()
    (tracked,) = tracker.get_tracker_snapshot("peak").values()
    return report.peak_bytes, tracked["Total"], report.baseline_bytes


def test_fsdp_is_counted_as_pytorchs_own_tracker_counts_it(group):
    for peak, tracked, baseline in group.run(fsdp, WIDTH, ROWS):
        half = 4 * 4 * (WIDTH * WIDTH + WIDTH) // 2
        steps, x = 8 * 4, 4 * ROWS * WIDTH
        assert baseline == 4 * half + steps + x  # weights, gradients and state of this rank
        assert baseline < peak
        assert abs(peak - tracked) <= LATE * peak


def tensor_parallel(width, rows):
    import gc

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
    gc.collect()
    gc.disable()  # as the meter does: sharded tensors are part of reference cycles
    with capped(2**30, model=model, optimizer=optimizer) as cap:
        held = cap.held_bytes
        step()
    gc.enable()
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
        assert abs(capped_peak - peak) <= LATE * peak
