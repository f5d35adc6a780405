"""Cells of a missing package; TensorFlow's bytes, counted where it is installed."""

import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from tutorial_lib.instruments import frameworks


@pytest.fixture
def transform(monkeypatch, capsys):
    """What a notebook without these packages does with a cell."""
    transformers = []
    shell = SimpleNamespace(input_transformers_cleanup=transformers)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    frameworks.leave_out_cells("json", "no_such", "jax_of_nobody")
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "no_such is not installed: its cells are left out.",
        "jax_of_nobody is not installed: its cells are left out.",
    ]
    (found,) = transformers
    return found


@pytest.mark.parametrize(
    ("first", "runs"),
    [
        ("# needs json", True),
        ("# needs jax", True),  # it is not what jax_of_nobody begins with
        ("# needs json, no_such", False),
        ("# needs jax_of_nobody", False),
        ("x = 1  # needs no_such", True),
    ],
)
def test_a_cell_runs_unless_what_it_needs_is_missing(transform, first, runs):
    lines = [f"{first}\n", "1 / 0\n"]
    assert transform(lines) == (lines if runs else ["pass\n"])
    assert transform([]) == []


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra frameworks")
def test_tensorflow_keeps_what_a_product_needs(capfd):
    tf = frameworks.import_tensorflow()
    x = tf.ones((8, 16))
    w = tf.Variable(tf.ones((16, 32)))
    step = frameworks.tensorflow_step(lambda: tf.reduce_sum(x @ w), {"w": w})
    product = 8 * 32 * 4
    assert step.matmuls == 2  # forward, and the gradient of w
    assert product <= step.waiting_bytes < 2 * product
    assert step.peak_bytes >= product + 16 * 32 * 4
    assert step.gradients[0].numpy().tolist() == [[8.0] * 32] * 16
    assert capfd.readouterr().err == ""
