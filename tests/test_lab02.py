"""The machine and the oracles of lab 02 against arithmetic by hand."""

import pytest

from tutorial_lib import memory
from tutorial_lib.checks.lab02.given import LeakyTraining
from tutorial_lib.checks.lab02.given.machine import LAUNCH_SECONDS, PretendGPU


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
