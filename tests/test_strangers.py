"""What the instruments make of strangers' functions: tests/strangers/, a model and a loss each.

They are written as engineers of many fields write them, and know nothing of this library. The batch
is in tensors (or lists of one entry a sample) that the loss closes over, samples first.
"""

import math
from pathlib import Path

import pytest
import torch

from tutorial_lib.instruments.training import Recipe

FOLDER = Path(__file__).resolve().parent / "strangers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def recipe(name, micro_batch=8, **choices):
    return Recipe(f"{FOLDER / name}.py:make_loss", micro_batch, **choices)


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_trains_plainly(name):
    torch.manual_seed(0)
    loss, model = recipe(name, 2).make_loss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        value = loss()
        value.backward()
        assert math.isfinite(value.item())
        trained = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
        assert any(gradient.any() for gradient in trained)
        optimizer.step()
        optimizer.zero_grad()


def test_there_are_many_strangers():
    assert len(NAMES) >= 40
