"""The leaks of lab 02's script: the check's oracle and its solution see what the script keeps."""

import pytest

from tutorial_lib import memory
from tutorial_lib.checks.lab02.given import LeakyTraining


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
