"""Lab 07: each thing that an answer may change, and must not, is noticed under its name."""

import math

import pytest
import torch
from torch import nn

from tutorial_lib.checks import CheckError
from tutorial_lib.checks.given import observe, surroundings
from tutorial_lib.checks.vocabulary import expect

CHANGES = {
    "grad mode": lambda layers, rows: torch.set_grad_enabled(False),
    "modes": lambda layers, rows: layers[1].eval(),
    "requires_grad": lambda layers, rows: layers.requires_grad_(False),
    "weights": lambda layers, rows: layers[0].bias.data.add_(1),
    "gradients": lambda layers, rows: layers.zero_grad(),
    "buffers": lambda layers, rows: layers[1].num_batches_tracked.add_(1),
    "random state": lambda layers, rows: torch.rand(1),
    "inputs": lambda layers, rows: rows.zero_(),
    "marks": lambda layers, rows: rows.requires_grad_(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_answer_changes_is_named(name):
    layers, rows = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.full((3, 2), math.nan)
    observe.fill_gradients(layers)
    before = surroundings.note([layers], [rows])
    assert surroundings.changed(before, surroundings.note([layers], [rows])) == []
    with torch.enable_grad():
        CHANGES[name](layers, rows)
        assert surroundings.changed(before, surroundings.note([layers], [rows])) == [name]
        assert surroundings.changed(before, surroundings.note([layers], [rows]), but=[name]) == []
    with pytest.raises(CheckError):
        expect.unchanged({"changed": [name]})
