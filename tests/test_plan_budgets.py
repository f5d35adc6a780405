"""A budget that is named as enough is enough: the next call asks for it and gets a plan."""

import random
import re
import shlex

import pytest
import torch
from small_models import ASKED, TINY
from torch import nn
from torch.nn import functional as F

from tutorial_lib.instruments import planning
from tutorial_lib.instruments.emulated import Room, Verdict
from tutorial_lib.instruments.training import Recipe
from tutorial_lib.school.commands.main import run

HERE = f"{__file__}:"
# Published sizes, one of each family and layout, up to hundreds of stages.
PUBLISHED = [
    *("gpt2", "bert-base", "llama-2-7b", "gemma-2-9b", "qwen3-0.6b", "modernbert-base"),
    *("vit-b-16", "dinov2-base", "resnet50", "clip-two-tower", "sd15-unet", "sd-vae"),
    *("transformer-50", "lstm", "unet3d"),
]


def wide_layers(micro_batch=16, width=1024):
    """Updates and activations of a like size, so that autocast's copies decide."""
    pairs = [(nn.Linear(256, width), nn.Linear(width, 256)) for _ in range(3)]
    model = nn.Sequential(*[nn.Sequential(one, nn.ReLU(), other) for one, other in pairs])
    x = torch.randn(micro_batch, 64, 256)
    return (lambda: model(x).square().mean()), model


def convolutions(micro_batch=8):
    model = nn.Sequential(*[nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4)])
    x = torch.randn(micro_batch, 16, 32, 32)
    return (lambda: model(x).square().mean()), model


def linear(micro_batch=4):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.randn(micro_batch, 64)
    return (lambda: model(x).square().mean()), model


def contrastive(micro_batch=16):
    layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)]
    model, views = nn.Sequential(*layers), torch.randn(2 * micro_batch, 64, 64)

    def loss():
        one, other = F.normalize(model(views).mean(1), dim=-1).chunk(2)
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))

    return loss, model


def fit(recipe, budget, samples=8, **asked):
    return planning.fit(recipe, budget_bytes=budget, effective_batch=samples, **asked)


def assert_enough(recipe, **asked):
    """Ask for too little, then for what is named, and for a little more."""
    named = fit(recipe, 1, **asked).smallest_bytes
    for budget in (named, int(1.003 * named)):
        found = fit(recipe, budget, **asked)
        assert found.smallest_bytes is None
        assert found.best.is_verified
        assert found.best.peak_bytes <= budget
    assert (found.best.precision, found.best.optimizer) in found.asked
    return named


@pytest.mark.parametrize("function", [wide_layers, convolutions, linear, contrastive])
def test_the_smallest_budget_of_ones_own_function_is_enough(function):
    named = assert_enough(HERE + function.__name__, precisions=["bf16-amp"])
    assert fit(HERE + function.__name__, named // 2, precisions=["bf16-amp"]).best is None


DAILY = ["gpt2", "resnet50"]  # and pairs of samples in `contrastive`


@pytest.mark.parametrize(
    "name",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.weekly) for name in TINY],
)
def test_the_smallest_budget_of_each_family_is_enough(name):
    assert_enough(Recipe(name, overrides=TINY[name], **ASKED.get(name, {})), precisions=["bf16"])


def told(words, capsys):
    """Run a command; return its status and what it printed."""
    status = run(shlex.split(words))
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def assert_option_is_enough(words, option, too_little, capsys):
    """Replace what was too little by what the command says is enough, and run it again."""
    status, said = told(f"{words} {option} {too_little}", capsys)
    assert status
    option = re.search(rf"{option} [\d.]+[KMGT]?i?B(?: --precision \S+)?", said)[0]
    status, said = told(f"{words} {option}", capsys)
    assert (status, "fits: yes" in said) == (0, True), said


@pytest.mark.parametrize(
    ("model", "too_little"),
    [("contrastive", "66MiB"), ("wide_layers --set width=4000000", "t4")],  # t4: another precision
)
def test_the_smallest_budget_that_plan_prints_is_enough(model, too_little, capsys):
    words = f"plan {HERE}{model} --effective-batch 8"
    assert_option_is_enough(words, "--budget", too_little, capsys)


@pytest.mark.weekly
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_smallest_budget_that_plan_prints_of_a_published_model_is_enough(name, capsys):
    assert_option_is_enough(f"plan {name} --effective-batch 8", "--budget", "66MiB", capsys)


@pytest.mark.parametrize("precision", ["fp32", "bf16-amp"])
def test_what_predict_says_would_fit_one_sample_fits_it(precision, capsys):
    words = f"predict {HERE}wide_layers --precision {precision}"
    assert_option_is_enough(words, "--fits", "70MiB", capsys)


@pytest.mark.parametrize("reserved", [None, 1])
def test_the_room_that_a_verdict_names_is_enough(reserved):
    drawn = random.Random(0)
    for _ in range(1000):
        needs = int(2 ** drawn.uniform(10, 40))
        little = Verdict(needs, Room(needs // 2), reserved)
        named = re.search(r"enough +(.*) for PyTorch", str(little))[1]
        assert little.answer == "no"
        assert Verdict(needs, Room.of(named), reserved).answer == "yes"
        assert Verdict(needs, Room(little.enough), reserved).answer == "yes"
        assert "enough" not in str(Verdict(needs, Room(little.enough), reserved))


def test_the_options_that_take_the_first_row_give_it(capsys):
    words = f"plan {HERE}wide_layers --effective-batch 8 --budget 88MiB"
    status, said = told(words, capsys)
    assert (status, "nothing fits with bf16-amp, adamw-fused" in said) == (1, True)
    row = re.search(r"time\n *(.*\n)", said)[1]
    options = re.search("To take the first row: (.*)", said)[1]
    status, said = told(f"{words} {options}", capsys)
    assert (status, re.search(r"time\n *(.*\n)", said)[1]) == (0, row)
