"""The oracles of lab 01 against arithmetic by hand, and what its checks allow."""

import pytest
import torch

from tutorial_lib.checks import CheckError, lab01
from tutorial_lib.checks.lab01 import ex1_3, metered
from tutorial_lib.checks.lab01.ex1_4 import SWITCHED_OFF, per_parameter
from tutorial_lib.checks.lab01.ex1_5 import metered_step

MODEL = {"vocab": 10, "widths": [4, 6, 4], "dtype": "float32", "tied": False, "frozen": []}
MODEL |= {"norm": False}
# Elements: embedding 10x4, layers 4x6 + 6 and 6x4 + 4, head 4x10.
EMBEDDING, FIRST, SECOND, HEAD = 40, 30, 28, 40


@pytest.mark.parametrize(
    ("changed", "num_bytes"),
    [
        ({}, 4 * (EMBEDDING + FIRST + SECOND + HEAD)),
        ({"tied": True}, 4 * (EMBEDDING + FIRST + SECOND)),
        ({"frozen": [1]}, 4 * (EMBEDDING + FIRST + SECOND + HEAD)),
        ({"dtype": "bfloat16"}, 4 * (EMBEDDING + HEAD) + 2 * (FIRST + SECOND)),
        ({"norm": True}, 4 * (EMBEDDING + FIRST + SECOND + HEAD + 8)),
    ],
)
def test_a_model_at_rest(changed, num_bytes):
    sizes = metered.at_rest(MODEL | changed)
    assert sizes["parameters"] == num_bytes
    assert sizes["buffers"] == (4 * 8 + 8 if "norm" in changed else 0)  # two rows, and a count


@pytest.mark.parametrize(
    ("changed", "gradients", "state"),
    [
        ({"optimizer": "sgd"}, 552, 0),
        ({"optimizer": "momentum"}, 552, 552),
        ({"optimizer": "adamw"}, 552, 2 * 552 + 6 * 4),
        ({"optimizer": "adamw", "frozen": [0]}, 552 - 120, 2 * (552 - 120) + 4 * 4),
        ({"optimizer": "momentum", "dtype": "float16"}, 552 - 116, 552 - 116),
        ({"optimizer": "momentum", "tied": True}, 552 - 160, 552 - 160),
    ],
)
def test_a_model_after_a_step(changed, gradients, state):
    sizes = metered.after_step(MODEL | changed)
    assert (sizes["gradients"], sizes["optimizer_state"]) == (gradients, state)


@pytest.mark.parametrize(
    ("layers", "shape", "floats"),
    [
        ([["linear", 5], ["relu"], ["linear", 3]], [2, 7], 2 * (7 + 5)),
        ([["linear", 5], ["gelu"], ["linear", 3]], [2, 7], 2 * (7 + 5 + 5)),
        ([["linear", 5], ["norm"], ["relu"]], [2, 3, 7], 6 * (7 + 5 + 2 + 5)),
    ],
)
def test_what_a_chain_saves(layers, shape, floats):
    case = {"layers": layers, "shape": shape}
    assert ex1_3.saved_by(case) == 4 * floats
    widths = [layer[1] if len(layer) > 1 else 5 for layer in layers]
    rows = torch.Size(shape[:-1]).numel()
    assert ex1_3.output_bytes(case) == [4 * rows * width for width in widths]


@pytest.mark.parametrize(
    ("weights", "optimizer", "switches", "num_bytes"),
    [
        ("float32", "adamw", {}, 16),
        ("float32", "sgd", {}, 8),
        ("bfloat16", "adamw", {}, 8),
        ("float64", "momentum", {}, 24),
        ("float32", "adamw", {"autocast": True}, 16),
        ("float16", "adamw", {"master_copy": True}, 16),
        ("bfloat16", "momentum", {"master_copy": True}, 12),
    ],
)
def test_bytes_per_parameter_by_the_meter(weights, optimizer, switches, num_bytes):
    case = {"weights": weights, "optimizer": optimizer, **SWITCHED_OFF, **switches}
    assert per_parameter(case) == num_bytes


@pytest.fixture(scope="module")
def training():
    """A case of 1.5 and its peak: the wide MLP with AdamW."""
    case = lab01.predict_peak.cases(0)[0]
    return case, metered_step(case).peak_bytes


def judged(case, peak, **changed):
    lab01.predict_peak.judge(case, {"peak": peak, "forwards": 1, "touched": False} | changed)


@pytest.mark.parametrize(
    "changed",
    [{"forwards": 2}, {"forwards": None}, {"forwards": "1"}, {"touched": True}, {"touched": None}],
)
def test_a_right_peak_by_forbidden_means_is_refused(training, changed):
    case, peak = training
    with pytest.raises(CheckError):
        judged(case, peak, **changed)
