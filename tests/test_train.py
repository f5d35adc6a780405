"""The training script of companion 10e, and what its levers make of it."""

from functools import partial
from unittest.mock import patch

import pytest
import torch
import train

from tutorial_lib.checks import assert_same_training
from tutorial_lib.school import authoring

LEVERS = ("hidden_of", "update", "loss_of")


def test_the_script_trains_its_twin(capsys):
    train.main(train.TWIN, updates=4, device="cpu")
    losses = [float(line.split("loss ")[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def chapter(root):
    return authoring.load_definitions(root / "course/10e_your_run.ipynb")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_script_trains_alike_after_each_lever(chapter, number):
    tokens = torch.randint(256, (12, 64), generator=torch.Generator().manual_seed(0))
    levers = {name: getattr(chapter, name) for name in LEVERS[:number]}

    def changed(model, optimizer):
        with patch.multiple(train, **levers):
            return train.update(model, optimizer, tokens)

    def plain(model, optimizer):
        return train.update(model, optimizer, tokens)

    make = partial(train.make, train.TWIN)
    assert_same_training(plain, changed, make=make, bitwise=number == 1)
