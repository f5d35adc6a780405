"""The training scripts of 10e and 14, and what their levers make of them."""

import json
import runpy
from functools import partial
from pathlib import Path
from unittest.mock import patch

import planned
import pytest
import states
import torch
import train

from tutorial_lib.checks import CheckError, assert_same_training
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


@pytest.mark.parametrize("chapter", states.CHAPTERS)
def test_the_script_after_a_chapter_trains_alike(tmp_path, capsys, chapter):
    losses = []
    states.write(tmp_path / "mine.py", states.functions_after(chapter))
    for path in (tmp_path / "mine.py", Path(train.__file__)):
        script = runpy.run_path(str(path), run_name="script")
        script["main"](script["TWIN"], updates=3, device="cpu")
        losses.append([float(x.split()[-1]) for x in capsys.readouterr().out.splitlines()])
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


def test_a_script_written_anew_is_kept_aside(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("print('mine')\n")
    states.write(path, states.functions_after("05"))
    assert (tmp_path / "mine.before.py").read_text() == "print('mine')\n"
    assert "checkpoint(block, x" in path.read_text()
    with pytest.raises(SystemExit, match="'06' has no lever: name one of 05, 08, 10d, 10e"):
        states.functions_after("06")


PLAN = {"batch": "packed", "block": "offloaded", "loss": "chunked", "model": "lora_on_4_bits"}


def plan_file(tmp_path, **choices):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN | choices))
    return path


@pytest.mark.parametrize("choices", [{}, {"model": "whole"}, {"block": "checkpointed"}])
def test_a_plan_is_shown_to_be_the_same_training(tmp_path, capsys, choices):
    planned.main(plan_file(tmp_path, **choices))
    assert capsys.readouterr().out == "the same training, within rounding\n"


def shifted(rows):  # the last token of a text is asked for the next text's first
    ids, _, positions = planned.packed(rows)
    return ids, planned.next_tokens(ids[0])[None], positions


def mixed(rows):  # tokens look at the texts before theirs
    ids, targets, positions = planned.packed(rows)
    return ids, targets, torch.arange(positions.size(1))[None]


@pytest.mark.parametrize("batch", [shifted, mixed])
def test_a_plan_that_changes_the_training_is_refused(tmp_path, batch):
    with (
        patch.dict(planned.LEVERS, packed=batch),
        pytest.raises(CheckError, match=r"loss|gradient"),
    ):
        planned.main(plan_file(tmp_path))


@pytest.mark.parametrize(("part", "name"), [("block", "offload"), ("loss", None)])
def test_a_plan_with_an_unknown_choice_names_the_known_ones(tmp_path, part, name):
    with pytest.raises(SystemExit, match=f"{part} is {name!r}: name one of padded, plainly"):
        planned.main(plan_file(tmp_path, **{part: name}))
