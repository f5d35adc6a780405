"""What people run out of memory on in 2026, under predict and plan: planned, or named."""

import pytest
import recipes_of_2026 as recipes
import torch

from tutorial_lib import memory
from tutorial_lib.instruments import ranks
from tutorial_lib.school.commands.main import run

ONE_PROCESS = ("grpo", "tiles", "mixture", "fp8", "delayed_fp8", "video", "video_decoder")
SAYS = {  # what a plan says of gradients, or why there is no plan
    "grpo": "Accumulating changes last digits of a gradient",
    "tiles": "Recomputing changes no bit of a gradient",
    "mixture": "Recomputing changes no bit of a gradient",
    "fp8": "Recomputing changes no bit of a gradient",
    "delayed_fp8": "would change gradients: forward reads what it changes (history)",
    "video": "Recomputing changes no bit of a gradient",
    "video_decoder": "can be neither recomputed nor planned",
}
DAILY = ("tiles", "delayed_fp8")


def function(root, name):
    return f"{root / 'tests/recipes_of_2026.py'}:make_{name}"


def weekly(names, *, daily):
    return [
        name if name in daily else pytest.param(name, marks=pytest.mark.weekly) for name in names
    ]


@pytest.mark.parametrize("name", weekly(ONE_PROCESS, daily=DAILY))
def test_a_prediction_is_what_a_cpu_counts(name):
    def make_step():
        torch.manual_seed(0)
        loss, model = getattr(recipes, f"make_{name}")(2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step():
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        return step, model, optimizer

    step, model, optimizer = make_step()
    counted = memory.measure(step, model=model, optimizer=optimizer).peak_bytes
    predicted = memory.predict(make_step, kernels="cpu").peak_bytes
    # experts get as many tokens each in a prediction, and as many as they are sent in a step
    assert predicted == pytest.approx(counted, rel=0.05 if name == "mixture" else 0)


@pytest.mark.parametrize("name", weekly(ONE_PROCESS, daily=DAILY))
def test_it_is_planned_or_said_to_be_no_chain(capsys, root, name):
    words = ["plan", function(root, name), "--budget", "16GiB", "--effective-batch", "4"]
    status = run(words)
    said = " ".join("".join(capsys.readouterr()).split())
    assert SAYS[name] in said
    assert status == (2 if name == "video_decoder" else 0)
    assert "previous one changed" not in said or name == "delayed_fp8"


@pytest.mark.parametrize("name", ["fsdp2", "ring"])
def test_a_rank_is_predicted_inside_pretend_and_a_command_says_so(capsys, root, name):
    def make_step():
        loss, model = getattr(recipes, f"make_{name}")()
        return lambda: loss().backward(), model, None

    with ranks.pretend(4):
        assert memory.predict(make_step).peak_bytes > 0
    assert run(["predict", function(root, name)]) == 2
    assert "with ranks.pretend(8):" in capsys.readouterr().err
