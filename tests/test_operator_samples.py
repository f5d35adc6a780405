"""PyTorch's own samples of its operators are predicted as they run."""

import os
import re
import subprocess
import sys

import pytest

# Bytes of a small tensor of theirs that no fake tensor knows.
OFF = {"nn.functional.embedding_bag": 8, "nn.functional.ctc_loss": 64, "linalg.lstsq": 8}
# Their types are not checked: they are rare, or a CPU has no bfloat16 kernel for them either.
SILENT = {
    *("_cdist_forward", "complex", "polar", "multi_margin_loss", "multilabel_margin_loss_forward"),
    *("_softmax_backward_data", "max_pool2d_with_indices_backward", "_prelu_kernel"),
    *("fractional_max_pool3d", "rrelu_with_noise", "searchsorted", "linalg_solve_triangular"),
    "_unsafe_masked_index_put_accumulate",
}


def differing(root, what):
    """Run in a process of its own: the import of the samples changes PyTorch's settings."""
    done = subprocess.run(
        [sys.executable, "tests/operator_samples.py", what],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, last = done.stdout.splitlines()
    return lines, int(last.split()[0])


@pytest.mark.weekly
def test_storages_of_operators_are_predicted_to_the_byte(root):
    lines, count = differing(root, "sizes")
    found = [re.match(r"([\w.]+): off by (-?\d+) bytes", line).groups() for line in lines]
    assert {name for name, off in found if abs(int(off)) > OFF.get(name, 0)} == set(), lines
    assert count > 2500


@pytest.mark.weekly
def test_types_that_operators_refuse_are_refused_and_no_others(root):
    lines, count = differing(root, "types")
    assert [line for line in lines if "real runs" in line] == []
    assert {re.match(r"aten\.(\w+)", line)[1] for line in lines} - SILENT == set(), lines
    assert count > 500
