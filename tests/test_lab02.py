"""The machine and the oracles of lab 02 against arithmetic by hand."""

import pytest
import torch
from torch import nn

from tutorial_lib import memory
from tutorial_lib.checks import CheckError, lab02
from tutorial_lib.checks.lab02 import ex2_2, ex2_6
from tutorial_lib.checks.lab02.given import LeakyTraining, TimedTraining
from tutorial_lib.checks.lab02.given.machine import LAUNCH_SECONDS, PretendGPU
from tutorial_lib.checks.lab02.timing import expect_time

SEEDS = range(8)


def test_work_waits_in_the_queue_until_it_is_asked_for():
    gpu = PretendGPU(slowness=[3.0, 1.0])
    for _ in range(3):
        gpu.launch(0.5)
    assert gpu.now() == pytest.approx(3 * LAUNCH_SECONDS)
    gpu.synchronize()
    assert gpu.now() == pytest.approx(LAUNCH_SECONDS + 0.5 * (3 + 1 + 1))
    before = gpu.now()
    gpu.synchronize()  # nothing is left to wait for
    assert gpu.now() == before


def test_bytes_are_those_of_storages():
    layer = nn.Linear(3, 5)
    with PretendGPU(layer) as gpu:
        assert gpu.memory_allocated() == 4 * (15 + 5)
        big = torch.zeros(1000)
        view = big[10:]
        del big
        assert gpu.memory_allocated() == 80 + 4000
        del view
        small = torch.zeros(10)
        assert gpu.memory_allocated() == 80 + small.nbytes
        assert gpu.max_memory_allocated() == 80 + 4000


def test_a_reset_begins_with_what_is_there():
    with PretendGPU() as gpu:
        kept = torch.zeros(100)
        torch.zeros(1000)
        gpu.reset_peak_memory_stats()
        assert gpu.max_memory_allocated() == kept.nbytes
        torch.zeros(50)
        assert gpu.max_memory_allocated() == kept.nbytes + 200
        del kept
        gpu.reset_peak_memory_stats()
        assert gpu.max_memory_allocated() == 0


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_timed_step_takes_what_its_case_says(checkpointed):
    case = lab02.profile_step.cases(0)[0] | {"checkpointed": checkpointed}
    gpu = PretendGPU()
    training = TimedTraining(gpu, case)
    times = []
    for _ in range(5):
        gpu.synchronize()
        start = gpu.now()
        training.loss().backward()
        training.optimizer.step()
        gpu.synchronize()
        times.append(gpu.now() - start)
    forwards = 2 if checkpointed else 1
    work = 12 * (forwards * case["forward_seconds"] + case["backward_seconds"])
    updates = [case["update_seconds"] * slow for slow in (40, 1, 1, 5, 1)]
    assert times == pytest.approx([work + update for update in updates], rel=1e-3)


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_the_three_peaks_of_2_6_differ_where_a_fault_would_hide(seed):
    few_rows, _, scratch = lab02.profile_step.cases(seed)
    phases = ex2_6.phases_of(few_rows)
    assert phases["forward"] < phases["backward"] < phases["optimizer"]
    phases = ex2_6.phases_of(scratch)
    assert phases["forward"] > phases["backward"]


@pytest.mark.parametrize("seed", SEEDS)
def test_four_pairs_of_2_2_are_left_alone(seed):
    factors = lab02.slowdown.cases(seed)[0]["slowness"][2:]
    pairs = [factors[i : i + 2] for i in range(0, len(factors), 2)]
    assert sum(a == b for a, b in pairs) == ex2_2.PAIRS // 2 + 1


def outlived(leak):
    case = {"rows": 6, "width": 8, "hidden": 10, "keep": 2, "leak": leak, "optimizer": "adamw"}
    training = LeakyTraining(case)
    report = memory.measure(training, model=training.model, optimizer=training.optimizer, warmup=0)
    return sorted((life.op, life.num_bytes) for life in report.leaks())


@pytest.mark.parametrize(
    ("leak", "left"),
    [
        ("nothing", []),
        ("slices", [("addmm", 4 * 6 * 8)]),
        ("views of old tensors", []),
        (
            "a loss with its graph",
            [
                ("_log_softmax", 4 * 6 * 8),
                ("addmm", 4 * 6 * 10),
                ("gelu", 4 * 6 * 10),
                ("nll_loss_forward", 4),
                ("nll_loss_forward", 4),  # the loss, and the sum of the labels' weights
                ("zeros", 8 * 6),
            ],
        ),
    ],
)
def test_what_a_leaky_step_leaves(leak, left):
    assert outlived(leak) == left


@pytest.mark.parametrize(("value", "passes"), [(1.0005, True), (0.9995, True), (1.002, False)])
def test_a_time_may_be_off_by_a_launch(value, passes):
    if passes:
        expect_time(value, 1.0, "a step", {})
        return
    with pytest.raises(CheckError, match="none of the usual faults"):
        expect_time(value, 1.0, "a step", {})
